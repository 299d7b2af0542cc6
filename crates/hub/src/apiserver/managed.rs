//! Ownership of an object's fields: names of managers, and the answer to a refused apply.

use farwater_fieldmanager::{ApplyError, Conflict, FieldManager, Type};
use farwater_store::Kind;
use http::header;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    call::Call,
    kinds::{REGISTRY, ResourceKind},
    options::{MANAGER_LIMIT, WriteOptions, is_printable},
    status::{ApiError, FieldError},
    strategy, views,
};

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
const OWN_MANAGER: &str = "farwater-hub";

/// The manager for the resource or subresource of a request.
pub fn manager_of(call: &Call) -> Result<&'static FieldManager, ApiError> {
    let found = call.kind.managers.get(call.info.subresource.as_str());
    found.ok_or_else(|| ApiError::internal("a resource without field managers is written"))
}

/// Name of the writer: from the request, or the program that sends it.
fn name(call: &Call, options: &WriteOptions) -> String {
    if !options.manager.is_empty() {
        return options.manager.clone();
    }
    let agent = call.headers.get(header::USER_AGENT).map(|agent| String::from_utf8_lossy(agent.as_bytes()));
    name_of_agent(agent.as_deref().unwrap_or_default())
}

/// The part before the first slash.
fn name_of_agent(agent: &str) -> String {
    let mut name = String::new();
    for c in agent.split('/').next().unwrap_or_default().chars().filter(|c| is_printable(*c)) {
        if name.len() + c.len_utf8() > MANAGER_LIMIT {
            break;
        }
        name.push(c);
    }
    name
}

/// Returns an object that is about to be written, with its managers.
pub fn track(call: &Call, options: &WriteOptions, live: Option<&Value>, new: Value) -> Result<Value, ApiError> {
    let manager = manager_of(call)?;
    if call.kind.view.is_none() {
        return Ok(manager.update(live, new, &name(call, options), call.now));
    }
    // Fields are owned under the names that the client used.
    let live = live.map(|live| views::show(call.kind, live));
    let shown = views::show(call.kind, &new).into_owned();
    let mut tracked = manager.update(live.as_deref(), shown, &name(call, options), call.now);
    let (mut new, owned) = (new, tracked["metadata"]["managedFields"].take());
    if let Some(metadata) = new["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.extend((!owned.is_null()).then(|| ("managedFields".to_owned(), owned)));
    }
    Ok(new)
}

/// For the hub's own writes: returns an object with its managers. `subresource`: empty for the resource itself.
pub fn manage(kind: &Kind, subresource: &str, live: Option<&Value>, new: Value, now: Timestamp) -> Value {
    match REGISTRY.stored_as(kind).and_then(|kind| kind.managers.get(subresource)) {
        Some(manager) => manager.update(live, new, OWN_MANAGER, now),
        None => new,
    }
}

/// The answer to a refused apply, in Kubernetes' words.
pub fn refusal(error: &ApplyError) -> ApiError {
    let message = error.to_string();
    match error {
        ApplyError::Kind(_) | ApplyError::ManagedFields => ApiError::bad_request(message),
        ApplyError::Config { .. } | ApplyError::Live { .. } | ApplyError::Managers(_) => ApiError::unknown(message),
        ApplyError::TooManyManagers => ApiError::new(413, "RequestEntityTooLarge", message),
        ApplyError::Conflicts(conflicts) => {
            let cause = |conflict: &Conflict| FieldError {
                reason: "FieldManagerConflict",
                message: format!("conflict with {}", conflict.manager),
                field: conflict.path.to_string(),
            };
            ApiError::apply_conflict(message, conflicts.0.iter().map(cause).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_what_stands_before_the_slash() {
        for (agent, expected) in [
            ("kubectl/v1.36.3 (linux/amd64)", "kubectl".to_owned()),
            ("", String::new()),
            ("a\u{7}b", "ab".to_owned()),
            (&"x".repeat(200), "x".repeat(128)),
            (&"\u{e9}".repeat(100), "\u{e9}".repeat(64)),
        ] {
            assert_eq!(name_of_agent(agent), expected);
        }
    }

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
        let names: Vec<_> = entries.iter().map(|e| (e["manager"].as_str(), e["subresource"].as_str())).collect();
        assert_eq!(names, [(Some(OWN_MANAGER), None), (Some(OWN_MANAGER), Some("status"))]);
        assert_eq!(
            entries[1]["fieldsV1"],
            json!({"f:status": {".": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {
                ".": {}, "f:status": {}, "f:type": {}}}}})
        );
    }
}
