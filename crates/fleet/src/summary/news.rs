//! Kubernetes Events of a service, from its status before and after a change.

use farwater_api::{RolloutPhase, ServiceDeploymentStatus, ServiceSetStatus, SourceStatus, deletion::LastDeletion};

use crate::{
    conditions::{cut, find, holding},
    words::{counted, listed},
};

const MAX_MESSAGE_BYTES: usize = 1024;
/// Deleted objects that an Event names.
const NAMED: usize = 3;

/// One Event. Each reason occurs at most once for a change of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub is_warning: bool,
    /// CamelCase, for programs.
    pub reason: String,
    pub message: String,
}

impl News {
    fn new(is_warning: bool, reason: &str, message: &str) -> Self {
        Self {
            is_warning,
            reason: reason.to_owned(),
            message: cut(message, MAX_MESSAGE_BYTES),
        }
    }
}

/// Events for failures, recoveries, applied versions, and prunes that are held or done. `returned`: how the applied
/// version came back, as [`describe_return`](crate::history::describe_return) says it.
pub fn news(before: &ServiceDeploymentStatus, now: &ServiceDeploymentStatus, returned: Option<&str>) -> Vec<News> {
    let (was_failed, failed) = (
        holding(&before.conditions, "Stalled"),
        holding(&now.conditions, "Stalled"),
    );
    let mut all = Vec::new();
    if let Some(revision) = newly_applied(before, now) {
        let detail = returned.map_or_else(|| describe_change(before, now), str::to_owned);
        all.push(News::new(false, "Applied", &format!("applied {revision}{detail}")));
    }
    if let Some(failed) = failed {
        let is_new = was_failed.is_none_or(|was| was.reason != failed.reason);
        if is_new || before.assigned_revision != now.assigned_revision {
            all.push(News::new(true, &failed.reason, &failed.message));
        }
    } else if let Some(ready) = holding(&now.conditions, "Ready").filter(|_| before.failed_since.is_some()) {
        all.push(News::new(false, "Recovered", &ready.message));
    }
    let digest = |status: &ServiceDeploymentStatus| status.held_prune.as_ref().map(|held| held.digest);
    if let Some(held) = holding(&now.conditions, "PruneHeld").filter(|_| digest(before) != digest(now)) {
        all.push(News::new(true, "PruneHeld", &held.message));
    }
    let deletion = |status: &ServiceDeploymentStatus| status.last_deletion.as_ref().map(|one| (one.digest, one.time.0));
    if let Some(last) = now.last_deletion.as_ref().filter(|_| deletion(before) != deletion(now)) {
        all.push(News::new(false, "Pruned", &describe(last)));
    }
    all
}

/// Events of a source: a failed fetch, another reason for a failure, a recovery, and a new revision.
pub fn source_news(before: &SourceStatus, now: &SourceStatus) -> Vec<News> {
    let ready = |status: &SourceStatus| find(&status.conditions, "Ready").cloned();
    let failure =
        |status: &SourceStatus| ready(status).filter(|ready| status.stale_since.is_some() && ready.status == "False");
    let mut all = Vec::new();
    if let Some(revision) = now
        .revision
        .as_ref()
        .filter(|revision| before.revision.as_ref() != Some(*revision))
    {
        all.push(News::new(false, "Fetched", &format!("serves {revision}")));
    }
    match (failure(before), failure(now)) {
        (was, Some(failed)) if was.as_ref().is_none_or(|was| was.reason != failed.reason) => {
            all.push(News::new(true, &failed.reason, &failed.message));
        }
        (_, None) if before.stale_since.is_some() && now.stale_since.is_none() => {
            let told = ready(now).map(|ready| ready.message).unwrap_or_default();
            all.push(News::new(false, "Recovered", &told));
        }
        _ => {}
    }
    all
}

/// Events of a set: a rollout started, stopped or ended.
pub fn set_news(before: &ServiceSetStatus, now: &ServiceSetStatus) -> Vec<News> {
    let (was, now) = (
        before.rollout.clone().unwrap_or_default(),
        now.rollout.clone().unwrap_or_default(),
    );
    let mut all = Vec::new();
    if now.number == 0 {
        return all;
    }
    if was.number != now.number {
        let clusters = counted(usize::try_from(now.clusters()).unwrap_or_default(), "cluster");
        all.push(News::new(
            false,
            "RolloutStarted",
            &format!("rollout {} of {clusters} started", now.number),
        ));
    }
    if (was.number, was.phase) != (now.number, now.phase) {
        let by = now
            .halted_by
            .as_ref()
            .map(|by| format!("; halted by {by}"))
            .unwrap_or_default();
        let told = now.so_far() + &by;
        match now.phase {
            RolloutPhase::Halted => all.push(News::new(true, "RolloutHalted", &told)),
            RolloutPhase::Aborted => all.push(News::new(true, "RolloutAborted", &told)),
            RolloutPhase::Complete => all.push(News::new(false, "RolloutComplete", &told)),
            _ => {}
        }
    }
    all
}

/// Why an entry was applied that is no rollback. Empty: its revision is another one, and says why.
fn describe_change(before: &ServiceDeploymentStatus, now: &ServiceDeploymentStatus) -> String {
    let undone = |status: &ServiceDeploymentStatus| status.last_deletion.as_ref().and_then(|one| one.undone.clone());
    let request = undone(before).map(|undone| undone.request);
    if before.applied_revision != now.applied_revision {
        return String::new();
    }
    match undone(now).filter(|undone| Some(&undone.request) != request.as_ref()) {
        Some(undone) => format!(" again, after an undo restored {}", counted(undone.restored, "object")),
        None => ", after a change of its spec, parameters or approvals".to_owned(),
    }
}

/// The revision of an entry that was not applied before.
pub fn newly_applied<'a>(before: &ServiceDeploymentStatus, now: &'a ServiceDeploymentStatus) -> Option<&'a str> {
    now.applied_revision
        .as_deref()
        .filter(|_| !is_applied_already(before, now))
}

/// Whether both statuses name the same applied entry. If the earlier one is from an older hub and has no entry,
/// revisions are compared.
pub(super) fn is_applied_already(before: &ServiceDeploymentStatus, now: &ServiceDeploymentStatus) -> bool {
    match before.applied_entry {
        Some(known) => Some(known) == now.applied_entry,
        None => before.applied_revision == now.applied_revision,
    }
}

/// `deleted 4 objects: ConfigMap web/a, ConfigMap web/b, ConfigMap web/c and 1 more; approved by ada`
fn describe(deletion: &LastDeletion) -> String {
    let named: Vec<String> = deletion.objects.iter().take(NAMED).map(ToString::to_string).collect();
    let objects = listed(&named, usize::try_from(deletion.count).unwrap_or(usize::MAX));
    let by = deletion
        .approved_by
        .as_ref()
        .map(|by| format!("; approved by {by}"))
        .unwrap_or_default();
    format!("deleted {}: {objects}{by}", counted(deletion.count, "object"))
}
