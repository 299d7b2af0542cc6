//! HelmRepository: a source of charts.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{git_repository::LocalReference, source::SourceStatus};

/// A repository of Helm charts: an index over http or https, or a registry.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "HelmRepository",
    plural = "helmrepositories",
    shortname = "fwhelm",
    category = "farwater",
    namespaced,
    status = "SourceStatus",
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
pub struct HelmRepositorySpec {
    /// Address of the folder that holds `index.yaml`, or `oci://` and the registry path that holds the charts. Put
    /// credentials in `secretRef`, never here.
    #[schemars(regex(pattern = r"^(https?|oci)://[^\s@]+$"), length(max = 2048))]
    pub url: String,
    /// `oci` for a registry. Optional if `url` begins with `oci://`.
    #[serde(default, rename = "type")]
    pub kind: HelmRepositoryType,
    /// Interval between polls of the remote, as a Go duration between 10s and 24h.
    #[serde(default = "default_interval")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub interval: String,
    /// Maximum time to fetch the index, or one chart, as a Go duration between 1s and 30m.
    #[serde(default = "default_timeout")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: String,
    /// Name of a Secret in the same namespace with `username` and `password`; for a registry also `.dockerconfigjson`.
    /// Empty: a Secret of the namespace that is annotated with a prefix of the URL, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// Name of a Secret in the same namespace with `ca.crt`, and `tls.crt` and `tls.key` for a client certificate.
    /// Empty: no additional authorities and no client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<LocalReference>,
    /// Whether to send the credentials also to other hosts that the index names for its charts.
    #[serde(default)]
    pub pass_credentials: bool,
    /// Whether to use plain HTTP for a registry.
    #[serde(default)]
    pub insecure: bool,
    /// Suspend stops polling. The last fetched index and charts stay in use.
    #[serde(default)]
    pub suspend: bool,
}

/// Longer than for Git: an index may have 25 MB.
fn default_interval() -> String {
    "10m".to_owned()
}

fn default_timeout() -> String {
    "60s".to_owned()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HelmRepositoryType {
    /// An index over http or https.
    #[default]
    Default,
    /// A registry.
    Oci,
}

impl HelmRepositorySpec {
    /// Whether charts come from a registry, by `type` or by `url`.
    pub fn is_registry(&self) -> bool {
        self.kind == HelmRepositoryType::Oci || self.url.starts_with("oci://")
    }
}
