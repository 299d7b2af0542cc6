//! What an agent took from a cluster, and what of it was brought back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Digest, objects::ObjectRef};

/// Objects that a deletion lists; the cluster keeps all.
pub const MAX_LISTED: usize = 10;
/// Longest value of [`crate::UNDO`] that is passed on.
pub const MAX_UNDO_BYTES: usize = 160;

/// The last deletion of a service's objects. Their states lie in the cluster alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    /// Of the plan that took them: what a request to undo names.
    pub digest: Digest,
    /// Seconds since 1970.
    pub time: i64,
    pub count: u32,
    /// The first ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectRef>,
    /// How many were too large to be kept.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub lost: u32,
    /// The plan that was approved, where it held more than this deletion took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_plan: Option<Digest>,
    /// Who approved it, where it was held. The hub says so; agents don't know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// What came of the last request to undo it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Undone>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Undone {
    /// The request that this answers.
    pub request: String,
    pub restored: u32,
    /// How many could not be restored.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub failed: u32,
    /// The first ten of them, and why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Unrestored>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unrestored {
    pub object: ObjectRef,
    /// Cut at 256 bytes. Never holds values of Secrets.
    pub message: String,
}

/// The value of [`crate::UNDO`]: the deletion, and what makes this request another than the last.
pub fn undo_request(deletion: &Digest, nonce: &str) -> String {
    format!("{deletion}@{nonce}")
}

/// The deletion that a request names.
pub fn requested_deletion(request: &str) -> Option<Digest> {
    request.split_once('@').map_or(request, |(digest, _)| digest).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_deletion() {
        let digest = Digest::of("plan");
        assert_eq!(requested_deletion(&undo_request(&digest, "2026-01-01T00:00:00Z")), Some(digest));
        assert_eq!(requested_deletion(&digest.to_string()), Some(digest));
        assert_eq!(requested_deletion("last"), None);
        assert!(undo_request(&digest, "2026-01-01T00:00:00.000000000Z").len() <= MAX_UNDO_BYTES);
    }
}
