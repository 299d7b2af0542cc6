//! The inputs of the digest of a service's entry, computed now.

use farwater_api::digest_report::DigestReport;
use farwater_fleet::digest_inputs::explain_digest;
use farwater_store::{
    Resource, StoreError,
    delivery::{load_assignment, load_parameters, load_service_origin},
};

use super::{
    ClusterFacts, SourceUrls,
    compute_desired::load_facts,
    load_grants_for,
    parameters::{InputCache, give},
    secrets,
};
use crate::{replica::Replica, resources::Name};

/// None: the service is in no cluster yet.
pub async fn load(replica: &Replica, service: &Resource) -> Result<Option<DigestReport>, StoreError> {
    let (row, origin, given) = {
        let mut tables = replica.store.tables().await?;
        let row = load_assignment(&mut tables, &service.uid).await?;
        let origin = load_service_origin(&mut tables, &service.uid).await?;
        (row, origin, load_parameters(&mut tables, &service.uid).await?)
    };
    let Some(row) = row.filter(|row| !row.cluster_uid.is_empty()) else {
        return Ok(None);
    };
    let Some(state) = replica.memory.clusters.get(&row.cluster_uid) else {
        return Ok(None);
    };
    let name = Name::new(&state.namespace, &state.name);
    let cluster = ClusterFacts::load(replica, &name)
        .await?
        .filter(|cluster| cluster.uid == row.cluster_uid);
    let facts = load_facts(replica, &row, origin.as_ref(), &mut SourceUrls::default()).await?;
    let (Some(cluster), Some(facts)) = (cluster, facts) else {
        return Ok(None);
    };
    let secrets = secrets::resolve(replica, &facts).await?;
    let (given, _) = give(replica, &facts, &cluster, given.as_ref(), &mut InputCache::default()).await?;
    let grants = load_grants_for(&replica.store, &row.namespace).await?;
    let (entry, _) = facts.resolve_entry(&cluster, &grants, &secrets, &given);
    explain_digest(&entry, facts.assigned.as_ref())
        .map(Some)
        .map_err(StoreError::abort)
}
