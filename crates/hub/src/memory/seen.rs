//! The objects that controllers have acted upon, as fingerprints. A change of anything else, e.g. of the status, is no
//! reason to act again.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

/// How an object differs from what was noted last.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum News {
    Nothing,
    /// Only its labels or annotations.
    Metadata,
    /// Its spec, or it is being deleted.
    Desired,
}

#[derive(Clone, Copy, PartialEq)]
struct Prints {
    // Includes the uid: if two uids have the same hash, any change of either object is news.
    desired: u64,
    metadata: u64,
}

/// Fingerprints by the hash of the uid.
#[derive(Default)]
pub struct Seen(Mutex<HashMap<u64, Prints>>);

impl Seen {
    /// Notes an object that is being acted upon, or soon will be. Returns what is new.
    pub fn note_object(&self, metadata: &Value) -> News {
        let desired = fingerprint(metadata, &["uid", "generation", "deletionTimestamp"]);
        let now = Prints {
            desired,
            metadata: fingerprint(metadata, &["labels", "annotations"]),
        };
        match self.prints().insert(fingerprint(metadata, &["uid"]), now) {
            Some(before) if before == now => News::Nothing,
            Some(before) if before.desired == desired => News::Metadata,
            _ => News::Desired,
        }
    }

    pub fn forget(&self, metadata: &Value) {
        self.prints().remove(&fingerprint(metadata, &["uid"]));
    }

    pub fn forget_all(&self) {
        self.prints().clear();
    }

    fn prints(&self) -> MutexGuard<'_, HashMap<u64, Prints>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fingerprint(metadata: &Value, fields: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for field in fields {
        metadata[field].hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_controllers_act_upon_is_news() {
        let seen = Seen::default();
        let object = |generation: u64, more: Value| {
            let mut metadata = json!({"uid": "1", "generation": generation, "resourceVersion": "7"});
            metadata
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            metadata
        };
        let note = |generation, more| seen.note_object(&object(generation, more));
        assert_eq!(note(1, json!({})), News::Desired);
        assert_eq!(
            note(
                1,
                json!({"resourceVersion": "8", "finalizers": ["x"], "managedFields": []})
            ),
            News::Nothing
        );
        assert_eq!(note(2, json!({})), News::Desired);
        assert_eq!(note(2, json!({"labels": {"a": "b"}})), News::Metadata);
        let deleted = json!({"labels": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(note(2, deleted), News::Desired);
        // Back to the first state; then another object of the same name.
        assert_eq!(note(1, json!({})), News::Desired);
        assert_eq!(note(1, json!({"uid": "2"})), News::Desired);
        seen.forget(&object(1, json!({})));
        assert_eq!(note(1, json!({})), News::Desired);
    }
}
