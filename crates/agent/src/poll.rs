//! Polls: one conditional request per interval.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use farwater_api::{
    Digest,
    protocol::{
        AcceptedStatement, Action, AgentSettings, DesiredState, PROTOCOL, REASON_IDENTITY_UNKNOWN, Skew, Verbatim,
    },
};
use farwater_telemetry::traces::Interval;
use tokio::{sync::watch, time::Instant};

use crate::{
    Agent,
    health::Health,
    hub::{HubError, Poll},
    identity::Untrusted,
    metrics::PollResult,
    pause::Pause,
    state::StateStore,
    succeed::{self, Process},
    supervise::Supervisor,
    sync::{Backoff, jitter, lock},
};

/// Interval until the hub sets another one.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of fetching the whole state unconditionally, so that an error in a cache can't last.
const FULL_INTERVAL: Duration = Duration::from_secs(2 * 3600);

/// Pause between two attempts to change keys.
const KEYS_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(600));

/// Seconds. Smaller differences arise by normal drift of clocks.
const CLOCK_CHANGED: u64 = 60;

/// The receivers of poll results.
pub struct Listeners<'a> {
    pub supervisor: &'a mut Supervisor,
    pub health: &'a Health,
    /// The settings that the agent itself should have.
    pub wanted: watch::Sender<Option<Verbatim<AgentSettings>>>,
}

/// A verified state, and the bytes it arrived as. The bytes are stored, so that an agent version that knows more fields
/// finds all of them.
struct Received {
    state: DesiredState,
    body: Bytes,
}

enum Polled {
    Unchanged,
    New(Box<Received>),
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

/// Polls for ever. While the hub is away, everything continues from the last accepted state.
pub async fn run(
    agent: &Agent,
    store: &StateStore<'_>,
    accepted: Option<AcceptedStatement>,
    mut listeners: Listeners<'_>,
) {
    if let Some(accepted) = &accepted {
        note_accepted(agent, accepted);
    }
    let mut poller = Poller {
        agent,
        store,
        accepted,
        interval: DEFAULT_INTERVAL,
        backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(120)),
        full_at: Instant::now(),
        ahead: None,
        skew: Skew::default(),
        away: false,
        keys: KeyChanges::default(),
    };
    let mut link = agent.connection.follow();
    loop {
        let known = *link.borrow_and_update();
        let pause = poller.poll_once(&mut listeners).await;
        pause.wait(&mut link, known).await;
    }
}

/// The state between two polls.
struct Poller<'a> {
    agent: &'a Agent,
    store: &'a StateStore<'a>,
    accepted: Option<AcceptedStatement>,
    interval: Duration,
    backoff: Backoff,
    /// Time of the next unconditional poll. The first poll is one, so that an error in a cache can't outlast a start.
    full_at: Instant,
    /// Seconds that the machine's clock was ahead of the hub's at the last poll.
    ahead: Option<i64>,
    skew: Skew,
    /// The last poll failed.
    away: bool,
    keys: KeyChanges,
}

impl Poller<'_> {
    /// Polls, handles the answer or the error, and returns the pause until the next poll.
    async fn poll_once(&mut self, listeners: &mut Listeners<'_>) -> Pause {
        let full = Instant::now() >= self.full_at;
        let begun = SystemTime::now();
        let changing = (&mut self.interval, &mut self.keys);
        let polled = poll(self.agent, self.store, self.accepted.as_ref(), full, changing).await;
        tell_of_skew(self.agent, &mut self.skew);

        let settled = polled.is_ok() && !self.keys.asked;
        let (usual, hold) = match polled {
            Ok(polled) => {
                if full {
                    self.full_at = Instant::now() + jitter(FULL_INTERVAL, 0.5);
                }
                self.take_answer(polled, begun, listeners).await;
                (jitter(self.interval, 0.1), false)
            }
            Err(error) => self.take_error(&error).await,
        };
        Pause {
            usual,
            settled,
            hold,
            accepted: self.accepted.as_ref().map(|accepted| accepted.statement.number()),
        }
    }

    /// Notes that the hub answers, and accepts a new state.
    async fn take_answer(&mut self, polled: Polled, begun: SystemTime, listeners: &mut Listeners<'_>) {
        let agent = self.agent;
        agent.metrics.count_poll(match polled {
            Polled::Unchanged => PollResult::Unchanged,
            Polled::New(_) => PollResult::New,
        });
        self.backoff.reset();
        if std::mem::take(&mut self.away) {
            agent.reports.hub_is_back();
        }
        self.keys.told_position = false;
        listeners.health.set_ready();
        tell_of_clock(agent, &mut self.ahead);

        if let Polled::New(received) = polled {
            agent.last_poll.note(Interval::since(begun));
            if let Some(statement) = accept(agent, self.store, *received, listeners).await {
                self.accepted = Some(statement);
            }
        }
    }

    /// Does what an error asks for. Returns the time until the next poll, and whether the hub asked for that pause.
    async fn take_error(&mut self, error: &PollError) -> (Duration, bool) {
        let agent = self.agent;
        self.away = true;
        agent.metrics.count_poll(PollResult::Failed);
        if matches!(error, PollError::Hub(error) if error.is_reason(REASON_IDENTITY_UNKNOWN)) {
            find_keys(agent, self.store).await;
        }
        if let PollError::Untrusted(refused) = error {
            if matches!(refused, Untrusted::Older { .. }) {
                agent.reports.poke();
            }
            self.keys.announce_unknown_key(agent, refused);
        }

        let usual = jitter(self.interval, 0.1);
        let asked = match error {
            PollError::Hub(hub) => hub.retry_after(),
            _ => None,
        };
        let wait = match error {
            // Never later than without the error, so that a hub that comes back gets no more polls than usual.
            PollError::Hub(_) => asked.unwrap_or_else(|| self.backoff.advance().min(usual)),
            PollError::Untrusted(_) | PollError::Malformed(_) => usual,
        };
        tracing::warn!(
            error = crate::hub::chain(error),
            advice = self.skew.advice(),
            "poll failed; keeping the last accepted state"
        );
        (wait, asked.is_some())
    }
}

