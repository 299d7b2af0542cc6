//! What of each object controllers have acted upon: a change of anything else, as of its status, is no reason to act again.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

/// Fingerprints of metadata by the uid's hash.
#[derive(Default)]
pub struct Seen(Mutex<HashMap<u64, u64>>);

impl Seen {
    /// Notes an object that is acted upon, or will be; whether that is not what was noted last.
    pub fn note(&self, metadata: &Value) -> bool {
        // With the uid: where two of them have one hash, all of both is news.
        let print = fingerprint(metadata, &["uid", "generation", "labels", "annotations", "deletionTimestamp"]);
        self.prints().insert(fingerprint(metadata, &["uid"]), print) != Some(print)
    }

    pub fn forget(&self, metadata: &Value) {
        self.prints().remove(&fingerprint(metadata, &["uid"]));
    }

    pub fn forget_all(&self) {
        self.prints().clear();
    }

    fn prints(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
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
            metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            metadata
        };
        assert!(seen.note(&object(1, json!({}))));
        assert!(!seen.note(&object(1, json!({"resourceVersion": "8", "finalizers": ["x"], "managedFields": []}))));
        assert!(seen.note(&object(2, json!({}))));
        assert!(seen.note(&object(2, json!({"labels": {"a": "b"}}))));
        assert!(seen.note(&object(2, json!({"labels": {"a": "b"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}))));
        // Back to what it was, and another of the same name.
        assert!(seen.note(&object(1, json!({}))));
        assert!(seen.note(&object(1, json!({"uid": "2"}))));
        seen.forget(&object(1, json!({})));
        assert!(seen.note(&object(1, json!({}))));
    }
}
