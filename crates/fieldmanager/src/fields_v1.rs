//! FieldsV1: a set as JSON. Each level is an object, named by its element. A `.` in it means that the level itself is a
//! member. An empty object means that only the level is one.

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value};

use crate::{
    path::Element,
    set::{Node, Set},
};

#[derive(Debug, thiserror::Error)]
pub enum FieldsError {
    #[error("read {0:?} as an element of a path")]
    Element(String),
    #[error("read {0} as a set of fields: it is not an object")]
    NotAnObject(&'static str),
}

impl Set {
    pub fn from_fields_v1(value: &Value) -> Result<Self, FieldsError> {
        Ok(parse(value)?.1)
    }

    /// The set as a JSON value.
    pub fn to_fields_v1(&self) -> Value {
        let level = |node: &Node| {
            let mut fields = Map::new();
            if !node.below.is_empty() {
                if node.member {
                    fields.insert(".".to_owned(), Value::Object(Map::new()));
                }
                if let Value::Object(below) = node.below.to_fields_v1() {
                    fields.extend(below);
                }
            }
            (node.element.encode(), Value::Object(fields))
        };
        self.nodes.iter().map(level).collect::<Map<_, _>>().into()
    }
}

/// Whether the level itself is a member, and what is below it.
fn parse(value: &Value) -> Result<(bool, Set), FieldsError> {
    let fields = match value {
        Value::Object(fields) => fields,
        Value::Null => return Ok((true, Set::new())),
        Value::Array(_) => return Err(FieldsError::NotAnObject("a list")),
        _ => return Err(FieldsError::NotAnObject("a scalar")),
    };
    let (mut member, mut nodes) = (false, Vec::with_capacity(fields.len()));
    for (name, value) in fields {
        if name == "." {
            member = true;
        } else if let Some(element) = Element::decode(name)? {
            let (member, below) = parse(value)?;
            nodes.push(Node { element, member, below });
        }
    }
    let set = Set::from_nodes(nodes);
    Ok((member || set.is_empty(), set))
}

/// Writes in the order of the elements, as Kubernetes does.
impl Serialize for Set {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Level {
            member: false,
            below: self,
        }
        .serialize(serializer)
    }
}

struct Level<'a> {
    member: bool,
    below: &'a Set,
}

impl Serialize for Level<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if self.member && !self.below.is_empty() {
            map.serialize_entry(".", &Map::new())?;
        }
        for Node { element, member, below } in &self.below.nodes {
            map.serialize_entry(&element.encode(), &Level { member: *member, below })?;
        }
        map.end()
    }
}
