//! Between two attempts: when the agent looks at hooks, and reports about them.

use std::{collections::BTreeSet, time::Duration};

use farwater_api::{
    hooks::{HookReport, HookState, MAX_OUTPUT_BYTES, MAX_REPORTED_HOOKS},
    objects::ObjectRef,
};
use farwater_fleet::{
    hooks::Run,
    plan::{GroupVersionKind, ObjectKey},
};

use super::BLIND_PAUSE;
use crate::service::{ServiceTask, basis::Basis};

/// Pause after an event, so that the events of one write cause one read.
const SETTLE: Duration = Duration::from_millis(100);
const LONGEST_BLIND_PAUSE: Duration = Duration::from_secs(15);
/// Pause while a watch covers them, because an event may be lost.
const WATCHED_PAUSE: Duration = Duration::from_secs(60);

impl ServiceTask {
    /// Plans the next look at running hooks without an event.
    pub(super) fn plan_look(&mut self) {
        let Some(account) = self.account() else { return };
        let running: Vec<ObjectRef> = self.running_hooks().cloned().collect();
        if running.is_empty() {
            return;
        }
        let is_watched = running.iter().all(|object| {
            let resource = self.agent.kinds.get(&GroupVersionKind::from(object));
            resource.is_some_and(|resource| self.agent.watches.covers(&account, &resource, &object.namespace))
        });
        let pause = if is_watched {
            WATCHED_PAUSE
        } else {
            self.hooks.pause.max(BLIND_PAUSE)
        };
        self.hooks.pause = (pause * 2).min(LONGEST_BLIND_PAUSE);
        self.hooks.look_within(pause);
    }

    /// Events of a watch concern these objects.
    pub(in crate::service) fn hear_of_hooks<'a>(&mut self, keys: impl Iterator<Item = &'a ObjectKey>) {
        let running: BTreeSet<ObjectKey> = self.running_hooks().map(ObjectKey::from).collect();
        if !running.is_empty() && keys.into_iter().any(|key| running.contains(key)) {
            self.hooks.look_within(SETTLE);
        }
    }

    /// Looks at hooks between two attempts. Returns whether another attempt is needed.
    pub(in crate::service) async fn look_at_hooks(&mut self) -> bool {
        self.hooks.look_at = None;
        if self.running_hooks().next().is_none() {
            return self.hooks.retry;
        }
        let Some(account) = self.account() else { return false };
        let (agent, service) = (self.agent.clone(), self.stored.service.clone());
        let basis = Basis {
            agent: &agent,
            service: &service,
        };
        let executor = basis.executor(&account, self.supersession());
        let looked = self.read_runs(&executor).await;
        self.plan_look();
        // If it could not be saved, an attempt retries.
        looked.unwrap_or(true)
    }

    pub(in crate::service) fn report_hooks(&self) -> Vec<HookReport> {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
        // Runs that have not succeeded come first.
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
