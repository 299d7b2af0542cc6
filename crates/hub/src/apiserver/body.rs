//! Bodies to JSON: JSON, YAML and Kubernetes' protobuf, with duplicate fields noted on the way.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use super::protobuf;
use crate::kinds::status::ApiError;

/// Largest body, as in kube-apiserver (`MaxRequestBodyBytes`).
pub const LIMIT: usize = 3 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

impl Encoding {
    pub const ACCEPTED: &'static str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

    /// By content type; an empty one means JSON.
    pub fn of(content_type: &str) -> Result<Self, ApiError> {
        match content_type {
            "" | "application/json" => Ok(Self::Json),
            "application/yaml" | "text/yaml" | "application/x-yaml" => Ok(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Ok(Self::Protobuf),
            _ => Err(ApiError::unsupported_media_type(Self::ACCEPTED)),
        }
    }
}

/// A decoded body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    pub value: Value,
    /// Paths of fields that were given more than once; the last value counted.
    pub duplicates: Vec<String>,
}

/// Decodes a body. The error says why it can't be read, as part of the caller's sentence.
pub fn decode(bytes: &[u8], encoding: Encoding) -> Result<Body, String> {
    match encoding {
        Encoding::Json => {
            let mut deserializer = serde_json::Deserializer::from_slice(bytes);
            let node = Node::deserialize(&mut deserializer).map_err(|e| format!("json parse error: {e}"))?;
            deserializer.end().map_err(|e| format!("json parse error: {e}"))?;
            Ok(node.into_body())
        }
        Encoding::Yaml => {
            let text = std::str::from_utf8(bytes).map_err(|e| format!("yaml parse error: {e}"))?;
            let node: Node = serde_saphyr::from_str_with_options(text, yaml_options())
                .map_err(|e| format!("yaml parse error: {e}"))?;
            Ok(node.into_body())
        }
        Encoding::Protobuf => protobuf::decode(bytes).map(|value| Body {
            value,
            duplicates: Vec::new(),
        }),
    }
}

/// Scalars as kubectl reads them.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: false,
        legacy_octal_numbers: true,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        with_snippet: false,
    }
}

/// JSON as it was written: fields in order, including repeated ones.
enum Node {
    Scalar(Value),
    List(Vec<Node>),
    Fields(Vec<(String, Node)>),
}

impl Node {
    fn into_body(self) -> Body {
        let mut duplicates = Duplicates::default();
        let value = self.into_value(None, &mut duplicates);
        Body {
            value,
            duplicates: duplicates.in_order,
        }
    }

    fn into_value(self, place: Option<&ValuePath<'_>>, duplicates: &mut Duplicates) -> Value {
        match self {
            Self::Scalar(value) => value,
            Self::List(items) => {
                let items = items.into_iter().enumerate();
                items
                    .map(|(n, item)| {
                        item.into_value(
                            Some(&ValuePath {
                                above: place,
                                step: Step::Item(n),
                            }),
                            duplicates,
                        )
                    })
                    .collect()
            }
            Self::Fields(fields) => {
                let mut map = Map::new();
                for (name, node) in fields {
                    let place = ValuePath {
                        above: place,
                        step: Step::Field(&name),
                    };
                    let value = node.into_value(Some(&place), duplicates);
                    if map.contains_key(&name) {
                        duplicates.note_duplicate(&place);
                    }
                    map.insert(name, value);
                }
                map.into()
            }
        }
    }
}

/// The place of a value. Its text is only made for duplicates, because a name may be as long as a body, and a body may
/// have a million values.
struct ValuePath<'a> {
    above: Option<&'a Self>,
    step: Step<'a>,
}

enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.step {
            Step::Field(name) if self.above.is_some() => write!(f, ".{name}"),
            Step::Field(name) => f.write_str(name),
            Step::Item(n) => write!(f, "[{n}]"),
        }
    }
}

/// Paths of duplicate fields, each once, up to a limit.
#[derive(Default)]
struct Duplicates {
    in_order: Vec<String>,
    known: HashSet<String>,
}

impl Duplicates {
    const MOST: usize = 256;

    fn note_duplicate(&mut self, place: &ValuePath<'_>) {
        if self.in_order.len() >= Self::MOST {
            return;
        }
        let path = place.to_string();
        if self.known.insert(path.clone()) {
            self.in_order.push(path);
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    /// Go writes 1.0 as 1 and refuses the former for an int field, so YAML's `1.0` has to become 1.
    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() < EXACT {
            return Ok(Node::Scalar((value as i64).into()));
        }
        Ok(Node::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry::<String, Node>()? {
            fields.push(entry);
        }
        Ok(Node::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn duplicate_fields_are_named_and_the_last_counts() {
        let body = decode(
            br#"{"a": {"b": 1, "b": 2}, "l": [{"c": 1, "c": 1}], "a2": null}"#,
            Encoding::Json,
        )
        .unwrap();
        assert_eq!(body.value, json!({"a": {"b": 2}, "l": [{"c": 1}], "a2": null}));
        assert_eq!(body.duplicates, ["a.b", "l[0].c"]);
    }

    #[test]
    fn yaml_is_read_as_kubectl_reads_it() {
        let body = decode(b"a: yes\nb: 0644\nc: 1.0\nd: \"1\"\ne: ~\n", Encoding::Yaml).unwrap();
        assert_eq!(body.value, json!({"a": true, "b": 420, "c": 1, "d": "1", "e": null}));
        let body = decode(b"a: 1\nb: {c: 1, c: 2}\na: 2\n", Encoding::Yaml).unwrap();
        assert_eq!(
            (body.value, body.duplicates),
            (json!({"a": 2, "b": {"c": 2}}), vec!["b.c".into(), "a".into()])
        );
    }

    /// Written down for each value, these paths would be a terabyte.
    #[test]
    fn long_names_and_many_values_cost_no_more_than_they_are_long() {
        let name = "n".repeat(1_000_000);
        let body = format!("{{\"{name}\":[{}0],\"{name}\":1}}", "0,".repeat(500_000));
        let body = decode(body.as_bytes(), Encoding::Json).unwrap();
        assert_eq!((body.value[&name].clone(), body.duplicates), (json!(1), vec![name]));
        let many = format!("{{{}\"a\":1}}", "\"a\":1,".repeat(100_000));
        assert_eq!(decode(many.as_bytes(), Encoding::Json).unwrap().duplicates, ["a"]);
    }

    #[test]
    fn hostile_bodies_end_in_an_error() {
        let deep = "[".repeat(100_000);
        assert!(decode(deep.as_bytes(), Encoding::Json).is_err());
        assert!(decode(deep.as_bytes(), Encoding::Yaml).is_err());
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..12 {
            bomb += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","));
        }
        assert!(decode(bomb.as_bytes(), Encoding::Yaml).is_err());
        for bytes in [&b""[..], b"{", b"{}x", b"\xff"] {
            assert!(decode(bytes, Encoding::Json).is_err());
            assert!(decode(bytes, Encoding::Protobuf).is_err());
        }
    }
}
