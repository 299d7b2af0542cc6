//! ServiceSets in the memory of this replica: which clusters each one selects, and which of them have to be reconciled.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use farwater_fleet::{
    placement::selects,
    stamping::cluster_namespaces,
    words::{counted, verb},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::{queue::WorkQueue, resources::Name};

/// Rest of a set before its next reconcile: the time that reading all members took, times this, times the number of
/// sets reconciled lately. Members report one after the other; with this rest, reconciles take the same share of a
/// processor, however many sets are rolling out.
const REST: u32 = 10;
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(5);
/// How long a count of members stays valid if nothing is reported about them: clusters fall silent without a report.
const COUNT_LASTS: Duration = Duration::from_secs(5);

/// The clusters of a set to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    /// Uids of clusters.
    Some(BTreeSet<String>),
}

impl Default for Scope {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

impl Scope {
    fn extend(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Some(known), Self::Some(more)) => known.extend(more),
            (Self::All, _) => {}
            (_, Self::All) => *self = Self::All,
        }
    }
}

struct KnownSet {
    uid: String,
    selector: LabelSelector,
}

/// Counted for this version of the set's resource.
struct Counted {
    version: u64,
    at: Instant,
    heard: Heard,
}

#[derive(Default)]
struct State {
    known: HashMap<Name, KnownSet>,
    scopes: HashMap<Name, Scope>,
    counted: HashMap<Name, Counted>,
    /// Sets whose members this process has all read.
    read: HashSet<Name>,
    /// When each set was reconciled, if that was lately.
    looked_at: HashMap<Name, Instant>,
    /// Rest before a set is reconciled again.
    rest: Duration,
}

#[derive(Default)]
pub struct Sets {
    state: Mutex<State>,
    pub queue: Arc<WorkQueue<Name>>,
}

impl Sets {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call this before the set's clusters are listed, so that a cluster that changes meanwhile requeues the set.
    pub fn know(&self, name: &Name, uid: &str, selector: &LabelSelector) {
        let known = KnownSet {
            uid: uid.to_owned(),
            selector: selector.clone(),
        };
        self.state().known.insert(name.clone(), known);
    }

    pub fn forget(&self, name: &Name) {
        let mut state = self.state();
        state.known.remove(name);
        state.counted.remove(name);
        state.read.remove(name);
    }

    /// Whether this process has read all members of a set. Members that another version of the hub let rest may not
    /// rest by our rules.
    pub fn is_read(&self, name: &Name) -> bool {
        self.state().read.contains(name)
    }

    pub fn note_read(&self, name: &Name) {
        self.state().read.insert(name.clone());
    }

    /// Health of the members that are heard, if it was counted lately for this version of the set. Many services may
    /// wait for one set.
    pub fn heard(&self, name: &Name, version: u64) -> Option<Heard> {
        let state = self.state();
        let counted = state.counted.get(name)?;
        (counted.version == version && counted.at.elapsed() < COUNT_LASTS).then_some(counted.heard)
    }

    pub fn note_heard(&self, name: &Name, version: u64, heard: Heard) {
        self.state().counted.insert(
            name.clone(),
            Counted {
                version,
                at: Instant::now(),
                heard,
            },
        );
    }

    /// Requeues a set for some of its clusters. Clusters that have left it are always included.
    pub fn add(&self, name: Name, scope: Scope) {
        self.state().scopes.entry(name.clone()).or_default().extend(scope);
        self.queue.add(name);
    }

    /// Takes the clusters to reconcile, at the start of a reconcile.
    pub fn take(&self, name: &Name) -> Scope {
        self.state().scopes.remove(name).unwrap_or_default()
    }

    /// The reconcile failed: its clusters are still to be reconciled.
    pub fn put_back(&self, name: &Name, scope: Scope) {
        self.state().scopes.entry(name.clone()).or_default().extend(scope);
    }

    /// A cluster was created, deleted or changed: requeues the sets that select it, and the sets that have a member
    /// there. `has`: uids of the latter.
    pub fn note_cluster(&self, cluster: &Name, uid: &str, labels: &BTreeMap<String, String>, has: &[String]) {
        let names: Vec<Name> = {
            let state = self.state();
            let concerns = |(name, known): &(&Name, &KnownSet)| {
                has.contains(&known.uid)
                    || (cluster_namespaces(&name.namespace).contains(&cluster.namespace.as_str())
                        && selects(&known.selector, labels))
            };
            state
                .known
                .iter()
                .filter(concerns)
                .map(|(name, _)| name.clone())
                .collect()
        };
        for name in names {
            self.add(name, Scope::Some([uid.to_owned()].into()));
        }
    }

