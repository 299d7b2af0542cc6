//! Structural schemas: the structure of a kind's objects, and the three operations on it: prune, default, validate.
//!
//! For our kinds this is apiextensions-apiserver's treatment of custom resources. Built-in kinds are treated as a
//! decoder into Go structs treats them ([`decode`]): a wrong type is a bad request, not an invalid field.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use regex::Regex;
use serde_json::{Value, json};

use super::{MICRO_TIME, status::FieldError};

fn child(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

fn properties(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    schema.get("properties").and_then(Value::as_object)
}

/// An object schema without properties accepts anything.
fn preserves_unknown(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == json!(true)
}

/// The schema of one property: declared, or that of `additionalProperties`.
fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    properties(schema)
        .and_then(|p| p.get(name))
        .or_else(|| schema.get("additionalProperties").filter(|s| s.is_object()))
}

/// Removes fields that the schema doesn't know and returns their paths.
pub fn prune(value: &mut Value, schema: &Value, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if preserves_unknown(schema) || schema["additionalProperties"] == json!(true) {
                return;
            }
            map.retain(|name, _| {
                let known = property(schema, name).is_some();
                if !known {
                    unknown.push(child(path, name));
                }
                known
            });
            for (name, value) in map.iter_mut() {
                if let Some(schema) = property(schema, name) {
                    prune(value, schema, &child(path, name), unknown);
                }
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter_mut().enumerate() {
                prune(item, &schema["items"], &format!("{path}[{n}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Removes nulls where they are not allowed: they count as absent.
pub fn drop_nulls(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, value| !value.is_null() || property(schema, name).is_none_or(is_nullable));
            for (name, value) in map.iter_mut() {
                if let Some(schema) = property(schema, name) {
                    drop_nulls(value, schema);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_nulls(item, &schema["items"])),
        _ => {}
    }
}

fn is_nullable(schema: &Value) -> bool {
    schema["nullable"] == json!(true)
}

/// Sets defaults of absent fields, and of nulls where they are not allowed.
pub fn default(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (name, property) in properties(schema).into_iter().flatten() {
                let absent = map
                    .get(name)
                    .is_none_or(|value| value.is_null() && !is_nullable(property));
                if let (true, Some(default)) = (absent, property.get("default")) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in map.iter_mut() {
                if let Some(schema) = property(schema, name) {
                    default(value, schema);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| default(item, &schema["items"])),
        _ => {}
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(value: &Value, wanted: &str) -> bool {
    let actual = type_name(value);
    actual == wanted
        || (wanted == "number" && actual == "integer")
        || (wanted == "integer" && value.as_f64().is_some_and(|f| f.fract() == 0.0))
}

/// Checks a value that was pruned and defaulted.
pub fn validate(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if value.is_null() && schema["nullable"] == json!(true) {
        return;
    }

    if schema["x-kubernetes-int-or-string"] == json!(true) {
        if !value.is_string() && !has_type(value, "integer") {
            let detail = format!("{path} in body must be of type int-or-string: {:?}", type_name(value));
            errors.push(FieldError::wrong_type(path, &json!(type_name(value)), &detail));
        }
        return;
    }

    let wrong_type = schema["type"].as_str().filter(|wanted| !has_type(value, wanted));
    if let Some(wanted) = wrong_type {
        let actual = type_name(value);
        let detail = format!("{path} in body must be of type {wanted}: {actual:?}");
        errors.push(FieldError::wrong_type(path, &json!(actual), &detail));
    }

    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let names: Vec<_> = allowed
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(path, value, &names));
    }

    if wrong_type.is_some() {
        return;
    }
    match value {
        Value::String(text) => validate_string(text, schema, path, errors),
        Value::Number(_) => validate_number(value, schema, path, errors),
        Value::Array(items) => validate_array(items, schema, path, errors),
        Value::Object(map) => validate_object(map, schema, path, errors),
        Value::Null | Value::Bool(_) => {}
    }
}

fn validate_string(text: &str, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let value = json!(text);
    let length = text.chars().count() as u64;
    if let Some(max) = schema["maxLength"].as_u64().filter(|max| length > *max) {
        errors.push(FieldError::too_long(path, max));
    }
    if let Some(min) = schema["minLength"].as_u64().filter(|min| length < *min) {
        errors.push(FieldError::invalid(
            path,
            &value,
            &format!("{path} in body should be at least {min} chars long"),
        ));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        // A test compiles each pattern of our kinds; a pattern that doesn't compile must not admit anything.
        if !Regex::new(pattern).is_ok_and(|regex| regex.is_match(text)) {
            errors.push(FieldError::invalid(
                path,
                &value,
                &format!("{path} in body should match '{pattern}'"),
            ));
        }
    }
    let wrong_format = match schema["format"].as_str() {
        Some("date-time") => text.parse::<jiff::Timestamp>().is_err(),
        Some("byte") => STANDARD.decode(text).is_err(),
        _ => false,
    };
    if wrong_format {
        let format = schema["format"].as_str().unwrap_or_default();
        let detail = format!("{path} in body must be of type {format}: {text:?}");
        errors.push(FieldError::wrong_type(path, &value, &detail));
    }
}

fn validate_number(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let number = value.as_f64().unwrap_or_default();
    if let Some(min) = schema["minimum"].as_f64().filter(|min| number < *min) {
        let detail = format!("{path} in body should be greater than or equal to {min}");
        errors.push(FieldError::invalid(path, value, &detail));
    }
    if let Some(max) = schema["maximum"].as_f64().filter(|max| number > *max) {
        let detail = format!("{path} in body should be less than or equal to {max}");
        errors.push(FieldError::invalid(path, value, &detail));
    }
    let (lowest, highest) = match schema["format"].as_str() {
        Some("int32") => (f64::from(i32::MIN), f64::from(i32::MAX)),
        Some("uint32") => (0.0, f64::from(u32::MAX)),
        _ => return,
    };
    if number < lowest || number > highest {
        let format = schema["format"].as_str().unwrap_or_default();
        errors.push(FieldError::invalid(
            path,
            value,
            &format!("{path} in body must be of type {format}: {value}"),
        ));
    }
}

fn validate_array(items: &[Value], schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(max) = schema["maxItems"].as_u64().filter(|max| items.len() as u64 > *max) {
        errors.push(FieldError::too_many(path, items.len(), max));
    }
    if let Some(min) = schema["minItems"].as_u64().filter(|min| (items.len() as u64) < *min) {
        let detail = format!("{path} in body should have at least {min} items");
        errors.push(FieldError::invalid(path, &json!(items.len()), &detail));
    }

    for (n, item) in items.iter().enumerate() {
        validate(item, &schema["items"], &format!("{path}[{n}]"), errors);
    }

    let keys = schema["x-kubernetes-list-map-keys"].as_array();
    let identity = |item: &Value| -> Value {
        match keys {
            Some(keys) => keys
                .iter()
                .filter_map(Value::as_str)
                .filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            None => item.clone(),
        }
    };

    if matches!(schema["x-kubernetes-list-type"].as_str(), Some("map" | "set")) {
        let mut seen = BTreeSet::new();
        for (n, item) in items.iter().enumerate() {
            let identity = identity(item);
            if !seen.insert(identity.to_string()) {
                errors.push(FieldError::duplicate(format!("{path}[{n}]"), &identity));
            }
        }
    }
}

fn validate_object(map: &serde_json::Map<String, Value>, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(max) = schema["maxProperties"].as_u64().filter(|max| map.len() as u64 > *max) {
        errors.push(FieldError::too_many(path, map.len(), max));
    }
    for name in schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        if !map.contains_key(name) {
            errors.push(FieldError::required(child(path, name), ""));
        }
    }
    for (name, value) in map {
        if let Some(schema) = property(schema, name) {
            validate(value, schema, &child(path, name), errors);
        }
    }
}

/// Reads a value as a Go struct with this schema would be decoded from JSON: nulls are absent, bytes are base64, a
/// wrong type is refused. `place` names struct and field for the message.
pub fn decode(value: &mut Value, schema: &Value, place: &str) -> Result<(), String> {
    if let Value::Object(map) = value {
        map.retain(|_, value| !value.is_null());
    }

    if schema["x-kubernetes-int-or-string"] == json!(true) || schema.get("type").is_none() {
        return Ok(());
    }

    let wanted = schema["type"].as_str().unwrap_or_default();
    if !has_type(value, wanted) {
        return Err(wrong_type(value, schema, place));
    }

    match value {
        Value::String(text) => decode_text(text, schema["format"].as_str(), place)?,
        Value::Number(_) => {
            if let Some(float) = value.as_f64().filter(|_| value.is_f64() && wanted == "integer") {
                *value = json!(float as i64);
            }
        }
        Value::Array(items) => {
            for item in items {
                decode(item, &schema["items"], place)?;
            }
        }
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                if let Some(schema) = property(schema, name) {
                    let is_map = schema.get("additionalProperties").is_some();
                    let place = match is_map {
                        true => place.to_owned() + "." + name,
                        false => child(place, name),
                    };
                    decode(value, schema, &place)?;
                }
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    Ok(())
}

/// The message of Go's decoder for a value of another type.
fn wrong_type(value: &Value, schema: &Value, place: &str) -> String {
    let actual = match type_name(value) {
        "boolean" => "bool",
        "integer" => "number",
        other => other,
    };
    let wanted = match (schema["type"].as_str().unwrap_or_default(), schema["format"].as_str()) {
        ("boolean", _) => "bool",
        ("integer", Some("int32")) => "int32",
        ("integer", _) => "int64",
        ("object", _) if schema.get("additionalProperties").is_some() => "map[string]string",
        (other, _) => other,
    };
    format!("json: cannot unmarshal {actual} into Go struct field {place} of type {wanted}")
}

/// Checks a text with a format. Times are written as Go writes them.
fn decode_text(text: &mut String, format: Option<&str>, place: &str) -> Result<(), String> {
    match format {
        Some("byte") => {
            let decoded = STANDARD.decode(&*text);
            decoded
                .map(drop)
                .map_err(|_| "illegal base64 data in field ".to_owned() + place)
        }
        Some(format @ ("date-time" | MICRO_TIME)) => {
            let wrong = || format!("parsing time {text:?} in field {place}: not RFC 3339");
            let time = text.parse::<jiff::Timestamp>().map_err(|_| wrong())?;
            // Go's layouts: whole seconds, without the fraction; or exactly six digits.
            let micro = format == MICRO_TIME;
            if micro && !text.split_once('.').is_some_and(|(_, rest)| has_six_digits(rest)) {
                return Err(wrong());
            }
            let layout = if micro {
                "%Y-%m-%dT%H:%M:%S.%6fZ"
            } else {
                "%Y-%m-%dT%H:%M:%SZ"
            };
            *text = time.strftime(layout).to_string();
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether the text after a second's point begins with exactly six digits.
fn has_six_digits(text: &str) -> bool {
    text.bytes().take_while(u8::is_ascii_digit).count() == 6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["ref"], "properties": {
            "name": {"type": "string", "maxLength": 3, "pattern": "^[a-z]*$"},
            "prune": {"type": "boolean", "default": true},
            "note": {"type": "string", "nullable": true},
            "policy": {"type": "string", "enum": ["Orphan", "Delete"]},
            "ref": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "minLength": 1}, "kind": {"type": "string", "default": "Git"},
            }},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "counts": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "properties": {"type": {"type": "string"}}}},
        }})
    }

    fn check(input: Value, expected: &[&str]) {
        let (mut value, mut errors) = (input, Vec::new());
        prune(&mut value, &schema(), "", &mut Vec::new());
        drop_nulls(&mut value, &schema());
        default(&mut value, &schema());
        validate(&value, &schema(), "spec", &mut errors);
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            expected,
            "{value}"
        );
    }

    #[test]
    fn validation_reports_every_field_in_kubernetes_words() {
        check(json!({"ref": {"name": "a"}}), &[]);
        check(json!({}), &["spec.ref: Required value"]);
        check(json!({"ref": {}}), &["spec.ref.name: Required value"]);
        check(
            json!({"ref": {"name": ""}}),
            &["spec.ref.name: Invalid value: \"\": spec.ref.name in body should be at least 1 chars long"],
        );
        check(
            json!({"ref": {"name": "a"}, "name": "abcd", "prune": "yes", "policy": "Foo"}),
            &[
                "spec.name: Too long: may not be more than 3 bytes",
                "spec.policy: Unsupported value: \"Foo\": supported values: \"Orphan\", \"Delete\"",
                "spec.prune: Invalid value: \"string\": spec.prune in body must be of type boolean: \"string\"",
            ],
        );
        check(
            json!({"ref": {"name": "a"}, "counts": [], "conditions": [{"type": "A"}, {"type": "A"}]}),
            &[
                "spec.conditions[1]: Duplicate value: {\"type\":\"A\"}",
                "spec.counts: Invalid value: 0: spec.counts in body should have at least 1 items",
            ],
        );
        check(
            json!({"ref": {"name": "a"}, "counts": [-1]}),
            &["spec.counts[0]: Invalid value: -1: spec.counts[0] in body should be greater than or equal to 0"],
        );
    }

    #[test]
    fn unknown_fields_are_pruned_and_named() {
        let (mut value, mut unknown) = (
            json!({"bogus": 1, "ref": {"name": "a", "zz": {}}, "labels": {"any": "x"}}),
            Vec::new(),
        );
        prune(&mut value, &schema(), "spec", &mut unknown);
        assert_eq!(value, json!({"ref": {"name": "a"}, "labels": {"any": "x"}}));
        assert_eq!(unknown, ["spec.bogus", "spec.ref.zz"]);
    }

    #[test]
    fn defaults_fill_absent_fields_and_nulls() {
        let mut value = json!({"prune": null, "note": null, "policy": null, "ref": {"name": "a"}});
        drop_nulls(&mut value, &schema());
        default(&mut value, &schema());
        assert_eq!(
            value,
            json!({"prune": true, "note": null, "ref": {"name": "a", "kind": "Git"}})
        );
    }

    #[test]
    fn built_in_kinds_are_decoded_like_go_structs() {
        let mut value = json!({"name": null, "counts": [1.0], "ref": {"name": "a"}});
        assert_eq!(decode(&mut value, &schema(), "Kind"), Ok(()));
        assert_eq!(value, json!({"counts": [1], "ref": {"name": "a"}}));
        for (format, text, expected) in [
            ("date-time", "2026-01-01T02:00:00.9+02:00", Some("2026-01-01T00:00:00Z")),
            ("date-time", "today", None),
            (
                MICRO_TIME,
                "2026-01-01T00:00:00.123456Z",
                Some("2026-01-01T00:00:00.123456Z"),
            ),
            (MICRO_TIME, "2026-01-01T00:00:00Z", None),
            (MICRO_TIME, "2026-01-01T00:00:00.1234567Z", None),
        ] {
            let mut time = json!(text);
            let read = decode(&mut time, &json!({"type": "string", "format": format}), "Kind.time");
            assert_eq!(read.ok().map(|()| time), expected.map(Value::from), "{format} {text}");
        }
        let error = decode(&mut json!({"prune": 5}), &schema(), "Kind");
        assert_eq!(
            error,
            Err("json: cannot unmarshal number into Go struct field Kind.prune of type bool".into())
        );
    }
}
