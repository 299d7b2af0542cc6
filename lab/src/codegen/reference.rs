//! Reference pages for people, and JSON schemas for editors, generated from the schema of each kind.

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A generated file: its name and text.
pub struct Page {
    pub name: String,
    pub text: String,
}

struct Kind {
    name: String,
    group: String,
    version: String,
    plural: String,
    short: Vec<String>,
    scope: String,
    schema: Value,
    columns: Vec<String>,
}

impl Kind {
    fn of(definition: &CustomResourceDefinition) -> Result<Self> {
        let (spec, names) = (&definition.spec, &definition.spec.names);
        let version = spec.versions.first().context("a kind has no version")?;
        let schema = serde_json::to_value(&version.schema)?["openAPIV3Schema"].take();
        let columns = version
            .additional_printer_columns
            .iter()
            .flatten()
            .map(|column| column.name.clone());
        Ok(Self {
            name: names.kind.clone(),
            group: spec.group.clone(),
            version: version.name.clone(),
            plural: names.plural.clone(),
            short: names.short_names.clone().unwrap_or_default(),
            scope: spec.scope.to_lowercase(),
            schema,
            columns: columns.collect(),
        })
    }
}

fn kinds() -> Result<Vec<Kind>> {
    farwater_api::custom_resource_definitions()
        .iter()
        .map(Kind::of)
        .collect()
}

/// A page with tables of all fields of spec and status.
pub fn pages() -> Result<Vec<Page>> {
    let page = |kind: Kind| {
        let mut text = format!(
            "<!-- Made by cargo xtask codegen from crates/api; don't edit. -->\n# {} reference\n\n`{}/{}`, {}, `{}.{}` ({}). \
             [What it is for](../kinds/{}.md).\n\nColumns: {}.\n",
            kind.name,
            kind.group,
            kind.version,
            kind.scope,
            kind.plural,
            kind.group,
            kind.short.join(", "),
            kind.name.to_lowercase(),
            kind.columns.join(", "),
        );
        for part in ["spec", "status"] {
            let schema = &kind.schema["properties"][part];
            if schema.is_object() {
                let _ = write!(text, "\n## {part}\n\n{}\n\n", sentence(schema));
                text.push_str("| field | type | default | |\n|---|---|---|---|\n");
                rows(&mut text, part, schema);
            }
        }
        Page {
            name: format!("{}.md", kind.name.to_lowercase()),
            text,
        }
    };
    Ok(kinds()?.into_iter().map(page).collect())
}

