//! ClusterGrant: which tenants may place what on which clusters, and as whom.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A right of tenants (namespaces of the hub) on clusters. Without one, a tenant reaches no cluster. In force as soon as it is
/// written, like a RoleBinding, so it has no status.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ClusterGrant",
    plural = "clustergrants",
    category = "farwater",
    derive = "PartialEq",
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".spec.namespaces"),
    printcolumn(name = "Verbs", type_ = "string", json_path = ".spec.verbs"),
    printcolumn(name = "Account", type_ = "string", json_path = ".spec.serviceAccountName"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ClusterGrantSpec {
    /// Which clusters, by label; an empty selector is every cluster.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Namespaces of the hub that hold the right, by name.
    #[schemars(length(min = 1, max = 1000), extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// What they may do: `deploy` services.
    #[schemars(length(min = 1), extend("x-kubernetes-list-type" = "set"))]
    pub verbs: Vec<GrantVerb>,
    /// Sources that they may deploy from: prefixes of URLs. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allowed_sources: Option<Vec<String>>,
    /// Namespaces of the cluster that they may deploy to; a trailing `*` matches a prefix. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub target_namespaces: Option<Vec<String>>,
    /// Kinds that they may deploy, as `Kind` or `Kind.group`. Absent: any that is not denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allowed_kinds: Option<Vec<String>>,
    /// Kinds that they may not deploy, as `Kind` or `Kind.group`; wins over `allowedKinds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub denied_kinds: Option<Vec<String>>,
    /// The cluster's service account that the agent acts as: `NAME` in the service's target namespace, or
    /// `NAMESPACE/NAME`.
    #[schemars(length(min = 1, max = 507))]
    pub service_account_name: String,
}

/// One for each thing that a grant has an effect on: a right without one would promise what nobody holds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GrantVerb {
    Deploy,
}
