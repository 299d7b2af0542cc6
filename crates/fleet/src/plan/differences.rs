//! Fields: which are ignored, who owns them, and where two objects differ.
//!
//! An ignored field of an existing object is left to its current manager: the sent manifest omits it. If no other
//! manager has it, the sent manifest holds its live value, because a field that its last manager omits is removed. Flux
//! does the same (`spec.ignore`, "Strip" and "Adopt").

use farwater_api::FIELD_MANAGER;
use serde_json::{Map, Value};

use super::fields::key_of;

/// A JSON pointer (RFC 6901) with at least one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

impl Pointer {
    pub fn parse(text: &str) -> Option<Self> {
        let segments = text.strip_prefix('/')?.split('/').map(|segment| {
            let rest = segment.replace("~0", "").replace("~1", "");
            (!segment.is_empty() && !rest.contains('~')).then(|| segment.replace("~1", "/").replace("~0", "~"))
        });
        segments.collect::<Option<Vec<_>>>().map(Self)
    }

    /// Whether it names this field, or one that holds it.
    pub fn covers(&self, field: &[&str]) -> bool {
        self.0.len() <= field.len() && self.0.iter().zip(field).all(|(a, b)| a == b)
    }

    pub fn leads_into_list(&self, object: &Value) -> bool {
        let mut value = object;
        for segment in &self.0 {
            if value.is_array() {
                return true;
            }
            value = &value[segment.as_str()];
        }
        false
    }

    fn read<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.0
            .iter()
            .try_fold(object, |value, segment| value.get(segment.as_str()))
    }

    fn remove(&self, object: &mut Value) -> Option<Value> {
        let (last, holders) = self.0.split_last()?;
        let mut value = object;
        for segment in holders {
            value = value.get_mut(segment.as_str())?;
        }
        value.as_object_mut()?.remove(last)
    }

    fn write(&self, object: &mut Value, new: Value) {
        let mut value = object;
        for segment in &self.0 {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            value = &mut value[segment.as_str()];
        }
        *value = new;
    }

    /// The same place in the format FieldsV1.
    fn in_fields(&self) -> Self {
        Self(self.0.iter().map(|segment| format!("f:{segment}")).collect())
    }
}

/// Takes the fields that `pointers` name out of a set in the format FieldsV1.
pub fn without_fields(fields: &Value, pointers: &[Pointer]) -> Value {
    let mut rest = fields.clone();
    for pointer in pointers {
        take_out(&mut rest, &pointer.in_fields().0);
    }
    rest
}

/// Removes the path, and parents that only exist for it: when a map loses its last field, its entry goes too. Returns
/// whether the path was there.
fn take_out(fields: &mut Value, path: &[String]) -> bool {
    let (Some((name, below)), Some(map)) = (path.split_first(), fields.as_object_mut()) else {
        return false;
    };
    if below.is_empty() {
        return map.remove(name).is_some();
    }
    let Some(inner) = map.get_mut(name) else { return false };
    let is_taken = take_out(inner, below);
    if is_taken && inner.as_object().is_some_and(Map::is_empty) {
        map.remove(name);
    }
    is_taken
}

