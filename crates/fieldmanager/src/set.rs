//! Sets of fields and their algebra.
//!
//! A set is a tree. Each node is one element of a path; it may be a member, and may have members below it. A member
//! does not include the fields below it.

use std::{cmp::Ordering, fmt};

use crate::{
    path::{Element, Path},
    schema::TypeRef,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Sorted by element. Each is a member, or has members below it.
    pub(crate) nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub element: Element,
    pub member: bool,
    pub below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    pub const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    pub fn of(paths: impl IntoIterator<Item = Path>) -> Self {
        let mut set = Self::new();
        paths.into_iter().for_each(|path| set.insert(path));
        set
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.nodes
            .iter()
            .map(|node| usize::from(node.member) + node.below.len())
            .sum()
    }

    /// Approximate size as JSON, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.nodes
            .iter()
            .map(|node| node.element.size() + node.below.size())
            .sum()
    }

    /// Fields above the path don't become members. The empty path is the object, which has no owner.
    pub fn insert(&mut self, path: Path) {
        let mut set = self;
        let last = path.0.len().checked_sub(1);
        for (n, element) in path.0.into_iter().enumerate() {
            let place = match set.nodes.binary_search_by(|node| node.element.cmp(&element)) {
                Ok(place) => place,
                Err(place) => {
                    set.nodes.insert(
                        place,
                        Node {
                            element,
                            member: false,
                            below: Self::new(),
                        },
                    );
                    place
                }
            };
            let node = &mut set.nodes[place];
            node.member |= Some(n) == last;
            set = &mut node.below;
        }
    }

    pub fn contains(&self, path: &Path) -> bool {
        let mut set = self;
        let mut member = false;
        for element in &path.0 {
            let Some(node) = set.node(element) else { return false };
            member = node.member;
            set = &node.below;
        }
        member
    }

    pub(crate) fn node(&self, element: &Element) -> Option<&Node> {
        self.nodes
            .binary_search_by(|node| node.element.cmp(element))
            .ok()
            .map(|place| &self.nodes[place])
    }

    /// Builds a set from nodes in any order. Nodes of the same element become one.
    pub(crate) fn from_nodes(mut nodes: Vec<Node>) -> Self {
        nodes.retain(|node| !node.is_empty());
        if !nodes.is_sorted_by(|a, b| a.element < b.element) {
            nodes.sort_by(|a, b| a.element.cmp(&b.element));
            nodes.dedup_by(|next, kept| {
                let same = next.element == kept.element;
                if same {
                    kept.member |= next.member;
                    kept.below = kept.below.union(&next.below);
                }
                same
            });
        }
        Self { nodes }
    }

    /// Walks two sets in parallel. `combine` gets the node of one or both.
    fn zip(&self, other: &Self, mut combine: impl FnMut(Option<&Node>, Option<&Node>) -> Option<Node>) -> Self {
        let (mut left, mut right) = (self.nodes.iter().peekable(), other.nodes.iter().peekable());
        let mut nodes = Vec::with_capacity(self.nodes.len());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Self { nodes },
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.element.cmp(&b.element),
            };
            let a = if order.is_le() { left.next() } else { None };
            let b = if order.is_ge() { right.next() } else { None };
            nodes.extend(combine(a, b).filter(|node| !node.is_empty()));
        }
    }

    /// Members of at least one of the sets.
    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(Node {
                element: a.element.clone(),
                member: a.member || b.member,
                below: a.below.union(&b.below),
            }),
            (one, other) => one.or(other).cloned(),
        })
    }

    /// Members of both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| {
            let (a, b) = (a?, b?);
            let below = a.below.intersection(&b.below);
            Some(Node {
                element: a.element.clone(),
                member: a.member && b.member,
                below,
            })
        })
    }

    /// Members that are not in the other set. A member of the other set does not remove the members below it.
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a?, b) {
            (a, None) => Some(a.clone()),
            (a, Some(b)) => Some(Node {
                element: a.element.clone(),
                member: a.member && !b.member,
                below: a.below.difference(&b.below),
            }),
        })
    }

    /// Members that are neither in the other set nor below one of its members.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| match (a?, b) {
            (a, None) => Some(a.clone()),
            (_, Some(b)) if b.member => None,
            (a, Some(b)) => Some(Node {
                element: a.element.clone(),
                member: a.member,
                below: a.below.recursive_difference(&b.below),
            }),
        })
    }

    /// Members without members below them.
    pub fn leaves(&self) -> Self {
        let nodes = self.nodes.iter().map(|node| Node {
            element: node.element.clone(),
            member: node.member && node.below.is_empty(),
            below: node.below.leaves(),
        });
        Self { nodes: nodes.collect() }
    }

    /// Adds each declared field with members below it as a member. Sets usually leave such fields out: the owner of
    /// `a.b` also owns `a` if `a` is a declared field, but not if `a` is an entry of a map.
    pub(crate) fn with_named_fields(&self, ty: &TypeRef) -> Self {
        let atom = ty.atom();
        let nodes = self.nodes.iter().map(|node| {
            let (named, child) = match (&node.element, &atom.map, &atom.list) {
                (Element::Field(name), Some(map), _) => (map.declares(name), map.field(name)),
                (Element::Key(_), _, Some(list)) => (false, &list.element),
                _ => (false, &TypeRef::Unknown),
            };
            Node {
                element: node.element.clone(),
                member: node.member || (named && !node.below.is_empty()),
                below: node.below.with_named_fields(child),
            }
        });
        Self { nodes: nodes.collect() }
    }

    /// Adapts the set to a changed schema: members below a value that is merged as a whole now become that value.
    pub(crate) fn reconcile(&mut self, ty: &TypeRef) {
        let atom = ty.atom();
        for node in &mut self.nodes {
            let child = match (&node.element, &atom.map, &atom.list) {
                // A map of undeclared fields was never atomic.
                (_, Some(map), _) if map.is_deduced() => return,
                (Element::Field(name), Some(map), _) => map.field(name),
                (_, Some(map), _) => &map.element,
                (_, None, Some(list)) => &list.element,
                (_, None, None) => return,
            };
            if node.below.is_empty() {
                continue;
            }
            if child.atom().is_atomic() {
                node.member = true;
                node.below = Self::new();
            } else {
                node.below.reconcile(child);
            }
        }
    }

    /// All members: those of a level, then those below them.
    pub fn paths(&self) -> Vec<Path> {
        fn walk(set: &Set, prefix: &mut Vec<Element>, paths: &mut Vec<Path>) {
            for node in set.nodes.iter().filter(|node| node.member) {
                let path = prefix.iter().chain([&node.element]);
                paths.push(Path(path.cloned().collect()));
            }
            for node in &set.nodes {
                prefix.push(node.element.clone());
                walk(&node.below, prefix, paths);
                prefix.pop();
            }
        }
        let mut paths = Vec::new();
        walk(self, &mut Vec::new(), &mut paths);
        paths
    }
}

/// One path per line.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.paths().iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}
