//! track_clusters: heartbeats and agents → the status of Clusters.
//!
//! A poll is the heartbeat. It is kept in memory and saved in batches; a Cluster changes only when something does.

use std::{sync::Arc, time::Duration};

use farwater_api::{CONFIRM_RESTORED, Cluster, ClusterStatus};
use farwater_fleet::conditions::{self, Verdict};
use farwater_store::{
    StoreError,
    delivery::{Agent, delete_cluster, delete_expired, load_agent, mark_cluster, mark_restored, save_heartbeats},
};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    chain,
    queue::Next,
    resources::{self, Name},
};
use crate::delivery::{Delivery, clusters::ClusterState};

/// A cluster that misses this many polls is not ready.
const MISSED_POLLS: u32 = 3;
/// How long one poll may be late: the network, and an agent that was starting.
const LATENESS: Duration = Duration::from_secs(2);
/// How late a silent cluster that polls again is seen to be ready.
const MAX_LOOK: Duration = Duration::from_secs(5);
/// Heartbeats that a crash may lose; they only say when a cluster was last heard.
const FLUSH: Duration = Duration::from_secs(10);
/// Expired tokens and nonces are refused anyway; this only bounds their number.
const EXPIRE: Duration = Duration::from_secs(300);

/// Saves heartbeats and forgets what has expired, until told to stop.
pub async fn flush_heartbeats(delivery: Arc<Delivery>, shutdown: CancellationToken) {
    let mut last_expiry = tokio::time::Instant::now();
    loop {
        let stop = shutdown.run_until_cancelled(tokio::time::sleep(FLUSH)).await.is_none();
        if let Err(error) = flush(&delivery).await {
            tracing::warn!(error = %chain(&error), "save heartbeats");
        }
        if stop {
            return;
        }
        if last_expiry.elapsed() >= EXPIRE {
            last_expiry = tokio::time::Instant::now();
            let now = Timestamp::now().as_second();
            let expired = delivery.store.transact(move |tx| Box::pin(async move { delete_expired(tx, now).await }));
            if let Err(error) = expired.await {
                tracing::warn!(error = %chain(&error), "delete expired tokens");
            }
        }
    }
}

async fn flush(delivery: &Delivery) -> Result<(), StoreError> {
    let rows = delivery.clusters.unsaved_heartbeats();
    if rows.is_empty() {
        return Ok(());
    }
    let saved = rows.clone();
    delivery.store.transact(move |tx| Box::pin(async move { save_heartbeats(tx, &rows).await })).await?;
    delivery.clusters.set_saved(&saved);
    Ok(())
}

/// Brings one Cluster's status up to date. Comes again by itself when the next poll is overdue.
pub async fn track_cluster(delivery: Arc<Delivery>, uid: String) -> Result<Next, StoreError> {
    let Some(state) = delivery.clusters.get(&uid) else { return forget_cluster(&delivery, uid).await };
    if state.is_settled() {
        let left = silence_deadline(&delivery, &state) - Timestamp::now().as_second();
        if left > 0 {
            return Ok(Next::After(Duration::from_secs(left.unsigned_abs())));
        }
    }
    // Taken back first: a change that comes from here on unsettles it again.
    state.settle(true);
    let next = write_cluster(&delivery, &state, &uid).await;
    if !matches!(next, Ok((_, true))) {
        state.settle(false);
    }
    next.map(|(next, _)| next)
}

/// Answers when to come again, and whether the cluster is ready.
async fn write_cluster(delivery: &Delivery, state: &ClusterState, uid: &str) -> Result<(Next, bool), StoreError> {
    let name = Name::new(&state.namespace, &state.name);
    let Some((resource, cluster)) = resources::load::<Cluster>(&delivery.store, &name).await? else {
        return Ok((Next::OnChange, false));
    };
    if resource.uid != uid {
        return Ok((Next::OnChange, false));
    }
    let mut agent = load_agent(&mut *delivery.store.tables().await?, uid).await?;
    if let Some(agent) = agent.as_mut() {
        confirm_restored(delivery, &cluster, agent).await?;
    }
    let now = Timestamp::now();
    let deadline = agent.as_ref().map(|_| silence_deadline(delivery, state));
    let status = resolve_status(&cluster, state, agent.as_ref(), deadline, now);
    resources::write_status::<Cluster>(&delivery.store, &name, uid, &status).await?;
    let Some(deadline) = deadline else { return Ok((Next::OnChange, false)) };
    let left = deadline - now.as_second();
    // Ready: look again when it would stop being so. Silent: about as often as it should have polled.
    let wait = if left > 0 { Duration::from_secs(left.unsigned_abs()) } else { state.poll_interval.min(MAX_LOOK) };
    Ok((Next::After(wait), left > 0))
}

