//! A deleted service: its objects are deleted, or they stay and lose our marks.

use farwater_api::{
    Digest, OWNER_ANNOTATION, SERVICE_LABEL,
    hooks::HookPhase,
    objects::{Health, Outcome, SyncState},
    protocol::ServiceAccount,
};
use farwater_fleet::{
    ownership::proven_owner,
    plan::{GroupVersionKind, Keep, Live, ObjectKey, Plan, plan_removal},
    prune::{Purpose, Verdict},
    words::counted,
};
use serde_json::json;

use super::{Ended, ServiceTask, basis::Basis};
use crate::{execute::Executor, kinds::Served, kubernetes::ApiError, messages::shorten};

impl ServiceTask {
    /// Policy Delete. The guards are those of a prune, except that an empty desired set is the purpose. Protected kinds
    /// wait for an approval, and then everything does, because the approval names the whole set.
    pub(super) async fn remove(&mut self, digest: Digest, approved: Option<Digest>) -> Ended {
        let Some(account) = self.account() else {
            return self.removed(digest).await;
        };
        self.hear_of_rules();
        self.take_in_hooks();
        self.look_up_all(&account).await;
        if self.superseded() {
            return Ended::Superseded;
        }

        self.agent.leaving.note_planned(self.uid(), digest);
        self.hear_others().await;
        if self.superseded() {
            return Ended::Superseded;
        }

        let transfers = self.transfers();
        let plan = plan_removal(
            self.uid(),
            &self.stored.inventory,
            &self.observed.live,
            approved,
            &transfers,
        );
        let (agent, service) = (self.agent.clone(), self.stored.service.clone());
        let basis = Basis {
            agent: &agent,
            service: &service,
        };
        let executor = basis.executor(&account, self.supersession());
        if !matches!(plan.prune.verdict, Verdict::Hold(_))
            && let Some(ended) = self.run_hooks_of_removal(&executor, HookPhase::PreDelete, digest).await
        {
            return ended;
        }
        match self.prune(&executor, &plan, &plan.prune, Purpose::Removal).await {
            Ok(true) => {}
            Ok(false) => return Ended::Superseded,
            Err(error) => {
                self.set_outcome(digest, Outcome::Failed, error.0);
                return Ended::Settled { retry: true };
            }
        }
        self.record_prune(&plan, &account).await;

        if self.stored.inventory.entries.is_empty() {
            return self.finish_removal(&executor, digest).await;
        }
        self.note_rest(digest).await;
        Ended::Settled { retry: true }
    }

    /// Saves and reports the objects that are still to be deleted.
    async fn note_rest(&mut self, digest: Digest) {
        if let Err(error) = self.save_inventory().await {
            return self.set_outcome(digest, Outcome::Failed, error.0);
        }
        let left = self.stored.inventory.entries.len();
        let failed = self.observed.statuses.values().any(|s| s.sync == SyncState::Refused);
        let outcome = if failed { Outcome::Failed } else { Outcome::Applying };
        let message = format!("{} still to be deleted", counted(left, "object"));
        self.set_outcome(digest, outcome, message);
    }

    /// Records which objects are gone, kept, offered to others or held, and shows it in their statuses.
    async fn record_prune(&mut self, plan: &Plan, account: &ServiceAccount) {
        self.note_held(&plan.prune);
        self.record_removal(plan);
        self.announce(std::iter::empty(), true);
        self.note_kept(plan);
        self.release_protected(plan, account).await;
        self.offer(plan);
        self.preview(account, &plan.prune).await;
        if let Some(held) = self.held.prune.clone() {
            for candidate in &plan.prune.candidates {
                let message = format!("its deletion waits for an approval: {}", held.reason);
                self.set_status(&candidate.object, SyncState::PruneHeld, Health::Unknown, message);
            }
        }
    }

