//! Records the results of an attempt for the report.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::{
    deletion::Deletion,
    objects::{Health, ObjectRef, SyncState},
    protocol::Deployment,
};
use farwater_fleet::{
    plan::{
        Cause, Change, Keep, Live, LiveObject, ObjectKey, Plan, Resolved, ResolvedObject, SkipReason, Wait,
        differences::explain_overruled,
    },
    prune::PrunePlan,
};

use super::{ServiceTask, basis::origin, leaving::claims};
use crate::{
    execute::{Applied, Executor, Inspected, Notice},
    judge::Judgement,
};

/// The objects of a source, by name.
pub(super) type Objects<'a> = BTreeMap<ObjectKey, &'a ResolvedObject>;

impl ServiceTask {
    /// Stores the deletion of objects that could not be recreated, so that it can be undone.
    pub(super) fn record_deletion(&mut self, lost: Option<Deletion>) {
        self.stored.deletion = lost.or(self.stored.deletion.take());
    }

    pub(super) fn record_results(
        &mut self,
        objects: &Objects<'_>,
        changes: &[&Change],
        results: &BTreeMap<ObjectKey, Applied>,
    ) {
        for change in changes {
            let (Some(object), Some(result)) = (objects.get(&change.object), results.get(&change.object)) else {
                continue;
            };
            match result {
                Applied::Done { live, health, notice } => {
                    self.record_applied(object, change.cause, live, health, notice)
                }
                Applied::Refused(message) => {
                    // A field may be named by its key, which may be secret.
                    let error = self.last_applied.veil.conceal(message);
                    tracing::warn!(service = %self.name(), object = %object.object, error, "refused");
                    // Only a lookup shows its present state.
                    self.observed.live.remove(&change.object);
                    self.set_status(&object.object, SyncState::Refused, Health::Unknown, message.clone());
                }
                Applied::Waiting(message) => {
                    self.observed.live.remove(&change.object);
                    self.set_status(&object.object, SyncState::Waiting, Health::Unknown, message.clone());
                }
                Applied::Superseded => {}
            }
        }
    }

    fn record_applied(
        &mut self,
        object: &ResolvedObject,
        cause: Cause,
        live: &LiveObject,
        judgement: &Judgement,
        notice: &Notice,
    ) {
        tracing::debug!(service = %self.name(), object = %object.object, ?cause, "applied");
        let key = object.key();
        if let Some(entry) = self.stored.inventory.entries.get_mut(&key) {
            entry.uid = Some(live.uid.clone());
            entry.hash = Some(object.hash);
            entry.fields = live.fields;
            (entry.done, entry.incomplete) = (judgement.is_done, false);
            entry.overruled.clone_from(&notice.overruled);
        }
        self.observed.live.insert(key.clone(), Live::Present(live.clone()));
        let mut message = judgement.message.clone();
        if cause.is_adoption() {
            tracing::info!(service = %self.name(), object = %object.object, "adopted");
            if message.is_empty() {
                message = "adopted: it existed before, owned by no service".to_owned();
            }
        }
        self.set_status(&object.object, SyncState::Synced, judgement.health, message);
        self.set_note(&key, Some(notice));
        if let Some(again) = judgement.again {
            self.health.ask_within(key, again);
        }
    }

    pub(super) fn record_unchanged(&mut self, objects: &Objects<'_>, plan: &Plan) {
        for key in &plan.unchanged {
            let Some(object) = objects.get(key) else { continue };
            let is_done = self.stored.inventory.entries.get(key).is_some_and(|entry| entry.done);
            if matches!(self.observed.live.get(key), Some(Live::Absent)) {
                // A failed Job may have gone too, so an end that was not seen is no success: later waves wait for it.
                let (health, message) = match is_done {
                    true => (Health::Current, "completed, and gone by its ttlSecondsAfterFinished"),
                    false => (
                        Health::Unknown,
                        "gone before its result was seen, and not run again for this manifest: change the manifest to run it again",
                    ),
                };
                self.set_status(&object.object, SyncState::Synced, health, message);
                continue;
            }
            self.set_as_desired(&object.object, true);
        }
    }

