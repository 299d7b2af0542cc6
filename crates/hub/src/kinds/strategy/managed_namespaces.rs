//! Rules of ManagedNamespaces that their schema does not state.

use farwater_api::{GROUP, ManagedNamespaceSpec, VERSION, managed_namespace::MAX_NAME};
use farwater_fleet::namespaces::{check, plan_set};
use serde_json::{Value, json};

use crate::kinds::{meta, status::FieldError};

/// The set that it makes; None: its spec can't be read.
pub fn set_of(object: &Value) -> Option<Value> {
    let spec: ManagedNamespaceSpec = serde_json::from_value(object["spec"].clone()).ok()?;
    let (name, spec) = plan_set(meta::text(object, "name"), &spec);
    let metadata = json!({"name": name, "namespace": object["metadata"]["namespace"]});
    let api_version = format!("{GROUP}/{VERSION}");
    Some(json!({"apiVersion": api_version, "kind": "ServiceSet", "metadata": metadata, "spec": spec}))
}

/// Rules that the schema does not state.
pub fn validate(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let name = meta::text(object, "name");
    if old.is_none() && name.len() > MAX_NAME {
        let why = format!("must be no more than {MAX_NAME} bytes: its set and the set's services get this name");
        errors.push(FieldError::invalid("metadata.name", &json!(name), &why));
    }

    // An object that its schema refuses can't be parsed.
    if !errors.is_empty() || old.is_some_and(|old| old["spec"] == object["spec"]) {
        return;
    }
    let Ok(spec) = serde_json::from_value::<ManagedNamespaceSpec>(object["spec"].clone()) else {
        return;
    };

    let before = old.and_then(|old| serde_json::from_value::<ManagedNamespaceSpec>(old["spec"].clone()).ok());
    if before.is_some_and(|before| before.namespace(name) != spec.namespace(name)) {
        let why = "field is immutable: with another name all that is in the namespace would be left behind; make another \
                   ManagedNamespace";
        errors.push(FieldError::invalid("spec.namespace", &object["spec"]["namespace"], why));
    }

    meta::check_labels(object["spec"]["labels"].as_object(), "spec.labels", errors);
    meta::check_annotations(object["spec"]["annotations"].as_object(), "spec.annotations", errors);
    for problem in check(name, &spec) {
        errors.push(FieldError::invalid_unquoted(
            format!("spec.{}", problem.field),
            &problem.why,
        ));
    }

    // Also check the set: how its changes spread, and whether its services can be created.
    if errors.is_empty()
        && let Some(set) = set_of(object)
    {
        super::sets::validate(&set, None, errors);
    }
}
