//! Paths of fields. Each step selects a child.

use std::{cmp::Ordering, fmt};

use serde_json::{Map, Value};

use crate::{fields_v1::FieldsError, value};

/// One step of a path.
#[derive(Clone, Debug)]
pub enum Element {
    /// A field of an object.
    Field(String),
    /// The item of a list whose key fields have these values. Fields are sorted by name.
    Key(Vec<(String, Value)>),
    /// The item of a set that has this value.
    Value(Value),
    /// An item by its index.
    Index(i64),
}

/// From the object down to a field.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<Element>);

impl Element {
    pub fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// A key of these fields, in any order.
    pub fn key(mut fields: Vec<(String, Value)>) -> Self {
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        Self::Key(fields)
    }

    /// Approximate size as JSON, in bytes.
    pub(crate) fn size(&self) -> usize {
        const AROUND: usize = 8;
        AROUND
            + match self {
                Self::Field(name) => name.len(),
                Self::Key(fields) => fields.iter().map(|(name, value)| name.len() + value::size(value)).sum(),
                Self::Value(value) => value::size(value),
                Self::Index(_) => 4,
            }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }

    /// The field name in FieldsV1.
    pub fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Value(value) => format!("v:{}", value::to_go_json(value)),
            Self::Index(index) => format!("i:{index}"),
            Self::Key(fields) => {
                let map: Map<String, Value> = fields.iter().cloned().collect();
                format!("k:{}", value::to_go_json(&map.into()))
            }
        }
    }

    /// None: a type of element that a later version may add.
    pub fn decode(text: &str) -> Result<Option<Self>, FieldsError> {
        let wrong = || FieldsError::Element(text.to_owned());
        let mut chars = text.chars();
        let (Some(kind), Some(':')) = (chars.next(), chars.next()) else {
            return Err(wrong());
        };
        let rest = chars.as_str();
        Ok(Some(match kind {
            'f' => Self::Field(rest.to_owned()),
            'v' => Self::Value(serde_json::from_str(rest).map_err(|_| wrong())?),
            'k' => match serde_json::from_str(rest).map_err(|_| wrong())? {
                Value::Object(fields) => Self::Key(fields.into_iter().collect()),
                _ => return Err(wrong()),
            },
            'i' => Self::Index(rest.parse().map_err(|_| wrong())?),
            _ => return Ok(None),
        }))
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                let fields = a.iter().zip(b);
                let each = fields.map(|((ka, a), (kb, b))| ka.cmp(kb).then_with(|| value::order(a, b)));
                each.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
            }
            (Self::Value(a), Self::Value(b)) => value::order(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Element {}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                let fields: Vec<_> = fields.iter().map(|(k, v)| format!("{k}={}", value::shown(v))).collect();
                write!(f, "[{}]", fields.join(","))
            }
            Self::Value(value) => write!(f, "[={}]", value::shown(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_written_and_read_back() {
        for (element, text, path) in [
            (Element::field("a.b/c"), "f:a.b/c", ".a.b/c"),
            (Element::Value(json!("a<b")), r#"v:"a\u003cb""#, "[=\"a<b\"]"),
            (Element::Value(json!(5)), "v:5", "[=5]"),
            (Element::Index(-3), "i:-3", "[-3]"),
            (
                Element::key(vec![("name".into(), json!("x")), ("id".into(), json!(2))]),
                r#"k:{"id":2,"name":"x"}"#,
                "[id=2,name=\"x\"]",
            ),
        ] {
            assert_eq!(element.encode(), text);
            assert_eq!(Element::decode(text).unwrap(), Some(element.clone()));
            assert_eq!(element.to_string(), path);
        }
    }

    #[test]
    fn what_is_no_element_is_refused_and_what_may_become_one_is_left_out() {
        for wrong in ["", "f", "fx", "v:", "v:{", "k:[]", "k:1", "i:x"] {
            assert!(Element::decode(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Element::decode("x:new").unwrap(), None);
    }
}
