//! collect_mirrors: mirrors of sources that are gone and that no service needs any more are removed, and bundles that a
//! desired state or a service's history names are kept.

use std::{collections::HashSet, sync::Arc, time::Duration};

use farwater_store::{
    StoreError,
    delivery::{delete_revision, is_source_used, load_desired_bundles, load_history_bundles, load_revisions},
};
use tokio_util::sync::CancellationToken;

use super::{chain, sources};
use crate::delivery::Delivery;

const IDLE: Duration = Duration::from_secs(3600);

pub async fn run(delivery: Arc<Delivery>, shutdown: CancellationToken) {
    loop {
        let wait = async {
            tokio::select! { () = delivery.collect.notified() => {} () = tokio::time::sleep(IDLE) => {} }
        };
        if shutdown.run_until_cancelled(wait).await.is_none() {
            return;
        }
        if let Err(error) = collect_mirrors(&delivery).await {
            tracing::warn!(error = %chain(&error), "remove unused mirrors");
        }
    }
}

pub async fn collect_mirrors(delivery: &Delivery) -> Result<(), StoreError> {
    let mut kept = load_desired_bundles(&mut *delivery.store.tables().await?).await?;
    kept.extend(load_history_bundles(&mut *delivery.store.tables().await?).await?);
    delivery.mirrors.pin(kept);
    // On the disk first: a source that is made in between has its resource by the time that resources are listed.
    let mut candidates: HashSet<String> = delivery.mirrors.list().await.into_iter().collect();
    let revisions = load_revisions(&mut *delivery.store.tables().await?).await?;
    candidates.extend(revisions.into_iter().map(|revision| revision.source_uid));
    sources::each(&delivery.store, None, |_, resource| {
        candidates.remove(&resource.uid);
    })
    .await?;
    for uid in candidates {
        if is_source_used(&mut *delivery.store.tables().await?, &uid).await? {
            continue;
        }
        tracing::info!(source = uid, "removing the mirror of a source that is gone and that no service needs");
        if let Err(error) = delivery.mirrors.remove(&uid).await {
            tracing::warn!(source = uid, %error, "remove a mirror");
            continue;
        }
        delivery.store.transact(move |tx| Box::pin(async move { delete_revision(tx, &uid).await })).await?;
    }
    Ok(())
}
