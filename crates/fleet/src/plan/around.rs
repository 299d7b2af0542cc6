//! A whole object, for cases where the merge is not valid: the live object with our manifest in it, without the
//! conflicting fields.
//!
//! Server-side apply keeps fields that no manager states any more: defaults of a branch that was left
//! (`strategy.rollingUpdate` with `type: Recreate`), and elements of lists whose key was changed (`ports`). If the
//! result is not valid, the API server names the field, and [`clear`] removes it, unless the manifest states it.

use farwater_api::FIELD_MANAGER;
use serde_json::{Map, Value};

/// The live object after an apply of the manifest: fields that we applied and the manifest lacks are removed, fields of
/// the manifest are set, and all others stay. None: the live object doesn't say which manager owns which field.
pub fn merge(manifest: &Value, live: &Value) -> Option<Value> {
    let entries = live["metadata"]["managedFields"]
        .as_array()
        .filter(|entries| !entries.is_empty())?;
    let is_our_apply = |entry: &&Value| {
        entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
    };
    let ours = entries
        .iter()
        .find(is_our_apply)
        .map_or(&Value::Null, |entry| &entry["fieldsV1"]);
    let others: Vec<&Value> = entries
        .iter()
        .filter(|entry| !is_our_apply(entry))
        .map(|entry| &entry["fieldsV1"])
        .collect();
    let mut object = live.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    take_out(&mut object, manifest, ours, &others);
    let all: Vec<&Value> = others.into_iter().chain([ours]).collect();
    overlay(&mut object, manifest, &all);
    object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    Some(object)
}

/// A field set (FieldsV1) minus another one.
pub fn without(fields: &Value, other: &Value) -> Value {
    let Some(map) = fields.as_object() else {
        return fields.clone();
    };
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

/// The entries of field sets under a name.
fn below<'a>(sets: &[&'a Value], key: &str) -> Vec<&'a Value> {
    sets.iter().filter_map(|fields| fields.get(key)).collect()
}

/// Removes the fields that are in `fields`, but in no set of `others` and not in the manifest.
fn take_out(object: &mut Value, manifest: &Value, fields: &Value, others: &[&Value]) {
    for (key, sub) in fields.as_object().into_iter().flatten() {
        let others = below(others, key);
        if let (Some(name), Some(map)) = (key.strip_prefix("f:"), object.as_object_mut()) {
            match (map.get_mut(name), manifest.get(name)) {
                (None, _) => {}
                (Some(_), None) if others.is_empty() => drop(map.remove(name)),
                (Some(_), Some(_)) if is_leaf(sub) => {}
                (Some(value), stated) => take_out(value, stated.unwrap_or(&Value::Null), sub, &others),
            }
        } else if let (Some(keys), Some(list)) = (keys_of(key), object.as_array_mut()) {
            let stated = manifest
                .as_array()
                .into_iter()
                .flatten()
                .find(|item| has_keys(item, &keys));
            let Some(place) = list.iter().position(|item| has_keys(item, &keys)) else {
                continue;
            };
            match stated {
                None if others.is_empty() => drop(list.remove(place)),
                stated => take_out(&mut list[place], stated.unwrap_or(&Value::Null), sub, &others),
            }
        } else if let (Some(text), Some(list)) = (key.strip_prefix("v:"), object.as_array_mut()) {
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            let is_stated = manifest.as_array().is_some_and(|items| items.contains(&value));
            if !is_stated && others.is_empty() {
                list.retain(|item| *item != value);
            }
        }
    }
}

/// Merges the manifest into the object: maps by name, lists by the keys that field sets name, other values as a whole.
fn overlay(object: &mut Value, manifest: &Value, sets: &[&Value]) {
    match manifest {
        Value::Object(stated) if object.is_object() => {
            for (name, value) in stated {
                let sets = below(sets, &format!("f:{name}"));
                let is_atomic = !sets.is_empty() && sets.iter().all(|fields| is_leaf(fields)) && !value.is_array();
                match object.get_mut(name.as_str()) {
                    Some(held) if !is_atomic => overlay(held, value, &sets),
                    _ => object[name.as_str()] = value.clone(),
                }
            }
        }
        Value::Array(stated) if object.is_array() => {
            let keys: Vec<Map<String, Value>> = sets
                .iter()
                .flat_map(|fields| fields.as_object())
                .flatten()
                .filter_map(|(key, _)| keys_of(key))
                .collect();
            let is_set = sets
                .iter()
                .flat_map(|fields| fields.as_object())
                .flatten()
                .any(|(key, _)| key.starts_with("v:"));
            let held = object.as_array_mut().map(std::mem::take).unwrap_or_default();
            *object = match keys.first() {
                Some(first) => overlay_elements(held, stated, (first, sets)).into(),
                None if is_set => {
                    let rest = held.into_iter().filter(|item| !stated.contains(item));
                    stated.iter().cloned().chain(rest).collect()
                }
                None => stated.clone().into(),
            };
        }
        other => *object = other.clone(),
    }
}