    /// Records an object as desired. If `may_be_read`, its health is read.
    fn set_as_desired(&mut self, object: &ObjectRef, may_be_read: bool) {
        let key = ObjectKey::from(object);
        match self.observed.statuses.get(&key) {
            // The last status of an unknown object may say that it left the source, which now states it again.
            Some(status) if status.sync == SyncState::Synced && status.health != Health::Unknown => {}
            _ if may_be_read && self.may_change(&object.group, &object.kind) => {
                self.set_status(object, SyncState::Synced, Health::Unknown, "");
                self.set_note(&key, None);
                self.health.ask_now(key);
            }
            _ => {
                self.set_status(object, SyncState::Synced, Health::Current, "");
                self.set_note(&key, None);
            }
        }
    }

    /// Records the differences of drifted objects that are not corrected.
    pub(super) async fn record_drift(&mut self, executor: &Executor<'_>, objects: &Objects<'_>, plan: &Plan) {
        for key in &plan.drifted {
            let Some(object) = objects.get(key) else { continue };
            let (health, message) = match executor.inspect(object).await {
                Ok(Inspected::Same(live)) => {
                    if let Some(entry) = self.stored.inventory.entries.get_mut(key) {
                        entry.fields = live.fields;
                    }
                    self.observed.live.insert(key.clone(), Live::Present(live));
                    self.set_status(&object.object, SyncState::Synced, Health::Unknown, "");
                    self.set_note(key, None);
                    self.health.ask_now(key.clone());
                    continue;
                }
                Ok(Inspected::Differs { live, health, fields }) => {
                    self.observed.live.insert(key.clone(), Live::Present(live));
                    (health, format!("others changed it: {fields}"))
                }
                Ok(Inspected::Gone) => (Health::Unknown, "others deleted it".to_owned()),
                Err(error) => (
                    Health::Unknown,
                    format!("others changed it; the differences are unknown: {error}"),
                ),
            };
            let drift = object.options.drift;
            self.set_status(
                &object.object,
                SyncState::Drifted,
                health,
                format!("{message}; it stays so: its drift mode is {drift:?}"),
            );
        }
    }

    /// Records remarks that are reported whatever happens to the objects: why they are left alone, and options without
    /// effect.
    pub(super) fn record_remarks(&mut self, objects: &Objects<'_>, plan: &Plan) {
        let remarks = objects
            .iter()
            .filter_map(|(key, object)| Some((key.clone(), object.options.remarks()?)));
        let left = plan
            .skipped
            .iter()
            .filter(|skip| matches!(skip.reason, SkipReason::Left(_)));
        let left = left.map(|skip| (ObjectKey::from(&skip.object), skip.reason.to_string()));
        self.observed.remarks = remarks.chain(left).collect();
    }

    pub(super) fn record_skips(&mut self, plan: &Plan) {
        for skip in &plan.skipped {
            let sync = match &skip.reason {
                SkipReason::Refused(_) => SyncState::Refused,
                SkipReason::Waiting(_) => SyncState::Waiting,
                // If this service never had the object, its health is unknown, and nothing waits for it.
                SkipReason::Left(_) => {
                    let key = ObjectKey::from(&skip.object);
                    let is_there = matches!(self.observed.live.get(&key), Some(Live::Present(_)));
                    let is_ours = self.stored.inventory.entries.contains_key(&key);
                    self.set_as_desired(&skip.object, is_there && is_ours);
                    continue;
                }
            };
            let key = ObjectKey::from(&skip.object);
            let is_fought = matches!(skip.reason, SkipReason::Waiting(Wait::Fight(_)));
            // In a fight, the fields that were last taken over show what it is about.
            let note = self
                .observed
                .statuses
                .get(&key)
                .filter(|_| is_fought)
                .map(|status| status.note.clone());
            self.set_status(&skip.object, sync, Health::Unknown, skip.reason.to_string());
            if let (Some(note), Some(status)) = (note, self.observed.statuses.get_mut(&key)) {
                status.note = note;
            }
        }
    }

