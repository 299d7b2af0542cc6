//! When each source is fetched next.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;

use super::{announced::Announced, requests::Requests, turns::Turns};

/// When each source was fetched last. Lost at a restart, which only means an earlier fetch.
#[derive(Default)]
pub struct Checks {
    pub last: Mutex<HashMap<String, Check>>,
    pub urgent: Mutex<HashSet<String>>,
    /// By uid: why a source that no resource states can't be fetched. It has no status of its own.
    problems: Mutex<HashMap<String, String>>,
    /// Requests of services to fetch at once.
    pub requests: Requests,
    pub turns: Turns,
    /// Deliveries of webhooks.
    pub announced: Announced,
}

#[derive(Clone, Debug)]
pub struct Check {
    pub generation: i64,
    pub requested: Option<String>,
    pub next: tokio::time::Instant,
    pub failures: u32,
}

impl Checks {
    pub fn last(&self) -> MutexGuard<'_, HashMap<String, Check>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn forget(&self, uid: &str) {
        self.last().remove(uid);
        self.announced.forget(uid);
    }

    /// Why a repository that a chart or a kustomization names can't be fetched; None: no problem is known.
    pub fn problem(&self, uid: &str) -> Option<String> {
        self.problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .cloned()
    }

    /// Returns true if no problem was known before.
    pub fn note_problem(&self, uid: &str, problem: String) -> bool {
        self.problems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid.to_owned(), problem)
            .is_none()
    }

    pub fn forget_problem(&self, uid: &str) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Makes the next reconcile of a source fetch it, even if it is not due.
    pub fn hurry(&self, uid: &str) {
        self.urgent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid.to_owned());
    }

    pub fn take_urgent(&self, uid: &str) -> bool {
        self.urgent.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }
}

/// Time until the source is due next. Due times are an interval apart, at an offset of the source's own, so that a
/// thousand sources created together are not fetched together.
pub fn until_next(uid: &str, interval: Duration, now: Timestamp) -> Duration {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    let interval_ms = interval.as_millis().max(1) as u64;
    let offset = hasher.finish() % interval_ms;
    let now_ms = now.as_millisecond().unsigned_abs();
    let since = (now_ms + interval_ms - offset) % interval_ms;
    Duration::from_millis(interval_ms - since)
}