/// The stated elements in their order, then the others. If an element is stated twice, the first is merged.
fn overlay_elements(
    mut held: Vec<Value>,
    stated: &[Value],
    (names, sets): (&Map<String, Value>, &[&Value]),
) -> Vec<Value> {
    let mut list = Vec::new();
    for element in stated {
        let keys: Map<String, Value> = names
            .keys()
            .map(|name| (name.clone(), key_value(element, name).unwrap_or_default()))
            .collect();
        match held.iter().position(|item| has_keys(item, &keys)) {
            Some(place) => {
                let mut item = held.remove(place);
                let all = sets.iter().filter_map(|fields| fields.as_object()).flatten();
                let of_item = all.filter(|(key, _)| keys_of(key).is_some_and(|of| of == keys));
                let sets: Vec<&Value> = of_item.map(|(_, sub)| sub).collect();
                overlay(&mut item, element, &sets);
                list.push(item);
            }
            None => list.push(element.clone()),
        }
    }
    list.extend(held);
    list
}

fn keys_of(key: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(key.strip_prefix("k:")?).ok()
}

/// Value of a list key. Of the keys of built-in lists only a port's protocol may be left out.
fn key_value(element: &Value, name: &str) -> Option<Value> {
    element
        .get(name)
        .cloned()
        .or_else(|| (name == "protocol").then(|| "TCP".into()))
}

fn has_keys(element: &Value, keys: &Map<String, Value>) -> bool {
    keys.iter()
        .all(|(name, value)| key_value(element, name).as_ref() == Some(value))
}

/// One step from an object to one of its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Name(String),
    Index(usize),
}

/// Parses `spec.ports[1].name`. Keys in brackets that are no numbers are names.
fn steps_of(field: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in field.split('.') {
        let mut pieces = part.split('[');
        steps.extend(
            pieces
                .next()
                .filter(|name| !name.is_empty())
                .map(|name| Step::Name(name.to_owned())),
        );
        steps.extend(pieces.map(|piece| {
            let piece = piece.trim_end_matches(']');
            piece.parse().map_or_else(|_| Step::Name(piece.to_owned()), Step::Index)
        }));
    }
    steps
}

