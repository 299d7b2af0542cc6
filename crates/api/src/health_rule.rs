//! HealthRule: health of objects of one kind, where the built-in rules say too little.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum length of an expression. A longer rule belongs in a controller that writes a condition.
pub const MAX_EXPRESSION: usize = 1024;
/// Maximum number of rules of all kinds, for a hub and for each service.
pub const MAX_RULES: usize = 64;
/// Maximum size of all of the hub's rules in force, in bytes of JSON: each agent receives them with its services.
pub const MAX_RULES_BYTES: usize = 64 << 10;
/// Maximum size of a service's own rules, in bytes of JSON: a cluster may have thousands of services.
pub const MAX_OWN_BYTES: usize = 16 << 10;

/// Health check for the objects of one kind, in all clusters, in place of the built-in rules. Objects that are being
/// deleted, or whose `observedGeneration` is behind, are reported as such before any expression runs. Expressions are
/// CEL, and `self` is the object; for a Secret, only its metadata and type. If an expression has no value, the object's
/// health is unknown.
///
/// If several rules name one kind, the first by name applies. A service's own rules (`spec.health`) take precedence.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "HealthRule",
    plural = "healthrules",
    category = "farwater",
    status = "HealthRuleStatus",
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
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.group"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Current", type_ = "string", json_path = ".spec.current", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct HealthRuleSpec {
    /// API group of the kind, in any version. Empty: the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub group: String,
    /// The kind.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Expression that is evaluated first. True: the object is progressing. Empty: the check is skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub in_progress: Option<String>,
    /// Expression that is evaluated second. True: the object will not become healthy by itself. Empty: the check is
    /// skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub failed: Option<String>,
    /// Expression that is evaluated last. True: the object is healthy. If none of the three is true, the object is
    /// progressing.
    #[schemars(length(min = 1, max = 1024))]
    pub current: String,
    /// Expression for the message of an object that is not healthy. Its value is a string. Empty: no message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub message: Option<String>,
}

/// Observed state of the HealthRule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthRuleStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True while the rule is in force. Otherwise its message says why agents do not receive the rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl HealthRuleSpec {
    /// The expressions that are set, by field, in the order of evaluation.
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

/// The hub's rules, as its agents receive them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthRules {
    /// Sorted by name, the order in which they take precedence.
    pub rules: Vec<NamedRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedRule {
    pub name: String,
    #[serde(flatten)]
    pub rule: HealthRuleSpec,
}
