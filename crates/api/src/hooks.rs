//! Hooks: objects of a source that run at a certain point of a delivery and are not kept. Tests are hooks too.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Digest, object_ref::ObjectRef};

/// Annotation on an object of a source: the phases in which it runs, separated by commas.
pub const HOOK: &str = "farwater.dev/hook";
/// Argo CD's annotation for the same.
pub const ARGO_HOOK: &str = "argocd.argoproj.io/hook";
/// Helm's annotation for the same.
pub const HELM_HOOK: &str = "helm.sh/hook";
/// Annotation on a hook: when the agent deletes it, `HookSucceeded` or `HookFailed`, separated by commas.
pub const HOOK_DELETE_POLICY: &str = "farwater.dev/hook-delete-policy";
/// Annotation that the agent sets on a hook in the cluster: the run that the hook belongs to.
pub const HOOK_RUN: &str = "farwater.dev/hook-run";
/// Annotation on the Job of a test in `spec.tests`: the test's name.
pub const TEST: &str = "farwater.dev/test";

/// Maximum size of the end of a hook's log that is kept, in bytes.
pub const MAX_LOG_BYTES: usize = 8 << 10;
/// Maximum size of a JUnit file, in bytes: some thousand test cases. The hub keeps the files of twenty versions, which
/// stay small beside their bundles.
pub const MAX_JUNIT_BYTES: usize = 128 << 10;
/// Maximum number of runs of one service in a report.
pub const MAX_REPORTED_HOOKS: usize = 64;
/// Maximum size of the logs and JUnit files of one service in a report, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 512 << 10;

/// Number of hexadecimal digits after the prefix in the name of a hook.
pub const SUFFIX: usize = 8;

/// Whether the annotations make the object a hook. Helm's `crd-install` objects are ordinary objects here, as in Argo
/// CD.
pub fn is_hook(annotations: &Value) -> bool {
    let is_hook = |name: &str| annotations[name].is_string();
    is_hook(HOOK)
        || is_hook(ARGO_HOOK)
        || annotations[HELM_HOOK].as_str().is_some_and(|words| {
            words
                .split(',')
                .map(str::trim)
                .any(|word| !word.is_empty() && word != "crd-install")
        })
}

/// Names a hook that has only a `generateName`. The same manifest gets the same name each time.
pub fn name_generated(manifest: &mut Value) {
    let hash = Digest::of_json(manifest).to_hex();
    let metadata = &mut manifest["metadata"];
    let Some(prefix) = metadata["generateName"].as_str().filter(|prefix| !prefix.is_empty()) else {
        return;
    };
    if metadata["name"].is_string() {
        return;
    }
    metadata["name"] = format!("{prefix}{}", &hash[..SUFFIX]).into();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("generateName");
    }
}

/// When a hook runs, in the order of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HookPhase {
    /// Before any new object is applied.
    PreSync,
    /// With the objects of its wave. Later waves wait for it.
    Sync,
    /// When all objects are healthy.
    PostSync,
    /// After `PostSync`. A failure fails the version.
    Test,
    /// When an object was refused or has failed.
    SyncFail,
    /// Before the objects of a removed service are deleted.
    PreDelete,
    /// After the objects of a removed service are deleted.
    PostDelete,
    /// Phase from a newer version.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for HookPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// State of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HookState {
    Running,
    Succeeded,
    Failed,
    /// State from a newer version.
    #[serde(other)]
    Unknown,
}

/// Report of the agent on one hook of a version, as `servicedeployments/NAME/hooks` returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookReport {
    #[serde(flatten)]
    pub object: ObjectRef,
    /// Phase in which the hook runs.
    pub phase: HookPhase,
    /// Digest that identifies the run.
    pub run: Digest,
    /// State of the run.
    pub state: HookState,
    /// Explanation of at most 1 KiB. Empty: nothing to explain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Name of the test in `spec.tests`. Empty: the hook is not such a test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// Start time, by the cluster's clock. For kinds other than Job and Pod: the creation of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// End time, by the cluster's clock. For kinds other than Job and Pod: when the agent saw the end, by its own clock.
    /// Empty: the hook has not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// Exit code of the container that ended last, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// End of the hook's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// JUnit file that the hook wrote to its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub junit: Option<String>,
}

impl HookReport {
    /// Name for people: the test's name, or the object's.
    pub fn name(&self) -> &str {
        self.test.as_deref().unwrap_or(&self.object.name)
    }
}

/// A hook as the hub keeps it, with the version that it ran for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookRun {
    /// Number of the version in the service's history.
    pub number: u64,
    #[serde(flatten)]
    pub report: HookReport,
}
