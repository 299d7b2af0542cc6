//! Hooks: objects of a source that run at a certain point of a delivery instead of being kept, tests among them.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Digest, objects::ObjectRef};

/// Annotation on an object of a source: the phases in which it runs, separated by commas.
pub const HOOK: &str = "farwater.dev/hook";
/// The same of Argo CD.
pub const ARGO_HOOK: &str = "argocd.argoproj.io/hook";
/// The same of Helm.
pub const HELM_HOOK: &str = "helm.sh/hook";
/// Annotation on a hook: when it is deleted, `HookSucceeded` or `HookFailed`, separated by commas.
pub const HOOK_DELETE_POLICY: &str = "farwater.dev/hook-delete-policy";
/// Annotation of the agent's on a hook in the cluster: which run it is of.
pub const HOOK_RUN: &str = "farwater.dev/hook-run";
/// Annotation on the Job of a test of `spec.tests`: the test's name.
pub const TEST: &str = "farwater.dev/test";

/// What is kept of the end of a hook's log, in bytes.
pub const MAX_LOG_BYTES: usize = 8 << 10;
/// Largest JUnit file: some thousand test cases. What the hub keeps of twenty versions stays small beside their bundles.
pub const MAX_JUNIT_BYTES: usize = 128 << 10;
/// Runs of one service in a report.
pub const MAX_REPORTED_HOOKS: usize = 64;
/// Logs and JUnit files of one service in a report, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 512 << 10;

/// Hexadecimal digits after a prefix, in the name of a hook.
pub const SUFFIX: usize = 8;

/// Whether annotations make a hook of an object. Helm's definitions are ordinary objects here, as in Argo CD.
pub fn is_hook(annotations: &Value) -> bool {
    let is_hook = |name: &str| annotations[name].is_string();
    is_hook(HOOK)
        || is_hook(ARGO_HOOK)
        || annotations[HELM_HOOK]
            .as_str()
            .is_some_and(|words| words.split(',').map(str::trim).any(|word| !word.is_empty() && word != "crd-install"))
}

/// Names a hook that has only a `generateName`. The same manifest has the same name each time.
pub fn name_generated(manifest: &mut Value) {
    let hash = Digest::of_json(manifest).to_hex();
    let metadata = &mut manifest["metadata"];
    let Some(prefix) = metadata["generateName"].as_str().filter(|prefix| !prefix.is_empty()) else { return };
    if metadata["name"].is_string() {
        return;
    }
    metadata["name"] = format!("{prefix}{}", &hash[..SUFFIX]).into();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("generateName");
    }
}

/// When a hook runs. In the order in which a delivery comes to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HookPhase {
    /// Before anything new is applied.
    PreSync,
    /// With the objects of its wave; later waves wait for it.
    Sync,
    /// When all objects are healthy.
    PostSync,
    /// After that: what fails here fails the version.
    Test,
    /// When something was refused or has failed.
    SyncFail,
    /// Before the objects of a service that is removed are deleted.
    PreDelete,
    /// When they are gone.
    PostDelete,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for HookPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How far a hook has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HookState {
    Running,
    Succeeded,
    Failed,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

/// What the agent says of one hook of a version, and `servicedeployments/NAME/hooks` tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookReport {
    #[serde(flatten)]
    pub object: ObjectRef,
    pub phase: HookPhase,
    /// Tells runs apart.
    pub run: Digest,
    pub state: HookState,
    /// At most 1 KiB; empty where there is nothing to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The test of `spec.tests` that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// By the cluster's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// Of the container that ended last, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The end of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The JUnit file that it wrote to its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub junit: Option<String>,
}

impl HookReport {
    /// What people call it: the test's name, or the object's.
    pub fn name(&self) -> &str {
        self.test.as_deref().unwrap_or(&self.object.name)
    }
}

/// A hook as the hub keeps it with the version that it was run for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookRun {
    /// Of the version in the service's history.
    pub number: u64,
    #[serde(flatten)]
    pub report: HookReport,
}