async fn poll(
    agent: &Agent,
    store: &StateStore<'_>,
    accepted: Option<&AcceptedStatement>,
    full: bool,
    (interval, keys): (&mut Duration, &mut KeyChanges),
) -> Result<Polled, PollError> {
    let etag = accepted.filter(|_| !full).map(|accepted| accepted.statement.etag());
    let identity = agent.identity();
    let answer = agent.hub.poll(&agent.caller(&identity), etag.as_deref()).await?;

    if let Some(asked) = answer.interval {
        *interval = asked;
    }
    if let Some(within) = answer.invited {
        agent.connection.invite(within);
    }
    if answer.plan {
        agent.plans.hear();
    }
    keys.change(agent, store, &answer, accepted).await;

    let Some(body) = answer.body else {
        return Ok(Polled::Unchanged);
    };
    let state: DesiredState = serde_json::from_slice(&body)?;
    let accepted_statement = accepted.map(|accepted| &*accepted.statement);
    match identity.verify(&state, accepted_statement) {
        // Signed with a key that the agent has just followed to.
        Err(Untrusted::UnknownKey { .. }) => agent.identity().verify(&state, accepted_statement)?,
        other => other?,
    }
    // Everything in a state is covered by its statement, so equal statements mean equal states.
    if accepted.is_some_and(|accepted| accepted.statement == state.statement) {
        return Ok(Polled::Unchanged);
    }
    Ok(Polled::New(Box::new(Received { state, body })))
}

/// Key changes that the hub's answers ask for. A failed one stops nothing else: states signed with the present keys are
/// still accepted.
#[derive(Default)]
struct KeyChanges {
    /// The last error, which is logged once.
    told: String,
    /// Pause after a failed change or an announcement that the hub seems to have missed, so that neither is repeated
    /// with every poll.
    pause: Option<(Instant, Backoff)>,
    /// The agent has told the hub its position in the successions since the hub used an unknown key.
    told_position: bool,
    /// The hub's last answer asked for a change; it learns the result with the next poll.
    asked: bool,
}

impl KeyChanges {
    /// Makes the next request for a token tell the hub that the agent doesn't know its key.
    fn announce_unknown_key(&mut self, agent: &Agent, refused: &Untrusted) {
        if matches!(refused, Untrusted::UnknownKey { .. }) && !std::mem::replace(&mut self.told_position, true) {
            agent.hub.forget_token();
        }
    }

