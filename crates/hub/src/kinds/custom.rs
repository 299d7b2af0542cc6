//! Kinds of Farwater, from their definitions.

use std::collections::BTreeMap;

use farwater_api::service_set;
use farwater_store::Kind;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value, json};

use super::published;
use crate::kinds::{
    CLUSTER_FIELDS, CUSTOM_VERBS, Column, META_FIELDS, MICRO_TIME, ResourceKind, STATUS, Subresource, meta::NameRule,
    selector::Selectable,
};

pub(super) const REFERENCE: &str = "#/components/schemas/";

/// Replaces references by their definitions. The types of our kinds don't contain themselves; the depth guards against
/// one that does.
pub(super) fn inline(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> Value {
    const DEEPEST: usize = 32;
    if depth > DEEPEST {
        return json!({"x-kubernetes-preserve-unknown-fields": true});
    }
    match schema {
        Value::Object(map) => {
            let mut out = Map::new();
            if let Some(name) = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix(REFERENCE))
                && let Value::Object(target) =
                    inline(definitions.get(name).unwrap_or(&Value::Null), definitions, depth + 1)
            {
                out = target;
                if name.ends_with(".MicroTime") {
                    // Published like any other time; parsed with exactly six digits after the seconds.
                    out.insert("format".into(), json!(MICRO_TIME));
                }
            }
            for (key, value) in map.iter().filter(|(key, _)| *key != "$ref") {
                out.insert(key.clone(), inline(value, definitions, depth + 1));
            }
            // `fieldsV1` of managedFields: any object.
            if out.get("type") == Some(&json!("object"))
                && !out.contains_key("properties")
                && !out.contains_key("additionalProperties")
            {
                out.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
            }
            out.into()
        }
        Value::Array(items) => items.iter().map(|item| inline(item, definitions, depth + 1)).collect(),
        scalar => scalar.clone(),
    }
}

