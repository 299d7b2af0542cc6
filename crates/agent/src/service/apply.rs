//! One attempt to apply an entry: fetch, read, look up, plan, execute, remember.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::SystemTime,
};

use farwater_api::{
    Digest,
    apply_options::DriftMode,
    objects::{Health, ObjectRef, Outcome, SyncState},
    protocol::Deployment,
};
use farwater_fleet::{
    incomplete::describe_incomplete,
    plan::{
        Cause, Change, GroupVersionKind, InventoryEntry, ObjectKey, Plan, Resolved, SkipReason, Stage, baseline,
        hold_reasons, options::ObjectOptions,
    },
    prune::{self, Generated, Guards, HoldReason, PrunePlan, Purpose},
};
use tokio::time::Instant;

use super::{
    Barrier, Ended, Note, ServiceTask,
    basis::{Basis, Known, Stopped, origin, remembered, spare_begun},
    record::Objects,
};
use crate::{
    bundles::Shelf,
    execute::{Applied, Executor},
    hub::chain,
    messages::shorten,
    sync::lock,
    watches::Want,
};

impl ServiceTask {
    /// `note`: added to the report of an attempt that completes.
    pub(super) async fn apply(&mut self, digest: Digest, deployment: &Deployment, note: Option<Note>) -> Ended {
        let start = Instant::now();
        let begun = SystemTime::now();
        self.hooks.is_held = note.is_some();
        self.take_up_rules(&deployment.health);
        if let Err(Stopped(message)) = self.reconsider(deployment).await {
            return self.fail(digest, message);
        }

        let (resolved, errors) = match self.prepare(deployment).await {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ended::Superseded,
            Err(Stopped(message)) => {
                tracing::warn!(service = %self.name(), error = message, "can't begin");
                self.step("download", begun, Some(&message));
                return self.fail(digest, message);
            }
        };

        (self.last_applied.reads_cluster, self.last_applied.veil) = (resolved.reads_cluster, resolved.veil.clone());
        let read = start.elapsed();
        self.step("download", begun, None);
        let begun = SystemTime::now();
        let newer = self.until_superseded();
        tokio::select! {
            biased;
            () = newer => return Ended::Superseded,
            () = self.look_up(deployment, &resolved) => {}
        }

        let looked_up = start.elapsed();
        let Some(plan) = self.decide_plan(digest, deployment, &resolved).await else {
            return Ended::Superseded;
        };
        tracing::debug!(service = %self.name(), ?read, ?looked_up, planned = ?start.elapsed(), "planned");
        self.step("plan", begun, None);

        let begun = SystemTime::now();
        match self.execute(deployment, &resolved, &plan).await {
            Ok(true) => self.step("apply", begun, None),
            Ok(false) => return Ended::Superseded,
            Err(Stopped(message)) => {
                tracing::warn!(service = %self.name(), error = message, "can't go on");
                self.step("apply", begun, Some(&message));
                return self.fail(digest, message);
            }
        }
        self.complete(digest, deployment, (&resolved, &errors), &plan, note)
            .await
    }

    /// The last phase of an attempt: undo, the hooks after it, watches, and the report.
    async fn complete(
        &mut self,
        digest: Digest,
        deployment: &Deployment,
        (resolved, errors): (&Resolved, &[String]),
        plan: &Plan,
        note: Option<Note>,
    ) -> Ended {
        match self.undo(deployment).await {
            Ok(None) => {}
            Ok(Some(ended)) => return ended,
            Err(Stopped(message)) => {
                tracing::warn!(service = %self.name(), error = message, "can't undo");
                return self.fail(digest, message);
            }
        }

        self.read_first_health().await;
        if let Err(Stopped(message)) = self.close_hooks(deployment, resolved, plan).await {
            return self.fail(digest, message);
        }

        self.watch(deployment);
        let retry = self.conclude(digest, resolved, errors, note);
        let is_settled = self.settle_documents(deployment).await;
        Ended::Settled {
            retry: retry || !is_settled,
        }
    }

