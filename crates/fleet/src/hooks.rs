//! Which hook runs next, and what is stored of those that have run.
//!
//! A version's hooks run once. The agent stores this in a [`Record`] in the cluster with the inventory, so neither a
//! restart nor a repair runs a hook again. The hooks' objects could not show it, because they are deleted when they
//! have ended.

mod foresee;

use std::time::Duration;

use farwater_api::{
    Digest,
    hooks::{HookPhase, HookState},
    objects::{Health, ObjectRef},
    protocol::Deployment,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::foresee::{foresee_farewell, foresee_hooks};
pub use crate::plan::hooks::{DeletePolicy, Occasion, ResolvedHook, is_of_deletion};
use crate::{
    health::rules::Rules,
    plan::{InventoryEntry, ObjectKey, Resolved},
};

/// Most retries of one version. After that, the cause needs to be fixed.
const MAX_RETRIED: usize = 100;

/// What is remembered of the hooks of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// See [`version_of`].
    pub version: Digest,
    /// Counts versions, so that a version that comes back runs its hooks again.
    pub number: u64,
    pub occasion: Occasion,
    /// Whether the version was applied completely at some time, including its last hooks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// Runs of earlier versions, as long as their objects may exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Run>,
    /// Hooks of a deletion, stored because the source may be gone by the time of the deletion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub farewell: Vec<ResolvedHook>,
    /// Failed runs of this version that were retried, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retried: Vec<Digest>,
}

/// One hook that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    #[serde(flatten)]
    pub object: ObjectRef,
    pub phase: HookPhase,
    pub id: Digest,
    pub uid: String,
    /// Hash of the manifest.
    pub hash: Digest,
    /// See [`terms_of`].
    pub terms: Digest,
    pub state: HookState,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub delete: DeletePolicy,
    /// Seconds from its end until its object is deleted, from `ttlSecondsAfterFinished` in its manifest. The object is
    /// created without that field; otherwise the cluster would delete it before the agent observed its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,
    /// Whether its object is known to be gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

impl Run {
    pub fn key(&self) -> ObjectKey {
        ObjectKey::from(&self.object)
    }

    pub fn is_running(&self) -> bool {
        self.state == HookState::Running
    }

    /// Time until its object is to be deleted, by its policy or its time to live. None: it stays.
    pub fn goes_in(&self, now: Timestamp) -> Option<Duration> {
        let by_policy = match self.state {
            HookState::Succeeded => self.delete.succeeded,
            HookState::Failed => self.delete.failed,
            HookState::Running | HookState::Unknown => return None,
        };
        let lives = match (by_policy, self.ttl) {
            (true, _) => Duration::ZERO,
            (false, Some(seconds)) => Duration::from_secs(seconds.into()),
            (false, None) => return None,
        };
        let age = self.ended.as_ref().map_or(Duration::ZERO, |ended| {
            Duration::try_from(now.duration_since(ended.0)).unwrap_or_default()
        });
        (!self.removed).then(|| lives.saturating_sub(age))
    }

    /// Its name for people.
    pub fn describe(&self) -> String {
        match &self.test {
            Some(test) => format!("test {test}"),
            None => format!("{} hook {}", self.phase, self.object),
        }
    }
}

/// Digest of what is a version to hooks. A repair, an approval or another option gives the same digest and runs no hook
/// again.
pub fn version_of(deployment: &Deployment) -> Digest {
    let mut text = format!(
        "{}\n{}\n{}",
        deployment.bundle, deployment.path, deployment.target_namespace
    );
    if !deployment.renderers.is_empty() || !deployment.patches.is_empty() {
        // Other values are another version, as in Helm.
        let rendering = serde_json::json!([deployment.renderers, deployment.patches]);
        text = format!("{text}\n{}", Digest::of_json(&rendering));
    }
    if let Some(mac) = &deployment.parameters {
        text = format!("{text}\nparameters {mac}");
    }
    if !deployment.configuration.is_empty() {
        text = format!(
            "{text}\npromoted {}",
            Digest::of_json(&serde_json::json!(deployment.configuration))
        );
    }
    Digest::of(text)
}

/// Digest of a hook's other inputs. A failed hook runs again when they change.
pub fn terms_of(deployment: &Deployment) -> Digest {
    let terms = serde_json::json!({"secrets": deployment.secrets, "ceiling": deployment.ceiling});
    Digest::of_json(&terms)
}

impl Record {
    /// The record of a version, following that of the previous one. `established`: objects were in place before there
    /// were records.
    pub fn next(last: Option<Self>, version: Digest, established: bool) -> Self {
        let Some(last) = last else {
            let occasion = if established {
                Occasion::Upgrade
            } else {
                Occasion::Install
            };
            return Self {
                version,
                number: 1,
                occasion,
                complete: false,
                runs: vec![],
                former: vec![],
                farewell: vec![],
                retried: vec![],
            };
        };

        if last.version == version {
            return last;
        }

        let is_first = last.occasion == Occasion::Install && !last.complete;
        let mut former = last.former;
        former.extend(last.runs.into_iter().filter(|run| !run.removed));
        Self {
            version,
            number: last.number + 1,
            occasion: if is_first { Occasion::Install } else { Occasion::Upgrade },
            complete: false,
            runs: Vec::new(),
            former,
            farewell: last.farewell,
            retried: Vec::new(),
        }
    }

