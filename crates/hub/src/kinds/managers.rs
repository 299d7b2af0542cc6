//! Ownership of the fields of each kind's objects, and the objects that the hub itself writes.

use farwater_fieldmanager::{FieldManager, Type};
use farwater_store::Kind;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{REGISTRY, ResourceKind, strategy, views};

impl ResourceKind {
    /// An empty object. For built-in kinds it has the fields that Go writes even if they are empty.
    fn blank(&self) -> Value {
        let mut object = json!({"apiVersion": self.api_version(), "kind": self.kind});
        if !self.ours {
            object["metadata"] = json!({});
            strategy::fill(&mut object, self);
        }
        views::show(self, &object).into_owned()
    }

    /// The top-level fields that a write to the resource or a subresource leaves as they are.
    fn reset_by(&self, subresource: &str) -> &'static [&'static str] {
        match subresource {
            "status" if self.ours => &["metadata", "spec"],
            "status" => &["spec"],
            _ if self.has_status() => &["status"],
            _ => &[],
        }
    }

    /// Called when the schema is known.
    pub fn with_managers(mut self) -> Self {
        let ty = Type::from_openapi(&self.schema);
        let own = self.subresources.iter().filter(|s| s.kind.is_none()).map(|s| s.name);
        let names = [""].into_iter().chain(own);
        let manager = |name| FieldManager::new(ty.clone(), self.blank(), name, self.reset_by(name));
        self.managers = names.map(|name| (name, manager(name))).collect();
        self
    }
}

/// The manager of the hub's own writes.
pub const OWN_MANAGER: &str = "farwater-hub";

/// For the hub's own writes: returns an object with its managers. `subresource`: empty for the resource itself.
pub fn manage(kind: &Kind, subresource: &str, live: Option<&Value>, new: Value, now: Timestamp) -> Value {
    match REGISTRY.stored_as(kind).and_then(|kind| kind.managers.get(subresource)) {
        Some(manager) => manager.update(live, new, OWN_MANAGER, now),
        None => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_managers_of_itself_and_its_subresources() {
        for kind in &REGISTRY.kinds {
            let expected = kind.subresources.iter().filter(|s| s.kind.is_none()).map(|s| s.name);
            for name in expected.chain([""]) {
                assert!(kind.managers.contains_key(name), "{} {name}", kind.kind);
            }
        }
    }

    #[test]
    fn what_the_hub_writes_is_its_own() {
        let kind = Kind::new("clusters", "farwater.dev");
        let live = json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "a"}, "spec": {"suspend": true}});
        let made = manage(&kind, "", None, live, Timestamp::UNIX_EPOCH);
        let mut new = made.clone();
        new["metadata"]["uid"] = json!("1");
        new["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let told = manage(&kind, "status", Some(&made), new, Timestamp::UNIX_EPOCH);
        let entries = told["metadata"]["managedFields"].as_array().unwrap();
        let names: Vec<_> = entries
            .iter()
            .map(|e| (e["manager"].as_str(), e["subresource"].as_str()))
            .collect();
        assert_eq!(names, [(Some(OWN_MANAGER), None), (Some(OWN_MANAGER), Some("status"))]);
        assert_eq!(
            entries[1]["fieldsV1"],
            json!({"f:status": {".": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {
                ".": {}, "f:status": {}, "f:type": {}}}}})
        );
    }
}