    /// Ends the claims on objects that were taken over, which informs their former owners.
    pub(super) fn record_claims(&mut self, plan: &Plan, results: &BTreeMap<ObjectKey, Applied>) {
        let mut offered = self.transfers().offered;
        offered.retain(|key, _| !matches!(results.get(key), Some(Applied::Done { .. })));
        self.set_claims(claims(plan, &offered));
    }

    pub(super) fn record_leaving(
        &mut self,
        plan: &Plan,
        prune: &PrunePlan,
        resolved: &Resolved,
        deployment: &Deployment,
    ) {
        if let Some(held) = self.held.prune.clone() {
            tracing::warn!(service = %self.name(), count = held.count, reason = held.reason, "prune is held");
            for candidate in &prune.candidates {
                let message = format!("left the source; its deletion waits for an approval: {}", held.reason);
                self.set_status(&candidate.object, SyncState::PruneHeld, Health::Unknown, message);
                self.health.ask_now(ObjectKey::from(&candidate.object));
            }
        }
        for (key, keep) in &plan.kept {
            if let Some(entry) = self.stored.inventory.entries.get(key) {
                let object = entry.object.clone();
                let message = format!("{keep}{}", self.ending(key));
                match keep {
                    Keep::Deleting => self.set_status(&object, SyncState::Synced, Health::Terminating, message),
                    Keep::Lookup(_) | Keep::Claimed(_) => {
                        self.set_status(&object, SyncState::Synced, Health::Unknown, message);
                    }
                    // The object stays, and its health is read like that of any other object.
                    _ => {
                        self.set_status(&object, SyncState::Synced, Health::Unknown, "");
                        self.add_note(key, message);
                        self.health.ask_now(key.clone());
                    }
                }
            }
        }
        for (key, why) in &plan.forgotten {
            tracing::info!(service = %self.name(), object = %key, ?why, "no longer in the inventory");
            self.forget(key);
        }

        // Drop objects from the report that the source no longer states and the inventory never had.
        let stated: BTreeSet<&ObjectKey> = resolved.stated_keys().collect();
        let entries = &self.stored.inventory.entries;
        let skipped: BTreeSet<ObjectKey> = plan.skipped.iter().map(|s| ObjectKey::from(&s.object)).collect();
        self.observed
            .statuses
            .retain(|key, _| stated.contains(key) || entries.contains_key(key) || skipped.contains(key));

        let leaving = entries.keys().any(|key| !stated.contains(key));
        let unfinished = self
            .observed
            .statuses
            .values()
            .any(|s| !matches!(s.sync, SyncState::Synced | SyncState::Drifted));
        if resolved.complete && !leaving && !unfinished {
            let inventory = &mut self.stored.inventory;
            inventory.baseline = inventory.entries.len();
            inventory.held = None;
            inventory.origin = Some(origin(deployment).or(inventory.origin.as_ref()));
        }
    }

    /// Since when an object is being deleted, and what the deletion waits for. Empty: it is not.
    pub(super) fn ending(&self, key: &ObjectKey) -> String {
        match self.observed.live.get(key) {
            Some(Live::Present(LiveObject {
                ending: Some(ending), ..
            })) => format!(" {ending}"),
            _ => String::new(),
        }
    }

    /// Sets the message that an object has beside its health.
    fn add_note(&mut self, key: &ObjectKey, note: String) {
        if let Some(status) = self.observed.statuses.get_mut(key) {
            status.note = note;
        }
    }

    /// Records the observations of an apply: fields taken from other managers, and fields that were changed on the way.
    fn set_note(&mut self, key: &ObjectKey, notice: Option<&Notice>) {
        let taken = notice.and_then(|notice| notice.taken.as_ref());
        let taken = taken.map(|fields| format!("took fields of others: {fields}"));
        let whole = notice.and_then(|notice| notice.whole.clone());
        let entry = self
            .stored
            .inventory
            .entries
            .get(key)
            .filter(|entry| !entry.overruled.is_empty());
        let overruled = entry.map(|entry| explain_overruled(&entry.overruled));
        if let Some(status) = self.observed.statuses.get_mut(key) {
            status.note = taken
                .into_iter()
                .chain(whole)
                .chain(overruled)
                .collect::<Vec<_>>()
                .join("; ");
        }
    }
}
