//! Notifications: the words for events of rollouts and services, and which of these events people are notified of.
//!
//! All messages about one thing are a *thread*. Only the newest message of a thread counts: it replaces the one that
//! waits to be sent, so nothing accumulates while a provider can't be reached. Where messages can be edited, a thread
//! is one message.

mod commits;
mod news;
mod problems;
mod thread;

pub use commits::{CommitNews, CommitState, MAX_DESCRIPTION, member_state};
pub use news::{Course, News, RolloutNews, ServiceNews, tell_services};
pub(crate) use problems::check_address;
pub use problems::problems;
pub use thread::{GIVE_UP, has_lapsed, is_news, wait_after};

use std::collections::BTreeMap;

use farwater_api::notification_rule::{EVERY, EventKind, EventSource};

/// The thread of one rollout of a set.
pub fn rollout_thread(set_uid: &str, number: u64) -> String {
    format!("rollout/{set_uid}/{number}")
}

/// Prefix of the threads of a set's commits.
pub fn commit_threads(set_uid: &str) -> String {
    format!("commit/{set_uid}/")
}

/// The thread of a commit's status, for a set or for one of its clusters.
pub fn commit_thread(set_uid: &str, commit: &str, cluster_uid: Option<&str>) -> String {
    let cluster = cluster_uid.map(|uid| format!("/{uid}")).unwrap_or_default();
    format!("{}{commit}{cluster}", commit_threads(set_uid))
}

pub const SERVICE_THREADS: &str = "service/";

pub fn service_thread(service_uid: &str) -> String {
    format!("{SERVICE_THREADS}{service_uid}")
}

/// Whether one of a rule's sources selects this object.
pub fn selects(sources: &[EventSource], kind: EventKind, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    sources.iter().any(|source| {
        source.kind == kind && (source.name == name || (source.name == EVERY && source.match_labels.iter().all(has)))
    })
}

#[cfg(test)]
mod tests;
