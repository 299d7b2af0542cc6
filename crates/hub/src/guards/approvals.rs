//! A person's decision in an annotation: the approval of a prune, or the override of change windows. It counts for a
//! limited time and is then removed, so that a person who needs it longer has to look again.

use std::time::Duration;

use farwater_api::{APPROVE_PRUNE, OVERRIDE_FREEZE, ServiceSet};
use farwater_fleet::{conditions::whole_seconds, prune::APPROVAL_LASTS, windows::OVERRIDE_LASTS};
use farwater_store::{Resource, StoreError, delivery::member_of_service};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    replica::Replica,
    resources::{self, APPROVED_AT, APPROVED_BY, Name, OVERRIDDEN_AT, OVERRIDDEN_BY, Stored},
};

/// Timers run on another clock than these times. A time that is due is acted on this late.
const SOON: Duration = Duration::from_millis(50);
/// Requeue after this long if the time of a decision was only now written down.
const WRITTEN_NOW: Duration = Duration::from_secs(600);

pub struct Word {
    annotation: &'static str,
    /// Fields of the status that the API server writes.
    by: &'static str,
    at: &'static str,
    lasts: SignedDuration,
    what: &'static str,
}

pub const APPROVAL: Word = Word {
    annotation: APPROVE_PRUNE,
    by: APPROVED_BY,
    at: APPROVED_AT,
    lasts: APPROVAL_LASTS,
    what: "an approval of a prune",
};
pub const OVERRIDE: Word = Word {
    annotation: OVERRIDE_FREEZE,
    by: OVERRIDDEN_BY,
    at: OVERRIDDEN_AT,
    lasts: OVERRIDE_LASTS,
    what: "a word against change windows",
};

/// State of a decision on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    None,
    /// It counts for this much longer.
    Open(Duration),
    /// It has expired and was removed.
    Expired,
}

impl Standing {
    pub fn left(self) -> Option<Duration> {
        match self {
            Self::Open(left) => Some(left),
            Self::None | Self::Expired => None,
        }
    }
}

/// An override of windows that counts now, with its author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub by: String,
    pub reason: String,
}

impl Word {
    fn said(&self, object: &Value) -> Option<String> {
        let text = object["metadata"]["annotations"][self.annotation].as_str()?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Returns what counts now on an object. A decision without a time is new and counts.
    pub fn counting(&self, object: &Value, now: Timestamp) -> Option<Override> {
        let reason = self.said(object)?;
        let at = object["status"][self.at]
            .as_str()
            .and_then(|text| text.parse::<Timestamp>().ok());
        let by = object["status"][self.by]
            .as_str()
            .unwrap_or("an unknown user")
            .to_owned();
        at.is_none_or(|at| now.duration_since(at) < self.lasts)
            .then_some(Override { by, reason })
    }

    /// Removes the annotation if its time is over.
    pub async fn check<T: Stored>(
        &self,
        replica: &Replica,
        name: &Name,
        resource: &Resource,
    ) -> Result<Standing, StoreError> {
        if resource.object["metadata"]["annotations"]
            .get(self.annotation)
            .is_none()
        {
            return Ok(Standing::None);
        }

        let now = Timestamp::now();
        let known = resource.object["status"][self.at].clone();
        let Some(said) = known.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
            // A hub that did not write the time down accepted it: it counts from now on.
            resources::change::<T>(&replica.store, name, &resource.uid, "status", |object| {
                if object["status"][self.at].is_null() {
                    object["status"][self.at] = json!(whole_seconds(now));
                }
            })
            .await?;
            return Ok(Standing::Open(WRITTEN_NOW));
        };

        let age = now.duration_since(said);
        if age < self.lasts {
            return Ok(Standing::Open(
                Duration::try_from(self.lasts - age).unwrap_or(SOON).max(SOON),
            ));
        }

        resources::change::<T>(&replica.store, name, &resource.uid, "", |object| {
            // It may have been given again since the read.
            if object["status"][self.at] != known {
                return;
            }
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                annotations.remove(self.annotation);
            }
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.retain(|field, value| field != "annotations" || *value != json!({}));
            }
            if let Some(status) = object["status"].as_object_mut() {
                status.retain(|field, _| ![self.by, self.at].contains(&field.as_str()));
            }
        })
        .await?;
        tracing::info!(object = %name, "{} is a day old and has expired", self.what);
        Ok(Standing::Expired)
    }
}

/// Returns the set that a service belongs to, according to its own rows, because any editor can write an owner
/// reference. `owners`: names and uids of the service's owners.
pub async fn owning_set<'a>(
    replica: &Replica,
    service_uid: &str,
    namespace: &str,
    mut owners: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Option<(Name, String)>, StoreError> {
    let Some(member) = member_of_service(&mut *replica.store.tables().await?, service_uid).await? else {
        return Ok(None);
    };
    Ok(owners
        .find(|(_, uid)| *uid == member.set_uid)
        .map(|(name, _)| (Name::new(namespace, name), member.set_uid)))
}

/// The override of a set that counts now.
pub async fn override_of_set(
    replica: &Replica,
    name: &Name,
    uid: &str,
    now: Timestamp,
) -> Result<Option<Override>, StoreError> {
    let found = replica
        .store
        .get(&ServiceSet::key(name))
        .await?
        .filter(|found| found.uid == uid);
    Ok(found.and_then(|found| OVERRIDE.counting(&found.object, now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_counts_for_a_day_and_with_a_reason() {
        let now: Timestamp = "2026-12-24T12:00:00Z".parse().unwrap();
        let check = |reason: &str, at: Value, expected: Option<&str>| {
            let object = json!({
                "metadata": {"annotations": {OVERRIDE_FREEZE: reason}},
                "status": {"overriddenBy": "ada", OVERRIDDEN_AT: at},
            });
            let said = OVERRIDE
                .counting(&object, now)
                .map(|said| format!("{}: {}", said.by, said.reason));
            assert_eq!(said.as_deref(), expected);
        };
        check(" a hole ", json!("2026-12-24T11:00:00Z"), Some("ada: a hole"));
        check("a hole", Value::Null, Some("ada: a hole"));
        check("a hole", json!("2026-12-23T12:00:01Z"), Some("ada: a hole"));
        check("a hole", json!("2026-12-23T12:00:00Z"), None);
        check(" ", json!("2026-12-24T11:00:00Z"), None);
    }
}
