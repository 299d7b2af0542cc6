//! The newest committed changes in memory, which all watchers read.
//!
//! Bounded in number and in bytes. A watcher stores only the version that it has seen, so a slow watcher costs nothing,
//! and gets an error when changes that it hasn't seen have been dropped.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use tokio::sync::watch;

use crate::{Key, Kind, Operation, Resource, WatchEvent};

pub(crate) struct Ring {
    limits: RingLimits,
    state: Mutex<State>,
    position: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RingLimits {
    pub events: usize,
    pub bytes: usize,
}

/// A committed change, and the bytes that it takes.
pub(crate) struct Committed {
    pub event: WatchEvent,
    pub bytes: usize,
}

impl Committed {
    /// The state of its key after the change, and the bytes of its JSON.
    pub(crate) fn left(&self) -> (Key, Option<Resource>, usize) {
        let WatchEvent {
            key,
            version,
            operation,
            object,
            ..
        } = &self.event;
        let uid = || object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let is_there = *operation != Operation::Deleted;
        let left = is_there.then(|| Resource {
            key: key.clone(),
            uid: uid(),
            version: *version,
            object: Arc::clone(object),
        });
        (key.clone(), left, if is_there { self.bytes } else { 0 })
    }
}

#[derive(Default)]
struct State {
    events: VecDeque<Committed>,
    /// Number of dropped events, i.e. the number of the first one kept. With numbers, `by_kind` does not depend on
    /// dropped events.
    evicted: u64,
    by_kind: HashMap<Kind, VecDeque<u64>>,
    bytes: usize,
    /// Every change with a greater version, up to `position`, is in `events`.
    floor: u64,
    position: u64,
    closed: bool,
    /// By watcher; each waits for one kind or for all.
    waiting: HashMap<u64, (Option<Kind>, Waker)>,
    next_watcher: u64,
}

/// The result of reading after the version that a watcher has seen.
pub(crate) enum Reading {
    /// Some events, in order; there may be more.
    Events(Vec<WatchEvent>),
    /// No event of its kind up to this version; the waker is stored.
    Nothing {
        position: u64,
    },
    Gone {
        floor: u64,
    },
    Closed,
}

/// Events that a watcher copies at a time. Bounds the memory of a slow one beyond the ring.
const CHUNK: usize = 64;

impl Ring {
    /// An empty ring at `position`, without the changes at or below it.
    pub(crate) fn new(limits: RingLimits, floor: u64, position: u64) -> Self {
        let state = State {
            floor,
            position,
            ..State::default()
        };
        Self {
            limits,
            state: Mutex::new(state),
            position: watch::Sender::new(position),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Code under this lock never panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends committed changes, in order: all from the present position or below up to `position`. Known changes are
    /// skipped, so two callers may append the same.
    pub(crate) fn append(&self, changes: Vec<Committed>, position: u64) {
        let mut state = self.lock();
        let known = state.position;
        if position <= known {
            return;
        }

        let changes: Vec<Committed> = changes
            .into_iter()
            .filter(|change| change.event.version > known)
            .collect();
        let kinds: HashSet<Kind> = changes.iter().map(|change| change.event.key.kind.clone()).collect();
        let concerned = |wanted: &Option<Kind>| match wanted {
            Some(kind) => kinds.contains(kind),
            None => !kinds.is_empty(),
        };
        let awake: Vec<Waker> = state
            .waiting
            .extract_if(|_, (wanted, _)| concerned(wanted))
            .map(|(_, (_, waker))| waker)
            .collect();
        for change in changes {
            let number = state.evicted + state.events.len() as u64;
            state
                .by_kind
                .entry(change.event.key.kind.clone())
                .or_default()
                .push_back(number);
            state.bytes += change.bytes;
            state.events.push_back(change);
        }

        while state.events.len() > self.limits.events || state.bytes > self.limits.bytes {
            if !state.evict() {
                break;
            }
        }
        state.position = position;
        drop(state);
        self.position.send_replace(position);
        for waker in awake {
            waker.wake();
        }
    }

    /// Gives up on changes between the present position and `version`: watchers that haven't seen `version` must list
    /// again. Does nothing if the position is already there.
    pub(crate) fn skip_to(&self, version: u64) {
        let mut state = self.lock();
        if version <= state.position {
            return;
        }
        while state.evict() {}
        (state.floor, state.position) = (version, version);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.position.send_replace(version);
        for (_, waker) in waiting.into_values() {
            waker.wake();
        }
    }

    /// Makes all watchers list again, because the changes that they saw may no longer be in the database.
    pub(crate) fn forget(&self) {
        let next = self.position() + 1;
        self.skip_to(next);
    }

    pub(crate) fn limits(&self) -> RingLimits {
        self.limits
    }

    pub(crate) fn position(&self) -> u64 {
        self.lock().position
    }

    pub(crate) fn floor(&self) -> u64 {
        self.lock().floor
    }

    pub(crate) fn positions(&self) -> watch::Receiver<u64> {
        self.position.subscribe()
    }

    /// The number of a new watcher.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = self.lock();
        state.next_watcher += 1;
        state.next_watcher
    }

    pub(crate) fn leave(&self, watcher: u64) {
        self.lock().waiting.remove(&watcher);
    }

    /// Reads what follows `seen`. If nothing does, `waker` is called when there is news.
    pub(crate) fn read(&self, kind: Option<&Kind>, seen: u64, waiting: Option<(u64, &Waker)>) -> Reading {
        let mut state = self.lock();
        if seen < state.floor {
            return Reading::Gone { floor: state.floor };
        }
        let events = state.behind(kind, seen);
        if !events.is_empty() {
            return Reading::Events(events);
        }
        if state.closed {
            return Reading::Closed;
        }
        if let Some((watcher, waker)) = waiting {
            state.waiting.insert(watcher, (kind.cloned(), waker.clone()));
        }
        Reading::Nothing {
            position: state.position,
        }
    }

    /// Ends all watches, after the watchers have read the remaining events.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for (_, waker) in waiting.into_values() {
            waker.wake();
        }
    }
}

