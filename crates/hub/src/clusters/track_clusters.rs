//! track_clusters: heartbeats and agents → the status of Clusters.
//!
//! A poll is the heartbeat. It is kept in memory and saved in batches; a Cluster is only written when something
//! changes.

use std::{sync::Arc, time::Duration};

use farwater_api::{
    CONFIRM_RESTORED, Cluster, ClusterStatus, Condition, Digest, RENEW_KEYS,
    protocol::{AgentReport, Skew},
};
use farwater_fleet::{
    conditions::{self, Verdict},
    rollout::Clock,
};
use farwater_store::{
    StoreError,
    delivery::{
        Agent, AgentKeys, AgentUpdateRow, Quarantine, delete_cluster, delete_expired, load_agent, load_agent_keys,
        load_agent_update, load_quarantines, mark_cluster, mark_restored, save_heartbeats, save_quarantine,
        sets_of_cluster,
    },
};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::advance_agents;
use crate::{
    delivery::{keys::position_of, token::key_print},
    errors::chain,
    identity::Standing,
    memory::clusters::{ClusterState, MIN_SKEW},
    queue::Next,
    replica::Replica,
    resources::{self, Name},
};

/// Reasons of `Ready`.
const SILENT: &str = "AgentSilent";
const NOT_JOINED: &str = "NotJoined";
/// A cluster that misses this many polls is not ready.
const MISSED_POLLS: u32 = 3;
/// Condition of a Cluster whose agent has a version that does not go with the hub's, and its reasons.
const VERSION_SKEW: &str = "VersionSkew";
const SKEWS: [(Skew, &str); 3] = [
    (Skew::AgentAhead, "AgentAhead"),
    (Skew::AgentTooNew, "AgentTooNew"),
    (Skew::AgentTooOld, "AgentTooOld"),
];
/// How late one poll may be: the network, and an agent that was starting.
const LATENESS: Duration = Duration::from_secs(2);
/// Maximum delay until a silent cluster that polls again is seen to be ready.
const MAX_LOOK: Duration = Duration::from_secs(5);
/// Heartbeats of this time may be lost by a crash; they only say when a cluster was last heard.
const FLUSH: Duration = Duration::from_secs(10);
/// Expired tokens and nonces are refused in any case; this only bounds their number.
const EXPIRE: Duration = Duration::from_secs(300);

/// Saves heartbeats and deletes what has expired, until shutdown.
pub async fn flush_heartbeats(replica: Arc<Replica>, shutdown: CancellationToken) {
    let mut last_expiry = tokio::time::Instant::now();
    loop {
        let stop = shutdown.run_until_cancelled(tokio::time::sleep(FLUSH)).await.is_none();
        if let Err(error) = flush(&replica).await {
            tracing::warn!(error = %chain(&error), "save heartbeats");
        }
        if stop {
            return;
        }
        if last_expiry.elapsed() >= EXPIRE {
            last_expiry = tokio::time::Instant::now();
            let now = Timestamp::now().as_second();
            let expired = replica
                .store
                .transact(move |tx| Box::pin(async move { delete_expired(tx, now).await }));
            if let Err(error) = expired.await {
                tracing::warn!(error = %chain(&error), "delete expired tokens");
            }
        }
    }
}

async fn flush(replica: &Replica) -> Result<(), StoreError> {
    let rows = replica.memory.clusters.unsaved_heartbeats();
    if rows.is_empty() {
        return Ok(());
    }
    let saved = rows.clone();
    replica
        .store
        .transact(move |tx| Box::pin(async move { save_heartbeats(tx, &rows).await }))
        .await?;
    replica.memory.clusters.set_saved(&saved);
    Ok(())
}

/// Updates the status of one Cluster, and requeues it for when its next poll is overdue.
pub async fn track_cluster(replica: Arc<Replica>, uid: String) -> Result<Next, StoreError> {
    let Some(state) = replica.memory.clusters.get(&uid) else {
        return forget_cluster(&replica, uid).await;
    };
    if state.is_settled()
        && let Some(left) = until_silent(&state, replica.clock.read()).filter(|left| !left.is_zero())
    {
        return Ok(Next::After(left));
    }
    // Settle before the write: a change that arrives from here on unsettles the cluster again.
    state.settle(true);
    let next = write_cluster(&replica, &state, &uid).await;
    if !matches!(next, Ok((_, true))) {
        state.settle(false);
    }
    next.map(|(next, _)| next)
}

