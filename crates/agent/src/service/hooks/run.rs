//! One run of a hook: begin, observe, result.

use std::time::Duration;

use farwater_api::{
    Digest,
    hooks::{HookPhase, HookState},
    protocol::Deployment,
};
use farwater_fleet::{
    conditions::whole_seconds,
    hooks::{Next, Progress, ResolvedHook, Run, judge, next, terms_of},
    junit,
    plan::GroupVersionKind,
};
use jiff::Timestamp;
use serde_json::Value;

use super::BLIND_PAUSE;
use crate::{
    execute::{Executor, HookError, Output, Way, time_to_live},
    judge::judge as judge_object,
    messages::shorten,
    service::{Barrier, ServiceTask, basis::Stopped},
};

impl ServiceTask {
    /// Runs the hooks of a phase as far as possible now. Returns what stops it.
    pub(super) async fn run_phase(
        &mut self,
        executor: &Executor<'_>,
        deployment: &Deployment,
        hooks: &[ResolvedHook],
        phase: HookPhase,
        last: i32,
    ) -> Result<Option<Barrier>, Stopped> {
        let terms = terms_of(deployment);
        loop {
            let Some(record) = &self.stored.hooks else {
                return Ok(None);
            };
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
                    return Ok(Some(Barrier::of_hook(
                        &hook.object,
                        false,
                        "a newer version came first".to_owned(),
                    )));
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

    /// Creates a hook's object. Returns why it could not be created.
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
                let message = format!("{phase} hook {} waits until the previous one is deleted", hook.object);
                return Some(Barrier::of_hook(&hook.object, false, message));
            }
            Ok(Way::Clear) => make(executor, deployment, hook, &id).await,
            Err(error) => Err(error),
        };
        let object = match made {
            Ok(object) => object,
            Err(error) => {
                let said = self.last_applied.veil.conceal(&error.to_string());
                tracing::warn!(service = %self.name(), hook = %hook.object, error = said, "refused");
                self.hooks.retry = true;
                let what = if error.is_passing() {
                    "can't be begun now"
                } else {
                    "was refused"
                };
                let message = shorten(&format!("{phase} hook {} {what}: {said}", hook.object));
                return Some(Barrier::of_hook(&hook.object, !error.is_passing(), message));
            }
        };
        tracing::info!(service = %self.name(), hook = %hook.object, %phase, "begun");
        let run = begun_run(hook, (phase, id), &object, deployment);
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

    /// Updates a run from its object, and reads its output once it has ended.
    async fn settle(&mut self, executor: &Executor<'_>, mut run: Run, object: &Value) -> Run {
        let progress = self.judge_run(&run, object);
        run.started = progress.started.or(run.started);
        run.ended = progress.ended;
        if progress.state == HookState::Running && !progress.is_ending {
            run.message = shorten(&progress.message);
            return run;
        }
        let output = executor.read_output(object).await;
        run.exit_code = output.exit_code.or(run.exit_code);
        // The log may show a failed test even if the container succeeded.
        if output.may_come && self.hooks.may_wait_for_output(&run.id) {
            run.message = shorten(&output.note);
            return run;
        }
        let kept = self.hooks.outputs.entry(run.id).or_default();
        // Output that was read while it was ending may be gone afterwards.
        kept.0 = output.log.clone().or(kept.0.take());
        kept.1 = output.junit.clone().or(kept.1.take());
        let summary = kept.1.as_deref().map(junit::summarize);
        run.state = progress.state;
        if run.state != HookState::Running {
            // Kinds other than Jobs and Pods have no time of their end.
            run.ended = run.ended.or_else(|| Some(whole_seconds(Timestamp::now())));
        }
        let has_failed_cases = summary.as_ref().is_some_and(|summary| summary.failed > 0);
        if run.phase == HookPhase::Test && run.state == HookState::Succeeded && has_failed_cases {
            run.state = HookState::Failed;
        }
        if run.state != HookState::Running {
            let reason = match run.state {
                // Without an exit code, the pods that the object owns may have the cause.
                HookState::Failed if run.exit_code.is_none() => {
                    join([&progress.message, &executor.find_cause(&self.judges.rules, &run).await])
                }
                HookState::Failed => progress.message,
                _ => String::new(),
            };
            run.message = explain(&run, &reason, summary.as_ref(), &output);
            let level = if run.state == HookState::Failed {
                "failed"
            } else {
                "succeeded"
            };
            let message = self.last_applied.veil.conceal(&run.message);
            tracing::info!(service = %self.name(), hook = %run.object, phase = %run.phase, message, "{level}");
        }
        run
    }

