//! Values and their types: validation, and the fields that a value mentions.

use std::{collections::BTreeSet, fmt};

use serde_json::Value;

use crate::{
    path::Element,
    schema::{Form, List, ListKind, Map, Scalar, Type, TypeRef},
    set::{Node, Set},
    value::{printed, shown},
};

/// Whether sets and keyed lists may have duplicate items. Objects that were stored with an older schema may have them;
/// configurations may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    Allowed,
    Refused,
}

/// A position where a value doesn't fit its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mismatches(Vec<Mismatch>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mismatch {
    path: String,
    message: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // More would not help a reader, and the answer would grow with the request.
        const MOST: usize = 64;
        match &self.0[..] {
            [one] => one.fmt(f),
            all => {
                f.write_str("errors:")?;
                all.iter()
                    .take(MOST)
                    .try_for_each(|mismatch| write!(f, "\n  {mismatch}"))
            }
        }
    }
}

/// Checks that a value fits its type.
pub fn validate(value: &Value, ty: &Type, duplicates: Duplicates) -> Result<(), Mismatches> {
    let mut mismatches = Vec::new();
    check(value, ty.root(), duplicates, &mut mismatches);
    if mismatches.is_empty() {
        Ok(())
    } else {
        Err(Mismatches(mismatches))
    }
}

/// Puts the step before the paths of the mismatches below it.
fn within(step: impl fmt::Display, from: usize, mismatches: &mut [Mismatch]) {
    for mismatch in &mut mismatches[from..] {
        mismatch.path.insert_str(0, &step.to_string());
    }
}

fn check(value: &Value, ty: &TypeRef, duplicates: Duplicates, out: &mut Vec<Mismatch>) {
    if matches!(ty, TypeRef::Untyped | TypeRef::Deduced) {
        // Any value is allowed, at any depth.
        return;
    }
    let mut wrong = |message: String| {
        out.push(Mismatch {
            path: String::new(),
            message,
        })
    };
    match (ty.atom().form(Some(value)), value) {
        (None, _) => wrong("schema error: invalid atom: inlined".to_owned()),
        (_, Value::Null) => {}
        (Some(Form::Map(map)), Value::Object(fields)) => check_fields(fields, map, duplicates, out),
        (Some(Form::Map(_)), other) => wrong(format!("expected map, got &{{{}}}", printed(other))),
        (Some(Form::List(list)), Value::Array(items)) => check_items(items, list, duplicates, out),
        (Some(Form::List(_)), other) => wrong(format!("expected list, got &{{{}}}", printed(other))),
        (Some(Form::Scalar(scalar)), value) => out.extend(check_scalar(value, scalar)),
    }
}

fn check_scalar(value: &Value, scalar: Scalar) -> Option<Mismatch> {
    let fits = match scalar {
        Scalar::Numeric => value.is_number(),
        Scalar::String => value.is_string(),
        Scalar::Boolean => value.is_boolean(),
        Scalar::Untyped => !value.is_array() && !value.is_object(),
    };
    let message = match scalar {
        _ if fits => return None,
        Scalar::Numeric => format!("expected numeric (int or float), got {}", go_type(value)),
        Scalar::String => format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            go_syntax(value)
        ),
        Scalar::Boolean => format!("expected boolean, got &{{{}}}", printed(value)),
        Scalar::Untyped => format!("expected any scalar, got &{{{}}}", printed(value)),
    };
    Some(Mismatch {
        path: String::new(),
        message,
    })
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The format of Go's `%#v`.
fn go_syntax(value: &Value) -> String {
    let list = |parts: Vec<String>| format!("{}{{{}}}", go_type(value), parts.join(", "));
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => list(items.iter().map(go_syntax).collect()),
        Value::Object(map) => list(map.iter().map(|(k, v)| format!("{k:?}:{}", go_syntax(v))).collect()),
        scalar => shown(scalar),
    }
}

fn check_fields(fields: &serde_json::Map<String, Value>, map: &Map, duplicates: Duplicates, out: &mut Vec<Mismatch>) {
    for (name, value) in fields {
        let (from, ty) = (out.len(), map.field(name));
        if matches!(ty, TypeRef::Unknown) {
            out.push(Mismatch {
                path: format!(".{name}"),
                message: "field not declared in schema".to_owned(),
            });
            return;
        }
        check(value, ty, duplicates, out);
        if out.len() > from {
            within(format_args!(".{name}"), from, out);
        }
    }
}

