//! Rollout policy: how a change spreads over the clusters that share a template.

use std::fmt;

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// Maximum number of steps of one rollout. Regions, rings and waves of a fleet are about ten, and each takes at least
/// its soak.
pub const MAX_STEPS: usize = 32;
/// Maximum number of clusters that one order names. To leave out more, change the selector or suspend their services.
pub const MAX_SKIPPED: usize = 64;

/// Policy for spreading a change: first to a canary, then step by step, to some clusters at a time. A failure stops it.
///
/// A change is new content of the source, a new template, or a new value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPolicy {
    /// Strategy of the rollout.
    #[serde(default)]
    pub strategy: Strategy,
    /// Maximum number of clusters that may be unhealthy or updating at the same time. A number, or a percentage of the
    /// clusters that the hub hears; rounded down, at least one.
    #[serde(default = "default_max_unavailable")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: IntOrString,
    /// Clusters that a change reaches first.
    #[serde(default)]
    pub canary: Canary,
    /// Groups of clusters, one after the other. A cluster belongs to the first step that selects it. Clusters that no
    /// step selects come last. Empty: all clusters are one group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub steps: Vec<RolloutStep>,
    /// Key of a cluster label, such as `topology.kubernetes.io/region`. At most `maxPartitions` of its values have
    /// updating clusters at the same time. Empty: no partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub partition_by: Option<String>,
    /// Maximum number of values of `partitionBy` with updating clusters.
    #[serde(default = "default_max_partitions")]
    #[schemars(range(min = 1, max = 64))]
    pub max_partitions: u32,
    /// Time for which a cluster must stay healthy to count as updated, as a Go duration between 1s and 24h.
    #[serde(default = "default_soak")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub soak: String,
    /// Time within which a cluster must become healthy; otherwise it has failed. A Go duration between 30s and 24h.
    /// Time in which the service waits for its dependencies does not count.
    #[serde(default = "default_progress_deadline")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub progress_deadline: String,
    /// Time for which a cluster must report its service as failed to count as failed, as a Go duration between 1s and
    /// 1h.
    #[serde(default = "default_fail_after")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub fail_after: String,
    /// Number of failed clusters that halts the rollout: a number, or a percentage. At most `maxUnavailable` counts. A
    /// single failed canary halts it.
    #[serde(default = "default_halt_after")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub halt_after: IntOrString,
    /// What happens to updated clusters when the rollout halts.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Whether the rollout is paused. A paused rollout starts no further updates and no rollbacks.
    #[serde(default)]
    pub paused: bool,
    /// Reason for the pause, for people. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub pause_reason: Option<String>,
    /// Order of a person for one rollout. Commands write it. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub order: Option<RolloutOrder>,
}

impl Default for RolloutPolicy {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            max_unavailable: default_max_unavailable(),
            canary: Canary::default(),
            steps: Vec::new(),
            partition_by: None,
            max_partitions: default_max_partitions(),
            soak: default_soak(),
            progress_deadline: default_progress_deadline(),
            fail_after: default_fail_after(),
            halt_after: default_halt_after(),
            on_failure: OnFailure::default(),
            paused: false,
            pause_reason: None,
            order: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// By canary, steps and `maxUnavailable`.
    #[default]
    Progressive,
    /// All clusters at once. Failures do not stop it, unless `onFailure` is `Rollback`.
    AllAtOnce,
    /// Progressive, after a person has promoted it.
    OnHold,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Updated clusters stay as they are, and no other cluster updates.
    #[default]
    Halt,
    /// Updated clusters roll back to their last healthy version.
    Rollback,
}

/// Clusters that a change reaches first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Label selector for clusters that may be canaries. Absent: the clusters of the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: Option<LabelSelector>,
    /// Number of canaries: the first healthy clusters by name. Absent: all selected clusters, or one if there is no
    /// selector. 0: no canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub count: Option<u32>,
}

/// A group of clusters that update in the same step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStep {
    /// Name of the step.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Label selector for the clusters of the step. Empty: every cluster.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Maximum number of this step's clusters that may be unavailable, in addition to the rollout's limit. A number, or
    /// a percentage. Empty: only the rollout's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: Option<IntOrString>,
    /// Soak of this step. Empty: the rollout's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub soak: Option<String>,
}

/// Order of a person. It is obeyed once, and only for the rollout that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutOrder {
    /// Number of the rollout: `status.rollout.number`.
    #[schemars(range(min = 1))]
    pub number: u64,
    /// Wait to skip. Any value starts a rollout that is `OnHold`. Empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<Promote>,
    /// Whether to roll back the updated clusters and stop the rollout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
    /// Clusters to skip, as `NAMESPACE/NAME`. The rollout does not wait for them; they keep what they have and get
    /// nothing new.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 3, max = 507)))]
    pub skip: Vec<String>,
    /// Reason for the order. Empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Token of the order. A new value makes it a new order.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub requested_at: String,
}

/// Wait that a person skips. Any of them starts a rollout that is `OnHold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Promote {
    /// The soak of the clusters that are healthy now.
    Soak,
    /// The step that the rollout waits for.
    Step,
    /// The halt: failed clusters stay as they are, and those that were rolled back try again.
    Halt,
}

fn default_max_unavailable() -> IntOrString {
    IntOrString::String("10%".to_owned())
}

fn default_halt_after() -> IntOrString {
    IntOrString::Int(1)
}

fn default_max_partitions() -> u32 {
    1
}

fn default_soak() -> String {
    "2m".to_owned()
}

fn default_progress_deadline() -> String {
    "10m".to_owned()
}

fn default_fail_after() -> String {
    "30s".to_owned()
}

/// Phase of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// No cluster is updating, and none waits.
    #[default]
    Complete,
    /// Clusters are updating.
    Progressing,
    /// `paused` is set.
    Paused,
    /// Waits until a person promotes it.
    OnHold,
    /// Failures stopped it.
    Halted,
    /// Updated clusters are rolling back.
    RollingBack,
    /// A person aborted it.
    Aborted,
}

impl fmt::Display for RolloutPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_the_safe_default_and_is_written_out() {
        let policy: RolloutPolicy = serde_json::from_str("{}").unwrap();
        assert_eq!(policy, RolloutPolicy::default());
        let written = serde_json::to_value(&policy).unwrap();
        assert_eq!(
            written,
            serde_json::json!({
                "strategy": "Progressive", "maxUnavailable": "10%", "canary": {}, "maxPartitions": 1, "soak": "2m",
                "progressDeadline": "10m", "failAfter": "30s", "haltAfter": 1, "onFailure": "Halt", "paused": false,
            })
        );
    }

    #[test]
    fn an_order_is_of_one_rollout() {
        let order: RolloutOrder =
            serde_json::from_str(r#"{"number": 7, "promote": "Step", "skip": ["a/b"], "reason": "seen"}"#).unwrap();
        assert_eq!(
            (order.number, order.promote, order.skip.len()),
            (7, Some(Promote::Step), 1)
        );
        assert!(serde_json::from_str::<RolloutOrder>(r#"{"abort": true}"#).is_err());
    }
}
