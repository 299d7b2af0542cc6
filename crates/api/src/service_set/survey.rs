//! A rollout's members, counted by step and version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Member, Progress};
use crate::is_zero;

/// Maximum number of versions in a survey: as many as a page shows at once, and more than a rollout ever has in
/// progress.
pub const MAX_SURVEYED_VERSIONS: usize = 12;

/// Maximum number of members in a survey, the worst first. The counts include all.
pub const MAX_SURVEYED_MEMBERS: usize = 50;

/// Kind of the answer of `servicesets/NAME/rollout`.
pub const SURVEY_KIND: &str = "ServiceSetRollout";

/// Progress of a set's rollout, counted over all members, as `servicesets/NAME/rollout` returns it. Its size grows with
/// steps and versions, not with the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSurvey {
    /// Time of the count. Answers within a few seconds may share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<Time>,
    /// Steps, in the order in which a change reaches them.
    pub stages: Vec<Stage>,
    /// Versions, the newest first as far as known.
    pub versions: Vec<VersionCounts>,
    /// Number of versions that the last entry of `versions` stands for, if more than one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u64,
    /// Number of clusters that are unavailable now.
    #[serde(default)]
    pub unavailable: u64,
    /// Maximum number of clusters that may be unavailable.
    #[serde(default)]
    pub max_unavailable: u64,
    /// The first cluster that the next step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Member>,
    /// The worst members that are not done; equally bad ones by name.
    pub open: Vec<Member>,
}

/// Members of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    /// Name of the step: `canary`, a step of the policy, or `rest`.
    pub step: String,
    pub counts: ProgressCounts,
}

/// Numbers of members by progress. Each counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgressCounts {
    pub done: u64,
    pub soaking: u64,
    pub progressing: u64,
    pub failed: u64,
    pub deferred: u64,
    pub waiting: u64,
    pub still: u64,
}

impl ProgressCounts {
    pub fn add(&mut self, progress: Progress) {
        *match progress {
            Progress::Done => &mut self.done,
            Progress::Soaking => &mut self.soaking,
            Progress::Progressing => &mut self.progressing,
            Progress::Failed => &mut self.failed,
            Progress::Deferred => &mut self.deferred,
            Progress::Waiting => &mut self.waiting,
            Progress::Still => &mut self.still,
        } += 1;
    }
}

/// Numbers of members that want or have a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionCounts {
    /// Revision, as in the status of a service. Empty: none yet.
    pub revision: String,
    /// Author of the commit, as the commit states it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// Steps with members of this version.
    pub stages: Vec<VersionStage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionStage {
    pub step: String,
    /// Members that want the version, by progress. Over all versions they add up to the step's members.
    pub counts: ProgressCounts,
    /// Number of members that have the version and want another.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept: u64,
}
