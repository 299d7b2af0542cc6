//! Facts that Kubernetes' published types lose on their way through JSON schema: how lists and objects are merged, and
//! that `metadata` may be absent. Tests compare each of these with the real server's documents.

use serde_json::{Map, Value, json};

use super::ResourceKind;

/// The body of any patch.
pub const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// Lists of built-in kinds that are merged item by item: definition, field, and the key of items that are objects. All
/// other lists are atomic.
const MERGED: &[(&str, &str, Option<&str>)] = &[
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", None),
    (
        "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        "ownerReferences",
        Some("uid"),
    ),
    ("io.k8s.api.core.v1.ServiceAccount", "secrets", Some("name")),
    ("io.k8s.api.core.v1.NamespaceStatus", "conditions", Some("type")),
];

/// Atomic objects.
const ATOMIC: &[&str] = &[
    "io.k8s.api.core.v1.LocalObjectReference",
    "io.k8s.api.core.v1.ObjectReference",
    "io.k8s.api.rbac.v1.RoleRef",
    "io.k8s.api.rbac.v1.Subject",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
];

/// Required fields, where Kubernetes publishes others than Go's types imply.
const REQUIRED: &[(&str, &[&str])] = &[
    ("io.k8s.api.authentication.v1.TokenRequest", &[]),
    ("io.k8s.api.authentication.v1.TokenRequestSpec", &[]),
    ("io.k8s.api.authentication.v1.TokenRequestStatus", &[]),
    ("io.k8s.api.core.v1.Event", &["metadata", "involvedObject"]),
    ("io.k8s.api.core.v1.LocalObjectReference", &[]),
    ("io.k8s.api.events.v1.Event", &["eventTime"]),
    ("io.k8s.api.rbac.v1.RoleRef", &["kind", "name"]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Status", &[]),
];

pub fn complete(definitions: &mut Map<String, Value>) {
    for (name, definition) in definitions.iter_mut().filter(|(name, _)| name.starts_with("io.k8s.")) {
        let properties = definition.get_mut("properties").and_then(Value::as_object_mut);
        for (field, schema) in properties.into_iter().flatten() {
            if schema["type"] == json!("array") {
                complete_list(name, field, schema);
            }
        }

        if ATOMIC.contains(&name.as_str()) {
            definition["x-kubernetes-map-type"] = json!("atomic");
        }
        if name.starts_with("io.k8s.api.")
            && let Some(required) = definition.get_mut("required").and_then(Value::as_array_mut)
        {
            required.retain(|field| field != "metadata");
            if required.is_empty() {
                definition.as_object_mut().map(|d| d.remove("required"));
            }
        }
    }

    for (name, required) in REQUIRED {
        let Some(definition) = definitions.get_mut(*name).and_then(Value::as_object_mut) else {
            continue;
        };
        if required.is_empty() {
            definition.remove("required");
        } else {
            definition.insert("required".into(), json!(required));
        }
    }

    let phase = definitions
        .get_mut("io.k8s.api.core.v1.NamespaceStatus")
        .and_then(|d| d.pointer_mut("/properties/phase"));
    if let Some(phase) = phase {
        phase["enum"] = json!(["Active", "Terminating"]);
    }
}

/// The types that have no Rust types: the patch, and the list of each kind.
pub fn add_lists(kinds: &[ResourceKind], definitions: &mut Map<String, Value>) {
    definitions.insert(
        PATCH.to_owned(),
        json!({"type": "object", "description": "A patch, in the form of its media type."}),
    );
    for kind in kinds.iter().filter(|kind| kind.is_listed()) {
        let of_kind = &definitions.get(&kind.schema_name).unwrap_or(&Value::Null)["properties"];
        let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});
        let items = json!({"type": "array", "items": reference(&kind.schema_name), "description": "The objects."});
        let mut metadata = reference("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta");
        metadata["description"] = "The version of the list, and the token of its next page.".into();
        let list = json!({
            "type": "object",
            "description": format!("A list of {}.", kind.kind),
            "required": ["items"],
            "properties": {
                "apiVersion": of_kind["apiVersion"], "kind": of_kind["kind"], "metadata": metadata, "items": items,
            },
        });
        definitions.insert(kind.list_schema_name(), list);
    }
}

/// Limits of a CRD are floats; they are published as whole numbers.
pub fn whole_numbers(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            for limit in ["minimum", "maximum"] {
                if let Some(float) = map
                    .get(limit)
                    .and_then(Value::as_f64)
                    .filter(|float| float.fract() == 0.0)
                {
                    map.insert(limit.to_owned(), json!(float as i64));
                }
            }
            map.values_mut().for_each(whole_numbers);
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        _ => {}
    }
}

fn complete_list(definition: &str, field: &str, list: &mut Value) {
    let merged = MERGED.iter().find(|(of, name, _)| *of == definition && *name == field);
    let Some((.., key)) = merged else {
        list["x-kubernetes-list-type"] = json!("atomic");
        return;
    };
    list["x-kubernetes-patch-strategy"] = json!("merge");
    list["x-kubernetes-list-type"] = json!(if key.is_some() { "map" } else { "set" });
    if let Some(key) = key {
        list["x-kubernetes-patch-merge-key"] = json!(key);
        list["x-kubernetes-list-map-keys"] = json!([key]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_one_value_unless_they_are_merged() {
        let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let mut definitions = Map::new();
        let list = || json!({"type": "array"});
        definitions.insert(
            meta.to_owned(),
            json!({"properties": {"finalizers": list(), "managedFields": list()}}),
        );
        definitions.insert(ATOMIC[0].to_owned(), json!({"required": ["metadata"]}));
        definitions.insert("io.k8s.x.Any".to_owned(), json!({"type": "object"}));
        complete(&mut definitions);
        let of = |field: &str| definitions[meta]["properties"][field]["x-kubernetes-list-type"].clone();
        assert_eq!((of("finalizers"), of("managedFields")), (json!("set"), json!("atomic")));
        assert_eq!(definitions[ATOMIC[0]], json!({"x-kubernetes-map-type": "atomic"}));
        assert_eq!(definitions["io.k8s.x.Any"], json!({"type": "object"}));
    }
}
