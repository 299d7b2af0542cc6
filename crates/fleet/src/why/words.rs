//! The words of all explanations: conditions, revisions, names and ages.

use farwater_api::{Condition, ServiceDeployment};
use jiff::Timestamp;

pub(super) fn sentence(condition: &Condition) -> String {
    let text = if condition.message.is_empty() {
        &condition.reason
    } else {
        &condition.message
    };
    text.trim_end_matches('.').to_owned()
}

pub(super) fn revisions(service: &ServiceDeployment) -> String {
    let status = service.status.clone().unwrap_or_default();
    format!(
        "assigned {}, applied {}",
        status.assigned_revision.as_deref().unwrap_or("nothing"),
        status.applied_revision.as_deref().unwrap_or("nothing")
    ) + &status
        .held_revision
        .map(|held| format!(", held back {held}"))
        .unwrap_or_default()
}

pub(super) fn namespace_of(service: &ServiceDeployment) -> &str {
    service.metadata.namespace.as_deref().unwrap_or_default()
}

pub(super) fn name_of(service: &ServiceDeployment) -> &str {
    service.metadata.name.as_deref().unwrap_or_default()
}

pub(super) fn flags(service: &ServiceDeployment) -> String {
    format!("{} -n {}", name_of(service), namespace_of(service))
}

/// `42s`, `7m`, `3h` or `5d`. The largest unit alone shows how urgent it is.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
