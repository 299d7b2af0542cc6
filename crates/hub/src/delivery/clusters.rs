//! What a replica knows of every cluster without asking anybody: enough to answer an unchanged poll from memory.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use http::HeaderValue;

/// One cluster. Replaced as a whole when something changes; only the time it was heard lies outside.
#[derive(Clone, Debug)]
pub struct ClusterState {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub poll_interval: Duration,
    /// Which of the cluster's identities is valid: access tokens name it. None until the agent has joined.
    pub key_print: Option<String>,
    /// Of the current desired state; none until it was computed.
    pub etag: Option<HeaderValue>,
    heard: Arc<Heard>,
}

/// Seconds since 1970; 0 is never.
#[derive(Debug, Default)]
struct Heard {
    last: AtomicI64,
    saved: AtomicI64,
    /// Whether the Cluster's status says that it is ready, and nothing else of it has changed since.
    settled: AtomicBool,
}

impl ClusterState {
    pub fn new(uid: &str, namespace: &str, name: &str, poll_interval: Duration) -> Self {
        Self {
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
            poll_interval,
            key_print: None,
            etag: None,
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

    pub fn hear(&self, now: i64) {
        self.heard.last.fetch_max(now, Ordering::Relaxed);
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

    /// Until then nothing is known, which is not the same as nothing being there.
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

    pub fn insert(&self, state: ClusterState) {
        self.write().insert(Arc::clone(&state.uid), Arc::new(state));
    }

    pub fn remove(&self, uid: &str) {
        self.write().remove(uid);
    }

    /// Changes one cluster, if it is known.
    pub fn change(&self, uid: &str, change: impl FnOnce(&mut ClusterState)) {
        if let Some(state) = self.write().get_mut(uid) {
            change(Arc::make_mut(state));
        }
    }

    /// Heartbeats that are newer than what was saved.
    pub fn unsaved_heartbeats(&self) -> Vec<(String, i64)> {
        let changed = |state: &Arc<ClusterState>| {
            let last = state.heard.last.load(Ordering::Relaxed);
            (last > state.heard.saved.load(Ordering::Relaxed)).then(|| (state.uid.to_string(), last))
        };
        self.read().values().filter_map(changed).collect()
    }

    pub fn set_saved(&self, rows: &[(String, i64)]) {
        let states = self.read();
        for (uid, time) in rows {
            if let Some(state) = states.get(uid.as_str()) {
                state.heard.saved.fetch_max(*time, Ordering::Relaxed);
                state.heard.last.fetch_max(*time, Ordering::Relaxed);
            }
        }
    }
}