    /// Runs the last hooks once no object is left.
    async fn finish_removal(&mut self, executor: &Executor<'_>, digest: Digest) -> Ended {
        if let Some(ended) = self.run_hooks_of_removal(executor, HookPhase::PostDelete, digest).await {
            return ended;
        }
        self.dismiss_hooks(executor).await;
        self.removed(digest).await
    }

    /// None: the hooks have succeeded. A failed one holds the removal. With policy Orphan no hook runs.
    async fn run_hooks_of_removal(
        &mut self,
        executor: &Executor<'_>,
        phase: HookPhase,
        digest: Digest,
    ) -> Option<Ended> {
        let (outcome, message, retry) = match self.run_farewell(executor, phase).await {
            Ok(None) => return None,
            Ok(Some(_)) if self.superseded() => return Some(Ended::Superseded),
            Ok(Some(barrier)) => (
                barrier.outcome(),
                barrier.explain(),
                self.hooks.retry || barrier.is_stuck(),
            ),
            Err(error) => (Outcome::Failed, error.0, true),
        };
        self.set_outcome(digest, outcome, shorten(&message));
        Some(Ended::Settled { retry })
    }

    /// Policy Orphan: our label and annotation are removed, the objects stay.
    pub(super) async fn orphan(&mut self, digest: Digest) -> Ended {
        let Some(account) = self.account() else {
            return self.removed(digest).await;
        };
        self.take_in_hooks();
        self.look_up_all(&account).await;

        // Stop watching, so that removing the marks doesn't count as drift.
        self.agent.watches.set_wants(
            &farwater_fleet::ownership::service_label(self.uid()),
            Default::default(),
        );
        let keys: Vec<ObjectKey> = self.stored.inventory.entries.keys().cloned().collect();
        for key in keys {
            if self.superseded() {
                return Ended::Superseded;
            }
            match self.release(&key, &account).await {
                Ok(stays) => {
                    let entry = self.stored.inventory.entries.get(&key).filter(|_| stays);
                    self.observed
                        .left_behind
                        .extend(entry.map(|entry| entry.object.clone()));
                    self.forget(&key);
                }
                Err(error) => {
                    if let Some(entry) = self.stored.inventory.entries.get(&key) {
                        let object = entry.object.clone();
                        self.set_status(
                            &object,
                            SyncState::Refused,
                            Health::Unknown,
                            format!("not released: {error}"),
                        );
                    }
                }
            }
        }

        if self.stored.inventory.entries.is_empty() {
            return self.removed(digest).await;
        }
        let saved = self.save_inventory().await;
        let left = self.stored.inventory.entries.len();
        let message = match saved {
            Ok(()) => format!("{} could not be released yet", counted(left, "object")),
            Err(error) => error.0,
        };
        self.set_outcome(digest, Outcome::Failed, message);
        Ended::Settled { retry: true }
    }

    /// Removes our marks. Returns whether there was an object that had them.
    async fn release(&self, key: &ObjectKey, account: &ServiceAccount) -> Result<bool, ApiError> {
        let live = match self.observed.live.get(key) {
            Some(Live::Present(live)) => live,
            Some(Live::Absent) => return Ok(false),
            Some(Live::Unknown(message) | Live::Forbidden(message)) => {
                return Err(ApiError::Unusable(message.clone()));
            }
            None => return Err(ApiError::Unusable("not looked up".into())),
        };
        if live.owner.as_deref().and_then(|a| proven_owner(a, key)) != Some(self.uid()) {
            return Ok(false);
        }

        let Some(entry) = self.stored.inventory.entries.get(key) else {
            return Ok(false);
        };
        let gvk = GroupVersionKind::from(&entry.object);
        let Served::As(resource) = self.agent.kinds.find(&self.agent.kubernetes, &gvk).await? else {
            return Ok(false);
        };

        let patch = json!({"metadata": {
            "uid": live.uid,
            "labels": {SERVICE_LABEL: null},
            "annotations": {OWNER_ANNOTATION: null},
        }});
        let path = resource.path(key.namespace(), key.name());
        match self.agent.kubernetes.patch(Some(account), &path, &patch).await {
            Err(e) if e.is_not_found() => Ok(false),
            other => other.map(|_| true),
        }
    }

