//! The fields of an object, taken one by one.

use serde_json::{Map, Value};

use super::{NotConverted, Told};

/// A map whose fields are taken by name; the fields that are left at the end become losses.
pub(super) struct Fields {
    /// Path in the object, such as `spec.chart`.
    pub path: String,
    left: Map<String, Value>,
}

impl Fields {
    /// Null counts as a map without fields.
    pub fn new(path: impl Into<String>, value: Value) -> Result<Self, NotConverted> {
        let path = path.into();
        match value {
            Value::Null => Ok(Self { path, left: Map::new() }),
            Value::Object(left) => Ok(Self { path, left }),
            _ => Err(malformed(&path, "a map")),
        }
    }

    pub fn at(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// Null if the field does not exist.
    pub fn take(&mut self, name: &str) -> Value {
        self.left.remove(name).unwrap_or_default()
    }

    /// None also for an empty text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, NotConverted> {
        match self.take(name) {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            _ => Err(malformed(&self.at(name), "a text")),
        }
    }

    pub fn flag(&mut self, name: &str) -> Result<bool, NotConverted> {
        match self.take(name) {
            Value::Null => Ok(false),
            Value::Bool(flag) => Ok(flag),
            _ => Err(malformed(&self.at(name), "true or false")),
        }
    }

    pub fn list(&mut self, name: &str) -> Result<Vec<Value>, NotConverted> {
        match self.take(name) {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => Ok(items),
            _ => Err(malformed(&self.at(name), "a list")),
        }
    }

    pub fn texts(&mut self, name: &str) -> Result<Vec<String>, NotConverted> {
        let path = self.at(name);
        let read = |item: Value| match item {
            Value::String(text) => Ok(text),
            _ => Err(malformed(&path, "a list of texts")),
        };
        self.list(name)?.into_iter().map(read).collect()
    }

    pub fn map(&mut self, name: &str) -> Result<Self, NotConverted> {
        let value = self.take(name);
        Self::new(self.at(name), value)
    }

    pub fn maps(&mut self, name: &str) -> Result<Vec<Self>, NotConverted> {
        let path = self.at(name);
        let items = self.list(name)?.into_iter().enumerate();
        items.map(|(n, item)| Self::new(format!("{path}[{n}]"), item)).collect()
    }

    /// Whether the field is missing. An empty list is not.
    pub fn is_absent(&self, name: &str) -> bool {
        self.left.get(name).is_none_or(Value::is_null)
    }

    pub fn is_empty(&self) -> bool {
        self.left.values().all(Value::is_null)
    }

    /// Takes fields that change nothing, and notes those that are set in one sentence.
    pub fn pass(&mut self, names: &[&str], why: &str, told: &mut Told) {
        let mut there = Vec::new();
        for name in names {
            if !is_nothing(&self.take(name)) {
                there.push(self.at(name));
            }
        }
        if !there.is_empty() {
            told.note(&there.join(", "), why);
        }
    }

    /// Takes fields whose loss changes what is applied.
    pub fn lose(&mut self, names: &[&str], why: &str, told: &mut Told) {
        for name in names {
            if !is_nothing(&self.take(name)) {
                told.lose(&self.at(name), why);
            }
        }
    }

    /// Ends the conversion: the remaining fields are unknown and become losses.
    pub fn finish(self, told: &mut Told) {
        for (name, _) in self.left.iter().filter(|(_, value)| !value.is_null()) {
            let path = self.at(&super::short(name));
            told.lose(
                &path,
                "has no counterpart, and without it something else would be applied",
            );
        }
    }
}

/// Whether a value means the same as a missing field.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

pub(super) fn malformed(path: &str, wanted: &str) -> NotConverted {
    NotConverted::Malformed(format!("{path} is not {wanted}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nobody_takes_is_told() {
        let mut told = Told::default();
        let mut fields = Fields::new(
            "spec",
            json!({"a": "x", "b": false, "c": {}, "d": [1], "e": null, "f": 0}),
        )
        .unwrap();
        assert_eq!(fields.text("a").unwrap().as_deref(), Some("x"));
        fields.pass(&["b", "c", "d"], "always so", &mut told);
        fields.finish(&mut told);
        assert_eq!(told.notes, ["spec.d: always so"]);
        assert_eq!(
            told.losses,
            ["spec.f: has no counterpart, and without it something else would be applied"]
        );
    }

    #[test]
    fn what_is_no_such_thing_is_said_with_its_place() {
        let mut fields = Fields::new("spec", json!({"a": 1, "b": {"c": [1]}})).unwrap();
        assert_eq!(
            fields.text("a"),
            Err(NotConverted::Malformed("spec.a is not a text".to_owned()))
        );
        let mut inner = fields.map("b").unwrap();
        assert_eq!(
            inner.texts("c"),
            Err(NotConverted::Malformed("spec.b.c is not a list of texts".to_owned()))
        );
        assert!(Fields::new("spec", json!([])).is_err());
    }
}
