//! Every cluster in the memory of this replica: enough to answer an unchanged poll.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use farwater_api::{
    protocol::{PROTOCOL, Skew},
    succession::Position,
};
use http::HeaderValue;

use super::connections::Live;

/// Seconds by which an agent's clock may be off without being reported.
pub const MIN_SKEW: i64 = 60;

/// One cluster. It is replaced as a whole when something changes; only [`AgentMarks`] changes in place.
#[derive(Clone, Debug)]
pub struct ClusterState {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub poll_interval: Duration,
    /// Labels of the Cluster.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Print of the identity that is valid; access tokens name it. None: no agent has joined.
    pub key_print: Option<String>,
    /// ETag of the current desired state; None: it was not computed yet.
    pub etag: Option<HeaderValue>,
    /// How far the agent has followed the hub's successions.
    pub position: Position,
    /// When its keys were first used, in seconds since 1970; 0: no agent has joined.
    pub keys_since: i64,
    /// Digest of the annotation's value that requests new keys; None: none are requested.
    pub keys_request: Option<Arc<str>>,
    heard: Arc<AgentMarks>,
}

/// The parts of the state that change with requests of the agent.
#[derive(Debug, Default)]
struct AgentMarks {
    /// When it was heard last, in seconds since 1970; 0: never.
    last: AtomicI64,
    /// The value of `last` that was saved.
    saved: AtomicI64,
    /// Seconds by which the agent's clock is ahead of ours, plus one if that is not negative; 0: unknown.
    ahead: AtomicI64,
    /// Whether the Cluster's status says that it is ready, and nothing else about it has changed since.
    settled: AtomicBool,
    /// The protocol that the agent named last; 0: none yet.
    protocol: AtomicU32,
    /// Whether the Cluster's status shows a version skew.
    skew_shown: AtomicBool,
    /// Number of the newest request for a plan that the agent has not taken; 0: there is none.
    plan: AtomicU64,
    instances: Mutex<Instances>,
    connection: Mutex<Option<Arc<Live>>>,
}

/// The processes that have sent requests with this cluster's identity. One normally replaces another. If a replaced one
/// sends requests again, two run at the same time.
#[derive(Debug, Default)]
struct Instances {
    current: Instance,
    previous: Instance,
    /// How often the previous process was heard after the current one appeared. Once may be a late request.
    late: u8,
    quarantined: bool,
}

/// How many poll intervals a process must have been heard before it may hand over to new keys. In this time any other
/// process with the same identity is detected. Otherwise a copied agent could lock the other out with new keys.
const SOLE_POLLS: u32 = 3;

#[derive(Clone, Debug, Default)]
struct Instance {
    /// Empty: no process was heard.
    id: Box<str>,
    /// The host it runs on, from its request for a token.
    host: Box<str>,
    since: Option<Instant>,
}

impl Instances {
    /// Notes a request. Returns whether two processes run at the same time.
    fn meet(&mut self, id: &str, host: Option<&str>) -> bool {
        if *self.current.id != *id {
            if *self.previous.id == *id {
                self.late = self.late.saturating_add(1);
                return self.late > 1;
            }
            let next = Instance {
                id: id.into(),
                host: Box::default(),
                since: Some(Instant::now()),
            };
            self.previous = std::mem::replace(&mut self.current, next);
            self.late = 0;
        }
        if let Some(host) = host {
            self.current.host = host.into();
        }
        false
    }

    fn hosts(&self) -> String {
        let name = |instance: &Instance| {
            if instance.host.is_empty() {
                instance.id.to_string()
            } else {
                instance.host.to_string()
            }
        };
        format!("{} and {}", name(&self.previous), name(&self.current))
    }
}

impl ClusterState {
    pub fn new(uid: &str, namespace: &str, name: &str, poll_interval: Duration) -> Self {
        Self {
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
            poll_interval,
            labels: Arc::default(),
            key_print: None,
            etag: None,
            position: Position::default(),
            keys_since: 0,
            keys_request: None,
            heard: Arc::default(),
        }
    }

    pub fn heard(&self) -> Option<i64> {
        Some(self.heard.last.load(Ordering::Relaxed)).filter(|time| *time > 0)
    }

