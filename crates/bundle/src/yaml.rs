//! YAML as kubectl reads it.
//!
//! kubectl reads manifests with `sigs.k8s.io/yaml`, i.e. go-yaml v2: YAML 1.1 scalars with rules of its own. No general
//! reader has exactly these rules (`yEs`, `0o17`, `1_0`, an integer over 64 bits, merge keys that override earlier
//! keys), and a number read differently is a changed object. So only the syntax is left to the parser; scalars
//! ([`scalar`]), aliases and merge keys are composed here as in go-yaml v2.4. Two things are stricter: a duplicate key
//! is an error, and sizes are bounded ([`Budget`]).

mod compose;
pub mod edit;
mod scalar;

use serde_json::{Map, Value};

pub use scalar::{Scalar, json_float};

/// Limits of one document, with aliases expanded.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Scalars, sequences and mappings.
    pub nodes: usize,
    /// Bytes of scalars.
    pub bytes: usize,
    /// Nested collections.
    pub depth: usize,
}

/// 500,000 nodes is ten times the content of a 3 MiB manifest; with 8 MiB of scalars this limits an alias bomb to about
/// 100 MB while it is read. Depth: deeper than any OpenAPI schema in a CRD (about 40).
impl Default for Budget {
    fn default() -> Self {
        Self {
            nodes: 500_000,
            bytes: 8 << 20,
            depth: 100,
        }
    }
}

/// A node of a document, and the line where it begins, from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub line: u32,
    pub value: NodeValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NodeValue {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    /// In the order of the first occurrence of each key.
    Mapping(Vec<(Key, Node)>),
}

/// A mapping's key as a string, for JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub line: u32,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct YamlError {
    /// Line in the given text, from 1.
    pub line: u32,
    pub reason: YamlReason,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlReason {
    #[error("not valid YAML: {0}")]
    Syntax(String),
    #[error("key {key:?} is given twice, first on line {first}; keep one")]
    DuplicateKey { key: String, first: u32 },
    #[error("a mapping's key is {0}, which JSON can't have")]
    Key(&'static str),
    #[error("`<<` wants a mapping or a sequence of mappings")]
    Merge,
    #[error("an alias inside its own anchor")]
    SelfAlias,
    #[error("{0} is tagged as {1} and isn't one")]
    Tag(String, &'static str),
    #[error("{0} is not a number that JSON can write")]
    NotFinite(String),
    #[error(
        "over {0} nodes when aliases are expanded: an alias bomb, or far too much for one object; use fewer aliases, or split it"
    )]
    Nodes(usize),
    #[error(
        "over {0} bytes when aliases are expanded: an alias bomb, or far too much for one object; use fewer aliases, or split it"
    )]
    Bytes(usize),
    #[error("collections nested over {0} deep")]
    Depth(usize),
}

/// Every document of a text. An empty document is a null node.
pub fn parse(text: &str, budget: &Budget) -> Result<Vec<Node>, YamlError> {
    compose::compose(text, budget, compose::Repeated::Refused)
}

/// Like [`parse`], but of duplicate keys in a mapping the last one counts, as Helm and Kustomize read their own files.
/// Each duplicate is also returned as [`YamlReason::DuplicateKey`] with its line.
pub fn parse_last(text: &str, budget: &Budget) -> Result<(Vec<Node>, Vec<YamlError>), YamlError> {
    let mut noted = Vec::new();
    let documents = compose::compose(text, budget, compose::Repeated::Noted(&mut noted))?;
    Ok((documents, noted))
}

impl Node {
    /// The value of a mapping's key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            NodeValue::Mapping(entries) => entries.iter().find(|(k, _)| k.text == key).map(|(_, node)| node),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            NodeValue::Scalar(Scalar::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The items of a sequence. Empty for other nodes.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            NodeValue::Sequence(items) => items,
            _ => &[],
        }
    }

    pub fn is_null(&self) -> bool {
        self.value == NodeValue::Scalar(Scalar::Null)
    }

    pub fn into_json(self) -> Result<Value, YamlError> {
        Ok(match self.value {
            NodeValue::Scalar(scalar) => scalar.into_json().map_err(|reason| YamlError {
                line: self.line,
                reason,
            })?,
            NodeValue::Sequence(items) => {
                Value::Array(items.into_iter().map(Node::into_json).collect::<Result<_, _>>()?)
            }
            NodeValue::Mapping(entries) => {
                let mut map = Map::new();
                for (key, node) in entries {
                    map.insert(key.text, node.into_json()?);
                }
                Value::Object(map)
            }
        })
    }
}
