//! ChangeWindow: when changes may begin.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Namespaces that one window names.
pub const MAX_NAMESPACES: usize = 64;

/// When new versions may be assigned. Drift is undone and what was begun is ended at any time.
///
/// Of the windows that concern a service on a cluster, one that denies and is in force closes; where there are any that allow, one of them
/// must be in force. A window of the namespace `farwater-admin` concerns the whole fleet, one of another namespace that namespace's
/// services, and all services on its clusters.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ChangeWindow",
    plural = "changewindows",
    shortname = "fwcw",
    category = "farwater",
    namespaced,
    status = "ChangeWindowStatus",
    derive = "PartialEq",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "In force", type_ = "boolean", json_path = ".status.inForce"),
    printcolumn(name = "Until", type_ = "date", json_path = ".status.nextChange"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ChangeWindowSpec {
    #[serde(default)]
    pub r#type: WindowType,
    /// When it begins, as cron writes it: minute, hour, day of the month, month, day of the week. Absent: it is in force from `start` to `end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub schedule: Option<String>,
    /// How long it is in force each time, as a Go duration; between 1m and 744h. With a schedule it is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub duration: Option<String>,
    /// Of the schedule, as the IANA names it: `Europe/Berlin`. A time that a clock passes over begins when the clock has passed; one that
    /// comes twice begins once.
    #[serde(default = "default_time_zone")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// Before it the window does not count, as RFC 3339 writes times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub start: Option<String>,
    /// From it on the window does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub end: Option<String>,
    /// Which clusters, by label; an empty selector is every one.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Namespaces of services; of use in `farwater-admin` alone. None: every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Which services, by label; an empty selector is every one.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub service_selector: LabelSelector,
    /// What people are told whose change waits. Who denies says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WindowType {
    /// Changes begin while it is in force, and not between.
    Allow,
    /// No change begins while it is in force.
    #[default]
    Deny,
}

impl fmt::Display for WindowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn default_time_zone() -> String {
    "UTC".to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeWindowStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(default)]
    pub in_force: bool,
    /// When it is in force next, or not any more; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_change: Option<String>,
}
