//! NotificationRule: which events of a namespace a provider receives.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::git_repository::LocalReference;

/// Maximum number of rules of a namespace in force: the first by name.
pub const MAX_RULES: usize = 64;
/// `name` of a source that matches every object of its kind in the namespace.
pub const EVERY: &str = "*";

/// Events that a NotificationProvider receives: the course of rollouts of some ServiceSets, and failures and recoveries
/// of ServiceDeployments.
///
/// A rollout is one thread. Where messages can be edited, it is one message; elsewhere a message is sent when it
/// starts, when something stops it, and when it ends.
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
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#
    ),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.providerRef.name"),
    printcolumn(name = "Severity", type_ = "string", json_path = ".spec.eventSeverity"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct NotificationRuleSpec {
    /// Name of a NotificationProvider in the same namespace.
    pub provider_ref: LocalReference,
    /// Minimum severity of events.
    #[serde(default)]
    pub event_severity: EventSeverity,
    /// Objects of this namespace whose events are sent.
    #[schemars(length(min = 1, max = 100), extend("x-kubernetes-list-type" = "atomic"))]
    pub event_sources: Vec<EventSource>,
    /// Text in each message, such as the environment or what to do. Empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 255))]
    pub summary: String,
    /// Suspend sends nothing.
    #[serde(default)]
    pub suspend: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EventSeverity {
    /// All events.
    #[default]
    Info,
    /// Failures, and how they end.
    Error,
}

/// Kind of the objects whose events are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventKind {
    #[default]
    ServiceSet,
    ServiceDeployment,
}

/// Objects whose events are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSource {
    /// Kind of the objects.
    pub kind: EventKind,
    /// Name of the object, or `*` for all of the kind in the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// With the name `*`: labels that the objects must have. Empty: all objects.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// Observed state of the NotificationRule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationRuleStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True while the rule is in force. Otherwise its message says why its provider receives nothing.
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
        assert_eq!(
            (spec.event_severity, spec.event_sources[0].kind),
            (EventSeverity::Info, EventKind::ServiceSet)
        );
    }
}
