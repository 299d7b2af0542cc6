//! OpenAPI documents: v3 by group and version, as kubectl reads them, and v2 for who asks for JSON.

use std::{collections::BTreeMap, sync::LazyLock};

use farwater_api::Digest;
use serde_json::{Map, Value, json};

use super::{
    kinds::{REGISTRY, Registry, ResourceKind, referenced},
    patch::PatchType,
};

/// One served document.
pub struct Document {
    pub body: Vec<u8>,
    pub hash: String,
}

/// v3 documents by their path (`api/v1`, `apis/GROUP/VERSION`).
pub static V3: LazyLock<BTreeMap<String, Document>> = LazyLock::new(|| {
    let groups = REGISTRY.groups().into_iter();
    groups.map(|(group, version)| (path_of(group, version), document(&v3(&REGISTRY, group, version)))).collect()
});

pub static V2: LazyLock<Document> = LazyLock::new(|| document(&v2(&REGISTRY)));

fn document(value: &Value) -> Document {
    let body = value.to_string().into_bytes();
    let hash = Digest::of(&body).to_hex().to_uppercase();
    Document { body, hash }
}

fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// `/openapi/v3`: the hash lets clients cache each document for ever.
pub fn index() -> Value {
    let paths: Map<String, Value> = V3
        .iter()
        .map(|(path, doc)| {
            (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", doc.hash)}))
        })
        .collect();
    json!({"paths": paths})
}

fn gvk(kind: &ResourceKind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn parameter(name: &str, kind: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": {"type": kind, "uniqueItems": true}})
}

fn dry_run() -> Value {
    let text = "All: every check is made and nothing is kept.";
    parameter("dryRun", "string", text)
}

fn write_parameters() -> Vec<Value> {
    vec![
        dry_run(),
        parameter(
            "fieldManager",
            "string",
            "Who comes to own the fields that are written; must be given for an apply.",
        ),
        parameter(
            "fieldValidation",
            "string",
            "What happens to unknown and duplicate fields: Ignore, Warn (the default) or Strict.",
        ),
    ]
}

fn delete_parameters() -> Vec<Value> {
    let mut parameters = vec![dry_run()];
    parameters.extend(
        [
            ("gracePeriodSeconds", "integer", "Taken, and without a meaning: nothing here ends slowly."),
            ("orphanDependents", "boolean", "Deprecated; use propagationPolicy."),
            ("propagationPolicy", "string", "What becomes of dependents: Background, Foreground or Orphan."),
        ]
        .map(|(name, kind, text)| parameter(name, kind, text)),
    );
    parameters
}

/// Kubernetes names it of custom resources only.
fn read_parameters(kind: &ResourceKind) -> Vec<Value> {
    let version = || parameter("resourceVersion", "string", "The answer is at least as new as this.");
    kind.ours.then(version).into_iter().collect()
}

fn patch_parameters() -> Vec<Value> {
    let force = parameter("force", "boolean", "An apply takes fields that others own instead of being refused.");
    write_parameters().into_iter().chain([force]).collect()
}

fn list_parameters() -> Vec<Value> {
    [
        ("allowWatchBookmarks", "boolean", "Whether a watch also sends BOOKMARK events."),
        ("continue", "string", "The token of the page before."),
        ("fieldSelector", "string", "Narrows by fields."),
        ("labelSelector", "string", "Narrows by labels."),
        ("limit", "integer", "Most items of one answer."),
        ("resourceVersion", "string", "The state to list or to watch from."),
        ("resourceVersionMatch", "string", "How resourceVersion is meant: Exact or NotOlderThan."),
        ("sendInitialEvents", "boolean", "A watch begins with the present state."),
        ("timeoutSeconds", "integer", "Ends a watch."),
        ("watch", "boolean", "Stream changes instead of listing."),
    ]
    .map(|(name, kind, text)| parameter(name, kind, text))
    .into()
}

fn path_parameters(kind: &ResourceKind, item: bool) -> Vec<Value> {
    let path = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let mut parameters = Vec::new();
    if item {
        parameters.push(path("name"));
    }
    if kind.namespaced {
        parameters.push(path("namespace"));
    }
    parameters
}

struct Operation<'a> {
    verb: &'a str,
    action: &'a str,
    id: &'a str,
    parameters: Vec<Value>,
    content_types: &'a [&'a str],
}

