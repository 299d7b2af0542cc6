//! ServiceContext: parameters that many services share.

use std::fmt;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{parameters::SecretReference, schemas};

/// Maximum size of a context's configuration, in bytes of JSON. The parameters of a service have room for two.
pub const MAX_CONTEXT_BYTES: usize = 128 << 10;

/// Parameters that services of a namespace share. A service names the context in `spec.parameters`, and its templates
/// see the values under `contexts.NAME`. Contexts are encrypted at rest as a whole.
#[derive(CustomResource, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ServiceContext",
    plural = "servicecontexts",
    shortname = "fwctx",
    category = "farwater",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "Sensitive", type_ = "boolean", json_path = ".spec.sensitive"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ServiceContextSpec {
    /// Values by name. Any form; at most 128 KiB as JSON, 512 names and 16 levels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schemas::free_form")]
    pub configuration: Map<String, Value>,
    /// Secrets whose keys become names of the context too. `configuration` and selected keys take precedence over the
    /// keys of a whole Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub secret_refs: Vec<SecretReference>,
    /// Whether `configuration` is treated like Secrets: queries for the parameters of a service return its names
    /// without values.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sensitive: bool,
}

/// Any value may be secret, so only names are printed.
impl fmt::Debug for ServiceContextSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceContextSpec")
            .field("configuration", &self.configuration.keys().collect::<Vec<_>>())
            .field("secret_refs", &self.secret_refs)
            .field("sensitive", &self.sensitive)
            .finish()
    }
}
