//! ServiceSet: one service on many clusters.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    RolloutPhase, RolloutPolicy, ServiceDeploymentSpec, is_zero, schemas,
    service_deployment::{ClusterReference, DeletionPolicy},
};

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
/// Kind of the answer of `servicesets/NAME/rollout`.
pub const SURVEY_KIND: &str = "ServiceSetRollout";
/// Maximum number of versions in a survey: as many as a page shows at once, and more than a rollout ever has in
/// progress.
pub const MAX_SURVEYED_VERSIONS: usize = 12;
/// Maximum number of members in a survey, the worst first. The counts include all.
pub const MAX_SURVEYED_MEMBERS: usize = 50;

/// Fields of a service that the set determines, not the template: its cluster, its end, and actions of people on single
/// services.
const OWN_FIELDS: [&str; 5] = ["clusterRef", "deletionPolicy", "suspend", "suspension", "pin"];

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

/// Template of a ServiceDeployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceTemplate {
    /// Metadata of each ServiceDeployment.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// The spec of each ServiceDeployment.
    pub spec: TemplateSpec,
}

/// Metadata of each ServiceDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels, in addition to `farwater.dev/set` with the set's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl TemplateMetadata {
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The spec of a ServiceDeployment without the fields that the set determines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateSpec(pub Map<String, Value>);

impl TemplateSpec {
    /// Applies an override's patch as a JSON merge patch (RFC 7396).
    pub fn patched(&self, patch: &Map<String, Value>) -> Self {
        let mut spec = self.clone();
        merge(&mut spec.0, patch);
        spec
    }

    /// The spec of the ServiceDeployment on one cluster.
    pub fn on(&self, cluster: &ClusterReference, policy: DeletionPolicy) -> Map<String, Value> {
        let mut spec = self.0.clone();
        spec.insert("clusterRef".to_owned(), json!(cluster));
        spec.insert("deletionPolicy".to_owned(), json!(policy));
        spec
    }
}

fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (field, change) in patch {
        match (change, target.get_mut(field)) {
            (Value::Null, _) => drop(target.remove(field)),
            (Value::Object(change), Some(Value::Object(known))) => merge(known, change),
            (Value::Object(change), _) => {
                let mut made = Map::new();
                merge(&mut made, change);
                target.insert(field.clone(), made.into());
            }
            (change, _) => drop(target.insert(field.clone(), change.clone())),
        }
    }
}

impl JsonSchema for TemplateSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ServiceTemplateSpec".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = ServiceDeploymentSpec::json_schema(generator);
        schema.insert("description".to_owned(), "The spec of each ServiceDeployment.".into());
        if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            fields.retain(|field, _| !OWN_FIELDS.contains(&field.as_str()));
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|field| !OWN_FIELDS.iter().any(|own| field == own));
        }
        schema
    }
}

/// A value for each cluster: constant, from a label, or computed. Exactly one of `value`, `fromLabel` and `expression`
/// is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetParameter {
    /// Name in `configuration`.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Constant value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
    /// Key of a label of the Cluster whose value is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub from_label: Option<String>,
    /// CEL expression over `self`, the Cluster with `name`, `namespace`, `labels`, `annotations`, `metadata` and, once
    /// its agent has joined, `version`. Its value is a string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub expression: Option<String>,
    /// Value if the cluster has no such label, or the expression has no value. Absent: such a cluster is an error and
    /// keeps the service that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub default: Option<String>,
}

/// A change of the template for some clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    /// Label selector for clusters. Empty: every cluster.
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// JSON merge patch of `template.spec`: a null removes a field, and a list is replaced.
    #[schemars(schema_with = "schemas::free_form")]
    pub patch: Map<String, Value>,
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
        format!(
            "rollout {} is {}: {} of {} clusters are done",
            self.number,
            self.phase,
            self.updated,
            self.clusters()
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
    use super::*;

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
