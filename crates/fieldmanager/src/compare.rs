//! Differences between two values of one type.

use std::collections::BTreeMap;

use serde_json::{Map as Fields, Value};

use crate::{
    path::Element,
    schema::{Form, List, ListKind, Map, Type, TypeRef},
    set::{Node, Set},
    typed::item_element,
    value::equal,
};

/// A field is in at most one of the sets. Two values are equal if all sets are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    pub removed: Set,
    pub modified: Set,
    pub added: Set,
}

impl Comparison {
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// The comparison without some fields and everything below them.
    pub(crate) fn without(self, fields: &Set) -> Self {
        if fields.is_empty() {
            return self;
        }
        let outside = |set: &Set| set.recursive_difference(fields);
        Self {
            removed: outside(&self.removed),
            modified: outside(&self.modified),
            added: outside(&self.added),
        }
    }
}

/// Compares two values that fit the type.
pub fn compare(left: &Value, right: &Value, ty: &Type) -> Comparison {
    let Difference {
        removed,
        modified,
        added,
    } = differ(Some(left), Some(right), ty.root());
    Comparison {
        removed: removed.below,
        modified: modified.below,
        added: added.below,
    }
}

/// The differences at and below one value.
#[derive(Default)]
struct Difference {
    removed: Part,
    modified: Part,
    added: Part,
}

#[derive(Default)]
struct Part {
    member: bool,
    below: Set,
}

impl Part {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

/// The differences of the children of one value, by their elements.
#[derive(Default)]
struct Children {
    removed: Vec<Node>,
    modified: Vec<Node>,
    added: Vec<Node>,
}

impl Children {
    /// Creates an element only if there is a difference.
    fn add(&mut self, element: impl Fn() -> Element, difference: Difference) {
        let Difference {
            removed,
            modified,
            added,
        } = difference;
        for (nodes, part) in [
            (&mut self.removed, removed),
            (&mut self.modified, modified),
            (&mut self.added, added),
        ] {
            if !part.is_empty() {
                nodes.push(Node {
                    element: element(),
                    member: part.member,
                    below: part.below,
                });
            }
        }
    }

    fn into_difference(self) -> Difference {
        let part = |nodes| Part {
            member: false,
            below: Set::from_nodes(nodes),
        };
        Difference {
            removed: part(self.removed),
            modified: part(self.modified),
            added: part(self.added),
        }
    }
}

fn differ(left: Option<&Value>, right: Option<&Value>, ty: &TypeRef) -> Difference {
    let (first, second) = ty.atom().forms(left, right);
    let (mut difference, mut leaf) = first.map_or_else(Default::default, |form| as_form(form, left, right));
    if let Some(form) = second {
        let before = difference;
        (difference, leaf) = as_form(form, left, right);
        join(&mut difference.removed, before.removed);
        join(&mut difference.modified, before.modified);
        join(&mut difference.added, before.added);
    }
    if !leaf {
        difference.added.member |= left.is_none();
        difference.removed.member |= left.is_some() && right.is_none();
    }
    difference
}

fn join(part: &mut Part, other: Part) {
    part.member |= other.member;
    if !other.below.is_empty() {
        part.below = part.below.union(&other.below);
    }
}

/// The difference in one form, and whether the value was compared as a whole.
fn as_form(form: Form<'_>, left: Option<&Value>, right: Option<&Value>) -> (Difference, bool) {
    match form {
        Form::Scalar(_) => (as_leaf(left, right), true),
        Form::List(list) => {
            let (a, b) = (items(left), items(right));
            if list.kind == ListKind::Atomic || (a.is_empty() && b.is_empty()) {
                return (as_leaf(left, right), true);
            }
            (differ_items(a, b, list), false)
        }
        Form::Map(map) => {
            let (a, b) = (fields(left), fields(right));
            if map.atomic || (a.is_none() && b.is_none()) {
                return (as_leaf(left, right), true);
            }
            (differ_fields(a, b, map), false)
        }
    }
}

pub(crate) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The fields of an object. None: it is no object, or has no fields.
pub(crate) fn fields(value: Option<&Value>) -> Option<&Fields<String, Value>> {
    value.and_then(Value::as_object).filter(|map| !map.is_empty())
}

fn as_leaf(left: Option<&Value>, right: Option<&Value>) -> Difference {
    let mut difference = Difference::default();
    match (left, right) {
        (None, _) => difference.added.member = true,
        (_, None) => difference.removed.member = true,
        (Some(left), Some(right)) => difference.modified.member = !equal(left, right),
    }
    difference
}

fn differ_fields(left: Option<&Fields<String, Value>>, right: Option<&Fields<String, Value>>, map: &Map) -> Difference {
    let mut children = Children::default();
    let get =
        |fields: Option<&Fields<String, Value>>, name: &str| -> bool { fields.is_some_and(|f| f.contains_key(name)) };
    for (name, a) in left.into_iter().flatten() {
        let b = right.and_then(|right| right.get(name));
        children.add(|| Element::field(name), differ(Some(a), b, map.field(name)));
    }
    for (name, b) in right.into_iter().flatten().filter(|(name, _)| !get(left, name)) {
        children.add(|| Element::field(name), differ(None, Some(b), map.field(name)));
    }
    children.into_difference()
}

fn differ_items(left: &[Value], right: &[Value], list: &List) -> Difference {
    // The items of each element on both sides. A duplicate element has several.
    let mut pairs: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    // Validation has already refused items without an element.
    let element = |item| item_element(list, item).ok();
    for item in left {
        if let Some(element) = element(item) {
            pairs.entry(element).or_default().0.push(item);
        }
    }
    for item in right {
        if let Some(element) = element(item) {
            pairs.entry(element).or_default().1.push(item);
        }
    }
    let mut children = Children::default();
    for (element, (a, b)) in &pairs {
        let differ_one = |a: Option<&&Value>, b: Option<&&Value>| differ(a.copied(), b.copied(), &list.element);
        let difference = match (a.len(), b.len()) {
            (0 | 1, 0 | 1) => differ_one(a.first(), b.first()),
            (2.., 2..) => {
                let same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b));
                Difference {
                    modified: Part {
                        member: !same,
                        below: Set::new(),
                    },
                    ..Difference::default()
                }
            }
            (2.., _) => {
                let mut difference = if b.is_empty() {
                    Difference::default()
                } else {
                    differ_one(None, b.first())
                };
                difference.removed.member = true;
                difference
            }
            _ => {
                let mut difference = if a.is_empty() {
                    Difference::default()
                } else {
                    differ_one(a.first(), None)
                };
                difference.added.member = true;
                difference
            }
        };
        children.add(|| element.clone(), difference);
    }
    children.into_difference()
}
