//! One conditional request per interval.

use std::{collections::BTreeSet, time::Duration};

use farwater_api::{
    Digest,
    protocol::{AcceptedStatement, Action, DesiredState},
};
use tokio::time::{Instant, sleep};

use crate::{
    Agent,
    hub::HubError,
    identity::Untrusted,
    state::StateStore,
    supervise::Supervisor,
    sync::{Backoff, jitter},
};

/// Until the hub says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
/// The whole state is fetched without a condition this often, so that no error in a cache lasts.
const FULL_INTERVAL: Duration = Duration::from_secs(2 * 3600);

enum Polled {
    Unchanged,
    New(Box<DesiredState>),
}

#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    #[error("read desired state")]
    Malformed(#[from] serde_json::Error),
}

/// Polls for ever. While the hub is away everything goes on from the last accepted state.
pub async fn run(
    agent: &Agent,
    store: &StateStore<'_>,
    mut accepted: Option<DesiredState>,
    supervisor: &mut Supervisor,
) {
    let mut interval = DEFAULT_INTERVAL;
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(120));
    // After a start too: a cache's error must not outlive it.
    let mut full_at = Instant::now();
    note_accepted(agent, accepted.as_ref());
    loop {
        let full = Instant::now() >= full_at;
        let wait = match poll(agent, accepted.as_ref(), full, &mut interval).await {
            Ok(polled) => {
                backoff.reset();
                if full {
                    full_at = Instant::now() + jitter(FULL_INTERVAL, 0.5);
                }
                if let Polled::New(state) = polled
                    && accept(agent, store, &state, supervisor).await
                {
                    accepted = Some(*state);
                }
                jitter(interval, 0.1)
            }
            Err(error) => {
                let wait = match &error {
                    PollError::Hub(hub) => hub.retry_after().unwrap_or_else(|| backoff.advance()),
                    PollError::Untrusted(refused) => {
                        if matches!(refused, Untrusted::Older { .. }) {
                            agent.reports.poke();
                        }
                        jitter(interval, 0.1)
                    }
                    PollError::Malformed(_) => jitter(interval, 0.1),
                };
                tracing::warn!(error = crate::hub::chain(&error), "poll failed; keeping the last accepted state");
                wait
            }
        };
        sleep(wait).await;
    }
}

async fn poll(
    agent: &Agent,
    accepted: Option<&DesiredState>,
    full: bool,
    interval: &mut Duration,
) -> Result<Polled, PollError> {
    let etag = accepted.filter(|_| !full).map(|state| state.statement.etag());
    let answer = agent.hub.poll(&agent.caller(), etag.as_deref()).await?;
    if let Some(asked) = answer.interval {
        *interval = asked;
    }
    let Some(body) = answer.body else { return Ok(Polled::Unchanged) };
    let state: DesiredState = serde_json::from_slice(&body)?;
    agent.identity.verify(&state, accepted.map(|s| &s.statement))?;
    if accepted == Some(&state) {
        return Ok(Polled::Unchanged);
    }
    Ok(Polled::New(Box::new(state)))
}

/// Stores first, in the state directory, the cluster, or both, so that after a crash no older state is accepted than was
/// acted upon. `false`: neither took it, so it is not acted upon and comes again with the next poll. Little is lost by
/// that: a cluster that takes no Secret takes no inventory either, and nothing is created without one.
async fn accept(agent: &Agent, store: &StateStore<'_>, state: &DesiredState, supervisor: &mut Supervisor) -> bool {
    let statement = &state.statement;
    if let Err(error) = store.save_desired(state).await {
        tracing::warn!(
            error = crate::hub::chain(&error),
            "can't store the new desired state anywhere; keeping the last accepted one"
        );
        return false;
    }
    tracing::info!(
        epoch = statement.epoch,
        generation = statement.generation,
        services = state.entries.len(),
        "accepted"
    );
    note_accepted(agent, Some(state));
    supervisor.assign(state);
    let named: BTreeSet<Digest> = state
        .entries
        .iter()
        .filter_map(|entry| match &entry.action {
            Action::Apply(deployment) => Some(deployment.bundle),
            _ => None,
        })
        .collect();
    let holds = state.entries.iter().any(|entry| matches!(entry.action, Action::Hold { .. }));
    // A held service goes on with a bundle that no entry names.
    if !holds {
        agent.bundles.collect(&named, &agent.kubernetes).await;
    }
    true
}

fn note_accepted(agent: &Agent, state: Option<&DesiredState>) {
    if let Some(state) = state {
        let accepted = AcceptedStatement { statement: state.statement.clone(), signature: state.signature.clone() };
        agent.reports.accept(accepted);
    }
}
