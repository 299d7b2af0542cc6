//! ManagedNamespace: one namespace on many clusters, with what belongs to it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    RolloutPolicy, ServiceSetStatus, git_repository::LocalReference, schemas, service_deployment::DeletionPolicy,
};

/// The set of a ManagedNamespace is called after it, and a service of the set after that and its cluster.
pub const MAX_NAME: usize = 63;
/// Of the ResourceQuota, the LimitRange and nothing else: the ServiceAccount is the namespace's own.
pub const OBJECT_NAME: &str = "farwater";

/// A namespace on each cluster that a selector finds, with its labels and annotations, image pull secrets, quota and limits.
///
/// The hub makes a ServiceSet `namespace-NAME` of it, by which it spreads; that set and its services are read-only.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters.matched"),
    printcolumn(name = "Healthy", type_ = "integer", json_path = ".status.clusters.ready"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ManagedNamespaceSpec {
    /// Which clusters, by label; an empty selector is every cluster that this namespace of the hub may deploy to.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Name of the namespace in the clusters; absent: that of this resource. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Of the namespace. Labels that others have set there stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Of the namespace. Annotations that others have set there stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Secrets of this resource's own namespace in the hub that the namespace gets too, and that its ServiceAccount `default` names in
    /// `imagePullSecrets`. They travel sealed to each cluster's agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pull_secrets: Vec<LocalReference>,
    /// A ResourceQuota of the namespace, called `farwater`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_quota: Option<NamespaceQuota>,
    /// A LimitRange of the namespace, called `farwater`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_range: Option<NamespaceLimits>,
    /// How a change spreads over the clusters.
    #[serde(default)]
    pub rollout: RolloutPolicy,
    /// What happens on a cluster that the selector finds no more, or when this resource is deleted. Also with `Delete` a namespace
    /// goes only once its deletion was approved on its cluster.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

impl ManagedNamespaceSpec {
    /// `name`: of the resource.
    pub fn namespace<'a>(&'a self, name: &'a str) -> &'a str {
        self.namespace.as_deref().unwrap_or(name)
    }
}

/// As the spec of a ResourceQuota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceQuota {
    /// By resource: `requests.cpu`, `limits.memory`, `pods`, `count/deployments.apps`.
    #[schemars(schema_with = "schemas::quantities")]
    pub hard: BTreeMap<String, IntOrString>,
}

/// As the spec of a LimitRange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceLimits {
    #[schemars(length(min = 1, max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub limits: Vec<LimitItem>,
}

/// Each map is by resource: `cpu`, `memory`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitItem {
    pub r#type: LimitType,
    /// What a container is limited to that says nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub default: BTreeMap<String, IntOrString>,
    /// What a container asks for that says nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub default_request: BTreeMap<String, IntOrString>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub max: BTreeMap<String, IntOrString>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub min: BTreeMap<String, IntOrString>,
    /// How many times as much as it asks for something may be limited to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schemas::quantities")]
    pub max_limit_request_ratio: BTreeMap<String, IntOrString>,
}

/// What a limit is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LimitType {
    #[default]
    Container,
    Pod,
    PersistentVolumeClaim,
}

const SET_PREFIX: &str = "namespace-";

/// Of the ServiceSet that a ManagedNamespace makes.
pub fn set_name(name: &str) -> String {
    format!("{SET_PREFIX}{name}")
}

/// Of the ManagedNamespace that would make a ServiceSet of this name; none: none would.
pub fn maker_name(set: &str) -> Option<&str> {
    set.strip_prefix(SET_PREFIX)
}
