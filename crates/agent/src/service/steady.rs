//! Between two attempts: watches report changes, and health is read after them.

use std::{cmp::Ordering, collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use farwater_api::{
    objects::{Health, SyncState},
    protocol::ServiceAccount,
};
use farwater_fleet::{
    health::rules::Rules,
    plan::{GroupVersionKind, Live, LiveObject, ObjectKey, Writer},
};
use futures::{StreamExt as _, stream};
use tokio::time::{Instant, sleep_until};

use super::{ServiceTask, basis::Basis};
use crate::{
    Agent,
    judge::{Judgement, judge},
    kubernetes::{ApiError, Resource},
    sync::jitter,
    watches::{Event, Listed, Pending},
};

/// Pause after an event, so that the events of one write cause one read.
const SETTLE: Duration = Duration::from_millis(100);
/// Pause between two reads of one object's health. It doubles while nothing changes.
const HEALTH_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_HEALTH_PAUSE: Duration = Duration::from_secs(30);
/// Pause between two lookups of kinds that can't be watched, and of the cluster's Secrets that templates use.
const BLIND_PAUSE: Duration = Duration::from_secs(300);
const PARALLEL_READS: usize = 8;

/// Objects whose health is to be read, each when it is due.
#[derive(Default)]
pub struct HealthQueue {
    due: BTreeMap<ObjectKey, Instant>,
    pauses: BTreeMap<ObjectKey, (Instant, Duration)>,
}

impl HealthQueue {
    pub fn remove(&mut self, key: &ObjectKey) {
        self.due.remove(key);
        self.pauses.remove(key);
    }

    pub fn ask_now(&mut self, key: ObjectKey) {
        self.due.insert(key, Instant::now());
    }

    /// Reads the object once more after that time, whatever happens until then.
    pub fn ask_within(&mut self, key: ObjectKey, time: Duration) {
        let at = Instant::now() + time;
        self.due
            .entry(key)
            .and_modify(|due| *due = (*due).min(at))
            .or_insert(at);
    }

    pub fn ask(&mut self, key: &ObjectKey, now: Instant) {
        let earliest = self
            .pauses
            .get(key)
            .map_or(now + SETTLE, |(last, pause)| (*last + *pause).max(now + SETTLE));
        self.due
            .entry(key.clone())
            .and_modify(|due| *due = (*due).min(earliest))
            .or_insert(earliest);
    }

    fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    fn take_due(&mut self, now: Instant) -> Vec<ObjectKey> {
        let due: Vec<ObjectKey> = self
            .due
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &due {
            self.due.remove(key);
        }
        due
    }

    /// Reads an object less often if it changes all the time without a change of health.
    fn note(&mut self, key: &ObjectKey, now: Instant, changed: bool) {
        let pause = match self.pauses.get(key) {
            Some((_, pause)) if !changed => (*pause * 2).min(LONGEST_HEALTH_PAUSE),
            _ => HEALTH_PAUSE,
        };
        self.pauses.insert(key.clone(), (now, pause));
    }
}

impl ServiceTask {
    /// Waits for a reason to try again. `Break`: the process ends.
    pub(super) async fn steady(&mut self, retry_at: Option<Instant>) -> ControlFlow<()> {
        let mut look_at = Instant::now() + jitter(BLIND_PAUSE, 0.2);
        loop {
            let now = Instant::now();
            let attempt_at = [retry_at, self.fights.next(now)].into_iter().flatten().min();
            let health_at = self.health.next();
            let hooks_at = self.hooks.next();
            self.follow_causes();
            let causes_at = self.causes.next();
            tokio::select! {
                biased;
                changed = self.assignments.changed() => {
                    return match changed {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(_) => ControlFlow::Break(()),
                    };
                }
                () = self.mailbox.arrived() => {
                    tokio::time::sleep(SETTLE).await;
                    let pending = self.mailbox.take();
                    if self.digest_events(pending).await {
                        return ControlFlow::Continue(());
                    }
                }
                () = sleep_until(attempt_at.unwrap_or(now)), if attempt_at.is_some() => {
                    return ControlFlow::Continue(());
                }
                () = sleep_until(self.progress.window_at.unwrap_or(now)), if self.progress.window_at.is_some() => {
                    if self.look_at_window() {
                        return ControlFlow::Continue(());
                    }
                }
                () = sleep_until(look_at) => {
                    // Objects without a watch must be looked up.
                    if self.last_applied.reads_cluster || self.is_blind() {
                        return ControlFlow::Continue(());
                    }
                    look_at = Instant::now() + jitter(BLIND_PAUSE, 0.2);
                }
                () = sleep_until(hooks_at.unwrap_or(now)), if hooks_at.is_some() => {
                    if self.look_at_hooks().await {
                        return ControlFlow::Continue(());
                    }
                    self.send_report();
                }
                Some((key, looked)) = self.causes.ended() => {
                    if self.hear_cause(&key, looked) {
                        return ControlFlow::Continue(());
                    }
                }
                () = sleep_until(causes_at.unwrap_or(now)), if causes_at.is_some() => self.begin_looks(),
                () = sleep_until(health_at.unwrap_or(now)), if health_at.is_some() => {
                    if self.look_at_health().await {
                        return ControlFlow::Continue(());
                    }
                }
            }
        }
    }

    /// Reads the health of the objects that are due, and reports it. Returns whether a new attempt is needed.
    async fn look_at_health(&mut self) -> bool {
        let due = self.health.take_due(Instant::now());
        self.read_health(due).await;
        if self.pass_barrier() {
            return true;
        }
        self.follow_health();
        self.send_report();
        false
    }

    /// Whether changes of some objects are not observed.
    fn is_blind(&self) -> bool {
        let Some(account) = self.account() else { return false };
        self.stored.inventory.entries.iter().any(|(key, entry)| {
            let resource = self.agent.kinds.get(&GroupVersionKind::from(&entry.object));
            resource.is_some_and(|r| !self.agent.watches.covers(&account, &r, key.namespace()))
        })
    }

    /// Processes events. Returns whether a new attempt is needed.
    async fn digest_events(&mut self, pending: Pending) -> bool {
        for asker in pending.askers {
            // The asker may no longer wait.
            let _ = asker.send(self.snapshot());
        }
        if pending.rules {
            self.hear_of_rules();
        }
        let mut drifted = pending.retry;
        if pending.rules && self.progress.window_at.is_some() {
            // A waiting change may begin now.
            drifted |= self.look_at_window();
        }
        let (mut left, mut last) = (Vec::new(), BTreeMap::new());
        self.hear_of_hooks(pending.events.keys());
        for listed in &pending.lists {
            left.extend(missing_from(listed, &self.observed.live));
        }
        for (key, event) in pending.events {
            if !self.stored.inventory.entries.contains_key(&key) {
                continue;
            }
            match event {
                Event::Seen(live, writer) => {
                    left.retain(|other| *other != key);
                    drifted |= self.see(&key, live, writer);
                }
                Event::Left(live) => {
                    last.insert(key.clone(), live);
                    left.push(key);
                }
            }
        }
        drifted |= self.look_again(left, &last).await;
        if pending.poked || !drifted {
            self.send_report();
        }
        drifted
    }

    /// Stores an observed state of our object, and its last other writer. Returns whether the object drifted.
    fn see(&mut self, key: &ObjectKey, live: LiveObject, writer: Option<Box<Writer>>) -> bool {
        if let Some(Live::Present(known)) = self.observed.live.get(key)
            && known.uid == live.uid
            && !is_newer(&live.resource_version, &known.resource_version)
        {
            return false;
        }

        let Some(entry) = self.stored.inventory.entries.get(key) else {
            return false;
        };
        let object = entry.object.clone();
        // A person excluded the object, or ended that.
        let is_turned = matches!(
            self.observed.live.get(key),
            Some(Live::Present(known)) if known.uid == live.uid && known.protection.left != live.protection.left
        );

        let as_applied = entry.uid.as_ref() == Some(&live.uid) && entry.fields == live.fields && live.fields.is_some();
        let deleting = live.deleting;
        let sync = self.observed.statuses.get(key).map(|s| s.sync);
        let (desired, drifted) = (sync == Some(SyncState::Synced), sync == Some(SyncState::Drifted));
        self.observed.live.insert(key.clone(), Live::Present(live));
        if deleting {
            let message = self
                .observed
                .statuses
                .get(key)
                .map_or_else(String::new, |s| s.message.clone());
            let sync = self.observed.statuses.get(key).map_or(SyncState::Synced, |s| s.sync);
            self.set_status(&object, sync, Health::Terminating, message);
            return false;
        }

        if self.may_change(&object.group, &object.kind) {
            // A Job may go soon after its end.
            match is_job(key) {
                true => self.health.ask_now(key.clone()),
                false => self.health.ask(key, Instant::now()),
            }
        }
        if is_turned || (drifted && as_applied) {
            return true;
        }
        if !as_applied && desired && !self.last_applied.unobserved.contains(key) {
            let by = writer
                .as_ref()
                .map_or_else(|| "unknown".to_owned(), ToString::to_string);
            tracing::info!(service = %self.name(), object = %key, by, "changed by others");
            self.fights.note(key, Instant::now(), writer);
            return true;
        }
        false
    }

    /// Looks up objects that have left the watch: they were deleted, or lost our label. Only a GET shows which, and a
    /// failed GET counts as "unknown". `last`: the objects as they were at that event. Returns whether any drifted.
    async fn look_again(&mut self, left: Vec<ObjectKey>, last: &BTreeMap<ObjectKey, LiveObject>) -> bool {
        let Some(account) = self.account().filter(|_| !left.is_empty()) else {
            return false;
        };
        let (agent, service) = (self.agent.clone(), self.stored.service.clone());
        let known = |key: ObjectKey| {
            let entry = self.stored.inventory.entries.get(&key)?;
            Some((key, GroupVersionKind::from(&entry.object)))
        };
        let left: Vec<_> = left.into_iter().filter_map(known).collect();

        let basis = Basis {
            agent: &agent,
            service: &service,
        };
        let lookup = basis.lookup(&account);
        let looks: Vec<_> = left.iter().map(|(key, gvk)| lookup.find(gvk, key)).collect();
        let mut answers = stream::iter(looks).buffered(PARALLEL_READS);
        let newer = self.supersession();

        let mut drifted = false;
        for (key, _) in &left {
            let answer = tokio::select! {
                biased;
                () = newer.comes() => None,
                answer = answers.next() => answer,
            };
            match answer {
                Some((Live::Present(live), writer)) => {
                    // Ignore its version, because the watch has seen it leave.
                    self.observed.live.remove(key);
                    drifted |= self.see(key, live, writer);
                }
                Some((missing, _)) => {
                    self.note_end(key, last.get(key));
                    self.miss(key, missing);
                    drifted = true;
                }
                // The attempt of the newer version looks it up.
                None => {
                    self.note_end(key, last.get(key));
                    self.observed.live.remove(key);
                    drifted = true;
                }
            }
        }
        drifted
    }

    /// Records whether a deleted Job was complete. A Job that was not complete did not go by itself.
    fn note_end(&mut self, key: &ObjectKey, last: Option<&LiveObject>) {
        let (Some(last), Some(entry)) = (last, self.stored.inventory.entries.get_mut(key)) else {
            return;
        };
        if is_job(key) && entry.uid.as_ref() == Some(&last.uid) {
            entry.done |= last.completed;
            entry.incomplete = !entry.done;
        }
    }

    fn miss(&mut self, key: &ObjectKey, missing: Live) {
        tracing::info!(service = %self.name(), object = %key, "gone or not readable");
        let synced = self
            .observed
            .statuses
            .get(key)
            .is_some_and(|s| s.sync == SyncState::Synced && s.health != Health::Terminating);
        // An object that can't be read may exist. A deletion leaves no writer's name.
        let is_done = self.stored.inventory.entries.get(key).is_some_and(|entry| entry.done);
        if synced && !is_done && missing == Live::Absent {
            self.fights.note(key, Instant::now(), None);
        }
        self.observed.live.insert(key.clone(), missing);
    }

    /// Reads the health of objects that were found as desired after a start, before the first report.
    pub(super) async fn read_first_health(&mut self) {
        let due = self.health.take_due(Instant::now());
        self.read_health(due).await;
    }

    async fn read_health(&mut self, keys: Vec<ObjectKey>) {
        let Some(account) = self.account() else { return };
        let agent = self.agent.clone();
        let reads = keys.iter().filter_map(|key| {
            let entry = self.stored.inventory.entries.get(key)?;
            let resource = agent.kinds.get(&GroupVersionKind::from(&entry.object))?;
            Some((key.clone(), resource))
        });
        let rules = Arc::clone(&self.judges.rules);
        let reads: Vec<_> = reads
            .map(|(key, resource)| evaluate(&agent, &account, &rules, key, resource))
            .collect();
        let answers = stream::iter(reads).buffer_unordered(PARALLEL_READS).collect::<Vec<_>>();
        let answers = tokio::select! {
            biased;
            () = self.until_superseded() => None,
            answers = answers => Some(answers),
        };

        let now = Instant::now();
        let Some(answers) = answers else {
            self.health.due.extend(keys.into_iter().map(|key| (key, now)));
            return;
        };
        let mut done = false;
        for (key, answer) in answers {
            done |= self.hear_health(&key, answer, now);
        }

        // Save before the Job is deleted: nothing else shows that it has run.
        if done && let Err(error) = self.save_inventory().await {
            tracing::warn!(service = %self.name(), error = error.0, "the finished work could not be saved");
        }
    }

    /// Takes in an object's health. Returns whether the inventory must be saved.
    fn hear_health(&mut self, key: &ObjectKey, answer: Result<Judgement, ApiError>, now: Instant) -> bool {
        let Some(status) = self.observed.statuses.get_mut(key) else {
            return false;
        };
        let mut done = false;
        let before = (status.health, status.message.clone());
        match answer {
            Ok(Judgement {
                health,
                message,
                again,
                is_done,
            }) => {
                status.health = health;
                if let Some(entry) = self.stored.inventory.entries.get_mut(key) {
                    let has_failed = is_job(key) && health == Health::Failed;
                    done = (is_done && !entry.done) || (has_failed && !entry.incomplete);
                    entry.done |= is_done;
                    entry.incomplete = !entry.done && (entry.incomplete || has_failed);
                }
                if status.sync == SyncState::Synced {
                    status.message = crate::messages::shorten(&message);
                }
                if let Some(again) = again {
                    self.health.ask_within(key.clone(), again);
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                status.health = Health::Unknown;
                status.message = error.to_string();
                self.health.due.insert(key.clone(), now + LONGEST_HEALTH_PAUSE);
            }
        }
        let changed = before != (status.health, status.message.clone());
        if changed {
            self.causes.hasten(key);
        }
        self.health.note(key, now, changed);
        done
    }
}

fn is_job(key: &ObjectKey) -> bool {
    (key.group(), key.kind()) == ("batch", "Job")
}

async fn evaluate(
    agent: &Agent,
    account: &ServiceAccount,
    rules: &Rules,
    key: ObjectKey,
    resource: Resource,
) -> (ObjectKey, Result<Judgement, ApiError>) {
    let object = agent
        .kubernetes
        .get(Some(account), &resource.path(key.namespace(), key.name()), false)
        .await;
    (
        key,
        object.map(|object| judge(&agent.kinds, rules, &resource.gvk(), &object)),
    )
}

/// Known objects of this kind and place that are missing from the list, unless they are newer than it.
fn missing_from(listed: &Listed, known: &BTreeMap<ObjectKey, Live>) -> Vec<ObjectKey> {
    let missing = known.iter().filter(|(key, live)| {
        matches!(live, Live::Present(live) if order(&live.resource_version, &listed.version) != Some(Ordering::Greater))
            && key.group() == listed.group
            && key.kind() == listed.kind
            && (listed.namespace.is_empty() || listed.namespace == key.namespace())
            && !listed.present.contains(*key)
    });
    missing.map(|(key, _)| key.clone()).collect()
}

/// Compares resourceVersions. Within one kind they are ordered numbers since Kubernetes 1.35, and were in practice
/// before.
fn order(version: &str, other: &str) -> Option<Ordering> {
    Some(version.parse::<u64>().ok()?.cmp(&other.parse().ok()?))
}

fn is_newer(version: &str, than: &str) -> bool {
    order(version, than).map_or_else(|| version != than, Ordering::is_gt)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_was_written_after_a_list_is_not_missing_from_it() {
        let key = |name: &str| ObjectKey::new("", "ConfigMap", "a", name);
        let present = |version: &str| {
            Live::Present(LiveObject {
                resource_version: version.to_owned(),
                ..LiveObject::default()
            })
        };
        let known = BTreeMap::from([
            (key("listed"), present("9")),
            (key("gone"), present("10")),
            (key("newer"), present("11")),
            (key("strange"), present("b")),
            (key("unknown"), Live::Absent),
            (ObjectKey::new("", "ConfigMap", "b", "elsewhere"), present("1")),
            (ObjectKey::new("", "Secret", "a", "gone"), present("1")),
        ]);
        let listed = |version: &str| Listed {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: "a".to_owned(),
            present: BTreeSet::from([key("listed")]),
            version: version.to_owned(),
        };
        assert_eq!(missing_from(&listed("10"), &known), [key("gone"), key("strange")]);
        // If it is unknown which is newer, a lookup decides.
        assert_eq!(
            missing_from(&listed("x"), &known),
            [key("gone"), key("newer"), key("strange")]
        );
    }
}
