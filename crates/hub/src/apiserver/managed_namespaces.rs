//! ManagedNamespaces: checks before one is written, the set that it makes, and which fields of that set others may not
//! change.

use farwater_api::{GROUP, ManagedNamespaceSpec, ServiceSet, ServiceSetSpec, refusal::OWNED};
use farwater_fleet::namespaces::{maker_of, plan_set};
use farwater_store::Key;
use serde_json::Value;

use super::call::{Call, store_failed};
use crate::{
    kinds::{meta, status::ApiError},
    resources::{Name, Stored as _},
};

pub fn is_managed(call: &Call) -> bool {
    call.kind.group == GROUP && call.kind.plural == "managednamespaces"
}

/// Why others may not change a set or a service that was made for a ManagedNamespace; None: it was not.
pub fn describe_maker(object: &Value) -> Option<String> {
    let maker = maker_of(&object["spec"])?;
    Some(format!("ManagedNamespace {maker} has made it: change that"))
}

/// Refuses what only the ManagedNamespace of a set or a service may do.
pub fn refuse(call: &Call, object: &Value, why: &str) -> ApiError {
    let maker = maker_of(&object["spec"]).unwrap_or_default();
    let owner = format!("managednamespace/{maker} -n {}", meta::text(object, "namespace"));
    call.forbidden(meta::text(object, "name"), why).because(OWNED, owner)
}

/// Refuses to delete a set whose ManagedNamespace exists and would recreate it.
pub async fn check_delete(call: &Call, set: &Value) -> Result<(), ApiError> {
    let (Some(maker), Some(why)) = (maker_of(&set["spec"]), describe_maker(set)) else {
        return Ok(());
    };
    let key: Key = farwater_api::ManagedNamespace::key(&Name::new(meta::text(set, "namespace"), maker));
    let found = call.hub.store.get(&key).await.map_err(store_failed)?;
    let is_owner = |uid: &str| {
        let owners = set["metadata"]["ownerReferences"].as_array();
        owners.into_iter().flatten().any(|owner| owner["uid"] == uid)
    };
    match found {
        Some(found) if is_owner(&found.uid) => {
            let why = format!("{why}, or delete it: that deletes this too");
            Err(refuse(call, set, &why))
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
    let uid = found
        .filter(|found| maker_of(&found.object["spec"]) == Some(&call.info.name))
        .map(|found| found.uid);
    Ok((uid.unwrap_or_default(), ServiceSet::new(&name, spec)))
}