    pub fn is_settled(&self) -> bool {
        self.heard.settled.load(Ordering::Acquire)
    }

    pub fn settle(&self, settled: bool) {
        self.heard.settled.store(settled, Ordering::Release);
    }

    /// Notes which process sends a request; `host` comes with its request for a token. `true`: from now on it is known
    /// not to be the only one.
    pub fn meet(&self, instance: &str, host: Option<&str>) -> bool {
        if instance.is_empty() {
            return false;
        }
        let mut instances = self.instances();
        let found = instances.meet(instance, host) && !instances.quarantined;
        instances.quarantined |= found;
        drop(instances);
        // End the connection of the process before, or of one that is refused from now on.
        if found || self.connection().is_some_and(|live| *live.instance != *instance) {
            self.wake();
        }
        found
    }

    /// Whether no other process was heard since this one.
    pub fn is_current(&self, instance: &str) -> bool {
        let current = &self.instances().current.id;
        current.is_empty() || instance.is_empty() || **current == *instance
    }

    /// The agent's connection to this replica; None: it has none.
    pub fn connection(&self) -> Option<Arc<Live>> {
        self.connected().clone()
    }

    /// Makes this the agent's connection; the one before ends.
    pub fn connect(&self, live: Arc<Live>) {
        if let Some(before) = self.connected().replace(live) {
            before.wake.notify_one();
        }
    }

    pub fn disconnect(&self, live: &Arc<Live>) {
        self.connected().take_if(|current| Arc::ptr_eq(current, live));
    }

    /// Makes the connection compare again what has changed.
    pub fn wake(&self) {
        if let Some(live) = &*self.connected() {
            live.wake.notify_one();
        }
    }

    /// Sets which request for a plan waits for the agent; a connected agent gets a hint.
    pub fn set_plan(&self, number: u64) {
        if self.heard.plan.swap(number, Ordering::AcqRel) != number {
            self.wake();
        }
    }

    pub fn plan(&self) -> u64 {
        self.heard.plan.load(Ordering::Acquire)
    }

