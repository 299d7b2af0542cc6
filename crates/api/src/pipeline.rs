//! Pipeline: how a revision gets from one stage of services to the next.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::pull_request::{FieldOfFile, PullRequest, PullRequestStatus};
use crate::{Digest, git_repository::LocalReference};

mod pull_request;

/// The kind of what is sent to approve a promotion.
pub const APPROVAL_KIND: &str = "PromotionApproval";
/// Stages of one pipeline.
pub const MAX_STAGES: usize = 16;
/// Sets and services of one stage, each.
pub const MAX_OF_STAGE: usize = 32;

/// How a revision of a repository gets from one stage to the next.
///
/// The first stage follows its repository. The repository of each later one serves what was promoted to it, and nothing else: a commit at
/// which all of the stage before is healthy, once all gates hold for it.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct PipelineSpec {
    /// From the first to the last.
    #[schemars(
        length(min = 2, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub stages: Vec<PipelineStage>,
    /// What goes with a commit from stage to stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotes: Option<Promotes>,
}

impl PipelineSpec {
    /// Names in `configuration`.
    pub fn promotes(&self) -> &[String] {
        self.promotes.as_ref().map(|promotes| promotes.configuration.as_slice()).unwrap_or_default()
    }
}

/// What goes with a commit from stage to stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Promotes {
    /// Names in `configuration`. The sets and services of the first stage state their texts; in each later stage they take
    /// precedence over what is stated there. Another text is promoted as another commit is.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub configuration: Vec<String>,
}

/// Services that get a revision together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStage {
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The GitRepository, in the same namespace, that the stage's services are made of. Of every stage but the first it says
    /// `ref: {pipeline: NAME}`; where there is a `pullRequest` it follows what people merge.
    pub source_ref: LocalReference,
    /// ServiceSets of the stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub sets: Vec<String>,
    /// ServiceDeployments of the stage, that no set has made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub services: Vec<String>,
    /// What must hold before a revision gets here, each at most once. The first stage has none. That all of the stage before is healthy
    /// at the revision is always asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub gates: Vec<PromotionGate>,
    /// What happens when a set of the stage stops at what was promoted to it.
    #[serde(default)]
    pub on_failure: StageFailure,
    /// What is promoted here is an edit in Git that people merge, and not what the stage's repository serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequest>,
}

/// One thing that must hold. Which fields it has says its type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionGate {
    pub r#type: GateType,
    /// Of `Soak`: how long all of the stage before is healthy at the revision, as a Go duration; between 1s and 720h. Of `Window`: how long
    /// each lasts; between 1m and 744h. Of `Metric`: how long the condition holds without a break; between 1s and 720h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub duration: Option<String>,
    /// Of `Approval`: how many people have to approve exactly what would be deployed; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20))]
    pub quorum: Option<u32>,
    /// Of `Approval`: whose members' word counts, one of them; none: that of everybody who may approve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub groups: Vec<String>,
    /// Of `Approval`: how long a word counts, as a Go duration; between 1m and 720h, 72h if absent. Of `Webhook`: how long a `pass` does;
    /// 1h if absent. It is asked again then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub expires: Option<String>,
    /// Of `Window`: when it begins, as cron writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub schedule: Option<String>,
    /// Of `Window`: of the schedule, as the IANA names it; UTC if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// Of `Webhook`: whom it asks, `https://…`. Of `Metric`: a Prometheus, or what answers like one; `/api/v1/query` is put behind it.
    /// Nothing secret is in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub address: Option<String>,
    /// A Secret in the same namespace. Of `Webhook`: `token`, which requests are signed with. Of `Metric`: `bearerToken`, or `username` and
    /// `password`; and `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalReference>,
    /// Of `Webhook` and `Metric`: a Secret in the same namespace with `ca.crt`, `tls.crt` and `tls.key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_secret_ref: Option<LocalReference>,
    /// Of `Webhook`: how soon it is asked again after `wait`. Of `Metric`: how often it is measured. A Go duration between 1s and 24h, 1m if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub interval: Option<String>,
    /// Of `Metric`: PromQL, with a vector or a scalar as its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub query: Option<String>,
    /// Of `Metric`: what has to be true of the result, in CEL: `self.value` is the value of a result with one series, `self.series` all of
    /// them with their `labels` and `value`. A result without a series is no measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub condition: Option<String>,
    /// Of `Metric`: how often in a row the condition holds; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub count: Option<u32>,
    /// Of `Metric`: after so many measurements that the condition did not hold for the gate has failed. Absent: it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub failure_limit: Option<u32>,
    /// Of `Test`: names in `spec.tests` of services of the stage before, each of which passed there. None: each service and set of the stage
    /// before states one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 40)), extend("x-kubernetes-list-type" = "set"))]
    pub tests: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum GateType {
    /// The stage before is healthy at the revision for a time.
    #[default]
    Soak,
    /// People have approved exactly what would be deployed.
    Approval,
    /// Now is a time for it.
    Window,
    /// An external service lets exactly what would be deployed pass.
    Webhook,
    /// What Prometheus measures is as it has to be.
    Metric,
    /// Tests of the stage before have passed at the revision.
    Test,
}

impl std::fmt::Display for GateType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StageFailure {
    /// It stays at the revision, and its rollout goes by its own rule.
    #[default]
    Halt,
    /// The stage gets the revision before again, and not this one any more.
    Rollback,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PipelineStatus {
    /// The generation that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stages: Vec<StageStatus>,
}

/// Where a stage is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    pub name: String,
    /// What its repository serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Texts that go with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Since when all of it is healthy at that; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_since: Option<Time>,
    /// What it lacks to be healthy at that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// When that was promoted; absent: nothing was yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted_at: Option<Time>,
    /// Who has approved that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub approved_by: Vec<String>,
    /// What it failed at and went back from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What is to come here next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<PromotionCandidate>,
    /// What was pushed for people to merge, until they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequestStatus>,
}

/// A revision before its promotion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionCandidate {
    pub revision: String,
    /// Texts that go with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Of all that would be deployed: the revision, and what the stage's sets and services are. Approvals name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub gates: Vec<GateStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub approvals: Vec<PromotionApproval>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateStatus {
    pub r#type: GateType,
    pub holds: bool,
    /// It was said no, and is not asked again for the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    pub message: String,
}

/// One person's word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromotionApproval {
    pub by: String,
    pub at: Time,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What is sent to `pipelines/NAME/approve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalRequest {
    pub stage: String,
    /// Of the candidate that is approved.
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
