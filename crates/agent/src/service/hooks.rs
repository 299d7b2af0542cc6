//! Hooks of a service: begun when their turn comes, looked at until they have ended.
//!
//! As with waves nobody waits in an attempt: one that comes to a hook that runs ends there, and a new one begins when the hook has
//! ended. What has run is in the inventory before anything follows from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use farwater_api::{
    Digest,
    hooks::{HookPhase, HookReport, HookState, MAX_OUTPUT_BYTES, MAX_REPORTED_HOOKS},
    objects::{ObjectRef, SyncState},
    protocol::Deployment,
};
use farwater_fleet::{
    hooks::{Next, Record, ResolvedHook, Run, is_of_deletion, judge, next, terms_of, version_of},
    junit,
    plan::{Change, GroupVersionKind, InventoryEntry, ObjectKey, Plan, Resolved, Stage},
};
use serde_json::Value;
use tokio::time::Instant;

use super::{Barrier, ServiceTask, apply::Stopped};
use crate::{
    execute::{Executor, HookError, Output, Way},
    messages::shorten,
};

/// After an event, so that the events of one write are one look.
const SETTLE: Duration = Duration::from_millis(100);
/// Between two looks at what no watch tells of, doubled up to the longest.
const BLIND_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_BLIND_PAUSE: Duration = Duration::from_secs(15);
/// Where a watch tells: an event may be lost.
const WATCHED_PAUSE: Duration = Duration::from_secs(60);
/// Objects of earlier versions' hooks that are remembered: they are no more than leftovers.
const MAX_FORMER: usize = 100;

/// The source with its plan.
type Planned<'a> = (&'a Resolved, &'a Plan);

/// When hooks are looked at, and what they left behind.
#[derive(Default)]
pub(super) struct HookQueue {
    look_at: Option<Instant>,
    pause: Duration,
    /// One could not be begun, and another attempt may.
    pub retry: bool,
    /// The service is held: nothing is begun.
    pub is_held: bool,
    /// By run. Told while this agent lives; the hub keeps them.
    outputs: BTreeMap<Digest, (Option<String>, Option<String>)>,
}

impl HookQueue {
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }

    fn look_within(&mut self, pause: Duration) {
        let at = Instant::now() + pause;
        self.look_at = Some(self.look_at.map_or(at, |other| other.min(at)));
    }
}

impl ServiceTask {
    pub(super) fn has_hooks(&self) -> bool {
        self.stored.hooks.is_some()
    }

    /// Objects of hooks that have not ended: what watches are asked for.
    pub(super) fn running_hooks(&self) -> impl Iterator<Item = &ObjectRef> {
        self.stored.hooks.iter().flat_map(Record::running).map(|run| &run.object)
    }

