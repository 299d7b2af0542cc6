//! Namespaces that objects of a plan need and that don't exist.

use farwater_api::objects::ObjectRef;

use super::Plan;

/// Whether the plan creates a namespace: as the target namespace, by one of its changes, or by a hook. Other services
/// and people may create it too, which no plan knows.
pub fn creates_namespace<'a>(plan: &Plan, mut hooks: impl Iterator<Item = &'a ObjectRef>, name: &str) -> bool {
    let changes = plan.waves.iter().flat_map(|wave| &wave.changes);
    let mut changed = changes.map(|change| &change.object);
    plan.create_namespace.as_deref() == Some(name)
        || changed.any(|key| key.group().is_empty() && key.kind() == "Namespace" && key.name() == name)
        || hooks.any(|hook| hook.group.is_empty() && hook.kind == "Namespace" && hook.name == name)
}

/// Why an object is not created.
pub fn explain_missing_namespace(name: &str) -> String {
    format!("waits for namespace {name}: it does not exist in the cluster, and nothing in this plan creates it")
}
