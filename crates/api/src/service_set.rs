//! ServiceSet: one service on many clusters.

mod survey;
mod template;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{RolloutPhase, RolloutPolicy, service_deployment::DeletionPolicy};

pub use survey::{
    MAX_SURVEYED_MEMBERS, MAX_SURVEYED_VERSIONS, ProgressCounts, RolloutSurvey, SURVEY_KIND, Stage, VersionCounts,
    VersionStage,
};
pub use template::{Override, ServiceTemplate, SetParameter, TemplateMetadata, TemplateSpec};

/// Maximum number of parameters of one set.
pub const MAX_SET_PARAMETERS: usize = 64;
/// Maximum number of overrides of one set.
pub const MAX_OVERRIDES: usize = 64;
/// Kind that `servicesets/NAME/versions` lists.
pub const VERSIONS_KIND: &str = "ServiceSetVersionList";
/// Number of versions of a set to which a rollback is possible, the same as for a service.
pub const VERSIONS_KEPT: usize = 20;
/// Number of orders of people that are kept for one rollout.
pub const ORDERS_KEPT: usize = 20;
/// Maximum number of errors in a status.
pub const MAX_SET_ERRORS: usize = 5;
/// Kind that `servicesets/NAME/members` lists.
pub const MEMBERS_KIND: &str = "ServiceSetMemberList";
/// Kind of the answer of `servicesets/NAME/plan`.
pub const PLAN_KIND: &str = "ServiceSetPlan";
/// Maximum number of clusters in each list of a plan. The counts include all.
pub const MAX_PLANNED: usize = 1000;
/// A ServiceDeployment for each selected cluster, created from one template.
///
/// The set owns these services. They are read-only, except for `suspend`, `suspension` and `pin`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ServiceSet",
    plural = "servicesets",
    shortname = "sds",
    category = "farwater",
    namespaced,
    status = "ServiceSetStatus",
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
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters.matched"),
    printcolumn(name = "Healthy", type_ = "integer", json_path = ".status.clusters.ready"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ServiceSetSpec {
    /// Label selector for clusters. Empty: every cluster that this namespace may deploy to.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Template of the ServiceDeployments.
    pub template: ServiceTemplate,
    /// Values that differ by cluster. Templates see them in `configuration`; they take precedence over the template's
    /// own `configuration`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters: Vec<SetParameter>,
    /// Changes of the template for some of the clusters. For each cluster, the first matching override applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub overrides: Vec<Override>,
    /// Rollout of changes over the clusters: of the sources, the template, the parameters and the overrides.
    #[serde(default)]
    pub rollout: RolloutPolicy,
    /// Pin holds all clusters at an earlier version of the set, whatever its sources and its template have. Clusters
    /// reach that version by a rollout. Empty: the set follows its sources and its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub pin: Option<SetPin>,
    /// What happens to the objects on a cluster that the selector no longer matches, or when the set is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// A version of a set to which it is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetPin {
    /// Number of the version in `servicesets/NAME/versions`: the number of its rollout.
    #[schemars(range(min = 1))]
    pub version: u64,
    /// Why the set is pinned. Empty: no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub reason: Option<String>,
}

/// Observed state of the set: counts and a few examples, so its size does not grow with the fleet. Each member is at
/// `servicesets/NAME/members`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSetStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` is True when every selected cluster has its service, and each is healthy at the version assigned to it.
    /// `Stalled` is set when a person must act. `Braked` is set while clusters that the selector lost wait for an
    /// administrator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Numbers of clusters.
    #[serde(default)]
    pub clusters: SetCounts,
    /// Progress of the last change. Empty: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// The last version that all clusters completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good: Option<u64>,
    /// The first clusters by name whose service cannot be created; at most five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SetError>,
    /// User who last wrote a field that determines what runs where, such as the template or the selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// User who set the pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_by: Option<String>,
    /// User who set the current annotation `farwater.dev/override-freeze`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<String>,
    /// Time of the override. The override is valid for a day; then the hub removes the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_at: Option<Time>,
    /// User who set the current annotation `farwater.dev/propose-override`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_by: Option<String>,
    /// Time of the proposal. Another person can approve the proposal for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_at: Option<Time>,
}

/// Progress of the last change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Number of the rollout. It increases with each change of the set.
    #[serde(default)]
    pub number: u64,
    /// Phase of the rollout.
    #[serde(default)]
    pub phase: RolloutPhase,
    /// Open step: `canary`, a step of the policy, or `rest`. Empty: all steps are open.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// Number of clusters that have completed the change.
    #[serde(default)]
    pub updated: i64,
    /// Number of clusters that are updating.
    #[serde(default)]
    pub progressing: i64,
    /// Number of updating clusters that are healthy, but not yet for the length of the soak.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub soaking: i64,
    /// Number of clusters that failed.
    #[serde(default)]
    pub failed: i64,
    /// Number of silent clusters. The rollout passes over them until the hub hears them.
    #[serde(default)]
    pub deferred: i64,
    /// Number of clusters that wait for their turn.
    #[serde(default)]
    pub waiting: i64,
    /// The first cluster that failed, if it halts the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_by: Option<String>,
}

impl RolloutStatus {
    /// Number of counted clusters.
    pub fn clusters(&self) -> i64 {
        self.updated + self.progressing + self.failed + self.deferred + self.waiting
    }

    /// `rollout 3 is Progressing: 1 of 2 clusters are done`
    pub fn so_far(&self) -> String {
        let clusters = self.clusters();
        let are = if clusters == 1 { "cluster is" } else { "clusters are" };
        format!(
            "rollout {} is {}: {} of {clusters} {are} done",
            self.number, self.phase, self.updated
        )
    }
}