/// Returns when to requeue, and whether the cluster is ready.
async fn write_cluster(replica: &Replica, state: &ClusterState, uid: &str) -> Result<(Next, bool), StoreError> {
    let name = Name::new(&state.namespace, &state.name);
    let found = resources::load::<Cluster>(&replica.store, &name).await?;
    let Some((_, cluster)) = found.filter(|(resource, _)| resource.uid == uid) else {
        return Ok((Next::OnChange, false));
    };

    let (mut agent, update, keys) = {
        let mut tables = replica.store.tables().await?;
        let (agent, update) = (
            load_agent(&mut tables, uid).await?,
            load_agent_update(&mut tables, uid).await?,
        );
        (agent, update, load_agent_keys(&mut tables, uid).await?)
    };

    let report = update
        .as_ref()
        .map(|row| advance_agents::read_report(uid, &row.report))
        .transpose()?
        .flatten();
    if let Some(agent) = agent.as_mut() {
        confirm_restored(replica, &cluster, agent).await?;
        request_keys(replica, &cluster, state, keys.as_ref());
    }

    let standing = replica
        .identity
        .standing(&keys.as_ref().map(position_of).unwrap_or_default());
    let now = replica.clock.now();
    let quarantine = keep_quarantine(replica, state, now).await?;
    let deadline = agent
        .as_ref()
        .map(|_| silence_deadline(state, replica.clock.steady_since()));
    let said = AgentState {
        agent: agent.as_ref(),
        update: update.as_ref(),
        report: report.as_ref(),
        standing,
        quarantine,
    };

    let status = resolve_status(&cluster, state, &said, deadline, now);
    let is_skewed = |condition: &Condition| condition.type_ == VERSION_SKEW;
    state.show_skew(status.conditions.iter().any(is_skewed));
    if is_away(cluster.status.as_ref()) != is_away(Some(&status)) {
        // Rollouts pass over clusters that are away, and nothing else is written when one of them is back.
        let has = sets_of_cluster(&mut *replica.store.tables().await?, uid).await?;
        replica.memory.sets.note_cluster(&name, uid, &state.labels, &has);
    }

    resources::write_status::<Cluster>(&replica.store, &name, uid, &status).await?;
    Ok(next_look(state, deadline, now))
}

/// Returns when to requeue, and whether the cluster is ready. `deadline`: as of [`silence_deadline`]. None: it has no
/// agent.
fn next_look(state: &ClusterState, deadline: Option<i64>, now: Timestamp) -> (Next, bool) {
    let Some(deadline) = deadline else {
        return (Next::OnChange, false);
    };
    let left = deadline - now.as_second();
    // Ready: requeue for when it would stop being ready. Silent: requeue about as often as it should poll.
    let wait = if left > 0 {
        Duration::from_secs(left.unsigned_abs())
    } else {
        state.poll_interval.min(MAX_LOOK)
    };
    (Next::After(wait), left > 0)
}

/// Whether no agent is heard, according to the status.
fn is_away(status: Option<&ClusterStatus>) -> bool {
    let ready = status
        .into_iter()
        .flat_map(|status| &status.conditions)
        .find(|one| one.type_ == "Ready");
    ready.is_none_or(|ready| [SILENT, NOT_JOINED].contains(&ready.reason.as_str()))
}

/// When the cluster counts as silent, in seconds since 1970. A hub that was away heard no polls, so it counts from its
/// own start, or from when its clock was set.
pub fn silence_deadline(state: &ClusterState, started: i64) -> i64 {
    let heard = state.heard().unwrap_or(0).max(started);
    let patience = (state.poll_interval + LATENESS) * MISSED_POLLS;
    heard.saturating_add_unsigned(patience.as_secs())
}

/// How long the cluster may be quiet until it counts as silent; None: it does already.
pub fn until_silent(state: &ClusterState, clock: Clock) -> Option<Duration> {
    let left = silence_deadline(state, clock.started) - clock.now;
    (left >= 0).then(|| Duration::from_secs(left.unsigned_abs()))
}

