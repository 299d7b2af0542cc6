//! The page's types are those of the resource kinds: `web/src/api/generated.ts` is written from their schemas and
//! verified here. After a change of a kind: `FARWATER_WRITE=1 cargo test -p farwater-cli --test web_types`.

#![allow(clippy::unwrap_used)]

use std::{fmt::Write as _, path::Path};

use farwater_api::{
    ClusterSpec, ClusterStatus, GitRepositorySpec, GitRepositoryStatus, HelmRepositorySpec, OCIRepositorySpec,
    ServiceDeploymentSpec, ServiceDeploymentStatus, ServiceSetSpec, ServiceSetStatus, SourceStatus,
    objects::ObjectReport,
    service_set::{Member, RolloutSurvey},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

const HEAD: &str = "// Written from the Rust types by `crates/cli/tests/web_types.rs`; do not edit.\n";

#[test]
fn the_pages_types_are_those_of_the_kinds() {
    let mut schemas = Map::new();
    add::<ClusterSpec>(&mut schemas, "ClusterSpec");
    add::<ClusterStatus>(&mut schemas, "ClusterStatus");
    add::<GitRepositorySpec>(&mut schemas, "GitRepositorySpec");
    add::<GitRepositoryStatus>(&mut schemas, "GitRepositoryStatus");
    add::<HelmRepositorySpec>(&mut schemas, "HelmRepositorySpec");
    add::<OCIRepositorySpec>(&mut schemas, "OCIRepositorySpec");
    add::<SourceStatus>(&mut schemas, "SourceStatus");
    add::<ServiceDeploymentSpec>(&mut schemas, "ServiceDeploymentSpec");
    add::<ServiceDeploymentStatus>(&mut schemas, "ServiceDeploymentStatus");
    add::<ObjectReport>(&mut schemas, "ObjectReport");
    add::<ServiceSetSpec>(&mut schemas, "ServiceSetSpec");
    add::<ServiceSetStatus>(&mut schemas, "ServiceSetStatus");
    add::<Member>(&mut schemas, "Member");
    add::<RolloutSurvey>(&mut schemas, "RolloutSurvey");
    let mut written = HEAD.to_owned();
    for (name, schema) in &schemas {
        declare(&mut written, name, schema);
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/src/api/generated.ts");
    if std::env::var_os("FARWATER_WRITE").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(checked_in == written, "web/src/api/generated.ts is not up to date; FARWATER_WRITE=1 writes it");
}

/// What is sent, not what is accepted: fields with a default are always there.
fn add<T: JsonSchema>(schemas: &mut Map<String, Value>, name: &str) {
    let mut root =
        SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>().to_value();
    if let Some(Value::Object(definitions)) = root.as_object_mut().and_then(|root| root.remove("$defs")) {
        schemas.extend(definitions);
    }
    schemas.insert(name.to_owned(), root);
}

/// The last part of `io.k8s.apimachinery.pkg.apis.meta.v1.Condition`.
fn short(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or(name)
}

fn declare(out: &mut String, name: &str, schema: &Value) {
    out.push('\n');
    comment(out, "", schema);
    let name = short(name);
    match schema["properties"].as_object() {
        Some(properties) => {
            writeln!(out, "export interface {name} {{").unwrap();
            let required =
                |field: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == field));
            for (field, of) in properties {
                comment(out, "  ", of);
                let mark = if required(field) { "" } else { "?" };
                writeln!(out, "  {field}{mark}: {};", type_of(of)).unwrap();
            }
            out.push_str("}\n");
        }
        None => writeln!(out, "export type {name} = {};", type_of(schema)).unwrap(),
    }
}

fn comment(out: &mut String, indent: &str, schema: &Value) {
    if let Some(text) = schema["description"].as_str() {
        let text = text.replace("*/", "* /");
        let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        writeln!(out, "{indent}/** {} */", text.trim()).unwrap();
    }
}

fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return short(reference).to_owned();
    }
    if let Some(value) = schema.get("const") {
        return value.to_string();
    }
    if let Some(values) = schema["enum"].as_array() {
        return union(values.iter().map(Value::to_string));
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[key].as_array() {
            return union(choices.iter().map(type_of));
        }
    }
    match &schema["type"] {
        Value::String(name) => named(name, schema),
        // An absent field is left out, never null.
        Value::Array(names) => {
            union(names.iter().filter_map(Value::as_str).filter(|name| *name != "null").map(|name| named(name, schema)))
        }
        _ => "unknown".to_owned(),
    }
}

fn named(name: &str, schema: &Value) -> String {
    match name {
        "array" => format!("{}[]", type_of(&schema["items"])),
        "integer" | "number" => "number".to_owned(),
        "object" => format!("Record<string, {}>", type_of(&schema["additionalProperties"])),
        other => other.to_owned(),
    }
}

fn union(types: impl Iterator<Item = String>) -> String {
    let types: Vec<String> = types.filter(|name| name != "null").collect();
    types.join(" | ")
}
