//! What a service was assigned before, as `servicedeployments/NAME/history` tells it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Digest;

/// One version of a service: a bundle that was assigned to it. Another revision of the same content is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// Counts up for each service.
    pub number: u64,
    /// The first one with this content: `main@sha1:<commit>`.
    pub revision: String,
    pub bundle: Digest,
    /// Folder inside the bundle.
    pub path: String,
    pub cause: Cause,
    /// The user of the API who had it assigned: who made the service, named another source or folder, pinned it, or took the pin away.
    /// Nobody of a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Who wrote the commit, `Name <address>`, as it says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// As the pin states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub assigned: Time,
    pub result: VersionResult,
    /// Cut at 256 bytes; empty where there is nothing to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the result came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Time>,
}

/// Why a version was assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Cause {
    /// It is the service's first.
    Created,
    /// Its source moved.
    Commit,
    /// Another source or folder was named.
    Spec,
    Pinned,
    /// The pin was taken away.
    Unpinned,
    /// Its parameters changed. Of several such changes in a row the last is listed; going back to it brings back its content only.
    Parameters,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

/// What became of a version. Once healthy it stays so: what happens to it later is the status' matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VersionResult {
    /// The agent has not said yet.
    Pending,
    /// Every object was applied; not all were healthy yet.
    Applied,
    Healthy,
    Failed,
    /// The next version came before it was healthy.
    Superseded,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}
