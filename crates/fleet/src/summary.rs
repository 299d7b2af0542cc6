//! Summary: a service's status from its assignment, its action in the desired state, and its agent's report.

use farwater_api::{
    Digest, ServiceDeploymentStatus,
    hooks::{HookPhase, HookReport, HookState},
    objects::{Health, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::Action,
    service_deployment::{DeletionPolicy, HeldPrune, HookCounts, ObjectCounts, Pin, UnhealthyObject},
    test_container::ServiceTest,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use deletion::{shorten_deletion, sign_deletion};
use news::is_applied_already;
pub use news::{News, newly_applied, news, set_news, source_news};

use crate::{
    assignment::{Candidate, Why},
    conditions::{self, Verdict, cut},
    parameters::WAITS,
    words::{counted, verb},
};

mod deletion;
mod held;
mod news;

/// Most bytes of a status, because a million services are listed and watched with theirs.
pub const MAX_STATUS_BYTES: usize = 4096;
/// Reason of a service whose agent has not reported on the current entry. Older reports say nothing about now.
pub const WAITING_FOR_AGENT: &str = "WaitingForAgent";
/// Reason of a service whose files could not all be read, or whose objects were not all applied.
pub const APPLY_FAILED: &str = "ApplyFailed";
/// Reasons of a service whose hook or test has failed.
pub const HOOK_FAILED: &str = "HookFailed";
pub const TEST_FAILED: &str = "TestFailed";
/// Condition of a service whose newer version or spec waits because no change may begin.
pub const FROZEN: &str = "Frozen";
/// Condition of a member whose newer version or spec waits for the rollout of its set.
pub const ROLLOUT_HELD: &str = "RolloutHeld";
/// Begins the message of a service whose removal waits for something.
pub const REMOVAL_HELD: &str = "removal is held";
/// Reason of a prune that waits because all deletions of the fleet are stopped.
pub const FLEET_FROZEN: &str = "FleetFrozen";
/// Reason of a set whose rollout is halted by a failed cluster.
pub const ROLLOUT_HALTED: &str = "RolloutHalted";
/// Reason of the condition `Ready` of a set whose selector finds no cluster.
pub const NO_CLUSTERS: &str = "NoClusters";
/// Ends the message of a removal that waits for a silent agent.
pub const REMOVAL_EXIT: &str =
    "to release its objects instead, set spec.deletionPolicy to Orphan or delete the Cluster; they stay then";
const MAX_STALE_BYTES: usize = 256;
const MAX_UNHEALTHY: usize = 5;
const MAX_UNHEALTHY_MESSAGE_BYTES: usize = 256;
const MAX_HELD_OBJECTS: usize = 10;
const MAX_HELD_EARLIER: usize = 3;
const MAX_HELD_CONTENTS: usize = 3;
const MAX_HELD_KINDS: usize = 8;

/// The inputs of a summary. A `report` on an older entry says nothing about now.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub generation: i64,
    pub deleting: bool,
    pub cluster: &'a str,
    /// Whether the cluster's agent has an identity.
    pub joined: bool,
    /// Whether the agent has missed its polls.
    pub silent: bool,
    /// Whether all deletions of the fleet are stopped.
    pub frozen: bool,
    pub assigned: Option<&'a Candidate>,
    /// Revision that is held back, as [`held_version`](crate::assignment::held_version) decides.
    pub held: Option<&'a str>,
    pub pin: Option<&'a Pin>,
    /// Revision of the version that it is pinned to. None: it has no pin, or its history lacks the version.
    pub pinned: Option<&'a str>,
    pub why: &'a Why,
    /// The action of its entry in the cluster's present desired state.
    pub action: &'a Action,
    pub entry: Digest,
    pub report: Option<&'a ServiceReport>,
    pub report_time: Option<Timestamp>,
    /// The last request annotation that was acted on.
    pub requested_at: Option<&'a str>,
    /// Values of backends that are not current, and why. None: all are.
    pub stale: Option<&'a str>,
    pub previous: &'a ServiceDeploymentStatus,
    pub now: Timestamp,
}

/// The status of a service.
pub fn summarize(inputs: Inputs<'_>) -> ServiceDeploymentStatus {
    let report = inputs.report.filter(|report| report.entry == inputs.entry);
    let verdicts = collect_verdicts(&inputs, report);

    let mut status = ServiceDeploymentStatus {
        observed_generation: Some(inputs.generation),
        conditions: conditions::resolve(&inputs.previous.conditions, verdicts, inputs.generation, inputs.now),
        assigned_revision: inputs.assigned.map(|assigned| assigned.revision.clone()),
        bundle_digest: inputs.assigned.map(|assigned| assigned.bundle),
        configuration: inputs
            .assigned
            .map(|assigned| assigned.configuration.clone())
            .unwrap_or_default(),
        held_revision: inputs.held.map(str::to_owned),
        changed_by: inputs.previous.changed_by.clone(),
        pinned_by: inputs.previous.pinned_by.clone(),
        suspended_by: inputs.previous.suspended_by.clone(),
        approved_by: inputs.previous.approved_by.clone(),
        approved_at: inputs.previous.approved_at.clone(),
        hook_retried_by: inputs.previous.hook_retried_by.clone(),
        hook_retried_at: inputs.previous.hook_retried_at.clone(),
        overridden_by: inputs.previous.overridden_by.clone(),
        overridden_at: inputs.previous.overridden_at.clone(),
        prune_proposed_by: inputs.previous.prune_proposed_by.clone(),
        prune_proposed_at: inputs.previous.prune_proposed_at.clone(),
        override_proposed_by: inputs.previous.override_proposed_by.clone(),
        override_proposed_at: inputs.previous.override_proposed_at.clone(),
        applied_revision: inputs.previous.applied_revision.clone(),
        objects: inputs.previous.objects,
        hooks: None,
        unhealthy: Vec::new(),
        held_prune: None,
        last_deletion: inputs
            .report
            .and_then(|report| report.deletion.clone())
            .and_then(|deletion| sign_deletion(&inputs, deletion)),
        last_applied_time: inputs.previous.last_applied_time.clone(),
        assigned_entry: matches!(inputs.action, Action::Apply(_)).then_some(inputs.entry),
        applied_entry: inputs.previous.applied_entry,
        failed_since: None,
        last_handled_reconcile_at: inputs.requested_at.map(str::to_owned),
    };

    if let Some(report) = report {
        show_report(&mut status, &inputs, report);
    }
    status.failed_since = failed_since(&inputs, &status);
    fit(&mut status);
    status
}

fn collect_verdicts(inputs: &Inputs<'_>, report: Option<&ServiceReport>) -> Vec<Verdict> {
    let mut verdicts = resolve_verdicts(inputs, report);
    if let Some(held) = report.and_then(|report| report.held_prune.as_ref()) {
        let message = describe_held(held);
        let reason = if inputs.frozen { FLEET_FROZEN } else { "ApprovalNeeded" };
        verdicts.push(Verdict::new("PruneHeld", Some(true), reason, message));
    }
    verdicts.extend(report.and_then(drift_verdict));
    verdicts.extend(held::verdicts(inputs));
    if let Some(stale) = inputs.stale.filter(|_| !inputs.deleting) {
        verdicts.push(Verdict::new(
            "SecretsStale",
            Some(true),
            "BackendFailed",
            cut(stale, MAX_STALE_BYTES),
        ));
    }
    verdicts
}

/// Adds what a report on the current entry says.
fn show_report(status: &mut ServiceDeploymentStatus, inputs: &Inputs<'_>, report: &ServiceReport) {
    status.objects = Some(count(&report.objects));
    status.hooks = (!report.hooks.is_empty()).then(|| count_hooks(&report.hooks));
    status.unhealthy = first_unhealthy(&report.objects);
    status.held_prune = report.held_prune.clone().map(limit_held);
    if report.outcome == Outcome::Applied && matches!(inputs.action, Action::Apply(_)) {
        status.applied_revision = inputs.assigned.map(|assigned| assigned.revision.clone());
        status.applied_entry = Some(inputs.entry);
        // An agent that starts reports again what it applied before.
        if !is_applied_already(inputs.previous, status) || status.last_applied_time.is_none() {
            status.last_applied_time = inputs.report_time.map(conditions::whole_seconds);
        }
    }
}

/// As much of a held prune as a status has room for.
fn limit_held(mut held: HeldPrune) -> HeldPrune {
    held.objects.truncate(MAX_HELD_OBJECTS);
    held.earlier.truncate(MAX_HELD_EARLIER);
    held.contents.truncate(MAX_HELD_CONTENTS);
    for contents in &mut held.contents {
        contents.counts.truncate(MAX_HELD_KINDS);
    }
    held.reason = cut(&held.reason, MAX_UNHEALTHY_MESSAGE_BYTES);
    held
}

/// When the failure began that the service has not recovered from.
fn failed_since(inputs: &Inputs<'_>, status: &ServiceDeploymentStatus) -> Option<Time> {
    let holds = |kind: &str| conditions::holding(&status.conditions, kind).is_some();
    match (holds("Stalled"), holds("Ready")) {
        (true, _) => inputs
            .previous
            .failed_since
            .clone()
            .or_else(|| Some(conditions::whole_seconds(inputs.now))),
        (false, true) => None,
        (false, false) => inputs.previous.failed_since.clone(),
    }
}

/// Objects that others changed and that are left so, as the service or the object asks.
fn drift_verdict(report: &ServiceReport) -> Option<Verdict> {
    let drifted: Vec<&ObjectReport> = report.objects.iter().filter(|o| o.sync == SyncState::Drifted).collect();
    let first = drifted.first()?;
    let noun = if drifted.len() == 1 {
        "object differs"
    } else {
        "objects differ"
    };
    let message = format!(
        "{} {noun} from the source: {}: {}",
        drifted.len(),
        first.object,
        first.message
    );
    Some(Verdict::new("Drifted", Some(true), "ChangedByOthers", message))
}

fn resolve_verdicts(inputs: &Inputs<'_>, report: Option<&ServiceReport>) -> Vec<Verdict> {
    if inputs.deleting {
        return Verdict::reconciling("Removing", removal_message(inputs, report));
    }
    if let Why::Trouble(trouble) = inputs.why {
        return trouble_verdicts(inputs, trouble);
    }
    if let Why::Waiting(reasons) = inputs.why {
        let newer = inputs.held.unwrap_or("the newer version");
        let kept = inputs.assigned.map_or_else(String::new, |assigned| {
            format!("; {} stays assigned", assigned.revision)
        });
        return Verdict::reconciling("DependencyNotReady", format!("{newer} {reasons}{kept}"));
    }

    // The candidate is not granted, but the assigned version is, e.g. after a pin to a version from a source that is no
    // longer granted.
    if let (Why::NotGranted(reason), Action::Apply(_), Some(kept)) = (inputs.why, inputs.action, inputs.assigned) {
        return Verdict::stalled("NotGranted", format!("{reason}; {} stays assigned", kept.revision));
    }

    match inputs.action {
        Action::Hold { reason } if matches!(inputs.why, Why::NotGranted(_)) => {
            Verdict::stalled("NotGranted", reason.clone())
        }
        Action::Hold { reason }
            if inputs.assigned.is_none() && matches!(inputs.why, Why::Current | Why::Rollout | Why::Frozen(_)) =>
        {
            Verdict::reconciling("Progressing", reason.clone())
        }
        Action::Hold { reason } => vec![Verdict::new("Ready", None, "Held", format!("held: {reason}"))],
        Action::Remove { .. } => Verdict::reconciling("Removing", removal_message(inputs, report)),
        // A hub never produces an action that it can't read itself, so use the agent's report as for an apply.
        Action::Apply(_) | Action::Unreadable(_) => applied_verdicts(inputs, report),
    }
}

/// A service keeps running its assigned version; the trouble is reported in either case.
fn trouble_verdicts(inputs: &Inputs<'_>, trouble: &crate::assignment::Trouble) -> Vec<Verdict> {
    use crate::assignment::Trouble;
    let kept = inputs.assigned.map_or_else(String::new, |assigned| {
        format!("; {} stays assigned", assigned.revision)
    });
    let message = format!("{trouble}{kept}");
    match trouble {
        Trouble::ClusterMissing { .. } => Verdict::stalled("ClusterNotFound", message),
        Trouble::SourceMissing { .. } => Verdict::stalled("SourceNotFound", message),
        Trouble::SourceEmpty { .. } | Trouble::ChartPending { .. } => Verdict::reconciling("SourceNotReady", message),
        Trouble::ChartMissing { .. } => Verdict::stalled("ChartNotFound", message),
        Trouble::Secret { .. } => Verdict::stalled("SecretNotReady", message),
        Trouble::Parameters { message: why } if why.starts_with(WAITS) => {
            Verdict::reconciling("ParametersNotReady", message)
        }
        Trouble::Parameters { .. } => Verdict::stalled("ParametersNotReady", message),
        Trouble::Pin { .. } => Verdict::stalled("PinFailed", message),
        Trouble::Cycle { .. } => Verdict::stalled("DependencyCycle", message),
        Trouble::Files { revision, .. } => Verdict::reconciling("FilesNotReady", format!("{revision}: {message}")),
        Trouble::Bundle { revision, .. } => Verdict::stalled("BundleFailed", format!("{revision}: {message}")),
    }
}

fn removal_message(inputs: &Inputs<'_>, report: Option<&ServiceReport>) -> String {
    let message = match (inputs.action, report) {
        (Action::Hold { reason }, _) => format!("{REMOVAL_HELD}: {reason}"),
        (_, Some(report)) if !report.message.is_empty() => report.message.clone(),
        (_, Some(_)) => format!("cluster {} is removing it", inputs.cluster),
        (_, None) => format!(
            "waits for the agent of cluster {} to confirm the removal",
            inputs.cluster
        ),
    };
    // A service that orphans its objects does not wait for its agent.
    let is_stuck = inputs.silent
        && matches!(
            inputs.action,
            Action::Remove {
                policy: DeletionPolicy::Delete,
                ..
            }
        );
    if is_stuck {
        format!("{message}; the agent is silent: {REMOVAL_EXIT}")
    } else {
        message
    }
}

fn applied_verdicts(inputs: &Inputs<'_>, report: Option<&ServiceReport>) -> Vec<Verdict> {
    let revision = inputs.assigned.map_or("", |assigned| assigned.revision.as_str());
    let Some(report) = report else {
        return Verdict::reconciling(WAITING_FOR_AGENT, waiting_message(inputs, revision));
    };
    match report.outcome {
        Outcome::Applying => Verdict::reconciling(
            "Progressing",
            with_detail(format!("applying {revision}"), &report.message),
        ),
        Outcome::Superseded | Outcome::Removed => Verdict::reconciling(
            "Progressing",
            with_detail(format!("{revision} is about to be applied"), &report.message),
        ),
        Outcome::Failed => {
            let reason = if report.message.is_empty() {
                first_message(&report.objects)
            } else {
                report.message.clone()
            };
            match failed_phase(&report.hooks) {
                Some(HookPhase::Test) => Verdict::stalled(
                    TEST_FAILED,
                    with_detail(format!("{revision} failed its tests"), &reason),
                ),
                Some(_) => Verdict::stalled(
                    HOOK_FAILED,
                    with_detail(format!("a hook of {revision} failed"), &reason),
                ),
                None => {
                    let message = format!("{revision} was not applied completely");
                    Verdict::stalled(APPLY_FAILED, with_detail(message, &reason))
                }
            }
        }
        Outcome::Applied => health_verdicts(inputs, report, revision),
        Outcome::Unknown => {
            let message = format!(
                "the agent of cluster {} says what only a newer hub knows; upgrade the hub",
                inputs.cluster
            );
            vec![Verdict::new(
                "Ready",
                None,
                "ReportUnknown",
                with_detail(message, &report.message),
            )]
        }
    }
}

fn waiting_message(inputs: &Inputs<'_>, revision: &str) -> String {
    if inputs.joined {
        format!("waits for the agent of cluster {} to apply {revision}", inputs.cluster)
    } else {
        format!(
            "cluster {0} has not joined; run: farwater cluster join {0}",
            inputs.cluster
        )
    }
}

fn health_verdicts(inputs: &Inputs<'_>, report: &ServiceReport, revision: &str) -> Vec<Verdict> {
    let counts = count(&report.objects);
    if counts.failed > 0 {
        let message = format!("{} of {} failed", counts.failed, counted(counts.total, "object"));
        return Verdict::stalled("Unhealthy", with_detail(message, &first_message(&report.objects)));
    }
    if counts.healthy < counts.total {
        let waiting = counts.total - counts.healthy;
        let (all, is) = (counted(counts.total, "object"), verb(&waiting, "is", "are"));
        let message = format!("{waiting} of {all} {is} not ready yet");
        return Verdict::reconciling("Progressing", with_detail(message, &first_message(&report.objects)));
    }
    if let Some(held) = &report.held_prune {
        let message = describe_held(held);
        return vec![Verdict::new("Ready", Some(false), "PruneHeld", message)];
    }
    let tests = if let Action::Apply(deployment) = inputs.action {
        deployment.tests.as_slice()
    } else {
        &[]
    };
    if let Some(test) = missing_test(report, tests) {
        let message = format!(
            "test {test} of {revision} was not run: the agent of cluster {} runs no tests",
            inputs.cluster
        );
        return Verdict::reconciling("TestNotRun", format!("{message}; upgrade it"));
    }
    let pinned = if held::is_pin_assigned(inputs) {
        " and pinned"
    } else {
        ""
    };
    let (all, are) = (counted(counts.total, "object"), verb(&counts.total, "is", "are"));
    Verdict::ready("Applied", format!("applied {revision}{pinned}; {all} {are} healthy"))
}

/// `4 objects wait to be pruned: nothing would be left`
pub(crate) fn describe_held(held: &HeldPrune) -> String {
    let (all, wait) = (counted(held.count, "object"), verb(&held.count, "waits", "wait"));
    format!("{all} {wait} to be pruned: {}", held.reason)
}

fn with_detail(message: String, detail: &str) -> String {
    if detail.is_empty() {
        message
    } else {
        format!("{message}: {detail}")
    }
}

pub(crate) fn first_message(objects: &[ObjectReport]) -> String {
    first_unhealthy(objects).first().map_or_else(String::new, |first| {
        if first.message.is_empty() {
            first.object.to_string()
        } else {
            format!("{}: {}", first.object, first.message)
        }
    })
}

/// Rates an object: `Some(false)` failed, `None` progressing, `Some(true)` healthy. An object that is kept from a prune
/// isn't desired.
fn rate(report: &ObjectReport) -> Option<bool> {
    match (report.sync, report.health) {
        (SyncState::Refused, _) | (_, Health::Failed) => Some(false),
        (SyncState::Synced | SyncState::Drifted, Health::Current) => Some(true),
        _ => None,
    }
}

fn desired(objects: &[ObjectReport]) -> impl Iterator<Item = &ObjectReport> {
    objects.iter().filter(|report| report.sync != SyncState::PruneHeld)
}

fn count_hooks(hooks: &[HookReport]) -> HookCounts {
    let count = |state| u32::try_from(hooks.iter().filter(|hook| hook.state == state).count()).unwrap_or(u32::MAX);
    HookCounts {
        running: count(HookState::Running),
        succeeded: count(HookState::Succeeded),
        failed: count(HookState::Failed),
    }
}

/// The phase of the first failed hook. Hooks that run because of a failure are not its cause.
fn failed_phase(hooks: &[HookReport]) -> Option<HookPhase> {
    let failed = hooks
        .iter()
        .filter(|hook| hook.state == HookState::Failed && hook.phase != HookPhase::SyncFail);
    failed.map(|hook| hook.phase).min()
}

/// A test that did not succeed according to the report. None: all did.
pub(crate) fn missing_test<'a>(report: &ServiceReport, tests: &'a [ServiceTest]) -> Option<&'a str> {
    let has_run = |test: &&ServiceTest| {
        let mut hooks = report.hooks.iter();
        hooks.any(|hook| hook.test.as_deref() == Some(&test.name) && hook.state == HookState::Succeeded)
    };
    tests.iter().find(|test| !has_run(test)).map(|test| test.name.as_str())
}

