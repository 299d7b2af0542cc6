//! ServiceDeployment: what runs on one cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Digest, HealthRuleSpec,
    apply_options::ApplyOptions,
    deletion::LastDeletion,
    git_repository::LocalReference,
    object_ref::ObjectRef,
    parameters::Parameter,
    renderer::{Patch, Renderer},
    service_sources::{ChartReference, MountedSource, StatedSource},
    test_container::ServiceTest,
};

pub use crate::{
    held_prune::{Contents, HeldPrune, KindCount},
    service_sources::{SourceKind, SourceReference},
};

/// A folder of a source that the agent keeps applied on one cluster.
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
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.appliedRevision"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".spec.clusterRef.name",
        priority = 1
    ),
    printcolumn(name = "Path", type_ = "string", json_path = ".spec.path", priority = 1)
)]
#[kube(crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi"))]
#[serde(rename_all = "camelCase")]
pub struct ServiceDeploymentSpec {
    /// Cluster of the service. Immutable.
    pub cluster_ref: ClusterReference,
    /// Namespace in the cluster for objects that name none. Created if missing.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub target_namespace: String,
    /// Source of the files.
    pub source_ref: SourceReference,
    /// Chart of a HelmRepository. Required for that kind of source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartReference>,
    /// Folder of the source, relative to its root. Empty or `.`: the root.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub path: String,
    /// Further sources of this namespace, such as values or patches from another repository. Each adds a folder to the
    /// service's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub sources: Vec<MountedSource>,
    /// Renderers that produce the objects from the files. Empty: one of type `Auto` for the whole folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub renderers: Vec<Renderer>,
    /// Patches for all rendered objects, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub patches: Vec<Patch>,
    /// Whether to delete objects from the cluster that are no longer in the source.
    #[serde(default = "default_prune")]
    pub prune: bool,
    /// Options for applying the objects.
    #[serde(default, skip_serializing_if = "ApplyOptions::is_default")]
    pub apply: ApplyOptions,
    /// What happens to the objects when this resource is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Secrets in the service's own namespace of the hub that are copied to `targetNamespace` under the same names.
    /// They travel sealed to the cluster's agent and are in no bundle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub secrets: Vec<LocalReference>,
    /// Values that templates see in `configuration`. They take precedence over ConfigMaps and Secrets that are named as
    /// a whole. A selected key of the same name is refused. Not for secrets: anyone who may read the service can read
    /// them. At most 32 KiB as JSON, and 512 names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Values of other objects that templates see. Among objects named without keys, the later takes precedence;
    /// selected keys take precedence over both. Selecting a name twice is an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub parameters: Vec<Parameter>,
    /// Suspend holds the service at the version that it runs now.
    #[serde(default)]
    pub suspend: bool,
    /// Why `suspend` is set, and until when. Empty: no reason, until resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// Pin holds the service at a bundle of its history, whatever its source has. Empty: the service follows its
    /// source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// Services and sets of this namespace that must be healthy, at the version assigned to them, before a newer bundle
    /// of this service is delivered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    pub depends_on: Vec<DependencyReference>,
    /// Tests that run in the cluster, in `targetNamespace`, each time a version has become healthy. A failed test fails
    /// the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tests: Vec<ServiceTest>,
    /// Health rules of this service. They take precedence over the hub's HealthRules and the built-in rules. For each
    /// kind, the first rule applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub health: Vec<HealthRuleSpec>,
}

/// A service or set that must be healthy first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependencyReference {
    /// Kind of the dependency.
    #[serde(default)]
    pub kind: DependencyKind,
    /// Name of the dependency.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Clusters of a ServiceSet that must be healthy. Only for sets.
    #[serde(default, skip_serializing_if = "DependencyClusters::is_same")]
    pub clusters: DependencyClusters,
    /// CEL expression over `self`, the ServiceDeployment or ServiceSet. It is true when the dependency is ready, and
    /// replaces the health check. Empty: the dependency must be healthy at the version assigned to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub ready_expr: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum DependencyKind {
    /// A service, on any cluster.
    #[default]
    ServiceDeployment,
    /// A set.
    ServiceSet,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DependencyClusters {
    /// The set's service on the cluster of this service.
    #[default]
    Same,
    /// All of the set's services. Its rollout must be complete.
    All,
}

impl DependencyClusters {
    pub fn is_same(&self) -> bool {
        *self == Self::Same
    }
}

/// Reason and end of a suspension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Suspension {
    /// Why the service is suspended. Empty: no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
    /// Time at which the service resumes by itself, as if `suspend` were not set. Empty: it stays suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// A version to which the service is pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Pin {
    /// Digest of a bundle in `servicedeployments/NAME/history`.
    pub bundle: Digest,
    /// Why the service is pinned. Empty: no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub reason: Option<String>,
}

const fn default_prune() -> bool {
    true
}

/// Reference to a Cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ClusterReference {
    /// Name of the Cluster.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Cluster. Empty: the service's own namespace, then `farwater-admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// The objects stay in the cluster and lose our labels.
    #[default]
    Orphan,
    /// The objects are deleted before this resource.
    Delete,
}