    async fn change(
        &mut self,
        agent: &Agent,
        store: &StateStore<'_>,
        answer: &Poll,
        accepted: Option<&AcceptedStatement>,
    ) {
        let position = agent.identity().position.sequence;
        let succession = answer.succession.is_some_and(|last| last > position);
        self.asked = answer.succession.is_some() || answer.renew_keys;
        if self.pause.as_ref().is_some_and(|(until, _)| *until > Instant::now()) {
            return;
        }

        let mut result = Ok(());
        if succession {
            let key = accepted.map(|accepted| &*accepted.statement.key_id);
            result = succeed::follow_hub(agent, store, key).await;
        }
        if answer.renew_keys && result.is_ok() {
            result = succeed::renew_keys(agent, store).await;
        }
        // The hub has missed the agent's position, e.g. because an older request arrived last. The next token tells it.
        if result.is_ok() && !succession && answer.succession.is_some() {
            agent.hub.forget_token();
            self.postpone();
            return;
        }

        let Err(error) = result else {
            (self.told, self.pause) = (String::new(), None);
            return;
        };
        self.postpone();
        let text = crate::hub::chain(&error);
        if text != self.told {
            tracing::warn!(error = text, "can't change the keys; continuing with the present ones");
            self.told = text;
        }
    }

    fn postpone(&mut self) {
        let (_, mut backoff) = self.pause.take().unwrap_or_else(|| (Instant::now(), KEYS_BACKOFF));
        self.pause = Some((Instant::now() + backoff.advance(), backoff));
    }
}

/// Finds keys that the hub accepts, after it has refused the present ones.
async fn find_keys(agent: &Agent, store: &StateStore<'_>) {
    let process = Process {
        kubernetes_version: &agent.kubernetes_version,
        presence: &agent.presence,
    };
    match succeed::find_keys(&agent.hub, store, &agent.identity(), &process).await {
        Ok(Some(identity)) => agent.set_identity(identity),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(
                error = crate::hub::chain(&error),
                "can't ask whether the hub knows other keys of this agent"
            );
        }
    }
}

/// Accepts a state. It is stored first, in the state directory, the cluster or both, so that after a crash no state is
/// accepted that is older than the one acted upon. None: it could not be stored, so it is not acted upon and comes
/// again with the next poll. Little is lost by that: a cluster that refuses Secrets refuses inventories too, and
/// nothing is created without one.
async fn accept(
    agent: &Agent,
    store: &StateStore<'_>,
    Received { state, body }: Received,
    listeners: &mut Listeners<'_>,
) -> Option<AcceptedStatement> {
    if let Err(error) = store.save_desired(&body).await {
        tracing::warn!(
            error = crate::hub::chain(&error),
            "can't store the new desired state anywhere; keeping the last accepted one"
        );
        return None;
    }

    tracing::info!(
        epoch = state.statement.epoch,
        generation = state.statement.generation,
        services = state.entries.len(),
        "accepted"
    );
    agent.set_health_rules(state.health.as_deref());
    agent.set_windows(state.windows.as_ref());
    listeners.supervisor.assign(&state);

    let mut named: BTreeSet<Digest> = state
        .entries
        .iter()
        .filter_map(|entry| match &entry.action {
            Action::Apply(deployment) => Some(deployment.bundle),
            _ => None,
        })
        .collect();
    let holds = state
        .entries
        .iter()
        .any(|entry| matches!(entry.action, Action::Hold { .. } | Action::Unreadable(_)));
    let accepted = AcceptedStatement {
        statement: state.statement,
        signature: state.signature,
    };
    note_accepted(agent, &accepted);
    listeners.wanted.send_replace(state.agent);

    // A change that is about to begin may still be held by a window.
    if !agent.windows().is_empty() {
        named.extend(lock(&agent.running).values());
    }
    // A held service uses a bundle that no entry names.
    if !holds {
        agent.bundles.collect(&named, &agent.kubernetes).await;
    }
    Some(accepted)
}

/// Logs once what to do if the versions of hub and agent don't fit.
fn tell_of_skew(agent: &Agent, told: &mut Skew) {
    let skew = agent.hub.skew();
    if std::mem::replace(told, skew) == skew {
        return;
    }
    let (hub, protocol) = (agent.hub.protocol(), PROTOCOL);
    match skew.advice() {
        Some(advice) => tracing::warn!(hub, agent = protocol, version = crate::VERSION, "{advice}"),
        None => tracing::info!(hub, agent = protocol, "the hub's version and the agent's go together"),
    }
}

/// Sends a report if the machine's clock was changed, because the hub's figure is from the last token, up to an hour
/// ago.
fn tell_of_clock(agent: &Agent, told: &mut Option<i64>) {
    let Some(ahead) = agent.hub.clock.ahead() else { return };
    if told.is_some_and(|told| ahead.abs_diff(told) < CLOCK_CHANGED) {
        return;
    }
    if told.replace(ahead).is_some() {
        agent.reports.poke();
    }
}

fn note_accepted(agent: &Agent, accepted: &AcceptedStatement) {
    agent.metrics.set_accepted(&accepted.statement);
    agent.reports.accept(accepted.clone());
}