pub(crate) fn count(objects: &[ObjectReport]) -> ObjectCounts {
    let mut counts = ObjectCounts::default();
    for report in desired(objects) {
        counts.total += 1;
        match rate(report) {
            Some(true) => counts.healthy += 1,
            Some(false) => counts.failed += 1,
            None => counts.progressing += 1,
        }
    }
    counts
}

/// Failed and refused objects first, in the report's order, then those that progress.
fn first_unhealthy(objects: &[ObjectReport]) -> Vec<UnhealthyObject> {
    let failed = desired(objects).filter(|report| rate(report) == Some(false));
    let progressing = desired(objects).filter(|report| rate(report).is_none());
    let cut_one = |report: &ObjectReport| UnhealthyObject {
        object: report.object.clone(),
        message: cut(&report.message, MAX_UNHEALTHY_MESSAGE_BYTES),
    };
    failed.chain(progressing).take(MAX_UNHEALTHY).map(cut_one).collect()
}

/// Drops examples until the status fits. Counts and conditions stay.
fn fit(status: &mut ServiceDeploymentStatus) {
    let bytes = |status: &ServiceDeploymentStatus| serde_json::to_vec(status).map_or(0, |json| json.len());
    while bytes(status) > MAX_STATUS_BYTES {
        let held = status.held_prune.as_mut().and_then(|held| held.objects.pop()).is_some();
        let contents = !held
            && status
                .held_prune
                .as_mut()
                .and_then(|held| held.contents.pop())
                .is_some();
        let deleted = !held && !contents && status.last_deletion.as_mut().is_some_and(shorten_deletion);
        if !held && !contents && !deleted && status.unhealthy.pop().is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
