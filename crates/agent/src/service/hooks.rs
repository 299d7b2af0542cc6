//! Hooks of a service: begun in their turn, and observed until they have ended.
//!
//! As with waves, no attempt waits: one that reaches a running hook ends, and a new one begins when the hook has ended.
//! Runs are saved in the inventory before anything depends on them.

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

/// First pause between two looks at hooks that no watch covers; it doubles up to a limit.
const BLIND_PAUSE: Duration = Duration::from_secs(1);

/// How long the API server may be unable to return a hook's output.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(120);

/// A source with its plan.
type Planned<'a> = (&'a Resolved, &'a Plan);

/// When the agent looks at hooks, and the hooks' output.
#[derive(Default)]
pub(super) struct HookQueue {
    look_at: Option<Instant>,
    pause: Duration,
    /// A hook could not be begun, and another attempt may begin it.
    pub retry: bool,
    /// The service is held, so no hook begins.
    pub is_held: bool,
    /// Output by run. Reported while this agent lives; the hub stores it.
    outputs: BTreeMap<Digest, (Option<String>, Option<String>)>,
    /// Since when the output of an ended run could not be read.
    unread: BTreeMap<Digest, Instant>,
}

impl HookQueue {
    pub fn next(&self) -> Option<Instant> {
        self.look_at
    }

    /// Whether to keep waiting for the output of a run.
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

    /// Objects of hooks that have not ended, for watches.
    pub(super) fn running_hooks(&self) -> impl Iterator<Item = &ObjectRef> {
        self.stored
            .hooks
            .iter()
            .flat_map(Record::running)
            .map(|run| &run.object)
    }

    /// Namespaces of the source in which hooks run before anything else is applied.
    pub(super) fn ahead_of_hooks<'a>(&self, resolved: &Resolved, plan: &'a Plan) -> Vec<&'a Change> {
        let hooks = resolved
            .hooks
            .iter()
            .filter(|hook| hook.steps.iter().any(|step| step.phase == HookPhase::PreSync));
        let namespaces: BTreeSet<&str> = hooks.map(|hook| hook.object.namespace.as_str()).collect();
        let stages = plan.waves.iter().filter(|wave| wave.stage == Stage::Namespaces);
        stages
            .flat_map(|wave| &wave.changes)
            .filter(|change| namespaces.contains(change.object.name()))
            .collect()
    }

    /// Called before anything is applied: begins the version, ends running hooks of an older one, and runs the first
    /// hooks.
    pub(super) async fn open_hooks(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        resolved: &Resolved,
    ) -> Result<Option<Barrier>, Stopped> {
        self.hooks.retry = false;
        self.hooks.look_at = None;
        // A chart is rendered for an install or an upgrade, and this stays the same for its version, even if it is
        // rendered again.
        if self.stored.hooks.is_none() && resolved.hooks.is_empty() && !resolved.sees_occasion {
            return Ok(None);
        }
        self.begin_version(executor, deployment, resolved).await?;
        self.read_runs(executor).await?;
        self.run_phase(executor, deployment, &resolved.hooks, HookPhase::PreSync, i32::MAX)
            .await
    }

    /// Called before the changes of a wave. Returns what keeps the wave from beginning. Hooks of a wave begin with it,
    /// and later waves wait for them.
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

    /// Called after the last wave: runs the hooks of that wave and later ones.
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
        self.run_phase(executor, deployment, &resolved.hooks, HookPhase::Sync, wave)
            .await
    }

    /// Whether a hook of a phase is to begin.
    fn is_new(&self, hooks: &[ResolvedHook], phase: HookPhase, deployment: &Deployment, last: i32) -> bool {
        let record = self.stored.hooks.as_ref();
        record.is_some_and(|record| matches!(next(hooks, record, phase, terms_of(deployment), last), Next::Start(_)))
    }

    /// Called after everything was applied: runs the hooks for a healthy service, and those for a failure.
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
        let basis = Basis {
            agent: &agent,
            service: &service,
        };
        let executor = basis.executor(&deployment.ceiling.service_account, self.supersession());
        let hooks = &resolved.hooks;
        for phase in [HookPhase::PostSync, HookPhase::Test] {
            // The hooks of an unreadable source are unknown.
            if self.progress.barrier.is_some() || self.hooks.is_held || !resolved.complete {
                break;
            }
            if self.is_new(hooks, phase, deployment, i32::MAX) {
                let unhealthy = self.stop_before(i32::MAX, resolved, plan).await;
                self.progress.barrier = unhealthy.map(|barrier| barrier.before_phase(phase));
            }
            if self.progress.barrier.is_none() {
                self.progress.barrier = self.run_phase(&executor, deployment, hooks, phase, i32::MAX).await?;
            }
        }
        let is_refused = self
            .observed
            .statuses
            .values()
            .any(|status| status.sync == SyncState::Refused);
        let is_stuck = is_refused || self.progress.barrier.as_ref().is_some_and(Barrier::is_stuck);
        if is_stuck && !self.hooks.is_held {
            let stopped = self
                .run_phase(&executor, deployment, hooks, HookPhase::SyncFail, i32::MAX)
                .await?;
            if let Some(stopped) = stopped {
                tracing::info!(service = %self.name(), "{}", stopped.explain());
            }
        }
        self.remove_ended(&executor).await?;
        self.plan_look();
        let is_waiting = self
            .observed
            .statuses
            .values()
            .any(|status| status.sync == SyncState::Waiting);
        if self.progress.barrier.is_none() && !is_stuck && !is_waiting && !self.hooks.is_held && resolved.complete {
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

/// Waves with hooks that run with the objects.
fn sync_waves(resolved: &Resolved) -> BTreeSet<i32> {
    let hooks = resolved
        .hooks
        .iter()
        .filter(|hook| hook.steps.iter().any(|step| step.phase == HookPhase::Sync));
    hooks.map(|hook| hook.wave).collect()
}
