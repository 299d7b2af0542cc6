//! GitRepository: a source of desired state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Git repository. The hub polls it and reads its files without a checkout.
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
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.revision"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct GitRepositorySpec {
    /// Address of the repository: http, https, `ssh://`, or ssh's short form `git@host:path`. Put credentials in
    /// `secretRef`, never here.
    #[schemars(
        regex(pattern = r"^(https?://[^\s@]+|ssh://[^\s]+|[A-Za-z0-9_][A-Za-z0-9._+-]*@[^\s/:@]+:[^\s]+)$"),
        length(max = 2048)
    )]
    pub url: String,
    /// Reference to follow. Only one of its fields may be set. Empty: the remote's default branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<GitReference>,
    /// Interval between polls of the remote, as a Go duration between 10s and 24h.
    #[serde(default = "default_interval")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub interval: String,
    /// Maximum time of one fetch, as a Go duration between 1s and 30m.
    #[serde(default = "default_timeout")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: String,
    /// Name of a Secret in the same namespace. For http and https, the Secret holds `username` and `password`,
    /// `bearerToken`, or `githubAppID`, `githubAppInstallationID` and `githubAppPrivateKey`, and optionally `ca.crt`.
    /// For ssh it holds `identity` and `known_hosts`, and optionally `password` for the key. Empty: a Secret of the
    /// namespace that is annotated with a prefix of the URL, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// Name of a Secret in the same namespace with the `address` of an HTTP proxy, and optionally `username`,
    /// `password` and `ca.crt`. Empty: no proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<LocalReference>,
    /// Whether to fetch submodules, recursively, and place them at their paths.
    #[serde(default)]
    pub recurse_submodules: bool,
    /// Whether to replace Git LFS pointers with the files.
    #[serde(default)]
    pub lfs: bool,
    /// Serve only revisions with a valid signature. Empty: signatures are not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<GitVerification>,
    /// Suspend stops polling. The last fetched revision stays in use.
    #[serde(default)]
    pub suspend: bool,
}

fn default_interval() -> String {
    "2m".to_owned()
}

fn default_timeout() -> String {
    "60s".to_owned()
}

/// Reference to follow in a repository. Exactly one field may be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1, "x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct GitReference {
    /// Name of a branch, in short form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Name of a tag, in short form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Semver range over the names of the tags, such as `>=1.2.0 <2.0.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semver: Option<String>,
    /// Full name of a reference, such as `refs/pull/420/head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Full id of a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Name of a Pipeline in the same namespace. The repository serves the commit that the Pipeline promoted to the
    /// stage of this repository. Until the first promotion, only a revision that was already fetched stays in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pipeline: Option<String>,
}

/// Signatures that a revision needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitVerification {
    /// Object that must be signed: the commit (`HEAD`), the followed annotated tag (`Tag`), or both (`TagAndHEAD`).
    #[serde(default)]
    pub mode: GitVerificationMode,
    /// Name of a Secret in the same namespace whose values are OpenPGP or ssh public keys.
    pub secret_ref: LocalReference,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GitVerificationMode {
    #[default]
    #[serde(rename = "HEAD")]
    Head,
    Tag,
    #[serde(rename = "TagAndHEAD")]
    TagAndHead,
}

/// Reference to an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LocalReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Observed state of the GitRepository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitRepositoryStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Reconciling` and `Stalled`, as kstatus reads them; `SourceVerified` if `spec.verify` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Revision that is served: `<branch or tag>@sha1:<commit>`, the format of Flux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Time at which `revision` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fetch_time: Option<Time>,
    /// Time since which the remote has failed to answer. Empty while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since: Option<Time>,
    /// Value of the last handled request annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}
