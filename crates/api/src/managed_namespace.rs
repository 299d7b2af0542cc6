//! ManagedNamespace: one namespace on many clusters, with its contents.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    RolloutPolicy, ServiceSetStatus, git_repository::LocalReference, schemas, service_deployment::DeletionPolicy,
};

/// Maximum length of a name, in bytes. The names of the set and its services contain it.
pub const MAX_NAME: usize = 63;
/// Name of the ResourceQuota and the LimitRange. The ServiceAccount is the namespace's own.
pub const OBJECT_NAME: &str = "farwater";

/// A namespace on each selected cluster, with labels, annotations, image pull secrets, a quota and limits.
///
/// The hub creates a ServiceSet `namespace-NAME` from it, which rolls it out. That set and its services are read-only.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ManagedNamespace",
    plural = "managednamespaces",
    shortname = "fwmn",
    category = "farwater",
    namespaced,
    status = "ServiceSetStatus",
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
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters.matched"),
    printcolumn(name = "Healthy", type_ = "integer", json_path = ".status.clusters.ready"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ManagedNamespaceSpec {
    /// Label selector for clusters. Empty: every cluster that this namespace of the hub may deploy to.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Name of the namespace in the clusters. Empty: the name of this resource. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Labels of the namespace. Labels that others have set there stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the namespace. Annotations that others have set there stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Secrets in this resource's own namespace of the hub that are copied to the namespace. Its ServiceAccount
    /// `default` lists them in `imagePullSecrets`. They travel sealed to each cluster's agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pull_secrets: Vec<LocalReference>,
    /// ResourceQuota `farwater` of the namespace. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_quota: Option<NamespaceQuota>,
    /// LimitRange `farwater` of the namespace. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_range: Option<NamespaceLimits>,
    /// Rollout of changes over the clusters.
    #[serde(default)]
    pub rollout: RolloutPolicy,
    /// What happens on a cluster that the selector no longer matches, or when this resource is deleted. Even with
    /// `Delete`, a namespace is deleted only after its deletion is approved on its cluster.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

impl ManagedNamespaceSpec {
    /// `name`: the name of the resource.
    pub fn namespace<'a>(&'a self, name: &'a str) -> &'a str {
        self.namespace.as_deref().unwrap_or(name)
    }
}

/// Spec of a ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceQuota {
    /// Quantities by resource, such as `requests.cpu`, `limits.memory`, `pods` or `count/deployments.apps`.
    #[schemars(schema_with = "schemas::quantities")]
    pub hard: BTreeMap<String, IntOrString>,
}

/// Spec of a LimitRange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceLimits {
    /// Limits, at most one for each type.
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub limits: Vec<LimitItem>,
}

/// Limits of one type. Each map is by resource, such as `cpu` or `memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitItem {
    /// Type of the limited objects.
    pub r#type: LimitType,
    /// Default limits of a container that sets none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub default: BTreeMap<String, IntOrString>,
    /// Default requests of a container that sets none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub default_request: BTreeMap<String, IntOrString>,
    /// Maximum amounts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub max: BTreeMap<String, IntOrString>,
    /// Minimum amounts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub min: BTreeMap<String, IntOrString>,
    /// Maximum ratio of limit to request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub max_limit_request_ratio: BTreeMap<String, IntOrString>,
}

/// Type of the limited objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LimitType {
    #[default]
    Container,
    Pod,
    PersistentVolumeClaim,
}

const SET_PREFIX: &str = "namespace-";

/// Name of the ServiceSet of a ManagedNamespace.
pub fn set_name(name: &str) -> String {
    format!("{SET_PREFIX}{name}")
}

/// Name of the ManagedNamespace to which a ServiceSet of this name would belong. None: the set belongs to no
/// ManagedNamespace.
pub fn maker_name(set: &str) -> Option<&str> {
    set.strip_prefix(SET_PREFIX)
}
