//! A member's service in its rollout: what is observed, and what a reconcile of the service saves.

use std::collections::BTreeSet;

use farwater_api::{Digest, ServiceDeploymentSpec};
use farwater_fleet::{
    assignment::{Candidate, Why},
    parameters::is_handed,
    rollout::{ChangeId, Stands, Track},
    stamping::template_digest,
};
use farwater_store::{
    Key, StoreError, Tx,
    delivery::{MemberRollout, hold_spec, load_parameters, retain_documents, save_look, save_specs, track_of_service},
};
use serde_json::{Value, json};

use super::row::{Documents, change, read, read_some};
use crate::{
    replica::Replica,
    services::{candidates::Ingredient, parameters::Newest, versions},
};

/// Fingerprint of what the sources of a service have.
pub(super) fn fingerprint(ingredients: &[Ingredient]) -> String {
    let one = |ingredient: &Ingredient| {
        let found = ingredient.found.as_ref()?;
        let revision = found.revision.as_ref().map(|revision| {
            let taken = &revision.taken;
            json!([
                revision.reference,
                revision.commit,
                taken.submodules,
                taken.lfs,
                taken.artifact,
                taken.configuration
            ])
        });
        let chart = found
            .chart
            .as_ref()
            .map(|chart| json!([chart.chart, chart.wanted, chart.version, chart.digest]));
        Some(json!([found.object.uid, revision, chart]))
    };
    let all: Vec<Option<Value>> = ingredients.iter().map(one).collect();
    Digest::of_json(&json!(all)).to_hex()
}

/// Observed state of a member's service in its rollout.
pub struct Look {
    pub(super) row: MemberRollout,
    /// Number of the rollout that released the current assignment.
    pub(super) rollout: u64,
    pub(super) wanted: Option<ChangeId>,
    pub(super) track: Track,
    pub(super) looked_at: String,
    pub(super) newest: Newest,
    pub(super) documents: Documents,
    pub(super) back: Option<Back>,
}

/// An earlier state that a member is rolled back to.
pub(super) struct Back {
    candidate: Candidate,
    /// The spec of that state; empty: the service's own.
    spec: String,
    /// MAC of its parameters in that state.
    document: Option<Digest>,
}

/// Inputs of [`Look::of`].
pub struct Looking<'a> {
    /// The service's own spec.
    pub spec: &'a ServiceDeploymentSpec,
    /// The candidate of its sources, or of the version that its set is pinned at. None: there is none.
    pub candidate: Option<&'a Candidate>,
    pub assigned: Option<&'a Candidate>,
    pub ingredients: &'a [Ingredient],
    /// Newest parameters of its own spec.
    pub newest: Newest,
}

impl Look {
    pub async fn of(
        replica: &Replica,
        row: MemberRollout,
        Looking {
            spec,
            candidate,
            assigned,
            ingredients,
            newest,
        }: Looking<'_>,
    ) -> Result<Self, StoreError> {
        let track: Track = read(&row, "track", &row.track)?;
        let documents = Documents::of(&row)?;
        let candidate = candidate.filter(|_| !matches!(newest, Newest::Unresolved | Newest::Wrong));
        let wanted = candidate
            .map(|candidate| change(spec, candidate, newest.mac()))
            .transpose()?;
        let back = match (track.released, assigned) {
            (Some(released), Some(assigned)) if Some(released) != wanted => {
                find_back(replica, (&row, &documents), spec, assigned, released).await?
            }
            _ => None,
        };
        let looked_at = fingerprint(ingredients);
        Ok(Self {
            wanted,
            looked_at,
            back,
            rollout: track.number,
            track,
            row,
            newest,
            documents,
        })
    }

    /// The earlier assignment that the member is rolled back to; None: no rollback.
    pub fn back(&self) -> Option<&Candidate> {
        self.back.as_ref().map(|back| &back.candidate)
    }

    /// Whether its turn has not come.
    pub fn is_held(&self) -> bool {
        self.wanted.is_none() || self.wanted != self.track.released
    }

