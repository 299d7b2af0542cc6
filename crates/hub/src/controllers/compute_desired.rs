//! compute_desired: dirty clusters → signed desired states.
//!
//! Computed when something changes, never when somebody asks. A state is published under a new generation only if its tag
//! differs, so that recomputing is free of consequences.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ServiceDeployment,
    protocol::{Entry, MAX_DESIRED_BYTES, Statement, tag},
};
use farwater_fleet::placement::NamedGrant;
use farwater_store::{
    StoreError,
    delivery::{
        Assignment, Desired, DirtyMark, assignments_of_cluster, clear_mark, load_desired, load_dirty, save_desired,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    chain,
    resources::{self, Name},
    services::{ClusterFacts, ServiceFacts, SourceUrls, load_grants},
};
use crate::delivery::{Delivery, desired, secrets};

/// Clusters per round: bounds the transaction that publishes them.
const BATCH: u32 = 200;
/// Between two rounds that had something to do. The first change is computed at once; of those that follow, as many as come
/// in this time make one round, because each round reads all services of a cluster.
const GATHER: std::time::Duration = std::time::Duration::from_millis(100);
/// A mark whose wake-up was lost is seen this late.
const IDLE: std::time::Duration = std::time::Duration::from_secs(5);

pub async fn run(delivery: Arc<Delivery>, shutdown: CancellationToken) {
    loop {
        // Before that, a cluster that isn't known may well exist, and its mark must stay.
        let computed = if delivery.clusters.is_loaded() { compute_batch(&delivery).await } else { Ok(0) };
        match computed {
            Ok(0) => {
                let wait = async {
                    tokio::select! { () = delivery.dirty.notified() => {} () = tokio::time::sleep(IDLE) => {} }
                };
                if shutdown.run_until_cancelled(wait).await.is_none() {
                    return;
                }
            }
            Ok(_) => {
                if shutdown.run_until_cancelled(tokio::time::sleep(GATHER)).await.is_none() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "compute desired states");
                if shutdown.run_until_cancelled(tokio::time::sleep(IDLE)).await.is_none() {
                    return;
                }
            }
        }
    }
}

/// Recomputes some dirty clusters; answers how many it was done with.
pub async fn compute_batch(delivery: &Delivery) -> Result<usize, StoreError> {
    let marks = load_dirty(&mut *delivery.store.tables().await?, BATCH).await?;
    if marks.is_empty() {
        return Ok(0);
    }
    let grants = load_grants(&delivery.store).await?;
    let mut done = 0;
    let mut published = Vec::new();
    for mark in marks {
        match compute_cluster(delivery, &mark, &grants).await {
            Ok(row) => {
                done += 1;
                published.push((mark, row));
            }
            // One that can't be computed keeps its mark and what it serves, and doesn't hold up the others.
            Err(error) => {
                tracing::error!(cluster = mark.cluster_uid, error = %chain(&error), "compute a desired state")
            }
        }
    }
    publish(delivery, published).await?;
    Ok(done)
}

/// The cluster's next state, if it differs from the current one.
async fn compute_cluster(
    delivery: &Delivery,
    mark: &DirtyMark,
    grants: &[NamedGrant],
) -> Result<Option<Desired>, StoreError> {
    let Some(state) = delivery.clusters.get(&mark.cluster_uid) else { return Ok(None) };
    let name = Name::new(&state.namespace, &state.name);
    let Some(cluster) = ClusterFacts::load(&delivery.store, &name).await?.filter(|c| c.uid == mark.cluster_uid) else {
        return Ok(None);
    };
    let (rows, current) = {
        let mut tables = delivery.store.tables().await?;
        let rows = assignments_of_cluster(&mut tables, &cluster.uid).await?;
        (rows, load_desired(&mut tables, &cluster.uid).await?)
    };
    let entries = resolve_entries(delivery, &cluster, &rows, grants).await?;
    next_desired(delivery, &cluster, entries, current)
}

