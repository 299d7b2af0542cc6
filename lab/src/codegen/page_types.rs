//! The page's TypeScript types, generated from the schemas of our kinds.

use std::fmt::Write as _;

use farwater_api::{
    ClusterSpec, ClusterStatus, GitRepositorySpec, GitRepositoryStatus, HelmRepositorySpec, OCIRepositorySpec,
    ServiceDeploymentSpec, ServiceDeploymentStatus, ServiceSetSpec, ServiceSetStatus, SourceStatus,
    objects::ObjectReport,
    service_set::{Member, RolloutSurvey},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

/// Text of `web/src/api/generated.ts`: an interface or type for each Rust type that the page reads, and for their
/// parts.
pub fn module() -> String {
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
    let mut module = "// Made by cargo xtask codegen from crates/api; don't edit.\n".to_owned();
    for (name, schema) in &schemas {
        declare(&mut module, name, schema);
    }
    module
}

/// Schemas of what the API sends, not of what it accepts: fields with a default are always present.
fn add<T: JsonSchema>(schemas: &mut Map<String, Value>, name: &str) {
    let mut root = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    if let Some(Value::Object(definitions)) = root.as_object_mut().and_then(|root| root.remove("$defs")) {
        schemas.extend(definitions);
    }
    schemas.insert(name.to_owned(), root);
}

/// Name of a type, such as the last part of `io.k8s.apimachinery.pkg.apis.meta.v1.Condition`.
fn short(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or(name)
}

fn declare(out: &mut String, name: &str, schema: &Value) {
    out.push('\n');
    comment(out, "", schema);
    let name = short(name);
    match schema["properties"].as_object() {
        Some(properties) => {
            let _ = writeln!(out, "export interface {name} {{");
            let required = |field: &str| {
                schema["required"]
                    .as_array()
                    .is_some_and(|names| names.iter().any(|n| n == field))
            };
            for (field, of) in properties {
                comment(out, "  ", of);
                let mark = if required(field) { "" } else { "?" };
                let _ = writeln!(out, "  {field}{mark}: {};", type_of(of));
            }
            out.push_str("}\n");
        }
        None => {
            let _ = writeln!(out, "export type {name} = {};", type_of(schema));
        }
    }
}

fn comment(out: &mut String, indent: &str, schema: &Value) {
    if let Some(text) = schema["description"].as_str() {
        let text = text.replace("*/", "* /");
        let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let _ = writeln!(out, "{indent}/** {} */", text.trim());
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
        // The API leaves absent fields out. They are never null.
        Value::Array(names) => union(
            names
                .iter()
                .filter_map(Value::as_str)
                .filter(|name| *name != "null")
                .map(|name| named(name, schema)),
        ),
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