    fn fail(&mut self, digest: Digest, message: String) -> Ended {
        self.set_outcome(digest, Outcome::Failed, message);
        Ended::Settled { retry: true }
    }

    /// Returns the rest of a begun prune to the guards if the deployment has changed, e.g. by another version, a hold
    /// or a freeze, even if the earlier attempt ended early. Saved before anything else is.
    async fn reconsider(&mut self, deployment: &Deployment) -> Result<(), Stopped> {
        match spare_begun(&mut self.stored.inventory, self.stored.deployment.as_ref(), deployment) {
            true => self.save_inventory().await,
            false => Ok(()),
        }
    }

    /// A part of the delivery's trace.
    fn step(&self, name: &'static str, begun: SystemTime, error: Option<&str>) {
        if let Some(rollout) = &self.rollout {
            let error = error.map(|error| self.last_applied.veil.conceal(error));
            rollout.step(name, begun, error.as_deref());
        }
    }

    /// The bundle's objects, ready to send. None: superseded.
    async fn prepare(&self, deployment: &Deployment) -> Result<Option<(Resolved, Vec<String>)>, Stopped> {
        let basis = self.basis();
        tokio::select! {
            biased;
            () = self.until_superseded() => Ok(None),
            read = basis.read_source(deployment, self.before(), Shelf::Kept) => read.map(Some),
        }
    }

    async fn look_up(&mut self, deployment: &Deployment, resolved: &Resolved) {
        let basis = Basis {
            agent: &self.agent,
            service: &self.stored.service,
        };
        let account = &deployment.ceiling.service_account;
        basis
            .look_up(account, &self.stored.inventory, resolved, &mut self.observed.live)
            .await;
    }

