//! freeze_prunes: services that are newly held, in the whole fleet → no deletion anywhere until an administrator has
//! looked.
//!
//! One held prune is a matter of its service's owner. Many at once have one cause, which may also delete in services
//! whose guards let it pass. The state is an annotation of the admin Namespace: it outlives restarts, everyone with
//! access to that Namespace sees it, and removing it lets deletions continue.

use std::sync::Arc;

use farwater_api::{
    FREEZE_PRUNES, ServiceDeployment,
    objects::{Outcome, ServiceReport},
};
use farwater_fleet::{
    conditions::cut,
    freeze::{FEW_HELD, WINDOW, describe, explain, is_flood, release},
};
use farwater_store::{
    Change, Store, StoreError, Tx, Write,
    delivery::{
        count_assignments, count_prune_holds, delete_prune_hold, load_prune_hold, mark_all, save_prune_hold,
        settle_prune_holds,
    },
};
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    kinds::managers::manage,
    notify::events::{self, EventText},
    replica::Replica,
    resources,
};

fn read(namespace: &Value) -> Option<Arc<str>> {
    let annotation = namespace["metadata"]["annotations"][FREEZE_PRUNES].as_str()?;
    Some(explain(annotation).into())
}

/// Reads why nothing may be deleted; None: deletions are allowed.
pub async fn find(store: &Store) -> Result<Option<Arc<str>>, StoreError> {
    Ok(store
        .get(&resources::admin_namespace())
        .await?
        .and_then(|namespace| read(&namespace.object)))
}

/// Called before anything is decided.
pub async fn load(replica: &Replica) -> Result<(), StoreError> {
    replica.memory.freeze.set(find(&replica.store).await?);
    Ok(())
}

/// The Namespace has changed or is gone: marks all clusters, because their entries may change, and requeues all
/// summaries, because they compare reports with entries.
pub async fn follow(replica: &Replica, namespace: Option<&Value>) -> Result<(), StoreError> {
    replica.memory.freeze.set(namespace.and_then(read));
    replica.memory.sets.look_at_all();
    replica
        .store
        .transact(|tx| Box::pin(async move { mark_all(tx).await }))
        .await?;
    replica.wake_after_mark();
    resources::each_name::<ServiceDeployment>(&replica.store, |name| replica.wake_after_freeze(name)).await
}

/// State of a service whose agent has reported on its present entry.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub service_uid: &'a str,
    pub report: &'a ServiceReport,
    /// Whether its status said before that its prune is held.
    pub was_held: bool,
    /// Whether the hub itself holds it, for a reason that is known.
    pub by_hub: bool,
}

/// Saves whether a service's prune is held, and stops all deletions if too many became held lately.
pub async fn note_report(replica: &Replica, standing: Standing<'_>) -> Result<(), StoreError> {
    let Standing {
        report,
        was_held,
        by_hub,
        ..
    } = standing;
    let is_held = report.held_prune.as_ref().is_some_and(|held| !held.until_applied);
    // An unfinished attempt does not show that nothing is held.
    if !is_held && (report.held_prune.is_some() || report.outcome != Outcome::Applied) {
        return Ok(());
    }

    let uid = standing.service_uid.to_owned();
    let known = load_prune_hold(&mut *replica.store.tables().await?, &uid).await?;
    match (is_held, known) {
        (true, Some(_)) | (false, None) => Ok(()),
        (false, Some(_)) => {
            replica
                .store
                .transact(move |tx| Box::pin(async move { delete_prune_hold(tx, &uid).await }))
                .await
        }
        (true, None) => {
            let now = Timestamp::now();
            let since = if was_held || by_hub { 0 } else { now.as_second() };
            let frozen = replica.store.transact(move |tx| {
                Box::pin(async move {
                    save_prune_hold(tx, &uid, since).await?;
                    freeze_if_needed(tx, now).await
                })
            });
            if let Some(why) = frozen.await? {
                tracing::error!(
                    why,
                    next = format!("kubectl {}", release()),
                    "nothing is deleted in the fleet any more"
                );
            }
            Ok(())
        }
    }
}

/// Returns why it froze all deletions; None: it did not.
async fn freeze_if_needed(tx: &mut Tx, now: Timestamp) -> Result<Option<String>, StoreError> {
    let held = count_prune_holds(tx, now.as_second() - WINDOW.as_secs()).await?;
    if held <= FEW_HELD {
        return Ok(None);
    }
    let services = count_assignments(tx).await?;
    if !is_flood(held, services) {
        return Ok(None);
    }
    let why = describe(held, services);
    if !freeze(tx, &why, now).await? {
        return Ok(None);
    }
    // The services that led to this freeze must not lead to the next one.
    settle_prune_holds(tx).await?;
    Ok(Some(why))
}

/// Whether all deletions are frozen, read in this transaction.
pub async fn is_frozen(tx: &mut Tx) -> Result<bool, StoreError> {
    let namespace = tx.get(&resources::admin_namespace()).await?;
    Ok(namespace.is_some_and(|namespace| read(&namespace.object).is_some()))
}

/// Maximum bytes of all reasons together.
const MAX_REASONS: usize = 4096;

/// Stops all deletions. A new reason is added to those that are there, because the person who ends the freeze must have
/// looked at each. False: there is no Namespace to write it to.
pub async fn freeze(tx: &mut Tx, why: &str, now: Timestamp) -> Result<bool, StoreError> {
    let key = resources::admin_namespace();
    let Some(namespace) = tx.get(&key).await? else {
        tracing::warn!("{why}, and there is no Namespace to say that nothing is to be deleted");
        return Ok(false);
    };

    let reasons = match namespace.object["metadata"]["annotations"][FREEZE_PRUNES].as_str() {
        None | Some("") => why.to_owned(),
        // The newest reason first: it has not been read yet.
        Some(known) => cut(&format!("{why}; and before: {known}"), MAX_REASONS),
    };

    let mut object: Value = (*namespace.object).clone();
    object["metadata"]["annotations"][FREEZE_PRUNES] = reasons.into();
    let object = manage(&key.kind, "", Some(&namespace.object), object, now);
    let change = Change::Replace {
        uid: namespace.uid.clone(),
        version: namespace.version,
        object,
    };
    tx.write(Write { key, change }).await?;

    let message = format!(
        "all deletions of the fleet are stopped: {why}. To resume them: kubectl {}",
        release()
    );
    events::write_event(
        tx,
        &namespace,
        &EventText {
            is_warning: true,
            reason: "PrunesFrozen".into(),
            message,
        },
    )
    .await?;
    Ok(true)
}
