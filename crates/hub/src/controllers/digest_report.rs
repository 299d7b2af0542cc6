//! The inputs of the digest of a service's entry, computed now.

use farwater_api::digest_report::DigestReport;
use farwater_fleet::digest_inputs::explain_digest;
use farwater_store::{
    Resource, StoreError,
    delivery::{load_assignment, load_parameters, load_service_origin},
};

use super::{
    compute_desired::load_facts,
    resources::Name,
    services::{ClusterFacts, SourceUrls, load_grants_for},
};
use crate::delivery::{
    Delivery,
    parameters::{InputCache, give},
    secrets,
};

/// None: the service is in no cluster yet.
pub async fn load(delivery: &Delivery, service: &Resource) -> Result<Option<DigestReport>, StoreError> {
    let (row, origin, given) = {
        let mut tables = delivery.store.tables().await?;
        let row = load_assignment(&mut tables, &service.uid).await?;
        let origin = load_service_origin(&mut tables, &service.uid).await?;
        (row, origin, load_parameters(&mut tables, &service.uid).await?)
    };
    let Some(row) = row.filter(|row| !row.cluster_uid.is_empty()) else { return Ok(None) };
    let Some(state) = delivery.clusters.get(&row.cluster_uid) else { return Ok(None) };
    let name = Name::new(&state.namespace, &state.name);
    let cluster = ClusterFacts::load(delivery, &name).await?.filter(|cluster| cluster.uid == row.cluster_uid);
    let facts = load_facts(delivery, &row, origin.as_ref(), &mut SourceUrls::default()).await?;
    let (Some(cluster), Some(facts)) = (cluster, facts) else { return Ok(None) };
    let secrets = secrets::resolve(delivery, &facts).await?;
    let (given, _) = give(delivery, &facts, &cluster, given.as_ref(), &mut InputCache::default()).await?;
    let grants = load_grants_for(&delivery.store, &row.namespace).await?;
    let (entry, _) = facts.resolve_entry(&cluster, &grants, &secrets, &given);
    explain_digest(&entry, facts.assigned.as_ref()).map(Some).map_err(StoreError::abort)
}
