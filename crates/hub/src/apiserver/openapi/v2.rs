//! The v2 document: all groups in one, in the older format. Our kinds have only what that format can express.

use serde_json::{Map, Value, json};

use super::{contents, information, token_security};
use crate::kinds::Registry;

pub fn document(registry: &Registry) -> Value {
    let (paths, schemas) = contents(registry, &registry.groups());
    let paths: Map<_, _> = paths
        .into_iter()
        .map(|(path, operations)| (path, spell_path(operations)))
        .collect();
    let mut definitions = Map::from_iter(schemas);
    for kind in registry.kinds.iter().filter(|kind| kind.ours) {
        definitions.get_mut(&kind.schema_name).map(narrow);
    }
    let mut value = json!({
        "swagger": "2.0",
        "info": information(),
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": token_security(),
        "security": [{"BearerToken": []}],
    });
    move_references(&mut value);
    value
}

fn move_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref") {
                *reference = reference.replace("#/components/schemas/", "#/definitions/");
            }
            map.values_mut().for_each(move_references);
        }
        Value::Array(items) => items.iter_mut().for_each(move_references),
        _ => {}
    }
}

/// Removes the parts of a custom resource's schema that v2 can't express or kubectl's reader of v2 can't parse, as
/// kube-apiserver does (apiextensions' `ToStructuralOpenAPIV2`). A nullable field has no type, and so no contents.
fn narrow(schema: &mut Value) {
    let nullable = |schema: &Value| schema["nullable"] == true;
    let Some(map) = schema.as_object_mut() else { return };
    for word in ["allOf", "anyOf", "oneOf", "not", "default"] {
        map.remove(word);
    }

    let open = map.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
    let may_be_null = map.remove("nullable") == Some(json!(true));
    if open || may_be_null {
        map.remove("items");
        map.remove("properties");
    }
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    let untold = kind == "array" && !map.contains_key("items") || kind == "object" && open;
    if may_be_null || untold {
        map.remove("type");
    }

    let properties = map.get("properties").and_then(Value::as_object).into_iter().flatten();
    let optional: Vec<String> = properties
        .filter(|(_, s)| nullable(s))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(required) = map.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !optional.iter().any(|optional| name == optional));
        if required.is_empty() {
            map.remove("required");
        }
    }

    map.get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
        .for_each(|(_, s)| narrow(s));
    for part in ["items", "additionalProperties"] {
        map.get_mut(part).map(narrow);
    }
}

fn spell_path(mut path: Value) -> Value {
    for (name, part) in path.as_object_mut().into_iter().flatten() {
        match name.as_str() {
            "parameters" => spell_parameters(part),
            _ => spell_operation(part),
        }
    }
    path
}

/// In v2, the type is in the parameter itself.
fn spell_parameters(parameters: &mut Value) {
    for parameter in parameters
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        if let Some(Value::Object(schema)) = parameter.remove("schema") {
            parameter.extend(schema);
        }
    }
}

/// In v2, the body is one of the parameters, and media types belong to the operation.
fn spell_operation(operation: &mut Value) {
    spell_parameters(&mut operation["parameters"]);
    let body = operation
        .as_object_mut()
        .and_then(|operation| operation.remove("requestBody"));
    if let Some((body, content)) = body
        .as_ref()
        .and_then(|body| Some((body, body["content"].as_object()?)))
    {
        let schema = content.values().next().map(|of_type| of_type["schema"].clone());
        let mut parameter = json!({"name": "body", "in": "body", "schema": schema});
        if body["required"] == true {
            parameter["required"] = true.into();
        }
        if let Some(parameters) = operation["parameters"].as_array_mut() {
            parameters.push(parameter);
        }
        operation["consumes"] = content.keys().cloned().collect();
    }
    operation["produces"] = json!(["application/json"]);
    for (_, answer) in operation["responses"].as_object_mut().into_iter().flatten() {
        if let Some(content) = answer.as_object_mut().and_then(|answer| answer.remove("content")) {
            answer["schema"] = content["application/json"]["schema"].clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schema: Value, expected: Value) {
        let mut narrowed = schema;
        narrow(&mut narrowed);
        assert_eq!(narrowed, expected);
    }

    #[test]
    fn what_may_be_null_has_no_type() {
        check(
            json!({"type": "object", "required": ["a", "b"], "properties": {
                "a": {"type": "array", "nullable": true, "items": {"type": "string"}, "description": "x"},
                "b": {"type": "string", "default": "y", "maxLength": 3},
            }}),
            json!({"type": "object", "required": ["b"], "properties": {
                "a": {"description": "x"}, "b": {"type": "string", "maxLength": 3},
            }}),
        );
    }

    #[test]
    fn what_keeps_unknown_fields_is_anything() {
        let open = json!({"x-kubernetes-preserve-unknown-fields": true});
        let with = |more: Value| {
            let mut schema = open.clone();
            schema
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            schema
        };
        check(with(json!({"type": "object", "properties": {"a": {}}})), open.clone());
        check(
            json!({"items": with(json!({"type": "array"})), "anyOf": []}),
            json!({"items": open}),
        );
    }

    /// A field may have the name of a schema keyword.
    #[test]
    fn fields_are_no_words_of_the_schema() {
        let fields = json!({"type": "object", "properties": {
            "default": {"type": "string"}, "nullable": {"type": "boolean"}, "in": {"type": "string"},
        }});
        check(fields.clone(), fields);
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let document = document(&super::super::REGISTRY);
        let operations = document["paths"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|path| path.as_object().unwrap());
        let mut ids: Vec<_> = operations.filter_map(|(_, op)| op["operationId"].as_str()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!(ids.contains(&"readCoreV1NamespacedEvent") && ids.contains(&"readEventsV1NamespacedEvent"));
    }
}
