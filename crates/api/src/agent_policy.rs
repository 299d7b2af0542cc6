//! AgentPolicy: which version agents run, and how they come to it.

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector},
    util::intstr::IntOrString,
};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// What the agents of some clusters shall be. It is part of the signed desired state of each: the agent changes its own
/// Deployment, and goes back by itself where the new version does not report in time.
///
/// Where several policies select a cluster, the first by name is in force. A policy that is deleted leaves agents as they are.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedClusters"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct AgentPolicySpec {
    /// Which clusters, by label; an empty selector is every cluster.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// The agent's image, by tag or digest. Of the repository that the agent was installed from: it takes no other. Absent:
    /// as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// What the agent logs, as in `FARWATER_LOG`: `info`, `debug` or a filter by module. Absent: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub log: Option<String>,
    /// Limit of the agent's memory, a Kubernetes quantity such as `512Mi`. Absent: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[1-9][0-9]*(Mi|Gi|M|G)$"))]
    pub memory_limit: Option<String>,
    /// How many clusters change at one time, once the first has changed: a number, or a percentage of those that are
    /// selected.
    #[serde(default = "default_max_unavailable")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: IntOrString,
    /// An agent that has not reported under its new settings by then goes back to the old ones, as a Go duration; between 30s
    /// and 1h.
    #[serde(default = "default_deadline")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub deadline: String,
    /// Begins nothing. Agents that are on their way get there, or go back.
    #[serde(default)]
    pub suspend: bool,
}

fn default_max_unavailable() -> IntOrString {
    IntOrString::String("10%".to_owned())
}

fn default_deadline() -> String {
    "5m".to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentPolicyStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: every selected cluster's agent that is heard runs as the policy says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// That have joined, and that this policy is in force for.
    #[serde(default)]
    pub clusters: i64,
    #[serde(default)]
    pub updated_clusters: i64,
    /// On their way.
    #[serde(default)]
    pub updating_clusters: i64,
    /// Gone back to what was before.
    #[serde(default)]
    pub failed_clusters: i64,
}
