//! Objects that an agent deleted from a cluster, and the objects that it restored.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{Digest, object_ref::ObjectRef};

/// Maximum number of objects that a deletion lists. The cluster keeps all.
pub const MAX_LISTED: usize = 10;
/// Maximum length of a value of [`crate::UNDO`] that the hub passes on, in bytes.
pub const MAX_UNDO_BYTES: usize = 160;

/// The last deletion of a service's objects, as its agent reports it. The states of the deleted objects are kept only in
/// the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deletion {
    /// Digest of the plan that deleted the objects. A request to undo names it.
    pub digest: Digest,
    /// Time of the deletion, in seconds since 1970.
    pub time: i64,
    /// Number of deleted objects.
    pub count: u32,
    /// The first ten deleted objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectRef>,
    /// Number of objects that were too large to keep.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub lost: u32,
    /// Digest of the approved plan, if it had more objects than this deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_plan: Option<Digest>,
    /// Result of the last request to undo the deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Undone>,
}

/// The last deletion of a service's objects, as its status shows it. The states of the deleted objects are kept only in
/// the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastDeletion {
    /// Digest of the plan that deleted the objects. A request to undo names it.
    pub digest: Digest,
    /// Time of the deletion.
    #[serde(deserialize_with = "read_time")]
    pub time: Time,
    /// Number of deleted objects.
    pub count: u32,
    /// The first ten deleted objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectRef>,
    /// Number of objects that were too large to keep.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub lost: u32,
    /// Digest of the approved plan, if it had more objects than this deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_plan: Option<Digest>,
    /// User who approved the deletion. Empty: it needed no approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// Result of the last request to undo the deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Undone>,
}

/// Reads the time of a deletion. An older hub stored it in seconds since 1970.
fn read_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        Time(Time),
        Seconds(i64),
    }
    match Stored::deserialize(deserializer)? {
        Stored::Time(time) => Ok(time),
        Stored::Seconds(seconds) => Timestamp::from_second(seconds).map(Time).map_err(D::Error::custom),
    }
}

/// Result of a request to undo a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Undone {
    /// The request that this result answers.
    pub request: String,
    /// Number of restored objects.
    pub restored: u32,
    /// Number of objects that could not be restored.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub failed: u32,
    /// The first ten objects that could not be restored, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Unrestored>,
}

/// An object that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unrestored {
    /// The object.
    pub object: ObjectRef,
    /// The reason, cut at 256 bytes. It never holds values of Secrets.
    pub message: String,
}

/// The value of [`crate::UNDO`]: the deletion, and a nonce that makes each request unique.
pub fn undo_request(deletion: &Digest, nonce: &str) -> String {
    format!("{deletion}@{nonce}")
}

/// The deletion that a request names.
pub fn requested_deletion(request: &str) -> Option<Digest> {
    request
        .split_once('@')
        .map_or(request, |(digest, _)| digest)
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_deletion_is_rfc_3339_and_was_a_number() {
        let stored = serde_json::json!({"digest": Digest::of("plan"), "time": 900, "count": 1});
        let deletion: LastDeletion = serde_json::from_value(stored).unwrap();
        let shown = serde_json::to_value(&deletion).unwrap();
        assert_eq!(shown["time"], "1970-01-01T00:15:00Z");
        assert_eq!(serde_json::from_value::<LastDeletion>(shown).unwrap(), deletion);
    }

    #[test]
    fn a_request_names_its_deletion() {
        let digest = Digest::of("plan");
        assert_eq!(
            requested_deletion(&undo_request(&digest, "2026-01-01T00:00:00Z")),
            Some(digest)
        );
        assert_eq!(requested_deletion(&digest.to_string()), Some(digest));
        assert_eq!(requested_deletion("last"), None);
        assert!(undo_request(&digest, "2026-01-01T00:00:00.000000000Z").len() <= MAX_UNDO_BYTES);
    }
}