    pub(super) fn basis(&self) -> Basis<'_> {
        Basis {
            agent: &self.agent,
            service: &self.stored.service,
        }
    }

    /// Plans, and plans again with the newest statements of other services if objects are to be deleted. None:
    /// superseded.
    async fn decide_plan(&mut self, digest: Digest, deployment: &Deployment, resolved: &Resolved) -> Option<Plan> {
        let plan = self.make_plan(deployment, resolved).await;
        self.declare(digest, resolved, &plan);
        if plan.prune.candidates.is_empty() {
            return Some(plan);
        }

        self.hear_others().await;
        if self.superseded() {
            return None;
        }
        let plan = self.make_plan(deployment, resolved).await;
        self.note_kept(&plan);
        Some(plan)
    }

    async fn make_plan(&self, deployment: &Deployment, resolved: &Resolved) -> Plan {
        let cooling = self.fights.cooling(Instant::now());
        let known = Known {
            inventory: &self.stored.inventory,
            live: &self.observed.live,
            cooling: &cooling,
        };
        self.basis().make_plan(deployment, resolved, known).await
    }

    /// False: superseded.
    async fn execute(&mut self, deployment: &Deployment, resolved: &Resolved, plan: &Plan) -> Result<bool, Stopped> {
        self.remember_intent(deployment, resolved, plan).await?;
        // Not for a deployment that is only kept while a newer one waits.
        if !self.hooks.is_held {
            self.progress.begun = self.progress.last.as_ref().map(|(digest, ..)| *digest);
            lock(&self.agent.running).insert(self.uid().to_owned(), deployment.bundle);
        }

        let (agent, service) = (self.agent.clone(), self.stored.service.clone());
        let basis = Basis {
            agent: &agent,
            service: &service,
        };
        let account = &deployment.ceiling.service_account;
        let rules = Arc::clone(&self.judges.rules);
        let executor = Executor {
            rules,
            ..basis.executor(account, self.supersession())
        };
        let blocked = create_namespace(&basis, &executor, plan).await;

        let objects: Objects<'_> = resolved.objects.iter().map(|o| (o.key(), o)).collect();
        self.last_applied.unobserved = unobserved(resolved, plan);
        self.record_remarks(&objects, plan);
        self.record_unchanged(&objects, plan);
        self.record_drift(&executor, &objects, plan).await;
        self.record_skips(plan);

        let results = self
            .apply_changes(&executor, deployment, (resolved, plan), &objects, blocked.as_ref())
            .await?;
        if self.superseded() || results.values().any(|r| matches!(r, Applied::Superseded)) {
            self.save_inventory().await?;
            return Ok(false);
        }

        let prune = self.decide_prune(deployment, resolved, plan, &results);
        if !self.prune(&executor, plan, &prune, Purpose::Sync).await? {
            return Ok(false);
        }
        self.note_held(&prune);
        self.record_leaving(plan, &prune, resolved, deployment);
        // A deleted object no longer keeps objects of other services.
        self.announce(resolved.stated_keys(), false);
        self.offer(plan);
        self.preview(account, &prune).await;
        self.save_inventory().await?;
        Ok(true)
    }

    /// Applies namespaces, then wave after wave with the hooks between them. A barrier holds all later changes except
    /// repairs.
    async fn apply_changes(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        (resolved, plan): (&Resolved, &Plan),
        objects: &Objects<'_>,
        blocked: Option<&Blocked>,
    ) -> Result<BTreeMap<ObjectKey, Applied>, Stopped> {
        let blocked = blocked.map(|Blocked { namespace, error }| (namespace.as_str(), error.as_str()));
        let mut results = BTreeMap::new();
        let ahead = self.ahead_of_hooks(resolved, plan);
        let lost = executor
            .apply_stage(Stage::Namespaces, &ahead, objects, blocked, &mut results)
            .await;
        self.record_deletion(lost);
        self.record_results(objects, &ahead, &results);

        self.progress.barrier = self.open_hooks(executor, deployment, resolved).await?;
        for wave in &plan.waves {
            if self.progress.barrier.is_none() && wave.changes.iter().any(|change| !change.cause.is_repair()) {
                self.progress.barrier = self
                    .reach_wave(executor, deployment, (resolved, plan), wave.number)
                    .await?;
            }
            let waits = |change: &&Change| self.progress.barrier.is_some() && !change.cause.is_repair();
            let left = wave
                .changes
                .iter()
                .filter(|change| !results.contains_key(&change.object));
            let (held, open): (Vec<&Change>, Vec<&Change>) = left.partition(waits);
            if let Some(barrier) = &mut self.progress.barrier {
                barrier.held.extend(
                    held.into_iter()
                        .filter_map(|change| Some(objects.get(&change.object)?.object.clone())),
                );
            }
            let lost = executor
                .apply_stage(wave.stage, &open, objects, blocked, &mut results)
                .await;
            self.record_deletion(lost);
            self.record_results(objects, &open, &results);
        }

        if self.progress.barrier.is_none() {
            self.progress.barrier = self.end_sync_hooks(executor, deployment, (resolved, plan)).await?;
        }
        self.record_barrier();
        self.record_claims(plan, &results);
        if !results.is_empty() {
            let applied = results.values().filter(|r| matches!(r, Applied::Done { .. })).count();
            tracing::info!(service = %self.name(), applied, of = results.len(), unchanged = plan.unchanged.len(), "applied");
        }
        Ok(results)
    }

    /// What is deleted, now that the results of the applies are known.
    fn decide_prune(
        &self,
        deployment: &Deployment,
        resolved: &Resolved,
        plan: &Plan,
        results: &BTreeMap<ObjectKey, Applied>,
    ) -> PrunePlan {
        let held = hold_reasons(
            &self.stored.inventory,
            Some(&origin(deployment)),
            deployment.hold_prune.as_deref(),
        );
        // A replacement must be in place before the replaced object is deleted.
        let leaving = if self.progress.barrier.is_none() {
            plan.prune.candidates.clone()
        } else {
            Vec::new()
        };
        let generated = resolved.generated();
        let guards = self.guards(deployment, resolved, plan, results, (&held, &generated));
        prune::decide(leaving, &guards)
    }

    /// Saves the union of old and new entries before the first create, so that no object can exist that no inventory
    /// names.
    async fn remember_intent(
        &mut self,
        deployment: &Deployment,
        resolved: &Resolved,
        plan: &Plan,
    ) -> Result<(), Stopped> {
        let objects: BTreeMap<ObjectKey, &ObjectRef> = resolved.objects.iter().map(|o| (o.key(), &o.object)).collect();
        for change in plan.waves.iter().flat_map(|w| &w.changes) {
            let Some(object) = objects.get(&change.object) else {
                continue;
            };
            let entry = self
                .stored
                .inventory
                .entries
                .entry(change.object.clone())
                .or_insert_with(|| InventoryEntry {
                    object: (*object).clone(),
                    uid: None,
                    hash: None,
                    fields: None,
                    adopted: change.cause.is_adoption(),
                    doomed: false,
                    done: false,
                    incomplete: false,
                    overruled: Vec::new(),
                });
            // The source may state its kind in another version now.
            entry.object = (*object).clone();
        }

        // Includes objects that can't be applied now.
        for key in resolved.stated_keys() {
            self.stored.inventory.state_again(key);
        }
        if self.stored.inventory.entries.is_empty() {
            return Ok(());
        }

        let kept = remembered(deployment);
        let unpruned = |d: &Deployment| Deployment {
            prune: false,
            hold_prune: None,
            ..d.clone()
        };
        let held = self
            .stored
            .deployment
            .as_ref()
            .is_some_and(|stored| unpruned(stored) == kept);
        if !held {
            self.stored.deployment = Some(kept);
        }
        self.save_inventory().await
    }

    pub(super) async fn save_inventory(&mut self) -> Result<(), Stopped> {
        let agent = self.agent.clone();
        self.stored
            .save(&agent.kubernetes)
            .await
            .map_err(|e| Stopped(chain(&e)))
    }

    /// Deletes sealed documents of earlier deployments, after the report because nothing waits for it. Returns whether
    /// it succeeded.
    async fn settle_documents(&self, deployment: &Deployment) -> bool {
        // A service that has nothing applied may remember another deployment.
        let deployments = [self.stored.deployment.as_ref(), Some(deployment)];
        match self
            .agent
            .sealed
            .settle(self.uid(), deployments, &self.agent.kubernetes)
            .await
        {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(service = %self.name(), error = chain(&error), "can't release objects that no service states");
                false
            }
        }
    }

    /// The inputs of the guards, now that the results of the applies are known.
    fn guards<'a>(
        &'a self,
        deployment: &Deployment,
        resolved: &Resolved,
        plan: &Plan,
        results: &BTreeMap<ObjectKey, Applied>,
        (held, generated): (&'a [HoldReason], &'a Generated),
    ) -> Guards<'a> {
        let skipped = plan.skipped.iter().filter(|s| s.reason.is_unapplied()).count();
        let failed = results.values().filter(|r| !matches!(r, Applied::Done { .. })).count();
        Guards {
            generated,
            purpose: Purpose::Sync,
            desired: resolved.stated(),
            inventory: baseline_before(self, plan, results),
            unapplied: skipped + failed,
            approved: deployment.approved_prune,
            begun: self.stored.inventory.approved.as_ref(),
            was_held: self.stored.inventory.held.as_ref(),
            held,
        }
    }

    /// Records the outcome. Returns whether to retry.
    fn conclude(&mut self, digest: Digest, resolved: &Resolved, errors: &[String], note: Option<Note>) -> bool {
        let held: BTreeSet<ObjectKey> = self
            .progress
            .barrier
            .iter()
            .flat_map(|b| &b.held)
            .map(ObjectKey::from)
            .collect();
        let unapplied: Vec<String> = self
            .observed
            .statuses
            .iter()
            .filter(|(key, s)| matches!(s.sync, SyncState::Refused | SyncState::Waiting) && !held.contains(*key))
            .map(|(_, s)| format!("{}: {}", s.object, s.message))
            .collect();
        let deleting = self.observed.statuses.values().any(|s| s.health == Health::Terminating);

        let mut parts = describe_incomplete(errors, &unapplied, resolved.stated());
        let said = note.as_ref().map_or(Outcome::Applied, Note::outcome);
        let outcome = match &self.progress.barrier {
            _ if !parts.is_empty() => Outcome::Failed,
            Some(barrier) => barrier.outcome(),
            None => said,
        };
        parts.extend(self.progress.barrier.as_ref().map(Barrier::explain));
        parts.extend(note.map(|note| note.text));

        self.set_outcome(digest, outcome, shorten(&parts.join("; ")));
        // An unreadable source stays the same, so only refusals by the cluster are worth a retry. What later waves wait
        // for is observed when it changes.
        !unapplied.is_empty() || deleting || self.hooks.retry
    }

    /// Requests watches for every kind in the inventory.
    pub(super) fn watch(&mut self, deployment: &Deployment) {
        let account = &deployment.ceiling.service_account;
        let mut wants: BTreeMap<crate::kubernetes::Resource, BTreeSet<String>> = BTreeMap::new();
        for (key, entry) in &self.stored.inventory.entries {
            if let Some(resource) = self.agent.kinds.get(&GroupVersionKind::from(&entry.object)) {
                wants.entry(resource).or_default().insert(key.namespace().to_owned());
            }
        }
        for object in self.running_hooks() {
            if let Some(resource) = self.agent.kinds.get(&GroupVersionKind::from(object)) {
                wants.entry(resource).or_default().insert(object.namespace.clone());
            }
        }
        let wants = wants
            .into_iter()
            .map(|(resource, namespaces)| Want {
                account: account.clone(),
                resource,
                namespaces,
            })
            .collect();
        self.agent
            .watches
            .set_wants(&farwater_fleet::ownership::service_label(self.uid()), wants);
    }
}