    /// The record with which a version begins or continues. `established` as in [`next`](Self::next).
    pub fn of_version(last: Option<Self>, deployment: &Deployment, resolved: &Resolved, established: bool) -> Self {
        let mut record = Self::next(last, version_of(deployment), established);
        // An incomplete source may lack hooks that in fact exist, so it changes nothing.
        if resolved.complete {
            record.retire(&resolved.hooks);
            let of_deletion = |hook: &&ResolvedHook| hook.steps.iter().any(|step| is_of_deletion(step.phase));
            record.farewell = resolved.hooks.iter().filter(of_deletion).cloned().collect();
        }
        if let Some(run) = deployment.retry_hook {
            record.retry(run);
        }
        record
    }

    /// Starts a failed hook again. A run is retried once, because the next run has another id. Hooks of a deletion, and
    /// hooks of a version that was applied completely, are not retried.
    fn retry(&mut self, run: Digest) {
        let may_begin = |phase| !is_of_deletion(phase) && (!self.complete || phase == HookPhase::Test);
        let is_retried = |it: &mut Run| it.id == run && it.state == HookState::Failed && may_begin(it.phase);
        if self.retried.len() < MAX_RETRIED
            && let Some(retried) = self.runs.extract_if(.., is_retried).next()
        {
            self.retried.push(run);
            self.former.extend(Some(retried).filter(|run| !run.removed));
        }
    }

    /// Takes out the earlier versions' runs that end or are removed now: what still runs, and what no version states any more.
    pub fn take_departing(&mut self, deployment: &Deployment, resolved: &Resolved) -> Vec<Run> {
        let departs = |run: &mut Run| {
            let key = run.key();
            let is_stated =
                resolved.hooks.iter().any(|hook| hook.key() == key) || resolved.stated_keys().any(|k| *k == key);
            run.is_running() || deployment.prune && resolved.complete && !is_stated
        };
        self.former.extract_if(.., departs).collect()
    }

    /// Inventory entries for the hooks' objects when the service is removed. From then on they are deleted or kept like
    /// all other objects. Hooks of the deletion itself are not included.
    pub fn take_objects(&mut self) -> Vec<InventoryEntry> {
        let mut taken = Vec::new();
        let runs = self
            .runs
            .iter_mut()
            .filter(|run| !is_of_deletion(run.phase))
            .chain(&mut self.former);
        for run in runs.filter(|run| !run.removed) {
            run.removed = true;
            if run.is_running() {
                run.state = HookState::Failed;
            }
            taken.push(InventoryEntry {
                object: run.object.clone(),
                uid: Some(run.uid.clone()),
                hash: None,
                fields: None,
                adopted: false,
                doomed: false,
                done: false,
                incomplete: false,
                overruled: Vec::new(),
            });
        }
        taken
    }

    /// Identifies one run of one hook.
    pub fn id(&self, hook: &ResolvedHook, phase: HookPhase) -> Digest {
        let first = Digest::of(format!(
            "{}\n{}\n{phase}\n{}\n{}",
            self.version, self.number, hook.object, hook.hash
        ));
        let after = |run: Digest| Digest::of(format!("{run}\nretry"));
        std::iter::successors(Some(first), |run| self.retried.contains(run).then(|| after(*run)))
            .last()
            .unwrap_or(first)
    }

    pub fn find(&self, hook: &ResolvedHook, phase: HookPhase) -> Option<&Run> {
        self.runs
            .iter()
            .find(|run| run.phase == phase && run.hash == hook.hash && run.key() == hook.key())
    }

    /// Stores a run in place of the earlier one of the same object and phase.
    pub fn note(&mut self, run: Run) {
        self.runs
            .retain(|other| other.phase != run.phase || other.key() != run.key());
        // There is only one object, whatever phase it runs in.
        for other in self.runs.iter_mut().filter(|other| other.key() == run.key()) {
            other.removed = true;
        }
        self.former.retain(|other| other.key() != run.key());
        self.runs.push(run);
    }

    /// Moves the runs of hooks that the version no longer has to `former`: e.g. of tests that were changed or removed
    /// from the spec.
    pub fn retire(&mut self, hooks: &[ResolvedHook]) {
        let has = |run: &mut Run| {
            hooks
                .iter()
                .any(|hook| run.hash == hook.hash && run.key() == hook.key())
        };
        let gone = self.runs.extract_if(.., |run| !has(run) && !is_of_deletion(run.phase));
        self.former.extend(gone.filter(|run| !run.removed));
    }

    pub fn running(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.is_running())
    }
}

