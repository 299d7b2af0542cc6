//! Kinds of Farwater, from their definitions.

use std::collections::BTreeMap;

use farwater_api::{
    impact::IMPACT_KIND, parameters::PARAMETERS_KIND, pipeline::APPROVAL_KIND, plan, renderer::BUNDLE_KIND, service_set,
};
use farwater_store::Kind;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
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
    let reversed: Vec<&str> = spec.group.split('.').rev().collect();
    let schema_name = format!("{}.{}.{}", reversed.join("."), version.name, names.kind);
    let schema = served_schema(version, definitions);
    definitions.insert(schema_name.clone(), schema.clone());

    let namespaced = spec.scope == "Namespaced";
    let mut categories = names.categories.clone().unwrap_or_default();
    if namespaced && names.kind != "ServiceContext" {
        // `kubectl get all` shows the objects that a tenant works with. Like Kubernetes with Secrets, it shows nothing
        // that tenants may not read.
        categories.push("all".into());
    }

    ResourceKind {
        group: spec.group.clone(),
        version: version.name.clone(),
        kind: names.kind.clone(),
        plural: names.plural.clone(),
        singular: names.singular.clone().unwrap_or_else(|| names.kind.to_lowercase()),
        short_names: names.short_names.clone().unwrap_or_default(),
        categories,
        namespaced,
        ours: true,
        stored: true,
        verbs: CUSTOM_VERBS,
        subresources: custom_subresources(version, &names.plural),
        names: NameRule::Subdomain,
        schema: inline(&schema, definitions, 0),
        schema_name,
        columns: custom_columns(version),
        fields: Selectable {
            fields: if namespaced { META_FIELDS } else { CLUSTER_FIELDS },
            common: false,
        },
        answers_deleted: false,
        created_by_update: false,
        updated_blindly: false,
        view: None,
        store: Kind::new(&names.plural, &spec.group),
        managers: BTreeMap::new(),
    }
}

/// The schema of a definition with the fields that Kubernetes adds to each custom resource.
fn served_schema(version: &CustomResourceDefinitionVersion, definitions: &Map<String, Value>) -> Value {
    let mut schema = serde_json::to_value(&version.schema).unwrap_or_default()["openAPIV3Schema"].take();
    schema["properties"]["metadata"] = json!({
        "$ref": format!("{REFERENCE}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
        "description": "Standard object's metadata. More info: \
            https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    });
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = definitions["io.k8s.api.core.v1.ConfigMap"]["properties"][field].clone();
    }
    published::whole_numbers(&mut schema);
    schema
}

fn custom_subresources(version: &CustomResourceDefinitionVersion, plural: &str) -> Vec<Subresource> {
    let has_status = version.subresources.as_ref().is_some_and(|s| s.status.is_some());
    let own = subresources_of(plural).iter().map(|&(name, verbs, body)| Subresource {
        name,
        verbs,
        kind: Some((farwater_api::GROUP, farwater_api::VERSION, body)),
    });
    has_status.then_some(STATUS).into_iter().chain(own).collect()
}

/// Name, verbs, and the kind of the request and the answer of each subresource besides `status`.
fn subresources_of(plural: &str) -> &'static [(&'static str, &'static [&'static str], &'static str)] {
    match plural {
        "servicedeployments" => &[
            ("digest", &["get"], "DigestReport"),
            ("history", &["get"], "HistoryEntryList"),
            ("hooks", &["get"], "HookRunList"),
            ("objects", &["get"], "ObjectReportList"),
            ("bundle", &["get"], BUNDLE_KIND),
            ("parameters", &["get"], PARAMETERS_KIND),
            ("plan", &["create", "get"], plan::PLAN_KIND),
        ],
        "servicesets" => &[
            ("members", &["get"], service_set::MEMBERS_KIND),
            ("plan", &["create", "get"], service_set::PLAN_KIND),
            ("rollout", &["get"], service_set::SURVEY_KIND),
            ("versions", &["get"], service_set::VERSIONS_KIND),
        ],
        "managednamespaces" => &[("plan", &["create", "get"], service_set::PLAN_KIND)],
        "gitrepositories" => &[("impact", &["create"], IMPACT_KIND)],
        "pipelines" => &[("approve", &["create"], APPROVAL_KIND)],
        "clusters" => &[("join", &["create"], "ClusterJoin")],
        _ => &[],
    }
}

pub(super) fn custom_columns(version: &CustomResourceDefinitionVersion) -> Vec<Column> {
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
