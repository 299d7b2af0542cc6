//! Clusters that a tenant may deploy to and may not read. The hub shows their names and health as GrantedClusters.

use farwater_api::{ADMIN_NAMESPACE, Cluster, granted_cluster::GrantedCluster};
use farwater_fleet::why::ClusterEvidence;

use crate::{
    connection::Session,
    failure::{Failure, Result},
    kinds,
};

/// Whether the user has no right to a Cluster that could not be read. A Cluster that is missing in the user's own
/// namespace may be one of the administrators', which tenants may not read.
pub async fn is_hidden(session: &Session, name: &str, failure: &Failure) -> bool {
    failure.is_denied() || failure.is_missing() && is_denied(session, Some(name)).await
}

/// Whether the user may not read the administrators' Clusters. `name`: one of them; None: their list.
pub async fn is_denied(session: &Session, name: Option<&str>) -> bool {
    let Some(kind) = kinds::find("clusters") else {
        return false;
    };
    let path = kind.path(Some(ADMIN_NAMESPACE), name);
    let read = session.read("read the administrators' Clusters", &path).await;
    read.is_err_and(|failure| failure.is_denied())
}

/// The cluster as it is granted to one of the tenants. `namespace`: that of its Cluster, or of the tenant. None: no tenant
/// has it.
///
/// # Errors
///
/// The hub could not answer, so that the cluster may be granted.
pub async fn find(
    session: &Session,
    tenants: &[&str],
    (namespace, name): (&str, &str),
) -> Result<Option<GrantedCluster>> {
    for (index, tenant) in tenants.iter().enumerate() {
        if tenants[..index].contains(tenant) {
            continue;
        }
        let path = kinds::granted_clusters().path(Some(tenant), Some(name));
        let found = match session.read("read the granted cluster", &path).await {
            Err(failure) if failure.is_missing() || failure.is_denied() => continue,
            found => found?,
        };
        let Ok(granted) = serde_json::from_value::<GrantedCluster>(found) else {
            continue;
        };
        if *tenant == namespace || granted.spec.cluster_ref.namespace.as_deref() == Some(namespace) {
            return Ok(Some(granted));
        }
    }
    Ok(None)
}

/// What the user may see of a cluster. A failure is that of reading the Cluster.
pub async fn see(session: &Session, namespace: &str, name: &str) -> Result<ClusterEvidence> {
    let read = session.get::<Cluster>(namespace, name).await;
    or_granted(session, read, &[namespace, &session.namespace], (namespace, name)).await
}

/// What the user may see of a cluster whose Cluster was read. `tenants`: the namespaces that it may be granted to.
pub async fn or_granted(
    session: &Session,
    read: Result<Cluster>,
    tenants: &[&str],
    (namespace, name): (&str, &str),
) -> Result<ClusterEvidence> {
    match read {
        Ok(cluster) => Ok((&cluster).into()),
        Err(failure) if is_hidden(session, name, &failure).await => {
            match find(session, tenants, (namespace, name)).await? {
                Some(granted) => Ok((&granted).into()),
                None => Err(failure),
            }
        }
        Err(failure) => Err(failure),
    }
}
