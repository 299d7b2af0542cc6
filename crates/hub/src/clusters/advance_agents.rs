//! advance_agents: AgentPolicies → the settings of each cluster's agent.
//!
//! A row per cluster has the assigned settings, and the cluster's desired state carries them. If a policy is deleted or
//! no longer selects a cluster, its agent stays as it is.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use farwater_api::{
    AgentPolicy, AgentPolicyStatus, Cluster, Digest,
    protocol::{AgentReport, AgentSettings},
};
use farwater_fleet::{
    agents::{Assigned, ClusterAgent, Decision, Heard, Limit, decide},
    conditions::{self, Verdict},
    duration::AGENT_DEADLINE,
    placement::selects,
    rollout::Clock,
};
use farwater_store::{
    Resource, StoreError,
    delivery::{AgentUpdateRow, load_agent_updates, mark_cluster, save_agent_update},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::track_clusters::silence_deadline;
use crate::{
    errors::chain,
    kinds::meta::labels,
    replica::Replica,
    resources::{self, Name},
};

/// Pause while agents are updating, or have not been heard since the hub was away. A passed deadline or a silent
/// cluster is noticed this late.
const BUSY: Duration = Duration::from_secs(5);
/// Pause otherwise: a backstop for a lost wake-up, and the turn of a cluster that is back after a long silence.
const IDLE: Duration = Duration::from_secs(60);

pub async fn run(replica: Arc<Replica>, shutdown: CancellationToken) {
    loop {
        let wait = match advance(&replica).await {
            Ok(true) => BUSY,
            Ok(false) => IDLE,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "advance agents");
                BUSY
            }
        };
        let woken = async {
            tokio::select! { () = replica.signals.agents.notified() => {} () = tokio::time::sleep(wait) => {} }
        };
        if shutdown.run_until_cancelled(woken).await.is_none() {
            return;
        }
    }
}

/// A cluster that has an agent.
struct Member {
    agent: ClusterAgent,
    row: AgentUpdateRow,
}

/// A member with the labels that select it. Its row may be unreadable: that is reported by the policy that selects it.
struct Candidate {
    labels: BTreeMap<String, String>,
    member: Result<Member, StoreError>,
}

/// Does what the policies want now. Returns whether to repeat that soon.
async fn advance(replica: &Replica) -> Result<bool, StoreError> {
    let mut policies = Vec::new();
    resources::list_pages::<AgentPolicy>(&replica.store, None, |resource| policies.push(resource)).await?;
    if policies.is_empty() || !replica.memory.clusters.is_loaded() {
        return Ok(false);
    }

    policies.sort_by(|a, b| a.key.name.cmp(&b.key.name));
    let mut candidates = load_candidates(replica).await?;

    let mut busy = false;
    for resource in &policies {
        let policy: AgentPolicy = resources::parse(resource)?;
        // Of several policies that select a cluster, the first by name has taken it.
        let selector = &policy.spec.cluster_selector;
        let (own, rest): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|candidate| selects(selector, &candidate.labels));
        candidates = rest;
        busy |= advance_policy(replica, resource, &policy, own).await?;
    }
    Ok(busy)
}

async fn load_candidates(replica: &Replica) -> Result<Vec<Candidate>, StoreError> {
    let Clock {
        now,
        started: steady_since,
    } = replica.clock.read();
    let rows = load_agent_updates(&mut *replica.store.tables().await?).await?;
    let mut rows: BTreeMap<String, AgentUpdateRow> =
        rows.into_iter().map(|row| (row.cluster_uid.clone(), row)).collect();

    let mut candidates = Vec::new();
    let each = |resource: Resource| {
        let Some(state) = replica
            .memory
            .clusters
            .get(&resource.uid)
            .filter(|state| state.key_print.is_some())
        else {
            return;
        };
        let row = rows.remove(&resource.uid);
        let row = row.unwrap_or_else(|| AgentUpdateRow {
            cluster_uid: resource.uid.clone(),
            ..AgentUpdateRow::default()
        });
        let name = format!("{}/{}", state.namespace, state.name);
        let heard = match (
            silence_deadline(&state, 0) > now,
            silence_deadline(&state, steady_since) > now,
        ) {
            (true, _) => Heard::InTime,
            (false, true) => Heard::NotYet,
            (false, false) => Heard::No,
        };
        let agent = read_agent(name, heard, &row, now);
        let labels = labels(&resource.object);
        candidates.push(Candidate {
            labels,
            member: agent.map(|agent| Member { agent, row }),
        });
    };

    resources::list_pages::<Cluster>(&replica.store, None, each).await?;
    Ok(candidates)
}

