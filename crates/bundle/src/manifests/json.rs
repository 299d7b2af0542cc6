//! JSON as kubectl reads it: several values in sequence, with numbers as Go's and Kubernetes' decoders return them.
//! Stricter: a duplicate key is an error.
//!
//! Without serde_json's feature `float_roundtrip` the last of 17 digits of a float may differ from Go's.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::yaml::json_float;

pub(super) struct JsonError {
    pub line: u32,
    pub message: String,
    /// The text is valid JSON, but its content is wrong.
    pub is_semantic: bool,
}

/// Every value of a text with the line, from 1, where it begins.
pub(super) fn parse(text: &str) -> Result<Vec<(u32, Value)>, JsonError> {
    let mut values = Vec::new();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        if at == text.len() {
            return Ok(values);
        }
        let line = lines_before(text, at) + 1;
        let mut stream = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Exact>();
        match stream.next() {
            Some(Ok(Exact(value))) => values.push((line, value)),
            Some(Err(error)) => {
                let message = error.to_string();
                // serde_json appends the place, relative to this value.
                let message = message.split(" at line ").next().unwrap_or_default().to_owned();
                let line = line - 1 + u32::try_from(error.line()).unwrap_or(u32::MAX).max(1);
                return Err(JsonError {
                    line,
                    message,
                    is_semantic: error.is_data(),
                });
            }
            None => return Ok(values),
        }
        at += stream.byte_offset();
    }
}

fn lines_before(text: &str, at: usize) -> u32 {
    u32::try_from(text[..at].bytes().filter(|b| *b == b'\n').count()).unwrap_or(u32::MAX)
}

struct Exact(Value);

impl<'de> de::Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ExactSeed.deserialize(deserializer).map(Self)
    }
}

struct ExactSeed;

impl<'de> DeserializeSeed<'de> for ExactSeed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ExactSeed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        match i64::try_from(value) {
            Ok(int) => Ok(int.into()),
            Err(_) => self.visit_f64(value as f64),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        json_float(value).map_err(E::custom)
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(ExactSeed)? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if out.contains_key(&key) {
                let shown: String = key.chars().take(80).collect();
                return Err(de::Error::custom(format_args!(
                    "key {shown:?} is given twice; keep one"
                )));
            }
            let value = entries.next_value_seed(ExactSeed)?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}
