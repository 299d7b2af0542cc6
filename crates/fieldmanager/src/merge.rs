//! Merges a configuration into an object. Its leaves take precedence, nothing is removed, and the order of items
//! respects both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map as Fields, Value};

use crate::{
    compare::{fields, items},
    path::Element,
    schema::{Form, List, ListKind, Map, Type, TypeRef},
    typed::item_element,
};

/// Merges `right` into `left`. Both must fit the type, and `right` must have no duplicate items.
pub fn merge(left: &Value, right: &Value, ty: &Type) -> Value {
    merge_values(Some(left), Some(right), ty.root()).unwrap_or(Value::Null)
}

fn merge_values(left: Option<&Value>, right: Option<&Value>, ty: &TypeRef) -> Option<Value> {
    // If the forms differ, that of `right` counts.
    let (first, second) = ty.atom().forms(left, right);
    match second.or(first)? {
        Form::Scalar(_) => right.or(left).cloned(),
        Form::List(list) => {
            let (a, b) = (items(left), items(right));
            if list.kind == ListKind::Atomic || (a.is_empty() && b.is_empty()) {
                return right.or(left).cloned();
            }
            let merged = merge_items(a, b, list);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
        Form::Map(map) => {
            let (a, b) = (fields(left), fields(right));
            if map.atomic || (a.is_none() && b.is_none()) {
                return right.or(left).cloned();
            }
            let merged = merge_fields(a, b, map);
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
    }
}

fn merge_fields(
    left: Option<&Fields<String, Value>>,
    right: Option<&Fields<String, Value>>,
    map: &Map,
) -> Fields<String, Value> {
    let names: BTreeSet<&String> = left.into_iter().chain(right).flat_map(|fields| fields.keys()).collect();
    let merged = names.into_iter().filter_map(|name| {
        let (a, b) = (left.and_then(|f| f.get(name)), right.and_then(|f| f.get(name)));
        Some((name.clone(), merge_values(a, b, map.field(name))?))
    });
    merged.collect()
}

/// One side of a merge of lists.
struct Side<'a> {
    items: Vec<(Element, &'a Value)>,
    /// The item of each element. Null for a duplicate element, which can't be merged.
    by_element: BTreeMap<Element, &'a Value>,
}

impl<'a> Side<'a> {
    fn of(items: &'a [Value], list: &List) -> Self {
        let mut side = Self {
            items: Vec::with_capacity(items.len()),
            by_element: BTreeMap::new(),
        };
        for item in items {
            // Validation has already refused items without an element.
            let Ok(element) = item_element(list, item) else {
                continue;
            };
            let known = side.by_element.contains_key(&element);
            side.by_element
                .insert(element.clone(), if known { &Value::Null } else { item });
            side.items.push((element, item));
        }
        side
    }

    fn has(&self, element: &Element) -> bool {
        self.by_element.contains_key(element)
    }

    fn get(&self, element: &Element) -> Option<&'a Value> {
        self.by_element.get(element).copied()
    }
}

/// Walks both sides. Common items have the order of the right side; items of one side keep their neighbors.
fn merge_items(left: &[Value], right: &[Value], list: &List) -> Vec<Value> {
    let (left, right) = (Side::of(left, list), Side::of(right, list));
    let mut shared: VecDeque<&Element> = right.items.iter().map(|(e, _)| e).filter(|e| left.has(e)).collect();
    let mut next_shared = shared.pop_front();
    let mut merged_right: BTreeSet<&Element> = BTreeSet::new();
    let mut out = Vec::with_capacity(left.items.len().max(right.items.len()));
    let (mut l, mut r) = (0, 0);
    while l < left.items.len() || r < right.items.len() {
        if let (Some((a, _)), Some((b, _))) = (left.items.get(l), right.items.get(r)) {
            if a == b {
                merged_right.insert(b);
                out.extend(merge_values(left.get(a), right.get(a), &list.element));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.pop_front();
                continue;
            }
            if right.has(a) && next_shared.is_some_and(|next| next != a) {
                // Both sides have the item, but the right side has another one first.
                l += 1;
                continue;
            }
        }
        if let Some((a, item)) = left.items.get(l) {
            if !right.has(a) {
                // Use the item itself, because its element may be a duplicate.
                out.extend(merge_values(Some(item), None, &list.element));
                l += 1;
                continue;
            }
            if merged_right.contains(a) {
                l += 1;
            }
        }
        if let Some((b, _)) = right.items.get(r) {
            merged_right.insert(b);
            out.extend(merge_values(left.get(b), right.get(b), &list.element));
            r += 1;
            if next_shared == Some(b) {
                next_shared = shared.pop_front();
            }
        }
    }
    out
}
