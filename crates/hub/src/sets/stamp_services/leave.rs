//! Removes services from clusters that a set no longer selects.

use farwater_api::{SET_FINALIZER, ServiceDeployment, ServiceSet};
use farwater_fleet::freeze::{WINDOW, describe_loss, is_mass_loss, release};
use farwater_store::{
    Change, Resource, StoreError, Tx, Write,
    delivery::{
        SetMember, brake_members, count_members, delete_member, delete_members, delete_rollout, members_of_set,
        members_that_left, save_member,
    },
};
use futures::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    cluster_name,
    stamper::mark_left,
    status::{Tally, judge, write_status},
};
use crate::{
    guards::freeze_prunes,
    kinds::{managers::manage, removal::ORPHAN, stamped::mark_deleted},
    notify::events::{self, EventText},
    queue::Next,
    replica::Replica,
    resources::{self, Name, Stored as _},
};

/// Returns why a set that loses `lost` clusters and keeps `kept` may lose them by mistake; None: it loses few.
pub fn find_brake(lost: usize, kept: i64) -> Option<String> {
    let all = lost as u64 + kept.unsigned_abs();
    is_mass_loss(lost as u64, all).then(|| describe_loss(lost as u64, all))
}

/// Deletes the services of clusters that have left, unless too many left at once. Returns whether rows of such clusters
/// were found.
pub(super) async fn let_go(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
    set: &ServiceSet,
) -> Result<bool, StoreError> {
    let (left, counts) = {
        let mut tables = replica.store.tables().await?;
        let left = members_that_left(&mut tables, &resource.uid).await?;
        if left.is_empty() {
            return Ok(false);
        }
        (left, count_members(&mut tables, &resource.uid).await?)
    };
    let since = Timestamp::now().as_second() - WINDOW.as_secs();
    // Members that have braked the fleet before do not count again, and nothing is deleted on a cluster whose resource
    // is gone.
    let counts_as_lost = |row: &&SetMember| {
        row.left_at > since && row.braked == 0 && replica.memory.clusters.get(&row.cluster_uid).is_some()
    };
    let lost = left.iter().filter(counts_as_lost).count();

    let is_new = left.iter().any(|row| row.has_service() && row.braked == 0);
    if let Some(why) = find_brake(lost, counts.matched).filter(|_| is_new) {
        brake(replica, name, resource, &left, why).await?;
        return Ok(true);
    }

    let mut steps = Vec::new();
    for row in left {
        let is_old = row.left_at <= since;
        if row.has_service() {
            steps.push(drop_service(replica, name, row, set));
        } else if is_old {
            let (set_uid, cluster_uid) = (row.set_uid, row.cluster_uid);
            let gone = replica
                .store
                .transact(move |tx| Box::pin(async move { delete_member(tx, &set_uid, &cluster_uid).await }));
            gone.await?;
        }
    }
    join_all(steps).await.into_iter().collect::<Result<(), _>>()?;
    Ok(true)
}

async fn brake(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
    left: &[SetMember],
    why: String,
) -> Result<(), StoreError> {
    const SHOWN: usize = 10;

    let waiting = left
        .iter()
        .filter(|row| row.has_service())
        .filter_map(|row| cluster_name(replica, &row.cluster_uid));
    let mut names: Vec<String> = waiting.collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };

    let message = format!(
        "the selector no longer finds {}{more}; all deletions of the fleet are stopped until an administrator reviews this: kubectl {}",
        names.join(", "),
        release()
    );
    tracing::error!(set = %name, why, next = format!("kubectl {}", release()), "nothing is deleted in the fleet any more");

    let (about, set_uid) = (resource.clone(), resource.uid.clone());
    let braked = replica.store.transact(move |tx| {
        Box::pin(async move {
            if freeze_prunes::freeze(tx, &why, Timestamp::now()).await? {
                brake_members(tx, &set_uid).await?;
            }
            events::write_event(
                tx,
                &about,
                &EventText {
                    is_warning: true,
                    reason: "Braked".into(),
                    message,
                },
            )
            .await
        })
    });
    braked.await
}