async fn resolve_entries(
    delivery: &Delivery,
    cluster: &ClusterFacts,
    rows: &[Assignment],
    grants: &[NamedGrant],
) -> Result<Vec<Entry>, StoreError> {
    let mut urls = SourceUrls::default();
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        let name = Name::new(&row.namespace, &row.name);
        let found = resources::load::<ServiceDeployment>(&delivery.store, &name).await?;
        // A row whose service is gone or was made again is cleared by assign_revisions.
        let Some((resource, service)) = found.filter(|(resource, _)| resource.uid == row.service_uid) else { continue };
        let url = urls.get(&delivery.store, &Name::new(&row.namespace, &service.spec.source_ref.name)).await?;
        let facts = ServiceFacts::new(&resource, service, row, url)?;
        let secrets = secrets::resolve(delivery, &facts).await?;
        entries.push(facts.resolve_entry(cluster, grants, &secrets).0);
    }
    entries.sort_by(|a, b| a.service.uid.cmp(&b.service.uid));
    Ok(entries)
}

fn next_desired(
    delivery: &Delivery,
    cluster: &ClusterFacts,
    entries: Vec<Entry>,
    current: Option<Desired>,
) -> Result<Option<Desired>, StoreError> {
    let tag = tag(&entries);
    let identity = &delivery.identity;
    let unchanged = current
        .as_ref()
        .is_some_and(|row| row.tag == tag && row.key_id == identity.key_id() && !row.signature.is_empty());
    if unchanged {
        return Ok(None);
    }
    let statement = Statement {
        installation: identity.installation().to_owned(),
        cluster_uid: cluster.uid.clone(),
        epoch: current.as_ref().map_or(delivery.epoch, |row| row.epoch.max(delivery.epoch)),
        generation: current.as_ref().map_or(1, |row| row.generation + 1),
        tag,
        key_id: identity.key_id().to_owned(),
    };
    let bytes: usize = entries.iter().map(|entry| serde_json::to_vec(entry).map_or(0, |json| json.len() + 1)).sum();
    if bytes > MAX_DESIRED_BYTES - 4096 {
        let problem = format!(
            "{} services make a desired state of {bytes} bytes; agents accept {MAX_DESIRED_BYTES}",
            entries.len()
        );
        return Err(StoreError::Row { what: format!("desired state of cluster {}", cluster.name), problem });
    }
    let signature = BASE64.encode(identity.sign(&statement.message()));
    Ok(Some(Desired {
        cluster_uid: cluster.uid.clone(),
        epoch: statement.epoch,
        generation: statement.generation,
        tag,
        key_id: statement.key_id,
        signature,
        bundles: entries.iter().filter_map(desired::bundle).collect(),
        body: desired::encode(&entries)?,
    }))
}

/// Writes what changed and takes the marks away, in one transaction; then tells the polls.
async fn publish(delivery: &Delivery, published: Vec<(DirtyMark, Option<Desired>)>) -> Result<(), StoreError> {
    let changed = delivery.store.transact(move |tx| {
        Box::pin(async move {
            let mut changed = Vec::new();
            for (mark, row) in published {
                if let Some(row) = row {
                    // An epoch that was raised meanwhile makes this state unsigned history; the cluster is dirty again.
                    let raised = load_desired(tx, &row.cluster_uid).await?.is_some_and(|now| now.epoch > row.epoch);
                    if !raised {
                        save_desired(tx, &row).await?;
                        changed.push(row);
                    }
                }
                clear_mark(tx, &mark).await?;
            }
            Ok(changed)
        })
    });
    let changed = changed.await?;
    if !changed.is_empty() {
        delivery.collect.notify_one();
    }
    for row in changed {
        tracing::debug!(cluster = row.cluster_uid, epoch = row.epoch, generation = row.generation, "published");
        let etag = desired::etag(&row);
        delivery.clusters.change(&row.cluster_uid, |state| state.etag = etag);
    }
    Ok(())
}
