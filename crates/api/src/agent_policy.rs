//! AgentPolicy: the version and settings of agents, and how updates reach them.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// Version and settings of the agents of some clusters. They are part of each cluster's signed desired state. The agent
/// updates its own Deployment, and rolls back by itself if the new version does not report in time.
///
/// If several policies select a cluster, the first by name applies. Deleting a policy leaves agents as they are.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "AgentPolicy",
    plural = "agentpolicies",
    shortname = "fwap",
    category = "farwater",
    status = "AgentPolicyStatus",
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
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedClusters"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct AgentPolicySpec {
    /// Label selector for clusters. Empty: every cluster.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Image of the agent, by tag or digest. The repository must be the one that the agent was installed from; the
    /// agent refuses any other. Empty: the image stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Log filter of the agent, as in `FARWATER_LOG`: `info`, `debug` or a filter by module. Empty: the filter stays as
    /// it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub log: Option<String>,
    /// Memory limit of the agent, a Kubernetes quantity such as `512Mi`. Empty: the limit stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[1-9][0-9]*(Mi|Gi|M|G)$"))]
    pub memory_limit: Option<String>,
    /// Maximum number of clusters that update at the same time, once the first has updated. A number, or a percentage
    /// of the selected clusters.
    #[serde(default = "default_max_unavailable")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: IntOrString,
    /// Time within which an agent must report under its new settings. An agent that misses it rolls back to the old
    /// ones. A Go duration between 30s and 1h.
    #[serde(default = "default_deadline")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub deadline: String,
    /// Suspend keeps new updates from starting. Agents that are already updating finish, or roll back.
    #[serde(default)]
    pub suspend: bool,
}

fn default_max_unavailable() -> IntOrString {
    IntOrString::String("10%".to_owned())
}

fn default_deadline() -> String {
    "5m".to_owned()
}

/// Observed state of the AgentPolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentPolicyStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True when every selected agent that the hub hears from runs as the policy says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of clusters that have joined and to which this policy applies.
    #[serde(default)]
    pub clusters: i64,
    /// Number of clusters whose agent runs as the policy says.
    #[serde(default)]
    pub updated_clusters: i64,
    /// Number of clusters that are updating now.
    #[serde(default)]
    pub updating_clusters: i64,
    /// Number of clusters whose agent rolled back, or did not report in time.
    #[serde(default)]
    pub failed_clusters: i64,
}