    /// A Job or a Pod ends by its own status. Another kind has succeeded once it is healthy by the rules for all objects:
    /// its controller must have seen it, unless a HealthRule says what counts.
    fn judge_run(&mut self, run: &Run, object: &Value) -> Progress {
        let progress = judge(&self.judges.rules, object);
        if progress.state != HookState::Succeeded || progress.ended.is_some() {
            return progress;
        }
        let gvk = GroupVersionKind::from(&run.object);
        let judgement = judge_object(&self.agent.kinds, &self.judges.rules, &gvk, object);
        match judgement.again {
            Some(again) => {
                self.hooks.look_within(again);
                Progress {
                    state: HookState::Running,
                    message: judgement.message,
                    ..progress
                }
            }
            None => progress,
        }
    }

    /// Looks at running hooks, and deletes objects that are due. Returns whether anything changed.
    pub(super) async fn read_runs(&mut self, executor: &Executor<'_>) -> Result<bool, Stopped> {
        let runs = self
            .stored
            .hooks
            .as_ref()
            .map_or_else(Vec::new, |record| record.runs.clone());
        let mut changed = false;
        for run in runs.iter().filter(|run| run.is_running()) {
            let now = match executor.read_hook(run).await {
                Ok(Some(object)) => self.settle(executor, run.clone(), &object).await,
                Ok(None) => Run {
                    state: HookState::Failed,
                    message: "it was deleted, and its result is unknown".to_owned(),
                    ended: Some(whole_seconds(Timestamp::now())),
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
            // Saved before anything depends on it.
            self.save_inventory().await?;
        }
        self.remove_ended(executor).await?;
        Ok(changed)
    }

    /// Deletes the objects of hooks by their policy, now that their results are saved.
    pub(super) async fn remove_ended(&mut self, executor: &Executor<'_>) -> Result<(), Stopped> {
        let runs = self.stored.hooks.iter().flat_map(|record| &record.runs);
        let now = Timestamp::now();
        let (mut due, mut later): (Vec<Run>, Vec<Duration>) = Default::default();
        for run in runs {
            match run.goes_in(now) {
                Some(Duration::ZERO) => due.push(run.clone()),
                Some(left) => later.push(left),
                None => {}
            }
        }
        later.into_iter().for_each(|left| self.hooks.look_within(left));
        if due.is_empty() {
            return Ok(());
        }
        for run in due {
            match executor.end_hook(&run.object, &run.uid).await {
                Ok(()) => self.note_removed(&run),
                Err(error) => tracing::warn!(service = %self.name(), hook = %run.object, %error, "can't delete a hook"),
            }
        }
        self.save_inventory().await
    }

    pub(super) fn note_removed(&mut self, run: &Run) {
        let runs = self.stored.hooks.iter_mut().flat_map(|record| &mut record.runs);
        runs.filter(|other| other.id == run.id)
            .for_each(|other| other.removed = true);
    }
}

/// Creates a hook's object. A missing target namespace that the source does not state is created first, as for other
/// objects.
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

/// The run of a hook whose object was just created.
fn begun_run(hook: &ResolvedHook, (phase, id): (HookPhase, Digest), object: &Value, deployment: &Deployment) -> Run {
    Run {
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
        ttl: time_to_live(hook),
        removed: false,
    }
}

/// How a run ended, in one line. `reason`: why it failed; empty if it did not.
fn explain(run: &Run, reason: &str, summary: Option<&junit::Summary>, output: &Output) -> String {
    let code = run
        .exit_code
        .filter(|_| run.state == HookState::Failed)
        .map(|code| format!("exit code {code}"));
    let summary = summary.map(junit::Summary::explain);
    shorten(&join([
        &code.unwrap_or_default(),
        &summary.unwrap_or_default(),
        reason,
        &output.note,
    ]))
}

/// Joins the parts that are not empty.
fn join<const N: usize>(parts: [&str; N]) -> String {
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}