impl ServiceDeploymentSpec {
    /// Sources of the service, its own first.
    pub fn all_sources(&self) -> impl Iterator<Item = StatedSource<'_>> {
        let first = StatedSource {
            reference: &self.source_ref,
            chart: self.chart.as_ref(),
            path: &self.path,
            mount_path: None,
        };
        std::iter::once(first).chain(self.sources.iter().map(|source| StatedSource {
            reference: &source.source_ref,
            chart: source.chart.as_ref(),
            path: &source.path,
            mount_path: Some(&source.mount_path),
        }))
    }

    /// Whether this is one of the service's sources.
    pub fn uses(&self, source: &SourceReference) -> bool {
        self.all_sources().any(|stated| stated.reference == source)
    }
}

impl ServiceDeployment {
    /// The reconcile request that the status does not acknowledge yet.
    pub fn open_request(&self) -> Option<&str> {
        let handled = self
            .status
            .as_ref()
            .and_then(|status| status.last_handled_reconcile_at.as_deref());
        crate::requested_at(&self.metadata).filter(|value| Some(*value) != handled)
    }
}

/// Observed state of the service, a summary of at most 4 KB. The state of every object is at
/// `servicedeployments/NAME/objects`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDeploymentStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Reconciling` and `Stalled`. `PruneHeld` is set while a prune waits for approval, and `Drifted` while
    /// drift is not corrected. `SecretsStale` is set while a secret backend cannot be read, and `Pinned` while a pin is
    /// set. `Frozen` is set while a ChangeWindow holds another version or spec, and `RolloutHeld` while the rollout of
    /// its set does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Revision of the source whose bundle is assigned to the cluster. Later commits that touch none of the service's
    /// files do not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_revision: Option<String>,
    /// Revision whose bundle the agent last applied without an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_revision: Option<String>,
    /// Digest of the assigned bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_digest: Option<Digest>,
    /// `configuration` values that a pipeline promoted with the revision. They take precedence over those of the spec.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
    /// Revision that the service would run if a pin, a suspension, a dependency, the rollout of its set or a
    /// ChangeWindow did not hold it back: the pinned one until it is assigned, otherwise the newest of the source. Empty:
    /// nothing is held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_revision: Option<String>,
    /// User who last set the source, the path or the pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// User who set the current pin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_by: Option<String>,
    /// User who set the current suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_by: Option<String>,
    /// User who set the current annotation `farwater.dev/approve-prune`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
    /// Time of the approval. The approval is valid for a day; then the hub removes the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_at: Option<Time>,
    /// User who set the current annotation `farwater.dev/retry-hook`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_retried_by: Option<String>,
    /// Time of that request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_retried_at: Option<Time>,
    /// Who set the annotation `farwater.dev/override-freeze` that stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_by: Option<String>,
    /// Time of the override. The override is valid for a day; then the hub removes the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overridden_at: Option<Time>,
    /// User who set the current annotation `farwater.dev/propose-prune`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune_proposed_by: Option<String>,
    /// Time of the proposal. Another person can approve the proposal for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune_proposed_at: Option<Time>,
    /// User who set the current annotation `farwater.dev/propose-override`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_by: Option<String>,
    /// Time of the proposal. Another person can approve the proposal for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_proposed_at: Option<Time>,
    /// Numbers of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectCounts>,
    /// Numbers of hooks and tests that the agent has started for the assigned version. `farwater hooks` lists them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<HookCounts>,
    /// The first objects that are failed, in progress or refused; at most five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<UnhealthyObject>,
    /// Prune that waits for `farwater.dev/approve-prune: <digest>`. Empty: none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_prune: Option<HeldPrune>,
    /// Last deletion by the agent. `farwater undo` restores the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_deletion: Option<LastDeletion>,
    /// Time at which the agent first reported `appliedEntry` as applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_applied_time: Option<Time>,
    /// Digest of the entry that the agent has to apply. Empty: the service has none to apply, because it has no version
    /// yet, is held or is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_entry: Option<Digest>,
    /// Time since which the service has failed. It is kept until the service is ready again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_since: Option<Time>,
    /// Digest of the last applied entry: version, spec, parameters, and all else that changes the agent's work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_entry: Option<Digest>,
    /// Value of the last handled request annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}

/// Numbers of objects of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCounts {
    /// Number of all objects.
    pub total: u32,
    /// Number of healthy objects.
    pub healthy: u32,
    /// Number of objects that are not healthy yet.
    pub progressing: u32,
    /// Number of failed objects.
    pub failed: u32,
}

/// Numbers of hooks and tests of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookCounts {
    /// Number that are running.
    pub running: u32,
    /// Number that succeeded.
    pub succeeded: u32,
    /// Number that failed.
    pub failed: u32,
}

/// An object that is not healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyObject {
    /// The object.
    pub object: ObjectRef,
    /// Why it is not healthy, cut at 256 bytes.
    pub message: String,
}