    /// Whether the held spec differs from `own`. They are equal in one case: the set wrote the service after this
    /// reconcile read it and before it read the member's row. Then the row holds the very spec that was read.
    fn holds_other(&self, own: &Value) -> Result<bool, StoreError> {
        let held: Option<Value> = read_some(&self.row, "held spec", &self.row.held_spec)?;
        Ok(held.is_some_and(|held| template_digest(&held) != template_digest(own)))
    }

    /// Returns what to save, given the decision `why`. `object`: the service as it was read.
    pub fn end(self, why: &Why, pinned: bool, object: &Value) -> Result<Looked, StoreError> {
        let held = self.is_held();
        let is_settled = *why == Why::Current && !pinned;
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        let row = &self.row;
        let release = match &self.back {
            // The spec that is rolled back is not kept as one to go back to.
            Some(back) if is_settled && row.held_spec != back.spec => Some(Specs::Back(back.spec.clone())),
            None if is_settled && !held && self.holds_other(&object["spec"])? => Some(Specs::Own {
                generation,
                spec: object["spec"].to_string(),
            }),
            _ => None,
        };

        let documents = self.next_documents(is_settled);
        // If no document was named, the newest one counted. The document named now is then the same, or it comes with
        // what is assigned.
        let document_changes = self
            .documents
            .counts
            .is_some_and(|counts| documents.counts != Some(counts));

        let before = self.row.held_spec.clone();
        let (set_uid, service_uid, track) = (row.set_uid.clone(), row.service_uid.clone(), row.track.clone());
        let (rollout, is_unresolved) = (self.rollout, self.newest == Newest::Unresolved);
        let macs = (!row.documents.is_empty() || self.newest != Newest::Own).then(|| documents.macs());

        let next = self.next(why, pinned, &documents)?;
        let released = release.is_some() || document_changes;
        Ok(Looked {
            set_uid,
            service_uid,
            held,
            rollout,
            next,
            before,
            release,
            released,
            is_unresolved,
            macs,
            track,
        })
    }

    /// The document that counts from now on, and those to keep.
    fn next_documents(&self, is_settled: bool) -> Documents {
        let Track {
            released, good, back, ..
        } = self.track;
        let mut next = self.documents.clone();
        next.of_changes
            .retain(|change, _| [released, good, back].contains(&Some(*change)));
        match &self.back {
            _ if !is_settled => {}
            Some(back) => next.counts = back.document,
            None if !self.is_held() => {
                next.counts = self.newest.mac();
                next.of_changes.extend(self.wanted.zip(self.newest.mac()));
            }
            None => {}
        }
        next
    }

    /// The row to write; None: it is unchanged.
    pub(super) fn next(
        self,
        why: &Why,
        pinned: bool,
        documents: &Documents,
    ) -> Result<Option<MemberRollout>, StoreError> {
        let stands = match why {
            Why::Suspended => Some(Stands::Suspended),
            _ if pinned => Some(Stands::Pinned),
            Why::NotGranted(message) => Some(Stands::Denied(message.clone())),
            Why::Waiting(message) => Some(Stands::Waiting(message.clone())),
            // Windows are checked again in each reconcile of the set.
            Why::Current | Why::Rollout | Why::Frozen(_) | Why::Trouble(_) => None,
        };
        let stands = stands
            .map(|stands| serde_json::to_string(&stands))
            .transpose()
            .map_err(StoreError::abort)?;
        let next = MemberRollout {
            wanted: self.wanted.map(|wanted| wanted.to_string()).unwrap_or_default(),
            looked_at: self.looked_at,
            stands: stands.unwrap_or_default(),
            pin: self.row.set_pin,
            documents: documents.write()?,
            looked_mac: self.newest.mac().map(|mac| mac.to_string()).unwrap_or_default(),
            ..self.row.clone()
        };
        Ok((next != self.row).then_some(next))
    }
}

