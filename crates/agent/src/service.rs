//! One task per service, level-triggered: it knows only the newest assignment, and a newer one ends the present attempt
//! at its next safe point.

mod apply;
mod barrier;
pub(crate) mod basis;
mod causes;
mod hooks;
mod judges;
mod leaving;
mod prune;
mod record;
mod remove;
pub(crate) mod rollout;
mod state;
mod steady;
mod undo;
mod windows;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use barrier::Barrier;
use farwater_api::{
    Digest,
    objects::{Health, ObjectRef, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::{Action, Entry, ServiceAccount},
    service_deployment::DeletionPolicy,
};
use farwater_fleet::{plan::ObjectKey, windows::Closed};
pub use leaving::Leaving;
use rollout::Rollout;
use state::{Held, LastApplied, Observed, Progress};
use tokio::{sync::watch, time::Instant};

use crate::{
    Agent,
    fights::Fights,
    inventory::Stored,
    messages::shorten,
    metrics::ApplyResult,
    reports::{conceal, fit},
    sync::{Backoff, lock},
    watches::Mailbox,
};

/// A service's entry in the newest accepted desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub entry: Entry,
    pub digest: Digest,
    /// The newest state no longer lists the service, although the hub did not ask to remove it. It is kept.
    pub unlisted: bool,
}

/// Shows whether an assignment has arrived that is newer than the one being acted upon.
#[derive(Clone, Debug)]
pub struct Superseded(watch::Receiver<Assignment>);

impl Superseded {
    pub fn by(assignments: watch::Receiver<Assignment>) -> Self {
        Self(assignments)
    }

    pub fn has_come(&self) -> bool {
        // If the sender is gone the process ends, which also ends the attempt.
        self.0.has_changed().unwrap_or(true)
    }

    pub async fn comes(&self) {
        let _ = self.0.clone().changed().await;
    }
}

/// The end of an attempt.
enum Ended {
    Superseded,
    /// Deleted objects were recreated, and objects that need them can be applied at once.
    Restored,
    /// In sync, or as near as it gets for now: try again at this time.
    Settled {
        retry: bool,
    },
    /// Nothing is left of the service.
    Removed,
}

/// Text for an attempt's report, and its outcome.
struct Note {
    text: String,
    outcome: Outcome,
}

impl Note {
    fn held(reason: &str) -> Self {
        Self {
            text: shorten(&format!("held: {reason}")),
            outcome: Outcome::Applied,
        }
    }

    /// The request failed; something else was done instead.
    fn failed(reason: &str) -> Self {
        Self {
            outcome: Outcome::Failed,
            ..Self::held(reason)
        }
    }

    /// Nothing of the request has begun.
    fn waiting(reason: &str) -> Self {
        Self {
            outcome: Outcome::Superseded,
            ..Self::held(reason)
        }
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }
}

/// The report of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Status {
    object: ObjectRef,
    sync: SyncState,
    health: Health,
    message: String,
    /// Observations when it was applied, whatever its health.
    note: String,
    waits_for: Option<Box<ObjectRef>>,
}

pub struct ServiceTask {
    agent: Arc<Agent>,
    assignments: watch::Receiver<Assignment>,
    mailbox: Arc<Mailbox>,
    stored: Stored,
    observed: Observed,
    progress: Progress,
    last_applied: LastApplied,
    held: Held,
    fights: Fights,
    backoff: Backoff,
    health: steady::HealthQueue,
    causes: causes::Causes,
    judges: judges::Judges,
    /// Trace of the newest entry, until it is healthy.
    rollout: Option<Rollout>,
    undoing: Option<undo::Undoing>,
    hooks: hooks::HookQueue,
}

impl ServiceTask {
    pub fn new(
        agent: Arc<Agent>,
        assignments: watch::Receiver<Assignment>,
        stored: Stored,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        Self {
            causes: causes::Causes::new(agent.health_limits),
            agent,
            assignments,
            mailbox,
            stored,
            observed: Observed::default(),
            progress: Progress::default(),
            last_applied: LastApplied::default(),
            held: Held::default(),
            fights: Fights::default(),
            backoff: Backoff::new(Duration::from_secs(2), Duration::from_secs(300)),
            health: steady::HealthQueue::default(),
            judges: judges::Judges::default(),
            rollout: None,
            undoing: None,
            hooks: hooks::HookQueue::default(),
        }
    }

