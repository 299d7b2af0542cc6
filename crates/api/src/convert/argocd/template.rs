//! Templates of ApplicationSets: `{{name}}`, and paths of Go templates, `{{ .metadata.labels.env }}`.

use serde_json::{Map, Value};

/// Text between the braces that has no value here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown(pub String);

/// Replaces the placeholders of a text with parameters. `go`: they are Go templates.
pub(super) fn fill(text: &str, go: bool, parameters: &Value) -> Result<String, Unknown> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (inner, after) = after.split_once("}}").ok_or_else(|| Unknown(super::short(after)))?;
        filled.push_str(before);
        match look_up(inner, go, parameters) {
            Some(value) => filled.push_str(&value),
            None => return Err(Unknown(super::short(inner.trim()))),
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Replaces the placeholders in all texts of a value. The error has the path below `path`.
pub(super) fn fill_all(value: &mut Value, go: bool, parameters: &Value, path: &str) -> Result<(), (String, Unknown)> {
    match value {
        Value::String(text) if text.contains("{{") => {
            *text = fill(text, go, parameters).map_err(|unknown| (path.to_owned(), unknown))?;
        }
        Value::Array(items) => {
            for (n, item) in items.iter_mut().enumerate() {
                fill_all(item, go, parameters, &format!("{path}[{n}]"))?;
            }
        }
        Value::Object(fields) => {
            if let Some(name) = fields.keys().find(|name| name.contains("{{")) {
                return Err((path.to_owned(), Unknown(super::short(name))));
            }
            for (name, item) in fields {
                fill_all(item, go, parameters, &format!("{path}.{name}"))?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn look_up(inner: &str, go: bool, parameters: &Value) -> Option<String> {
    let inner = inner.trim().trim_start_matches("- ").trim_end_matches(" -").trim();
    let path = if go { inner.strip_prefix('.')? } else { inner };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    if path.is_empty() || !path.chars().all(is_plain) || (go && path.contains(['-', '/'])) {
        return None;
    }
    // Without Go templates, a name with dots is one key.
    let value = parameters
        .get(path)
        .or_else(|| path.split('.').try_fold(parameters, |value, part| value.get(part)))?;
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Joins the parameters of two generators. The later take precedence.
pub(super) fn join(first: &Map<String, Value>, second: &Map<String, Value>) -> Map<String, Value> {
    first
        .iter()
        .chain(second)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_filled_or_named() {
        let parameters = json!({"name": "east", "values": {"branch": "main"}, "a.b": "c", "n": 3, "list": [1]});
        for (text, go, filled) in [
            ("{{name}}-web", false, "east-web"),
            ("x/{{ values.branch }}/{{a.b}}", false, "x/main/c"),
            ("{{ .name }}{{.values.branch}}{{- .n -}}", true, "eastmain3"),
            ("plain", true, "plain"),
        ] {
            assert_eq!(fill(text, go, &parameters).as_deref(), Ok(filled), "{text}");
        }
        for (text, go, unknown) in [
            ("{{path}}", false, "path"),
            ("{{name}}", true, "name"),
            ("{{ .name | upper }}", true, ".name | upper"),
            ("{{ .list }}", true, ".list"),
            ("{{ index .path.segments 1 }}", true, "index .path.segments 1"),
            ("{{x", false, "x"),
        ] {
            assert_eq!(fill(text, go, &parameters), Err(Unknown(unknown.to_owned())), "{text}");
        }
    }

    #[test]
    fn the_place_of_what_is_unknown_is_told() {
        let mut value = json!({"a": [{"b": "{{x}}"}]});
        let (path, unknown) = fill_all(&mut value, false, &json!({}), "spec").unwrap_err();
        assert_eq!((path.as_str(), unknown.0.as_str()), ("spec.a[0].b", "x"));
        let mut value = json!({"{{x}}": 1});
        assert!(fill_all(&mut value, false, &json!({"x": "y"}), "spec").is_err());
    }
}