/// Result of a reconcile of a member's service.
#[derive(Debug)]
pub struct Looked {
    pub set_uid: String,
    pub(super) service_uid: String,
    pub held: bool,
    /// Number of the rollout that released the current assignment.
    pub rollout: u64,
    pub(super) next: Option<MemberRollout>,
    /// The spec that counted; empty: the service's own.
    pub(super) before: String,
    /// Set if another spec counts from now on.
    pub(super) release: Option<Specs>,
    /// Whether another spec or other parameters count from now on.
    pub released: bool,
    /// Whether its newest parameters have to be resolved.
    pub is_unresolved: bool,
    /// MACs of the documents to keep. None: the member has no documents.
    pub(super) macs: Option<BTreeSet<String>>,
    /// The member's track as it was read.
    pub(super) track: String,
}

/// The spec that counts from now on.
#[derive(Debug)]
pub enum Specs {
    /// The service's own, as it was read.
    Own { generation: i64, spec: String },
    /// An earlier one; empty: the service's own.
    Back(String),
}

impl Looked {
    pub fn is_known(&self) -> bool {
        self.next.is_none() && self.release.is_none() && !self.is_unresolved
    }

    /// Whether its track is unchanged, so that it is still released for the same change.
    pub async fn is_current(&self, tx: &mut Tx) -> Result<bool, StoreError> {
        Ok(track_of_service(tx, &self.service_uid).await?.as_ref() == Some(&self.track))
    }

    /// `key`: key of the service.
    pub async fn save(self, tx: &mut Tx, key: &Key) -> Result<(), StoreError> {
        if let Some(next) = &self.next {
            save_look(tx, next).await?;
        }
        if let Some(mut macs) = self.macs {
            // A newer document may have been saved since this reconcile read it: keep that one too.
            let newest = load_parameters(tx, &self.service_uid).await?;
            macs.extend(newest.map(|row| row.mac).filter(|mac| !mac.is_empty()));
            retain_documents(tx, &self.service_uid, &macs).await?;
        }
        match self.release {
            None => Ok(()),
            Some(Specs::Back(spec)) => hold_spec(tx, &self.service_uid, &spec).await,
            Some(Specs::Own { generation, spec }) => {
                // A spec that was written since the read waits for a turn of its own. Until then the one that was read
                // counts.
                let now = tx.get(key).await?.filter(|now| now.uid == self.service_uid);
                let is_newest = now.is_none_or(|now| now.object["metadata"]["generation"] == generation);
                let held = if is_newest { "" } else { &*spec };
                save_specs(tx, &self.service_uid, (held, &self.before)).await
            }
        }
    }
}

/// Finds the earlier state that a member is rolled back to, in its history. None: it has that state, or the history no
/// longer does.
async fn find_back(
    replica: &Replica,
    (row, documents): (&MemberRollout, &Documents),
    own: &ServiceDeploymentSpec,
    assigned: &Candidate,
    released: ChangeId,
) -> Result<Option<Back>, StoreError> {
    let held: Option<ServiceDeploymentSpec> = read_some(row, "held spec", &row.held_spec)?;
    if change(held.as_ref().unwrap_or(own), assigned, documents.counts)? == released {
        return Ok(None);
    }

    let document = documents.of_changes.get(&released).copied();
    let back: Option<ServiceDeploymentSpec> = read_some(row, "spec to go back to", &row.back_spec)?;
    let specs = [
        (Some(own), ""),
        (held.as_ref(), &row.held_spec),
        (back.as_ref(), &row.back_spec),
    ];
    let history = versions::load_candidates(&mut *replica.store.tables().await?, &row.service_uid).await?;
    for (spec, text) in specs {
        let Some(spec) = spec else { continue };
        for candidate in &history {
            if change(spec, candidate, document)? == released {
                let document = document.filter(|_| is_handed(spec));
                return Ok(Some(Back {
                    candidate: candidate.clone(),
                    spec: text.to_owned(),
                    document,
                }));
            }
        }
    }
    tracing::warn!(service = row.service_name, %released, "the version to roll back to is no longer in its history");
    Ok(None)
}