/// The next step for the hooks of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// All are done, or there are none.
    Done,
    Start(Vec<&'a ResolvedHook>),
    /// This one has not ended.
    Running(&'a Run),
    Failed(&'a Run),
}

/// The hooks of a phase with their runs, by wave. For a version that was applied completely, only tests begin, because
/// they change without a new version, and hooks of its deletion.
fn due<'a>(
    hooks: &'a [ResolvedHook],
    record: &'a Record,
    phase: HookPhase,
) -> Vec<(&'a ResolvedHook, Option<&'a Run>)> {
    let may_begin = !record.complete || phase == HookPhase::Test || is_of_deletion(phase);
    let due = hooks.iter().filter(|hook| hook.runs_in(phase, record.occasion));
    let due = due
        .map(|hook| (hook, record.find(hook, phase)))
        .filter(|(_, run)| may_begin || run.is_some());
    let mut due: Vec<_> = due.collect();
    due.sort_by_key(|(hook, _)| hook.wave);
    due
}

/// Whether a hook is to begin, from its last run.
fn is_new(run: Option<&Run>, terms: Digest) -> bool {
    run.is_none_or(|run| run.state == HookState::Failed && run.terms != terms)
}

/// The next step of a phase, for the hooks in waves up to `last`. A wave begins when the previous one has succeeded.
/// The hooks of a wave run in parallel, and all of them end before a failure is reported.
pub fn next<'a>(hooks: &'a [ResolvedHook], record: &'a Record, phase: HookPhase, terms: Digest, last: i32) -> Next<'a> {
    let due = due(hooks, record, phase);
    for runs in due
        .chunk_by(|(a, _), (b, _)| a.wave == b.wave)
        .take_while(|wave| wave[0].0.wave <= last)
    {
        let start: Vec<&ResolvedHook> = runs
            .iter()
            .filter(|(_, run)| is_new(*run, terms))
            .map(|(hook, _)| *hook)
            .collect();
        if !start.is_empty() {
            return Next::Start(start);
        }
        let runs: Vec<&Run> = runs.iter().filter_map(|(_, run)| *run).collect();
        let of_state = |state| runs.iter().find(|run| run.state == state).copied();
        if let Some(run) = of_state(HookState::Running) {
            return Next::Running(run);
        }
        if let Some(run) = runs.iter().find(|run| run.state != HookState::Succeeded) {
            return Next::Failed(run);
        }
    }
    Next::Done
}

/// How far a hook's object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub state: HookState,
    /// It is about to end, so its pods and logs may soon be gone.
    pub is_ending: bool,
    pub message: String,
    pub started: Option<Time>,
    pub ended: Option<Time>,
}

/// Judges a hook's object as the API server returns it: a Job by its conditions, a Pod by its phase, others by their
/// health.
pub fn judge(rules: &Rules, object: &Value) -> Progress {
    let started = time(&object["status"]["startTime"]);
    let mut progress = Progress {
        state: HookState::Running,
        is_ending: false,
        message: String::new(),
        started,
        ended: None,
    };
    let group = object["apiVersion"]
        .as_str()
        .and_then(|v| v.split_once('/'))
        .map_or("", |(group, _)| group);
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("batch", "Job") => judge_job(object, &mut progress),
        ("", "Pod") => judge_pod(object, &mut progress),
        _ => judge_other(rules, object, &mut progress),
    }
    progress
}

/// Other kinds have no time of start or end of their own. The agent notes when it saw the end.
fn judge_other(rules: &Rules, object: &Value, progress: &mut Progress) {
    progress.started = time(&object["metadata"]["creationTimestamp"]);
    let (health, message) = rules.evaluate(object);
    progress.state = match health {
        Health::Current => HookState::Succeeded,
        Health::Failed => HookState::Failed,
        _ => HookState::Running,
    };
    if progress.state != HookState::Succeeded {
        progress.message = message;
    }
}

fn judge_job(job: &Value, progress: &mut Progress) {
    let conditions = job["status"]["conditions"].as_array();
    for condition in conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition["status"] == "True")
    {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        match text("type") {
            "Complete" => progress.state = HookState::Succeeded,
            "Failed" => {
                progress.state = HookState::Failed;
                progress.message = match (text("reason"), text("message")) {
                    ("", message) => message.to_owned(),
                    (reason, "") => reason.to_owned(),
                    (reason, message) => format!("{reason}: {message}"),
                };
            }
            // The Job is ending its pods.
            "FailureTarget" | "SuccessCriteriaMet" => {
                progress.is_ending = true;
                continue;
            }
            _ => continue,
        }
        progress.ended = time(&job["status"]["completionTime"]).or_else(|| time(&condition["lastTransitionTime"]));
    }
}

fn judge_pod(pod: &Value, progress: &mut Progress) {
    let status = &pod["status"];
    match status["phase"].as_str() {
        Some("Succeeded") => progress.state = HookState::Succeeded,
        Some("Failed") => {
            progress.state = HookState::Failed;
            let text = |field: &str| status[field].as_str().unwrap_or_default();
            progress.message = [text("reason"), text("message")].join(" ").trim().to_owned();
        }
        _ => return,
    }
    let ends = status["containerStatuses"].as_array().into_iter().flatten();
    progress.ended = ends
        .filter_map(|status| time(&status["state"]["terminated"]["finishedAt"]))
        .max();
}

fn time(value: &Value) -> Option<Time> {
    serde_json::from_value(value.clone()).ok()
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