/// The known state of an agent.
struct AgentState<'a> {
    agent: Option<&'a Agent>,
    update: Option<&'a AgentUpdateRow>,
    report: Option<&'a AgentReport>,
    /// How far it has followed the hub's keys.
    standing: Standing,
    /// Hosts of two agents that use one identity; None: there is one agent.
    quarantine: Option<String>,
}

/// Saves a quarantine that was found in memory, so that it outlives a restart. Returns its hosts.
async fn keep_quarantine(
    replica: &Replica,
    state: &ClusterState,
    now: Timestamp,
) -> Result<Option<String>, StoreError> {
    let known = load_quarantines(&mut *replica.store.tables().await?).await?;

    if let Some(row) = known.into_iter().find(|row| *row.cluster_uid == *state.uid) {
        return Ok(Some(row.hosts));
    }

    let Some(hosts) = state.quarantine() else {
        return Ok(None);
    };
    let row = Quarantine {
        cluster_uid: state.uid.to_string(),
        since: now.as_second(),
        hosts: hosts.clone(),
    };
    let used_by_both = state.key_print.clone();
    let save = replica.store.transact(move |tx| {
        Box::pin(async move {
            // An agent that has joined meanwhile is neither of the two, and its join requeues the Cluster.
            let agent = load_agent(tx, &row.cluster_uid).await?;
            if agent.map(|agent| key_print(&agent.public_key)) == used_by_both {
                save_quarantine(tx, &row).await?;
            }
            Ok(())
        })
    });
    save.await?;
    Ok(Some(hosts))
}

fn resolve_status(
    cluster: &Cluster,
    state: &ClusterState,
    said: &AgentState<'_>,
    deadline: Option<i64>,
    now: Timestamp,
) -> ClusterStatus {
    let previous = cluster.status.clone().unwrap_or_default();
    let generation = cluster.metadata.generation.unwrap_or(0);
    let agent = said.agent;
    let ahead = agent.and_then(|_| shown_skew(state.ahead(), previous.clock_skew_seconds));
    let skew = agent.and_then(|agent| explain_versions(state.skew(), &previous.conditions, &agent.agent_version));

    let is_heard = deadline.is_some_and(|deadline| now.as_second() <= deadline);
    let mut verdicts = match said.refusal(&state.name) {
        Some(refusal) => refusal,
        None if agent.is_none() => {
            let message = format!("no agent has joined; run: farwater cluster join {}", state.name);
            Verdict::reconciling(NOT_JOINED, message)
        }
        None if is_heard => Verdict::ready("Connected", describe_polls(ahead, skew.as_ref())),
        None => vec![Verdict::new("Ready", Some(false), SILENT, describe_silence(state))],
    };
    verdicts.extend(agent.and_then(restored_verdict));
    if let Some(row) = said.update.filter(|row| !row.failed.is_empty()) {
        let reason = row.reason.clone();
        verdicts.push(Verdict::new("AgentUpdated", Some(false), "WentBack", reason));
    }
    verdicts.extend(skew);
    verdicts.extend(ahead.map(skewed_verdict));

    let report = said.report;
    ClusterStatus {
        clock_skew_seconds: ahead,
        observed_generation: Some(generation),
        conditions: conditions::resolve(&previous.conditions, verdicts, generation, now),
        kubernetes_version: agent.map(|agent| agent.kubernetes_version.clone()),
        agent_version: agent.map(|agent| agent.agent_version.clone()),
        agent_image: report.and_then(|report| report.image.clone()),
        agent_limits: report.and_then(|report| report.limits.clone()),
        age_recipient: agent
            .and_then(|agent| Some(farwater_sops::recipient(agent.sealing_key.as_slice().try_into().ok()?))),
        last_heard_time: None,
        connected: None,
    }
}

