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

/// Parameters of one set.
pub const MAX_SET_PARAMETERS: usize = 64;
/// Variants of the template.
pub const MAX_OVERRIDES: usize = 64;
/// The kind that `servicesets/NAME/versions` lists.
pub const VERSIONS_KIND: &str = "ServiceSetVersionList";
/// Versions of a set that can be gone back to: as many as of a service.
pub const VERSIONS_KEPT: usize = 20;
/// Words of people on one rollout.
pub const ORDERS_KEPT: usize = 20;
/// Errors that a status names.
pub const MAX_SET_ERRORS: usize = 5;
/// The kind that `servicesets/NAME/members` lists.
pub const MEMBERS_KIND: &str = "ServiceSetMemberList";
/// The kind that `servicesets/NAME/plan` answers with.
pub const PLAN_KIND: &str = "ServiceSetPlan";
/// Clusters of each kind that a plan names; it counts all.
pub const MAX_PLANNED: usize = 1000;
/// The kind that `servicesets/NAME/rollout` answers with.
pub const SURVEY_KIND: &str = "ServiceSetRollout";
/// Versions that a survey tells apart: as many as a page shows at once, and more than a rollout ever has under way.
pub const MAX_SURVEYED_VERSIONS: usize = 12;
/// Members that a survey names, the worst first; it counts all.
pub const MAX_SURVEYED_MEMBERS: usize = 50;

/// What the set says of a service, and not the template: which cluster, what happens at its end, and what people may do to one of
/// them.
const OWN_FIELDS: [&str; 5] = ["clusterRef", "deletionPolicy", "suspend", "suspension", "pin"];

/// A ServiceDeployment for each cluster that a selector finds, made of one template.
///
/// What is made belongs to the set: it is read-only but for `suspend`, `suspension` and `pin`.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters.matched"),
    printcolumn(name = "Healthy", type_ = "integer", json_path = ".status.clusters.ready"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ServiceSetSpec {
    /// Which clusters, by label; an empty selector is every cluster that this namespace may deploy to.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    pub template: ServiceTemplate,
    /// Texts that differ by cluster. Templates see them in `configuration`; they take precedence over the template's own `configuration`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub parameters: Vec<SetParameter>,
    /// Changes of the template for some of the clusters. The first that selects a cluster counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub overrides: Vec<Override>,
    /// How a change spreads over the clusters: of what the sources have, or of the template, the parameters and the overrides.
    #[serde(default)]
    pub rollout: RolloutPolicy,
    /// Keeps all clusters at an earlier version of the set, whatever its sources and its template have since. They go there as by any
    /// other change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub pin: Option<SetPin>,
    /// What happens to the objects on a cluster that the selector finds no more, or when the set is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// A version of a whole set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetPin {
    /// Number of the rollout, as `servicesets/NAME/versions` lists them.
    #[schemars(range(min = 1))]
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceTemplate {
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    pub spec: TemplateSpec,
}

/// Of each ServiceDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Beside `farwater.dev/set`, the set's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl TemplateMetadata {
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The spec of a ServiceDeployment without what the set itself says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateSpec(pub Map<String, Value>);

impl TemplateSpec {
    /// With an override's changes, as a JSON merge patch (RFC 7396) makes them.
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

/// One text: stated, taken from a label, or computed. Exactly one of `value`, `fromLabel` and `expression`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetParameter {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
    /// A label of the Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub from_label: Option<String>,
    /// In CEL, over `self`: the Cluster with `name`, `namespace`, `labels`, `annotations`, `metadata` and, once its agent has
    /// joined, `version`. Its value is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub expression: Option<String>,
    /// Where the cluster has no such label, or the expression no value. Absent: such a cluster is an error, and keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub default: Option<String>,
}

/// A change of the template for the clusters that it selects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub cluster_selector: LabelSelector,
    /// Of `template.spec`, as a JSON merge patch: a field that is null is taken away, and a list is replaced.
    #[schemars(schema_with = "schemas::free_form")]
    pub patch: Map<String, Value>,
}

/// Counts and a few examples: its size does not grow with the fleet. Each member is at `servicesets/NAME/members`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSetStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`: every cluster that is selected has its service, and each is healthy at what is assigned to it. `Stalled`, where
    /// somebody has to change something. `Braked`, while clusters that were lost to the selector wait for an administrator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(default)]
    pub clusters: SetCounts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// The last version that all clusters were done with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good: Option<u64>,
    /// The first clusters, by name, whose service can't be made; never more than five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<SetError>,
    /// Who wrote the template, the selector or what else says what runs where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// Who has set the pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_by: Option<String>,
    /// Who set the annotation `farwater.dev/override-freeze` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<String>,
    /// When. It counts for a day, and is taken off then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_at: Option<Time>,
    /// Who set the annotation `farwater.dev/propose-override` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_by: Option<String>,
    /// When. Another person can approve it for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_at: Option<Time>,
}

/// How far the last change has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Counts up with each change of what the set asks for.
    #[serde(default)]
    pub number: u64,
    #[serde(default)]
    pub phase: RolloutPhase,
    /// The step that is open: `canary`, one of the policy's, or `rest`; empty: all are.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// Clusters that are done with what they want.
    #[serde(default)]
    pub updated: i64,
    /// On their way.
    #[serde(default)]
    pub progressing: i64,
    /// Of these: healthy with it, but not yet for the length of the soak.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub soaking: i64,
    #[serde(default)]
    pub failed: i64,
    /// Silent, and passed over until they are heard.
    #[serde(default)]
    pub deferred: i64,
    #[serde(default)]
    pub waiting: i64,
    /// The first cluster that failed, where that stops the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_by: Option<String>,
}

