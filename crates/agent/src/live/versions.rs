//! The version of its kind that our fields of an object count as.
//!
//! An API server stores with each entry of `managedFields` the version in which it was written, and reads the whole
//! object by that version's schema before it accepts an apply. When an object moves to a newer version together with a
//! field that the old one lacks, that fails, and only a successful apply would move the entry. So our entries are moved
//! first. Those of other managers are left to them.

use std::collections::BTreeSet;

use farwater_api::FIELD_MANAGER;
use serde_json::Value;

use super::{merge, replace_entries};

/// How our fields of an object get to count as of a version.
#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// By a JSON patch, bound to the object's version.
    Patch(Value),
    /// They already do.
    Done,
    /// The patch would not help, because the fields of other managers still keep the API server from reading the
    /// object. Names them and their version.
    Held(String),
}

pub fn move_fields(object: &Value, api_version: &str) -> Move {
    let metadata = &object["metadata"];
    let is_old = |entry: &Value| entry["apiVersion"] != api_version;
    let entries = metadata["managedFields"].as_array().into_iter().flatten();
    let (ours, others): (Vec<&Value>, Vec<&Value>) = entries.partition(|entry| entry["manager"] == FIELD_MANAGER);
    if !ours.iter().any(|entry| is_old(entry)) {
        return Move::Done;
    }
    let held: BTreeSet<String> = others
        .iter()
        .filter(|entry| is_old(entry))
        .map(|entry| name_of(entry))
        .collect();
    if !held.is_empty() {
        return Move::Held(held.into_iter().collect::<Vec<_>>().join(", "));
    }
    let mut entries: Vec<Value> = others.into_iter().cloned().collect();
    let count = entries.len();
    for entry in ours {
        let is_same = |other: &Value| {
            ["operation", "subresource"]
                .iter()
                .all(|field| other[*field] == entry[*field])
        };
        match entries[count..].iter().position(is_same) {
            Some(at) => merge(&mut entries[count + at]["fieldsV1"], &entry["fieldsV1"]),
            None => {
                let mut moved = entry.clone();
                moved["apiVersion"] = api_version.into();
                entries.push(moved);
            }
        }
    }
    Move::Patch(replace_entries(metadata, entries))
}

/// `manager (subresource) in version`.
fn name_of(entry: &Value) -> String {
    let text = |field: &str| entry[field].as_str().unwrap_or_default();
    let subresource = entry["subresource"]
        .as_str()
        .map_or_else(String::new, |name| format!(" ({name})"));
    format!("{}{subresource} in {}", text("manager"), text("apiVersion"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NEW: &str = "example.com/v2";

    fn entry(manager: &str, operation: &str, version: &str, field: &str) -> Value {
        let mut entry =
            json!({"manager": manager, "operation": operation, "apiVersion": format!("example.com/{version}")});
        entry["fieldsV1"]["f:spec"][format!("f:{field}")] = json!({});
        entry
    }

    fn moved(entries: &[Value]) -> Move {
        move_fields(
            &json!({"metadata": {"resourceVersion": "7", "managedFields": entries}}),
            NEW,
        )
    }

    #[test]
    fn our_entries_move_and_those_of_others_stay() {
        let theirs = entry("kubectl-edit", "Update", "v2", "crew");
        let Move::Patch(patch) = moved(&[
            entry(FIELD_MANAGER, "Apply", "v1", "length"),
            theirs.clone(),
            entry(FIELD_MANAGER, "Update", "v1", "length"),
            entry(FIELD_MANAGER, "Update", "v2", "paint"),
        ]) else {
            panic!("nothing is moved")
        };
        let mut updated = entry(FIELD_MANAGER, "Update", "v2", "length");
        updated["fieldsV1"]["f:spec"]["f:paint"] = json!({});
        assert_eq!(
            patch[0]["value"],
            json!([theirs, entry(FIELD_MANAGER, "Apply", "v2", "length"), updated])
        );
        assert_eq!(patch[1]["value"], "7");
    }

    #[test]
    fn nothing_moves_that_need_not_or_would_not_help() {
        let ours = |version: &str| entry(FIELD_MANAGER, "Apply", version, "length");
        assert_eq!(moved(&[]), Move::Done);
        assert_eq!(moved(&[ours("v2"), entry("other", "Update", "v1", "crew")]), Move::Done);
        let mut status = entry("shipyard", "Update", "v1", "crew");
        status["subresource"] = json!("status");
        let held = moved(&[
            ours("v1"),
            status,
            entry("a", "Apply", "v1", "crew"),
            entry("b", "Update", "v2", "crew"),
        ]);
        assert_eq!(
            held,
            Move::Held("a in example.com/v1, shipyard (status) in example.com/v1".to_owned())
        );
    }
}
