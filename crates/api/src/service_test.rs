//! Tests of a service: Jobs that its cluster runs when a version of it is healthy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One test: a container that has to end with 0. Its fields are those of a Kubernetes container; what they can't say, a Job of the
/// source says that is annotated `farwater.dev/hook: Test`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTest {
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// The image's entrypoint if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<Variable>,
    /// Of the target namespace; its default one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// All tries together must end within it, as a Go duration; between 1s and 24h.
    #[serde(default = "default_timeout")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: String,
    /// How often it is tried again when it fails.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(range(min = 0, max = 10))]
    pub retries: u32,
}

/// A variable of a container's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Variable {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub value: String,
}

fn default_timeout() -> String {
    "10m".to_owned()
}