fn operation(kind: &ResourceKind, op: Operation<'_>) -> Value {
    let schema = json!({"$ref": format!("#/components/schemas/{}", kind.schema_name)});
    let ok = json!({"description": "OK", "content": {"application/json": {"schema": schema}}});
    let mut value = json!({
        "operationId": format!("{}{}", op.id, kind.kind),
        "parameters": op.parameters,
        "responses": {"200": ok},
        "x-kubernetes-action": op.action,
        "x-kubernetes-group-version-kind": gvk(kind),
    });
    if !op.content_types.is_empty() {
        let body = if op.verb == "patch" { json!({"schema": {"type": "object"}}) } else { json!({"schema": schema}) };
        let content: Map<String, Value> = op.content_types.iter().map(|t| ((*t).to_owned(), body.clone())).collect();
        value["requestBody"] = json!({"content": content, "required": true});
    }
    value
}

fn patch_types(kind: &ResourceKind) -> &'static [&'static str] {
    const OURS: &[&str] = &[PatchType::JSON, PatchType::MERGE, PatchType::APPLY];
    const BUILT_IN: &[&str] = &[PatchType::JSON, PatchType::MERGE, PatchType::STRATEGIC, PatchType::APPLY];
    if kind.ours { OURS } else { BUILT_IN }
}

fn item_operations(kind: &ResourceKind, id_suffix: &str, delete: bool) -> Value {
    let json_body = &["application/json", "application/yaml"][..];
    let id = |verb: &str| format!("{verb}{id_suffix}");
    let mut path = json!({
        "parameters": path_parameters(kind, true),
        "get": operation(kind, Operation {
            verb: "get", action: "get", id: &id("read"), parameters: read_parameters(kind), content_types: &[],
        }),
        "put": operation(kind, Operation {
            verb: "put", action: "put", id: &id("replace"), parameters: write_parameters(), content_types: json_body,
        }),
        "patch": operation(kind, Operation {
            verb: "patch", action: "patch", id: &id("patch"), parameters: patch_parameters(),
            content_types: patch_types(kind),
        }),
    });
    if delete {
        path["delete"] = operation(
            kind,
            Operation {
                verb: "delete",
                action: "delete",
                id: "delete",
                parameters: delete_parameters(),
                content_types: &[],
            },
        );
    }
    path
}

fn paths(kind: &ResourceKind, paths: &mut Map<String, Value>) {
    let root = format!("/{}", path_of(&kind.group, &kind.version));
    let collection = if kind.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{root}/{}", kind.plural)
    };
    let create = operation(
        kind,
        Operation {
            verb: "post",
            action: "post",
            id: "create",
            parameters: write_parameters(),
            content_types: &["application/json", "application/yaml"],
        },
    );
    if !kind.stored {
        paths.insert(collection, json!({"parameters": path_parameters(kind, false), "post": create}));
        return;
    }
    let list = |id: &str| {
        operation(
            kind,
            Operation { verb: "get", action: "list", id, parameters: list_parameters(), content_types: &[] },
        )
    };
    let mut all = json!({"parameters": path_parameters(kind, false), "get": list("list"), "post": create});
    if kind.verbs.contains(&"deletecollection") {
        let of_watches =
            |parameter: &Value| matches!(parameter["name"].as_str(), Some("watch" | "allowWatchBookmarks"));
        let parameters = list_parameters().into_iter().filter(|p| !of_watches(p)).chain(delete_parameters()).collect();
        let (verb, action, id) = ("delete", "deletecollection", "deleteCollection");
        all["delete"] = operation(kind, Operation { verb, action, id, parameters, content_types: &[] });
    }
    paths.insert(collection.clone(), all);
    if kind.namespaced {
        paths.insert(format!("{root}/{}", kind.plural), json!({"get": list("listAll")}));
    }
    paths.insert(format!("{collection}/{{name}}"), item_operations(kind, "", true));
    if kind.has_status() {
        paths.insert(format!("{collection}/{{name}}/status"), item_operations(kind, "Status", false));
    }
}

/// Schemas as kube-apiserver publishes them: a reference never stands beside other keywords.
fn published(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => {
            let mut out: Map<String, Value> = map.iter().map(|(k, v)| (k.clone(), published(v))).collect();
            if out.len() > 1
                && let Some(reference) = out.remove("$ref")
            {
                out.insert("allOf".into(), json!([{"$ref": reference}]));
            }
            out.into()
        }
        Value::Array(items) => items.iter().map(published).collect(),
        scalar => scalar.clone(),
    }
}

