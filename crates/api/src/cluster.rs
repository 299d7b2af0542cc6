//! Cluster: one Kubernetes cluster, whose agent pulls from the hub.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::schemas;

/// A Kubernetes cluster. It joins with a one-time token, and the hub reaches it only through its agent's requests.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "Cluster",
    plural = "clusters",
    shortname = "fwc",
    category = "farwater",
    namespaced,
    status = "ClusterStatus",
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
    printcolumn(name = "Version", type_ = "string", json_path = ".status.kubernetesVersion"),
    printcolumn(name = "Heard", type_ = "date", json_path = ".status.lastHeardTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agentVersion", priority = 1),
    printcolumn(name = "Connected", type_ = "boolean", json_path = ".status.connected", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Interval between requests of the agent for its desired state, as a Go duration between 1s and 10m.
    #[serde(default = "default_poll_interval")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub poll_interval: String,
    /// Suspend holds every change to the cluster. Running workloads keep running.
    #[serde(default)]
    pub suspend: bool,
    /// Values that services on the cluster may receive beside its labels and annotations: account and network ids,
    /// domains. Any form; at most 32 KiB as JSON, 512 names and 16 levels. Not for secrets: anyone who may read the
    /// Cluster can read them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schemas::free_form")]
    pub metadata: Map<String, Value>,
}

fn default_poll_interval() -> String {
    "30s".to_owned()
}

/// Observed state of the Cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True when the cluster has joined and its agent was heard within three polls. `ClockSkewed` is set
    /// while the clock of the agent's machine differs from the hub's. `Restored` is set while nothing is deleted
    /// because the hub's database was restored from a backup; the annotation `farwater.dev/confirm-restored` ends it.
    /// `AgentUpdated` is False if the agent rolled back from its AgentPolicy. `VersionSkew` is set while the agent is
    /// newer than the hub, or more than two releases older.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Kubernetes version of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// Version of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Image in the agent's Deployment. Empty if the agent was started by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_image: Option<String>,
    /// Limits set when the agent was installed. The hub cannot change them. Empty for older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_limits: Option<AgentLimits>,
    /// Public age key (`age1…`) for SOPS files that only this cluster can decrypt. It changes with the agent's keys.
    /// Files encrypted to earlier keys stay readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_recipient: Option<String>,
    /// Seconds by which the clock of the agent's machine is ahead of the hub's; negative if it is behind. Empty: less
    /// than a minute. The agent uses the hub's time; other programs in the cluster do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_seconds: Option<i64>,
    /// Time of the agent's last request. It is stored beside the resource and added on reads, so it triggers no watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_time: Option<Time>,
    /// Whether the agent has a connection over which the hub announces changes at once. Empty: the agent polls. Added
    /// on reads, as `lastHeardTime` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
}

/// Limits set when an agent was installed. No hub can widen them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentLimits {
    /// Patterns of service accounts that services may act as: NAMESPACE/NAME.
    pub accounts: Vec<String>,
    /// Patterns of namespaces that services may touch. Only their full names match kube-system, kube-public and
    /// kube-node-lease.
    pub namespaces: Vec<String>,
    /// Patterns of kinds that services may not change: RESOURCE[.GROUP].
    pub denied_kinds: Vec<String>,
    /// Maximum number of objects that the agent deletes for services per minute.
    pub deletions_per_minute: u32,
}
