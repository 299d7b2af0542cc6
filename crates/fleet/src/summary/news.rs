//! What became of a service between two statuses, as Events tell it.

use farwater_api::{Condition, ServiceDeploymentStatus, deletion::Deletion};

use crate::{conditions::cut, words::counted};

const MAX_MESSAGE_BYTES: usize = 1024;
/// Deleted objects that are named.
const NAMED: usize = 3;

/// One Event of a service. A reason is told of at most once for a change of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    pub is_warning: bool,
    /// CamelCase, for programs.
    pub reason: String,
    pub message: String,
}

impl News {
    fn new(is_warning: bool, reason: &str, message: &str) -> Self {
        Self { is_warning, reason: reason.to_owned(), message: cut(message, MAX_MESSAGE_BYTES) }
    }
}

/// Failures, recoveries, applied versions, and prunes: held ones and those that were done.
pub fn news(before: &ServiceDeploymentStatus, now: &ServiceDeploymentStatus) -> Vec<News> {
    let failed = |status: &'_ ServiceDeploymentStatus| find(status, "Stalled").cloned();
    let (was_failed, is_failed) = (failed(before), failed(now));
    let mut all = Vec::new();
    // An older hub did not note of which entry it was.
    let is_known = match before.applied_entry {
        Some(known) => Some(known) == now.applied_entry,
        None => before.applied_revision == now.applied_revision,
    };
    if let Some(revision) = now.applied_revision.as_ref().filter(|_| !is_known) {
        let again = before.applied_revision.as_ref() == Some(revision);
        let detail = if again { ", after a change of its spec, parameters or approvals" } else { "" };
        all.push(News::new(false, "Applied", &format!("applied {revision}{detail}")));
    }
    match (&was_failed, &is_failed) {
        (was, Some(failed))
            if was.as_ref().is_none_or(|was| was.reason != failed.reason)
                || before.assigned_revision != now.assigned_revision =>
        {
            all.push(News::new(true, &failed.reason, &failed.message));
        }
        (Some(_), None) if find(now, "Ready").is_some() => {
            let ready = find(now, "Ready").map_or("", |ready| &ready.message);
            all.push(News::new(false, "Recovered", ready));
        }
        _ => {}
    }
    let digest = |status: &ServiceDeploymentStatus| status.held_prune.as_ref().map(|held| held.digest);
    if let Some(held) = find(now, "PruneHeld").filter(|_| digest(before) != digest(now)) {
        all.push(News::new(true, "PruneHeld", &held.message));
    }
    let deletion = |status: &ServiceDeploymentStatus| status.last_deletion.as_ref().map(|one| (one.digest, one.time));
    if let Some(last) = now.last_deletion.as_ref().filter(|_| deletion(before) != deletion(now)) {
        all.push(News::new(false, "Pruned", &describe(last)));
    }
    all
}

/// A condition that is true.
fn find<'s>(status: &'s ServiceDeploymentStatus, kind: &str) -> Option<&'s Condition> {
    status.conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")
}

/// `deleted 4 objects: ConfigMap web/a, ConfigMap web/b, ConfigMap web/c and 1 more; approved by ada`
fn describe(deletion: &Deletion) -> String {
    let named: Vec<String> = deletion.objects.iter().take(NAMED).map(ToString::to_string).collect();
    let more = usize::try_from(deletion.count).unwrap_or(usize::MAX).saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let by = deletion.approved_by.as_ref().map(|by| format!("; approved by {by}")).unwrap_or_default();
    format!("deleted {}: {}{more}{by}", counted(deletion.count, "object"), named.join(", "))
}
