//! HealthRule: how objects of a kind are judged that the built-in rules say too little about.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest expression. What needs more is a controller's work, which then writes a condition.
pub const MAX_EXPRESSION: usize = 1024;
/// Rules of all kinds, of a hub and of a service each.
pub const MAX_RULES: usize = 64;
/// Bytes of all of the hub's rules that are in force, as JSON: each agent gets them with its services.
pub const MAX_RULES_BYTES: usize = 64 << 10;
/// Bytes of a service's own rules, as JSON: a cluster may have thousands of services.
pub const MAX_OWN_BYTES: usize = 16 << 10;

/// How objects of one kind are judged, in all clusters, in place of the built-in rules. What is being deleted, or has an
/// `observedGeneration` that is behind, is told so first. Expressions are CEL, and the object is `self`; of a Secret they see
/// metadata and type alone. Where one has no value, the object's health is unknown.
///
/// Of several rules for one kind the first by name is in force, and a service's own (`spec.health`) come before them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "HealthRule",
    plural = "healthrules",
    category = "farwater",
    status = "HealthRuleStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.group"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Current", type_ = "string", json_path = ".spec.current", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct HealthRuleSpec {
    /// The kind's API group, in any version; empty for Kubernetes' core.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub group: String,
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Asked first: true while the object is on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub in_progress: Option<String>,
    /// Asked next: true where it will not become healthy by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub failed: Option<String>,
    /// Asked last: true where it is healthy. An object that none of the three is true of is on its way.
    #[schemars(length(min = 1, max = 1024))]
    pub current: String,
    /// What is said of one that is not healthy: an expression whose value is a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthRuleStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: it is in force. Else `message` says why agents don't get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl HealthRuleSpec {
    /// The expressions that there are, by field, in the order in which they are asked.
    pub fn expressions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            self.in_progress.as_deref().map(|text| ("inProgress", text)),
            self.failed.as_deref().map(|text| ("failed", text)),
            Some(("current", self.current.as_str())),
            self.message.as_deref().map(|text| ("message", text)),
        ]
        .into_iter()
        .flatten()
    }
}

/// The hub's rules, as its agents get them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthRules {
    /// By name, the order in which they count.
    pub rules: Vec<NamedRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedRule {
    pub name: String,
    #[serde(flatten)]
    pub rule: HealthRuleSpec,
}