pub(super) fn custom(crd: &CustomResourceDefinition, definitions: &mut Map<String, Value>) -> ResourceKind {
    let (spec, version) = (&crd.spec, &crd.spec.versions[0]);
    let names = &spec.names;
    let mut schema = serde_json::to_value(&version.schema).unwrap_or_default()["openAPIV3Schema"].take();
    let reversed: Vec<&str> = spec.group.split('.').rev().collect();
    let schema_name = format!("{}.{}.{}", reversed.join("."), version.name, names.kind);

    let meta = json!({
        "$ref": format!("{REFERENCE}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
        "description": "Standard object's metadata. More info: \
            https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    });
    schema["properties"]["metadata"] = meta;
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = definitions["io.k8s.api.core.v1.ConfigMap"]["properties"][field].clone();
    }

    published::whole_numbers(&mut schema);
    definitions.insert(schema_name.clone(), schema.clone());

    let mut kind = ResourceKind {
        group: spec.group.clone(),
        version: version.name.clone(),
        kind: names.kind.clone(),
        plural: names.plural.clone(),
        singular: names.singular.clone().unwrap_or_else(|| names.kind.to_lowercase()),
        short_names: names.short_names.clone().unwrap_or_default(),
        categories: names.categories.clone().unwrap_or_default(),
        namespaced: spec.scope == "Namespaced",
        ours: true,
        stored: true,
        verbs: CUSTOM_VERBS,
        subresources: Vec::new(),
        names: NameRule::Subdomain,
        schema: inline(&schema, definitions, 0),
        schema_name,
        columns: custom_columns(version),
        fields: Selectable {
            fields: if spec.scope == "Namespaced" {
                META_FIELDS
            } else {
                CLUSTER_FIELDS
            },
            common: false,
        },
        answers_deleted: false,
        created_by_update: false,
        updated_blindly: false,
        view: None,
        store: Kind::new(&names.plural, &spec.group),
        managers: BTreeMap::new(),
    };

    if version.subresources.as_ref().is_some_and(|s| s.status.is_some()) {
        kind.subresources.push(STATUS);
    }
    if kind.namespaced && kind.kind != "ServiceContext" {
        // `kubectl get all` shows what a tenant works with and, like Kubernetes with Secrets, nothing that tenants may
        // not read.
        kind.categories.push("all".into());
    }

    match kind.plural.as_str() {
        "servicedeployments" => {
            for (name, list) in [
                ("digest", "DigestReport"),
                ("history", "HistoryEntryList"),
                ("hooks", "HookRunList"),
                ("objects", "ObjectReportList"),
            ] {
                kind.subresources.push(Subresource {
                    name,
                    verbs: &["get"],
                    kind: Some((farwater_api::GROUP, farwater_api::VERSION, list)),
                });
            }
            kind.subresources.push(Subresource {
                name: "bundle",
                verbs: &["get"],
                kind: Some((
                    farwater_api::GROUP,
                    farwater_api::VERSION,
                    farwater_api::renderer::BUNDLE_KIND,
                )),
            });
            kind.subresources.push(Subresource {
                name: "parameters",
                verbs: &["get"],
                kind: Some((
                    farwater_api::GROUP,
                    farwater_api::VERSION,
                    farwater_api::parameters::PARAMETERS_KIND,
                )),
            });
            kind.subresources.push(Subresource {
                name: "plan",
                verbs: &["create", "get"],
                kind: Some((
                    farwater_api::GROUP,
                    farwater_api::VERSION,
                    farwater_api::plan::PLAN_KIND,
                )),
            });
        }
        "servicesets" => {
            for (name, verbs, body) in [
                ("members", &["get"][..], service_set::MEMBERS_KIND),
                ("plan", &["create", "get"], service_set::PLAN_KIND),
                ("rollout", &["get"], service_set::SURVEY_KIND),
                ("versions", &["get"], service_set::VERSIONS_KIND),
            ] {
                let kind_of_body = Some((farwater_api::GROUP, farwater_api::VERSION, body));
                kind.subresources.push(Subresource {
                    name,
                    verbs,
                    kind: kind_of_body,
                });
            }
        }
        "managednamespaces" => kind.subresources.push(Subresource {
            name: "plan",
            verbs: &["create", "get"],
            kind: Some((farwater_api::GROUP, farwater_api::VERSION, service_set::PLAN_KIND)),
        }),
        "gitrepositories" => kind.subresources.push(Subresource {
            name: "impact",
            verbs: &["create"],
            kind: Some((
                farwater_api::GROUP,
                farwater_api::VERSION,
                farwater_api::impact::IMPACT_KIND,
            )),
        }),
        "pipelines" => kind.subresources.push(Subresource {
            name: "approve",
            verbs: &["create"],
            kind: Some((
                farwater_api::GROUP,
                farwater_api::VERSION,
                farwater_api::pipeline::APPROVAL_KIND,
            )),
        }),
        "clusters" => kind.subresources.push(Subresource {
            name: "join",
            verbs: &["create"],
            kind: Some((farwater_api::GROUP, farwater_api::VERSION, "ClusterJoin")),
        }),
        _ => {}
    }

    kind
}

pub(super) fn custom_columns(
    version: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionVersion,
) -> Vec<Column> {
    let columns = version.additional_printer_columns.iter().flatten();
    columns
        .map(|c| Column {
            name: c.name.clone(),
            kind: c.type_.clone(),
            description: c.description.clone().unwrap_or_default(),
            priority: c.priority.unwrap_or_default().into(),
            path: c.json_path.clone(),
        })
        .collect()
}

/// Names of the definitions that a schema refers to, directly or not.
pub fn referenced(schema: &Value, definitions: &Map<String, Value>, found: &mut BTreeMap<String, Value>) {
    match schema {
        Value::Object(map) => {
            if let Some(name) = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix(REFERENCE))
                && !found.contains_key(name)
                && let Some(target) = definitions.get(name)
            {
                found.insert(name.to_owned(), target.clone());
                referenced(target, definitions, found);
            }
            map.values().for_each(|value| referenced(value, definitions, found));
        }
        Value::Array(items) => items.iter().for_each(|item| referenced(item, definitions, found)),
        _ => {}
    }
}
