//! Strategic merge patch for built-in kinds, as `k8s.io/apimachinery/pkg/util/strategicpatch` applies it.
//!
//! Lists merge only where the schema says so (`x-kubernetes-patch-strategy`): by `x-kubernetes-patch-merge-key`, or by
//! value where the list holds scalars. Directives: `$patch` (replace, delete), `$retainKeys`,
//! `$setElementOrder/FIELD`, `$deleteFromPrimitiveList/FIELD`.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_SCALARS: &str = "$deleteFromPrimitiveList/";

/// The object after the patch, or why the patch makes no sense.
pub fn merge(object: &Value, patch: &Value, schema: &Value) -> Result<Value, String> {
    merge_into(object.clone(), patch, schema)
}

/// Does not copy the object, because one item of a list may be patched many times.
fn merge_into(object: Value, patch: &Value, schema: &Value) -> Result<Value, String> {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => merge_maps(object, patch, schema).map(Value::Object),
        _ => Ok(patch.clone()),
    }
}

fn merge_maps(
    mut merged: Map<String, Value>,
    patch: &Map<String, Value>,
    schema: &Value,
) -> Result<Map<String, Value>, String> {
    match patch.get(DIRECTIVE).map(|d| d.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => return Ok(without_directives(patch)),
        Some("delete") => return Ok(Map::new()),
        Some(other) => return Err(format!("unknown patch type: {other:?}")),
    }

    if let Some(keep) = patch.get(RETAIN_KEYS) {
        let keep = keep.as_array().ok_or("$retainKeys must be a list")?;
        let keep: HashSet<&str> = keep.iter().filter_map(Value::as_str).collect();
        merged.retain(|field, _| keep.contains(field.as_str()));
    }

    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
        let field_schema = property(schema, field);
        if value.is_null() {
            merged.remove(field);
            continue;
        }
        let result = match (merged.get_mut(field).map(Value::take), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge_maps(old, new, field_schema)?.into(),
            (None, Value::Object(new)) => merge_maps(Map::new(), new, field_schema)?.into(),
            (old, Value::Array(new)) if merges(field_schema) => {
                let old = old.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                let order = patch.get(&format!("{ORDER}{field}")).and_then(Value::as_array);
                let dropped = patch.get(&format!("{DELETE_SCALARS}{field}")).and_then(Value::as_array);
                merge_lists(old, new, field_schema, order, dropped)?.into()
            }
            (_, value) => value.clone(),
        };
        merged.insert(field.clone(), result);
    }

    apply_list_directives(&mut merged, patch, schema)?;
    Ok(merged)
}

/// Applies `$deleteFromPrimitiveList/F` and `$setElementOrder/F` for lists that the patch doesn't otherwise name.
fn apply_list_directives(
    merged: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: &Value,
) -> Result<(), String> {
    for directive in patch.keys() {
        let Some(field) = directive
            .strip_prefix(ORDER)
            .or_else(|| directive.strip_prefix(DELETE_SCALARS))
        else {
            continue;
        };
        if patch.contains_key(field) {
            continue;
        }
        let Some(list) = merged.get(field).and_then(Value::as_array).cloned() else {
            continue;
        };
        let order = patch.get(&format!("{ORDER}{field}")).and_then(Value::as_array);
        let dropped = patch.get(&format!("{DELETE_SCALARS}{field}")).and_then(Value::as_array);
        let result = merge_lists(&list, &[], property(schema, field), order, dropped)?;
        merged.insert(field.to_owned(), result.into());
    }
    Ok(())
}

fn property<'a>(schema: &'a Value, field: &str) -> &'a Value {
    let declared = &schema["properties"][field];
    if declared.is_null() {
        &schema["additionalProperties"]
    } else {
        declared
    }
}

fn merges(schema: &Value) -> bool {
    schema["x-kubernetes-patch-strategy"]
        .as_str()
        .is_some_and(|s| s.split(',').any(|s| s == "merge"))
}

fn without_directives(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(field, _)| !field.starts_with('$'))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

fn merge_lists(
    old: &[Value],
    new: &[Value],
    schema: &Value,
    order: Option<&Vec<Value>>,
    dropped: Option<&Vec<Value>>,
) -> Result<Vec<Value>, String> {
    let merged = match schema["x-kubernetes-patch-merge-key"].as_str() {
        Some(key) => merge_objects(old, new, key, &schema["items"])?,
        None => {
            let dropped: HashSet<&Value> = dropped.into_iter().flatten().collect();
            let mut merged: Vec<&Value> = old.iter().filter(|item| !dropped.contains(item)).collect();
            let mut known: HashSet<&Value> = merged.iter().copied().collect();
            merged.extend(new.iter().filter(|item| known.insert(item)));
            merged.into_iter().cloned().collect()
        }
    };
    let key = schema["x-kubernetes-patch-merge-key"].as_str();
    let order = order.map_or(new, Vec::as_slice);
    Ok(ordered(merged, order, old, key))
}

fn merge_objects(old: &[Value], new: &[Value], key: &str, items: &Value) -> Result<Vec<Value>, String> {
    if new.iter().any(|item| item[DIRECTIVE] == json!("replace")) {
        return Ok(new
            .iter()
            .filter(|item| item.get(DIRECTIVE).is_none())
            .cloned()
            .collect());
    }

    // Maps each key to the first item that has it. A deleted item leaves a gap, so that the positions stay valid.
    let mut merged: Vec<Option<Value>> = old.iter().cloned().map(Some).collect();
    let mut places = first_places(old.iter().map(|item| item.get(key)));
    for item in new {
        let Value::Object(patch) = item else {
            return Err(format!("expected objects with the key {key:?} in a list"));
        };
        let identity = patch
            .get(key)
            .ok_or_else(|| format!("map: {item} does not contain declared merge key: {key}"))?;
        let at = places.get(identity).copied();
        match (patch.get(DIRECTIVE).and_then(Value::as_str), at) {
            (Some("delete"), Some(at)) => {
                merged[at] = None;
                places.remove(identity);
            }
            (Some("delete"), None) => {}
            (_, Some(at)) => {
                let old = merged[at].take().unwrap_or_default();
                merged[at] = Some(merge_into(old, item, items)?);
            }
            (_, None) => {
                places.insert(identity, merged.len());
                merged.push(Some(without_directives(patch).into()));
            }
        }
    }

    Ok(merged.into_iter().flatten().collect())
}

