//! The part of kubectl's JSONPath that printer columns use: fields, quoted fields, indices, `[*]` and equality filters.

use serde_json::Value;

/// The first value that the path names.
pub fn first<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut found = vec![object];
    for step in parse(path)? {
        found = found.into_iter().flat_map(|value| step.apply(value)).collect();
    }
    found.into_iter().next()
}

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// `[?(@.a.b=="x")]`
    Filter {
        path: String,
        equal: bool,
        value: Value,
    },
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(n) => {
                let at = if *n < 0 { items.len() as i64 + n } else { *n };
                usize::try_from(at).ok().and_then(|at| items.get(at)).into_iter().collect()
            }
            Self::All => match value {
                Value::Object(map) => map.values().collect(),
                _ => items.iter().collect(),
            },
            Self::Filter { path, equal, value } => {
                items.iter().filter(|item| (first(item, path) == Some(value)) == *equal).collect()
            }
        }
    }
}

fn parse(path: &str) -> Option<Vec<Step>> {
    let (mut steps, mut rest) = (Vec::new(), path.trim());
    rest = rest.strip_prefix('{').and_then(|r| r.strip_suffix('}')).unwrap_or(rest);
    rest = rest.strip_prefix('$').unwrap_or(rest);
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner)?;
            steps.push(bracket(&inner[..end])?);
            rest = &inner[end + 1..];
            continue;
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.starts_with('[') {
            continue;
        }
        let (name, after) = field(rest);
        match name.as_str() {
            "" => return None,
            "*" => steps.push(Step::All),
            _ => steps.push(Step::Field(name)),
        }
        rest = after;
    }
    Some(steps)
}

/// A field's name; `\.` is a dot in it.
fn field(text: &str) -> (String, &str) {
    let (mut name, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, &text[at..]),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Where the bracket that was opened before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn literal(text: &str) -> Option<Value> {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote)) {
            return Some(Value::from(inner));
        }
    }
    serde_json::from_str(text).ok()
}

fn bracket(inner: &str) -> Option<Step> {
    let inner = inner.trim();
    if inner == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = inner.parse() {
        return Some(Step::Index(index));
    }
    if let Some(filter) = inner.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
        let (path, equal, value) = match (filter.split_once("=="), filter.split_once("!=")) {
            (Some((path, value)), _) => (path, true, value),
            (None, Some((path, value))) => (path, false, value),
            (None, None) => return None,
        };
        let path = path.trim().strip_prefix('@')?.to_owned();
        return Some(Step::Filter { path, equal, value: literal(value)? });
    }
    match literal(inner)? {
        Value::String(name) => Some(Step::Field(name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_printer_columns_are_followed() {
        let object = json!({
            "spec": {"url": "u", "list": [1, 2, 3], "a.b": "dotted"},
            "status": {"conditions": [{"type": "Stalled", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        for (path, expected) in [
            (".spec.url", json!("u")),
            ("{.spec.url}", json!("u")),
            ("$.spec['a.b']", json!("dotted")),
            (r".spec.a\.b", json!("dotted")),
            (".spec.list[-1]", json!(3)),
            (".spec.list[*]", json!(1)),
            (r#".status.conditions[?(@.type=="Ready")].status"#, json!("True")),
            (".status.conditions[?(@.type!='Ready')].status", json!("False")),
        ] {
            assert_eq!(first(&object, path), Some(&expected), "{path}");
        }
        for path in [".spec.none", ".spec[", ".status.conditions[?(x)]", ".spec.list[9]", "..", ".spec.list[-9]"] {
            assert_eq!(first(&object, path), None, "{path}");
        }
    }

    #[test]
    fn every_column_of_our_kinds_has_a_path_that_parses() {
        for column in super::super::kinds::REGISTRY.kinds.iter().flat_map(|k| &k.columns) {
            assert!(parse(&column.path).is_some(), "{}", column.path);
        }
    }
}
