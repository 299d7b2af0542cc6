//! The newest committed changes in memory: what all watchers read.
//!
//! Bounded in number and in bytes. A watcher keeps nothing but the version that it has seen, so a slow one costs
//! nothing and is told when changes that it hasn't seen have left.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use tokio::sync::watch;

use crate::{Kind, WatchEvent};

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

/// A committed change and what it costs to keep.
pub(crate) struct Committed {
    pub event: WatchEvent,
    pub bytes: usize,
}

#[derive(Default)]
struct State {
    events: VecDeque<Committed>,
    /// How many events have left: the first one's number. Numbers make `by_kind` independent of evictions.
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

/// What a watcher finds behind the version that it has seen.
pub(crate) enum Reading {
    /// Some, in order; there may be more.
    Events(Vec<WatchEvent>),
    /// Nothing of its kind up to this version; the waker is kept.
    Nothing {
        position: u64,
    },
    Gone {
        floor: u64,
    },
    Closed,
}

/// How many events a watcher copies at a time: bounds what a slow one holds beyond the ring.
const CHUNK: usize = 64;

impl Ring {
    /// An empty ring at `position` that knows nothing of what is at or below it.
    pub(crate) fn new(limits: RingLimits, floor: u64, position: u64) -> Self {
        let state = State { floor, position, ..State::default() };
        Self { limits, state: Mutex::new(state), position: watch::Sender::new(position) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends what was committed, in order; `position` is the counter after it.
    pub(crate) fn append(&self, changes: Vec<Committed>, position: u64) {
        let mut state = self.lock();
        let mut awake = Vec::new();
        for change in &changes {
            let kind = &change.event.key.kind;
            let woken = state.waiting.extract_if(|_, (wanted, _)| wanted.as_ref().is_none_or(|wanted| wanted == kind));
            awake.extend(woken.map(|(_, (_, waker))| waker));
        }
        for change in changes {
            let number = state.evicted + state.events.len() as u64;
            state.by_kind.entry(change.event.key.kind.clone()).or_default().push_back(number);
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

    pub(crate) fn position(&self) -> u64 {
        self.lock().position
    }

    pub(crate) fn floor(&self) -> u64 {
        self.lock().floor
    }

    pub(crate) fn positions(&self) -> watch::Receiver<u64> {
        self.position.subscribe()
    }

    /// A number of its own for a new watcher.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = self.lock();
        state.next_watcher += 1;
        state.next_watcher
    }

    pub(crate) fn leave(&self, watcher: u64) {
        self.lock().waiting.remove(&watcher);
    }

    /// What lies behind `seen`; if nothing does, `waker` is called when there is news.
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
        Reading::Nothing { position: state.position }
    }

    /// Watchers are shown what is left, then they end.
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
            return self.events.range(first..).take(CHUNK).map(|change| change.event.clone()).collect();
        };
        let Some(numbers) = self.by_kind.get(kind) else { return Vec::new() };
        let event = |number: &u64| &self.events[(number - self.evicted) as usize].event;
        let first = numbers.partition_point(|number| event(number).version <= seen);
        numbers.range(first..).take(CHUNK).map(|number| event(number).clone()).collect()
    }

    fn evict(&mut self) -> bool {
        let Some(oldest) = self.events.pop_front() else { return false };
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
