//! Which hook runs next, and what is remembered of those that have run.
//!
//! A version's hooks run once. That is remembered in a [`Record`], which the agent keeps in the cluster beside the inventory: neither a
//! restart nor a repair runs one again. The cluster's objects alone could not tell, because they are deleted when they have ended.

mod foresee;

use std::time::Duration;

use farwater_api::{
    Digest,
    hooks::{HookPhase, HookState},
    objects::ObjectRef,
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

/// Retries of hooks of one version that are remembered: who tries more often has something else to mend.
const MAX_RETRIED: usize = 100;

/// What is remembered of the hooks of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// See [`version_of`].
    pub version: Digest,
    /// Counts versions, so that one that comes back runs its hooks again.
    pub number: u64,
    pub occasion: Occasion,
    /// Whether the version was in place once, with all that runs after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<Run>,
    /// Of earlier versions, as long as their objects may be there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Run>,
    /// Hooks of a deletion: when it comes the source may be gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub farewell: Vec<ResolvedHook>,
    /// Runs of this version that failed and were begun again, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retried: Vec<Digest>,
}

/// One hook, once it was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    #[serde(flatten)]
    pub object: ObjectRef,
    pub phase: HookPhase,
    pub id: Digest,
    pub uid: String,
    /// Of the manifest.
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
    /// Seconds from its end until its object goes, as `ttlSecondsAfterFinished` of its manifest says. The object is made without that field:
    /// the cluster would delete it before anybody has seen how it ended.
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

    /// How long until its object is to be deleted, by its policy or its time to live. None: it stays.
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
        let age = self
            .ended
            .as_ref()
            .map_or(Duration::ZERO, |ended| Duration::try_from(now.duration_since(ended.0)).unwrap_or_default());
        (!self.removed).then(|| lives.saturating_sub(age))
    }

    /// What people call it.
    pub fn describe(&self) -> String {
        match &self.test {
            Some(test) => format!("test {test}"),
            None => format!("{} hook {}", self.phase, self.object),
        }
    }
}

/// What makes a version to its hooks: a repair, an approval or another option does not have them run again.
pub fn version_of(deployment: &Deployment) -> Digest {
    let mut text = format!("{}\n{}\n{}", deployment.bundle, deployment.path, deployment.target_namespace);
    if !deployment.renderers.is_empty() || !deployment.patches.is_empty() {
        // Another value is another version, as it is to Helm.
        let rendering = serde_json::json!([deployment.renderers, deployment.patches]);
        text = format!("{text}\n{}", Digest::of_json(&rendering));
    }
    if let Some(mac) = &deployment.parameters {
        text = format!("{text}\nparameters {mac}");
    }
    if !deployment.configuration.is_empty() {
        text = format!("{text}\npromoted {}", Digest::of_json(&serde_json::json!(deployment.configuration)));
    }
    Digest::of(text)
}

/// What a hook was run with beside its version. One that has failed is run again with something else.
pub fn terms_of(deployment: &Deployment) -> Digest {
    let terms = serde_json::json!({"secrets": deployment.secrets, "ceiling": deployment.ceiling});
    Digest::of_json(&terms)
}

