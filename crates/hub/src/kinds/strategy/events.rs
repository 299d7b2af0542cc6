//! Events: `k8s.io/kubernetes/pkg/apis/core/validation/events.go`, on the form that is stored.

use farwater_api::ADMIN_NAMESPACE;
use serde_json::{Value, json};

use super::super::{meta, status::FieldError};
use crate::kinds::ResourceKind;

/// Maximum length of action, reason and reporting instance, and of the message, for events with an `eventTime`.
const SHORT: usize = 128;
const NOTE: usize = 1024;
/// Kubernetes has no limits for older events; these keep a namespace from filling the hub.
const OLD: usize = 4;

/// Fields that Go writes for every event, even if they are empty.
pub fn default(object: &mut Value) {
    for (field, empty) in [
        ("eventTime", Value::Null),
        ("firstTimestamp", Value::Null),
        ("lastTimestamp", Value::Null),
        ("reportingComponent", json!("")),
        ("reportingInstance", json!("")),
        ("source", json!({})),
        ("involvedObject", json!({})),
    ] {
        if object.get(field).is_none() {
            object[field] = empty;
        }
    }
    if object["series"].is_object() && object["series"].get("lastObservedTime").is_none() {
        object["series"]["lastObservedTime"] = Value::Null;
    }
    for field in ["reason", "message", "type", "action"] {
        if object[field] == "" {
            object.as_object_mut().map(|object| object.remove(field));
        }
    }
}

pub fn validate(object: &Value, old: Option<&Value>, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    // Metadata of older events has no further checks: a quirk that clients rely on.
    check_namespace(object, errors);
    check_counts(object, errors);
    if object["eventTime"].is_null() {
        check_old(object, errors);
    } else {
        check_new(object, kind, errors);
    }
    if kind.view.is_none() {
        return;
    }
    match old {
        None => check_created(object, errors),
        Some(old) => check_updated(object, old, errors),
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

/// Events are in the namespace of their object; those of cluster-scoped objects are in the admin namespace.
fn check_namespace(object: &Value, errors: &mut Vec<FieldError>) {
    let (own, involved) = (
        meta::text(object, "namespace"),
        text(&object["involvedObject"], "namespace"),
    );
    let agree = if involved.is_empty() {
        matches!(own, "" | "default" | "kube-system" | ADMIN_NAMESPACE)
    } else {
        // Newer events may be about another namespace.
        own == involved || !object["eventTime"].is_null()
    };
    if !agree {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &json!(involved), why));
    }
}

/// Go reads them as int32: a larger number breaks lists of events for all clients.
fn check_counts(object: &Value, errors: &mut Vec<FieldError>) {
    for (field, count) in [
        ("count", &object["count"]),
        ("series.count", &object["series"]["count"]),
    ] {
        let is_fit = count.is_null() || count.as_i64().is_some_and(|count| i32::try_from(count).is_ok());
        if !is_fit {
            errors.push(FieldError::invalid(field, count, "must be a number of 32 bits"));
        }
    }
}

fn check_old(object: &Value, errors: &mut Vec<FieldError>) {
    for (field, limit) in [("reason", SHORT), ("message", NOTE), ("action", SHORT)] {
        if text(object, field).len() > OLD * limit {
            errors.push(FieldError::too_long(field, (OLD * limit) as u64));
        }
    }
}

fn check_new(object: &Value, kind: &ResourceKind, errors: &mut Vec<FieldError>) {
    let reporter = if kind.view.is_some() {
        "reportingController"
    } else {
        "reportingComponent"
    };
    let controller = text(object, "reportingComponent");
    if controller.is_empty() {
        errors.push(FieldError::required(reporter, ""));
    }
    if let Some(problem) = meta::check_qualified_name(controller) {
        errors.push(FieldError::invalid(reporter, &json!(controller), &problem));
        if controller.is_empty() {
            // Go's rule names both the missing value and its required form.
            errors.push(FieldError::invalid(reporter, &json!(""), meta::QUALIFIED));
        }
    }
    for (field, required, limit) in [
        ("reportingInstance", true, SHORT),
        ("action", true, SHORT),
        ("reason", true, SHORT),
        ("message", false, NOTE),
    ] {
        let text = text(object, field);
        if required && text.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
        if text.len() > limit {
            let detail = format!("can have at most {limit} characters");
            errors.push(FieldError::invalid(field, &json!(""), &detail));
        }
    }
}

fn check_series(object: &Value, errors: &mut Vec<FieldError>) {
    let series = &object["series"];
    if !series.is_object() {
        return;
    }
    if series["count"].as_i64().unwrap_or_default() < 2 {
        errors.push(FieldError::invalid("series.count", &json!(""), "should be at least 2"));
    }
    if !series["lastObservedTime"].is_string() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

/// Checks of the newer version only.
fn check_created(object: &Value, errors: &mut Vec<FieldError>) {
    check_series(object, errors);
    if object["eventTime"].is_null() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(FieldError::invalid(
            "type",
            &json!(""),
            &format!("has invalid value: {kind}"),
        ));
    }
    let source = &object["source"];
    for (field, unset) in [
        ("firstTimestamp", object["firstTimestamp"].is_null()),
        ("lastTimestamp", object["lastTimestamp"].is_null()),
        ("count", object["count"].as_i64().unwrap_or_default() == 0),
        (
            "source",
            text(source, "component").is_empty() && text(source, "host").is_empty(),
        ),
    ] {
        if !unset {
            errors.push(FieldError::invalid(field, &json!(""), "needs to be unset"));
        }
    }
}

/// In the newer version an event never changes, except its series.
fn check_updated(object: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if object["series"] != old["series"] {
        check_series(object, errors);
    }
    for (field, name) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        if object[field] != old[field] {
            errors.push(FieldError::invalid(name, &object[field], "field is immutable"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    fn check(group: &str, mut object: Value, old: Option<&Value>, expected: &[&str]) {
        object["metadata"] = json!({"name": "e", "namespace": "ns"});
        default(&mut object);
        let mut errors = Vec::new();
        validate(&object, old, REGISTRY.find(group, "v1", "events").unwrap(), &mut errors);
        assert_eq!(
            errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(),
            expected,
            "{object}"
        );
    }

    #[test]
    fn the_newer_version_asks_for_more() {
        let about = json!({"namespace": "ns"});
        check("", json!({"involvedObject": about}), None, &[]);
        check("", json!({}), None, &["involvedObject.namespace"]);
        check(
            "events.k8s.io",
            json!({"involvedObject": about}),
            None,
            &["eventTime", "type"],
        );
        let new = json!({
            "involvedObject": about, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "action": "A",
            "reason": "R", "reportingComponent": "a.b/c", "reportingInstance": "i",
        });
        check("events.k8s.io", new.clone(), None, &[]);
        let mut long = new.clone();
        long["message"] = json!("x".repeat(NOTE + 1));
        check("events.k8s.io", long, None, &["message"]);
        let mut series = new.clone();
        series["series"] = json!({"count": 1});
        check(
            "events.k8s.io",
            series.clone(),
            None,
            &["series.count", "series.lastObservedTime"],
        );
        let mut old = new.clone();
        default(&mut old);
        let mut changed = new;
        changed["reason"] = json!("S");
        check("events.k8s.io", changed.clone(), Some(&old), &["reason", "reason"]);
        check("", changed, Some(&old), &[]);
    }
}
