//! ChangeWindow: when changes may begin.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Digest;

/// Windows that one cluster's agent is handed: those that deny come first.
pub const MAX_HANDED: usize = 64;
/// Namespaces, clusters and services that one window names.
pub const MAX_NAMES: usize = 64;

/// When changes may begin. Drift is undone and what was begun is ended at any time.
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
    printcolumn(name = "Until", type_ = "string", json_path = ".status.nextChange"),
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
    /// Which of these clusters, by name; none: every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub clusters: Vec<String>,
    /// Namespaces of services; of use in `farwater-admin` alone. None: every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Which services, by label; an empty selector is every one.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub service_selector: LabelSelector,
    /// Which of these services, by name; none: every one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub services: Vec<String>,
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

/// What an agent is handed of windows. It goes by its own clock, so that nothing has to be sent when one opens or closes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Windows {
    pub windows: Vec<HandedWindow>,
    /// By service uid: the entry of it that begins in spite of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, Digest>,
}

/// A window, with what it concerns already found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandedWindow {
    pub namespace: String,
    pub name: String,
    /// As [`WindowType`] is written; one that a reader doesn't know holds what it concerns.
    pub r#type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    #[serde(default = "default_time_zone")]
    pub time_zone: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// uids of the services that it concerns; absent: all of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Vec<String>>,
}

impl HandedWindow {
    pub fn of(namespace: &str, name: &str, spec: &ChangeWindowSpec, services: Option<Vec<String>>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            r#type: spec.r#type.to_string(),
            schedule: spec.schedule.clone(),
            duration: spec.duration.clone(),
            time_zone: spec.time_zone.clone(),
            start: spec.start.clone(),
            end: spec.end.clone(),
            reason: spec.reason.clone(),
            services,
        }
    }

    /// When it is in force; none: it is of a newer version.
    pub fn spec(&self) -> Option<ChangeWindowSpec> {
        let types = [WindowType::Allow, WindowType::Deny];
        Some(ChangeWindowSpec {
            r#type: types.into_iter().find(|known| known.to_string() == self.r#type)?,
            schedule: self.schedule.clone(),
            duration: self.duration.clone(),
            time_zone: self.time_zone.clone(),
            start: self.start.clone(),
            end: self.end.clone(),
            reason: self.reason.clone(),
            ..ChangeWindowSpec::default()
        })
    }
}
