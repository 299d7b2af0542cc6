//! Hooks of a removed service.

use crate::{
    execute::Executor,
    service::{Barrier, ServiceTask, basis::Stopped},
};
use farwater_api::hooks::{HookPhase, HookState};

impl ServiceTask {
    /// Adds the hooks' objects to the inventory of a removed service, so that they are deleted or kept like all others.
    pub(in crate::service) fn take_in_hooks(&mut self) {
        let Some(record) = &mut self.stored.hooks else { return };
        self.stored.inventory.take_in(record.take_objects());
    }

    /// Runs the hooks of a deletion, as the last version stated them.
    pub(in crate::service) async fn run_farewell(
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

    /// Forgets a failed run whose object was deleted: deleting the object of a failed hook that holds a deletion makes
    /// it run again.
    async fn forget_deleted(&mut self, executor: &Executor<'_>, phase: HookPhase) {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
        let failed = runs.filter(|run| run.phase == phase && run.state == HookState::Failed && !run.removed);
        for run in failed.cloned().collect::<Vec<_>>() {
            if let (Ok(None), Some(record)) = (executor.read_hook(&run).await, &mut self.stored.hooks) {
                record.runs.retain(|other| other.id != run.id);
            }
        }
    }

    /// Deletes the deletion's own hooks at its end.
    pub(in crate::service) async fn dismiss_hooks(&mut self, executor: &Executor<'_>) {
        let runs = self
            .stored
            .hooks
            .iter()
            .flat_map(|record| &record.runs)
            .filter(|run| !run.removed);
        for run in runs.cloned().collect::<Vec<_>>() {
            match executor.end_hook(&run.object, &run.uid).await {
                Ok(()) => self.note_removed(&run),
                Err(error) => tracing::warn!(service = %self.name(), hook = %run.object, %error, "a hook stays"),
            }
        }
    }
}
