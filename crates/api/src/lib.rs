//! Every serialized contract of Farwater: the resource kinds, the agent protocol, digests and labels.
//!
//! Pure: no sockets, files, clocks or runtime. One Rust type per kind is the only source of the CRD, the OpenAPI
//! schema, the defaults and the reference pages.

// The lint takes the repeated `type_` of the derive's columns for a mistake.
#![allow(clippy::duplicated_attributes)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent_policy;
pub mod apply_options;
pub mod change_window;
pub mod cluster;
pub mod cluster_grant;
pub mod convert;
pub mod deletion;
pub mod digest;
pub mod digest_report;
pub mod git_repository;
pub mod health_rule;
pub mod helm_repository;
pub mod history;
pub mod hooks;
pub mod impact;
pub mod json_path;
pub mod managed_namespace;
pub mod names;
pub mod notification_provider;
pub mod notification_rule;
pub mod objects;
pub mod oci_repository;
pub mod parameters;
pub mod path_pattern;
pub mod pipeline;
pub mod plan;
pub mod protocol;
pub mod receiver;
pub mod renderer;
pub mod rollout;
pub mod schemas;
pub mod service_context;
pub mod service_deployment;
pub mod service_set;
pub mod service_sources;
pub mod service_test;
pub mod source;
pub mod succession;
pub mod trace;

