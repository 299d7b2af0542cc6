//! GitRepository: where desired state comes from.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Git repository that is polled and read without a checkout.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "GitRepository",
    plural = "gitrepositories",
    shortname = "fwgit",
    category = "farwater",
    namespaced,
    status = "GitRepositoryStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revision"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct GitRepositorySpec {
    /// Address of the repository: http or https. Credentials belong in `secretRef`, never here.
    #[schemars(regex(pattern = r"^https?://[^\s@]+$"), length(max = 2048))]
    pub url: String,
    /// What to follow; the branch `main` if absent. One of its fields may be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<GitReference>,
    /// How often the remote is asked, as a Go duration; between 10s and 24h.
    #[serde(default = "default_interval")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub interval: String,
    /// Longest time that one fetch may take, as a Go duration; between 1s and 30m.
    #[serde(default = "default_timeout")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: String,
    /// A Secret in the same namespace with `username` and `password`, or `bearerToken`, and optionally `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// Stops polling; what was fetched goes on being served.
    #[serde(default)]
    pub suspend: bool,
}

fn default_interval() -> String {
    "2m".to_owned()
}

fn default_timeout() -> String {
    "60s".to_owned()
}

/// What to follow in a repository. Exactly one field may be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1, "x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct GitReference {
    /// A branch's short name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// A tag's short name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// A semver range over the tags' names, for example `>=1.2.0 <2.0.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semver: Option<String>,
    /// A commit's full id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// The name of an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LocalReference {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitRepositoryStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Reconciling` and `Stalled`, readable by kstatus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// What is served: `<branch or tag>@sha1:<commit>`, as Flux writes revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// When `revision` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fetch_time: Option<Time>,
    /// Since when the remote could not be asked; absent while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since: Option<Time>,
    /// The last request annotation that was acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}
