//! Reads YAML as SOPS writes it, which has no aliases, and writes simple YAML.

use std::{collections::HashSet, fmt::Write as _};

use farwater_bundle::yaml::Scalar;
use granit_parser::{Event, Parser, ScalarStyle, Tag};
use zeroize::Zeroizing;

use crate::{
    SopsError, scalar,
    value::{Map, Value},
};

const FORMAT: &str = "YAML";
/// Maximum depth, more than any object of Kubernetes has.
const MAX_DEPTH: usize = 100;

enum Open {
    List(Vec<Value>),
    Map(OpenMap),
}

#[derive(Default)]
struct OpenMap {
    map: Map,
    seen: HashSet<String>,
    /// Key of the next value.
    key: Option<String>,
}

/// Parses documents. Each one that is not empty must be a mapping.
pub(crate) fn parse(text: &str) -> Result<Vec<Map>, SopsError> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let (mut documents, mut stack, mut root) = (Vec::new(), Vec::new(), None);
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| syntax(error.marker().line(), &error.info()))?;
        let line = span.start.line();
        let value = match event {
            Event::DocumentEnd => {
                documents.push(match root.take() {
                    Some(Value::Map(map)) => map,
                    None | Some(Value::Null) => Map::new(),
                    Some(_) => return Err(syntax(line, "a document is no mapping")),
                });
                continue;
            }
            Event::SequenceStart(..) => {
                stack.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                stack.push(Open::Map(OpenMap::default()));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match stack.pop() {
                Some(Open::List(items)) => Value::List(items),
                Some(Open::Map(open)) => Value::Map(open.map),
                None => continue,
            },
            Event::Scalar(text, style, _, tag) => {
                resolve(&text, style, tag.as_deref()).map_err(|problem| syntax(line, &format!("a value {problem}")))?
            }
            Event::Alias(_) => return Err(syntax(line, "an alias, which SOPS does not write")),
            _ => continue,
        };
        match stack.last_mut() {
            None => root = Some(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Map(open)) => open.add(value).map_err(|problem| syntax(line, problem))?,
        }
    }
    Ok(documents)
}

impl OpenMap {
    /// Adds a key, or the value of the last key.
    fn add(&mut self, value: Value) -> Result<(), &'static str> {
        if let Some(key) = self.key.take() {
            self.map.push((key, value));
            return Ok(());
        }
        let name = value
            .as_str()
            .ok_or("a key that is not a text, which SOPS does not encrypt")?
            .to_owned();
        if !self.seen.insert(name.clone()) {
            return Err("a key that occurs twice");
        }
        self.key = Some(name);
        Ok(())
    }
}

fn syntax(line: usize, problem: &str) -> SopsError {
    let problem = problem
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect::<String>();
    SopsError::Syntax {
        format: FORMAT,
        problem: format!("line {line}: {problem}"),
    }
}

fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, &'static str> {
    match tag.and_then(|tag| tag.suffix_in_namespace("tag:yaml.org,2002:")) {
        Some(name) => scalar::resolve_tagged(&name, text),
        None if tag.is_none() && style == ScalarStyle::Plain => scalar::resolve(text),
        None => Ok(Value::text(text)),
    }
}

pub(crate) fn write(documents: &[Map]) -> Result<Zeroizing<Vec<u8>>, SopsError> {
    let mut out = Zeroizing::new(String::new());
    for (number, document) in documents.iter().enumerate() {
        if number > 0 {
            out.push_str("---\n");
        }
        if !document.is_empty() {
            write_map(&mut out, document, 0)?;
        }
    }
    Ok(Zeroizing::new(std::mem::take(&mut *out).into_bytes()))
}

fn write_map(out: &mut String, map: &Map, depth: usize) -> Result<(), SopsError> {
    for (key, value) in map {
        indent(out, depth);
        write_key(out, key);
        out.push(':');
        write_value(out, value, depth, key)?;
    }
    Ok(())
}