fn rows(text: &mut String, path: &str, schema: &Value) {
    let required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|all| all.contains(&json!(name)))
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let needed = if required(name) { ", required" } else { "" };
        let default = field
            .get("default")
            .map(|value| format!("`{value}`"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{path}` | {}{needed} | {default} | {} |",
            type_of(field),
            sentence(field)
        );
        rows(text, &path, field);
        rows(text, &format!("{path}[]"), &field["items"]);
    }
}

fn type_of(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .map(|value| format!("`{}`", value.as_str().unwrap_or("null")))
            .collect();
        return values.join(" or ");
    }
    match field["type"].as_str() {
        Some("array") => {
            let kind = match field["x-kubernetes-list-type"].as_str() {
                Some("map") => {
                    let keys: Vec<_> = field["x-kubernetes-list-map-keys"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .collect();
                    let keys: Vec<_> = keys.iter().filter_map(|key| key.as_str()).collect();
                    format!(", one for each {}", keys.join(" and "))
                }
                Some("set") => ", each once".to_owned(),
                _ => String::new(),
            };
            format!("list of {}{kind}", type_of(&field["items"]))
        }
        Some("object") if field["additionalProperties"].is_object() => {
            format!("map to {}", type_of(&field["additionalProperties"]))
        }
        Some(other) => field["format"]
            .as_str()
            .map_or_else(|| other.to_owned(), |format| format!("{other} ({format})")),
        None => "any".to_owned(),
    }
}

/// A field's description on one line of a table, with the schema's other requirements.
fn sentence(field: &Value) -> String {
    let told = field["description"].as_str().unwrap_or_default();
    let mut text = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let bound = |name: &str| field[name].as_u64().filter(|number| *number > 0);
    let _ = match (bound("minLength"), bound("maxLength"), bound("maxItems")) {
        (Some(least), Some(most), _) => write!(text, " {least} to {most} characters."),
        (None, Some(most), _) => write!(text, " At most {most} characters."),
        (Some(1), None, _) => write!(text, " Not empty."),
        (Some(least), None, _) => write!(text, " At least {least} characters."),
        (None, None, Some(most)) => write!(text, " At most {most}."),
        (None, None, None) => Ok(()),
    };
    if let Some(pattern) = field["pattern"].as_str() {
        let _ = write!(text, " (`{pattern}`)");
    }
    text.trim().replace('|', "\\|")
}

/// A JSON schema for each kind, for completion and validation in editors.
pub fn schemas() -> Result<Vec<Page>> {
    let schema = |kind: Kind| -> Result<Page> {
        let mut schema = kind.schema;
        close(&mut schema);
        let properties = &mut schema["properties"];
        properties["apiVersion"] = json!({"const": format!("{}/{}", kind.group, kind.version)});
        properties["kind"] = json!({"const": kind.name});
        properties["metadata"] = json!({
            "type": "object",
            "description": "As of every Kubernetes object: name, namespace, labels, annotations.",
            "properties": {
                "name": {"type": "string"}, "namespace": {"type": "string"}, "generateName": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        });
        schema["required"] = json!(["apiVersion", "kind", "metadata", "spec"]);
        schema["title"] = json!(kind.name);
        schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        let text = serde_json::to_string_pretty(&schema)?;
        Ok(Page {
            name: format!("{}_{}.json", kind.name.to_lowercase(), kind.version),
            text: format!("{text}\n"),
        })
    };
    kinds()?.into_iter().map(schema).collect()
}

/// Makes unknown names errors, and removes extensions that only Kubernetes reads.
fn close(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    map.retain(|name, _| !name.starts_with("x-kubernetes-"));
    if map.remove("nullable") == Some(json!(true))
        && let Some(kind) = map.get("type").cloned()
    {
        map.insert("type".to_owned(), json!([kind, "null"]));
    }
    if map.contains_key("properties") && !map.contains_key("additionalProperties") {
        map.insert("additionalProperties".to_owned(), json!(false));
    }
    if let Some(fields) = map.get_mut("properties").and_then(Value::as_object_mut) {
        fields.values_mut().for_each(close);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(name) {
            close(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use xtask::repository;

    use super::*;

    fn check(schema: &Value, value: &Value, path: &str) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let known = &schema["properties"][name];
                    let free = &schema["additionalProperties"];
                    assert!(
                        known.is_object() || free.is_object(),
                        "{path}.{name} is not in the schema"
                    );
                    check(
                        if known.is_object() { known } else { free },
                        value,
                        &format!("{path}.{name}"),
                    );
                }
                for name in schema["required"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                {
                    assert!(fields.contains_key(name), "{path}.{name} is missing");
                }
            }
            Value::Array(items) => items.iter().for_each(|item| check(&schema["items"], item, path)),
            scalar => {
                let fixed = schema.get("const").is_none_or(|fixed| fixed == scalar);
                let listed = schema["enum"].as_array().is_none_or(|all| all.contains(scalar));
                assert!(fixed && listed, "{path} is {scalar}, against {schema}");
            }
        }
    }

    #[test]
    fn the_examples_are_as_their_schemas_say() {
        let schemas = schemas().unwrap();
        let mut checked = 0;
        for entry in walkdir::WalkDir::new(repository::root().unwrap().join("examples")) {
            let path = entry.unwrap().into_path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for document in text
                .split("\n---\n")
                .filter(|document| document.contains("farwater.dev/v1alpha1"))
            {
                let object: Value = serde_saphyr::from_str(document).unwrap();
                let kind = object["kind"].as_str().unwrap().to_lowercase();
                let schema = schemas.iter().find(|page| page.name.starts_with(&kind)).unwrap();
                check(
                    &serde_json::from_str(&schema.text).unwrap(),
                    &object,
                    &path.display().to_string(),
                );
                checked += 1;
            }
        }
        assert!(checked > 0);
    }

    #[test]
    fn every_field_of_a_kind_is_in_its_reference() {
        let pages = pages().unwrap();
        let page = pages.iter().find(|page| page.name == "servicedeployment.md").unwrap();
        for field in [
            "`spec.clusterRef.name` | string, required",
            "`spec.prune` | boolean | `true`",
            "`status.conditions[].type`",
        ] {
            assert!(page.text.contains(field), "{field}: {}", page.text);
        }
    }
}
