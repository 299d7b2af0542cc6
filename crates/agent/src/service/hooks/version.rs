//! Where a version begins: what ran before it ends.

use farwater_api::protocol::Deployment;
use farwater_fleet::{
    hooks::{Record, ResolvedHook, is_of_deletion, version_of},
    plan::Resolved,
};

use crate::{
    execute::Executor,
    service::{ServiceTask, basis::Stopped},
};

/// Objects of earlier versions' hooks that are remembered: they are no more than leftovers.
const MAX_FORMER: usize = 100;

impl ServiceTask {
    pub(super) async fn begin_version(
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
                Ok(()) if run.is_running() => {
                    tracing::info!(service = %self.name(), hook = %run.object, "ended: a newer version came first");
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(service = %self.name(), hook = %run.object, %error, "can't end a hook of before");
                    kept.push(run);
                }
            }
        }
        record.former = kept.split_off(kept.len().saturating_sub(MAX_FORMER));
    }
}