    /// Runs until the service and its assignment are gone.
    pub async fn run(mut self) {
        loop {
            let assignment = self.assignments.borrow_and_update().clone();
            let retry_at = match self.attempt(&assignment).await {
                Ended::Superseded => {
                    self.agent.metrics.count_apply(ApplyResult::Superseded);
                    self.report_superseded(&assignment);
                    self.backoff.reset();
                    continue;
                }
                Ended::Restored => {
                    self.backoff.reset();
                    self.tell_overtaken(&assignment);
                    continue;
                }
                Ended::Removed => {
                    // The hub removes it from the list once it has read the report.
                    if self.assignments.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                Ended::Settled { retry: true } => {
                    let pause = self.backoff.advance().max(self.agent.kubernetes.asked_pause());
                    Some(Instant::now() + pause)
                }
                Ended::Settled { retry: false } => {
                    self.backoff.reset();
                    None
                }
            };
            if self.steady(retry_at).await.is_break() {
                return;
            }
            self.tell_overtaken(&assignment);
        }
    }

    fn tell_overtaken(&self, assignment: &Assignment) {
        if self.is_overtaken(assignment) {
            self.agent.metrics.count_apply(ApplyResult::Superseded);
            self.report_superseded(assignment);
        }
    }

    async fn attempt(&mut self, assignment: &Assignment) -> Ended {
        let closed = self.closed(assignment);
        self.progress.window_at = None;
        let known = self
            .progress
            .last
            .as_ref()
            .filter(|(digest, ..)| *digest == assignment.digest);
        let has_waited = known.is_some_and(|(_, outcome, _)| *outcome == Outcome::Superseded);
        let first = known.is_none() || (has_waited && closed.is_none());

        if first {
            self.find_predecessor().await;
            self.begin_rollout(assignment);
            self.progress.arrived = false;
            self.causes = causes::Causes::new(self.agent.health_limits);
            let outcome = if closed.is_some() {
                Outcome::Superseded
            } else {
                Outcome::Applying
            };
            let message = closed.as_ref().map(|closed| Note::waiting(&closed.to_string()).text);
            self.set_outcome(assignment.digest, outcome, message.unwrap_or_default());
        }

        let ended = self.act(assignment, closed.as_ref()).await;
        if !matches!(ended, Ended::Superseded) {
            // Objects that could not be read or looked up yet say nothing about other services' objects.
            self.agent.leaving.note_planned(self.uid(), assignment.digest);
        }
        if let (Ended::Settled { .. }, Some((_, outcome, _))) = (&ended, &self.progress.last) {
            match outcome {
                Outcome::Applied => self.agent.metrics.count_apply(ApplyResult::Applied),
                // It continues when what later waves wait for is healthy, or with a window.
                Outcome::Applying | Outcome::Superseded => {}
                _ => self.agent.metrics.count_apply(ApplyResult::Failed),
            }
            self.follow_health();
        }
        ended
    }

    fn begin_rollout(&mut self, assignment: &Assignment) {
        if let Some(older) = self.rollout.take() {
            older.end(Some("a newer version came first"));
        }
        if matches!(assignment.entry.action, Action::Apply(_)) {
            let cluster = &self.agent.identity().cluster.uid;
            self.rollout = Rollout::begin(cluster, &assignment.digest, self.name(), &self.agent.last_poll);
        }
    }

    /// Records when everything that was applied has become healthy, and ends the trace.
    fn follow_health(&mut self) {
        if !matches!(self.progress.last, Some((_, Outcome::Applied, _))) {
            return;
        }
        let may_be_well = |status: &Status| match status.health {
            Health::Current => true,
            // An object that is kept though it left the source is not waited for. One that a rule can't judge is.
            Health::Unknown => !self.judges.rules.cover(&status.object.group, &status.object.kind),
            Health::Failed | Health::InProgress | Health::Terminating => false,
        };
        self.progress.arrived |= self.observed.statuses.values().all(may_be_well);
        let Some(rollout) = &mut self.rollout else { return };
        rollout.wait_for_health();
        let is_well = |status: &Status| status.sync == SyncState::Synced && status.health == Health::Current;
        if self.observed.statuses.values().all(is_well)
            && let Some(rollout) = self.rollout.take()
        {
            rollout.end(None);
        }
    }

    /// Whether a newer assignment arrived before `old` was healthy. A failed one has already ended.
    fn is_overtaken(&self, old: &Assignment) -> bool {
        let under_way = matches!(self.progress.last, Some((digest, Outcome::Applying | Outcome::Applied, _)) if digest == old.digest);
        let newer = self.assignments.borrow().digest != old.digest;
        newer && under_way && !self.progress.arrived && matches!(old.entry.action, Action::Apply(_))
    }

    async fn act(&mut self, assignment: &Assignment, closed: Option<&Closed>) -> Ended {
        if let (Action::Apply(deployment), Some(closed)) = (&assignment.entry.action, closed) {
            return self.wait_for_window(assignment.digest, deployment, closed).await;
        }
        match &assignment.entry.action {
            Action::Apply(deployment) => self.apply(assignment.digest, deployment, None).await,
            Action::Hold { reason } => self.hold(assignment.digest, Note::held(reason)).await,
            Action::Unreadable(unreadable) => {
                let note = Note::failed(&unreadable.explain(crate::VERSION));
                self.hold(assignment.digest, note).await
            }
            Action::Remove {
                policy: DeletionPolicy::Orphan,
                ..
            } => self.orphan(assignment.digest).await,
            Action::Remove {
                policy: DeletionPolicy::Delete,
                approved_prune,
            } => self.remove(assignment.digest, *approved_prune).await,
        }
    }

    /// Keeps the last applied deployment. Applies no other change and prunes nothing.
    async fn hold(&mut self, digest: Digest, note: Note) -> Ended {
        match self.stored.deployment.clone() {
            Some(mut deployment) => {
                deployment.prune = false;
                deployment.hold_prune = None;
                self.apply(digest, &deployment, Some(note)).await
            }
            None => {
                self.set_outcome(digest, note.outcome(), note.text);
                Ended::Settled { retry: false }
            }
        }
    }

    fn uid(&self) -> &str {
        &self.stored.service.uid
    }

    fn superseded(&self) -> bool {
        self.supersession().has_come()
    }

    fn supersession(&self) -> Superseded {
        Superseded(self.assignments.clone())
    }

    /// Ends when a newer assignment arrives; for waits that may be interrupted.
    fn until_superseded(&self) -> impl Future<Output = ()> + use<> {
        let supersession = self.supersession();
        async move { supersession.comes().await }
    }

    /// The account of the last deployment, by which the existing objects are managed.
    fn account(&self) -> Option<ServiceAccount> {
        self.stored
            .deployment
            .as_ref()
            .map(|d| d.ceiling.service_account.clone())
    }

    fn set_outcome(&mut self, digest: Digest, outcome: Outcome, message: String) {
        self.progress.last = Some((digest, outcome, message));
        self.send_report();
    }

    /// Reports the present state; the reporter drops what it has already sent.
    fn send_report(&self) {
        if let Some((digest, outcome, message)) = &self.progress.last {
            self.agent
                .reports
                .set(self.uid(), self.report(*digest, *outcome, message));
        }
    }

    fn report_superseded(&self, assignment: &Assignment) {
        let message = "a newer version came first".to_owned();
        let report = self.report(assignment.digest, Outcome::Superseded, &message);
        tracing::info!(service = %self.name(), entry = %assignment.digest.short(), "superseded");
        self.agent.reports.supersede(self.uid(), report);
    }

    fn name(&self) -> String {
        format!("{}/{}", self.stored.service.namespace, self.stored.service.name)
    }

    fn report(&self, entry: Digest, outcome: Outcome, message: &str) -> ServiceReport {
        let claims = self.agent.claims_on(self.uid());
        let unlisted = self.assignments.borrow().unlisted;
        let mut message = self.last_applied.veil.conceal(message);
        if unlisted {
            message = shorten(&format!(
                "kept: the hub does not list this service and has not asked to remove it. {message}"
            ));
        }
        let objects = self.observed.statuses.iter().map(|(key, status)| {
            let claim = claims
                .get(key)
                .map(|contender| format!("also stated by service {contender}, which is refused"));
            let told = self.explain_health(key, status);
            let remark = self.observed.remarks.get(key).map(String::as_str).unwrap_or_default();
            let parts = [
                told.as_str(),
                status.note.as_str(),
                remark,
                claim.as_deref().unwrap_or_default(),
            ];
            let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            ObjectReport {
                object: status.object.clone(),
                sync: status.sync,
                health: status.health,
                message: shorten(&self.last_applied.veil.conceal(&parts.join("; "))),
                waits_for: status.waits_for.clone(),
            }
        });
        let (held_prune, deletion) = (self.held.prune.clone(), self.stored.deletion.clone());
        let hooks = conceal(self.report_hooks(), &self.last_applied.veil);
        fit(ServiceReport {
            entry,
            outcome,
            message,
            held_prune,
            deletion,
            hooks,
            objects: objects.collect(),
        })
    }

    fn set_status(&mut self, object: &ObjectRef, sync: SyncState, health: Health, message: impl Into<String>) {
        // Conceal before cutting: half of a secret value must not show either.
        let message = shorten(&self.last_applied.veil.conceal(&message.into()));
        let status = Status {
            object: object.clone(),
            sync,
            health,
            message,
            note: String::new(),
            waits_for: None,
        };
        self.observed.statuses.insert(ObjectKey::from(object), status);
    }

    /// Records that an object waits until another one exists, is gone or is healthy.
    fn set_waiting(&mut self, object: &ObjectRef, on: &ObjectRef, message: impl Into<String>) {
        self.set_status(object, SyncState::Waiting, Health::Unknown, message);
        if let Some(status) = self.observed.statuses.get_mut(&ObjectKey::from(object)) {
            status.waits_for = Some(Box::new(on.clone()));
        }
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.stored.inventory.entries.remove(key);
        self.observed.statuses.remove(key);
        self.observed.live.remove(key);
        self.health.remove(key);
    }

    /// Tells other services' tasks which of their objects this service states too.
    fn set_claims(&self, claims: BTreeMap<String, BTreeSet<ObjectKey>>) {
        let changed = self.agent.set_claims(self.uid(), &self.name(), claims);
        for owner in changed {
            if let Some(mailbox) = self
                .agent
                .watches
                .mailbox(&farwater_fleet::ownership::service_label(&owner))
            {
                if self.agent.leaving.offers_something(&owner) {
                    mailbox.retry();
                }
                mailbox.poke();
            }
        }
    }
}

/// Owner uid → object → claimant uid → claimant's name.
type ClaimsByOwner = BTreeMap<String, BTreeMap<ObjectKey, BTreeMap<String, String>>>;

/// Objects that services state although others own them.
#[derive(Default)]
pub struct Claims {
    by_owner: std::sync::Mutex<ClaimsByOwner>,
}

impl Claims {
    /// Replaces the claims of one service. Returns the owners whose objects are concerned.
    pub fn set(&self, uid: &str, name: &str, claims: BTreeMap<String, BTreeSet<ObjectKey>>) -> Vec<String> {
        let mut by_owner = lock(&self.by_owner);
        let before = Self::owners_of(&by_owner, uid);
        for objects in by_owner.values_mut() {
            for contenders in objects.values_mut() {
                contenders.remove(uid);
            }
            objects.retain(|_, contenders| !contenders.is_empty());
        }
        for (owner, keys) in claims {
            for key in keys {
                let contenders = by_owner.entry(owner.clone()).or_default().entry(key).or_default();
                contenders.insert(uid.to_owned(), name.to_owned());
            }
        }
        by_owner.retain(|_, objects| !objects.is_empty());
        let after = Self::owners_of(&by_owner, uid);
        let owners: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        owners
            .into_iter()
            .filter(|owner| before.get(*owner) != after.get(*owner))
            .cloned()
            .collect()
    }

    fn owners_of(by_owner: &ClaimsByOwner, uid: &str) -> BTreeMap<String, BTreeSet<ObjectKey>> {
        let mut owners: BTreeMap<String, BTreeSet<ObjectKey>> = BTreeMap::new();
        for (owner, objects) in by_owner {
            for (key, _) in objects.iter().filter(|(_, contenders)| contenders.contains_key(uid)) {
                owners.entry(owner.clone()).or_default().insert(key.clone());
            }
        }
        owners
    }

    /// Objects of a service that another one states too, each with one claimant's name.
    pub fn on(&self, owner: &str) -> BTreeMap<ObjectKey, String> {
        let by_owner = lock(&self.by_owner);
        let objects = by_owner.get(owner).into_iter().flatten();
        objects
            .filter_map(|(key, contenders)| Some((key.clone(), contenders.values().next()?.clone())))
            .collect()
    }
}