/// Writes a value after a key or a dash. `path`: its position, for errors.
fn write_value(out: &mut String, value: &Value, depth: usize, path: &str) -> Result<(), SopsError> {
    match value {
        Value::Map(map) if !map.is_empty() => {
            out.push('\n');
            return write_map(out, map, depth + 1);
        }
        Value::List(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                indent(out, depth + 1);
                out.push('-');
                write_value(out, item, depth + 1, path)?;
            }
            return Ok(());
        }
        _ => {}
    }
    out.push(' ');
    match value {
        Value::Map(_) => out.push_str("{}"),
        Value::List(_) => out.push_str("[]"),
        Value::Null | Value::Comment => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Float(number) => out.push_str(&write_float(*number)),
        Value::Time(text) => out.push_str(text),
        Value::Text(_) => {
            let problem = "is not UTF-8 text, which YAML can't represent in Kubernetes; use a binary file";
            let text = value.as_str().ok_or_else(|| SopsError::Unusable {
                path: path.to_owned(),
                problem,
            })?;
            write_quoted(out, text);
        }
    }
    out.push('\n');
    Ok(())
}

fn write_float(number: f64) -> String {
    match number {
        n if n.is_nan() => ".nan".to_owned(),
        f64::INFINITY => ".inf".to_owned(),
        f64::NEG_INFINITY => "-.inf".to_owned(),
        n if n != 0.0 && !(1e-6..1e21).contains(&n.abs()) => format!("{n:e}"),
        n => n.to_string(),
    }
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n(' ', 2 * depth));
}

/// Whether all readers read the text without quotes as the same text.
fn write_key(out: &mut String, key: &str) {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/');
    let is_plain = key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && key.bytes().all(is_word)
        && matches!(Scalar::resolve(key), Scalar::String(_));
    if is_plain {
        out.push_str(key)
    } else {
        write_quoted(out, key)
    }
}

/// Writes the text in double quotes on one line. Escapes each character that a reader could take for a line break.
fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use farwater_bundle::yaml::{Budget, parse as parse_as_kubectl};
    use proptest::prelude::*;

    use super::*;

    fn written(text: &str) -> String {
        String::from_utf8(write(&parse(text).unwrap()).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let text = "apiVersion: \"v1\"\nkind: \"Secret\"\nmetadata:\n  name: \"a\"\n  labels: {}\n  finalizers: []\nstringData:\n  \
                    \"no\": \"1\"\n  list:\n    - \"a: b\\n\"\n    -\n      x: 1\n    -\n      - 2\n  float: 1.5\n  \
                    at: 2001-12-14T21:59:43Z\n  nothing: null\n";
        assert_eq!(written(text), text);
        assert_eq!(
            written("a: b\n---\n---\nc: !!str 5\n"),
            "a: \"b\"\n---\n---\nc: \"5\"\n"
        );
        // Words that only some readers take for booleans are texts.
        assert_eq!(written("a: yes\nb: 0o17\n"), "a: \"yes\"\nb: 15\n");
    }

    #[test]
    fn what_sops_does_not_write_is_refused_with_its_line() {
        let check = |text: &str, problem: &str| {
            let error = parse(text).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        };
        check("a: &a 1\nb: *a\n", "line 2: an alias");
        check("1: a\n", "line 1: a key that is not a text");
        check("a: 1\na: 2\n", "line 2: a key that occurs twice");
        check("- a\n", "a document is no mapping");
        check("a: 18446744073709551615\n", "an integer of more than 64 bits");
        check(&"[".repeat(500), "YAML");
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_by_those_who_read_manifests(
            key in ".{1,20}",
            value in "\\PC{0,20}|.{0,20}|[\\x00-\\x1f\u{80}-\u{a0}\u{2027}-\u{202a}]{1,5}",
        ) {
            let map = vec![(key.clone(), Value::List(vec![Value::text(value.clone())]))];
            let text = String::from_utf8(write(&[map]).unwrap().to_vec()).unwrap();
            let read = parse_as_kubectl(&text, &Budget::default()).unwrap().remove(0).into_json().unwrap();
            prop_assert_eq!(&read, &serde_json::json!({ key: [value] }));
            prop_assert!(parse(&text).is_ok());
        }
    }
}
