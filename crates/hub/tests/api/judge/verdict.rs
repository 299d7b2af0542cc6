//! What is compared of an answer: all but what is each server's own.

use farwater_api::AGENT_FINALIZER;
use farwater_hub::resources::AUTHORS;
use serde_json::{Map, Value, json};

use super::court::{Answer, Equal, Step};

fn normalize(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                // Who changed, suspended or pinned a service stands among the deliberate differences.
                if let Some(status) = value.as_object_mut().filter(|_| key == "status") {
                    status.retain(|field, _| !AUTHORS.contains(&field.as_str()));
                }
                let same_when_empty = matches!(key.as_str(), "continue" | "format");
                // An apply that empties a status leaves null there, and an empty one in the hub.
                let emptied = key == "status" && (value.is_null() || value.as_object().is_some_and(Map::is_empty));
                // And labels, in the answer of an apply that lets a deleted object of ours go: nobody reads that again.
                let nil = matches!(key.as_str(), "labels" | "annotations") && value.is_null();
                key != "remainingItemCount"
                    && !emptied
                    && !nil
                    && !(same_when_empty && (value == "" || value.is_null()))
            });
            for (key, value) in map.iter_mut() {
                match key.as_str() {
                    "uid"
                    | "resourceVersion"
                    | "creationTimestamp"
                    | "deletionTimestamp"
                    | "lastTransitionTime"
                    | "continue"
                    | "expirationTimestamp"
                    | "token"
                        if value.is_string() =>
                    {
                        *value = json!("*");
                    }
                    "message" if value.is_string() => *value = without_position(value.as_str().unwrap()).into(),
                    "description" => *value = json!(""),
                    // A nil slice of Go's.
                    "items" if value.is_null() => *value = json!([]),
                    "managedFields" if value.is_array() => normalize_managers(value),
                    "cells" => value.as_array_mut().unwrap().iter_mut().for_each(normalize_cell),
                    _ => normalize(value),
                }
            }
            // Go's order of causes is that of a map.
            if let Some(causes) = map.get_mut("causes").and_then(Value::as_array_mut) {
                causes.sort_by_key(|c| (c["field"].to_string(), c["message"].to_string()));
                causes.dedup();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalize),
        _ => {}
    }
}

/// Of a version that is ahead: how far each server is is its own.
fn without_position(message: &str) -> String {
    match message.split_once(", current: ") {
        Some((ahead, position)) if position.parse::<u64>().is_ok() => format!("{ahead}, current: *"),
        _ => message.to_owned(),
    }
}

/// Entries stand in the order of their times. Whether two writes fall into one second is luck, so the order is looked at on
/// each side for itself.
fn normalize_managers(entries: &mut Value) {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let place =
        |entry: &Value| ["operation", "time", "manager", "apiVersion", "subresource"].map(|field| text(entry, field));
    let Some(list) = entries.as_array_mut() else { return };
    let ordered = list.is_sorted_by_key(place);
    for entry in list.iter_mut() {
        if entry["time"].is_string() {
            entry["time"] = json!("*");
        }
        // Each server's own controllers have its own name.
        if entry["manager"] == "kube-controller-manager" {
            entry["manager"] = json!("farwater-hub");
        }
        normalize_owners(&mut entry["fieldsV1"]);
        forget_authors(&mut entry["fieldsV1"]);
    }
    list.retain(|entry| entry["fieldsV1"].as_object().is_none_or(|fields| !fields.is_empty()));
    list.sort_by_key(place);
    if !ordered {
        list.push(json!("the entries are not in order"));
    }
}

/// See [`AUTHORS`]: an object that nobody managed so far is managed with them.
fn forget_authors(fields: &mut Value) {
    let Some(Value::Object(status)) = fields.get_mut("f:status") else {
        return;
    };
    let before = status.len();
    status.retain(|field, _| !AUTHORS.iter().any(|author| field.strip_prefix("f:") == Some(author)));
    if status.len() < before && status.keys().all(|field| field == ".") {
        fields.as_object_mut().unwrap().remove("f:status");
    }
}

/// Owner references are told apart by uid.
fn normalize_owners(fields: &mut Value) {
    let Some(Value::Object(owners)) = fields.pointer_mut("/f:metadata/f:ownerReferences") else {
        return;
    };
    let renamed = std::mem::take(owners)
        .into_iter()
        .enumerate()
        .map(|(n, (name, value))| {
            let name = if name.starts_with("k:") {
                format!("owner {n}")
            } else {
                name
            };
            (name, value)
        });
    *owners = renamed.collect();
}

/// Without what is each server's own.
pub fn normalized(mut value: Value) -> Value {
    normalize(&mut value);
    value
}

/// Ages.
fn normalize_cell(cell: &mut Value) {
    let age = |text: &str| {
        text.len() < 8 && text.ends_with(['s', 'm', 'h']) && text.starts_with(|c: char| c.is_ascii_digit())
    };
    if cell.as_str().is_some_and(age) {
        *cell = json!("*");
    }
}

/// Both messages where Go's is a list in no certain order.
fn sort_message(status: &mut Value) {
    if status["details"]["causes"]
        .as_array()
        .is_some_and(|causes| causes.len() > 1)
    {
        status["message"] = Value::Null;
    }
}

fn drop_text(value: &mut Value) {
    value["message"] = Value::Null;
    for cause in value["details"]["causes"].as_array_mut().into_iter().flatten() {
        cause["message"] = Value::Null;
    }
}

/// Of an object that the hub's controllers write to, what clients determine: no status, no finalizer of the hub, and no
/// entry of its controllers among the managers. All else, clients' entries and the generation included, must be equal. Of
/// the real server's objects nothing is taken: no client here writes a status or has the hub's names.
fn keep_clients_part(object: &mut Value) {
    let Some(map) = object.as_object_mut() else { return };
    map.remove("status");
    let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(managers) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
        managers.retain(|entry| entry["manager"] != "farwater-hub");
    }
    if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        finalizers.retain(|finalizer| finalizer != AGENT_FINALIZER);
    }
    metadata.retain(|field, value| !["finalizers", "managedFields"].contains(&field.as_str()) || *value != json!([]));
}

const ADVICE: [&str; 2] = ["the grant has no effect", "no cluster has these labels"];

/// What is compared of an answer.
pub fn verdict(answer: Answer, step: &Step) -> (u16, Value, Vec<String>, Option<String>) {
    let Answer {
        code,
        mut value,
        mut warnings,
        retry_after,
    } = answer;
    // The hub advises on grants; the real server doesn't know what they are.
    warnings.retain(|warning| !ADVICE.iter().any(|advice| warning.contains(advice)));
    // Of unknown fields: in the order of the document, or in that of a map.
    warnings.sort();
    if step.clients_part && value["kind"] != "Status" {
        keep_clients_part(&mut value);
    }
    normalize(&mut value);
    sort_message(&mut value);
    match step.equal {
        Equal::All => {}
        Equal::ButText => drop_text(&mut value),
        Equal::Reason => value = json!([value["reason"], value["kind"]]),
    }
    (code, value, warnings, retry_after)
}