    /// Namespaces of the source that hooks run in before anything else is applied.
    pub(super) fn ahead_of_hooks<'a>(&self, resolved: &Resolved, plan: &'a Plan) -> Vec<&'a Change> {
        let hooks = resolved.hooks.iter().filter(|hook| hook.steps.iter().any(|step| step.phase == HookPhase::PreSync));
        let namespaces: BTreeSet<&str> = hooks.map(|hook| hook.object.namespace.as_str()).collect();
        let stages = plan.waves.iter().filter(|wave| wave.stage == Stage::Namespaces);
        stages
            .flat_map(|wave| &wave.changes)
            .filter(|change| namespaces.contains(change.object.name.as_str()))
            .collect()
    }

    /// Before anything is applied: begins the version, ends what an older one left running, and runs what comes first.
    pub(super) async fn open_hooks(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        resolved: &Resolved,
    ) -> Result<Option<Barrier>, Stopped> {
        self.hooks.retry = false;
        self.hooks.look_at = None;
        if self.stored.hooks.is_none() && resolved.hooks.is_empty() {
            return Ok(None);
        }
        self.begin_version(executor, deployment, resolved).await?;
        self.read_runs(executor).await?;
        self.run_phase(executor, deployment, &resolved.hooks, HookPhase::PreSync, i32::MAX).await
    }

    async fn begin_version(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        resolved: &Resolved,
    ) -> Result<(), Stopped> {
        let before = self.stored.hooks.take();
        let established = self.stored.inventory.baseline > 0;
        let mut record = Record::next(before.clone(), version_of(deployment), established);
        // What a source lacks that can't be read completely may well be there.
        if resolved.complete {
            record.retire(&resolved.hooks);
            let of_deletion = |hook: &&ResolvedHook| hook.steps.iter().any(|step| is_of_deletion(step.phase));
            record.farewell = resolved.hooks.iter().filter(of_deletion).cloned().collect();
        }
        self.end_former(executor, &mut record, deployment, resolved).await;
        let changed = before.as_ref() != Some(&record);
        self.stored.hooks = Some(record);
        self.hooks.outputs.retain(|id, _| {
            let mut runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
            runs.any(|run| run.id == *id)
        });
        // Hooks may be all that the service has so far: whoever removes it must know as whom.
        self.stored.deployment.get_or_insert_with(|| Deployment {
            approved_prune: None,
            undo: None,
            ..deployment.clone()
        });
        if changed { self.save_inventory().await } else { Ok(()) }
    }

    /// Ends what older versions left running, and removes what no version states any more.
    async fn end_former(
        &self,
        executor: &Executor<'_>,
        record: &mut Record,
        deployment: &Deployment,
        resolved: &Resolved,
    ) {
        let mut kept = Vec::new();
        for run in std::mem::take(&mut record.former) {
            let key = run.key();
            let is_stated =
                resolved.hooks.iter().any(|hook| hook.key() == key) || resolved.stated_keys().any(|k| *k == key);
            let is_leftover = deployment.prune && resolved.complete && !is_stated;
            if !run.is_running() && !is_leftover {
                kept.push(run);
                continue;
            }
            match executor.end_hook(&run.object, &run.uid).await {
                Ok(_) if run.is_running() => {
                    tracing::info!(service = %self.name(), hook = %run.object, "ended: a newer version came first");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(service = %self.name(), hook = %run.object, %error, "can't end a hook of before");
                    kept.push(run);
                }
            }
        }
        record.former = kept.split_off(kept.len().saturating_sub(MAX_FORMER));
    }

    /// Runs the hooks of a phase as far as that goes now. What keeps it from going on.
    async fn run_phase(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        hooks: &[ResolvedHook],
        phase: HookPhase,
        last: i32,
    ) -> Result<Option<Barrier>, Stopped> {
        let terms = terms_of(deployment);
        loop {
            let Some(record) = &self.stored.hooks else { return Ok(None) };
            let list: Vec<ResolvedHook> = match next(hooks, record, phase, terms, last) {
                Next::Done => return Ok(None),
                Next::Running(run) => {
                    let message = format!("{} is running", run.describe());
                    return Ok(Some(Barrier::of_hook(&run.object, false, message)));
                }
                Next::Failed(run) => {
                    let message = format!("{} failed: {}", run.describe(), run.message);
                    return Ok(Some(Barrier::of_hook(&run.object, true, shorten(&message))));
                }
                Next::Start(list) => list.into_iter().cloned().collect(),
            };
            if let (true, Some(first)) = (self.hooks.is_held, list.first()) {
                let message = format!("{phase} hook {} is not begun while the service is held", first.object);
                return Ok(Some(Barrier::of_hook(&first.object, false, message)));
            }
            let mut barrier = None;
            for hook in &list {
                if executor.superseded.has_come() {
                    return Ok(Some(Barrier::of_hook(&hook.object, false, "a newer version came first".to_owned())));
                }
                let stopped = self.begin_hook(executor, deployment, hook, phase).await;
                barrier = barrier.or(stopped);
            }
            self.save_inventory().await?;
            if barrier.is_some() {
                return Ok(barrier);
            }
        }
    }

    /// Makes a hook's object. What kept it from being made.
    async fn begin_hook(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        hook: &ResolvedHook,
        phase: HookPhase,
    ) -> Option<Barrier> {
        let id = self.stored.hooks.as_ref()?.id(hook, phase);
        let made = match executor.clear_way(hook, &id).await {
            Ok(Way::Begun(object)) => Ok(object),
            Ok(Way::Leaving) => {
                self.hooks.look_within(BLIND_PAUSE);
                self.hooks.retry = true;
                let message = format!("{phase} hook {} waits until the one of before is gone", hook.object);
                return Some(Barrier::of_hook(&hook.object, false, message));
            }
            Ok(Way::Clear) => make(executor, deployment, hook, &id).await,
            Err(error) => Err(error),
        };
        let object = match made {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(service = %self.name(), hook = %hook.object, %error, "refused");
                self.hooks.retry = true;
                let message = shorten(&format!("{phase} hook {} was refused: {error}", hook.object));
                return Some(Barrier::of_hook(&hook.object, true, message));
            }
        };
        tracing::info!(service = %self.name(), hook = %hook.object, %phase, "begun");
        let run = Run {
            object: hook.object.clone(),
            phase,
            id,
            uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            hash: hook.hash,
            terms: terms_of(deployment),
            state: HookState::Running,
            message: String::new(),
            test: hook.test.clone(),
            started: None,
            ended: None,
            exit_code: None,
            delete: hook.delete,
            removed: false,
        };
        let run = self.settle(executor, run, &object).await;
        if run.is_running() {
            self.hooks.pause = BLIND_PAUSE;
            self.hooks.look_within(BLIND_PAUSE);
        }
        if let Some(record) = &mut self.stored.hooks {
            record.note(run);
        }
        None
    }

    /// A run by what its object says now, with what it left behind once it has ended.
    async fn settle(&mut self, executor: &Executor<'_>, mut run: Run, object: &Value) -> Run {
        let progress = judge(object);
        run.started = progress.started.or(run.started);
        run.ended = progress.ended;
        if progress.state == HookState::Running && !progress.is_ending {
            run.message = shorten(&progress.message);
            return run;
        }
        let output = executor.read_output(object).await;
        run.exit_code = output.exit_code.or(run.exit_code);
        let kept = self.hooks.outputs.entry(run.id).or_default();
        // What it said while it was being ended may be gone when it has.
        kept.0 = output.log.clone().or(kept.0.take());
        kept.1 = output.junit.clone().or(kept.1.take());
        let summary = kept.1.as_deref().map(junit::summarize);
        run.state = progress.state;
        let has_failed_cases = summary.as_ref().is_some_and(|summary| summary.failed > 0);
        if run.phase == HookPhase::Test && run.state == HookState::Succeeded && has_failed_cases {
            run.state = HookState::Failed;
        }
        if run.state != HookState::Running {
            run.message = explain(&run, &progress.message, summary.as_ref(), &output);
            let level = if run.state == HookState::Failed { "failed" } else { "succeeded" };
            tracing::info!(service = %self.name(), hook = %run.object, phase = %run.phase, message = run.message, "{level}");
        }
        run
    }

    /// Looks at what runs, and removes what is to go; whether anything has changed.
    async fn read_runs(&mut self, executor: &Executor<'_>) -> Result<bool, Stopped> {
        let runs = self.stored.hooks.as_ref().map_or_else(Vec::new, |record| record.runs.clone());
        let mut changed = false;
        for run in runs.iter().filter(|run| run.is_running()) {
            let now = match executor.read_hook(run).await {
                Ok(Some(object)) => self.settle(executor, run.clone(), &object).await,
                Ok(None) => Run {
                    state: HookState::Failed,
                    message: "it was deleted, and nobody saw how it ended".to_owned(),
                    removed: true,
                    ..run.clone()
                },
                Err(error) => {
                    tracing::debug!(service = %self.name(), hook = %run.object, %error, "can't look at a hook");
                    continue;
                }
            };
            if now != *run
                && let Some(record) = &mut self.stored.hooks
            {
                changed |= now.state != run.state;
                record.note(now);
            }
        }
        if changed {
            // Remembered before anything follows from it.
            self.save_inventory().await?;
        }
        self.remove_ended(executor).await?;
        Ok(changed)
    }

    /// Deletes the objects of hooks whose policy says so, now that it is remembered how they ended.
    async fn remove_ended(&mut self, executor: &Executor<'_>) -> Result<(), Stopped> {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
        let due: Vec<Run> = runs.filter(|run| run.is_to_go()).cloned().collect();
        if due.is_empty() {
            return Ok(());
        }
        for run in due {
            match executor.end_hook(&run.object, &run.uid).await {
                Ok(_) => self.note_removed(&run),
                Err(error) => tracing::warn!(service = %self.name(), hook = %run.object, %error, "can't delete a hook"),
            }
        }
        self.save_inventory().await
    }

    fn note_removed(&mut self, run: &Run) {
        let runs = self.stored.hooks.iter_mut().flat_map(|record| &mut record.runs);
        runs.filter(|other| other.id == run.id).for_each(|other| other.removed = true);
    }

    /// Before the changes of a wave: what keeps it from beginning. Hooks of a wave begin with it, and later ones wait for them.
    pub(super) async fn reach_wave(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        planned: Planned<'_>,
        wave: i32,
    ) -> Result<Option<Barrier>, Stopped> {
        let (resolved, plan) = planned;
        for of_hooks in sync_waves(resolved).into_iter().filter(|number| *number <= wave) {
            let stopped = self.run_sync_hooks(executor, deployment, planned, of_hooks).await?;
            if stopped.is_some() && (of_hooks < wave || stopped.as_ref().is_some_and(|barrier| !barrier.is_of_hook())) {
                return Ok(stopped);
            }
        }
        Ok(self.stop_before(wave, resolved, plan).await)
    }

    /// After the last wave: the hooks that belong to it and to later ones.
    pub(super) async fn end_sync_hooks(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        planned: Planned<'_>,
    ) -> Result<Option<Barrier>, Stopped> {
        for of_hooks in sync_waves(planned.0) {
            let stopped = self.run_sync_hooks(executor, deployment, planned, of_hooks).await?;
            if stopped.is_some() {
                return Ok(stopped);
            }
        }
        Ok(None)
    }

    async fn run_sync_hooks(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        (resolved, plan): Planned<'_>,
        wave: i32,
    ) -> Result<Option<Barrier>, Stopped> {
        if self.is_new(&resolved.hooks, HookPhase::Sync, deployment, wave) {
            let stopped = self.stop_before(wave, resolved, plan).await;
            if stopped.is_some() {
                return Ok(stopped);
            }
        }
        self.run_phase(executor, deployment, &resolved.hooks, HookPhase::Sync, wave).await
    }

    /// Whether something of a phase is to be begun.
    fn is_new(&self, hooks: &[ResolvedHook], phase: HookPhase, deployment: &Deployment, last: i32) -> bool {
        let record = self.stored.hooks.as_ref();
        record.is_some_and(|record| matches!(next(hooks, record, phase, terms_of(deployment), last), Next::Start(_)))
    }

    /// After everything was applied: what runs when all is healthy, and what runs when something went wrong.
    pub(super) async fn close_hooks(
        &mut self,
        deployment: &Deployment,
        resolved: &Resolved,
        plan: &Plan,
    ) -> Result<(), Stopped> {
        if !self.has_hooks() {
            return Ok(());
        }
        let agent = self.agent.clone();
        let service = self.uid().to_owned();
        let executor = Executor {
            kubernetes: &agent.kubernetes,
            kinds: &agent.kinds,
            account: &deployment.ceiling.service_account,
            service: &service,
            superseded: self.supersession(),
        };
        let hooks = &resolved.hooks;
        for phase in [HookPhase::PostSync, HookPhase::Test] {
            // Of a source that can't be read completely nobody knows what belongs to it.
            if self.barrier.is_some() || self.hooks.is_held || !resolved.complete {
                break;
            }
            if self.is_new(hooks, phase, deployment, i32::MAX) {
                let unhealthy = self.stop_before(i32::MAX, resolved, plan).await;
                self.barrier = unhealthy.map(|barrier| barrier.before_phase(phase));
            }
            if self.barrier.is_none() {
                self.barrier = self.run_phase(&executor, deployment, hooks, phase, i32::MAX).await?;
            }
        }
        let is_refused = self.statuses.values().any(|status| status.sync == SyncState::Refused);
        let is_stuck = is_refused || self.barrier.as_ref().is_some_and(Barrier::is_stuck);
        if is_stuck && !self.hooks.is_held {
            let stopped = self.run_phase(&executor, deployment, hooks, HookPhase::SyncFail, i32::MAX).await?;
            if let Some(stopped) = stopped {
                tracing::info!(service = %self.name(), "{}", stopped.explain());
            }
        }
        self.remove_ended(&executor).await?;
        self.plan_look();
        let is_waiting = self.statuses.values().any(|status| status.sync == SyncState::Waiting);
        if self.barrier.is_none() && !is_stuck && !is_waiting && !self.hooks.is_held && resolved.complete {
            self.note_complete().await?;
        }
        Ok(())
    }

    async fn note_complete(&mut self) -> Result<(), Stopped> {
        match &mut self.stored.hooks {
            Some(record) if !record.complete => record.complete = true,
            _ => return Ok(()),
        }
        self.save_inventory().await
    }

    /// When to look at what runs without having been told.
    fn plan_look(&mut self) {
        let Some(account) = self.account() else { return };
        let running: Vec<ObjectRef> = self.running_hooks().cloned().collect();
        if running.is_empty() {
            return;
        }
        let is_watched = running.iter().all(|object| {
            let resource = self.agent.kinds.get(&GroupVersionKind::from(object));
            resource.is_some_and(|resource| self.agent.watches.covers(&account, &resource, &object.namespace))
        });
        let pause = if is_watched { WATCHED_PAUSE } else { self.hooks.pause.max(BLIND_PAUSE) };
        self.hooks.pause = (pause * 2).min(LONGEST_BLIND_PAUSE);
        self.hooks.look_within(pause);
    }

    /// A watch tells of these objects.
    pub(super) fn hear_of_hooks<'a>(&mut self, keys: impl Iterator<Item = &'a ObjectKey>) {
        let running: BTreeSet<ObjectKey> = self.running_hooks().map(ObjectKey::from).collect();
        if !running.is_empty() && keys.into_iter().any(|key| running.contains(key)) {
            self.hooks.look_within(SETTLE);
        }
    }

    /// Between two attempts; whether another one is needed.
    pub(super) async fn look_at_hooks(&mut self) -> bool {
        self.hooks.look_at = None;
        if self.running_hooks().next().is_none() {
            return self.hooks.retry;
        }
        let Some(account) = self.account() else { return false };
        let agent = self.agent.clone();
        let service = self.uid().to_owned();
        let (kubernetes, kinds) = (&agent.kubernetes, &agent.kinds);
        let superseded = self.supersession();
        let executor = Executor { kubernetes, kinds, account: &account, service: &service, superseded };
        let looked = self.read_runs(&executor).await;
        self.plan_look();
        // What could not be saved is tried again by an attempt.
        looked.unwrap_or(true)
    }

    /// Of a service that is removed: its hooks' objects go, or stay, like all others.
    pub(super) fn take_in_hooks(&mut self) {
        let Some(record) = &mut self.stored.hooks else { return };
        let runs = record.runs.iter_mut().filter(|run| !is_of_deletion(run.phase)).chain(&mut record.former);
        for run in runs.filter(|run| !run.removed) {
            run.removed = true;
            if run.is_running() {
                run.state = HookState::Failed;
            }
            self.stored.inventory.entries.entry(run.key()).or_insert_with(|| InventoryEntry {
                object: run.object.clone(),
                uid: Some(run.uid.clone()),
                hash: None,
                fields: None,
                adopted: false,
                doomed: false,
            });
        }
    }

    /// Runs the hooks of a deletion, as the last version had them.
    pub(super) async fn run_farewell(
        &mut self,
        executor: &Executor<'_>,
        phase: HookPhase,
    ) -> Result<Option<Barrier>, Stopped> {
        self.hooks.retry = false;
        self.hooks.is_held = false;
        let (Some(record), Some(deployment)) = (&self.stored.hooks, self.stored.deployment.clone()) else {
            return Ok(None);
        };
        let hooks = record.farewell.clone();
        self.read_runs(executor).await?;
        self.forget_deleted(executor, phase).await;
        let stopped = self.run_phase(executor, &deployment, &hooks, phase, i32::MAX).await?;
        self.remove_ended(executor).await?;
        self.plan_look();
        Ok(stopped)
    }

    /// Whoever deletes a hook that has failed, and holds a deletion, has it run again.
    async fn forget_deleted(&mut self, executor: &Executor<'_>, phase: HookPhase) {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
        let failed = runs.filter(|run| run.phase == phase && run.state == HookState::Failed && !run.removed);
        for run in failed.cloned().collect::<Vec<_>>() {
            if let (Ok(None), Some(record)) = (executor.read_hook(&run).await, &mut self.stored.hooks) {
                record.runs.retain(|other| other.id != run.id);
            }
        }
    }

    /// At the end of a deletion nothing is left, of its own hooks neither.
    pub(super) async fn dismiss_hooks(&mut self, executor: &Executor<'_>) {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs).filter(|run| !run.removed);
        for run in runs.cloned().collect::<Vec<_>>() {
            match executor.end_hook(&run.object, &run.uid).await {
                Ok(_) => self.note_removed(&run),
                Err(error) => tracing::warn!(service = %self.name(), hook = %run.object, %error, "a hook stays"),
            }
        }
    }

    pub(super) fn report_hooks(&self) -> Vec<HookReport> {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
        // Those that have not succeeded are worth the most.
        let (mut runs, fine): (Vec<&Run>, Vec<&Run>) = runs.partition(|run| run.state != HookState::Succeeded);
        runs.extend(fine);
        runs.truncate(MAX_REPORTED_HOOKS);
        let mut room = MAX_OUTPUT_BYTES;
        let mut fitting = |text: &Option<String>| {
            let text = text.as_ref().filter(|text| text.len() <= room)?;
            room -= text.len();
            Some(text.clone())
        };
        let outputs = |run: &Run| self.hooks.outputs.get(&run.id).cloned().unwrap_or_default();
        let reports = runs.into_iter().map(|run| {
            let (log, junit) = outputs(run);
            HookReport {
                object: run.object.clone(),
                phase: run.phase,
                run: run.id,
                state: run.state,
                message: run.message.clone(),
                test: run.test.clone(),
                started: run.started.clone(),
                ended: run.ended.clone(),
                exit_code: run.exit_code,
                junit: fitting(&junit),
                log: fitting(&log),
            }
        });
        let mut reports: Vec<HookReport> = reports.collect();
        reports.sort_by(|a, b| (a.phase, &a.object).cmp(&(b.phase, &b.object)));
        reports
    }
}

