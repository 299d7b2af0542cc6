//! Promotion by an edit in Git that people merge.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::git_repository::LocalReference;

/// An edit of one file in Git. The hub pushes it to a branch, and people merge it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullRequest {
    /// Name of the GitRepository in the same namespace that holds the file. It follows the branch that people merge
    /// into.
    pub source_ref: LocalReference,
    /// Address of that GitRepository. The hub pushes, and sends the Secret, only to this address.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// Name of a Secret in the same namespace, with the keys of a GitRepository's Secret. It must allow pushes to
    /// branches below `farwater/promote/`.
    pub secret_ref: LocalReference,
    /// Path of the file from the root of the repository. YAML of at most 1 MiB.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Field that is edited, such as `spec.ref.commit` or `images[0].newTag`. Exactly one document of the file has it.
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = r"^[A-Za-z0-9_/-]+(\[[0-9]+\])*(\.[A-Za-z0-9_/-]+(\[[0-9]+\])*)*$")
    )]
    pub field: String,
    /// Field to copy the value from, in a file at the promoted commit of the previous stage. Empty: the value is the
    /// commit's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FieldOfFile>,
    /// Name of the branch below `farwater/promote/`. Empty: `PIPELINE/STAGE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 200),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$")
    )]
    pub branch: Option<String>,
}

/// A field of a YAML file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldOfFile {
    /// Path of the file from the root of the previous stage's repository.
    #[schemars(length(min = 1, max = 1024))]
    pub path: String,
    /// Field of the file, such as `images[0].newTag`.
    #[schemars(
        length(min = 1, max = 512),
        regex(pattern = r"^[A-Za-z0-9_/-]+(\[[0-9]+\])*(\.[A-Za-z0-9_/-]+(\[[0-9]+\])*)*$")
    )]
    pub field: String,
}

/// An edit that was pushed for a stage and is not merged yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PullRequestStatus {
    /// Promoted revision.
    pub revision: String,
    /// Address of the repository.
    pub url: String,
    /// Branch to merge.
    pub branch: String,
    /// Pushed commit. Empty: nothing was pushed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Why nothing was pushed. Empty: no problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