impl AgentState<'_> {
    /// Why the hub and the agent do not accept each other. None: they do, or there is no agent.
    fn refusal(&self, cluster: &str) -> Option<Vec<Verdict>> {
        if let Some(hosts) = &self.quarantine {
            let message = format!(
                "two agents use this cluster's identity ({hosts}): the hub answers neither, and workloads keep running. Stop \
                 the agent that should not run, then run: farwater cluster join {cluster}"
            );
            return Some(Verdict::stalled("DuplicateIdentity", message));
        }
        match self.agent.map(|_| &self.standing)? {
            Standing::Foreign => Some(Verdict::stalled(
                "HubKeysOlder",
                "the agent uses newer keys than this hub has: keys/ of the hub's data directory was restored from an older \
                 copy. The agent accepts nothing from this hub, and workloads keep running. Restore the newest copy, or join \
                 the agent again",
            )),
            Standing::Revoked => {
                let message = format!(
                    "the agent uses retired keys of the hub; workloads keep running. Run: farwater cluster join {cluster}"
                );
                Some(Verdict::stalled("HubKeysRevoked", message))
            }
            Standing::Current | Standing::Behind => None,
        }
    }
}

fn describe_polls(ahead: Option<i64>, skew: Option<&Verdict>) -> String {
    let clock = ahead.map(|ahead| format!("; its machine's clock is {} the hub's", describe_skew(ahead)));
    let version = skew.map(|verdict| format!("; {}", verdict.message));
    ["the agent polls".to_owned()]
        .into_iter()
        .chain(clock)
        .chain(version)
        .collect()
}

fn describe_silence(state: &ClusterState) -> String {
    let since = state.heard().and_then(|heard| Timestamp::from_second(heard).ok());
    since.map_or_else(
        || "the agent has joined and has not polled since".to_owned(),
        |since| format!("the agent was last heard at {since}; workloads in the cluster keep running"),
    )
}

/// None: the hub's database was not restored since the agent joined, or a person has confirmed it.
fn restored_verdict(agent: &Agent) -> Option<Verdict> {
    let epoch = Some(agent.restored_epoch).filter(|epoch| *epoch != 0)?;
    let message = format!(
        "the agent has seen newer states than this hub's database holds, so that was restored from a backup. Nothing is \
         deleted in the cluster until this Cluster is annotated {CONFIRM_RESTORED}={epoch}"
    );
    Some(Verdict::new("Restored", Some(true), "DatabaseOlderThanAgent", message))
}

fn skewed_verdict(ahead: i64) -> Verdict {
    let message = format!(
        "the clock of the agent's machine is {} the hub's. The agent goes by the hub's time; certificates and tokens of the \
         cluster itself are judged by the wrong one: set the clock right there",
        describe_skew(ahead)
    );
    Verdict::new("ClockSkewed", Some(true), "ClocksDiffer", message)
}

/// The clock skew to show: none below a minute, and the one shown before if it differs by less. A restarted hub has not
/// heard a skew yet and keeps the one shown.
fn shown_skew(heard: Option<i64>, shown: Option<i64>) -> Option<i64> {
    let Some(heard) = heard else { return shown };
    match shown {
        _ if heard.abs() < MIN_SKEW => None,
        Some(shown) if shown.abs_diff(heard) < MIN_SKEW.unsigned_abs() => Some(shown),
        _ => Some(heard),
    }
}

/// Condition about an agent's version that does not go with the hub's. A restarted hub has not heard of it yet and
/// repeats the condition that is shown.
fn explain_versions(heard: Option<Skew>, shown: &[Condition], agent_version: &str) -> Option<Verdict> {
    let skew = match heard {
        Some(skew) => skew,
        None => {
            let reason = shown
                .iter()
                .find(|condition| condition.type_ == VERSION_SKEW)
                .map(|condition| &condition.reason)?;
            SKEWS.into_iter().find(|(_, known)| known == reason)?.0
        }
    };
    let (_, reason) = SKEWS.into_iter().find(|(known, _)| *known == skew)?;
    let hub = env!("CARGO_PKG_VERSION");
    let message = format!("agent {agent_version}, hub {hub}: {}", skew.advice()?);
    Some(Verdict::new(VERSION_SKEW, Some(true), reason, message))
}

/// `24h ahead of`, rounded to the minute: network latency must not turn a day into 23h59m.
fn describe_skew(ahead: i64) -> String {
    let minutes = (ahead.unsigned_abs() + 30) / 60;
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes}m {side}"),
        (hours, 0) => format!("{hours}h {side}"),
        (hours, minutes) => format!("{hours}h{minutes}m {side}"),
    }
}