fn schemas_of(registry: &Registry, group: &str, version: &str) -> Map<String, Value> {
    let mut schemas = BTreeMap::new();
    for kind in registry.in_group(group, version) {
        let own = json!({"$ref": format!("#/components/schemas/{}", kind.schema_name)});
        referenced(&own, &registry.definitions, &mut schemas);
        if let Some(schema) = schemas.get_mut(&kind.schema_name) {
            schema["x-kubernetes-group-version-kind"] = json!([gvk(kind)]);
        }
    }
    schemas.iter().map(|(name, schema)| (name.clone(), published(schema))).collect()
}

fn v3(registry: &Registry, group: &str, version: &str) -> Value {
    let mut all = Map::new();
    registry.in_group(group, version).for_each(|kind| paths(kind, &mut all));
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Farwater", "version": env!("CARGO_PKG_VERSION")},
        "paths": all,
        "components": {"schemas": schemas_of(registry, group, version)},
    })
}

/// The v2 document: definitions, and per path what its v3 form says.
fn v2(registry: &Registry) -> Value {
    let (mut definitions, mut all) = (Map::new(), Map::new());
    for (group, version) in registry.groups() {
        definitions.extend(schemas_of(registry, group, version));
        registry.in_group(group, version).for_each(|kind| paths(kind, &mut all));
    }
    let mut value = json!({
        "swagger": "2.0",
        "info": {"title": "Farwater", "version": env!("CARGO_PKG_VERSION")},
        "paths": all,
        "definitions": definitions,
    });
    downgrade(&mut value);
    value
}

/// OpenAPI v3's spelling to v2's: references, parameters, bodies and answers.
fn downgrade(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(downgrade);
            if let Some(reference) = map.get_mut("$ref").and_then(|r| r.as_str().map(str::to_owned).map(|t| (r, t))) {
                *reference.0 = json!(reference.1.replace("#/components/schemas/", "#/definitions/"));
            }
            if map.contains_key("in")
                && let Some(Value::Object(schema)) = map.remove("schema")
            {
                map.extend(schema);
            }
            if let Some(mut body) = map.remove("requestBody") {
                let content = body["content"].as_object().cloned().unwrap_or_default();
                let types: Vec<_> = content.keys().cloned().collect();
                body = content.values().next().cloned().unwrap_or_default();
                let parameter = json!({"name": "body", "in": "body", "required": true, "schema": body["schema"]});
                if let Some(parameters) = map.get_mut("parameters").and_then(Value::as_array_mut) {
                    parameters.push(parameter);
                }
                map.insert("consumes".into(), json!(types));
            }
            if map.contains_key("description")
                && let Some(content) = map.remove("content")
            {
                map.insert("schema".into(), content["application/json"]["schema"].clone());
            }
            map.remove("nullable");
        }
        Value::Array(items) => items.iter_mut().for_each(downgrade),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stored_kind_has_a_patch_that_kubectl_recognises() {
        for kind in REGISTRY.kinds.iter().filter(|k| k.stored) {
            let doc = v3(&REGISTRY, &kind.group, &kind.version);
            let patches = doc["paths"].as_object().unwrap().values().map(|p| &p["patch"]);
            let own: Vec<_> = patches.filter(|p| p["x-kubernetes-group-version-kind"] == gvk(kind)).collect();
            assert!(!own.is_empty(), "{}", kind.kind);
            for name in ["fieldValidation", "dryRun"] {
                let has = |p: &&Value| p["parameters"].as_array().unwrap().iter().any(|q| q["name"] == name);
                assert!(own.iter().all(has), "{} {name}", kind.kind);
            }
            assert_eq!(
                doc["components"]["schemas"][&kind.schema_name]["x-kubernetes-group-version-kind"][0],
                gvk(kind)
            );
        }
    }

    #[test]
    fn documents_hold_everything_that_they_refer_to() {
        fn check(value: &Value, prefix: &str, known: &Map<String, Value>) {
            match value {
                Value::Object(map) => {
                    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                        assert!(known.contains_key(reference.strip_prefix(prefix).unwrap()), "{reference}");
                    }
                    map.values().for_each(|v| check(v, prefix, known));
                }
                Value::Array(items) => items.iter().for_each(|v| check(v, prefix, known)),
                _ => {}
            }
        }
        for (path, doc) in V3.iter() {
            let value: Value = serde_json::from_slice(&doc.body).unwrap();
            check(&value, "#/components/schemas/", value["components"]["schemas"].as_object().unwrap());
            let link = index()["paths"][path]["serverRelativeURL"].as_str().unwrap().to_owned();
            assert_eq!(link, format!("/openapi/v3/{path}?hash={}", doc.hash));
        }
        let value: Value = serde_json::from_slice(&V2.body).unwrap();
        check(&value, "#/definitions/", value["definitions"].as_object().unwrap());
    }
}
