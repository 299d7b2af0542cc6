//! Cluster: one Kubernetes cluster, whose agent pulls from the hub.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::schemas;

/// A Kubernetes cluster that joins by a one-time token and is reached only by its own agent's requests.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.kubernetesVersion"),
    printcolumn(name = "Heard", type_ = "date", json_path = ".status.lastHeardTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Agent", type_ = "string", json_path = ".status.agentVersion", priority = 1),
    printcolumn(name = "Connected", type_ = "boolean", json_path = ".status.connected", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// How often the agent asks for its desired state, as a Go duration; between 1s and 10m.
    #[serde(default = "default_poll_interval")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub poll_interval: String,
    /// Holds every change to the cluster; what runs there goes on running.
    #[serde(default)]
    pub suspend: bool,
    /// What services on the cluster may be handed of it beside its labels and annotations: account and network ids, domains. Values
    /// of any form; at most 32 KiB as JSON, 512 names and 16 levels. Not for secrets: whoever may read the Cluster reads them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schemas::free_form")]
    pub metadata: Map<String, Value>,
}

fn default_poll_interval() -> String {
    "30s".to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` (joined and heard within three polls), `ClockSkewed` while the agent's machine has another time than the hub, and
    /// `Restored` while nothing is deleted because the hub's database was restored from a backup; the annotation
    /// `farwater.dev/confirm-restored` ends that. `AgentUpdated` is False where the agent went back from what its AgentPolicy says.
    /// `VersionSkew` while the agent is newer than the hub, or more than two releases older.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// The image that the agent's Deployment names; absent where the agent was started by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_image: Option<String>,
    /// Limits that were set when the agent was installed, and that the hub can't change; absent for older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_limits: Option<AgentLimits>,
    /// `age1…`: what files are encrypted to with SOPS that this cluster alone shall open. It changes with the agent's keys;
    /// those of before go on opening what is encrypted to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_recipient: Option<String>,
    /// By how many seconds the clock of the agent's machine is ahead of the hub's, negative where it is behind; absent where
    /// that is less than a minute. The agent goes by the hub's time; other programs of the cluster don't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_seconds: Option<i64>,
    /// When the agent last asked. Kept beside the resource and merged in when it is read, so it wakes no watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_time: Option<Time>,
    /// Whether the agent has a connection over which it is told of changes at once; absent: it polls. Merged in like the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
}

/// Limits that an agent was installed with. No hub can widen them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentLimits {
    /// Patterns of the service accounts that services may act as: NAMESPACE/NAME.
    pub accounts: Vec<String>,
    /// Patterns of the namespaces that services may touch. kube-system, kube-public and kube-node-lease are matched by their full names
    /// only.
    pub namespaces: Vec<String>,
    /// Patterns of the kinds that services may not change: RESOURCE[.GROUP].
    pub denied_kinds: Vec<String>,
    /// Objects that are deleted for services per minute.
    pub deletions_per_minute: u32,
}