/// `normalizeElementOrder`: items that the client names are in its order. Items that only the server has are merged
/// into that by their order on the server, after everything that the server doesn't have.
fn ordered(list: Vec<Value>, order: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    let wanted = first_places(order.iter().map(|item| Some(identity(item, key))));
    let known = first_places(server.iter().map(|item| Some(identity(item, key))));
    let (mut named, mut rest) = (Vec::new(), VecDeque::new());
    for item in list {
        match wanted.get(identity(&item, key)) {
            Some(rank) => named.push((*rank, item)),
            None => rest.push_back(item),
        }
    }
    named.sort_by_key(|(rank, _)| *rank);
    let place = |item: &Value| known.get(identity(item, key)).copied();
    let mut result = Vec::with_capacity(named.len() + rest.len());
    for (_, item) in named {
        while let (Some(before), Some(at)) = (rest.front().and_then(place), place(&item)) {
            if before >= at {
                break;
            }
            result.extend(rest.pop_front());
        }
        result.push(item);
    }
    result.extend(rest);
    result
}

/// Identifies an item: by its key, or by the item itself if the list holds scalars.
fn identity<'a>(item: &'a Value, key: Option<&str>) -> &'a Value {
    key.map_or(item, |key| &item[key])
}

/// The first position of each value.
fn first_places<'a>(values: impl Iterator<Item = Option<&'a Value>>) -> HashMap<&'a Value, usize> {
    let mut places = HashMap::new();
    for (place, value) in values.enumerate() {
        if let Some(value) = value {
            places.entry(value).or_insert(place);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    fn check(object: Value, patch: Value, expected: Value) {
        let schema = &REGISTRY.find("", "v1", "serviceaccounts").unwrap().schema;
        assert_eq!(merge(&object, &patch, schema).unwrap(), expected, "{patch}");
    }

    #[test]
    fn maps_merge_and_nulls_remove() {
        check(
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
            json!({"metadata": {"labels": {"b": "2", "c": "3"}}}),
        );
        check(
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
            json!({"metadata": {"labels": {"b": "2"}}}),
        );
    }

    #[test]
    fn lists_with_a_merge_key_merge_by_it() {
        check(
            json!({"secrets": [{"name": "a"}, {"name": "b", "uid": "1"}]}),
            json!({"secrets": [{"name": "b", "uid": "2"}, {"name": "c"}, {"$patch": "delete", "name": "a"}]}),
            json!({"secrets": [{"name": "b", "uid": "2"}, {"name": "c"}]}),
        );
        check(
            json!({"secrets": [{"name": "a"}]}),
            json!({"secrets": [{"name": "b"}]}),
            json!({"secrets": [{"name": "b"}, {"name": "a"}]}),
        );
        check(
            json!({"secrets": [{"name": "a"}, {"name": "b"}]}),
            json!({"$setElementOrder/secrets": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "secrets": [{"name": "c"}]}),
            json!({"secrets": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}),
        );
        check(
            json!({"secrets": [{"name": "a"}]}),
            json!({"secrets": [{"name": "b"}, {"$patch": "replace"}]}),
            json!({"secrets": [{"name": "b"}]}),
        );
        let schema = &REGISTRY.find("", "v1", "serviceaccounts").unwrap().schema;
        assert!(merge(&json!({}), &json!({"secrets": [{"uid": "1"}]}), schema).is_err());
    }

    /// Four such patches, compared item by item, once held the API for a minute.
    #[test]
    fn lists_of_the_largest_size_are_merged_by_an_index() {
        let list = |from: usize| -> Value {
            (from..from + 50_000)
                .map(|n| json!({"name": format!("n{n}")}))
                .collect()
        };
        let schema = &REGISTRY.find("", "v1", "serviceaccounts").unwrap().schema;
        let merged = merge(&json!({"secrets": list(0)}), &json!({"secrets": list(25_000)}), schema).unwrap();
        let (secrets, names) = (merged["secrets"].as_array().unwrap(), ["n0", "n74999"]);
        assert_eq!(
            (secrets.len(), [&secrets[0]["name"], &secrets[74_999]["name"]]),
            (75_000, names.map(|name| json!(name)).each_ref())
        );
    }

    #[test]
    fn finalizers_are_a_set_of_scalars() {
        check(
            json!({"metadata": {"finalizers": ["a/x", "a/y"]}}),
            json!({"metadata": {"finalizers": ["a/z"], "$deleteFromPrimitiveList/finalizers": ["a/x"],
                "$setElementOrder/finalizers": ["a/z", "a/y"]}}),
            json!({"metadata": {"finalizers": ["a/z", "a/y"]}}),
        );
        check(
            json!({"metadata": {"finalizers": ["a/x", "a/y"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"]}}),
            json!({"metadata": {"finalizers": ["a/y"]}}),
        );
    }

    #[test]
    fn lists_without_a_strategy_are_replaced() {
        check(
            json!({"imagePullSecrets": [{"name": "a"}]}),
            json!({"imagePullSecrets": [{"name": "b"}]}),
            json!({"imagePullSecrets": [{"name": "b"}]}),
        );
    }
}
