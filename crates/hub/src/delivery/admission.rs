//! Admission: whether a service may be placed where it asks to be, before it is written.
//!
//! The same decision is made again when desired states are computed, so that what changes later is noticed; this one only
//! tells people at once.

use farwater_api::{Cluster, GitRepository, ServiceDeployment, ServiceDeploymentSpec};
use farwater_fleet::placement::{self, Denied};
use farwater_store::{Store, StoreError};

use crate::controllers::{
    resources::{self, Name},
    services::load_grants,
};

#[derive(Debug, thiserror::Error)]
pub enum Inadmissible {
    /// Answer 403.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Answer 422, for `spec.clusterRef`.
    #[error("clusterRef is immutable; delete the service and make it again")]
    ClusterChanged,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks a ServiceDeployment that is about to be written; `old` is what it replaces. A cluster that doesn't exist yet is no
/// reason to refuse the service, except to tenants: they may not learn by trying which clusters there are.
pub async fn check_service(
    store: &Store,
    namespace: &str,
    service: &ServiceDeploymentSpec,
    old: Option<&ServiceDeployment>,
) -> Result<(), Inadmissible> {
    if let Some(old) = old
        && old.spec.cluster_ref != service.cluster_ref
    {
        return Err(Inadmissible::ClusterChanged);
    }
    // What was admitted may always be deleted and held.
    let placed_anew = old.is_none_or(|old| {
        old.spec.target_namespace != service.target_namespace || old.spec.source_ref != service.source_ref
    });
    if namespace == farwater_api::ADMIN_NAMESPACE || !placed_anew {
        return Ok(());
    }
    let labels = find_labels(store, namespace, service).await?.unwrap_or_default();
    let source_name = Name::new(namespace, &service.source_ref.name);
    let source = resources::load::<GitRepository>(store, &source_name).await?.map(|(_, source)| source.spec.url);
    let request = placement::Request {
        namespace,
        cluster: &service.cluster_ref.name,
        cluster_labels: &labels,
        source: source.as_deref(),
        target_namespace: &service.target_namespace,
    };
    placement::check(request, &load_grants(store).await?)?;
    Ok(())
}

async fn find_labels(
    store: &Store,
    namespace: &str,
    service: &ServiceDeploymentSpec,
) -> Result<Option<std::collections::BTreeMap<String, String>>, StoreError> {
    for (namespace, name) in placement::cluster_candidates(&service.cluster_ref, namespace) {
        if let Some((_, cluster)) = resources::load::<Cluster>(store, &Name::new(namespace, name)).await? {
            return Ok(Some(cluster.metadata.labels.unwrap_or_default()));
        }
    }
    Ok(None)
}
