//! Order: which wave an object is in, what a wave waits for, and the order of deletion.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::objects::{Health, ObjectRef, SyncState};

use super::{ObjectKey, ResolvedObject};
use crate::prune::Candidate;

/// Observed state of an object of the source, which later waves depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub sync: SyncState,
    pub health: Health,
    pub message: String,
}

/// The object that a wave waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub object: ObjectRef,
    pub wave: i32,
    /// A person has to act on it.
    pub is_stuck: bool,
    /// What is wrong with it, for people.
    pub message: String,
}

impl Holder {
    /// The message for an object that waits.
    pub fn explain(&self) -> String {
        format!("waits for wave {}: {}", self.wave, self.message)
    }
}

/// The object that keeps the waves after `before` from beginning: of all unhealthy objects a stuck one, otherwise the
/// first. `before` are all objects of the earlier waves.
pub fn holder<'a>(
    before: impl Iterator<Item = (i32, &'a ObjectRef)>,
    state: impl Fn(&ObjectKey) -> Option<State>,
) -> Option<Holder> {
    let judged = before.filter_map(|(wave, object)| judge(wave, object, state(&ObjectKey::from(object))));
    judged.min_by(|a, b| (!a.is_stuck, a.wave, &a.object).cmp(&(!b.is_stuck, b.wave, &b.object)))
}

fn judge(wave: i32, object: &ObjectRef, state: Option<State>) -> Option<Holder> {
    let hold = |is_stuck, what: &str, message: &str| {
        let detail = if message.is_empty() {
            String::new()
        } else {
            format!(": {message}")
        };
        Some(Holder {
            object: object.clone(),
            wave,
            is_stuck,
            message: format!("{object} {what}{detail}"),
        })
    };
    let Some(state) = state else {
        return hold(false, "is not applied yet", "");
    };
    match (state.sync, state.health) {
        (SyncState::Synced | SyncState::Drifted, Health::Current) => None,
        (SyncState::Synced | SyncState::Drifted, Health::Failed) => hold(true, "has failed", &state.message),
        (SyncState::Synced | SyncState::Drifted, Health::Terminating) => {
            hold(false, "is being deleted", &state.message)
        }
        (SyncState::Synced | SyncState::Drifted, _) => hold(false, "is not ready", &state.message),
        (SyncState::Waiting, _) => hold(false, "is not applied", &state.message),
        _ => hold(true, "was refused", &state.message),
    }
}

/// Moves what an object needs, its namespace and its definition, to a wave no later than the object's.
pub(super) fn pull_forward(objects: &mut [ResolvedObject], definitions: &BTreeMap<ObjectKey, ObjectKey>) {
    let mut earliest: BTreeMap<ObjectKey, i32> = BTreeMap::new();
    for object in objects.iter() {
        let key = object.key();
        let namespace = namespace_of(&object.object);
        for needed in definitions.get(&key).cloned().into_iter().chain(namespace) {
            let wave = earliest.entry(needed).or_insert(object.wave);
            *wave = object.wave.min(*wave);
        }
    }
    for object in objects.iter_mut() {
        if let Some(wave) = earliest.get(&object.key()) {
            object.wave = object.wave.min(*wave);
        }
    }
}

fn namespace_of(object: &ObjectRef) -> Option<ObjectKey> {
    (!object.namespace.is_empty()).then(|| ObjectKey::new("", "Namespace", "", &object.namespace))
}

/// Objects to delete, in order: later waves first, and before a definition or a namespace everything that belongs to
/// it.
#[derive(Clone, Debug, Default)]
pub struct Departure {
    left: BTreeMap<ObjectKey, Candidate>,
    /// The deletion was requested or refused, and they still exist.
    tried: BTreeSet<ObjectKey>,
}

impl Departure {
    /// `going`: objects that are being deleted already.
    pub fn new(deletes: &[Candidate], going: &[Candidate]) -> Self {
        let key = |candidate: &Candidate| ObjectKey::from(&candidate.object);
        let left = deletes
            .iter()
            .chain(going)
            .map(|candidate| (key(candidate), candidate.clone()));
        Self {
            left: left.collect(),
            tried: going.iter().map(key).collect(),
        }
    }

    pub fn note_gone(&mut self, key: &ObjectKey) {
        self.left.remove(key);
    }

