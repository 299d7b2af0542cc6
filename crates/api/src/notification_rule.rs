//! NotificationRule: what of a namespace a provider is told.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::git_repository::LocalReference;

/// Rules of a namespace that are in force: the first by name.
pub const MAX_RULES: usize = 64;
/// The `name` of a source that stands for every one of its kind in the namespace.
pub const EVERY: &str = "*";

/// What a NotificationProvider is told: how rollouts of some ServiceSets go, and which ServiceDeployments fail and recover.
///
/// A rollout is one thread: where messages can be edited it is one message, and elsewhere its beginning, what stops it and its end.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "NotificationRule",
    plural = "notificationrules",
    category = "farwater",
    namespaced,
    status = "NotificationRuleStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.providerRef.name"),
    printcolumn(name = "Severity", type_ = "string", json_path = ".spec.eventSeverity"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct NotificationRuleSpec {
    /// A NotificationProvider of the same namespace.
    pub provider_ref: LocalReference,
    #[serde(default)]
    pub event_severity: EventSeverity,
    /// Of this namespace.
    #[schemars(length(min = 1, max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub event_sources: Vec<EventSource>,
    /// Stands in each message: which environment it is about, or what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 255))]
    pub summary: String,
    /// Tells nothing.
    #[serde(default)]
    pub suspend: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventSeverity {
    /// Everything.
    #[default]
    Info,
    /// What fails, and how that ends.
    Error,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventKind {
    #[default]
    ServiceSet,
    ServiceDeployment,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSource {
    pub kind: EventKind,
    /// One object's name, or `*` for all of the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Beside the name `*`: only those with these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationRuleStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: it is in force. Else its message says why its provider is told nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_is_read_as_people_write_it() {
        let spec = json!({
            "providerRef": {"name": "chat"},
            "eventSources": [{"kind": "ServiceSet", "name": "*", "matchLabels": {"team": "a"}}],
        });
        let spec: NotificationRuleSpec = serde_json::from_value(spec).unwrap();
        assert_eq!((spec.event_severity, spec.event_sources[0].kind), (EventSeverity::Info, EventKind::ServiceSet));
    }
}
