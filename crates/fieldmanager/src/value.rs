//! JSON values as Kubernetes orders, compares and prints them. The written form distinguishes whole and fractional
//! numbers, and numbers with the same value are equal.

use std::cmp::Ordering;

use serde_json::{Number, Value};

fn rank(value: &Value) -> u8 {
    match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

fn order_numbers(a: &Number, b: &Number) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        // JSON has no NaN.
        _ => a
            .as_f64()
            .unwrap_or_default()
            .total_cmp(&b.as_f64().unwrap_or_default()),
    }
}

/// A total order over all values.
pub(crate) fn order(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => order_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => {
            let items = a.iter().zip(b).map(|(a, b)| order(a, b));
            items.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => {
            let fields = a
                .iter()
                .zip(b)
                .map(|((ka, a), (kb, b))| ka.cmp(kb).then_with(|| order(a, b)));
            fields.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => order_numbers(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((ka, a), (kb, b))| ka == kb && equal(a, b))
        }
        _ => a == b,
    }
}

/// Approximate size of a value, in bytes.
pub(crate) fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(_) | Value::Object(_) => value.to_string().len(),
        _ => 8,
    }
}

/// The text of a value in a path, for people.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(",")),
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={}", shown(v))).collect(),
        scalar => scalar.to_string(),
    }
}

/// The format of Go's `%v`.
pub(crate) fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(printed).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let fields: Vec<_> = map.iter().map(|(k, v)| format!("{k}:{}", printed(v))).collect();
            format!("map[{}]", fields.join(" "))
        }
        scalar => scalar.to_string(),
    }
}

/// JSON in the format of Go's encoder, which is safe in HTML.
pub(crate) fn to_go_json(value: &Value) -> String {
    let text = value.to_string();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    // JSON has these characters only in strings.
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe += &format!("\\u{:04x}", u32::from(c)),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_all_types_have_one_order() {
        let sorted = [
            json!(-1),
            json!(1.5),
            json!(2),
            json!("a"),
            json!("b"),
            json!(false),
            json!(true),
            json!([]),
            json!([1]),
            json!([2]),
            json!({"a": 1}),
            json!({"a": 2}),
            json!({"b": 0}),
            json!(null),
        ];
        for (n, a) in sorted.iter().enumerate() {
            for (m, b) in sorted.iter().enumerate() {
                assert_eq!(order(a, b), n.cmp(&m), "{a} {b}");
                assert_eq!(equal(a, b), n == m, "{a} {b}");
            }
        }
        assert!(equal(&json!(1), &json!(1.0)) && !equal(&json!(1), &json!("1")));
    }

    #[test]
    fn values_are_printed_as_go_prints_them() {
        assert_eq!(printed(&json!({"a": [1, "x"], "b": null})), "map[a:[1 x] b:<nil>]");
        assert_eq!(shown(&json!(["x", 1, true])), "[\"x\",1,true]");
        assert_eq!(to_go_json(&json!("a<b&")), r#""a\u003cb\u0026""#);
    }
}
