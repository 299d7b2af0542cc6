//! Recreates a deleted object from its last state.

use farwater_api::{FIELD_MANAGER, OWNER_ANNOTATION, SERVICE_LABEL};
use serde_json::{Map, Value, json};

/// Fields that the API server sets at creation. Those of the old object mean nothing, or are refused.
const OF_ONE_OBJECT: [&str; 9] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
    // The owner may be gone too, and an object with a missing owner is garbage collected at once.
    "ownerReferences",
];
/// Finalizers that only record how it was deleted.
const OF_DELETION: [&str; 2] = ["foregroundDeletion", "orphan"];

/// The object to create, without our marks: no service owns it, so no prune deletes it again.
///
/// # Errors
///
/// Why it should stay deleted.
pub fn revive(mut state: Value) -> Result<Value, String> {
    let kind = kind_of(&state);
    if kind == ("batch".to_owned(), "Job".to_owned()) {
        revive_job(&mut state)?;
    }

    let Some(object) = state.as_object_mut() else {
        return Err("its state is damaged".to_owned());
    };
    object.remove("status");
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err("its state is damaged".to_owned());
    };
    OF_ONE_OBJECT.iter().for_each(|field| drop(metadata.remove(*field)));
    remove_key(metadata, "labels", SERVICE_LABEL);
    remove_key(metadata, "annotations", OWNER_ANNOTATION);
    if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        finalizers.retain(|finalizer| !OF_DELETION.iter().any(|name| finalizer == name));
    }

    match (kind.0.as_str(), kind.1.as_str()) {
        ("", "Service") => forget_addresses(&mut state),
        ("", "PersistentVolume") => {
            // Bind it by name, not to the uid of the deleted claim.
            if let Some(claim) = state.pointer_mut("/spec/claimRef").and_then(Value::as_object_mut) {
                claim.remove("uid");
                claim.remove("resourceVersion");
            }
        }
        ("", "Namespace") => drop(state.as_object_mut().and_then(|object| object.remove("spec"))),
        _ => {}
    }
    Ok(state)
}

fn kind_of(state: &Value) -> (String, String) {
    let api_version = state["apiVersion"].as_str().unwrap_or_default();
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    (group.to_owned(), state["kind"].as_str().unwrap_or_default().to_owned())
}

fn remove_key(metadata: &mut Map<String, Value>, field: &str, key: &str) {
    if let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) {
        map.remove(key);
    }
}

/// A finished Job would run again, so it is refused. An unfinished one gets a new selector.
fn revive_job(state: &mut Value) -> Result<(), String> {
    let conditions = state.pointer("/status/conditions").and_then(Value::as_array);
    let is_over = |condition: &Value| {
        condition["status"] == "True" && matches!(condition["type"].as_str(), Some("Complete" | "Failed"))
    };
    if conditions.is_some_and(|conditions| conditions.iter().any(is_over)) {
        return Err("a Job that has finished would run again".to_owned());
    }
    if state.pointer("/spec/manualSelector") == Some(&json!(true)) {
        return Ok(());
    }
    if let Some(spec) = state.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("selector");
    }
    if let Some(labels) = state
        .pointer_mut("/spec/template/metadata/labels")
        .and_then(Value::as_object_mut)
    {
        labels.retain(|name, _| {
            !matches!(name.as_str(), "controller-uid" | "job-name") && !name.starts_with("batch.kubernetes.io/")
        });
    }
    Ok(())
}

/// Removes allocated addresses and ports, which another object may have now.
fn forget_addresses(state: &mut Value) {
    let Some(spec) = state.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if spec.get("clusterIP").is_some_and(|address| address != "None") {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    spec.remove("healthCheckNodePort");
}

/// A JSON patch that returns the fields of a recreated object to their former managers, so that the next apply of its
/// manifest changes and removes the same fields as before. None: no managers were recorded.
pub fn give_back(state: &Value, made: &Value) -> Option<Value> {
    let managers = state["metadata"]["managedFields"].as_array()?;
    let managers: Vec<&Value> = managers.iter().filter(|entry| entry["subresource"].is_null()).collect();
    let is_ours = |entry: &&Value| entry["manager"] == FIELD_MANAGER;
    if !managers.iter().any(is_ours) {
        return None;
    }
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": managers},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(state: Value, expected: Value) {
        assert_eq!(revive(state).unwrap(), expected);
    }

    #[test]
    fn content_comes_back_and_what_was_of_the_old_object_does_not() {
        check(
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"a": "eA=="}, "immutable": true,
                "metadata": {
                    "name": "s", "namespace": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "t",
                    "labels": {"app": "x", SERVICE_LABEL: "l"}, "annotations": {OWNER_ANNOTATION: "o", "by": "hand"},
                    "finalizers": ["foregroundDeletion", "x/y"], "ownerReferences": [{"uid": "gone"}], "managedFields": [],
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"a": "eA=="}, "immutable": true,
                "metadata": {
                    "name": "s", "namespace": "n", "labels": {"app": "x"}, "annotations": {"by": "hand"}, "finalizers": ["x/y"],
                },
            }),
        );
        check(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "status": {},
                   "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 1}]}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}}),
        );
        let headless =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"clusterIP": "None"}});
        check(headless.clone(), headless);
        assert!(revive(json!("x")).is_err());
    }

    #[test]
    fn a_job_that_has_finished_is_not_run_again() {
        let job = |status: Value| {
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "status": status, "spec": {
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
                "template": {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "u", "job-name": "j", "app": "x"}}},
            }})
        };
        let over = job(json!({"conditions": [{"type": "Complete", "status": "True"}]}));
        assert!(revive(over).unwrap_err().contains("run again"));
        let revived = revive(job(json!({"active": 1}))).unwrap();
        assert_eq!(
            revived["spec"],
            json!({"template": {"metadata": {"labels": {"app": "x"}}}})
        );
    }

    #[test]
    fn fields_go_back_to_their_managers() {
        let ours = json!({"manager": FIELD_MANAGER, "operation": "Apply"});
        let state = json!({"metadata": {"managedFields": [ours, {"manager": "kubelet", "subresource": "status"}]}});
        let patch = give_back(&state, &json!({"metadata": {"resourceVersion": "9"}})).unwrap();
        assert_eq!(patch[0]["value"], json!([ours]));
        assert_eq!(patch[1]["value"], "9");
        assert_eq!(give_back(&json!({"metadata": {}}), &json!({})), None);
    }
}
