//! Rewrites a manifest to the one that is sent: marks are added, and fields that an apply must not have are removed.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{OWNER_ANNOTATION, SERVICE_LABEL, apply_options::ApplyOptions, objects::ObjectRef};
use serde_json::{Map, Value};

use crate::{
    ownership::{owner_annotation, service_label},
    plan::{
        ObjectKey,
        ignored::Ignores,
        options::{BadOption, ObjectOptions, read_options},
    },
};

/// Writes `stringData` of a Secret as the API server stores it. Otherwise we would own fields under a name that no
/// stored field has: a key that leaves the source would stay, and changes by others would not be noticed. A value that
/// the API server refuses is left as it is.
fn fold_string_data(manifest: &mut Value) {
    let is_text = |texts: &Value| {
        texts
            .as_object()
            .is_some_and(|texts| texts.values().all(Value::is_string))
    };
    if !manifest.get("stringData").is_some_and(is_text) || !matches!(manifest["data"], Value::Null | Value::Object(_)) {
        return;
    }
    let Some(Value::Object(texts)) = manifest.as_object_mut().and_then(|map| map.remove("stringData")) else {
        return;
    };
    let data = entry_object(manifest, "data");
    for (name, text) in texts {
        data.insert(name, BASE64.encode(text.as_str().unwrap_or_default()).into());
    }
}

/// Replaces fields that the API server or a controller of Kubernetes turns into others.
pub fn settle(manifest: &mut Value, object: &ObjectRef) {
    match (object.group.as_str(), object.kind.as_str()) {
        ("", "Secret") => fold_string_data(manifest),
        ("rbac.authorization.k8s.io", "ClusterRole") if is_aggregated(manifest) => drop_rules(manifest),
        _ => {}
    }
}

/// Whether a ClusterRole gets its rules from other roles.
pub fn is_aggregated(role: &Value) -> bool {
    role["aggregationRule"].is_object()
}

/// Removes the rules of an aggregated ClusterRole, which a controller of Kubernetes always overwrites. An apply of the
/// usual `rules: []` would take these rights away for a moment.
fn drop_rules(role: &mut Value) {
    if let Some(role) = role.as_object_mut() {
        role.remove("rules");
    }
}

/// Adds the namespace and our marks, and removes what an export of a live object contains and an apply must not.
pub fn finish(
    mut manifest: Value,
    object: &ObjectRef,
    service_uid: &str,
    key: &ObjectKey,
    (service, ignores): (&ApplyOptions, &mut Ignores<'_>),
) -> Result<(Value, ObjectOptions), BadOption> {
    settle(&mut manifest, object);
    let metadata = entry_object(&mut manifest, "metadata");
    for server_side in [
        "managedFields",
        "resourceVersion",
        "uid",
        "creationTimestamp",
        "generation",
        "selfLink",
    ] {
        metadata.remove(server_side);
    }
    if object.namespace.is_empty() {
        metadata.remove("namespace");
    } else {
        metadata.insert("namespace".into(), object.namespace.clone().into());
    }

    let ignored = ignores.of(&manifest, object)?;
    let metadata = entry_object(&mut manifest, "metadata");
    let marks = [
        ("labels", SERVICE_LABEL, service_label(service_uid)),
        ("annotations", OWNER_ANNOTATION, owner_annotation(service_uid, key)),
    ];
    let annotations = ignored
        .annotations
        .into_iter()
        .map(|(name, value)| ("annotations", name, value));
    for (field, name, value) in marks.into_iter().chain(annotations) {
        let value = Value::from(value);
        match metadata.get_mut(field).and_then(Value::as_object_mut) {
            Some(map) => {
                map.insert(name.into(), value);
            }
            None => {
                metadata.insert(field.into(), Value::Object(Map::from_iter([(name.to_owned(), value)])));
            }
        }
    }

    let options = read_options(&manifest, object, service)?;
    Ok((
        manifest,
        ObjectOptions {
            unanswered: ignored.unanswered,
            ..options
        },
    ))
}

fn entry_object<'a>(value: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let slot = &mut value[field];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object above")
}
