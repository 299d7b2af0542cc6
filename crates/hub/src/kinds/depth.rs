//! Depth and size of a value, found without recursion. A value from outside is measured before any other code walks it.

use serde_json::Value;

/// Maximum levels of lists and objects in an object of the API. The store allows 120; the sets of field managers, which
/// repeat the object's levels below `metadata`, need some of them.
pub const MAX_DEPTH: usize = 110;

/// Why something deeper is refused.
pub fn too_deep() -> String {
    format!("it is nested more than {MAX_DEPTH} levels deep")
}

/// Number of values that may still be visited.
pub struct Budget(usize);

impl Budget {
    pub fn of(values: usize) -> Self {
        Self(values)
    }

    /// None: fewer are left.
    pub fn spend(&mut self, values: usize) -> Option<()> {
        self.0 = self.0.checked_sub(values)?;
        Some(())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Levels of lists and objects; a scalar has none.
    pub depth: usize,
    /// Approximate size of its JSON, in bytes.
    pub bytes: usize,
}

/// None: it has more values than the budget.
pub fn measure(value: &Value, budget: &mut Budget) -> Option<Measured> {
    let mut measured = Measured::default();
    let mut open = vec![(value, 0)];
    while let Some((value, above)) = open.pop() {
        budget.spend(1)?;
        measured.bytes += match value {
            Value::String(text) => text.len() + 2,
            Value::Object(fields) => fields.keys().map(|name| name.len() + 4).sum::<usize>() + 2,
            Value::Array(items) => items.len() + 2,
            Value::Number(_) | Value::Bool(_) | Value::Null => 4,
        };
        let inner: Box<dyn Iterator<Item = &Value>> = match value {
            Value::Array(items) => Box::new(items.iter()),
            Value::Object(fields) => Box::new(fields.values()),
            _ => continue,
        };
        measured.depth = measured.depth.max(above + 1);
        open.extend(inner.map(|value| (value, above + 1)));
    }
    Some(measured)
}

/// Whether it is flat enough for an object of the API.
pub fn fits(value: &Value) -> bool {
    measure(value, &mut Budget::of(usize::MAX)).is_some_and(|measured| measured.depth <= MAX_DEPTH)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn depth_and_size_are_found_and_a_budget_ends_the_look() {
        let of = |value: &Value| measure(value, &mut Budget::of(100));
        assert_eq!(of(&json!("abc")), Some(Measured { depth: 0, bytes: 5 }));
        assert_eq!(
            of(&json!({"a": [1, {"b": {}}]})).map(|measured| measured.depth),
            Some(4)
        );
        assert_eq!(of(&json!(vec![1; 100])), None);
        let nested = (0..MAX_DEPTH).fold(json!(1), |inner, _| json!([inner]));
        assert!(fits(&nested) && !fits(&json!([nested])));
    }
}
