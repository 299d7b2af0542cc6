//! Tests of a service: Jobs that its cluster runs when a version is healthy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A test: a container that must exit with 0. Its fields are those of a Kubernetes container. For more, add a Job
/// annotated `farwater.dev/hook: Test` to the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTest {
    /// Name of the test.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Image of the container.
    #[schemars(length(min = 1, max = 1024))]
    pub image: String,
    /// Command of the container. Empty: the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Arguments of the command. Empty: the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Environment variables of the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<Variable>,
    /// Service account in the target namespace. Empty: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Maximum time for all attempts together, as a Go duration between 1s and 24h.
    #[serde(default = "default_timeout")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: String,
    /// Number of further attempts after a failure.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    #[schemars(range(min = 0, max = 10))]
    pub retries: u32,
}

/// An environment variable of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Variable {
    /// Name of the variable.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Value of the variable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub value: String,
}

fn default_timeout() -> String {
    "10m".to_owned()
}
