//! An object after it was decoded: defaults and conversions of built-in kinds.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{super::meta, RBAC, events, set};
use crate::kinds::ResourceKind;

/// The effect of decoding, before any other step: empty fields are removed, and built-in kinds get their defaults and
/// conversions.
pub fn normalize(object: &mut Value, kind: &ResourceKind) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, value| {
            // An empty list of managers is a statement of the client, which Go keeps if it has a type for the object.
            let said = name == "managedFields" && !kind.ours;
            said || !(value.as_object().is_some_and(|m| m.is_empty())
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_str().is_some_and(str::is_empty))
        });
    }

    match kind.kind.as_str() {
        "Secret" => {
            if let Some(Value::Object(texts)) = object.as_object_mut().and_then(|o| o.remove("stringData")) {
                if !object["data"].is_object() {
                    object["data"] = json!({});
                }
                for (key, value) in texts {
                    object["data"][key] = json!(STANDARD.encode(value.as_str().unwrap_or_default()));
                }
            }
            if object["type"].as_str().unwrap_or_default().is_empty() {
                object["type"] = json!("Opaque");
            }
        }
        "Namespace" if !meta::text(object, "name").is_empty() => label_namespace(object),
        "RoleBinding" | "ClusterRoleBinding" => default_binding(object),
        _ => {}
    }

    if !kind.ours {
        drop_empty(object);
        fill(object, kind);
    }
}

pub fn label_namespace(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
}

/// Maps and lists that Go omits if they are empty.
fn drop_empty(object: &mut Value) {
    const FIELDS: [&str; 5] = ["binaryData", "data", "imagePullSecrets", "secrets", "subjects"];
    let empty = |value: &Value| {
        value.as_object().is_some_and(|map| map.is_empty()) || value.as_array().is_some_and(Vec::is_empty)
    };
    if let Some(map) = object.as_object_mut() {
        map.retain(|name, value| !(FIELDS.contains(&name.as_str()) && empty(value)));
        // A namespace's.
        if let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) {
            spec.retain(|name, value| !(name == "finalizers" && empty(value)));
        }
    }
}

/// Fields that Go writes for every object, even if they are empty.
pub fn fill(object: &mut Value, kind: &ResourceKind) {
    let always: &[(&str, Value)] = match kind.kind.as_str() {
        "Event" => return events::default(object),
        "Lease" => &[("spec", json!({}))],
        "Namespace" => &[("spec", json!({})), ("status", json!({}))],
        "SelfSubjectAccessReview" => &[("spec", json!({})), ("status", json!({"allowed": false}))],
        "SelfSubjectReview" => &[("status", json!({"userInfo": {}}))],
        "SelfSubjectRulesReview" => &[("spec", json!({})), ("status", json!({"incomplete": false}))],
        "Role" | "ClusterRole" => &[("rules", Value::Null)],
        "RoleBinding" | "ClusterRoleBinding" => &[("roleRef", json!({"apiGroup": "", "kind": "", "name": ""}))],
        _ => &[],
    };
    for (field, empty) in always {
        if object.get(*field).is_none() {
            object[*field] = empty.clone();
        }
    }
}

fn default_binding(object: &mut Value) {
    let absent = |v: &Value| v.as_str().unwrap_or_default().is_empty();
    if object["roleRef"].is_object() && absent(&object["roleRef"]["apiGroup"]) {
        object["roleRef"]["apiGroup"] = json!(RBAC);
    }
    if object
        .get("subjects")
        .and_then(Value::as_array)
        .is_none_or(Vec::is_empty)
    {
        set(object, "subjects", None);
    }
    for subject in object
        .get_mut("subjects")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let group = match subject["kind"].as_str() {
            Some("User" | "Group") => RBAC,
            _ => continue,
        };
        if absent(&subject["apiGroup"]) {
            subject["apiGroup"] = json!(group);
        }
    }
}
