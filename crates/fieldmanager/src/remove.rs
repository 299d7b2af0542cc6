//! Removes fields and items from a value.

use serde_json::Value;

use crate::{
    path::Element,
    schema::{Form, ListKind, Type, TypeRef},
    set::Set,
    typed::item_element,
};

/// The value without the members of a set. An object or list that loses its last part becomes null.
pub fn remove(value: &Value, members: &Set, ty: &Type) -> Value {
    without(value, members, ty.root())
}

fn without(value: &Value, members: &Set, ty: &TypeRef) -> Value {
    match (ty.atom().form(Some(value)), value) {
        (Some(Form::Scalar(_)), scalar) => scalar.clone(),
        (Some(Form::List(list)), Value::Array(items)) if list.kind != ListKind::Atomic => {
            let kept = items.iter().filter_map(|item| {
                let Ok(element) = item_element(list, item) else {
                    return Some(item.clone());
                };
                rest(item, &element, members, &list.element)
            });
            let kept: Vec<Value> = kept.collect();
            if kept.is_empty() { Value::Null } else { kept.into() }
        }
        (Some(Form::Map(map)), Value::Object(fields)) if !map.atomic => {
            let kept = fields.iter().filter_map(|(name, value)| {
                let kept = rest(value, &Element::field(name), members, map.field(name))?;
                Some((name.clone(), kept))
            });
            let kept: serde_json::Map<String, Value> = kept.collect();
            if kept.is_empty() { Value::Null } else { kept.into() }
        }
        _ => Value::Null,
    }
}

/// The rest of one child. None: nothing is left.
fn rest(child: &Value, element: &Element, members: &Set, ty: &TypeRef) -> Option<Value> {
    match members.node(element) {
        Some(node) if node.member => None,
        Some(node) => Some(without(child, &node.below, ty)),
        None => Some(child.clone()),
    }
}
