//! Reads and writes JSON. Keys keep the order of the file.

use std::{collections::HashSet, fmt};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use zeroize::Zeroizing;

use crate::{
    SopsError,
    value::{Map, Value},
};

const FORMAT: &str = "JSON";

/// Maximum depth. serde_json itself allows 128 levels.
pub(crate) fn parse(bytes: &[u8]) -> Result<Map, SopsError> {
    let syntax = |problem: String| SopsError::Syntax {
        format: FORMAT,
        problem,
    };
    // The error shows only the position, because the parser's message may quote a value.
    let read = serde_json::from_slice(bytes);
    let read =
        read.map_err(|error: serde_json::Error| syntax(format!("line {} column {}", error.line(), error.column())))?;
    match read {
        Value::Map(map) => Ok(map),
        _ => Err(syntax("it is no object".to_owned())),
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    /// SOPS reads an integer of more than 64 bits as a float.
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Float(value as f64), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::text(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut map, mut seen) = (Map::new(), HashSet::new());
        while let Some((key, value)) = entries.next_entry::<String, Value>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom("a key occurs twice"));
            }
            map.push((key, value));
        }
        Ok(Value::Map(map))
    }
}

pub(crate) fn write(documents: &[Map]) -> Result<Zeroizing<Vec<u8>>, SopsError> {
    let mut out = Zeroizing::new(Vec::new());
    for document in documents {
        write_map(&mut out, document, 0)?;
        out.push(b'\n');
    }
    Ok(out)
}

fn write_map(out: &mut Vec<u8>, map: &Map, depth: usize) -> Result<(), SopsError> {
    if map.is_empty() {
        out.extend_from_slice(b"{}");
        return Ok(());
    }
    out.push(b'{');
    for (number, (key, value)) in map.iter().enumerate() {
        break_line(out, number > 0, depth + 1);
        write_text(out, key, key)?;
        out.extend_from_slice(b": ");
        write_value(out, value, depth + 1, key)?;
    }
    break_line(out, false, depth);
    out.push(b'}');
    Ok(())
}

fn write_value(out: &mut Vec<u8>, value: &Value, depth: usize, path: &str) -> Result<(), SopsError> {
    let unusable = |problem| SopsError::Unusable {
        path: path.to_owned(),
        problem,
    };
    match value {
        Value::Null | Value::Comment => out.extend_from_slice(b"null"),
        Value::Bool(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Value::Int(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::Float(number) if !number.is_finite() => return Err(unusable("is a number that JSON can't represent")),
        // The format of Go, because an API server does not accept 1.0 as an integer.
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e21 => {
            out.extend_from_slice(number.to_string().as_bytes());
        }
        Value::Float(number) => out.extend_from_slice(format!("{number:e}").as_bytes()),
        Value::Time(text) => write_text(out, text, path)?,
        Value::Text(_) => {
            let text = value
                .as_str()
                .ok_or_else(|| unusable("is not UTF-8 text; use a binary file"))?;
            write_text(out, text, path)?;
        }
        Value::List(items) if items.is_empty() => out.extend_from_slice(b"[]"),
        Value::List(items) => {
            out.push(b'[');
            for (number, item) in items.iter().enumerate() {
                break_line(out, number > 0, depth + 1);
                write_value(out, item, depth + 1, path)?;
            }
            break_line(out, false, depth);
            out.push(b']');
        }
        Value::Map(map) => write_map(out, map, depth)?,
    }
    Ok(())
}

fn write_text(out: &mut Vec<u8>, text: &str, path: &str) -> Result<(), SopsError> {
    let problem = "can't be written as JSON";
    serde_json::to_writer(out, text).map_err(|_| SopsError::Unusable {
        path: path.to_owned(),
        problem,
    })
}

fn break_line(out: &mut Vec<u8>, comma: bool, depth: usize) {
    if comma {
        out.push(b',');
    }
    out.push(b'\n');
    out.extend(std::iter::repeat_n(b'\t', depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let text = "{\n\t\"b\": [\n\t\t1,\n\t\tnull\n\t],\n\t\"a\": {\n\t\t\"x\": \"1\\n\\u0001\",\n\t\t\"y\": {},\n\t\t\
                    \"z\": []\n\t},\n\t\
                    \"c\": true\n}\n";
        assert_eq!(
            String::from_utf8(write(&[parse(text.as_bytes()).unwrap()]).unwrap().to_vec()).unwrap(),
            text
        );
    }

    #[test]
    fn an_error_quotes_nothing() {
        for text in [
            "{\"a\": hunter2}",
            "[\"hunter2\"]",
            "\"hunter2\"",
            "{\"hunter2\": 1, \"hunter2\": 2}",
        ] {
            let error = parse(text.as_bytes()).err().unwrap().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