impl Record {
    /// The record of a version, after that of what came before it. `established`: something was in place before there were records.
    pub fn next(last: Option<Self>, version: Digest, established: bool) -> Self {
        let Some(last) = last else {
            let occasion = if established { Occasion::Upgrade } else { Occasion::Install };
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

    /// The record with which a version begins, or goes on. `established` as in [`next`](Self::next).
    pub fn of_version(last: Option<Self>, deployment: &Deployment, resolved: &Resolved, established: bool) -> Self {
        let mut record = Self::next(last, version_of(deployment), established);
        // What a source lacks that can't be read completely may well be there.
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

    /// Has a hook begin again whose run failed. A run is retried once: the next one has another id, which nobody has named before. Of a
    /// version that was in place, and of a deletion, none is.
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

    /// What is there of hooks when the service is removed: from then on objects like all others, which go or stay with them. Hooks of
    /// the deletion itself are none of these.
    pub fn take_objects(&mut self) -> Vec<InventoryEntry> {
        let mut taken = Vec::new();
        let runs = self.runs.iter_mut().filter(|run| !is_of_deletion(run.phase)).chain(&mut self.former);
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

    /// Names one run of one hook.
    pub fn id(&self, hook: &ResolvedHook, phase: HookPhase) -> Digest {
        let first = Digest::of(format!("{}\n{}\n{phase}\n{}\n{}", self.version, self.number, hook.object, hook.hash));
        let after = |run: Digest| Digest::of(format!("{run}\nretry"));
        std::iter::successors(Some(first), |run| self.retried.contains(run).then(|| after(*run)))
            .last()
            .unwrap_or(first)
    }

    pub fn find(&self, hook: &ResolvedHook, phase: HookPhase) -> Option<&Run> {
        self.runs.iter().find(|run| run.phase == phase && run.hash == hook.hash && run.key() == hook.key())
    }

    /// Replaces what is known of the run of an object in a phase.
    pub fn note(&mut self, run: Run) {
        self.runs.retain(|other| other.phase != run.phase || other.key() != run.key());
        // The object is one, whatever phase it runs in.
        for other in self.runs.iter_mut().filter(|other| other.key() == run.key()) {
            other.removed = true;
        }
        self.former.retain(|other| other.key() != run.key());
        self.runs.push(run);
    }

    /// Takes out the runs of hooks that the version doesn't have any more: of tests that were changed or taken out of the spec.
    pub fn retire(&mut self, hooks: &[ResolvedHook]) {
        let has = |run: &mut Run| hooks.iter().any(|hook| run.hash == hook.hash && run.key() == hook.key());
        let gone = self.runs.extract_if(.., |run| !has(run) && !is_of_deletion(run.phase));
        self.former.extend(gone.filter(|run| !run.removed));
    }

    pub fn running(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|run| run.is_running())
    }
}

/// What is to be done about the hooks of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Nothing, or nothing any more.
    Done,
    Start(Vec<&'a ResolvedHook>),
    /// This one has not ended.
    Running(&'a Run),
    Failed(&'a Run),
}

/// The hooks of a phase, each with its run, by wave. For a version that was in place once nothing is begun any more but tests, which come
/// and go without a version, and what belongs to its deletion.
fn due<'a>(
    hooks: &'a [ResolvedHook],
    record: &'a Record,
    phase: HookPhase,
) -> Vec<(&'a ResolvedHook, Option<&'a Run>)> {
    let may_begin = !record.complete || phase == HookPhase::Test || is_of_deletion(phase);
    let due = hooks.iter().filter(|hook| hook.runs_in(phase, record.occasion));
    let due = due.map(|hook| (hook, record.find(hook, phase))).filter(|(_, run)| may_begin || run.is_some());
    let mut due: Vec<_> = due.collect();
    due.sort_by_key(|(hook, _)| hook.wave);
    due
}

/// Whether a hook is to be begun, by its run.
fn is_new(run: Option<&Run>, terms: Digest) -> bool {
    run.is_none_or(|run| run.state == HookState::Failed && run.terms != terms)
}

/// The next step of a phase, of the hooks in waves up to `last`. A wave begins when the one before has succeeded; those of one wave run
/// beside each other, and all of them end before one that failed is told.
pub fn next<'a>(hooks: &'a [ResolvedHook], record: &'a Record, phase: HookPhase, terms: Digest, last: i32) -> Next<'a> {
    let due = due(hooks, record, phase);
    for runs in due.chunk_by(|(a, _), (b, _)| a.wave == b.wave).take_while(|wave| wave[0].0.wave <= last) {
        let start: Vec<&ResolvedHook> =
            runs.iter().filter(|(_, run)| is_new(*run, terms)).map(|(hook, _)| *hook).collect();
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

/// How far a hook's object has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub state: HookState,
    /// It is about to end: what it leaves behind may soon be gone.
    pub is_ending: bool,
    pub message: String,
    pub started: Option<Time>,
    pub ended: Option<Time>,
}

/// Judges a hook's object, as the API server returns it: a Job by its conditions, a Pod by its phase, anything else by its health.
pub fn judge(rules: &Rules, object: &Value) -> Progress {
    let started = time(&object["status"]["startTime"]);
    let mut progress =
        Progress { state: HookState::Running, is_ending: false, message: String::new(), started, ended: None };
    let group = object["apiVersion"].as_str().and_then(|v| v.split_once('/')).map_or("", |(group, _)| group);
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("batch", "Job") => judge_job(object, &mut progress),
        ("", "Pod") => judge_pod(object, &mut progress),
        _ => match rules.evaluate(object) {
            (farwater_api::objects::Health::Current, _) => progress.state = HookState::Succeeded,
            (farwater_api::objects::Health::Failed, message) => {
                (progress.state, progress.message) = (HookState::Failed, message);
            }
            (_, message) => progress.message = message,
        },
    }
    progress
}

fn judge_job(job: &Value, progress: &mut Progress) {
    let conditions = job["status"]["conditions"].as_array();
    for condition in conditions.into_iter().flatten().filter(|condition| condition["status"] == "True") {
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
            // Its pods are being ended.
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
    progress.ended = ends.filter_map(|status| time(&status["state"]["terminated"]["finishedAt"])).max();
}

fn time(value: &Value) -> Option<Time> {
    serde_json::from_value(value.clone()).ok()
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