fn read_agent(name: String, heard: Heard, row: &AgentUpdateRow, now: i64) -> Result<ClusterAgent, StoreError> {
    let failed: Option<Digest> = row.failed.parse().ok();
    Ok(ClusterAgent {
        name,
        heard,
        assigned: Assigned {
            settings: read_text(&row.cluster_uid, &row.settings)?,
            previous: read_text(&row.cluster_uid, &row.previous)?,
            age: now - row.assigned,
            failed: failed.map(|digest| (digest, row.reason.clone())),
        },
        report: read_report(&row.cluster_uid, &row.report)?,
    })
}

pub fn read_report(cluster_uid: &str, text: &str) -> Result<Option<AgentReport>, StoreError> {
    read_text(cluster_uid, text)
}

/// Parses the JSON of a row. None: the text is empty.
pub fn read_text<T: DeserializeOwned>(cluster_uid: &str, text: &str) -> Result<Option<T>, StoreError> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|error| StoreError::Row {
        what: format!("the agent's settings of cluster {cluster_uid}"),
        problem: error.to_string(),
    })
}

fn settings_of(policy: &AgentPolicy) -> Result<AgentSettings, String> {
    let spec = &policy.spec;
    let deadline = AGENT_DEADLINE
        .check(&spec.deadline)
        .map_err(|problem| format!("spec.deadline {problem}"))?;
    Ok(AgentSettings {
        image: spec.image.clone(),
        log: spec.log.clone(),
        memory_limit: spec.memory_limit.clone(),
        deadline_seconds: deadline.as_secs(),
        requested_at: farwater_api::requested_at(&policy.metadata).map(str::to_owned),
    })
}

async fn advance_policy(
    replica: &Replica,
    resource: &Resource,
    policy: &AgentPolicy,
    candidates: Vec<Candidate>,
) -> Result<bool, StoreError> {
    let total = candidates.len();
    // A cluster that is heard again after the hub was away wakes no controller.
    let is_hearing = candidates.iter().any(|candidate| {
        candidate
            .member
            .as_ref()
            .is_ok_and(|member| member.agent.heard == Heard::NotYet)
    });

    let members: Result<Vec<Member>, StoreError> = candidates.into_iter().map(|candidate| candidate.member).collect();
    let limit = match &policy.spec.max_unavailable {
        IntOrString::Int(number) => Limit::parse(&number.to_string()),
        IntOrString::String(text) => Limit::parse(text),
    };
    let limit = limit.ok_or_else(|| "spec.maxUnavailable must be a number above 0, or 1% to 100%".to_owned());
    let wanted = settings_of(policy).and_then(|wanted| Ok((wanted, limit?)));

    let (verdicts, decision) = match (members, wanted) {
        (Ok(members), Ok((wanted, limit))) => {
            let agents: Vec<ClusterAgent> = members.iter().map(|member| member.agent.clone()).collect();
            let decision = decide(&wanted, limit, policy.spec.suspend, &agents);
            carry_out(replica, &members, &decision, &wanted).await?;
            (explain(&decision, total, policy.spec.suspend), decision)
        }
        // Admission refuses these. A spec that an older hub admitted changes nothing.
        (_, Err(problem)) => (Verdict::stalled("InvalidSpec", problem), Decision::default()),
        // The progress of these agents is unknown, so none is changed.
        (Err(damage), _) => (Verdict::stalled("RowDamaged", damage.to_string()), Decision::default()),
    };

    let previous = policy.status.clone().unwrap_or_default();
    let generation = policy.metadata.generation.unwrap_or(0);
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let status = AgentPolicyStatus {
        observed_generation: Some(generation),
        conditions: conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now()),
        clusters: count(total),
        updated_clusters: count(decision.updated),
        updating_clusters: count(decision.updating),
        failed_clusters: count(decision.failed),
    };

    let name = Name::new("", &resource.key.name);
    resources::write_status::<AgentPolicy>(&replica.store, &name, &resource.uid, &status).await?;
    Ok(decision.updating > 0 || is_hearing)
}

