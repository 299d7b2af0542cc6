//! OpenAPI documents: v3 by group and version, as kubectl reads them, and v2 for clients that request JSON.

mod operations;
mod v2;

use std::{collections::BTreeMap, sync::LazyLock};

use farwater_api::Digest;
use serde_json::{Map, Value, json};

use crate::kinds::{REGISTRY, Registry, referenced};
use operations::{gvk, gvk_of, paths, schema_of};

const CORE: (&str, &str) = ("", "v1");
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// One served document.
pub struct Document {
    pub body: Vec<u8>,
    pub hash: String,
}

/// v3 documents by their path (`api/v1`, `apis/GROUP/VERSION`).
pub static V3: LazyLock<BTreeMap<String, Document>> = LazyLock::new(|| {
    let groups = REGISTRY.groups().into_iter();
    groups
        .map(|(group, version)| (path_of(group, version), document(&v3(&REGISTRY, group, version))))
        .collect()
});

pub static V2: LazyLock<Document> = LazyLock::new(|| document(&v2::document(&REGISTRY)));

fn document(value: &Value) -> Document {
    let body = value.to_string().into_bytes();
    let hash = Digest::of(&body).to_hex().to_uppercase();
    Document { body, hash }
}

fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// `/openapi/v3`: with the hash, clients can cache each document forever.
pub fn index() -> Value {
    let paths: Map<String, Value> = V3
        .iter()
        .map(|(path, doc)| {
            (
                path.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={}", doc.hash)}),
            )
        })
        .collect();
    json!({"paths": paths})
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

/// The kinds of each schema. Options of a deletion are also listed for the document's groups, except groups of custom
/// resources.
fn kinds_of_schemas(registry: &Registry, groups: &[(&str, &str)]) -> BTreeMap<String, Vec<Value>> {
    let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for kind in &registry.kinds {
        kinds.insert(kind.schema_name.clone(), vec![gvk(kind)]);
        if kind.is_listed() {
            let list = gvk_of((&kind.group, &kind.version, &format!("{}List", kind.kind)));
            kinds.insert(kind.list_schema_name(), vec![list]);
        }
        for (of, name) in kind
            .subresources
            .iter()
            .filter_map(|sub| Some((sub.kind?, schema_of(registry, sub.kind?)?)))
        {
            kinds.insert(name.to_owned(), vec![gvk_of(of)]);
        }
    }
    kinds.insert(STATUS.to_owned(), vec![gvk_of(("", "v1", "Status"))]);
    let built_in = registry
        .groups()
        .into_iter()
        .filter(|group| *group == CORE || groups.contains(group));
    let built_in = built_in.filter(|(group, version)| registry.in_group(group, version).any(|kind| !kind.ours));
    let options = built_in.map(|(group, version)| gvk_of((group, version, "DeleteOptions")));
    kinds.insert(DELETE_OPTIONS.to_owned(), options.collect());
    kinds
}

/// The paths of some groups, and the schemas that they use.
fn contents(registry: &Registry, groups: &[(&str, &str)]) -> (Map<String, Value>, BTreeMap<String, Value>) {
    let (mut all, mut schemas) = (Map::new(), BTreeMap::new());
    for (group, version) in groups {
        registry
            .in_group(group, version)
            .for_each(|kind| paths(registry, kind, &mut all));
    }
    all.values()
        .for_each(|path| referenced(path, &registry.definitions, &mut schemas));
    for (name, kinds) in kinds_of_schemas(registry, groups) {
        if let Some(schema) = schemas.get_mut(&name) {
            schema["x-kubernetes-group-version-kind"] = kinds.into();
        }
    }
    (all, schemas)
}

fn information() -> Value {
    json!({"title": "Farwater", "version": env!("CARGO_PKG_VERSION")})
}

fn token_security() -> Value {
    let text = "A token of a service account or of a user.";
    json!({"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header", "description": text}})
}

fn v3(registry: &Registry, group: &str, version: &str) -> Value {
    let (paths, schemas) = contents(registry, &[(group, version)]);
    let schemas: Map<String, Value> = schemas
        .iter()
        .map(|(name, schema)| (name.clone(), published(schema)))
        .collect();
    let mut document = json!({
        "openapi": "3.0.0",
        "info": information(),
        "paths": paths,
        "components": {"schemas": schemas},
    });
    // Like Kubernetes, not for groups of custom resources.
    if registry.in_group(group, version).any(|kind| !kind.ours) {
        document["components"]["securitySchemes"] = token_security();
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stored_kind_has_a_patch_that_kubectl_recognises() {
        for kind in REGISTRY.kinds.iter().filter(|k| k.stored) {
            let doc = v3(&REGISTRY, &kind.group, &kind.version);
            let patches = doc["paths"].as_object().unwrap().values().map(|p| &p["patch"]);
            let own: Vec<_> = patches
                .filter(|p| p["x-kubernetes-group-version-kind"] == gvk(kind))
                .collect();
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
                        assert!(
                            known.contains_key(reference.strip_prefix(prefix).unwrap()),
                            "{reference}"
                        );
                    }
                    map.values().for_each(|v| check(v, prefix, known));
                }
                Value::Array(items) => items.iter().for_each(|v| check(v, prefix, known)),
                _ => {}
            }
        }
        for (path, doc) in V3.iter() {
            let value: Value = serde_json::from_slice(&doc.body).unwrap();
            check(
                &value,
                "#/components/schemas/",
                value["components"]["schemas"].as_object().unwrap(),
            );
            let link = index()["paths"][path]["serverRelativeURL"].as_str().unwrap().to_owned();
            assert_eq!(link, format!("/openapi/v3/{path}?hash={}", doc.hash));
        }
        let value: Value = serde_json::from_slice(&V2.body).unwrap();
        check(&value, "#/definitions/", value["definitions"].as_object().unwrap());
    }
}