    fn connected(&self) -> MutexGuard<'_, Option<Arc<Live>>> {
        self.heard.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much longer the process must be heard until it is known to be the only one; zero: it is.
    pub fn until_sole(&self, instance: &str) -> Duration {
        let instances = self.instances();
        let since = instances.current.since.filter(|_| *instances.current.id == *instance);
        (self.poll_interval * SOLE_POLLS).saturating_sub(since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Hosts of two processes that use one identity; None: they are not quarantined.
    pub fn quarantine(&self) -> Option<String> {
        let instances = self.instances();
        instances.quarantined.then(|| instances.hosts())
    }

    /// Sets a quarantine that was found before this start, or lifts it.
    pub fn set_quarantined(&self, quarantined: bool) {
        *self.instances() = Instances {
            quarantined,
            ..Instances::default()
        };
    }

    fn instances(&self) -> MutexGuard<'_, Instances> {
        self.heard.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds by which the clock of the agent's machine is ahead; None: unknown.
    pub fn ahead(&self) -> Option<i64> {
        let ahead = self.heard.ahead.load(Ordering::Relaxed);
        (ahead != 0).then(|| if ahead > 0 { ahead - 1 } else { ahead })
    }

    /// Notes what the agent says about its clock. `true`: it differs enough to requeue the Cluster.
    pub fn note_clock(&self, ahead: i64) -> bool {
        let before = self.ahead();
        let kept = if ahead >= 0 { ahead.saturating_add(1) } else { ahead };
        self.heard.ahead.store(kept, Ordering::Relaxed);
        before.is_none_or(|before| before.abs_diff(ahead) >= MIN_SKEW.unsigned_abs())
    }

    /// How the agent's protocol compares with the hub's; None: unknown.
    pub fn skew(&self) -> Option<Skew> {
        match self.heard.protocol.load(Ordering::Relaxed) {
            0 => None,
            agent => Some(Skew::between(agent, PROTOCOL)),
        }
    }

    /// Notes which protocol the agent speaks. `true`: the Cluster's status has to change.
    pub fn note_protocol(&self, agent: u32) -> bool {
        let before = self.heard.protocol.swap(agent, Ordering::Relaxed);
        let shown = self.heard.skew_shown.load(Ordering::Relaxed);
        before != agent && (shown || Skew::between(agent, PROTOCOL) != Skew::Supported)
    }

    pub fn show_skew(&self, shown: bool) {
        self.heard.skew_shown.store(shown, Ordering::Relaxed);
    }

    pub fn hear(&self, now: i64) {
        // It is less than before only if the clock was set back.
        self.heard.last.store(now, Ordering::Relaxed);
    }
}

/// All clusters, by uid.
#[derive(Debug, Default)]
pub struct Clusters {
    states: RwLock<HashMap<Arc<str>, Arc<ClusterState>>>,
    loaded: AtomicBool,
}

impl Clusters {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<Arc<str>, Arc<ClusterState>>> {
        self.states.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Arc<str>, Arc<ClusterState>>> {
        self.states.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before that, a missing cluster may still exist.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    pub fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    pub fn get(&self, uid: &str) -> Option<Arc<ClusterState>> {
        self.read().get(uid).cloned()
    }

    pub fn all(&self) -> Vec<Arc<ClusterState>> {
        self.read().values().cloned().collect()
    }

    pub fn each(&self, mut look: impl FnMut(&ClusterState)) {
        self.read().values().for_each(|state| look(state));
    }

    pub fn insert(&self, state: ClusterState) {
        self.write().insert(Arc::clone(&state.uid), Arc::new(state));
    }

    pub fn remove(&self, uid: &str) {
        if let Some(state) = self.write().remove(uid) {
            state.wake();
        }
    }

    /// Changes one cluster, if it is known, and wakes its agent's connection.
    pub fn change(&self, uid: &str, change: impl FnOnce(&mut ClusterState)) {
        if let Some(state) = self.write().get_mut(uid) {
            change(Arc::make_mut(state));
            state.wake();
        }
    }

    /// Heartbeats that are newer than what was saved.
    pub fn unsaved_heartbeats(&self) -> Vec<(String, i64)> {
        let changed = |state: &Arc<ClusterState>| {
            let last = state.heard.last.load(Ordering::Relaxed);
            (last != state.heard.saved.load(Ordering::Relaxed)).then(|| (state.uid.to_string(), last))
        };
        self.read().values().filter_map(changed).collect()
    }

    pub fn set_saved(&self, rows: &[(String, i64)]) {
        let states = self.read();
        for (uid, time) in rows {
            if let Some(state) = states.get(uid.as_str()) {
                state.heard.saved.store(*time, Ordering::Relaxed);
                // A poll since then is newer.
                let _ = state
                    .heard
                    .last
                    .compare_exchange(0, *time, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_followed_and_comes_back_runs_beside_the_other() {
        let state = ClusterState::new("uid", "ns", "east", Duration::from_secs(30));
        // A restart, then a late request of the process before.
        assert!(!state.meet("a", Some("pod-a")));
        assert!(!state.meet("b", Some("pod-b")));
        assert!(!state.meet("a", None));
        assert!(!state.meet("b", None));
        assert_eq!(state.quarantine(), None);
        assert!(state.meet("a", None));
        assert_eq!(state.quarantine().as_deref(), Some("pod-a and pod-b"));
        // It is reported once.
        assert!(!state.meet("a", None));
        state.set_quarantined(false);
        assert!(!state.meet("c", None));
        assert_eq!(state.quarantine(), None);
    }

    #[test]
    fn only_versions_that_do_not_go_together_are_news() {
        let state = ClusterState::new("uid", "ns", "east", Duration::from_secs(30));
        assert_eq!(state.skew(), None);
        assert!(!state.note_protocol(PROTOCOL));
        assert!(state.note_protocol(PROTOCOL + 1));
        assert!(!state.note_protocol(PROTOCOL + 1));
        assert_eq!(state.skew(), Some(Skew::AgentAhead));
        state.show_skew(true);
        assert!(state.note_protocol(PROTOCOL));
        assert_eq!(state.skew(), Some(Skew::Supported));
    }

    #[test]
    fn agents_that_do_not_say_which_they_are_are_one() {
        let state = ClusterState::new("uid", "ns", "east", Duration::from_secs(30));
        assert!(!["", "", ""].iter().any(|instance| state.meet(instance, None)));
    }
}
