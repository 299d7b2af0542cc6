//! An object as a whole, for what can't be merged: our manifest, and around it what others own.
//!
//! Server-side apply keeps what nobody states any more: defaults of a branch that is left (`strategy.rollingUpdate` beside `type: Recreate`),
//! and elements of lists whose key somebody changed (`ports`). Where that can't be valid together, an object is written without them.

use farwater_api::FIELD_MANAGER;
use serde_json::{Map, Value};

/// An object to be written as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Around {
    pub object: Value,
    /// Lists and fields whose contents by others are left out.
    pub removed: Vec<String>,
}

/// `manifest` with what other managers own of `live`, at its version. `in_the_way`: fields as the API server names them in causes
/// (`spec.ports[1].name`); what others own of such a list, or field, is left out. None: the live object doesn't say who owns what.
pub fn around(manifest: &Value, live: &Value, in_the_way: &[String]) -> Option<Around> {
    let entries = live["metadata"]["managedFields"].as_array().filter(|entries| !entries.is_empty())?;
    let in_the_way: Vec<String> = in_the_way.iter().map(|field| place_of(field)).collect();
    let is_of_status = |entry: &&Value| entry["subresource"] == "status";
    let is_our_apply = |entry: &&Value| is_ours(entry) && entry["operation"] == "Apply";
    let mut around = Around { object: manifest.clone(), removed: Vec::new() };
    let applied = entries.iter().find(is_our_apply).map(|entry| entry["fieldsV1"].clone()).unwrap_or_default();
    for entry in entries.iter().filter(|entry| !is_of_status(entry) && !is_our_apply(entry)) {
        let fields = match is_ours(entry) {
            true => without(&entry["fieldsV1"], &applied),
            false => entry["fieldsV1"].clone(),
        };
        add_map(&mut around.object, live, &fields, "", &in_the_way, &mut around.removed);
    }
    around.removed.sort();
    around.removed.dedup();
    around.object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    if let Some(metadata) = around.object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Some(around)
}

/// Whether an entry of `managedFields` is of ours, by applies or otherwise.
fn is_ours(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER && entry["subresource"].is_null()
}

/// A field set (FieldsV1) without what another one has.
pub fn without(fields: &Value, other: &Value) -> Value {
    let Some(map) = fields.as_object() else { return fields.clone() };
    let mut left = Map::new();
    for (key, sub) in map.iter().filter(|(key, _)| *key != ".") {
        match other.get(key) {
            None => drop(left.insert(key.clone(), sub.clone())),
            Some(_) if is_leaf(sub) => {}
            Some(found) => {
                let rest = without(sub, found);
                if !is_leaf(&rest) {
                    left.insert(key.clone(), rest);
                }
            }
        }
    }
    left.into()
}

fn is_leaf(fields: &Value) -> bool {
    fields.as_object().is_none_or(|map| map.keys().all(|key| key == "."))
}

/// The innermost list of a field that stands in the way, or the field: `spec.containers[*].ports` of `spec.containers[0].ports[1].name`.
fn place_of(field: &str) -> String {
    let list = field.rsplit_once('[').map_or(field, |(list, _)| list);
    let mut place = String::new();
    for part in list.split_inclusive(['[', ']']) {
        match part.strip_suffix(']') {
            Some(_) => place.push_str("*]"),
            None => place.push_str(part),
        }
    }
    place
}

fn add_map(
    into: &mut Value,
    live: &Value,
    fields: &Value,
    path: &str,
    in_the_way: &[String],
    removed: &mut Vec<String>,
) {
    for (key, sub) in fields.as_object().into_iter().flatten() {
        let Some(name) = key.strip_prefix("f:") else { continue };
        let Some(value) = live.get(name) else { continue };
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        if path == "status" {
            continue;
        }
        if in_the_way.contains(&path) {
            removed.push(path);
            continue;
        }
        let Some(map) = into.as_object_mut() else { return };
        match value {
            _ if is_leaf(sub) => {
                map.entry(name).or_insert_with(|| value.clone());
            }
            Value::Array(items) => {
                let slot = map.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                add_list(slot, items, sub, &path, in_the_way, removed);
                if *slot == Value::Array(Vec::new()) {
                    map.remove(name);
                }
            }
            value => {
                let slot = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
                add_map(slot, value, sub, &path, in_the_way, removed);
                if *slot == Value::Object(Map::new()) && sub.get(".").is_none() {
                    map.remove(name);
                }
            }
        }
    }
}