async fn confirm_restored(replica: &Replica, cluster: &Cluster, agent: &mut Agent) -> Result<(), StoreError> {
    let confirmed = cluster
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(CONFIRM_RESTORED));
    if agent.restored_epoch == 0 || confirmed.map(String::as_str) != Some(&agent.restored_epoch.to_string()) {
        return Ok(());
    }
    agent.restored_epoch = 0;
    let uid = agent.cluster_uid.clone();
    let confirm = replica.store.transact(move |tx| {
        Box::pin(async move {
            mark_restored(tx, &uid, 0).await?;
            mark_cluster(tx, &uid).await
        })
    });
    confirm.await?;
    replica.wake_after_new_entries(&agent.cluster_uid).await
}

/// Requests new keys from the agent, once per value of the annotation.
fn request_keys(replica: &Replica, cluster: &Cluster, state: &ClusterState, keys: Option<&AgentKeys>) {
    let value = cluster
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(RENEW_KEYS));
    let wanted = value
        .map(|value| Digest::of(value).to_string())
        .filter(|wanted| keys.is_none_or(|keys| keys.request != *wanted));
    if wanted.as_deref() != state.keys_request.as_deref() {
        replica
            .memory
            .clusters
            .change(&state.uid, |state| state.keys_request = wanted.map(Into::into));
    }
}

/// Handles a Cluster resource that is gone. Its agent is refused from now on and keeps what it runs. Services that
/// named the cluster are requeued.
async fn forget_cluster(replica: &Replica, uid: String) -> Result<Next, StoreError> {
    // A cluster that is missing in memory may still exist, and a lost identity has to be joined again by hand. So check
    // the resources.
    let mut exists = false;
    resources::list_pages::<Cluster>(&replica.store, None, |resource| exists |= resource.uid == uid).await?;
    if exists {
        return Ok(Next::OnChange);
    }

    let rows = farwater_store::delivery::assignments_of_cluster(&mut *replica.store.tables().await?, &uid).await?;
    replica
        .store
        .transact(move |tx| Box::pin(async move { delete_cluster(tx, &uid).await }))
        .await?;
    replica.wake_after_departure(rows.into_iter().map(Name::from));
    Ok(Next::OnChange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_shown_from_a_minute_on_and_changes_by_minutes() {
        assert_eq!(shown_skew(None, Some(90)), Some(90));
        assert_eq!(shown_skew(Some(59), Some(90)), None);
        assert_eq!(shown_skew(Some(-86_400), None), Some(-86_400));
        assert_eq!(shown_skew(Some(-86_399), Some(-86_400)), Some(-86_400));
        assert_eq!(shown_skew(Some(86_400), Some(-86_400)), Some(86_400));
        assert_eq!(describe_skew(86_400), "24h ahead of");
        assert_eq!(describe_skew(86_399), "24h ahead of");
        assert_eq!(describe_skew(-5400), "1h30m behind");
        assert_eq!(describe_skew(61), "1m ahead of");
    }

    #[test]
    fn versions_that_do_not_go_together_are_shown_until_the_agent_says_otherwise() {
        let hub = env!("CARGO_PKG_VERSION");
        let verdict = explain_versions(Some(Skew::AgentTooOld), &[], "0.0.1").unwrap();
        assert_eq!((verdict.kind, verdict.reason), (VERSION_SKEW, "AgentTooOld"));
        assert!(
            verdict
                .message
                .starts_with(&format!("agent 0.0.1, hub {hub}: the agent is more than two"))
        );
        let shown = conditions::resolve(&[], vec![verdict], 1, Timestamp::UNIX_EPOCH);
        assert_eq!(explain_versions(None, &shown, "0.0.1").unwrap().reason, "AgentTooOld");
        assert_eq!(explain_versions(Some(Skew::Supported), &shown, "0.0.1"), None);
        assert_eq!(explain_versions(None, &[], "0.0.1"), None);
    }

    #[test]
    fn what_is_known_of_a_clock_is_kept_exactly() {
        let state = ClusterState::new("u", "n", "c", Duration::from_secs(30));
        assert_eq!(state.ahead(), None);
        for (ahead, news) in [
            (0, true),
            (30, false),
            (-86_400, true),
            (-86_399, false),
            (-1, true),
            (1, false),
        ] {
            assert_eq!(state.note_clock(ahead), news, "{ahead}");
            assert_eq!(state.ahead(), Some(ahead));
        }
    }
}