pub use agent_policy::{AgentPolicy, AgentPolicySpec, AgentPolicyStatus};
pub use change_window::{ChangeWindow, ChangeWindowSpec, ChangeWindowStatus};
pub use cluster::{Cluster, ClusterSpec, ClusterStatus};
pub use cluster_grant::{ClusterGrant, ClusterGrantSpec, GrantVerb};
pub use digest::{Digest, canonical_json};
pub use git_repository::{GitRepository, GitRepositorySpec, GitRepositoryStatus};
pub use health_rule::{HealthRule, HealthRuleSpec, HealthRuleStatus};
pub use helm_repository::{HelmRepository, HelmRepositorySpec};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use managed_namespace::{ManagedNamespace, ManagedNamespaceSpec};
pub use notification_provider::{NotificationProvider, NotificationProviderSpec, NotificationProviderStatus};
pub use notification_rule::{NotificationRule, NotificationRuleSpec, NotificationRuleStatus};
pub use oci_repository::{OCIRepository, OCIRepositorySpec};
pub use pipeline::{Pipeline, PipelineSpec, PipelineStatus};
pub use receiver::{Receiver, ReceiverSpec, ReceiverStatus};
pub use rollout::{RolloutPhase, RolloutPolicy};
pub use service_context::{ServiceContext, ServiceContextSpec};
pub use service_deployment::{ServiceDeployment, ServiceDeploymentSpec, ServiceDeploymentStatus};
pub use service_set::{ServiceSet, ServiceSetSpec, ServiceSetStatus};
pub use source::{AnySource, SourceKind, SourceStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt as _;

/// The API group of our kinds. The only place that states it for code; the derives on the kinds repeat it.
pub const GROUP: &str = "farwater.dev";
/// The served and stored version of our kinds.
pub const VERSION: &str = "v1alpha1";

/// Annotation that asks for an immediate reconcile; any new value counts as a request.
pub const REQUESTED_AT: &str = "farwater.dev/requestedAt";
/// Flux's name for the same request, accepted beside ours so that its users' habits and tools work.
pub const FLUX_REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";

/// The newest of the annotations that ask for a reconcile: ours, then Flux's.
pub fn requested_at(metadata: &kube_core::ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref()?;
    let value = |name: &str| annotations.get(name).map(String::as_str);
    value(REQUESTED_AT).max(value(FLUX_REQUESTED_AT))
}

/// Annotation on a ServiceDeployment that approves one held prune; its value is the plan's digest.
pub const APPROVE_PRUNE: &str = "farwater.dev/approve-prune";
/// Annotation on the Namespace [`ADMIN_NAMESPACE`], set by the hub or by hand: as long as it is there nothing is deleted in any
/// cluster. Its value says why; who takes it off has looked.
pub const FREEZE_PRUNES: &str = "farwater.dev/freeze-prunes";
/// Annotation on a ServiceDeployment or a ServiceSet: what a closed ChangeWindow holds of it may begin, for a day. Its value says why.
pub const OVERRIDE_FREEZE: &str = "farwater.dev/override-freeze";
/// Annotation on a ServiceDeployment that proposes the approval of one held prune, where [`APPROVALS`] or a grant asks for two people; its
/// value is the plan's digest.
pub const PROPOSE_PRUNE: &str = "farwater.dev/propose-prune";
/// The same of [`OVERRIDE_FREEZE`], on a ServiceDeployment or a ServiceSet; its value says why.
pub const PROPOSE_OVERRIDE: &str = "farwater.dev/propose-override";
/// Annotation on a Namespace of the hub: how many people approve what is done to its services, for example `prunes=2,freezeOverrides=2`;
/// see [`Approvals`](cluster_grant::Approvals).
pub const APPROVALS: &str = "farwater.dev/approvals";
/// Annotation on a ServiceDeployment that asks for what its last deletion took; see [`deletion::undo_request`].
pub const UNDO: &str = "farwater.dev/undo";
/// Annotation on a ServiceDeployment that has a hook that failed run again, once: its value is the run that failed, which is of one version.
pub const RETRY_HOOK: &str = "farwater.dev/retry-hook";
/// Annotation on a Cluster whose agent has proven that the hub was restored from an older backup: its value, the epoch that
/// the `Restored` condition names, confirms that the backup is right, and deletions are made again.
pub const CONFIRM_RESTORED: &str = "farwater.dev/confirm-restored";
/// Annotation on a Cluster that asks its agent for new keys of its own; any new value counts as a request.
pub const RENEW_KEYS: &str = "farwater.dev/renew-keys";
/// Type of a Secret whose credentials serve every source of its namespace below the prefix that [`URL_PREFIX`] names.
pub const SOURCE_CREDENTIALS: &str = "farwater.dev/source-credentials";
/// Annotation on such a Secret, for example `https://git.example.com/team-a`. The longest prefix wins.
pub const URL_PREFIX: &str = "farwater.dev/url-prefix";
/// Finalizer on ServiceDeployments: the resource stays until the agent has confirmed the removal.
pub const AGENT_FINALIZER: &str = "farwater.dev/agent";
/// Finalizer on ServiceSets: the resource stays until its services are let go.
pub const SET_FINALIZER: &str = "farwater.dev/set";
/// Label on ServiceDeployments that a ServiceSet has made: its name, for selectors. Proves nothing.
pub const SET_LABEL: &str = "farwater.dev/set";
/// Label on applied objects: a hash of the service's uid. Makes watches cheap and proves nothing.
pub const SERVICE_LABEL: &str = "farwater.dev/service";
/// Annotation on applied objects that names the object itself and its service: the proof of ownership.
pub const OWNER_ANNOTATION: &str = "farwater.dev/owner";
/// Field manager of the agent's server-side apply.
pub const FIELD_MANAGER: &str = "farwater-agent";
/// The namespace made at first start: the administrators', granted every cluster.
pub const ADMIN_NAMESPACE: &str = "farwater-admin";
/// The namespace of the agent in its cluster: inventory and last verified state live there.
pub const AGENT_NAMESPACE: &str = "farwater-system";
/// The service account, in [`AGENT_NAMESPACE`], that services of the administrators' namespace are applied as.
pub const ADMIN_SERVICE_ACCOUNT: &str = "farwater-administrator";
/// Of [`AGENT_NAMESPACE`]: who the agent is, as JSON under [`SECRET_CONTENT`].
pub const IDENTITY_SECRET: &str = "farwater-agent-identity";
/// The key under which the agent's own Secrets hold what they are made for.
pub const SECRET_CONTENT: &str = "content";

/// Of numbers that are left out where they say nothing.
pub fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// The definitions of our kinds, as a management cluster would install them.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        AgentPolicy::crd(),
        ChangeWindow::crd(),
        Cluster::crd(),
        ClusterGrant::crd(),
        GitRepository::crd(),
        HealthRule::crd(),
        HelmRepository::crd(),
        ManagedNamespace::crd(),
        NotificationProvider::crd(),
        NotificationRule::crd(),
        OCIRepository::crd(),
        Pipeline::crd(),
        Receiver::crd(),
        ServiceContext::crd(),
        ServiceDeployment::crd(),
        ServiceSet::crd(),
    ];
    all.iter_mut().for_each(describe_kind);
    all
}

/// The derive writes a description of its own where the type's is meant.
fn describe_kind(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        let spec = schema.properties.as_ref().and_then(|properties| properties.get("spec"));
        schema.description = spec.and_then(|spec| spec.description.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_structural_schema_and_its_columns() {
        for crd in custom_resource_definitions() {
            let version = &crd.spec.versions[0];
            let schema = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()).expect("a schema");
            let properties = schema.properties.as_ref().expect("properties");
            assert!(properties.contains_key("spec"), "{}", crd.spec.names.kind);
            assert_eq!(properties.contains_key("status"), version.subresources.is_some(), "{}", crd.spec.names.kind);
            assert!(version.additional_printer_columns.as_ref().is_some_and(|c| !c.is_empty()));
        }
    }
}
