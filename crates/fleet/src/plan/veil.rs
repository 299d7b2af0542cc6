//! Secret values that must not leave the cluster, wherever they are in an object.
//!
//! A Secret is recognized by its kind. A decrypted value or a parameter may be in any object, alone or inside a text,
//! so it is recognized by its content.

use std::{fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use zeroize::Zeroizing;

/// Shorter values are hidden only where they stand alone: as parts of texts they would hide half of them.
const SHORTEST_PART: usize = 6;

const CONCEALED: &str = "(secret)";

/// The secret values of one service. Clones share them.
#[derive(Clone, Default)]
pub struct Veil(Arc<Values>);

#[derive(Clone, Default)]
struct Values {
    /// Searched inside texts.
    parts: Vec<Zeroizing<String>>,
    /// Compared with whole values.
    wholes: Vec<Zeroizing<String>>,
}

impl fmt::Debug for Veil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Veil({} values)", self.0.parts.len() + self.0.wholes.len())
    }
}

impl Veil {
    /// Hides `value` from now on, each of its lines (templates indent them), its base64, and how it is written in JSON.
    pub fn add(&mut self, value: &str) {
        let values = Arc::make_mut(&mut self.0);
        let trimmed = value.trim();
        if trimmed.is_empty() {
            return;
        }
        if trimmed.len() < SHORTEST_PART {
            values.wholes.push(Zeroizing::new(trimmed.to_owned()));
        } else {
            let lines = trimmed
                .lines()
                .map(str::trim)
                .filter(|line| line.len() >= SHORTEST_PART);
            values.parts.extend(lines.map(|line| Zeroizing::new(line.to_owned())));
            // Each single line may be too short to be searched for.
            if trimmed.contains('\n') {
                values.parts.push(Zeroizing::new(trimmed.to_owned()));
            }
            let quoted = Zeroizing::new(Value::from(trimmed).to_string());
            let escaped = &quoted[1..quoted.len() - 1];
            if escaped != trimmed {
                values.parts.push(Zeroizing::new(escaped.to_owned()));
            }
        }
        for text in [value, trimmed] {
            let encoded = Zeroizing::new(STANDARD.encode(text));
            let kept = if encoded.len() < SHORTEST_PART {
                &mut values.wholes
            } else {
                &mut values.parts
            };
            kept.push(encoded);
        }
    }

    /// Also hides what `other` hides.
    pub fn join(&mut self, other: &Self) {
        if Arc::ptr_eq(&self.0, &other.0) || other.is_empty() {
            return;
        }
        let values = Arc::make_mut(&mut self.0);
        values.parts.extend(other.0.parts.iter().cloned());
        values.wholes.extend(other.0.wholes.iter().cloned());
    }

    pub fn is_empty(&self) -> bool {
        self.0.parts.is_empty() && self.0.wholes.is_empty()
    }

    /// Whether any secret value is in `value`, at any depth, as a value or in a key.
    pub fn hides(&self, value: &Value) -> bool {
        if self.is_empty() {
            return false;
        }
        match value {
            Value::String(text) => self.hides_text(text),
            Value::Number(number) => self.hides_text(&number.to_string()),
            Value::Array(items) => items.iter().any(|item| self.hides(item)),
            Value::Object(map) => map.iter().any(|(key, value)| self.hides_text(key) || self.hides(value)),
            Value::Null | Value::Bool(_) => false,
        }
    }

    /// A text from elsewhere, such as a renderer's error, with secret values replaced.
    pub fn conceal(&self, text: &str) -> String {
        if self.0.wholes.iter().any(|whole| whole.as_str() == text.trim()) {
            return CONCEALED.to_owned();
        }
        // The longest first, because a short one may be part of it.
        let mut found: Vec<&str> = self
            .0
            .parts
            .iter()
            .map(|part| part.as_str())
            .filter(|part| text.contains(part))
            .collect();
        found.sort_by_key(|part| std::cmp::Reverse(part.len()));
        found
            .into_iter()
            .fold(text.to_owned(), |text, part| text.replace(part, CONCEALED))
    }

    pub fn hides_text(&self, text: &str) -> bool {
        let (trimmed, values) = (text.trim(), &self.0);
        values.wholes.iter().any(|whole| whole.as_str() == trimmed)
            || values.parts.iter().any(|part| text.contains(part.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_hidden_wherever_it_stands_and_a_short_one_where_it_stands_alone() {
        let mut veil = Veil::default();
        assert!(veil.is_empty() && !veil.hides(&json!("")));
        for value in [
            "hunter2-of-db",
            "abc",
            "5432",
            "first line\n  second line\n",
            "ab\ncd\nef\n",
            "say \"hunter\"",
            "",
            " \n",
        ] {
            veil.add(value);
        }
        for hidden in [
            json!("hunter2-of-db"),
            json!("postgres://u:hunter2-of-db@db/x"),
            json!({"a": [1, {"b": "hunter2-of-db\n"}]}),
            json!({"hunter2-of-db": 1}),
            json!("abc"),
            json!(" abc\n"),
            json!(5432),
            json!("    second line"),
            json!("aHVudGVyMi1vZi1kYg=="),
            json!("YWJj"),
            json!("ab\ncd\nef"),
            json!("{\"pins\":\"ab\\ncd\\nef\\n\",\"a\":1}"),
            json!("{\"word\":\"say \\\"hunter\\\"\"}"),
        ] {
            assert!(veil.hides(&hidden), "{hidden}");
        }
        for shown in [
            json!("abcd"),
            json!("15432"),
            json!(true),
            json!(null),
            json!("hunter2"),
            json!("cd"),
            json!({"x": []}),
        ] {
            assert!(!veil.hides(&shown), "{shown}");
        }
        assert_eq!(
            veil.conceal("can't parse \"hunter2-of-db\": 5432"),
            "can't parse \"(secret)\": 5432"
        );
        assert_eq!(
            (veil.conceal("abc\n"), veil.conceal("abcd")),
            ("(secret)".to_owned(), "abcd".to_owned())
        );
        let mut other = Veil::default();
        other.join(&veil);
        assert!(other.hides(&json!("abc")));
        assert!(!format!("{other:?}").contains("hunter2"));
    }
}
