//! Pipeline: how a revision moves from one stage of services to the next.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::pull_request::{FieldOfFile, PullRequest, PullRequestStatus};
use crate::{Digest, git_repository::LocalReference};

mod pull_request;

/// Kind of the request that approves a promotion.
pub const APPROVAL_KIND: &str = "PromotionApproval";
/// Maximum number of stages of one pipeline.
pub const MAX_STAGES: usize = 16;
/// Maximum number of sets, and of services, of one stage.
pub const MAX_OF_STAGE: usize = 32;

/// Promotion of a repository's revisions from one stage to the next.
///
/// The first stage follows its repository. The repository of each later stage serves only the commit that was promoted
/// to it. A commit is promoted once all of the previous stage is healthy at it, and all gates hold for it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "Pipeline",
    plural = "pipelines",
    shortname = "fwpl",
    category = "farwater",
    namespaced,
    status = "PipelineStatus",
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
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct PipelineSpec {
    /// Stages, from the first to the last.
    #[schemars(
        length(min = 2, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub stages: Vec<PipelineStage>,
    /// What is promoted together with a commit. Empty: the commit only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotes: Option<Promotes>,
}

impl PipelineSpec {
    /// Promoted names in `configuration`.
    pub fn promotes(&self) -> &[String] {
        self.promotes
            .as_ref()
            .map(|promotes| promotes.configuration.as_slice())
            .unwrap_or_default()
    }
}

/// What is promoted together with a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Promotes {
    /// Names in `configuration`. The sets and services of the first stage set their values. In each later stage the
    /// promoted values take precedence over those set there. A new value is promoted like a new commit.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub configuration: Vec<String>,
}

/// Services that receive a revision together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStage {
    /// Name of the stage.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Name of the GitRepository in the same namespace that the stage's services use. In every stage but the first,
    /// that GitRepository has `ref: {pipeline: NAME}`. With `pullRequest`, it follows the branch with the merged edits.
    pub source_ref: LocalReference,
    /// Names of the ServiceSets of the stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub sets: Vec<String>,
    /// Names of the ServiceDeployments of the stage that belong to no set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub services: Vec<String>,
    /// Gates that must hold before a revision is promoted to this stage, each type at most once. The first stage has
    /// none. The previous stage must always be healthy at the revision, even without gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub gates: Vec<PromotionGate>,
    /// What happens when a set of the stage stops at the promoted revision.
    #[serde(default)]
    pub on_failure: StageFailure,
    /// Promote by an edit in Git that people merge, instead of through the stage's repository. Empty: no pull request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequest>,
}

/// A gate. Its type determines its fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionGate {
    /// Type of the gate.
    pub r#type: GateType,
    /// For `Soak`: how long all of the previous stage must be healthy at the revision, as a Go duration between 1s and
    /// 720h. For `Window`: length of each period, between 1m and 744h. For `Metric`: how long the condition must hold
    /// without a break, between 1s and 720h. Empty: no minimum time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub duration: Option<String>,
    /// For `Approval`: number of people who must approve exactly what would be deployed. Empty: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub quorum: Option<u32>,
    /// For `Approval`: groups whose members may approve; one of them is enough. Empty: everyone with the right to
    /// approve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub groups: Vec<String>,
    /// For `Approval`: how long an approval counts, as a Go duration between 1m and 720h. Empty: 72h. For `Webhook`:
    /// how long a `pass` counts before the hub asks again. Empty: 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub expires: Option<String>,
    /// For `Window`: start times in cron format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub schedule: Option<String>,
    /// For `Window`: IANA time zone of the schedule. Empty: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// For `Webhook`: address that the hub asks, `https://…`. For `Metric`: address of a Prometheus or a compatible
    /// service; the hub appends `/api/v1/query`. It must hold no secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub address: Option<String>,
    /// Name of a Secret in the same namespace. For `Webhook`: `token`, which signs requests. For `Metric`:
    /// `bearerToken`, or `username` and `password`; and `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// For `Webhook` and `Metric`: name of a Secret in the same namespace with `ca.crt`, `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<LocalReference>,
    /// For `Webhook`: time before the hub asks again after `wait`. For `Metric`: interval between measurements. A Go
    /// duration between 1s and 24h. Empty: 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub interval: Option<String>,
    /// For `Metric`: PromQL query whose result is a vector or a scalar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
    /// For `Metric`: CEL condition on the result. `self.value` is the value of a result with one series. `self.series`
    /// is the list of all series, with `labels` and `value`. A result without a series is not a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub condition: Option<String>,
    /// For `Metric`: how many times in a row the condition must hold. Empty: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub count: Option<u32>,
    /// For `Metric`: number of measurements without the condition after which the gate fails. Empty: it never fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub failure_limit: Option<u32>,
    /// For `Test`: names in `spec.tests` of services of the previous stage, each of which must pass there. Empty: each
    /// service and set of the previous stage must have a test.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 40)), extend("x-kubernetes-list-type" = "set"))]
    pub tests: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GateType {
    /// The previous stage is healthy at the revision for a time.
    #[default]
    Soak,
    /// People have approved exactly what would be deployed.
    Approval,
    /// The current time is within a window.
    Window,
    /// An external service approves exactly what would be deployed.
    Webhook,
    /// A measurement of Prometheus meets a condition.
    Metric,
    /// Tests of the previous stage have passed at the revision.
    Test,
}

impl std::fmt::Display for GateType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StageFailure {
    /// The stage stays at the revision. Its rollout follows its own policy.
    #[default]
    Halt,
    /// The stage returns to the last revision at which all of it was healthy or, without one, to the one that it served
    /// before. It does not get the failed revision again.
    Rollback,
}

/// Observed state of the Pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` says whether a promotion is waiting, running or failed; `Stalled` is set when a person must act.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// State of each stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stages: Vec<StageStatus>,
}

/// State of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Name of the stage.
    pub name: String,
    /// Revision that the stage's repository serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Promoted `configuration` values that belong to `revision`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Time since which all of the stage is healthy at `revision`. Empty: it is not healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_since: Option<Time>,
    /// What the stage lacks to be healthy at `revision`. Empty: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// Time at which `revision` was promoted. Empty: nothing was promoted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted_at: Option<Time>,
    /// Users who approved the promotion of `revision`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub approved_by: Vec<String>,
    /// Revision at which the stage failed and from which it rolled back. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Next revision for this stage. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<PromotionCandidate>,
    /// Edit that was pushed and waits to be merged. Empty: none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequestStatus>,
}

/// A revision before its promotion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionCandidate {
    /// The revision.
    pub revision: String,
    /// Promoted `configuration` values that belong to `revision`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Digest of all that would be deployed: the revision, and the stage's sets and services. Approvals name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// State of each gate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub gates: Vec<GateStatus>,
    /// Approvals of the candidate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub approvals: Vec<PromotionApproval>,
}

/// State of a gate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateStatus {
    /// Type of the gate.
    pub r#type: GateType,
    /// Whether the gate holds.
    pub holds: bool,
    /// Whether the gate refused the candidate. It is not evaluated again for the same content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Explanation of the state.
    pub message: String,
}

/// Approval by one person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionApproval {
    /// User who approved.
    pub by: String,
    /// Time of the approval.
    pub at: Time,
    /// Reason that the user gave. Empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Body of a request to `pipelines/NAME/approve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalRequest {
    pub stage: String,
    /// Digest of the approved candidate.
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
