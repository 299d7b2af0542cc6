//! The parts of a live object's metadata that the agent keeps.

pub mod versions;

use farwater_api::{FIELD_MANAGER, OWNER_ANNOTATION, SERVICE_LABEL};
use farwater_fleet::plan::{Ending, LiveObject, Writer, around::without, options, owned_fields};
use serde_json::{Map, Value, json};

/// Managers of client-side tools: their fields become ours when a service adopts the object.
const CLIENT_SIDE: [&str; 4] = ["kubectl-client-side-apply", "kubectl", "argocd-controller", "helm"];

const STRING_DATA: &str = "f:stringData";

/// Reads the metadata of an object or of a PartialObjectMetadata.
pub fn live_object(object: &Value) -> LiveObject {
    let metadata = &object["metadata"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    LiveObject {
        uid: text(&metadata["uid"]).unwrap_or_default(),
        resource_version: text(&metadata["resourceVersion"]).unwrap_or_default(),
        owner: text(&metadata["annotations"][OWNER_ANNOTATION]),
        service_label: text(&metadata["labels"][SERVICE_LABEL]),
        fields: owned_fields(metadata),
        deleting: metadata["deletionTimestamp"].is_string(),
        ending: metadata["deletionTimestamp"].as_str().map(|since| {
            let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
            let finalizers = finalizers
                .filter_map(|finalizer| finalizer.as_str().map(str::to_owned))
                .collect();
            Box::new(Ending {
                since: since.to_owned(),
                finalizers,
            })
        }),
        moves: metadata["managedFields"].as_array().is_some_and(|entries| {
            let applied = entries
                .iter()
                .find(|entry| is_our_apply(entry))
                .map(|entry| &entry["fieldsV1"]);
            entries
                .iter()
                .any(|entry| moves(entry, applied.unwrap_or(&Value::Null)))
        }),
        protection: Box::new(options::read_protection(metadata)),
        wave: options::read_wave(metadata).unwrap_or_default(),
        completed: metadata["managedFields"].as_array().is_some_and(|entries| {
            entries
                .iter()
                .any(|entry| entry["subresource"] == "status" && is_completion(&entry["fieldsV1"]["f:status"]))
        }),
    }
}

/// The Job controller writes `completionTime` when a Job is complete, and never for a failed Job. A watch of metadata
/// shows the manager of that field.
fn is_completion(status: &Value) -> bool {
    status.get("f:completionTime").is_some()
}

/// Whether fields of an entry are to become those of our applies, or are twice ours. `applied`: those of our applies.
fn moves(entry: &Value, applied: &Value) -> bool {
    let fields = &entry["fieldsV1"];
    let is_twice_ours = is_our_update(entry) && without(fields, applied) != *fields;
    is_client_side(entry) || is_twice_ours || (is_our_apply(entry) && fields.get(STRING_DATA).is_some())
}

fn is_our_apply(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
}

/// Whether the entry is from our writes that were no applies. It includes fields that admission added to them.
fn is_our_update(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER && entry["operation"] == "Update" && entry["subresource"].is_null()
}

fn is_client_side(entry: &Value) -> bool {
    entry["operation"] == "Update"
        && entry["subresource"].is_null()
        && entry["manager"].as_str().is_some_and(|m| CLIENT_SIDE.contains(&m))
}

/// The last other writer of an object: a writer that takes over one of our fields writes after us, and not by writing
/// the status. None: unknown, e.g. because it only removed fields, which leaves no entry. Only computed for objects
/// that drift.
pub fn last_writer(metadata: &Value) -> Option<Box<Writer>> {
    let entries = metadata["managedFields"].as_array()?;
    let ours = |entry: &&Value| entry["manager"] == FIELD_MANAGER;
    let since = entries.iter().filter(ours).filter_map(time_of).max();
    // Entries of `scale` have no time. They are candidates too, but a writer that certainly wrote after us takes
    // precedence.
    let others = entries
        .iter()
        .filter(|entry| !ours(entry) && entry["subresource"] != "status");
    let after_us = others.filter(|entry| time_of(entry).is_none_or(|time| Some(time) >= since));
    let last = after_us.max_by(|a, b| time_of(a).cmp(&time_of(b)))?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(Box::new(Writer {
        manager: text(&last["manager"])?,
        operation: text(&last["operation"]).unwrap_or_default(),
        subresource: text(&last["subresource"]),
        time: text(&last["time"]),
    }))
}

/// Adds to a text about fields of others (managers in parentheses) when one of these managers last wrote the object.
pub fn add_time(fields: &str, object: Option<&Value>) -> String {
    let entries = object
        .and_then(|object| object["metadata"]["managedFields"].as_array())
        .into_iter()
        .flatten();
    let is_named = |entry: &&Value| {
        entry["subresource"] != "status"
            && entry["manager"]
                .as_str()
                .is_some_and(|manager| fields.contains(&format!("({manager})")))
    };
    match entries.filter(is_named).filter_map(time_of).max() {
        Some(time) => format!("{fields}, last at {time}"),
        None => fields.to_owned(),
    }
}

/// API servers write times in UTC in one format, so texts compare like times.
fn time_of(entry: &Value) -> Option<&str> {
    entry["time"].as_str()
}

/// A JSON patch, bound to the object's version, that moves the fields of client-side tools to our applies like
/// `k8s.io/client-go/util/csaupgrade`, and removes duplicates of ours. Earlier agents applied `stringData`, whose
/// values are stored in `data`. `with_updates`: everything that we wrote by other means counts as applied too, because
/// it can't be applied.
pub fn migration(object: &Value, with_updates: bool) -> Option<Value> {
    let metadata = &object["metadata"];
    let entries = metadata["managedFields"].as_array()?;
    let mut fields = json!({});
    let mut api_version = None;
    let is_taken =
        |entry: &Value| is_our_apply(entry) || is_client_side(entry) || (with_updates && is_our_update(entry));
    for entry in entries.iter().filter(|entry| is_taken(entry)) {
        merge(&mut fields, &entry["fieldsV1"]);
        if api_version.is_none() || is_our_apply(entry) {
            api_version = Some(entry["apiVersion"].clone());
        }
    }
    if let Some(texts) = fields.as_object_mut().and_then(|fields| fields.remove(STRING_DATA)) {
        merge(&mut fields["f:data"], &texts);
    }

    let mut rest = Vec::new();
    for entry in entries.iter().filter(|entry| !is_taken(entry)) {
        let mut entry = entry.clone();
        if is_our_update(&entry) {
            entry["fieldsV1"] = without(&entry["fieldsV1"], &fields);
        }
        if entry["fieldsV1"] != json!({}) {
            rest.push(entry);
        }
    }
    rest.push(json!({
        "manager": FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": api_version?,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }));
    Some(replace_entries(metadata, rest))
}

/// A JSON patch that replaces the entries, bound to the object's version.
fn replace_entries(metadata: &Value, entries: Vec<Value>) -> Value {
    json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
    ])
}

/// The union of two field sets in the format FieldsV1.
fn merge(into: &mut Value, from: &Value) {
    let Some(from) = from.as_object() else { return };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(into) = into.as_object_mut() else { return };
    for (key, value) in from {
        merge(into.entry(key.clone()).or_insert_with(|| json!({})), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries by manager, subresource and second.
    fn written(entries: &[(&str, &str, u32)]) -> Value {
        let entry = |(manager, subresource, second): &(&str, &str, u32)| {
            let operation = if *manager == FIELD_MANAGER { "Apply" } else { "Update" };
            let time = format!("2026-11-23T02:41:{second:02}Z");
            let mut entry = json!({"manager": manager, "operation": operation, "time": time});
            if !subresource.is_empty() {
                entry["subresource"] = json!(subresource);
            }
            entry
        };
        json!({"metadata": {"managedFields": entries.iter().map(entry).collect::<Vec<_>>()}})
    }

    #[test]
    fn a_job_is_complete_when_its_controller_says_when() {
        let check = |field: &str, subresource: &str, completed: bool| {
            let mut job = written(&[(FIELD_MANAGER, "", 10), ("kube-controller-manager", subresource, 11)]);
            job["metadata"]["managedFields"][1]["fieldsV1"] = json!({"f:status": {field: {}}});
            assert_eq!(live_object(&job).completed, completed, "{field} {subresource}");
        };
        check("f:completionTime", "status", true);
        check("f:conditions", "status", false);
        check("f:completionTime", "", false);
    }

    #[test]
    fn the_last_writer_is_another_one_who_wrote_after_us_and_not_the_status() {
        let check = |entries: &[(&str, &str, u32)], expected: Option<&str>| {
            let writer = last_writer(&written(entries)["metadata"]);
            let told = writer.map(|writer| format!("{writer} {}", writer.time.as_deref().unwrap_or_default()));
            let expected = expected.map(|text| text.replace("at ", "2026-11-23T02:41:"));
            assert_eq!(told, expected, "{entries:?}");
        };
        let ours = (FIELD_MANAGER, "", 10);
        check(
            &[ours, ("kubectl-edit", "", 11), ("helm", "", 10)],
            Some("kubectl-edit at 11Z"),
        );
        check(
            &[ours, ("hpa", "scale", 12), ("edit", "", 11), ("kcm", "status", 30)],
            Some("hpa (scale) at 12Z"),
        );
        // In the same second.
        check(&[ours, ("kubectl-edit", "", 10)], Some("kubectl-edit at 10Z"));
        // A writer from before our apply did not change it since; the one that did has left no entry.
        check(&[ours, ("helm", "", 9), ("kcm", "status", 30)], None);
        check(&[("helm", "", 9)], Some("helm at 09Z"));
        check(&[ours], None);
        check(&[], None);
        assert_eq!(last_writer(&json!({})), None);

        let mut scaled = written(&[ours, ("hpa", "scale", 12)]);
        scaled["metadata"]["managedFields"][1]["time"].take();
        assert_eq!(last_writer(&scaled["metadata"]).unwrap().to_string(), "hpa (scale)");
    }

    #[test]
    fn conflicts_say_when_their_managers_wrote() {
        let ours = (FIELD_MANAGER, "", 50);
        let live = written(&[ours, ("a", "", 12), ("b", "", 11), ("c", "", 40), ("a", "status", 45)]);
        let time = "2026-11-23T02:41:12Z";
        assert_eq!(
            add_time(".x (b), .y (a)", Some(&live)),
            format!(".x (b), .y (a), last at {time}")
        );
        assert_eq!(add_time(".x (another)", Some(&live)), ".x (another)");
        assert_eq!(add_time(".x (a)", None), ".x (a)");
    }

    #[test]
    fn client_side_fields_become_ours() {
        let object = json!({"metadata": {"resourceVersion": "7", "managedFields": [
            {"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "v1",
             "fieldsV1": {"f:data": {".": {}, "f:a": {}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "apiVersion": "v1"},
            {"manager": "farwater-agent", "operation": "Apply", "apiVersion": "v1", "fieldsV1": {"f:data": {"f:b": {}}}},
        ]}});
        assert!(live_object(&object).moves);
        let patch = migration(&object, false).unwrap();
        let entries = patch[0]["value"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0]["manager"], "kube-controller-manager");
        assert_eq!(
            entries[1]["fieldsV1"],
            json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}})
        );
        assert_eq!(patch[1]["value"], "7");
    }

    #[test]
    fn what_we_wrote_otherwise_becomes_that_of_our_applies() {
        let of_us = |operation: &str, fields: Value| json!({"manager": FIELD_MANAGER, "operation": operation, "apiVersion": "v1", "fieldsV1": fields});
        let moved = |entries: &[Value], with_updates: bool| {
            let object = json!({"metadata": {"resourceVersion": "7", "managedFields": entries}});
            if !live_object(&object).moves {
                return None;
            }
            let patch = migration(&object, with_updates).unwrap();
            let entries = patch[0]["value"].as_array().unwrap().iter();
            let told = entries.map(|entry| format!("{} {}", entry["operation"].as_str().unwrap(), entry["fieldsV1"]));
            Some(told.collect::<Vec<_>>())
        };
        let applied = of_us("Apply", json!({"f:data": {"f:a": {}, "f:b": {}}}));
        assert_eq!(moved(std::slice::from_ref(&applied), false), None);
        // Fields that admission added stay in an entry of their own, because an apply would remove them.
        let update = of_us(
            "Update",
            json!({"f:data": {"f:b": {}}, "f:metadata": {"f:finalizers": {}}}),
        );
        let both = [update.clone(), applied];
        let expected = [
            "Update {\"f:metadata\":{\"f:finalizers\":{}}}",
            "Apply {\"f:data\":{\"f:a\":{},\"f:b\":{}}}",
        ];
        assert_eq!(moved(&both, false).unwrap(), expected);
        let expected = ["Apply {\"f:data\":{\"f:a\":{},\"f:b\":{}},\"f:metadata\":{\"f:finalizers\":{}}}"];
        assert_eq!(moved(&both, true).unwrap(), expected);
        assert_eq!(moved(&[update], false), None);
        let texts = of_us("Apply", json!({"f:data": {"f:a": {}}, "f:stringData": {"f:b": {}}}));
        assert_eq!(
            moved(&[texts], false).unwrap(),
            ["Apply {\"f:data\":{\"f:a\":{},\"f:b\":{}}}"]
        );
    }
}
