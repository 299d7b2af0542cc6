//! Columns of a member's row: specs, parameter documents, and what its report notes.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{Digest, ServiceDeploymentSpec};
use farwater_fleet::{
    assignment::Candidate,
    parameters::is_handed,
    rollout::{ChangeId, Content, Counts, Evidence, Outlook, Published, Rest, State, Track},
    stamping::template_digest,
};
use farwater_store::{StoreError, delivery::MemberRollout};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::resources::Name;

/// Stored state of a set's rollout.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Written {
    pub(super) state: State,
    pub(super) outlook: Outlook,
    /// Counts that were notified last.
    pub(super) counts: Counts,
    /// Digest of the policy by which members rest.
    pub(super) policy: Option<Digest>,
}

pub(super) fn read<T: DeserializeOwned>(row: &MemberRollout, what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Row {
        what: format!("{what} of service {}, a member of a set", row.service_uid),
        problem: error.to_string(),
    })
}

pub(super) fn read_some<T: DeserializeOwned>(
    row: &MemberRollout,
    what: &str,
    text: &str,
) -> Result<Option<T>, StoreError> {
    if text.is_empty() {
        Ok(None)
    } else {
        read(row, what, text).map(Some)
    }
}

/// The spec that counts instead of the member's own. None: its own counts.
pub fn held_spec(row: &MemberRollout) -> Result<Option<ServiceDeploymentSpec>, StoreError> {
    read_some(row, "held spec", &row.held_spec)
}

/// Returns the spec to keep while `new` waits for its turn; empty: nothing has to be kept.
pub fn spec_to_hold(row: &MemberRollout, old: &Value, new: &Value) -> Result<String, StoreError> {
    let track: Track = read(row, "track", &row.track)?;
    if track.released.is_none() {
        return Ok(String::new());
    }
    let counts = if row.held_spec.is_empty() {
        old.clone()
    } else {
        read(row, "held spec", &row.held_spec)?
    };
    Ok(if template_digest(&counts) == template_digest(new) {
        String::new()
    } else {
        counts.to_string()
    })
}

/// `parameters`: MAC of the parameter document. It is part of the change only if the parameters don't come from the
/// spec alone.
pub(super) fn change(
    spec: &ServiceDeploymentSpec,
    candidate: &Candidate,
    parameters: Option<Digest>,
) -> Result<ChangeId, StoreError> {
    let template = template_digest(&serde_json::to_value(spec).map_err(StoreError::abort)?);
    let Candidate {
        bundle,
        path,
        origin,
        configuration,
        ..
    } = candidate;
    let parameters = parameters.filter(|_| is_handed(spec));
    Ok(ChangeId::of(&Content {
        template,
        bundle: *bundle,
        path,
        origin: origin.as_deref(),
        parameters,
        configuration,
    }))
}

/// Describes what an entry to apply was made of, as a member's row stores it.
pub fn published(
    spec: &ServiceDeploymentSpec,
    assigned: &Candidate,
    entry: Digest,
    parameters: Option<Digest>,
) -> Result<String, StoreError> {
    let published = Published {
        entry,
        change: change(spec, assigned, parameters)?,
    };
    serde_json::to_string(&published).map_err(StoreError::abort)
}

/// MACs of a member's parameter documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Documents {
    /// The document that counts. None: the newest one counts, or the spec alone has all parameters.
    pub(super) counts: Option<Digest>,
    /// Documents of the changes that the member was released for and may be rolled back to.
    pub(super) of_changes: BTreeMap<ChangeId, Digest>,
}

impl Documents {
    pub(super) fn of(row: &MemberRollout) -> Result<Self, StoreError> {
        Ok(read_some(row, "documents", &row.documents)?.unwrap_or_default())
    }

    pub(super) fn write(&self) -> Result<String, StoreError> {
        if *self == Self::default() {
            return Ok(String::new());
        }
        serde_json::to_string(self).map_err(StoreError::abort)
    }

    pub(super) fn macs(&self) -> BTreeSet<String> {
        self.counts
            .iter()
            .chain(self.of_changes.values())
            .map(Digest::to_string)
            .collect()
    }
}

/// Returns the MAC of the document that counts for a member; None: the newest one counts.
pub fn counting_document(row: &MemberRollout) -> Result<Option<Digest>, StoreError> {
    Ok(Documents::of(row)?.counts)
}

/// Returns the evidence to save for an agent's report; None: the report is no news. `now`: seconds since 1970, by the
/// clock that measures soaks.
pub fn note_report(
    row: &MemberRollout,
    report: &farwater_api::objects::ServiceReport,
    spec: &ServiceDeploymentSpec,
    now: i64,
) -> Result<Option<String>, StoreError> {
    let published: Option<Published> = read_some(row, "published entry", &row.published)?;
    let mut known: Option<Evidence> = read_some(row, "evidence", &row.evidence)?;
    if !Evidence::note(&mut known, published, report, &spec.tests, now) {
        return Ok(None);
    }
    known
        .map(|known| serde_json::to_string(&known))
        .transpose()
        .map_err(StoreError::abort)
}

/// Decodes the column `rests`; None: the member does not rest.
pub(super) fn rest_of(code: i64) -> Option<Rest> {
    match code {
        1 => Some(Rest::Done),
        2 => Some(Rest::Deferred),
        _ => None,
    }
}

pub(super) fn code_of(rest: Option<Rest>) -> i64 {
    match rest {
        None => 0,
        Some(Rest::Done) => 1,
        Some(Rest::Deferred) => 2,
    }
}

pub(super) fn read_written(name: &Name, text: &str) -> Result<Written, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Row {
        what: format!("rollout of ServiceSet {name}"),
        problem: error.to_string(),
    })
}
