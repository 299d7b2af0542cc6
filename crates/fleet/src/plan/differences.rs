//! Fields: which are ignored, who has them, and where two objects differ.
//!
//! An ignored field of an object that exists is left to whoever has it: what is sent doesn't hold it. Where nobody else has it, what
//! is sent holds its live value, because a field that its last manager leaves out is removed. So does Flux (`spec.ignore`, «Strip» and «Adopt»).

use farwater_api::FIELD_MANAGER;
use serde_json::{Map, Value};

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
        self.0.iter().try_fold(object, |value, segment| value.get(segment.as_str()))
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
        pointer.in_fields().remove(&mut rest);
    }
    rest
}

/// What is sent of a manifest while `live` exists: ignored fields are left as they are. It is bound to the live object's version,
/// so that what others write meanwhile isn't lost.
pub fn leave_ignored(manifest: &mut Value, live: &Value, pointers: &[Pointer], managers: &[String]) {
    let entries: Vec<&Value> = live["metadata"]["managedFields"].as_array().into_iter().flatten().collect();
    let others: Vec<&Value> = entries.iter().copied().filter(|entry| entry["manager"] != FIELD_MANAGER).collect();
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
    let theirs = others.iter().filter(|entry| managers.iter().any(|manager| entry["manager"] == **manager));
    for entry in theirs {
        remove_owned(manifest, &entry["fieldsV1"]);
    }
    manifest["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
}

/// Takes what a set in the format FieldsV1 names out of an object. Elements of a list are found by their keys and stay; of a set of
/// values nothing is taken.
fn remove_owned(object: &mut Value, fields: &Value) {
    for (key, below) in fields.as_object().into_iter().flatten() {
        let below_it = below.as_object().filter(|below| !below.is_empty());
        if let Some(name) = key.strip_prefix("f:") {
            match below_it {
                // The whole value.
                None => drop(object.as_object_mut().and_then(|map| map.remove(name))),
                // A map or list as such, and nothing of what is in it.
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
            let Ok(Value::Object(keys)) = serde_json::from_str::<Value>(keys) else { continue };
            let found = object.as_array_mut().into_iter().flatten();
            for element in found.filter(|element| keys.iter().all(|(name, value)| element.get(name) == Some(value))) {
                let keyed: Map<String, Value> = keys.clone();
                remove_owned(element, below);
                // What tells it from others must stay.
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

/// Where an object would differ after an apply, without any values; what the API server itself keeps and our own marks are left out.
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
        for field in ["managedFields", "resourceVersion", "generation", "creationTimestamp", "uid"] {
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

#[cfg(test)]
#[path = "differences_tests.rs"]
mod tests;
