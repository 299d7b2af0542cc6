//! JSON patch (RFC 6902) and JSON merge patch (RFC 7386) with limits; strategic merge patch is in `strategic`.

use json_patch::PatchOperation;
use serde_json::Value;

use super::strategic;
use crate::kinds::{
    depth::{self, Budget},
    status::ApiError,
};

/// Maximum operations of a JSON patch, as in kube-apiserver.
const OPERATIONS_LIMIT: usize = 10_000;
/// Maximum bytes that `copy` operations may add: otherwise a few dozen of them could double a document to any size.
const COPY_LIMIT: usize = 3 * 1024 * 1024;
/// Maximum values, nested ones included, that all operations of a patch may read. A patch of the largest size adds
/// about as many.
const WALK_LIMIT: usize = 3_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
}

impl PatchType {
    pub const JSON: &'static str = "application/json-patch+json";
    pub const MERGE: &'static str = "application/merge-patch+json";
    pub const STRATEGIC: &'static str = "application/strategic-merge-patch+json";

    pub const APPLY: &'static str = "application/apply-patch+yaml";

    /// By content type. Strategic patches need Go's struct tags, which our kinds, like custom resources, don't have.
    pub fn of(content_type: &str, ours: bool) -> Result<Self, ApiError> {
        match content_type {
            Self::JSON => Ok(Self::Json),
            Self::MERGE => Ok(Self::Merge),
            Self::STRATEGIC if !ours => Ok(Self::Strategic),
            _ if ours => {
                let accepted = [Self::JSON, Self::MERGE, Self::APPLY];
                Err(ApiError::unsupported_media_type(&accepted.join(", ")))
            }
            _ => Err(ApiError::wrong_media_type()),
        }
    }
}

/// A decoded patch.
#[derive(Clone, Debug)]
pub enum Patch {
    Json(Vec<PatchOperation>),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    pub fn decode(kind: PatchType, body: Value) -> Result<Self, ApiError> {
        let wrong = |what: &str| ApiError::bad_request(format!("error decoding patch: {what}"));
        match kind {
            PatchType::Json => {
                let list = body
                    .as_array()
                    .ok_or_else(|| wrong("a JSON patch is a list of operations"))?;
                if list.len() > OPERATIONS_LIMIT {
                    let message = format!(
                        "The allowed maximum operations in a JSON patch is {OPERATIONS_LIMIT}, got {}",
                        list.len()
                    );
                    return Err(ApiError::new(413, "RequestEntityTooLarge", message));
                }
                serde_json::from_value(body)
                    .map(Self::Json)
                    .map_err(|e| wrong(&e.to_string()))
            }
            PatchType::Merge if body.is_object() => Ok(Self::Merge(body)),
            PatchType::Strategic if body.is_object() => Ok(Self::Strategic(body)),
            _ => Err(wrong("a patch of this type is an object")),
        }
    }

    /// The object after the patch. `schema`: has the merge keys for strategic patches.
    pub fn apply(&self, object: &Value, schema: &Value) -> Result<Value, ApiError> {
        let mut patched = object.clone();
        match self {
            Self::Json(operations) => apply_operations(&mut patched, operations)?,
            Self::Merge(patch) => json_patch::merge(&mut patched, patch),
            Self::Strategic(patch) => {
                patched = strategic::merge(object, patch, schema).map_err(ApiError::bad_request)?;
            }
        }
        if !patched.is_object() {
            return Err(ApiError::bad_request(
                "the patch leaves something that is not an object",
            ));
        }
        Ok(patched)
    }
}

