//! ServiceDeployment: what runs on one cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Digest, HealthRuleSpec,
    apply_options::ApplyOptions,
    deletion::Deletion,
    git_repository::LocalReference,
    objects::ObjectRef,
    parameters::Parameter,
    renderer::{Patch, Renderer},
    service_sources::{ChartReference, MountedSource},
    service_test::ServiceTest,
};

pub use crate::service_sources::{SourceKind, SourceReference};

/// A folder of a source, kept applied on one cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "farwater.dev",
    version = "v1alpha1",
    kind = "ServiceDeployment",
    plural = "servicedeployments",
    shortname = "sd",
    category = "farwater",
    namespaced,
    status = "ServiceDeploymentStatus",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Status", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.appliedRevision"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterRef.name", priority = 1),
    printcolumn(name = "Path", type_ = "string", json_path = ".spec.path", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ServiceDeploymentSpec {
    /// The cluster; immutable.
    pub cluster_ref: ClusterReference,
    /// Namespace of the cluster for objects that name none; created if missing.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub target_namespace: String,
    /// Where the files come from.
    pub source_ref: SourceReference,
    /// Of a HelmRepository: which of its charts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartReference>,
    /// Folder of the source, relative to its root; empty or `.` is the root.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub path: String,
    /// More sources of this namespace, each with a folder of it among the service's files: values or patches from another
    /// repository, for example.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub sources: Vec<MountedSource>,
    /// What makes objects of the files; empty: one of type `Auto` for the whole folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub renderers: Vec<Renderer>,
    /// Changes of everything that is rendered, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub patches: Vec<Patch>,
    /// Whether objects that leave the source are deleted from the cluster.
    #[serde(default = "default_prune")]
    pub prune: bool,
    /// How the objects are applied.
    #[serde(default, skip_serializing_if = "ApplyOptions::is_default")]
    pub apply: ApplyOptions,
    /// What happens to the objects when this resource is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Secrets of the service's own namespace in the hub that the cluster gets too, in `targetNamespace` and under the
    /// same names. They travel sealed to the cluster's agent and are in no bundle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub secrets: Vec<LocalReference>,
    /// Texts that the service's templates see in `configuration`. They take precedence over those of any ConfigMap or
    /// Secret that is named as a whole; one that is picked by its key is refused. Not for secrets: whoever
    /// may read the service reads them. At most 32 KiB as JSON, and 512 names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Values of other objects that the service's templates see. Of objects that are named without keys the later one counts,
    /// picked keys take precedence over them, and a name that is picked twice is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub parameters: Vec<Parameter>,
    /// Holds the service at what it runs now.
    #[serde(default)]
    pub suspend: bool,
    /// Why `suspend` is set, and until when it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// Keeps the service at a bundle of its history, whatever its source has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// Services and sets of this namespace: a newer bundle of this service is delivered once they are healthy at what is assigned to
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    pub depends_on: Vec<DependencyReference>,
    /// Run in the cluster, in `targetNamespace`, each time a version has become healthy. One that fails fails the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tests: Vec<ServiceTest>,
    /// How objects of some kinds are judged, before the hub's HealthRules and the built-in rules. The first for a kind counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub health: Vec<HealthRuleSpec>,
}

/// What has to be healthy first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependencyReference {
    #[serde(default)]
    pub kind: DependencyKind,
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Of a ServiceSet alone: on which of its clusters.
    #[serde(default, skip_serializing_if = "DependencyClusters::is_same")]
    pub clusters: DependencyClusters,
    /// In CEL, over `self`, the ServiceDeployment or ServiceSet that is waited for: true when it is ready. In place of its health at
    /// what is assigned to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub ready_expr: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum DependencyKind {
    /// On whatever cluster.
    #[default]
    ServiceDeployment,
    ServiceSet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DependencyClusters {
    /// The set's service on the cluster of this one.
    #[default]
    Same,
    /// All of the set's services: its rollout has to be complete.
    All,
}

impl DependencyClusters {
    pub fn is_same(&self) -> bool {
        *self == Self::Same
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Suspension {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
    /// From then on the service goes on by itself, as if `suspend` were not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Pin {
    /// Digest of a bundle that `servicedeployments/NAME/history` lists.
    pub bundle: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}

const fn default_prune() -> bool {
    true
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ClusterReference {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The service's own namespace if absent, then the administrators'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The objects stay and lose our labels.
    #[default]
    Orphan,
    /// The objects are deleted first.
    Delete,
}

impl ServiceDeployment {
    /// What asks for a reconcile and is not acknowledged by the status yet.
    pub fn open_request(&self) -> Option<&str> {
        let handled = self.status.as_ref().and_then(|status| status.last_handled_reconcile_at.as_deref());
        crate::requested_at(&self.metadata).filter(|value| Some(*value) != handled)
    }
}

/// At most 4 KB: a summary. Every object's state is at `servicedeployments/NAME/objects`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDeploymentStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Reconciling`, `Stalled`, `PruneHeld` while a prune waits for approval, `Drifted` while objects differ from the source
    /// that are not corrected, `SecretsStale` while a backend of secrets can't be read, `Pinned`, and `Frozen` while a ChangeWindow holds
    /// something newer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The source's revision whose bundle is assigned to the cluster. A later commit that touches nothing of what the service is made of
    /// is not named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_revision: Option<String>,
    /// The revision whose bundle the agent last applied without an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_revision: Option<String>,
    /// The digest of the bundle that is assigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_digest: Option<Digest>,
    /// Texts of `configuration` that a pipeline has promoted with it: they take precedence over those of the spec.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Newest version of the source, if a pin, a suspension, a dependency, the rollout of its set or a ChangeWindow holds it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_revision: Option<String>,
    /// Who said last what is to run: the source, the path or the pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// Who set the pin that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_by: Option<String>,
    /// Who set the suspension that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_by: Option<String>,
    /// Who set the annotation `farwater.dev/approve-prune` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// When. It counts for a day, and is taken off then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Time>,
    /// Who set the annotation `farwater.dev/retry-hook` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_retried_by: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_retried_at: Option<Time>,
    /// Who set the annotation `farwater.dev/override-freeze` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<String>,
    /// When. It counts for a day, and is taken off then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_at: Option<Time>,
    /// Who set the annotation `farwater.dev/propose-prune` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune_proposed_by: Option<String>,
    /// When. Another person can approve it for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune_proposed_at: Option<Time>,
    /// Who set the annotation `farwater.dev/propose-override` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_by: Option<String>,
    /// When. Another person can approve it for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectCounts>,
    /// Of the version that is assigned: hooks and tests that the agent has begun. `farwater hooks` tells of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<HookCounts>,
    /// The first objects that are failed, in progress or refused; never more than five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<UnhealthyObject>,
    /// A prune that waits for `farwater.dev/approve-prune: <digest>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_prune: Option<HeldPrune>,
    /// What the agent deleted last; `farwater undo` brings it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_deletion: Option<Deletion>,
    /// When the agent reported for the first time that it applied what `appliedEntry` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_time: Option<Time>,
    /// Digest of the last applied entry: version, spec, parameters, and all else that changes the agent's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_entry: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCounts {
    pub total: u32,
    pub healthy: u32,
    pub progressing: u32,
    pub failed: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookCounts {
    pub running: u32,
    pub succeeded: u32,
    pub failed: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyObject {
    pub object: ObjectRef,
    /// Cut at 256 bytes.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeldPrune {
    /// The plan's digest: what an approval must name.
    pub digest: Digest,
    /// Why it waits, in one sentence.
    pub reason: String,
    pub count: u32,
    /// The first ten objects that would go.
    pub objects: Vec<ObjectRef>,
    /// What goes with the namespaces and definitions among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Contents>,
    /// It waits for nothing but objects of the source that are not applied yet, and for no approval.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub until_applied: bool,
    /// Plans that held all of it and more: what was approved or proposed of one of these counts for what is left. The newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Digest>,
}

/// What an object takes with it when it is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Contents {
    pub object: ObjectRef,
    /// How many of which kind, the most first; of the kinds that the service's account may list.
    pub counts: Vec<KindCount>,
    /// Kinds that could not be counted.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub unknown: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindCount {
    /// `Kind.group`, as messages name kinds.
    pub kind: String,
    pub count: u32,
}