/// Seconds since 1970 at which the cluster counts as silent. A hub that was away heard nobody: it counts from its start.
fn silence_deadline(delivery: &Delivery, state: &ClusterState) -> i64 {
    let heard = state.heard().unwrap_or(0).max(delivery.started);
    let patience = (state.poll_interval + LATENESS) * MISSED_POLLS;
    heard.saturating_add_unsigned(patience.as_secs())
}

fn resolve_status(
    cluster: &Cluster,
    state: &ClusterState,
    agent: Option<&Agent>,
    deadline: Option<i64>,
    now: Timestamp,
) -> ClusterStatus {
    let previous = cluster.status.clone().unwrap_or_default();
    let generation = cluster.metadata.generation.unwrap_or(0);
    let mut verdicts = match (agent, deadline) {
        (Some(_), Some(deadline)) if now.as_second() <= deadline => Verdict::ready("Connected", "the agent polls"),
        (Some(_), _) => {
            let since = state.heard().and_then(|heard| Timestamp::from_second(heard).ok());
            let message = since.map_or_else(
                || "the agent has joined and has not polled since".to_owned(),
                |since| format!("the agent was last heard at {since}; what runs in the cluster goes on running"),
            );
            vec![Verdict::new("Ready", Some(false), "AgentSilent", message)]
        }
        (None, _) => {
            let name = &*state.name;
            Verdict::reconciling("NotJoined", format!("no agent has joined; run: farwater cluster join {name}"))
        }
    };
    if let Some(agent) = agent.filter(|agent| agent.restored_epoch != 0) {
        let epoch = agent.restored_epoch;
        let message = format!(
            "the agent has seen newer states than this hub's database holds, so that was restored from a backup. Nothing is \
             deleted in the cluster until this Cluster is annotated {CONFIRM_RESTORED}={epoch}"
        );
        verdicts.push(Verdict::new("Restored", Some(true), "DatabaseOlderThanAgent", message));
    }
    ClusterStatus {
        observed_generation: Some(generation),
        conditions: conditions::resolve(&previous.conditions, verdicts, generation, now),
        kubernetes_version: agent.map(|agent| agent.kubernetes_version.clone()),
        agent_version: agent.map(|agent| agent.agent_version.clone()),
        last_heard_time: None,
    }
}

async fn confirm_restored(delivery: &Delivery, cluster: &Cluster, agent: &mut Agent) -> Result<(), StoreError> {
    let confirmed = cluster.metadata.annotations.as_ref().and_then(|all| all.get(CONFIRM_RESTORED));
    if agent.restored_epoch == 0 || confirmed.map(String::as_str) != Some(&agent.restored_epoch.to_string()) {
        return Ok(());
    }
    agent.restored_epoch = 0;
    let uid = agent.cluster_uid.clone();
    let confirm = delivery.store.transact(move |tx| {
        Box::pin(async move {
            mark_restored(tx, &uid, 0).await?;
            mark_cluster(tx, &uid).await
        })
    });
    confirm.await?;
    delivery.dirty.notify_one();
    Ok(())
}

/// The Cluster resource is gone. Its agent is refused from now on and keeps what it runs; services that named it are told.
async fn forget_cluster(delivery: &Delivery, uid: String) -> Result<Next, StoreError> {
    // That it isn't in memory proves nothing, and an identity that is lost must be made anew by hand.
    let mut exists = false;
    resources::list_pages::<Cluster>(&delivery.store, None, |resource| exists |= resource.uid == uid).await?;
    if exists {
        return Ok(Next::OnChange);
    }
    let rows = farwater_store::delivery::assignments_of_cluster(&mut *delivery.store.tables().await?, &uid).await?;
    delivery.store.transact(move |tx| Box::pin(async move { delete_cluster(tx, &uid).await })).await?;
    for row in rows {
        delivery.services.add(Name { namespace: row.namespace, name: row.name });
    }
    Ok(Next::OnChange)
}
