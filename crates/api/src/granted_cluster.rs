//! GrantedCluster: a cluster that a tenant may deploy to, as the tenant sees it. The hub creates it for each request and
//! stores none.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube_core::CustomResourceExt as _;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::service_deployment::ClusterReference;

/// A cluster that ClusterGrants let services of this namespace deploy to. It can only be read.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "GrantedCluster",
    plural = "grantedclusters",
    namespaced,
    status = "GrantedClusterStatus",
    derive = "PartialEq",
    printcolumn(name = "Of", type_ = "string", json_path = ".spec.clusterRef.namespace"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Connected", type_ = "boolean", json_path = ".status.connected"),
    printcolumn(name = "Heard", type_ = "date", json_path = ".status.lastHeardTime")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct GrantedClusterSpec {
    /// The cluster, as `clusterRef` of a service names it.
    pub cluster_ref: ClusterReference,
}

/// Health, and nothing else of the Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GrantedClusterStatus {
    /// Status of the Cluster's condition `Ready`: `True`, `False` or `Unknown`.
    pub ready: String,
    /// Whether the agent has a connection over which the hub tells it of changes at once.
    pub connected: bool,
    /// Time of the agent's last request. Empty: it was not heard yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_time: Option<Time>,
}

/// For discovery and OpenAPI only: GrantedClusters are not stored, so the definition is never installed.
pub fn definition() -> CustomResourceDefinition {
    let mut definition = GrantedCluster::crd();
    crate::describe_kind(&mut definition);
    definition
}
