//! What the agent keeps of a live object's metadata.

use farwater_api::{OWNER_ANNOTATION, SERVICE_LABEL};
use farwater_fleet::plan::{Ending, LiveObject, options, owned_fields};
use serde_json::{Map, Value, json};

/// Managers of tools that apply on the client side: what they wrote becomes ours when a service adopts the object.
const CLIENT_SIDE: [&str; 4] = ["kubectl-client-side-apply", "kubectl", "argocd-controller", "helm"];

/// Reads the metadata of an object or of a PartialObjectMetadata.
pub fn live_object(object: &Value) -> LiveObject {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    LiveObject {
        uid: text(&metadata["uid"]).unwrap_or_default(),
        resource_version: text(&metadata["resourceVersion"]).unwrap_or_default(),
        owner: text(&metadata["annotations"][OWNER_ANNOTATION]),
        service_label: text(&metadata["labels"][SERVICE_LABEL]),
        fields: owned_fields(metadata),
        deleting: metadata["deletionTimestamp"].is_string(),
        ending: metadata["deletionTimestamp"].as_str().map(|since| {
            let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
            let finalizers = finalizers.filter_map(|finalizer| finalizer.as_str().map(str::to_owned)).collect();
            Box::new(Ending { since: since.to_owned(), finalizers })
        }),
        client_side: metadata["managedFields"].as_array().is_some_and(|entries| entries.iter().any(is_client_side)),
        protection: Box::new(options::read_protection(metadata)),
        wave: options::read_wave(metadata).unwrap_or_default(),
    }
}

fn is_client_side(entry: &Value) -> bool {
    entry["operation"] == "Update"
        && entry["subresource"].is_null()
        && entry["manager"].as_str().is_some_and(|m| CLIENT_SIDE.contains(&m))
}

/// A JSON patch that hands the fields of client-side tools to our field manager, bound to the object's version. As
/// `k8s.io/client-go/util/csaupgrade` does it.
pub fn migration(object: &Value) -> Option<Value> {
    let metadata = &object["metadata"];
    let entries = metadata["managedFields"].as_array()?;
    let mut fields = json!({});
    let mut api_version = None;
    let mut rest = Vec::new();
    for entry in entries {
        let ours = entry["manager"] == farwater_api::FIELD_MANAGER
            && entry["operation"] == "Apply"
            && entry["subresource"].is_null();
        if ours || is_client_side(entry) {
            merge(&mut fields, &entry["fieldsV1"]);
            if api_version.is_none() || ours {
                api_version = Some(entry["apiVersion"].clone());
            }
        } else {
            rest.push(entry.clone());
        }
    }
    rest.push(json!({
        "manager": farwater_api::FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": api_version?,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }));
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": rest},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ]))
}

/// The union of two field sets in the format FieldsV1.
fn merge(into: &mut Value, from: &Value) {
    let Some(from) = from.as_object() else { return };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(into) = into.as_object_mut() else { return };
    for (key, value) in from {
        merge(into.entry(key.clone()).or_insert_with(|| json!({})), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_side_fields_become_ours() {
        let object = json!({"metadata": {"resourceVersion": "7", "managedFields": [
            {"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "v1",
             "fieldsV1": {"f:data": {".": {}, "f:a": {}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "apiVersion": "v1"},
            {"manager": "farwater-agent", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:b": {}}}},
        ]}});
        assert!(live_object(&object).client_side);
        let patch = migration(&object).unwrap();
        let entries = patch[0]["value"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["manager"], "kube-controller-manager");
        assert_eq!(entries[1]["fieldsV1"], json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
        assert_eq!(patch[1]["value"], "7");
    }
}