/// Writes rows and marks their clusters in one transaction.
async fn carry_out(
    replica: &Replica,
    members: &[Member],
    decision: &Decision,
    wanted: &AgentSettings,
) -> Result<(), StoreError> {
    let rows = rows_of(members, decision, wanted, Timestamp::now().as_second())?;
    if rows.is_empty() {
        return Ok(());
    }
    let changed: Vec<String> = rows.iter().map(|row| row.cluster_uid.clone()).collect();
    let written = replica.store.transact(move |tx| {
        Box::pin(async move {
            for row in rows {
                save_agent_update(tx, &row).await?;
                mark_cluster(tx, &row.cluster_uid).await?;
            }
            Ok(())
        })
    });
    written.await?;
    replica.wake_after_mark();
    // Their status shows the new settings.
    changed.iter().for_each(|uid| replica.check_cluster(uid));
    Ok(())
}

/// The rows of the agents that get the new settings, and of those that return to the settings before.
fn rows_of(
    members: &[Member],
    decision: &Decision,
    wanted: &AgentSettings,
    now: i64,
) -> Result<Vec<AgentUpdateRow>, StoreError> {
    let text = serde_json::to_string(wanted).map_err(StoreError::abort)?;
    let mut rows = Vec::new();
    for member in decision.assign.iter().filter_map(|index| members.get(*index)) {
        tracing::info!(
            cluster = member.agent.name,
            image = wanted.image,
            "agent update requested"
        );
        rows.push(AgentUpdateRow {
            settings: text.clone(),
            previous: member.row.settings.clone(),
            assigned: now,
            cluster_uid: member.row.cluster_uid.clone(),
            ..AgentUpdateRow::default()
        });
    }

    for (index, reason) in &decision.retract {
        let Some(member) = members.get(*index) else { continue };
        tracing::warn!(
            cluster = member.agent.name,
            image = wanted.image,
            reason,
            "the agent did not take its new settings"
        );
        rows.push(AgentUpdateRow {
            settings: member.row.previous.clone(),
            assigned: now,
            failed: wanted.digest().to_string(),
            reason: reason.clone(),
            ..member.row.clone()
        });
    }

    Ok(rows)
}

fn explain(decision: &Decision, total: usize, suspended: bool) -> Vec<Verdict> {
    let silent = match decision.silent {
        0 => String::new(),
        count => format!("; {count} not heard, passed over until they are"),
    };
    let progress = format!("{} of {total} agents are as the policy says{silent}", decision.updated);
    if let Some((cluster, reason)) = &decision.halted {
        return Verdict::stalled("Halted", format!("{progress}; halted at {cluster}: {reason}"));
    }
    if let Some((cluster, reason)) = &decision.unmanaged {
        return Verdict::stalled(
            "Unmanaged",
            format!("{progress}; {cluster} can't be changed from here: {reason}"),
        );
    }
    if decision.unheard > 0 && decision.waiting > 0 {
        let unheard = decision.unheard;
        return Verdict::reconciling(
            "Updating",
            format!("{progress}; {unheard} of them must poll again first"),
        );
    }
    if decision.updating > 0 || (decision.waiting > 0 && !suspended) {
        return Verdict::reconciling(
            "Updating",
            format!("{progress}; {} are on their way", decision.updating),
        );
    }
    if decision.waiting > 0 {
        return Verdict::stalled(
            "Suspended",
            format!("{progress}; {} wait, the policy is suspended", decision.waiting),
        );
    }
    Verdict::ready("Updated", progress)
}
