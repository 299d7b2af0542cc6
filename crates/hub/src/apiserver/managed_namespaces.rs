//! ManagedNamespaces: checks before one is written, the set that it makes, and which fields of that set others may not
//! change.

use farwater_api::{GROUP, ManagedNamespaceSpec, ServiceSet, ServiceSetSpec, VERSION, managed_namespace::MAX_NAME};
use farwater_fleet::namespaces::{check, maker_of, plan_set};
use farwater_store::Key;
use serde_json::{Value, json};

use super::{
    call::{Call, store_failed},
    meta, sets,
    status::{ApiError, FieldError},
};
use crate::controllers::resources::{Name, Stored as _};

pub fn is_managed(call: &Call) -> bool {
    call.kind.group == GROUP && call.kind.plural == "managednamespaces"
}

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
    let Ok(spec) = serde_json::from_value::<ManagedNamespaceSpec>(object["spec"].clone()) else { return };

    let before = old.and_then(|old| serde_json::from_value::<ManagedNamespaceSpec>(old["spec"].clone()).ok());
    if before.is_some_and(|before| before.namespace(name) != spec.namespace(name)) {
        let why = "field is immutable: with another name all that is in the namespace would be left behind; make another \
                   ManagedNamespace";
        errors.push(FieldError::invalid("spec.namespace", &object["spec"]["namespace"], why));
    }

    meta::check_labels(object["spec"]["labels"].as_object(), "spec.labels", errors);
    meta::check_annotations(object["spec"]["annotations"].as_object(), "spec.annotations", errors);
    for problem in check(name, &spec) {
        errors.push(FieldError::invalid_unquoted(format!("spec.{}", problem.field), &problem.why));
    }

    // Also check the set: how its changes spread, and whether its services can be created.
    if errors.is_empty()
        && let Some(set) = set_of(object)
    {
        sets::validate(&set, None, errors);
    }
}

/// Why others may not change a set or a service that was made for a ManagedNamespace; None: it was not.
pub fn describe_maker(object: &Value) -> Option<String> {
    let maker = maker_of(&object["spec"])?;
    Some(format!("ManagedNamespace {maker} has made it: change that"))
}

/// Refuses to delete a set whose ManagedNamespace exists and would recreate it.
pub async fn check_delete(call: &Call, set: &Value) -> Result<(), ApiError> {
    let (Some(maker), Some(why)) = (maker_of(&set["spec"]), describe_maker(set)) else { return Ok(()) };
    let key: Key = farwater_api::ManagedNamespace::key(&Name::new(meta::text(set, "namespace"), maker));
    let found = call.hub.store.get(&key).await.map_err(store_failed)?;
    let is_owner = |uid: &str| {
        let owners = set["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| owner["uid"] == uid)
    };
    match found {
        Some(found) if is_owner(&found.uid) => {
            let why = format!("{why}, or delete it: that deletes this too");
            Err(call.forbidden(meta::text(set, "name"), &why))
        }
        _ => Ok(()),
    }
}

/// The set of a ManagedNamespace, for [`sets::plan`], with the uid of the existing set (empty: there is none).
pub async fn plan_of(call: &Call, object: &Value) -> Result<(String, ServiceSet), ApiError> {
    let spec: ManagedNamespaceSpec = serde_json::from_value(object["spec"].clone()).map_err(ApiError::internal)?;
    let (name, spec): (String, ServiceSetSpec) = plan_set(&call.info.name, &spec);
    let key = ServiceSet::key(&Name::new(&call.info.namespace, &name));
    let found = call.hub.store.get(&key).await.map_err(store_failed)?;
    let uid = found.filter(|found| maker_of(&found.object["spec"]) == Some(&call.info.name)).map(|found| found.uid);
    Ok((uid.unwrap_or_default(), ServiceSet::new(&name, spec)))
}