    async fn look_up_all(&mut self, account: &ServiceAccount) {
        self.observed.live = self.basis().look_up_all(account, &self.stored.inventory).await;
    }

    /// Removes our marks from protected objects, which stay in the cluster.
    async fn release_protected(&mut self, plan: &Plan, account: &ServiceAccount) {
        for (key, keep) in plan
            .kept
            .iter()
            .filter(|(_, keep)| matches!(keep, Keep::Protected(_) | Keep::Holds(_) | Keep::HoldsStated(_)))
        {
            match self.release(key, account).await {
                Ok(stays) => {
                    tracing::warn!(service = %self.name(), object = %key, why = %keep, "stays without its service");
                    let entry = self.stored.inventory.entries.get(key).filter(|_| stays);
                    self.observed
                        .left_behind
                        .extend(entry.map(|entry| entry.object.clone()));
                    self.forget(key);
                }
                Err(error) => {
                    if let Some(entry) = self.stored.inventory.entries.get(key) {
                        let object = entry.object.clone();
                        self.set_status(
                            &object,
                            SyncState::Refused,
                            Health::Unknown,
                            format!("not released: {error}"),
                        );
                    }
                }
            }
        }
    }

    fn record_removal(&mut self, plan: &Plan) {
        for (key, keep) in &plan.kept {
            if let Some(entry) = self.stored.inventory.entries.get(key) {
                let object = entry.object.clone();
                let (health, message) = match keep {
                    Keep::Deleting => (Health::Terminating, format!("being deleted{}", self.ending(key))),
                    other => (Health::Unknown, other.to_string()),
                };
                self.set_status(&object, SyncState::Synced, health, shorten(&message));
            }
        }
        for (key, _) in &plan.forgotten {
            self.forget(key);
        }
    }

    /// Reports that nothing is left of the service, or names the objects that are.
    async fn removed(&mut self, digest: Digest) -> Ended {
        self.observed.statuses.clear();
        self.observed.remarks.clear();
        self.held.prune = None;
        self.watch_nothing();
        let agent = self.agent.clone();

        if let Err(error) = self.stored.discard(&agent.kubernetes).await {
            self.set_outcome(digest, Outcome::Failed, crate::hub::chain(&error));
            return Ended::Settled { retry: true };
        }
        if let Err(error) = agent.kept_renders.discard(&agent.kubernetes, self.uid()).await {
            self.set_outcome(digest, Outcome::Failed, crate::hub::chain(&error));
            return Ended::Settled { retry: true };
        }
        if let Err(error) = agent.sealed.discard(self.uid(), &agent.kubernetes).await {
            self.set_outcome(digest, Outcome::Failed, crate::hub::chain(&error));
            return Ended::Settled { retry: true };
        }

        self.stored.deployment = None;
        self.stored.inventory = Default::default();
        tracing::info!(service = %self.name(), "removed");
        let left = std::mem::take(&mut self.observed.left_behind);
        let names: Vec<String> = left.iter().map(ToString::to_string).collect();
        let message = match names.as_slice() {
            [] => String::new(),
            names => shorten(&format!("{} stay in the cluster: {}", names.len(), names.join(", "))),
        };
        for object in &left {
            self.set_status(object, SyncState::Synced, Health::Unknown, "stays without a service");
        }
        self.set_outcome(digest, Outcome::Removed, message);
        Ended::Removed
    }

    fn watch_nothing(&self) {
        self.agent.watches.set_wants(
            &farwater_fleet::ownership::service_label(self.uid()),
            Default::default(),
        );
        self.set_claims(Default::default());
    }
}