fn check_items(items: &[Value], list: &List, duplicates: Duplicates, out: &mut Vec<Mismatch>) {
    let mut seen = BTreeSet::new();
    for (n, item) in items.iter().enumerate() {
        let element = if list.kind == ListKind::Atomic {
            Element::Index(n as i64)
        } else {
            match item_element(list, item) {
                Ok(element) => element,
                Err(why) => {
                    out.push(Mismatch {
                        path: String::new(),
                        message: format!("element {n}: {why}"),
                    });
                    return;
                }
            }
        };
        let from = out.len();
        check(item, &list.element, duplicates, out);
        if out.len() > from {
            within(&element, from, out);
        }
        if duplicates == Duplicates::Refused {
            if seen.contains(&element) {
                let message = format!("duplicate entries for key {element}");
                out.insert(
                    from,
                    Mismatch {
                        path: String::new(),
                        message,
                    },
                );
            }
            seen.insert(element);
        }
    }
}

/// The element that identifies an item of a set or a keyed list.
pub(crate) fn item_element(list: &List, item: &Value) -> Result<Element, String> {
    let text = |text: &str| Err(text.to_owned());
    match (&list.kind, item) {
        (ListKind::Atomic, _) => text("invalid indexing of non-associative list"),
        (ListKind::Set, Value::Object(_)) => text("associative list without keys has an element that's a map type"),
        (ListKind::Set, Value::Array(_)) => text("not supported: associative list with lists as elements"),
        (ListKind::Set, Value::Null) => text("associative list without keys has an element that's an explicit null"),
        (ListKind::Set, scalar) => Ok(Element::Value(scalar.clone())),
        (ListKind::Keyed(keys), Value::Object(fields)) => {
            let declared = list.element.atom().map.as_ref();
            let default = |key: &str| declared.and_then(|map| map.default(key));
            let given = keys.iter().filter_map(|key| {
                let value = fields.get(key).or_else(|| default(key))?;
                Some((key.clone(), value.clone()))
            });
            let given: Vec<_> = given.collect();
            if given.is_empty() {
                let names: Vec<_> = keys.iter().map(|key| format!("{key:?}")).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have \
                     default values for any key fields)",
                    names.join(" ")
                ));
            }
            Ok(Element::key(given))
        }
        (ListKind::Keyed(_), Value::Null) => text("associative list with keys may not have a null element"),
        (ListKind::Keyed(_), _) => text("associative list with keys may not have non-map elements"),
    }
}

/// All fields and items that a value mentions. The value must fit its type.
pub fn to_set(value: &Value, ty: &Type) -> Set {
    mentioned(value, ty.root()).1
}

/// Whether the value itself is a member, and the members below it.
fn mentioned(value: &Value, ty: &TypeRef) -> (bool, Set) {
    match (ty.atom().form(Some(value)), value) {
        (Some(Form::Scalar(_)), _) => (true, Set::new()),
        (Some(Form::Map(map)), _) if map.atomic => (true, Set::new()),
        (Some(Form::List(list)), _) if list.kind == ListKind::Atomic => (true, Set::new()),
        (Some(Form::Map(map)), Value::Object(fields)) => {
            let nodes = fields.iter().map(|(name, value)| {
                let (member, below) = mentioned(value, map.field(name));
                let empty = value.is_null() || value.as_object().is_some_and(|map| map.is_empty());
                Node {
                    element: Element::field(name),
                    member: member || empty || !map.declares(name),
                    below,
                }
            });
            (false, Set::from_nodes(nodes.collect()))
        }
        (Some(Form::List(list)), Value::Array(items)) => (false, mentioned_items(items, list)),
        _ => (false, Set::new()),
    }
}

/// For a duplicate item, only the item itself is a member, because its fields are ambiguous.
fn mentioned_items(items: &[Value], list: &List) -> Set {
    let elements: Vec<_> = items.iter().map(|item| item_element(list, item).ok()).collect();
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for element in elements.iter().flatten() {
        if !seen.insert(element) {
            twice.insert(element);
        }
    }
    let nodes = elements.iter().zip(items).filter_map(|(element, item)| {
        let element = element.as_ref()?;
        let below = if twice.contains(element) {
            Set::new()
        } else {
            mentioned(item, &list.element).1
        };
        Some(Node {
            element: element.clone(),
            member: true,
            below,
        })
    });
    Set::from_nodes(nodes.collect())
}
