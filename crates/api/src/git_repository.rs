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
    /// Address of the repository: http, https, `ssh://`, or ssh's short form `git@host:path`. Credentials belong in `secretRef`,
    /// never here.
    #[schemars(
        regex(pattern = r"^(https?://[^\s@]+|ssh://[^\s]+|[A-Za-z0-9_][A-Za-z0-9._+-]*@[^\s/:@]+:[^\s]+)$"),
        length(max = 2048)
    )]
    pub url: String,
    /// The reference to follow; the remote's default branch if absent. One of its fields may be set.
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
    /// A Secret in the same namespace. For http and https: `username` and `password`, `bearerToken`, or `githubAppID`,
    /// `githubAppInstallationID` and `githubAppPrivateKey`; and optionally `ca.crt`. For ssh: `identity` and `known_hosts`, and
    /// optionally `password` for the key. Without it a Secret of the namespace that serves the URL's prefix is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// A Secret in the same namespace with the `address` of an HTTP proxy, and optionally `username`, `password` and `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_secret_ref: Option<LocalReference>,
    /// Fetches the submodules that the revision names, theirs too, and has them at their paths.
    #[serde(default)]
    pub recurse_submodules: bool,
    /// Replaces pointers to large files of Git LFS by the files.
    #[serde(default)]
    pub lfs: bool,
    /// Serves only revisions that are signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<GitVerification>,
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
    /// A reference by its full name, for example `refs/pull/420/head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A commit's full id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What the Pipeline of this name, in the same namespace, has promoted to the stage whose repository this is. Nothing is served before,
    /// but for what was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub pipeline: Option<String>,
}

/// Whose signature a revision needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GitVerification {
    /// What must be signed: the commit (`HEAD`), the annotated tag that is followed (`Tag`), or both (`TagAndHEAD`).
    #[serde(default)]
    pub mode: GitVerificationMode,
    /// A Secret in the same namespace whose values are public keys: OpenPGP's, or ssh's.
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
    /// `Ready`, `Reconciling` and `Stalled`, readable by kstatus; `SourceVerified` where `spec.verify` is set.
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