fn apply_operations(object: &mut Value, operations: &[PatchOperation]) -> Result<(), ApiError> {
    let mut budget = Budget::of(WALK_LIMIT);
    let mut copied = 0;
    for (n, operation) in operations.iter().enumerate() {
        let invalid = |why: &str| {
            let message = format!("the JSON patch's operation {n} ({}) failed: {why}", operation.path());
            ApiError::new(422, "Invalid", message)
        };

        // The value that the operation writes or compares. Its depth is checked before any other code walks it.
        let value = match operation {
            PatchOperation::Add(add) => Some(&add.value),
            PatchOperation::Replace(replace) => Some(&replace.value),
            PatchOperation::Test(test) => Some(&test.value),
            PatchOperation::Copy(copy) => copy.from.resolve(object).ok(),
            PatchOperation::Move(moved) => moved.from.resolve(object).ok(),
            PatchOperation::Remove(_) => None,
        };

        let too_much = || {
            let message = "the JSON patch moves, copies and compares too much";
            ApiError::new(413, "RequestEntityTooLarge", message.to_owned())
        };

        // Inserting into a list, or removing from it, moves all later items.
        let from = match operation {
            PatchOperation::Move(moved) => Some(&moved.from),
            _ => None,
        };
        for pointer in from.into_iter().map(|from| from.as_ptr()).chain([operation.path()]) {
            let list = pointer
                .parent()
                .and_then(|parent| parent.resolve(object).ok())
                .and_then(Value::as_array);
            budget.spend(list.map_or(0, Vec::len)).ok_or_else(too_much)?;
        }

        if let Some(value) = value {
            let measured = depth::measure(value, &mut budget).ok_or_else(too_much)?;
            if operation.path().tokens().count() + measured.depth > depth::MAX_DEPTH {
                return Err(invalid(&depth::too_deep()));
            }
            if matches!(operation, PatchOperation::Copy(_)) {
                copied += measured.bytes;
            }
        }

        if copied > COPY_LIMIT {
            let message = format!("the patch copies more than {COPY_LIMIT} bytes");
            return Err(ApiError::new(413, "RequestEntityTooLarge", message));
        }

        json_patch::patch_unsafe(object, std::slice::from_ref(operation)).map_err(|e| invalid(&e.kind.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(kind: PatchType, patch: Value) -> Result<Value, (u16, String)> {
        let object = json!({"a": {"b": 1}, "list": [1, 2]});
        let patched = Patch::decode(kind, patch).and_then(|p| p.apply(&object, &Value::Null));
        patched.map_err(|e| (e.code, e.message))
    }

    #[test]
    fn merge_patches_remove_with_null_and_replace_lists() {
        let patch = json!({"a": {"b": null, "c": 2}, "list": [3]});
        assert_eq!(apply(PatchType::Merge, patch), Ok(json!({"a": {"c": 2}, "list": [3]})));
        assert_eq!(apply(PatchType::Merge, json!([])).unwrap_err().0, 400);
    }

    #[test]
    fn json_patches_are_all_or_nothing() {
        let patch = json!([{"op": "test", "path": "/a/b", "value": 1}, {"op": "add", "path": "/list/-", "value": 3}]);
        assert_eq!(
            apply(PatchType::Json, patch),
            Ok(json!({"a": {"b": 1}, "list": [1, 2, 3]}))
        );
        for failing in [
            json!([{"op": "test", "path": "/a/b", "value": 2}]),
            json!([{"op": "remove", "path": "/none"}]),
            json!([{"op": "add", "path": "/list/9", "value": 1}]),
        ] {
            assert_eq!(apply(PatchType::Json, failing.clone()).unwrap_err().0, 422, "{failing}");
        }
        assert_eq!(apply(PatchType::Json, json!({})).unwrap_err().0, 400);
        assert_eq!(
            apply(PatchType::Json, json!([{"op": "remove", "path": ""}]))
                .unwrap_err()
                .0
                / 100,
            4
        );
    }

    #[test]
    fn copies_can_not_blow_a_document_up() {
        let copy = json!({"op": "copy", "from": "/list", "path": "/list/-"});
        let error = apply(PatchType::Json, json!(vec![copy; 60])).unwrap_err();
        assert_eq!(error.0, 413);
    }

    /// Each copy into its own depths doubles them. A few of these once overflowed the stack, which ends the process.
    #[test]
    fn copies_can_not_nest_a_document_without_an_end() {
        let mut nested = json!(1);
        for _ in 0..100 {
            nested = json!({"a": nested});
        }
        let mut operations = vec![json!({"op": "add", "path": "/x", "value": nested})];
        let mut path = "/x".to_owned() + &"/a".repeat(100);
        for _ in 0..6 {
            operations.push(json!({"op": "copy", "from": "/x", "path": path}));
            path = format!("{path}{}", &path["/x".len()..]);
        }
        let (code, message) = apply(PatchType::Json, json!(operations)).unwrap_err();
        assert_eq!(code, 422);
        assert!(
            message.contains("operation 1") && message.contains("nested more than"),
            "{message}"
        );
    }

    #[test]
    fn a_patch_that_looks_at_much_again_and_again_is_refused() {
        let large = json!(vec![1; 10_000]);
        let mut operations = vec![json!({"op": "add", "path": "/x", "value": large})];
        for n in 0..1000 {
            let (from, to) = if n % 2 == 0 { ("/x", "/y") } else { ("/y", "/x") };
            operations.push(json!({"op": "move", "from": from, "path": to}));
        }
        assert_eq!(apply(PatchType::Json, json!(operations)).unwrap_err().0, 413);
        // Each of these moves the whole list.
        let mut operations = vec![json!({"op": "add", "path": "/x", "value": large})];
        operations.extend((0..1000).map(|_| json!({"op": "add", "path": "/x/0", "value": 1})));
        assert_eq!(apply(PatchType::Json, json!(operations)).unwrap_err().0, 413);
    }

    #[test]
    fn patches_are_refused_where_they_have_no_meaning() {
        assert_eq!(
            PatchType::of("application/apply-patch+cbor", false).unwrap_err().code,
            415
        );
        assert_eq!(PatchType::of(PatchType::STRATEGIC, true).unwrap_err().code, 415);
        assert_eq!(
            PatchType::of(PatchType::STRATEGIC, false).unwrap(),
            PatchType::Strategic
        );
    }
}
