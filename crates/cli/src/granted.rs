//! Clusters that a tenant may deploy to and may not read. The hub shows their names and health as GrantedClusters.

use farwater_api::{Cluster, granted_cluster::GrantedCluster};
use farwater_fleet::why::ClusterEvidence;

use crate::{
    connection::Session,
    failure::{Failure, Result},
    kinds,
};

/// Whether a Cluster could not be read because there is none, or because the user has no right to it.
pub fn is_hidden(failure: &Failure) -> bool {
    failure.is_missing() || failure.is_denied()
}

/// The cluster that is granted to a namespace, or one of `namespace` that is granted to the context's. None: neither,
/// or the hub is of an older version.
pub async fn find(session: &Session, namespace: &str, name: &str) -> Option<GrantedCluster> {
    let context = Some(session.namespace.as_str()).filter(|context| *context != namespace);
    for tenant in [Some(namespace), context].into_iter().flatten() {
        let path = kinds::granted_clusters().path(Some(tenant), Some(name));
        let Ok(found) = session.read("read the granted cluster", &path).await else {
            continue;
        };
        let granted: GrantedCluster = serde_json::from_value(found).ok()?;
        if tenant == namespace || granted.spec.cluster_ref.namespace.as_deref() == Some(namespace) {
            return Some(granted);
        }
    }
    None
}

/// What the user may see of a cluster. A failure is that of reading the Cluster.
pub async fn see(session: &Session, namespace: &str, name: &str) -> Result<ClusterEvidence> {
    or_granted(
        session,
        session.get::<Cluster>(namespace, name).await,
        (namespace, name),
    )
    .await
}

/// What the user may see of a cluster whose Cluster was read.
pub async fn or_granted(
    session: &Session,
    read: Result<Cluster>,
    (namespace, name): (&str, &str),
) -> Result<ClusterEvidence> {
    match read {
        Ok(cluster) => Ok((&cluster).into()),
        Err(failure) if is_hidden(&failure) => match find(session, namespace, name).await {
            Some(granted) => Ok((&granted).into()),
            None => Err(failure),
        },
        Err(failure) => Err(failure),
    }
}
