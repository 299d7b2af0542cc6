//! `--sort-by`: sorts objects by one of their fields.

use std::cmp::Ordering;

use farwater_api::json_path::Path;
use serde_json::Value;

use crate::failure::{Failure, Result};

/// Objects without the field come first, and equal ones stay in the hub's order. A field that no object has is refused,
/// because it usually is a mistake in the path. `object`: where the object is in an item.
pub fn by<T>(path: &Path, items: Vec<T>, object: impl Fn(&T) -> &Value) -> Result<Vec<T>> {
    let mut keyed: Vec<(Option<Value>, T)> = items
        .into_iter()
        .map(|item| (path.find(object(&item)).first().map(|found| (*found).clone()), item))
        .collect();
    if !keyed.is_empty() && keyed.iter().all(|(key, _)| key.is_none()) {
        return Err(Failure::usage("no object has the field that --sort-by names")
            .next("see the fields: {program} get KIND NAME -o yaml"));
    }
    keyed.sort_by(|(a, _), (b, _)| match (a, b) {
        (Some(a), Some(b)) => compare(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    });
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

/// Compares numbers by value, also inside texts: `web-9` comes before `web-10`.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a
            .as_f64()
            .unwrap_or_default()
            .total_cmp(&b.as_f64().unwrap_or_default()),
        (Value::String(a), Value::String(b)) => natural(a, b),
        (a, b) => a.to_string().cmp(&b.to_string()),
    }
}

fn natural(mut a: &str, mut b: &str) -> Ordering {
    while !a.is_empty() && !b.is_empty() {
        let (part_a, rest_a) = split(a);
        let (part_b, rest_b) = split(b);
        let order = match (part_a.parse::<u128>(), part_b.parse::<u128>()) {
            (Ok(number_a), Ok(number_b)) => number_a.cmp(&number_b),
            _ => part_a.cmp(part_b),
        };
        // `01` and `1` are the same number but different texts.
        let order = order.then_with(|| part_a.cmp(part_b));
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (rest_a, rest_b);
    }
    a.len().cmp(&b.len())
}

/// The first run of digits or of other characters, and the rest.
fn split(text: &str) -> (&str, &str) {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    text.split_at(text.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_sorted_by_numbers_and_texts_and_keep_their_order_where_they_are_equal() {
        let sorted = |path: &str, items: Value| {
            let items = items.as_array().unwrap().clone();
            let sorted = by(&Path::parse(path).unwrap(), items, |item| item)?;
            Ok::<_, Failure>(
                sorted
                    .iter()
                    .map(|item| item["n"].as_str().unwrap_or_default().to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let items =
            json!([{"n": "web-10", "size": 2}, {"n": "web-9", "size": 10}, {"n": "api"}, {"n": "b", "size": 2}]);
        assert_eq!(sorted(".n", items.clone()).unwrap(), ["api", "b", "web-9", "web-10"]);
        assert_eq!(
            sorted("{.size}", items.clone()).unwrap(),
            ["api", "web-10", "b", "web-9"]
        );
        assert_eq!(sorted(".none", items).unwrap_err().code, crate::exit::USAGE);
        assert_eq!(sorted(".none", json!([])).unwrap(), Vec::<String>::new());
    }
}