    pub fn note_tried(&mut self, key: &ObjectKey) {
        self.tried.insert(key.clone());
    }

    /// The objects that may be deleted now, and each other object with one that it waits for.
    pub fn sort(&self) -> (Vec<&Candidate>, Vec<(&Candidate, &Candidate)>) {
        let (mut open, mut waiting) = (Vec::new(), Vec::new());
        let obstacles = Obstacles::of(&self.left, &self.tried);
        for (key, candidate) in self.left.iter().filter(|(key, _)| !self.tried.contains(*key)) {
            match obstacles.of_one(key, candidate) {
                None => open.push(candidate),
                Some(obstacle) => waiting.push((candidate, obstacle)),
            }
        }
        (open, waiting)
    }
}

/// Obstacles to deletions, indexed so that each is found without comparing all objects.
struct Obstacles<'a> {
    /// An object of the last wave.
    last: Option<(i32, &'a Candidate)>,
    by_group: BTreeMap<&'a str, &'a Candidate>,
    by_namespace: BTreeMap<&'a str, &'a Candidate>,
    /// The waves of definitions and namespaces: as early as the objects that need them.
    earliest: BTreeMap<&'a ObjectKey, i32>,
}

impl<'a> Obstacles<'a> {
    fn of(left: &'a BTreeMap<ObjectKey, Candidate>, tried: &BTreeSet<ObjectKey>) -> Self {
        let mut found = Self {
            last: None,
            by_group: BTreeMap::new(),
            by_namespace: BTreeMap::new(),
            earliest: BTreeMap::new(),
        };
        let (mut of_groups, mut of_namespaces) = (BTreeMap::<&str, i32>::new(), BTreeMap::<&str, i32>::new());

        // Of several obstacles, name one whose deletion was already requested: nothing else keeps it.
        let (asked, others): (Vec<_>, Vec<_>) = left.iter().partition(|(key, _)| tried.contains(*key));
        let left = || asked.iter().chain(&others).copied();
        for (key, candidate) in left().filter(|(key, _)| !is_definition(key)) {
            for (place, one, waves) in [
                (key.group(), &mut found.by_group, &mut of_groups),
                (key.namespace(), &mut found.by_namespace, &mut of_namespaces),
            ] {
                one.entry(place).or_insert(candidate);
                let wave = waves.entry(place).or_insert(candidate.wave);
                *wave = candidate.wave.min(*wave);
            }
        }
        for (key, candidate) in left() {
            let needed = if is_definition(key) {
                of_groups.get(group_of(key))
            } else if is_namespace(key) {
                of_namespaces.get(key.name())
            } else {
                None
            };
            let wave = needed.map_or(candidate.wave, |wave| candidate.wave.min(*wave));
            found.earliest.insert(key, wave);
            if found.last.is_none_or(|(last, _)| wave > last) {
                found.last = Some((wave, candidate));
            }
        }
        found
    }

    fn of_one(&self, key: &ObjectKey, candidate: &Candidate) -> Option<&'a Candidate> {
        let wave = self.earliest.get(key).copied().unwrap_or(candidate.wave);
        let later = self
            .last
            .filter(|(last, _)| *last > wave)
            .map(|(_, candidate)| candidate);
        later.or_else(|| {
            if is_definition(key) {
                self.by_group.get(group_of(key)).copied()
            } else if is_namespace(key) {
                self.by_namespace.get(key.name()).copied()
            } else {
                None
            }
        })
    }
}

/// Whether deleting `holder` also deletes `object`: a namespace deletes its contents, a definition its resources.
pub(super) fn holds(holder: &ObjectKey, object: &ObjectKey) -> bool {
    (is_namespace(holder) && object.namespace() == holder.name())
        || (is_definition(holder) && !is_definition(object) && object.group() == group_of(holder))
}

pub fn is_definition(key: &ObjectKey) -> bool {
    key.group() == "apiextensions.k8s.io" && key.kind() == "CustomResourceDefinition"
}

pub fn is_namespace(key: &ObjectKey) -> bool {
    key.group().is_empty() && key.kind() == "Namespace"
}

/// The group of a definition, from its name `plural.group`.
pub fn group_of(definition: &ObjectKey) -> &str {
    definition.name().split_once('.').map_or("", |(_, group)| group)
}

#[cfg(test)]
#[path = "waves_tests.rs"]
mod tests;