/// Deletes a member's service, unless deletions are frozen. A freeze does not matter if the cluster's resource is gone,
/// because nothing can be deleted there.
async fn drop_service(replica: &Replica, name: &Name, row: SetMember, set: &ServiceSet) -> Result<(), StoreError> {
    let key = ServiceDeployment::key(&Name::new(&name.namespace, &row.service_name));
    let is_gone = replica.memory.clusters.get(&row.cluster_uid).is_none();
    let (set_name, set_key) = (name.clone(), ServiceSet::key(name));
    let (policy, generation) = (set.spec.deletion_policy, set.metadata.generation);
    let dropped = replica.store.transact(move |tx| {
        Box::pin(async move {
            if !is_gone && freeze_prunes::is_frozen(tx).await? {
                return Ok(());
            }
            // The set says what happens to workloads. If it was changed since it was read, do nothing: that change
            // requeues it.
            if !resources::is_current(tx, &set_key, (&row.set_uid, generation)).await? {
                return Ok(());
            }
            if let Some(found) = tx.get(&key).await?.filter(|found| found.uid == row.service_uid) {
                delete_service(tx, found, policy).await?;
            }
            tracing::info!(set = %set_name, service = row.service_name, "its cluster is no longer selected");
            save_member(
                tx,
                &SetMember {
                    service_uid: String::new(),
                    ready: 0,
                    ..row
                },
            )
            .await
        })
    });
    dropped.await
}

async fn delete_service(
    tx: &mut Tx,
    found: Resource,
    policy: farwater_api::service_deployment::DeletionPolicy,
) -> Result<(), StoreError> {
    let now = Timestamp::now();
    let mut object: Value = (*found.object).clone();
    object["spec"]["deletionPolicy"] = json!(policy);
    let Some(object) = mark_deleted(&object, now) else {
        return Ok(());
    };
    let object = manage(&found.key.kind, "", Some(&found.object), object, now);
    let change = Change::Replace {
        uid: found.uid,
        version: found.version,
        object,
    };
    tx.write(Write { key: found.key, change }).await?;
    Ok(())
}

/// Deletes all services of a set, or leaves them to the garbage collector if that orphans them. Then deletes the set.
pub(super) async fn remove_set(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
    set: &ServiceSet,
) -> Result<Next, StoreError> {
    replica
        .memory
        .sets
        .know(name, &resource.uid, &set.spec.cluster_selector);

    let finalizers = set.metadata.finalizers.iter().flatten();
    let is_orphaning = finalizers.clone().any(|finalizer| finalizer == ORPHAN);

    if !is_orphaning {
        let rows = members_of_set(&mut *replica.store.tables().await?, &resource.uid).await?;
        mark_left(&replica.store, rows.into_iter()).await?;
        let_go(replica, name, resource, set).await?;
        let left = members_that_left(&mut *replica.store.tables().await?, &resource.uid).await?;
        if left.iter().any(SetMember::has_service) {
            let tally = Tally::load(replica, &resource.uid).await?;
            let verdicts = judge(replica, set, &tally, None);
            write_status(replica, name, (resource, set), (tally, verdicts, None)).await?;
            return Ok(Next::OnChange);
        }
    }

    let (uid, held) = (resource.uid.clone(), resource.clone());
    let removed = replica.store.transact(move |tx| {
        Box::pin(async move {
            delete_members(tx, &uid).await?;
            delete_rollout(tx, &uid).await?;
            if let Some(change) = resources::without_finalizer(&held, SET_FINALIZER) {
                tx.write(Write {
                    key: held.key.clone(),
                    change,
                })
                .await?;
            }
            Ok(())
        })
    });
    removed.await?;
    replica.memory.sets.forget(name);
    Ok(Next::OnChange)
}
