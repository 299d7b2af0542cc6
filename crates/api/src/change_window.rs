//! ChangeWindow: when changes may start.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Digest;

/// Maximum number of windows that an agent receives. Windows that deny come first.
pub const MAX_HANDED: usize = 64;
/// Maximum number of namespaces, clusters and services, each, that one window names.
pub const MAX_NAMES: usize = 64;

/// Times at which changes may start. Drift correction and changes that have already started are not affected.
///
/// No change starts for a service on a cluster while a matching window of type `Deny` is in force. If windows of type
/// `Allow` match, one of them must be in force. A window in the namespace `farwater-admin` applies to the whole fleet.
/// A window in another namespace applies to the services of that namespace, and to all services on its clusters.
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
    /// Whether the window allows or denies changes.
    #[serde(default)]
    pub r#type: WindowType,
    /// Start times in cron format: minute, hour, day of the month, month, day of the week. Empty: the window is in
    /// force from `start` to `end`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub schedule: Option<String>,
    /// Length of each period that the schedule starts, as a Go duration between 1m and 744h. Required with `schedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub duration: Option<String>,
    /// IANA time zone of the schedule, such as `Europe/Berlin`. A start that the clock skips happens right after the
    /// skip. A start that occurs twice happens once.
    #[serde(default = "default_time_zone")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: String,
    /// Time before which the window has no effect, in RFC 3339 format. Empty: no start limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub start: Option<String>,
    /// Time from which the window has no effect, in RFC 3339 format. Empty: no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub end: Option<String>,
    /// Label selector for clusters. Empty: every cluster.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Names of clusters, within `clusterSelector`. Empty: every cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub clusters: Vec<String>,
    /// Namespaces of services. Only for windows in `farwater-admin`. Empty: every namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Label selector for services. Empty: every service.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub service_selector: LabelSelector,
    /// Names of services, within `serviceSelector`. Empty: every service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub services: Vec<String>,
    /// Reason that is shown for changes that wait. Required with type `Deny`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WindowType {
    /// Changes start only while the window is in force.
    Allow,
    /// No change starts while the window is in force.
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

/// Observed state of the ChangeWindow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeWindowStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True while the window is valid. Its reason is `InForce`, `Waiting` or `Over`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Whether the window is in force now.
    #[serde(default)]
    pub in_force: bool,
    /// Time at which `inForce` changes next. Empty: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_change: Option<String>,
}

/// Windows as an agent receives them. The agent uses its own clock, so the hub sends nothing when a window opens or
/// closes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Windows {
    pub windows: Vec<HandedWindow>,
    /// Entries that start in spite of the windows, by service uid.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: BTreeMap<String, Digest>,
}

/// A window with its selectors already resolved to services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandedWindow {
    pub namespace: String,
    pub name: String,
    /// [`WindowType`] as text. A type that the reader does not know holds the services of the window.
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
    /// uids of the services that the window applies to. Absent: all services of the desired state.
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

    /// The times of the window. None: the type is of a newer version.
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
