//! The annotation in which client-side apply stores its configuration. A user of client-side apply owns those fields,
//! and has no conflicts after the change to server-side apply.

use serde_json::Value;

use crate::{
    compare::compare,
    schema::Type,
    set::Set,
    typed::{Duplicates, to_set, validate},
    value::to_go_json,
};

/// The only manager with this behavior. Any other name opts out.
pub(crate) const MANAGER: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// `TotalAnnotationSizeLimitB`.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION]
        .as_str()
        .filter(|text| !text.is_empty())
}

/// The fields of the annotation's configuration whose live values are unchanged.
pub(crate) fn owned_by_kubectl(live: &Value, ty: &Type, api_version: &str) -> Set {
    let fits = |value: &Value| validate(value, ty, Duplicates::Refused).is_ok();
    let config = annotation(live).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(config) = config.filter(|c| c["apiVersion"] == api_version && fits(c) && fits(live)) else {
        return Set::new();
    };
    let differs = compare(&config, live, ty);
    to_set(&config, ty)
        .difference(&differs.modified)
        .difference(&differs.added)
        .difference(&differs.removed)
}

/// Updates an existing annotation to the configuration that is applied now.
pub(crate) fn refresh(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(Value::Object(annotations)) = config.pointer_mut("/metadata/annotations") {
        annotations.remove(ANNOTATION);
    }
    let text = to_go_json(&config) + "\n";
    let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") else {
        return;
    };
    annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    let size: usize = annotations
        .iter()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > ANNOTATIONS_LIMIT {
        annotations.remove(ANNOTATION);
    }
}
