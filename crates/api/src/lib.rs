//! All serialized contracts of Farwater: the resource kinds, the agent protocol, digests and labels.
//!
//! The crate is pure: no sockets, files, clocks or runtime. One Rust type per kind is the only source of the CRD, the
//! OpenAPI schema, the defaults and the reference pages.

// The lint mistakes the repeated `type_` in the derive's columns for an error.
#![allow(clippy::duplicated_attributes)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent_policy;
pub mod any_source;
pub mod apply_options;
pub mod change_window;
pub mod cluster;
pub mod cluster_grant;
pub mod convert;
pub mod deletion;
pub mod digest;
pub mod digest_report;
pub mod git_repository;
pub mod granted_cluster;
pub mod health_rule;
pub mod held_prune;
pub mod helm_repository;
pub mod history;
pub mod hooks;
pub mod impact;
pub mod json_path;
pub mod managed_namespace;
pub mod names;
pub mod notification_provider;
pub mod notification_rule;
pub mod object_ref;
pub mod objects;
pub mod oci_repository;
pub mod parameters;
pub mod path_pattern;
pub mod pipeline;
pub mod plan;
pub mod protocol;
pub mod receiver;
pub mod refusal;
pub mod renderer;
pub mod rollout;
pub mod schemas;
pub mod service_context;
pub mod service_deployment;
pub mod service_set;
pub mod service_sources;
pub mod source;
pub mod succession;
pub mod test_container;
pub mod trace;

pub use agent_policy::{AgentPolicy, AgentPolicySpec, AgentPolicyStatus};
pub use any_source::AnySource;
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
pub use source::{SourceKind, SourceStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt as _;

/// API group of our kinds. Code takes it only from here; the derives on the kinds repeat it.
pub const GROUP: &str = "farwater.dev";
/// Served and stored version of our kinds.
pub const VERSION: &str = "v1alpha1";

/// Annotation that requests an immediate reconcile. Any new value is a new request.
pub const REQUESTED_AT: &str = "farwater.dev/requestedAt";
/// Flux's annotation for the same request, accepted so that the habits and tools of Flux users work.
pub const FLUX_REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";

/// The larger value of the two request annotations.
pub fn requested_at(metadata: &kube_core::ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref()?;
    let value = |name: &str| annotations.get(name).map(String::as_str);
    value(REQUESTED_AT).max(value(FLUX_REQUESTED_AT))
}

/// Annotation on a ServiceDeployment that approves one held prune. Its value is the plan's digest.
pub const APPROVE_PRUNE: &str = "farwater.dev/approve-prune";
/// Annotation on the Namespace [`ADMIN_NAMESPACE`], set by the hub or by hand. While it is set, nothing is deleted in
/// any cluster. Its value says why; removing it approves the deletions.
pub const FREEZE_PRUNES: &str = "farwater.dev/freeze-prunes";
/// Annotation on a ServiceDeployment or a ServiceSet: its changes may start for a day in spite of ChangeWindows. Its
/// value says why.
pub const OVERRIDE_FREEZE: &str = "farwater.dev/override-freeze";
/// Annotation on a ServiceDeployment that proposes the approval of one held prune, if [`APPROVALS`] or a grant requires
/// two people. Its value is the plan's digest.
pub const PROPOSE_PRUNE: &str = "farwater.dev/propose-prune";
/// Annotation on a ServiceDeployment or a ServiceSet that proposes an [`OVERRIDE_FREEZE`]. Its value says why.
pub const PROPOSE_OVERRIDE: &str = "farwater.dev/propose-override";
/// Annotation on a Namespace of the hub: how many people must approve actions on its services, such as
/// `prunes=2,freezeOverrides=2`; see [`Approvals`](cluster_grant::Approvals).
pub const APPROVALS: &str = "farwater.dev/approvals";
/// Annotation on a ServiceDeployment that requests the objects of its last deletion back; see
/// [`deletion::undo_request`].
pub const UNDO: &str = "farwater.dev/undo";
/// Annotation on a ServiceDeployment that retries a failed hook once. Its value is the failed run, which belongs to one
/// version.
pub const RETRY_HOOK: &str = "farwater.dev/retry-hook";
/// Annotation on a Cluster whose agent has proven that the hub was restored from an older backup: its value, the epoch that
/// the `Restored` condition names, confirms that the backup is right, and deletions are made again.
pub const CONFIRM_RESTORED: &str = "farwater.dev/confirm-restored";
/// Annotation on a Cluster that requests new keys from its agent. Any new value is a new request.
pub const RENEW_KEYS: &str = "farwater.dev/renew-keys";
/// Type of a Secret whose credentials apply to every source of its namespace below the prefix in [`URL_PREFIX`].
pub const SOURCE_CREDENTIALS: &str = "farwater.dev/source-credentials";
/// Annotation on such a Secret, for example `https://git.example.com/team-a`. The longest prefix wins.
pub const URL_PREFIX: &str = "farwater.dev/url-prefix";
/// Finalizer on ServiceDeployments: the resource stays until the agent confirms the removal.
pub const AGENT_FINALIZER: &str = "farwater.dev/agent";
/// Finalizer on ServiceSets: the resource stays until its services are released.
pub const SET_FINALIZER: &str = "farwater.dev/set";
/// Label on ServiceDeployments of a ServiceSet: the set's name, for selectors. It is no proof of ownership.
pub const SET_LABEL: &str = "farwater.dev/set";
/// Label on applied objects: a hash of the service's uid. It makes watches cheap, and is no proof of ownership.
pub const SERVICE_LABEL: &str = "farwater.dev/service";
/// Annotation on applied objects that names the object itself and its service. It is the proof of ownership.
pub const OWNER_ANNOTATION: &str = "farwater.dev/owner";
/// Field manager of the agent's server-side apply.
pub const FIELD_MANAGER: &str = "farwater-agent";
/// Namespace of the administrators, created at the first start and granted every cluster.
pub const ADMIN_NAMESPACE: &str = "farwater-admin";
/// Namespace of the agent in its cluster, with the inventory and the last verified state.
pub const AGENT_NAMESPACE: &str = "farwater-system";
/// Service account in [`AGENT_NAMESPACE`] with which services of the administrators' namespace are applied.
pub const ADMIN_SERVICE_ACCOUNT: &str = "farwater-administrator";
/// Secret in [`AGENT_NAMESPACE`] with the agent's identity, as JSON under [`SECRET_CONTENT`].
pub const IDENTITY_SECRET: &str = "farwater-agent-identity";
/// Key of the content in the agent's own Secrets.
pub const SECRET_CONTENT: &str = "content";

/// For numbers that are omitted if zero.
pub fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// The definitions of our kinds, for installation in a management cluster.
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

/// Replaces the derive's own description with that of the type.
fn describe_kind(crd: &mut CustomResourceDefinition) {
    for version in &mut crd.spec.versions {
        let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        else {
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
            let schema = version
                .schema
                .as_ref()
                .and_then(|s| s.open_api_v3_schema.as_ref())
                .expect("a schema");
            let properties = schema.properties.as_ref().expect("properties");
            assert!(properties.contains_key("spec"), "{}", crd.spec.names.kind);
            assert_eq!(
                properties.contains_key("status"),
                version.subresources.is_some(),
                "{}",
                crd.spec.names.kind
            );
            assert!(
                version
                    .additional_printer_columns
                    .as_ref()
                    .is_some_and(|c| !c.is_empty())
            );
        }
    }
}