fn add_list(
    into: &mut Value,
    live: &[Value],
    fields: &Value,
    path: &str,
    in_the_way: &[String],
    removed: &mut Vec<String>,
) {
    let Some(list) = into.as_array_mut() else { return };
    for (key, sub) in fields.as_object().into_iter().flatten() {
        if let Some(value) = key.strip_prefix("v:").and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            if live.contains(&value) && !list.contains(&value) {
                list.push(value);
            }
            continue;
        }
        let keys = key.strip_prefix("k:").and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        let Some(keys) = keys else { continue };
        let Some(element) = live.iter().find(|item| keys.iter().all(|(name, value)| item.get(name) == Some(value)))
        else {
            continue;
        };
        // A manifest may leave out a key that has a default.
        let is_same = |item: &&mut Value| {
            let mut known = keys.iter().filter_map(|(name, value)| item.get(name).map(|own| own == value)).peekable();
            known.peek().is_some() && known.all(|same| same)
        };
        match list.iter_mut().find(is_same) {
            Some(item) => add_map(item, element, sub, &format!("{path}[*]"), in_the_way, removed),
            None => {
                let mut item = Value::Object(keys);
                add_map(&mut item, element, sub, &format!("{path}[*]"), in_the_way, removed);
                list.push(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "fieldsV1": fields})
    }

    fn check(
        manifest: Value,
        mut live: Value,
        entries: &[Value],
        in_the_way: &[&str],
        expected: Value,
        removed: &[&str],
    ) {
        live["metadata"] = json!({"resourceVersion": "7", "managedFields": entries});
        let in_the_way: Vec<String> = in_the_way.iter().map(|field| (*field).to_owned()).collect();
        let mut around = around(&manifest, &live, &in_the_way).unwrap();
        around.object.as_object_mut().unwrap().remove("metadata");
        assert_eq!(
            (around.object, around.removed),
            (expected, removed.iter().map(|field| (*field).to_owned()).collect())
        );
    }

    #[test]
    fn defaults_of_a_branch_that_is_left_go_and_what_others_own_stays() {
        let live = json!({"spec": {"replicas": 5, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}}, "status": {"x": 1}});
        let ours = entry(FIELD_MANAGER, "Apply", json!({"f:spec": {"f:selector": {}}}));
        let mut scaler = entry("hpa", "Update", json!({"f:spec": {"f:replicas": {}}}));
        scaler["subresource"] = "scale".into();
        let status = entry("kcm", "Update", json!({"f:status": {"f:x": {}}}));
        let manifest = json!({"spec": {"strategy": {"type": "Recreate"}}});
        let expected = json!({"spec": {"strategy": {"type": "Recreate"}, "replicas": 5}});
        check(manifest.clone(), live.clone(), &[ours.clone(), scaler, status], &[], expected, &[]);
        // Ours by a replace, and what an admission has added to it.
        let twice = entry(FIELD_MANAGER, "Update", json!({"f:spec": {"f:selector": {}, "f:replicas": {}}}));
        let expected = json!({"spec": {"strategy": {"type": "Recreate"}, "replicas": 5}});
        check(manifest, live, &[ours, twice], &[], expected, &[]);
    }

    #[test]
    fn elements_of_others_stay_unless_they_are_in_the_way() {
        let manifest = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
        let live = json!({"spec": {"ports": [{"name": "http", "port": 83, "protocol": "TCP"}]}});
        let port = json!({"k:{\"port\":83,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}}});
        let patch = entry("kubectl-patch", "Update", json!({"f:spec": {"f:ports": port}}));
        let both =
            json!({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "http", "port": 83, "protocol": "TCP"}]}});
        check(manifest.clone(), live.clone(), std::slice::from_ref(&patch), &[], both, &[]);
        check(manifest.clone(), live, &[patch], &["spec.ports[1].name"], manifest, &["spec.ports"]);
        // An element that the manifest states too gets what others own of it.
        let manifest = json!({"env": [{"name": "A", "value": "1"}], "finalizers": ["a"]});
        let live = json!({"env": [{"name": "A", "value": "2", "x": 1}], "finalizers": ["a", "b", "c"]});
        let fields =
            json!({"f:env": {"k:{\"name\":\"A\"}": {"f:value": {}, "f:x": {}}}, "f:finalizers": {"v:\"b\"": {}}});
        let expected = json!({"env": [{"name": "A", "value": "1", "x": 1}], "finalizers": ["a", "b"]});
        check(manifest, live, &[entry("other", "Update", fields)], &[], expected, &[]);
    }

    #[test]
    fn a_list_in_a_list_is_told_from_its_elements() {
        assert_eq!(place_of("spec.strategy.rollingUpdate"), "spec.strategy.rollingUpdate");
        assert_eq!(place_of("spec.ports[1].name"), "spec.ports");
        assert_eq!(
            place_of("spec.template.spec.containers[0].ports[12].name"),
            "spec.template.spec.containers[*].ports"
        );
    }

    #[test]
    fn an_object_that_names_no_owners_is_not_written_as_a_whole() {
        assert_eq!(around(&json!({}), &json!({"metadata": {}}), &[]), None);
    }

    #[test]
    fn field_sets_are_subtracted() {
        let fields = json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}, "f:x": {}});
        assert_eq!(without(&fields, &json!({"f:data": {"f:a": {}}})), json!({"f:data": {"f:b": {}}, "f:x": {}}));
        assert_eq!(without(&fields, &fields), json!({}));
    }
}
