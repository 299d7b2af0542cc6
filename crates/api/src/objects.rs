//! Names of Kubernetes objects, and the state of a service's objects as the agent reports it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, deletion::Deletion, hooks::HookReport, service_deployment::HeldPrune};

/// One object of a cluster. `namespace` is empty for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    pub version: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

impl ObjectRef {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The object's identity: two versions of one kind are the same object.
    pub fn id(&self) -> ObjectId<'_> {
        ObjectId { group: &self.group, kind: &self.kind, namespace: &self.namespace, name: &self.name }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// `Kind.group namespace/name`.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        f.write_str(" ")?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// Health by kstatus' rules, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Health {
    Failed = 0,
    InProgress = 1,
    Terminating = 2,
    Current = 4,
    /// Also one that only a newer agent knows.
    #[serde(other)]
    Unknown = 3,
}

impl Health {
    /// The word that people read, as for services. The API has kstatus' own (`Current`, `InProgress`).
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

/// What the agent did or did not do with one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SyncState {
    /// As desired.
    Synced,
    /// Not applied: the API server or a rule of ours refused it; `message` says why.
    Refused,
    /// Waits for another object, named in `message`.
    Waiting,
    /// Would be pruned, held until approved.
    PruneHeld,
    /// Changed by others and left so, as its drift mode asks; `message` says what differs.
    Drifted,
    /// Said by an agent that is newer than who reads it.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReport {
    #[serde(flatten)]
    pub object: ObjectRef,
    pub sync: SyncState,
    pub health: Health,
    /// At most 1 KiB; empty where there is nothing to say. Never holds values of Secrets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The object that this one waits for, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Box<ObjectRef>>,
}

/// The outcome of the agent's last attempt at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// Being applied.
    Applying,
    /// Every object was applied.
    Applied,
    /// Something could not be fetched, read or applied; `message` and the objects say what.
    Failed,
    /// A newer entry ended it.
    Superseded,
    /// Removed from the cluster, or orphaned, as the entry asked.
    Removed,
    /// Said by an agent that is newer than who reads it.
    #[serde(other)]
    Unknown,
}

/// What the agent says of one service. `entry` names what it speaks of, so that yesterday's Healthy is never today's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReport {
    /// The digest of the desired state's entry that this report speaks of.
    pub entry: Digest,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_prune: Option<HeldPrune>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Deletion>,
    /// Hooks and tests that were run for this version, see [`MAX_REPORTED_HOOKS`](crate::hooks::MAX_REPORTED_HOOKS).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookReport>,
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
        assert_eq!(serde_json::from_str::<SyncState>("\"Adopting\"").unwrap(), SyncState::Unknown);
        assert_eq!(serde_json::from_str::<Health>("\"Degraded\"").unwrap(), Health::Unknown);
    }

    #[test]
    fn the_worst_health_comes_first() {
        let mut all = [Health::Current, Health::Unknown, Health::Failed, Health::Terminating, Health::InProgress];
        all.sort_unstable();
        let worst_first = [Health::Failed, Health::InProgress, Health::Terminating, Health::Unknown, Health::Current];
        assert_eq!(all, worst_first);
    }
}
