//! Deletes what left the source, and shows what waits for an approval.

use farwater_api::{
    objects::{Health, ObjectRef, SyncState},
    protocol::ServiceAccount,
    service_deployment::HeldPrune,
};
use farwater_fleet::plan::ObjectKey;
use farwater_fleet::plan::{Keep, Plan};
use farwater_fleet::prune::{ApprovedPrune, Candidate, HeldSet, PrunePlan, Purpose, Verdict};

use super::{ServiceTask, basis::Stopped};
use crate::execute::{Deleted, Executor};
use crate::preview::count_contents;

impl ServiceTask {
    /// Deletes the objects that passed the guards. They are recorded first: see [`InventoryEntry::doomed`](farwater_fleet::plan::InventoryEntry::doomed). False:
    /// superseded.
    pub(super) async fn prune(
        &mut self,
        executor: &Executor<'_>,
        plan: &Plan,
        prune: &PrunePlan,
        purpose: Purpose,
    ) -> Result<bool, Stopped> {
        let mut deletes = plan.doomed.clone();
        if prune.verdict == Verdict::Delete {
            if let Some(approved) = ApprovedPrune::of(prune) {
                self.stored.inventory.approved = Some(approved);
            }
            let newer = self.until_superseded();
            tokio::select! {
                biased;
                () = newer => return Ok(false),
                kept = self.keep_states(executor.account, prune) => kept?,
            }
            if let Some(deletion) = &mut self.stored.deletion {
                deletion.approved_plan = prune.approved.filter(|approved| *approved != prune.digest);
            }
            let going = prune.going();
            self.doom(&going);
            deletes.extend(going);
        }

        if deletes.is_empty() {
            return Ok(true);
        }
        self.save_inventory().await?;

        let results = executor.delete(&deletes, &plan.going, purpose).await;
        for candidate in &deletes {
            if let Some(deleted) = results.get(&ObjectKey::from(&candidate.object)) {
                self.record_delete(&candidate.object, deleted);
            }
        }

        if results.values().any(|deleted| matches!(deleted, Deleted::Superseded)) {
            self.spare(&deletes);
            self.save_inventory().await?;
            return Ok(false);
        }
        let is_open = matches!(prune.verdict, Verdict::Hold(_)) || prune.candidates.iter().any(|it| it.waits);
        if !is_open && results.values().all(|deleted| matches!(deleted, Deleted::Gone)) {
            self.stored.inventory.approved = None;
        }
        Ok(true)
    }

    /// Marks entries as decided, see [`InventoryEntry::doomed`](farwater_fleet::plan::InventoryEntry::doomed).
    fn doom(&mut self, candidates: &[Candidate]) {
        for candidate in candidates {
            if let Some(entry) = self
                .stored
                .inventory
                .entries
                .get_mut(&ObjectKey::from(&candidate.object))
            {
                entry.doomed = true;
            }
        }
    }

    /// Shows the result of one delete.
    fn record_delete(&mut self, object: &ObjectRef, deleted: &Deleted) {
        let key = ObjectKey::from(object);
        match deleted {
            Deleted::Gone => {
                tracing::info!(service = %self.name(), %object, "pruned");
                self.forget(&key);
            }
            Deleted::Going => {
                self.observed.live.remove(&key);
                let message = Keep::Deleting.to_string();
                self.set_status(object, SyncState::Synced, Health::Terminating, message);
            }
            Deleted::Refused(error) => {
                self.observed.live.remove(&key);
                let sync = if error.is_passing() {
                    SyncState::Waiting
                } else {
                    SyncState::Refused
                };
                self.set_status(object, sync, Health::Unknown, format!("not pruned: {error}"));
            }
            Deleted::Kept(keep) => {
                tracing::warn!(service = %self.name(), %object, %keep, "not deleted");
                self.observed.live.remove(&key);
                self.set_status(object, SyncState::Synced, Health::Unknown, keep.to_string());
            }
            Deleted::Waits(obstacle) => {
                let message = format!("its deletion waits until {obstacle} is gone");
                self.set_waiting(object, obstacle, message);
            }
            Deleted::Superseded => {}
        }
    }

    /// Call this before the report shows deletions that wait for an approval.
    pub(super) fn note_held(&mut self, prune: &PrunePlan) {
        let inventory = &mut self.stored.inventory;
        inventory.held = HeldSet::after(inventory.held.take(), prune);
        let earlier = inventory.held.as_ref().map(HeldSet::earlier).unwrap_or_default();
        self.held.prune = prune.held().map(|held| HeldPrune { earlier, ..held });
    }

    /// A newer version decides about the objects that it kept from being deleted. The same version finishes its
    /// deletions.
    fn spare(&mut self, deletes: &[Candidate]) {
        let attempted = self.progress.last.as_ref().map(|(digest, ..)| *digest);
        if attempted == Some(self.assignments.borrow().digest) {
            return;
        }
        for candidate in deletes {
            if let Some(entry) = self
                .stored
                .inventory
                .entries
                .get_mut(&ObjectKey::from(&candidate.object))
            {
                entry.doomed = false;
            }
        }
    }

    /// Counts the contents of held objects, once per plan.
    pub(super) async fn preview(&mut self, account: &ServiceAccount, prune: &PrunePlan) {
        let Some(held) = &mut self.held.prune else { return };
        let known = self.held.previewed.take().filter(|(digest, _)| *digest == held.digest);
        let contents = match known {
            Some((_, contents)) => contents,
            None => count_contents(&self.agent.kubernetes, account, &prune.candidates).await,
        };
        held.contents.clone_from(&contents);
        self.held.previewed = Some((held.digest, contents));
    }
}
