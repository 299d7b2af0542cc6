//! The start of a version: runs of earlier versions end.

use farwater_api::{Digest, protocol::Deployment};
use farwater_fleet::{hooks::Record, plan::Resolved};

use crate::{
    execute::Executor,
    service::{
        ServiceTask,
        basis::{Stopped, remembered},
    },
};

/// Most remembered objects of earlier versions' hooks. They are only leftovers.
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
        let mut record = Record::of_version(before.clone(), deployment, resolved, established);
        self.end_former(executor, &mut record, deployment, resolved).await;
        let changed = before.as_ref() != Some(&record);
        self.stored.hooks = Some(record);
        let is_known = |id: &Digest| {
            let mut runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
            runs.any(|run| run.id == *id)
        };
        self.hooks.outputs.retain(|id, _| is_known(id));
        self.hooks.unread.retain(|id, _| is_known(id));
        // Hooks may be all that the service has so far, and its removal must know the account.
        self.stored.deployment.get_or_insert_with(|| remembered(deployment));
        if changed { self.save_inventory().await } else { Ok(()) }
    }

    /// Ends the running hooks of older versions, and deletes hooks' objects that the version no longer states.
    async fn end_former(
        &self,
        executor: &Executor<'_>,
        record: &mut Record,
        deployment: &Deployment,
        resolved: &Resolved,
    ) {
        for run in record.take_departing(deployment, resolved) {
            match executor.end_hook(&run.object, &run.uid).await {
                Ok(()) if run.is_running() => {
                    tracing::info!(service = %self.name(), hook = %run.object, "ended: a newer version came first");
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(service = %self.name(), hook = %run.object, %error, "can't end a hook of the previous version");
                    record.former.push(run);
                }
            }
        }
        let excess = record.former.len().saturating_sub(MAX_FORMER);
        record.former.drain(..excess);
    }
}
