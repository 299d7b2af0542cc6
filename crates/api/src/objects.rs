//! State of a service's objects as the agent reports it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::object_ref::{ObjectId, ObjectRef};
use crate::{Digest, deletion::Deletion, held_prune::HeldPrune, hooks::HookReport};

/// Health by kstatus' rules, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Health {
    Failed = 0,
    InProgress = 1,
    Terminating = 2,
    Current = 4,
    /// Also a health that only a newer agent knows.
    #[serde(other)]
    Unknown = 3,
}

impl Health {
    /// The word for people, the same as for services. The API has kstatus' words (`Current`, `InProgress`).
    pub const fn word(self) -> &'static str {
        match self {
            Self::Failed => "Failed",
            Self::InProgress => "Progressing",
            Self::Terminating => "Terminating",
            Self::Current => "Healthy",
            Self::Unknown => "Unknown",
        }
    }
}

/// Result of the agent's work on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SyncState {
    /// The live object matches the desired one.
    Synced,
    /// Not applied: the API server or one of our rules refused the object. `message` says why.
    Refused,
    /// The object waits for another object, which `message` names.
    Waiting,
    /// The deletion of the object waits for an approval.
    PruneHeld,
    /// Others changed the object, and its drift mode leaves the change. `message` says what differs.
    Drifted,
    /// State from a newer agent.
    #[serde(other)]
    Unknown,
}

/// State of one object of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReport {
    #[serde(flatten)]
    pub object: ObjectRef,
    /// Result of the agent's work on the object.
    pub sync: SyncState,
    /// Health of the object.
    pub health: Health,
    /// Explanation of at most 1 KiB. It never holds values of Secrets. Empty: nothing to explain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Object that this one waits for. Empty: it waits for no single object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Box<ObjectRef>>,
}

/// Result of the agent's last attempt at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// The attempt is running.
    Applying,
    /// Every object was applied.
    Applied,
    /// An object or file could not be fetched, read or applied. `message` and the objects say which.
    Failed,
    /// A newer entry ended the attempt.
    Superseded,
    /// The objects were deleted or orphaned, as the entry requires.
    Removed,
    /// Outcome from a newer agent.
    #[serde(other)]
    Unknown,
}

/// Report of the agent on one service. `entry` names the described entry, so that an old `Healthy` never counts for a
/// new version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReport {
    /// Digest of the desired state's entry that this report describes.
    pub entry: Digest,
    /// Result of the agent's last attempt.
    pub outcome: Outcome,
    /// Explanation of the outcome. Empty: nothing to explain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Prune that waits for an approval. Empty: none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_prune: Option<HeldPrune>,
    /// Last deletion of the service's objects. Empty: none is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Deletion>,
    /// Hooks and tests that ran for this version; see [`MAX_REPORTED_HOOKS`](crate::hooks::MAX_REPORTED_HOOKS).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookReport>,
    /// State of each object.
    pub objects: Vec<ObjectReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_agent_says_is_unknown_and_nothing_else() {
        let read = |text: &str| serde_json::from_str::<Outcome>(text);
        assert_eq!(read("\"Applied\"").unwrap(), Outcome::Applied);
        assert_eq!(read("\"Paused\"").unwrap(), Outcome::Unknown);
        assert!(read("{}").is_err());
        assert_eq!(
            serde_json::from_str::<SyncState>("\"Adopting\"").unwrap(),
            SyncState::Unknown
        );
        assert_eq!(serde_json::from_str::<Health>("\"Degraded\"").unwrap(), Health::Unknown);
    }

    #[test]
    fn the_worst_health_comes_first() {
        let mut all = [
            Health::Current,
            Health::Unknown,
            Health::Failed,
            Health::Terminating,
            Health::InProgress,
        ];
        all.sort_unstable();
        let worst_first = [
            Health::Failed,
            Health::InProgress,
            Health::Terminating,
            Health::Unknown,
            Health::Current,
        ];
        assert_eq!(all, worst_first);
    }
}
