//! How a change spreads over the clusters that share a template: the part of a spec that says so.

use std::fmt;

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schemas;

/// Steps of one rollout. Regions, rings and waves of a fleet are some ten; each takes at least its soak.
pub const MAX_STEPS: usize = 32;
/// Clusters that one order names. Who means more changes the selector, or suspends them.
pub const MAX_SKIPPED: usize = 64;

/// How a change spreads: to a canary first, then step by step, some clusters at a time, and no further where it fails.
///
/// A change is another content of the source, another template, or another value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPolicy {
    #[serde(default)]
    pub strategy: Strategy,
    /// How many clusters may be unhealthy or on their way at one time: a number, or a percentage of those that are heard. It is
    /// rounded down, and is one at least.
    #[serde(default = "default_max_unavailable")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: IntOrString,
    #[serde(default)]
    pub canary: Canary,
    /// Groups of clusters, one after the other. A cluster is of the first that selects it; those that none selects come last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub steps: Vec<RolloutStep>,
    /// Key of a label, such as `topology.kubernetes.io/region`: of its values at most `maxPartitions` have clusters on their way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub partition_by: Option<String>,
    #[serde(default = "default_max_partitions")]
    #[schemars(range(min = 1, max = 64))]
    pub max_partitions: u32,
    /// How long a cluster must have been healthy to count, as a Go duration; between 1s and 24h.
    #[serde(default = "default_soak")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub soak: String,
    /// A cluster that is not healthy by then has failed, as a Go duration; between 30s and 24h. It doesn't count while the
    /// service waits for others that it depends on.
    #[serde(default = "default_progress_deadline")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub progress_deadline: String,
    /// A cluster that says for so long that its service has failed has failed, as a Go duration; between 1s and 1h.
    #[serde(default = "default_fail_after")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub fail_after: String,
    /// So many failed clusters stop the rest: a number, or a percentage. More than `maxUnavailable` are never borne, and of
    /// canaries none is.
    #[serde(default = "default_halt_after")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub halt_after: IntOrString,
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Nothing is begun and nothing taken back.
    #[serde(default)]
    pub paused: bool,
    /// Why it is paused, for whoever looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub pause_reason: Option<String>,
    /// What a person has said of one rollout; the commands write it.
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
    /// Everywhere at once, whatever becomes of it.
    AllAtOnce,
    /// Progressive, once a person has promoted it.
    OnHold,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// What has changed stays as it is, and nothing else changes.
    #[default]
    Halt,
    /// What has changed goes back to what was healthy before.
    Rollback,
}

/// The clusters that a change reaches before all others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Which clusters may be canaries. Absent: those of the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: Option<LabelSelector>,
    /// How many of them: the first by name that are healthy. Absent: all that the selector selects, and one without a selector.
    /// 0: there is no canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub count: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStep {
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Of this step's clusters, beside the rollout's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: Option<IntOrString>,
    /// In place of the rollout's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub soak: Option<String>,
}

/// It counts once, and for the rollout that it names alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutOrder {
    /// `status.rollout.number`
    #[schemars(range(min = 1))]
    pub number: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote: Option<Promote>,
    /// Takes back what has changed, and changes nothing else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
    /// Clusters, as `NAMESPACE/NAME`, that nobody waits for: what they have stays, and what they lack is not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 3, max = 507)))]
    pub skip: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Any new value makes it another order.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub requested_at: String,
}

/// What isn't waited for any more. A rollout that is `OnHold` begins by any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Promote {
    /// The soak of those that are healthy now.
    Soak,
    /// The step that is being waited for.
    Step,
    /// What has failed: it stays as it is, and where it was taken back it is tried again.
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

/// How a rollout stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// Nothing moves.
    #[default]
    Complete,
    Progressing,
    Paused,
    /// Until a person promotes it.
    OnHold,
    Halted,
    RollingBack,
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
        assert_eq!((order.number, order.promote, order.skip.len()), (7, Some(Promote::Step), 1));
        assert!(serde_json::from_str::<RolloutOrder>(r#"{"abort": true}"#).is_err());
    }
}
