//! collect_mirrors: removes mirrors of sources that are gone and that no service needs, and pins the bundles that a
//! desired state or a service's history names.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use farwater_store::{
    StoreError,
    delivery::{delete_revision, is_source_used, load_desired_bundles, load_history_bundles, load_revisions},
};
use tokio_util::sync::CancellationToken;

use crate::{errors::chain, replica::Replica, sources};

/// Bundles that are no longer needed are unpinned this late.
const IDLE: Duration = Duration::from_secs(1800);
/// It rests this many times as long as it took, because it reads the bundles of the whole fleet each time.
const REST: u32 = 20;
const LONGEST_REST: Duration = Duration::from_secs(60);

pub async fn run(replica: Arc<Replica>, shutdown: CancellationToken) {
    let mut rest = Duration::ZERO;
    loop {
        let wait = async {
            tokio::time::sleep(rest).await;
            tokio::select! { () = replica.signals.collect.notified() => {} () = tokio::time::sleep(IDLE) => {} }
        };
        if shutdown.run_until_cancelled(wait).await.is_none() {
            return;
        }
        let begun = Instant::now();
        if let Err(error) = collect_mirrors(&replica).await {
            tracing::warn!(error = %chain(&error), "remove unused mirrors");
        }
        rest = (begun.elapsed() * REST).min(LONGEST_REST);
    }
}

pub async fn collect_mirrors(replica: &Replica) -> Result<(), StoreError> {
    let kept = async {
        let mut kept = load_desired_bundles(&mut *replica.store.tables().await?).await?;
        kept.extend(load_history_bundles(&mut *replica.store.tables().await?).await?);
        Ok::<_, StoreError>(kept)
    };
    replica.access.mirrors.cache().pin_all(kept).await?;

    // List the disk first: a source that is created in between then has its resource when resources are listed.
    let mut candidates: HashSet<String> = replica.access.mirrors.list().await.into_iter().collect();
    let revisions = load_revisions(&mut *replica.store.tables().await?).await?;
    candidates.extend(revisions.into_iter().map(|revision| revision.source_uid));
    sources::each(&replica.store, None, |_, resource| {
        candidates.remove(&resource.uid);
    })
    .await?;

    for uid in candidates {
        if is_source_used(&mut *replica.store.tables().await?, &uid).await? {
            continue;
        }
        tracing::info!(
            source = uid,
            "removing the mirror of a source that is gone and that no service needs"
        );
        if let Err(error) = replica.access.mirrors.remove(&uid).await {
            tracing::warn!(source = uid, %error, "remove a mirror");
            continue;
        }
        replica
            .store
            .transact(move |tx| Box::pin(async move { delete_revision(tx, &uid).await }))
            .await?;
    }
    Ok(())
}
