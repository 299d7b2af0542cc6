//! Hooks of a service: begun when their turn comes, looked at until they have ended.
//!
//! As with waves nobody waits in an attempt: one that comes to a hook that runs ends there, and a new one begins when the hook has
//! ended. What has run is in the inventory before anything follows from it.

mod farewell;
mod look;
mod run;
mod version;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use farwater_api::{
    Digest,
    hooks::HookPhase,
    objects::{ObjectRef, SyncState},
    protocol::Deployment,
};
use farwater_fleet::{
    hooks::{Next, Record, ResolvedHook, next, terms_of},
    plan::{Change, Plan, Resolved, Stage},
};
use tokio::time::Instant;

use super::{
    Barrier, ServiceTask,
    basis::{Basis, Stopped},
};
use crate::execute::Executor;

/// Between two looks at what no watch tells of; doubled each time, up to a bound.
const BLIND_PAUSE: Duration = Duration::from_secs(1);

/// How long the API server may be unable to hand out what a hook left behind.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(120);

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
    /// Since when the output of one that has ended could not be read.
    unread: BTreeMap<Digest, Instant>,
}

impl HookQueue {
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }

    /// Whether what a run left behind is waited for, and not given up yet.
    fn may_wait_for_output(&mut self, run: &Digest) -> bool {
        let waits = self.unread.entry(*run).or_insert_with(Instant::now).elapsed() < OUTPUT_PATIENCE;
        if waits {
            self.look_within(BLIND_PAUSE);
        }
        waits
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
        stages.flat_map(|wave| &wave.changes).filter(|change| namespaces.contains(change.object.name())).collect()
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
        // A chart is told whether it is installed or upgraded, which stays so for its version: also when it is rendered again.
        if self.stored.hooks.is_none() && resolved.hooks.is_empty() && !resolved.sees_occasion {
            return Ok(None);
        }
        self.begin_version(executor, deployment, resolved).await?;
        self.read_runs(executor).await?;
        self.run_phase(executor, deployment, &resolved.hooks, HookPhase::PreSync, i32::MAX).await
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
        let (agent, service) = (self.agent.clone(), self.stored.service.clone());
        let basis = Basis { agent: &agent, service: &service };
        let executor = basis.executor(&deployment.ceiling.service_account, self.supersession());
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
}

/// Waves that have hooks which run with the objects.
fn sync_waves(resolved: &Resolved) -> BTreeSet<i32> {
    let hooks = resolved.hooks.iter().filter(|hook| hook.steps.iter().any(|step| step.phase == HookPhase::Sync));
    hooks.map(|hook| hook.wave).collect()
}