/// Prepares a manifest to be sent while `live` exists: ignored fields stay as they are. It is bound to the
/// resourceVersion of `live`, so that concurrent writes of others aren't lost.
pub fn leave_ignored(manifest: &mut Value, live: &Value, pointers: &[Pointer], managers: &[String]) {
    let entries: Vec<&Value> = live["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let others: Vec<&Value> = entries
        .iter()
        .copied()
        .filter(|entry| entry["manager"] != FIELD_MANAGER)
        .collect();
    for pointer in pointers {
        let place = pointer.in_fields();
        pointer.remove(manifest);
        if others.iter().any(|entry| place.read(&entry["fieldsV1"]).is_some()) {
            continue;
        }
        if let Some(value) = pointer.read(live) {
            pointer.write(manifest, value.clone());
        }
    }
    let theirs = others
        .iter()
        .filter(|entry| managers.iter().any(|manager| entry["manager"] == **manager));
    for entry in theirs {
        remove_owned(manifest, &entry["fieldsV1"]);
    }
    manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
}

/// Removes from an object what a set in the format FieldsV1 names. Elements of a list are found by their keys and stay;
/// sets of values are not changed.
fn remove_owned(object: &mut Value, fields: &Value) {
    for (key, below) in fields.as_object().into_iter().flatten() {
        let below_it = below.as_object().filter(|below| !below.is_empty());
        if let Some(name) = key.strip_prefix("f:") {
            match below_it {
                // The whole value.
                None => drop(object.as_object_mut().and_then(|map| map.remove(name))),
                // The entry is for the map or list itself, not for its contents.
                Some(below) if below.keys().all(|key| key == ".") => {
                    let is_empty = object.get(name).is_some_and(|value| !is_filled(value));
                    if let Some(map) = object.as_object_mut().filter(|_| is_empty) {
                        map.remove(name);
                    }
                }
                Some(_) => {
                    if let Some(value) = object.get_mut(name) {
                        remove_owned(value, below);
                    }
                }
            }
        } else if let Some(keys) = key.strip_prefix("k:") {
            let Ok(Value::Object(keys)) = serde_json::from_str::<Value>(keys) else {
                continue;
            };
            let found = object.as_array_mut().into_iter().flatten();
            for element in found.filter(|element| keys.iter().all(|(name, value)| element.get(name) == Some(value))) {
                let keyed: Map<String, Value> = keys.clone();
                remove_owned(element, below);
                // The keys that identify the element must stay.
                if let Some(element) = element.as_object_mut() {
                    element.extend(keyed);
                }
            }
        }
    }
}

fn is_filled(value: &Value) -> bool {
    value.as_object().is_some_and(|map| !map.is_empty()) || value.as_array().is_some_and(|list| !list.is_empty())
}

/// Most fields that are named.
const NAMED: usize = 8;

/// Paths at which an object would differ after an apply, without values. Fields that the API server maintains and our
/// own marks are left out.
pub fn differences(live: &Value, applied: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(&without_marks(live), &without_marks(applied), String::new(), &mut found);
    found
}

fn without_marks(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in [
            "managedFields",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "uid",
        ] {
            metadata.remove(field);
        }
        for (field, mark) in [
            ("labels", farwater_api::SERVICE_LABEL),
            ("annotations", farwater_api::OWNER_ANNOTATION),
            ("annotations", "kubectl.kubernetes.io/last-applied-configuration"),
        ] {
            if let Some(map) = metadata.get_mut(field).and_then(Value::as_object_mut) {
                map.remove(mark);
                if map.is_empty() {
                    metadata.remove(field);
                }
            }
        }
    }
    object
}

fn compare(a: &Value, b: &Value, place: String, found: &mut Vec<String>) {
    if found.len() >= NAMED || a == b {
        return;
    }
    match (a, b) {
        (Value::Object(one), Value::Object(other)) => {
            let more = other.keys().filter(|key| !one.contains_key(*key));
            for key in one.keys().chain(more) {
                compare(&a[key.as_str()], &b[key.as_str()], format!("{place}.{key}"), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                compare(one, other, format!("{place}[{index}]"), found);
            }
        }
        _ => found.push(place),
    }
}

/// Most fields that are named as overruled. One more is recorded to show that there are more.
const NAMED_OVERRULED: usize = 3;
/// Longest name of such a field in bytes: a map's key may be longer than a message, and the inventory stores these
/// names.
const MAX_PLACE: usize = 128;

/// The fields of a manifest that have another value in the answer to its apply, e.g. because a webhook changed them.
/// Additional fields in the answer are no difference. Nor is a value in another notation, or one that is left out
/// because it is empty.
pub fn overruled(sent: &Value, answer: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (name, stated) in sent
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "status")
    {
        seek(stated, answer.get(name), &format!(".{name}"), &mut found);
    }
    found
}

