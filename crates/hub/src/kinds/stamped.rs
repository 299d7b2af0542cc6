//! Services and sets that the hub itself creates, by the same rules as those that people send.

use farwater_api::{GROUP, ServiceDeploymentSpec, VERSION, service_set::TemplateSpec};
use serde_json::{Map, Value, json};

use super::{
    REGISTRY, ResourceKind,
    removal::{Cascade, Removal, plan_removal},
    schema,
    status::FieldError,
    strategy::{self, Part},
};

fn kind() -> Option<&'static ResourceKind> {
    REGISTRY.find(GROUP, VERSION, "servicedeployments")
}

/// Sets defaults. `Err`: what the API server would refuse.
pub fn complete(object: &mut Value) -> Result<(), Vec<FieldError>> {
    let Some(kind) = kind() else { return Ok(()) };
    let mut unknown = Vec::new();
    // Users set no metadata of these services but the labels.
    schema::prune(
        &mut object["spec"],
        &kind.schema["properties"]["spec"],
        "spec",
        &mut unknown,
    );
    schema::drop_nulls(&mut object["spec"], &kind.schema["properties"]["spec"]);
    schema::default(&mut object["spec"], &kind.schema["properties"]["spec"]);
    let mut errors: Vec<FieldError> = unknown
        .into_iter()
        .map(|field| FieldError::forbidden(field, "there is no such field"))
        .collect();
    errors.extend(strategy::validate(object, None, kind, Part::Main));
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Sets the defaults of a set's spec, so that it stays equal after a user has annotated it.
pub fn complete_set(spec: &mut Value) {
    if let Some(kind) = REGISTRY.find(GROUP, VERSION, "servicesets") {
        schema::default(spec, &kind.schema["properties"]["spec"]);
    }
}

/// Checks a template independently of the cluster. Fields of errors are below its spec.
pub fn check_template(template: &TemplateSpec) -> Result<ServiceDeploymentSpec, Vec<FieldError>> {
    let mut object = sample(template.0.clone());
    complete(&mut object)?;
    let unreadable = |error: serde_json::Error| vec![FieldError::invalid("spec", &Value::Null, &error.to_string())];
    serde_json::from_value(object["spec"].take()).map_err(unreadable)
}

/// The template's service on an arbitrary cluster.
fn sample(mut spec: Map<String, Value>) -> Value {
    spec.insert("clusterRef".to_owned(), json!({"name": "any"}));
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ServiceDeployment",
        "metadata": {"name": "any", "namespace": "any"}, "spec": spec,
    })
}

/// A service marked as deleted, which stays until its agent has confirmed. None: it is marked already.
pub fn mark_deleted(object: &Value, now: jiff::Timestamp) -> Option<Value> {
    match plan_removal(object, kind()?, Cascade::default(), now) {
        Removal::Mark(marked) => Some(marked),
        Removal::Remove | Removal::Wait => None,
    }
}
