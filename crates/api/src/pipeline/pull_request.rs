//! Promotion by an edit in Git, which people merge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::git_repository::LocalReference;

/// An edit of one file in Git, that the hub pushes to a branch, and people merge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullRequest {
    /// The GitRepository, in the same namespace, with the file. It follows the branch that the edit is merged into.
    pub source_ref: LocalReference,
    /// The same address as that GitRepository's: what is pushed, and the Secret, go there and nowhere else.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// A Secret in the same namespace, as a GitRepository's, with what may push branches below `farwater/promote/`.
    pub secret_ref: LocalReference,
    /// The file, from the root of the repository: YAML of at most 1 MiB.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// The value that is edited: `spec.ref.commit`, `images[0].newTag`. One document of the file has it.
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = r"^[A-Za-z0-9_/-]+(\[[0-9]+\])*(\.[A-Za-z0-9_/-]+(\[[0-9]+\])*)*$")
    )]
    pub field: String,
    /// What is copied there, of a file that the stage before was healthy with; the commit's id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FieldOfFile>,
    /// The branch below `farwater/promote/`; `PIPELINE/STAGE` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200), regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"))]
    pub branch: Option<String>,
}

/// A value of a YAML file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldOfFile {
    /// From the root of the repository of the stage before.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = r"^[A-Za-z0-9_/-]+(\[[0-9]+\])*(\.[A-Za-z0-9_/-]+(\[[0-9]+\])*)*$")
    )]
    pub field: String,
}

/// What was pushed for a stage and is not merged yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullRequestStatus {
    /// What was promoted.
    pub revision: String,
    pub url: String,
    /// To be merged.
    pub branch: String,
    /// What was pushed there; absent: nothing was yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Why nothing was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