impl RolloutStatus {
    /// Clusters that it counts.
    pub fn clusters(&self) -> i64 {
        self.updated + self.progressing + self.failed + self.deferred + self.waiting
    }

    /// `rollout 3 is Progressing: 1 of 2 clusters are done`
    pub fn so_far(&self) -> String {
        format!("rollout {} is {}: {} of {} clusters are done", self.number, self.phase, self.updated, self.clusters())
    }
}

/// Clusters of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetCounts {
    /// That are selected.
    #[serde(default)]
    pub matched: i64,
    /// Of them: that are healthy at what is assigned to them.
    #[serde(default)]
    pub ready: i64,
    /// Of them: whose service can't be made, or not as the set says.
    #[serde(default)]
    pub failed: i64,
    /// That are selected no more, and still have their service.
    #[serde(default)]
    pub leaving: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetError {
    /// `namespace/name`.
    pub cluster: String,
    pub message: String,
}

/// One cluster of a set, as `servicesets/NAME/members` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// `namespace/name`.
    pub cluster: String,
    /// Of the ServiceDeployment, in the set's namespace; empty: there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    pub state: MemberState,
    /// Of the rollout.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// Where it is on its way, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub standing: String,
    /// Why its service can't be made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The same as `standing`, as one of a few; absent: it is of no rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Since when, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The version that is assigned to it; empty: none was yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// The version that it is to get, where that is another one: what its sources have, or had in the version that the set is pinned to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wanted_revision: String,
}

/// Where a member of a rollout is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Progress {
    /// At what it wants, or taken back from it.
    Failed,
    /// It has got what it wants, and is not healthy with it yet.
    Progressing,
    /// Healthy with what it wants, and not for long enough.
    Soaking,
    /// Its cluster is silent: it gets what it wants when it is heard.
    Deferred,
    /// By a person's will, or because it can't be there.
    Still,
    /// For its turn.
    #[default]
    Waiting,
    Done,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemberState {
    #[default]
    Progressing,
    Ready,
    Failed,
    /// The selector finds the cluster no more.
    Leaving,
}

/// What one rollout was about, and what became of it; `servicesets/NAME/versions` lists the newest [`VERSIONS_KEPT`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetVersion {
    /// Of the rollout.
    pub number: u64,
    /// Of the template's own source, as it had it at the beginning; empty: nobody knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// The version that was gone back to by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<u64>,
    pub began: Time,
    /// When it was complete, or another one took its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// As it was left.
    #[serde(default)]
    pub phase: RolloutPhase,
    /// All clusters that were heard were done with it.
    #[serde(default)]
    pub good: bool,
    /// The cluster that stopped it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_by: Option<String>,
    /// Orders of people for it, oldest first; the newest [`ORDERS_KEPT`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<SetOrder>,
}

impl SetVersion {
    /// Whether a newer rollout took its place before it was complete, halted or aborted.
    pub fn is_superseded(&self) -> bool {
        let is_over = matches!(self.phase, RolloutPhase::Complete | RolloutPhase::Halted | RolloutPhase::Aborted);
        self.ended.is_some() && !is_over
    }
}

/// A person's word on a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetOrder {
    pub at: Time,
    /// A user of the API.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// `promote past Soak`, `abort`, `skip …`, `pause`, `resume`, `roll back to 6`, `override change windows`.
    pub what: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// How far the rollout of a set has come, counted over all of its members; answered by `servicesets/NAME/rollout`. Its size grows
/// with steps and versions and not with the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSurvey {
    /// Answers of some seconds may be one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<Time>,
    /// In the order in which a change reaches them.
    pub stages: Vec<Stage>,
    /// The newest first, as far as that is known.
    pub versions: Vec<VersionCounts>,
    /// Versions of the last of `versions`, where it stands for more than one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u64,
    /// Clusters that are unavailable now, and how many may be.
    #[serde(default)]
    pub unavailable: u64,
    #[serde(default)]
    pub max_unavailable: u64,
    /// The first cluster that the next step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Member>,
    /// Of those that are not done the worst, and then by name.
    pub open: Vec<Member>,
}

/// The members of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stage {
    /// `canary`, one of the policy's, or `rest`.
    pub step: String,
    pub counts: ProgressCounts,
}

/// Each member counts once.
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

/// Who wants a version, and who has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionCounts {
    /// As in the status of a service; empty: nothing yet.
    pub revision: String,
    /// Who wrote the commit, as it says itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// Those with members of this version.
    pub stages: Vec<VersionStage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionStage {
    pub step: String,
    /// Members that want it, and how far they are. Over all versions they are the stage's.
    pub counts: ProgressCounts,
    /// Members that have it and want another.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept: u64,
}

/// What a set, as it is or as it is proposed, would make of its clusters; answered by `servicesets/NAME/plan`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetPlan {
    pub counts: PlanCounts,
    /// `namespace/name`, in their order; at most [`MAX_PLANNED`].
    pub added: Vec<String>,
    pub changed: Vec<PlannedChange>,
    pub dropped: Vec<String>,
    pub errors: Vec<SetError>,
    /// Why nothing would be dropped until an administrator has looked.
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
    /// Of the service's spec, or `labels`.
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
