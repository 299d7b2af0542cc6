//! Versions that a service was assigned, as `servicedeployments/NAME/history` returns them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Digest;

/// One version of a service: a bundle that was assigned to it. Another revision with the same content is not a new
/// version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// Number of the version. Each service counts up from 1.
    pub number: u64,
    /// First revision with this content: `main@sha1:<commit>`.
    pub revision: String,
    /// Digest of the bundle.
    pub bundle: Digest,
    /// Folder inside the bundle.
    pub path: String,
    /// Why the version was assigned.
    pub cause: Cause,
    /// API user who caused the assignment: created the service, changed its source or folder, or set or removed the
    /// pin. Empty if a commit caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Author of the commit, `Name <address>`, as the commit states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Reason that the pin states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the assignment.
    pub assigned: Time,
    /// Result of the version.
    pub result: VersionResult,
    /// Explanation of the result, cut at 256 bytes. Empty: nothing to explain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time at which the result was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Time>,
}

/// Why a version was assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Cause {
    /// The first version of the service.
    Created,
    /// The source has new content.
    Commit,
    /// The spec names another source or folder.
    Spec,
    /// A pin was set.
    Pinned,
    /// The pin was removed.
    Unpinned,
    /// The parameters changed. Of several such changes in a row, only the last is listed. Rolling back to it restores
    /// only its content.
    Parameters,
    /// The set of the service went back: the set was pinned, or its rollout rolled back.
    RolledBack,
    /// Cause from a newer version.
    #[serde(other)]
    Unknown,
}

impl Cause {
    /// Whether a version was assigned again because a person or a rollout went back to it.
    pub fn is_return(self) -> bool {
        matches!(self, Self::Pinned | Self::RolledBack)
    }
}

/// Result of a version. A healthy version stays `Healthy` here, except while a prune is held; the service's status
/// reports later changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VersionResult {
    /// The agent has not reported yet.
    Pending,
    /// Every object was applied; not all were healthy yet.
    Applied,
    /// All objects were healthy, and no prune was held.
    Healthy,
    /// All objects were healthy, and a prune was held. `message` names the number of its objects and the reason.
    PruneHeld,
    /// An object was refused or failed, or a hook or test failed.
    Failed,
    /// The next version was assigned before this one was healthy.
    Superseded,
    /// Result from a newer version.
    #[serde(other)]
    Unknown,
}

impl VersionResult {
    /// Whether all objects were healthy, so that the service can be rolled back to the version.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Healthy | Self::PruneHeld)
    }
}