    /// Notes how long reading a set's members took.
    pub fn rest_after(&self, name: &Name, took: Duration) {
        let (now, mut state) = (Instant::now(), self.state());
        state.looked_at.insert(name.clone(), now);
        state.looked_at.retain(|_, at| now.duration_since(*at) < LONGEST);
        let moving = u32::try_from(state.looked_at.len()).unwrap_or(u32::MAX);
        state.rest = took
            .saturating_mul(REST)
            .saturating_mul(moving)
            .clamp(SHORTEST, LONGEST);
    }

    /// A member has changed: requeues its set, after its rest.
    pub fn note_member(&self, set_uid: &str) {
        let name = self
            .state()
            .known
            .iter()
            .find(|(_, known)| known.uid == set_uid)
            .map(|(name, _)| name.clone());
        if let Some(name) = name {
            let rest = self.state().rest.max(SHORTEST);
            self.queue.add_after(name, rest);
        }
    }

    /// The name that a set of a namespace waits for is free: requeues the set.
    pub fn refill(&self, set_uid: &str, namespace: &str, cluster_uid: String) {
        let found = {
            let state = self.state();
            state
                .known
                .iter()
                .find(|(_, known)| known.uid == set_uid)
                .map(|(name, _)| name.clone())
        };
        if let Some(name) = found.filter(|name| name.namespace == namespace) {
            self.add(name, Scope::Some([cluster_uid].into()));
        }
    }

    /// Requeues all sets: whether clusters that have left may be removed may have changed.
    pub fn look_at_all(&self) {
        let names: Vec<Name> = self.state().known.keys().cloned().collect();
        names.into_iter().for_each(|name| self.queue.add(name));
    }

    /// Grants have changed: requeues all sets except those of the admin namespace.
    pub fn note_grants(&self) {
        let names: Vec<Name> = self
            .state()
            .known
            .keys()
            .filter(|name| name.namespace != farwater_api::ADMIN_NAMESPACE)
            .cloned()
            .collect();
        names.into_iter().for_each(|name| self.add(name, Scope::All));
    }
}

/// Health of the members whose clusters are heard. Silent clusters are passed over, as in rollouts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// Number of members, silent ones included.
    pub all: usize,
    pub heard: usize,
    pub healthy: usize,
    /// When the last of them became healthy, in seconds since 1970.
    pub since: i64,
    /// When the cluster that was heard least recently was heard, in seconds since 1970; 0: one was not heard since the
    /// hub started.
    pub at: i64,
}

impl Heard {
    /// The reason why not all members that are heard are healthy, as a phrase about the set; None: they are.
    pub fn lacks(&self) -> Option<String> {
        match self {
            Self { all: 0, .. } => None,
            Self { heard: 0, .. } => Some("has no cluster that is heard".to_owned()),
            Self { heard, healthy, .. } if healthy < heard => {
                let (clusters, are) = (counted(*heard, "cluster"), verb(heard, "is", "are"));
                Some(format!("is healthy on {healthy} of {clusters} that {are} heard"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_looked_at_once_for_all_that_has_changed() {
        let (sets, name) = (Sets::default(), Name::new("team-a", "web"));
        let some = |uids: &[&str]| Scope::Some(uids.iter().map(|uid| (*uid).to_owned()).collect());
        sets.add(name.clone(), some(&["1"]));
        sets.add(name.clone(), some(&["2"]));
        assert_eq!((sets.queue.counts().ready, sets.take(&name)), (1, some(&["1", "2"])));
        assert_eq!(sets.take(&name), some(&[]));
        sets.add(name.clone(), Scope::All);
        sets.put_back(&name, some(&["3"]));
        assert_eq!(sets.take(&name), Scope::All);
    }

    #[test]
    fn a_cluster_concerns_who_selects_it_and_who_has_it() {
        let sets = Sets::default();
        let selector = |env: &str| serde_json::from_value(serde_json::json!({"matchLabels": {"env": env}})).unwrap();
        for (namespace, name, env) in [
            ("team-a", "prod", "prod"),
            ("team-a", "test", "test"),
            ("team-b", "prod", "prod"),
        ] {
            sets.know(
                &Name::new(namespace, name),
                &format!("{namespace}-{name}"),
                &selector(env),
            );
        }
        let labels = [("env".to_owned(), "prod".to_owned())].into();
        sets.note_cluster(&Name::new("team-a", "east"), "1", &labels, &["team-a-test".to_owned()]);
        let mut waiting = sets.queue.waiting();
        waiting.sort();
        assert_eq!(waiting, [Name::new("team-a", "prod"), Name::new("team-a", "test")]);
    }
}
