//! Kinds that show what another kind stores: `events.k8s.io/v1` is core/v1's Event with other names for its fields.
//!
//! All code works on the stored form. Requests are converted after decoding, answers when they are written.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::ResourceKind;

/// How a kind shows the objects of another.
#[derive(Debug)]
pub struct View {
    pub stored_group: &'static str,
    stored_version: &'static str,
    /// (stored, shown); other fields have the same name in both.
    names: &'static [(&'static str, &'static str)],
    /// Omitted if they are empty; their stored forms are always written.
    omitted: &'static [&'static str],
}

/// `k8s.io/kubernetes/pkg/apis/events/v1/conversion.go`.
pub static EVENTS: View = View {
    stored_group: "",
    stored_version: "v1",
    names: &[
        ("count", "deprecatedCount"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("involvedObject", "regarding"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("message", "note"),
        ("reportingComponent", "reportingController"),
        ("source", "deprecatedSource"),
    ],
    omitted: &["reportingController", "reportingInstance"],
};

/// An object as its kind shows it.
pub fn show<'a>(kind: &ResourceKind, object: &'a Value) -> Cow<'a, Value> {
    let (Some(view), Some(fields)) = (kind.view, object.as_object()) else {
        return Cow::Borrowed(object);
    };
    let shown_name = |name: &str| {
        view.names
            .iter()
            .find(|(stored, _)| *stored == name)
            .map(|(_, shown)| *shown)
    };
    let mut shown: Map<String, Value> = fields
        .iter()
        .map(|(name, value)| (shown_name(name).unwrap_or(name).to_owned(), value.clone()))
        .filter(|(name, value)| !(view.omitted.contains(&name.as_str()) && value == ""))
        .collect();
    shown.insert("apiVersion".into(), json!(kind.api_version()));
    Cow::Owned(shown.into())
}

/// An object as it is stored.
pub fn store(kind: &ResourceKind, object: Value) -> Value {
    let Some(view) = kind.view else { return object };
    let Value::Object(fields) = object else { return object };
    let stored_name = |name: &str| {
        view.names
            .iter()
            .find(|(_, shown)| *shown == name)
            .map(|(stored, _)| *stored)
    };
    let mut stored: Map<String, Value> = fields
        .into_iter()
        .map(|(name, value)| (stored_name(&name).map_or(name, str::to_owned), value))
        .collect();
    stored.insert("apiVersion".into(), json!(view.stored_version));
    stored.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    #[test]
    fn an_event_is_the_same_in_both_versions() {
        let kind = REGISTRY.find("events.k8s.io", "v1", "events").unwrap();
        let stored = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "m", "count": 3,
            "involvedObject": {"kind": "Cluster"}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
            "reportingComponent": "a/b", "reportingInstance": "", "series": {"count": 2}, "eventTime": null,
        });
        let shown = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "m",
            "deprecatedCount": 3, "regarding": {"kind": "Cluster"}, "deprecatedSource": {},
            "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null, "reportingController": "a/b",
            "series": {"count": 2}, "eventTime": null,
        });
        assert_eq!(*show(kind, &stored), shown);
        let mut back = store(kind, shown);
        back["reportingInstance"] = json!("");
        assert_eq!(back, stored);
        let core = REGISTRY.find("", "v1", "events").unwrap();
        assert_eq!(
            (&*show(core, &stored), store(core, stored.clone())),
            (&stored, stored.clone())
        );
    }
}