/// Numbers of clusters of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetCounts {
    /// Number of selected clusters.
    #[serde(default)]
    pub matched: i64,
    /// Number of selected clusters that are healthy at the version assigned to them.
    #[serde(default)]
    pub ready: i64,
    /// Number of selected clusters whose service cannot be created, or not as the set says.
    #[serde(default)]
    pub failed: i64,
    /// Number of clusters that are no longer selected and still have their service.
    #[serde(default)]
    pub leaving: i64,
}

/// A cluster whose service cannot be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetError {
    /// The cluster, as `namespace/name`.
    pub cluster: String,
    /// Why the service cannot be created.
    pub message: String,
}

/// One cluster of a set, as `servicesets/NAME/members` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// The cluster, as `namespace/name`.
    pub cluster: String,
    /// Name of the ServiceDeployment in the set's namespace. Empty: it does not exist.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// State of the member.
    pub state: MemberState,
    /// Step of the rollout. Empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// Progress of the member in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub standing: String,
    /// Why its service cannot be created. Empty: it can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Progress of the member, as one of a few values. Absent: it takes part in no rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Time since which `progress` applies, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Revision that is assigned to the member. Empty: none yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Revision that the member is to get, if it differs: that of the sources, or of the version to which the set is
    /// pinned.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wanted_revision: String,
}

/// Progress of a member of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Progress {
    /// It failed at the change, or was rolled back from it.
    Failed,
    /// It has received the change, and is not healthy yet.
    Progressing,
    /// It is healthy with the change, but not yet for the length of the soak.
    Soaking,
    /// Its cluster is silent. It receives the change when the hub hears it.
    Deferred,
    /// It does not take part: a person holds or skips it, or it cannot get the change.
    Still,
    /// It waits for its turn.
    #[default]
    Waiting,
    /// It has completed the change.
    Done,
}

/// State of a member of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemberState {
    #[default]
    Progressing,
    Ready,
    Failed,
    /// The selector no longer matches the cluster.
    Leaving,
}

/// A rollout and its result. `servicesets/NAME/versions` lists the newest [`VERSIONS_KEPT`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetVersion {
    /// Number of the rollout.
    pub number: u64,
    /// Revision of the template's own source when the rollout began. Empty: unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Version to which the rollout went back. None: it was no rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<u64>,
    pub began: Time,
    /// Time at which the rollout completed, or a newer one replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// The last phase.
    #[serde(default)]
    pub phase: RolloutPhase,
    /// Whether all clusters that the hub heard completed it.
    #[serde(default)]
    pub good: bool,
    /// The cluster that halted it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_by: Option<String>,
    /// Orders of people for the rollout, oldest first; the newest [`ORDERS_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<SetOrder>,
}

impl SetVersion {
    /// Whether a newer rollout replaced this one before it was complete, halted or aborted.
    pub fn is_superseded(&self) -> bool {
        let is_over = matches!(
            self.phase,
            RolloutPhase::Complete | RolloutPhase::Halted | RolloutPhase::Aborted
        );
        self.ended.is_some() && !is_over
    }
}

/// Order of a person for a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetOrder {
    pub at: Time,
    /// User of the API.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// The order: `promote past Soak`, `abort`, `skip …`, `pause`, `resume`, `roll back to 6`, `override change
    /// windows`.
    pub what: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Plan of a set, as it is or as proposed, for its clusters; `servicesets/NAME/plan` returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetPlan {
    pub counts: PlanCounts,
    /// Added clusters as `namespace/name`, sorted; at most [`MAX_PLANNED`].
    pub added: Vec<String>,
    pub changed: Vec<PlannedChange>,
    pub dropped: Vec<String>,
    pub errors: Vec<SetError>,
    /// Why no cluster is dropped until an administrator approves. None: nothing stops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brake: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanCounts {
    pub added: usize,
    pub changed: usize,
    pub unchanged: usize,
    pub dropped: usize,
    pub errors: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    pub cluster: String,
    /// Changed fields of the service's spec, or `labels`.
    pub fields: Vec<String>,
}

#[cfg(test)]
mod tests {
    use schemars::SchemaGenerator;
    use serde_json::{Value, json};

    use super::{template::OWN_FIELDS, *};

    #[test]
    fn a_template_has_the_fields_of_a_service_but_for_the_sets_own() {
        let schema = SchemaGenerator::default().into_root_schema_for::<TemplateSpec>();
        let fields = schema.get("properties").and_then(Value::as_object).unwrap();
        assert!(fields.contains_key("sourceRef") && fields.contains_key("configuration"));
        for field in OWN_FIELDS {
            assert!(!fields.contains_key(field), "{field}");
        }
        let required = schema.get("required").and_then(Value::as_array).unwrap();
        assert_eq!(required, &["targetNamespace", "sourceRef"]);
    }

    #[test]
    fn an_override_is_a_merge_patch() {
        let object = |value: Value| value.as_object().cloned().unwrap();
        let template = TemplateSpec(object(
            json!({"path": "a", "prune": true, "apply": {"wait": true, "force": false}, "renderers": [1]}),
        ));
        let patch = object(
            json!({"path": "b", "prune": null, "apply": {"force": null}, "renderers": [2], "new": {"x": null, "y": 1}}),
        );
        let expected = json!({"path": "b", "apply": {"wait": true}, "renderers": [2], "new": {"y": 1}});
        assert_eq!(template.patched(&patch), TemplateSpec(object(expected)));
    }
}