/// The target namespace could not be created, so nothing can be applied in it.
struct Blocked {
    namespace: String,
    error: String,
}

/// Creates the target namespace if the plan says so.
async fn create_namespace(basis: &Basis<'_>, executor: &Executor<'_>, plan: &Plan) -> Option<Blocked> {
    let namespace = plan.create_namespace.as_ref()?;
    let error = executor.create_namespace(namespace).await.err()?;
    let remedy = match error.is_forbidden() {
        true => format!("; {} makes it", basis.preparation(namespace)),
        false => String::new(),
    };
    Some(Blocked {
        namespace: namespace.clone(),
        error: format!("{error}{remedy}"),
    })
}

/// The number that the guards count against, without this plan's own additions, which must not widen the guards.
fn baseline_before(task: &ServiceTask, plan: &Plan, results: &BTreeMap<ObjectKey, Applied>) -> usize {
    if task.stored.inventory.baseline > 0 {
        return task.stored.inventory.baseline;
    }
    let created = plan.waves.iter().flat_map(|w| &w.changes).filter(|change| {
        (change.cause == Cause::Create || change.cause.is_adoption()) && results.contains_key(&change.object)
    });
    baseline(&task.stored.inventory).saturating_sub(created.count())
}

/// Objects whose drift is neither corrected nor reported.
fn unobserved(resolved: &Resolved, plan: &Plan) -> BTreeSet<ObjectKey> {
    let is_others = |options: &ObjectOptions| options.drift == DriftMode::Ignore || options.create_only;
    let others = resolved
        .objects
        .iter()
        .filter(|object| is_others(&object.options))
        .map(|object| object.key());
    let left = plan
        .skipped
        .iter()
        .filter(|skip| matches!(skip.reason, SkipReason::Left(_)));
    others.chain(left.map(|skip| ObjectKey::from(&skip.object))).collect()
}