/// The message for such fields.
pub fn explain_overruled(fields: &[String]) -> String {
    let named = fields
        .iter()
        .take(NAMED_OVERRULED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let more = if fields.len() > NAMED_OVERRULED {
        " and more"
    } else {
        ""
    };
    format!(
        "the API server keeps another value of {named}{more}: a mutating webhook or policy there overrules the source"
    )
}

fn seek(stated: &Value, kept: Option<&Value>, place: &str, found: &mut Vec<String>) {
    // `resourceVersion`: a manifest that is bound to a version gets a newer one.
    if found.len() > NAMED_OVERRULED || kept == Some(stated) || place == ".metadata.resourceVersion" {
        return;
    }
    match (stated, kept) {
        (Value::Object(members), Some(Value::Object(_))) => {
            for (name, stated) in members {
                let kept = kept.and_then(|kept| kept.get(name));
                // Most values are as sent and need no path.
                if kept != Some(stated) {
                    seek(stated, kept, &format!("{place}.{name}"), found);
                }
            }
        }
        (Value::Array(stated), Some(Value::Array(kept))) => seek_elements(stated, kept, place, found),
        (stated, kept) if kept.is_none_or(Value::is_null) && says_nothing(stated) => {}
        // The API server fills in values that are left open.
        (Value::Null, _) => {}
        (Value::String(text), _) if text.is_empty() => {}
        (stated, Some(kept)) if is_same(stated, kept) => {}
        _ => found.push(crate::conditions::cut(place, MAX_PLACE)),
    }
}

fn seek_elements(stated: &[Value], kept: &[Value], place: &str, found: &mut Vec<String>) {
    if let Some(key) = key_of(stated, kept) {
        for element in stated {
            let value = &element[key];
            let counterpart = kept.iter().find(|other| other[key] == *value);
            seek(element, counterpart, &format!("{place}[{key}={value}]"), found);
        }
        return;
    }
    if stated.len() == kept.len() && stated.iter().all(Value::is_object) {
        for (index, (stated, kept)) in stated.iter().zip(kept).enumerate() {
            seek(stated, Some(kept), &format!("{place}[{index}]"), found);
        }
        return;
    }
    // Other managers may have added elements.
    let is_kept = |element: &Value| {
        kept.iter().any(|other| {
            let mut lacking = Vec::new();
            seek(element, Some(other), "", &mut lacking);
            lacking.is_empty()
        })
    };
    if !stated.iter().all(is_kept) {
        found.push(crate::conditions::cut(place, MAX_PLACE));
    }
}

/// Whether API servers omit this value from their answers.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(says_nothing),
    }
}

/// Whether two values are the same in another notation: quantities, or base64 with line breaks.
fn is_same(stated: &Value, kept: &Value) -> bool {
    if let (Some(stated), Some(kept)) = (read_quantity(stated), read_quantity(kept)) {
        return (stated - kept).abs() <= 1e-12 * stated.abs().max(kept.abs());
    }
    match (stated, kept) {
        (Value::String(stated), Value::String(kept)) => stated.replace(['\n', '\r'], "") == *kept,
        _ => false,
    }
}

/// Parses a number, or a quantity as Kubernetes writes it: `1500m`, `1.5`, `2Gi`, `1e3`.
fn read_quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text,
        _ => return None,
    };

    let end = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (base, power) = match unit {
        "n" => (10.0, -9),
        "u" => (10.0, -6),
        "m" => (10.0, -3),
        "" => (10.0, 0),
        "k" => (10.0, 3),
        "M" => (10.0, 6),
        "G" => (10.0, 9),
        "T" => (10.0, 12),
        "P" => (10.0, 15),
        "E" => (10.0, 18),
        "Ki" => (1024.0, 1),
        "Mi" => (1024.0, 2),
        "Gi" => (1024.0, 3),
        "Ti" => (1024.0, 4),
        "Pi" => (1024.0, 5),
        "Ei" => (1024.0, 6),
        exponent => (10.0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(number.parse::<f64>().ok()? * f64::powi(base, power))
}

#[cfg(test)]
#[path = "differences_tests.rs"]
mod tests;