impl State {
    fn behind(&self, kind: Option<&Kind>, seen: u64) -> Vec<WatchEvent> {
        let Some(kind) = kind else {
            let first = self.events.partition_point(|change| change.event.version <= seen);
            return self
                .events
                .range(first..)
                .take(CHUNK)
                .map(|change| change.event.clone())
                .collect();
        };
        let Some(numbers) = self.by_kind.get(kind) else {
            return Vec::new();
        };
        let event = |number: &u64| &self.events[(number - self.evicted) as usize].event;
        let first = numbers.partition_point(|number| event(number).version <= seen);
        numbers
            .range(first..)
            .take(CHUNK)
            .map(|number| event(number).clone())
            .collect()
    }

    fn evict(&mut self) -> bool {
        let Some(oldest) = self.events.pop_front() else {
            return false;
        };
        self.evicted += 1;
        self.bytes -= oldest.bytes;
        self.floor = oldest.event.version;
        // Numbers are in order, so the oldest event is the first of its kind.
        if let Some(numbers) = self.by_kind.get_mut(&oldest.event.key.kind) {
            numbers.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::SeqCst},
        },
        task::Wake,
    };

    use proptest::prelude::*;

    use super::*;

    fn change(version: u64, kind: &Kind, bytes: usize) -> Committed {
        let key = Key {
            kind: kind.clone(),
            namespace: String::new(),
            name: "a".to_owned(),
        };
        Committed {
            event: WatchEvent::new(key, version, Operation::Updated, Arc::default(), BTreeMap::new()),
            bytes,
        }
    }

    fn versions(ring: &Ring, kind: Option<&Kind>, mut seen: u64) -> Result<Vec<u64>, u64> {
        let mut versions = Vec::new();
        loop {
            match ring.read(kind, seen, None) {
                Reading::Events(events) => versions.extend(events.iter().map(|event| event.version)),
                Reading::Gone { floor } => return Err(floor),
                Reading::Nothing { .. } | Reading::Closed => return Ok(versions),
            }
            seen = versions.last().copied().unwrap_or(seen);
        }
    }

    proptest! {
        /// Compared with a plain list: a watcher that gets no error sees everything after its version, of its kind
        /// only.
        #[test]
        fn nothing_is_skipped_whatever_leaves(
            batches in prop::collection::vec(prop::collection::vec((0..3_u8, 1..50_usize), 0..8), 0..40),
            events in 1..100_usize,
            bytes in 50..2_000_usize,
        ) {
            let kinds = [Kind::from("a"), Kind::from("b"), Kind::from("c")];
            let ring = Ring::new(RingLimits { events, bytes }, 5, 5);
            let (mut all, mut position) = (Vec::new(), 5);
            for batch in batches {
                let mut changes = Vec::new();
                for (kind, bytes) in batch {
                    position += 1;
                    all.push((position, kind));
                    changes.push(change(position, &kinds[usize::from(kind)], bytes));
                }
                ring.append(changes, position);
            }
            prop_assert_eq!(ring.position(), position);
            let floor = ring.floor();
            for seen in 0..=position {
                for wanted in [None, Some(0), Some(1), Some(2)] {
                    let expected: Vec<u64> = all.iter()
                        .filter(|(version, kind)| *version > seen && wanted.is_none_or(|wanted| wanted == *kind))
                        .map(|(version, _)| *version)
                        .collect();
                    let found = versions(&ring, wanted.map(|kind| &kinds[usize::from(kind)]), seen);
                    prop_assert_eq!(found, if seen < floor { Err(floor) } else { Ok(expected) });
                }
            }
        }
    }

    #[test]
    fn what_is_told_twice_is_shown_once_and_what_is_skipped_is_refused() {
        let kind = Kind::from("a");
        let ring = Ring::new(
            RingLimits {
                events: 10,
                bytes: 1_000,
            },
            0,
            0,
        );
        let changes = |range: std::ops::RangeInclusive<u64>| range.map(|version| change(version, &kind, 1)).collect();
        ring.append(changes(1..=3), 3);
        ring.append(changes(2..=5), 5);
        ring.append(changes(4..=5), 5);
        assert_eq!(versions(&ring, None, 0), Ok(vec![1, 2, 3, 4, 5]));
        let (waker, woken) = flag_waker();
        ring.read(Some(&kind), 5, Some((ring.enter(), &waker)));
        ring.skip_to(4);
        assert!(!woken.load(SeqCst));
        ring.skip_to(8);
        assert!(woken.load(SeqCst), "it has to be told that it is too late");
        ring.append(changes(9..=9), 9);
        assert_eq!(versions(&ring, None, 5), Err(8));
        assert_eq!(versions(&ring, Some(&kind), 8), Ok(vec![9]));
    }

    #[test]
    fn a_change_wakes_those_that_wait_for_its_kind() {
        let ring = Ring::new(
            RingLimits {
                events: 10,
                bytes: 1_000,
            },
            0,
            0,
        );
        let (ours, other) = (Kind::from("ours"), Kind::from("other"));
        let waiting = |kind: Option<&Kind>| {
            let (waker, woken) = flag_waker();
            ring.read(kind, 0, Some((ring.enter(), &waker)));
            woken
        };
        let (all, of_ours, of_other) = (waiting(None), waiting(Some(&ours)), waiting(Some(&other)));
        ring.append(vec![change(1, &ours, 1)], 1);
        assert_eq!(
            [&all, &of_ours, &of_other].map(|woken| woken.load(SeqCst)),
            [true, true, false]
        );
    }

    fn flag_waker() -> (Waker, Arc<AtomicBool>) {
        struct Flag(Arc<AtomicBool>);
        impl Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, SeqCst);
            }
        }
        let woken = Arc::new(AtomicBool::new(false));
        (Arc::new(Flag(Arc::clone(&woken))).into(), woken)
    }
}