/// Removes the field that the API server names as invalid, or the list element that holds it, unless the manifest
/// states it. If the manifest states the field, elements of its list with the same value are removed instead. Returns
/// the removed path. None: nothing can be removed.
///
/// `field` is a path in `object`, as in a status cause. Names, metadata and the object's top-level parts are never
/// removed.
pub fn clear(object: &mut Value, manifest: &Value, field: &str) -> Option<String> {
    let steps = steps_of(field);
    if steps.len() < 2 || matches!(&steps[0], Step::Name(name) if name != "spec") {
        return None;
    }

    let (mut at, mut stated) = (object, Some(manifest));
    let mut path = String::new();
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Name(name) => {
                path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                let below = stated.and_then(|stated| stated.get(name));
                if below.is_none() && n > 0 {
                    return at.as_object_mut()?.remove(name.as_str()).map(|_| path);
                }
                (at, stated) = (at.get_mut(name.as_str())?, below);
            }
            Step::Index(index) => {
                let list = at.as_array_mut()?;
                let of_manifest = stated.and_then(Value::as_array).map_or(0, Vec::len);
                path = format!("{path}[{index}]");
                // Stated elements come first in the merged list.
                if *index >= of_manifest {
                    return (*index < list.len()).then(|| list.remove(*index)).map(|_| path);
                }
                if let (Some(Step::Name(name)), true) = (steps.get(n + 1), n + 2 == steps.len()) {
                    let value = list.get(*index)?.get(name.as_str()).cloned();
                    let twin = list
                        .iter()
                        .skip(of_manifest)
                        .position(|item| item.get(name.as_str()).cloned() == value);
                    if let (Some(twin), Some(_)) = (twin, &value) {
                        list.remove(of_manifest + twin);
                        return Some(path);
                    }
                }
                (at, stated) = (list.get_mut(*index)?, stated.and_then(|stated| stated.get(*index)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "fieldsV1": fields})
    }

    fn ours(fields: Value) -> Value {
        entry(FIELD_MANAGER, "Apply", fields)
    }

    fn merged(manifest: &Value, mut live: Value, entries: &[Value]) -> Value {
        live["metadata"] = json!({"resourceVersion": "7", "finalizers": ["theirs"], "managedFields": entries});
        let mut merged = merge(manifest, &live).unwrap();
        assert_eq!(
            merged["metadata"],
            json!({"resourceVersion": "7", "finalizers": ["theirs"]})
        );
        merged.as_object_mut().unwrap().remove("metadata");
        merged
    }

    #[test]
    fn what_we_do_not_own_stays_and_what_is_named_as_wrong_goes() {
        let live = json!({"status": {"id": "x"}, "spec": {
            "replicas": 5, "minReadySeconds": 1, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}}});
        let entries = [
            ours(json!({"f:spec": {"f:minReadySeconds": {}}})),
            entry("hpa", "Update", json!({"f:spec": {"f:replicas": {}}})),
        ];
        let manifest = json!({"spec": {"strategy": {"type": "Recreate"}}});
        let mut object = merged(&manifest, live, &entries);
        let strategy = json!({"type": "Recreate", "rollingUpdate": {"maxSurge": "25%"}});
        assert_eq!(
            object,
            json!({"status": {"id": "x"}, "spec": {"replicas": 5, "strategy": strategy}})
        );
        let cleared = clear(&mut object, &manifest, "spec.strategy.rollingUpdate");
        assert_eq!(cleared.as_deref(), Some("spec.strategy.rollingUpdate"));
        assert_eq!(object["spec"], json!({"replicas": 5, "strategy": {"type": "Recreate"}}));
        // The manifest itself states the wrong field, so no other field may be removed.
        for field in [
            "spec.strategy.type",
            "spec",
            "metadata.finalizers",
            "status.id",
            "",
            "spec.none.at[3].all",
        ] {
            assert_eq!(clear(&mut object.clone(), &manifest, field), None, "{field}");
        }
    }

    #[test]
    fn elements_are_matched_by_all_keys_and_those_of_others_go_only_if_they_are_wrong() {
        let of = |port: u16, protocol: &str| format!("k:{{\"port\":{port},\"protocol\":\"{protocol}\"}}");
        let live = json!({"spec": {"ports": [
            {"name": "dns-udp", "port": 53, "protocol": "UDP"}, {"name": "http", "port": 83, "protocol": "TCP"},
            {"name": "dns", "port": 53, "protocol": "TCP", "targetPort": 53}, {"name": "old", "port": 1, "protocol": "TCP"}]}});
        let mine = ours(json!({"f:spec": {"f:ports": {of(53, "TCP"): {"f:port": {}}, of(1, "TCP"): {"f:port": {}}}}}));
        let theirs = entry(
            "kubectl",
            "Update",
            json!({"f:spec": {"f:ports": {of(83, "TCP"): {"f:port": {}}}}}),
        );
        let manifest = json!({"spec": {"ports": [{"name": "dns", "port": 53}, {"name": "http", "port": 80}]}});
        let mut object = merged(&manifest, live, &[mine, theirs]);
        let names = |object: &Value| -> Vec<String> {
            object["spec"]["ports"]
                .as_array()
                .unwrap()
                .iter()
                .map(|port| format!("{}/{}", port["name"].as_str().unwrap(), port["port"]))
                .collect()
        };
        assert_eq!(names(&object), ["dns/53", "http/80", "dns-udp/53", "http/83"]);
        assert_eq!(
            object["spec"]["ports"][0],
            json!({"name": "dns", "port": 53, "protocol": "TCP", "targetPort": 53})
        );
        assert_eq!(
            clear(&mut object, &manifest, "spec.ports[3].name").as_deref(),
            Some("spec.ports[3]")
        );
        assert_eq!(names(&object), ["dns/53", "http/80", "dns-udp/53"]);
        // The stated element is named, and its twin is removed.
        object["spec"]["ports"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "http", "port": 83}));
        assert_eq!(
            clear(&mut object, &manifest, "spec.ports[1].name").as_deref(),
            Some("spec.ports[1]")
        );
        assert_eq!(names(&object), ["dns/53", "http/80", "dns-udp/53"]);
    }

    #[test]
    fn atomic_values_sets_and_elements_that_are_stated_twice_are_as_they_are_stated() {
        let fields = json!({"f:selector": {}, "f:finalizers": {"v:\"a\"": {}, "v:\"b\"": {}}, "f:args": {}, "f:env": {"k:{\"name\":\"A\"}": {"f:value": {}}}});
        let live = json!({"selector": {"x": 1, "y": 2}, "finalizers": ["a", "b", "c"], "args": ["1", "2"], "env": [{"name": "A", "value": "1", "z": 1}]});
        let manifest = json!({"selector": {"x": 1}, "finalizers": ["a"], "args": ["3"], "env": [{"name": "A", "value": "2"}, {"name": "A", "value": "3"}]});
        let expected = json!({"selector": {"x": 1}, "finalizers": ["a", "c"], "args": ["3"],
            "env": [{"name": "A", "value": "2", "z": 1}, {"name": "A", "value": "3"}]});
        assert_eq!(merged(&manifest, live, &[ours(fields)]), expected);
    }

    #[test]
    fn an_object_that_names_no_owners_is_not_written_as_a_whole() {
        assert_eq!(merge(&json!({}), &json!({"metadata": {}})), None);
    }

    #[test]
    fn field_sets_are_subtracted() {
        let fields = json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}, "f:x": {}});
        assert_eq!(
            without(&fields, &json!({"f:data": {"f:a": {}}})),
            json!({"f:data": {"f:b": {}}, "f:x": {}})
        );
        assert_eq!(without(&fields, &fields), json!({}));
    }
}