/// Waves that have hooks which run with the objects.
fn sync_waves(resolved: &Resolved) -> BTreeSet<i32> {
    let hooks = resolved.hooks.iter().filter(|hook| hook.steps.iter().any(|step| step.phase == HookPhase::Sync));
    hooks.map(|hook| hook.wave).collect()
}

/// In a namespace that is missing, and nobody states, as objects are.
async fn make(
    executor: &Executor<'_>,
    deployment: &Deployment,
    hook: &ResolvedHook,
    id: &Digest,
) -> Result<Value, HookError> {
    match executor.make_hook(hook, id).await {
        Err(HookError::Api(error)) if error.is_not_found() && hook.object.namespace == deployment.target_namespace => {
            executor.create_namespace(&deployment.target_namespace).await?;
            executor.make_hook(hook, id).await
        }
        other => other,
    }
}

/// How a run ended, in one line.
fn explain(run: &Run, reason: &str, summary: Option<&junit::Summary>, output: &Output) -> String {
    let code = run.exit_code.filter(|_| run.state == HookState::Failed).map(|code| format!("exit code {code}"));
    let parts = [code.unwrap_or_default(), summary.map(junit::Summary::explain).unwrap_or_default()];
    let reason = if run.state == HookState::Failed { reason } else { "" };
    let parts = parts.iter().map(String::as_str).chain([reason, output.note.as_str()]);
    shorten(&parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; "))
}
