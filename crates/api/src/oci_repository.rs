//! OCIRepository: a source of files in a registry.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{git_repository::LocalReference, source::SourceStatus};

/// An artifact in a registry, from `flux push artifact` or `helm push`, or any image with an archive as a layer.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "OCIRepository",
    plural = "ocirepositories",
    shortname = "fwoci",
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
pub struct OCIRepositorySpec {
    /// Address of the repository: `oci://HOST[:PORT]/PATH`, without a tag.
    #[schemars(regex(pattern = r"^oci://[^\s@]+$"), length(max = 2048))]
    pub url: String,
    /// Reference to follow. Only one of its fields may be set. Empty: the tag `latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<OCIReference>,
    /// Layer to read, and how to read it. Empty: the first layer, as an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_selector: Option<LayerSelector>,
    /// Signature that an artifact needs before it is served. Empty: signatures are not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verification>,
    /// Interval between polls of the registry, as a Go duration between 10s and 24h.
    #[serde(default = "default_interval")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub interval: String,
    /// Maximum time of one fetch, as a Go duration between 1s and 30m.
    #[serde(default = "default_timeout")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: String,
    /// Name of a Secret in the same namespace with `.dockerconfigjson`, or with `username` and `password`.
    /// Empty: a Secret of the namespace that is annotated with a prefix of the URL, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// Name of a Secret in the same namespace with `ca.crt`, and `tls.crt` and `tls.key` for a client certificate.
    /// Empty: no additional authorities and no client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<LocalReference>,
    /// Whether to use plain HTTP for the registry.
    #[serde(default)]
    pub insecure: bool,
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

/// Reference to follow in a repository of a registry. Exactly one field may be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1, "x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct OCIReference {
    /// Name of a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub tag: Option<String>,
    /// Semver range over the tags, such as `>=1.2.0 <2.0.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub semver: Option<String>,
    /// Digest of a manifest: `sha256:` and 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^sha256:[0-9a-f]{64}$"))]
    pub digest: Option<String>,
}

/// Layer to read, and how to read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct LayerSelector {
    /// Media type; the first layer that has it is read. Empty: the first layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub media_type: Option<String>,
    /// How to read the layer.
    #[serde(default)]
    pub operation: LayerOperation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LayerOperation {
    /// The layer is an archive of the files.
    #[default]
    Extract,
    /// The layer is one file, named by its annotation `org.opencontainers.image.title`.
    Copy,
}

/// Signature that an artifact needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// Signature format.
    #[serde(default)]
    pub provider: VerificationProvider,
    /// Name of a Secret in the same namespace with public keys: each of its keys that ends with `.pub`, in PEM. One of
    /// them must have signed.
    pub secret_ref: LocalReference,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VerificationProvider {
    #[default]
    Cosign,
}
