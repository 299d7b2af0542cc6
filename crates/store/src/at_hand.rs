//! Objects that were written or read a moment ago: what controllers read again and again.
//!
//! Whoever reads one here reads what the database has: before a commit what it touches is taken out, and is not put in again until
//! what came of the commit is known. So nobody who has seen any of a transaction sees an object as it was before. Only where this
//! process is the only one to write.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashlink::LruCache;

use crate::{Key, Resource};

/// Bytes of stored JSON that are kept.
const BYTES: usize = 16 << 20;
/// What an entry takes beside its object.
const ENTRY_BYTES: usize = 256;
/// Keys of which is known when they were touched last; beyond it no reading that has begun is kept.
const TOUCHED: usize = 16_384;

pub(crate) struct AtHand {
    /// None: others write too.
    state: Option<Mutex<State>>,
    limit: usize,
}

struct State {
    objects: LruCache<Key, Entry>,
    bytes: usize,
    /// The number of the commit that has touched a key last.
    touched: HashMap<Key, u64>,
    /// Raised before and after each commit.
    number: u64,
    /// What began to be read at a lesser number is not kept.
    floor: u64,
    closed: bool,
}

struct Entry {
    /// None: there is no such object.
    object: Option<Resource>,
    bytes: usize,
}

/// When a reading began.
#[derive(Clone, Copy)]
pub(crate) struct Begun(u64);

impl AtHand {
    pub(crate) fn new(is_alone: bool) -> Self {
        Self::with_limit(is_alone, BYTES)
    }

    fn with_limit(is_alone: bool, limit: usize) -> Self {
        let state = || State {
            objects: LruCache::new_unbounded(),
            bytes: 0,
            touched: HashMap::new(),
            number: 1,
            floor: 0,
            closed: false,
        };
        Self { state: is_alone.then(|| Mutex::new(state())), limit }
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        // Nothing in here panics half-way through a change.
        self.state.as_ref().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What there is of a key. Otherwise it is to be read, and may be given to [`Self::keep`].
    pub(crate) fn find(&self, key: &Key) -> Result<Option<Resource>, Begun> {
        let Some(mut state) = self.state() else { return Err(Begun(0)) };
        let number = state.number;
        state.objects.get(key).map(|entry| entry.object.clone()).ok_or(Begun(number))
    }

    /// Keeps what was read of a key, unless it was touched since. `bytes`: of its JSON.
    pub(crate) fn keep(&self, begun: Begun, key: &Key, object: Option<Resource>, bytes: usize) {
        let Some(mut state) = self.state() else { return };
        if begun.0 >= state.floor && state.touched.get(key).is_none_or(|touched| *touched < begun.0) {
            state.insert(key.clone(), object, bytes);
            state.bound(self.limit);
        }
    }

    /// Before a commit that touches these keys.
    pub(crate) fn doubt<'k>(&self, keys: impl Iterator<Item = &'k Key>) {
        let Some(mut state) = self.state() else { return };
        state.number += 1;
        let number = state.number;
        if state.touched.len() >= TOUCHED {
            state.touched.clear();
            state.floor = number;
        }
        for key in keys {
            state.take_out(key);
            state.touched.insert(key.clone(), number);
        }
    }

    /// After it was made: with what is there now, and the bytes of its JSON.
    pub(crate) fn settle(&self, objects: impl Iterator<Item = (Key, Option<Resource>, usize)>) {
        let Some(mut state) = self.state() else { return };
        state.number += 1;
        for (key, object, bytes) in objects {
            state.insert(key, object, bytes);
        }
        state.bound(self.limit);
    }

    /// Somebody else may have written, whatever.
    pub(crate) fn forget(&self) {
        let Some(mut state) = self.state() else { return };
        state.number += 1;
        state.floor = state.number;
        state.touched.clear();
        state.clear();
    }

    /// From here on nothing is kept.
    pub(crate) fn close(&self) {
        let Some(mut state) = self.state() else { return };
        state.closed = true;
        state.clear();
    }
}

impl State {
    fn insert(&mut self, key: Key, object: Option<Resource>, bytes: usize) {
        if self.closed {
            return;
        }
        self.take_out(&key);
        let bytes = bytes + ENTRY_BYTES;
        self.bytes += bytes;
        self.objects.insert(key, Entry { object, bytes });
    }

    fn take_out(&mut self, key: &Key) {
        self.bytes -= self.objects.remove(key).map_or(0, |entry| entry.bytes);
    }

    fn bound(&mut self, limit: usize) {
        while self.bytes > limit
            && let Some((_, entry)) = self.objects.remove_lru()
        {
            self.bytes -= entry.bytes;
        }
    }

    fn clear(&mut self) {
        self.objects.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u8) -> Key {
        Key { kind: "a".into(), namespace: String::new(), name: n.to_string() }
    }

    fn object(key: &Key, version: u64) -> Resource {
        Resource { key: key.clone(), uid: String::new(), version, object: Arc::default() }
    }

    /// What may happen, one after the other.
    #[derive(Clone, Debug)]
    enum Event {
        /// A row is read, and is not yet here.
        Read(u8),
        /// The reading that began first comes here.
        Arrive,
        /// A transaction that touches these has begun its commit.
        Doubt(Vec<(u8, bool)>),
        /// The database has made it.
        Make,
        /// It is known to be made.
        Settle,
        /// It is not known what came of it, or will: it may still be made.
        GiveUp,
        Forget,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let touched = prop::collection::vec((0..4_u8, any::<bool>()), 1..4);
        let event = prop_oneof![
            4 => (0..4_u8).prop_map(Event::Read),
            4 => Just(Event::Arrive),
            2 => touched.prop_map(Event::Doubt),
            2 => Just(Event::Make),
            2 => Just(Event::Settle),
            1 => Just(Event::GiveUp),
            1 => Just(Event::Forget),
        ];
        prop::collection::vec(event, 0..60)
    }

    type Changes = Vec<(Key, Option<Resource>)>;

    /// What the database has, and a commit that is under way: with what it touches, and whether it is made.
    #[derive(Default)]
    struct World {
        rows: HashMap<Key, Resource>,
        committing: Option<(Changes, bool)>,
        /// Nobody waits for it any more.
        given_up: bool,
        version: u64,
        readings: std::collections::VecDeque<(Begun, Key, Option<Resource>)>,
    }

    impl World {
        fn make(&mut self) {
            if let Some((changes, is_made)) = &mut self.committing
                && !*is_made
            {
                *is_made = true;
                for (key, object) in changes {
                    match object {
                        Some(object) => drop(self.rows.insert(key.clone(), object.clone())),
                        None => drop(self.rows.remove(key)),
                    }
                }
            }
        }

        fn run(&mut self, at_hand: &AtHand, event: Event) {
            match event {
                Event::Read(n) => {
                    if let Err(begun) = at_hand.find(&key(n)) {
                        self.readings.push_back((begun, key(n), self.rows.get(&key(n)).cloned()));
                    }
                }
                Event::Arrive => {
                    if let Some((begun, key, object)) = self.readings.pop_front() {
                        at_hand.keep(begun, &key, object, 100);
                    }
                }
                // What was given up is over when the next begins: one lock orders them.
                Event::Doubt(touched) if self.committing.is_none() || self.given_up => {
                    let mut changes = Vec::new();
                    for (n, is_there) in touched {
                        self.version += 1;
                        changes.push((key(n), is_there.then(|| object(&key(n), self.version))));
                    }
                    at_hand.doubt(changes.iter().map(|(key, _)| key));
                    (self.committing, self.given_up) = (Some((changes, false)), false);
                }
                Event::Make => self.make(),
                Event::Settle if !self.given_up => {
                    self.make();
                    if let Some((changes, _)) = self.committing.take() {
                        at_hand.settle(changes.into_iter().map(|(key, object)| (key, object, 100)));
                    }
                }
                Event::GiveUp => self.given_up = self.committing.is_some(),
                // By whoever commits.
                Event::Forget if self.committing.as_ref().is_none_or(|(_, is_made)| *is_made) => at_hand.forget(),
                Event::Doubt(_) | Event::Settle | Event::Forget => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
        /// Whenever one looks.
        #[test]
        fn what_is_at_hand_is_what_the_database_has(events in events(), limit in 0..1_500_usize) {
            let (at_hand, mut world) = (AtHand::with_limit(true, limit), World::default());
            for event in events {
                world.run(&at_hand, event);
                for n in 0..4 {
                    if let Ok(found) = at_hand.find(&key(n)) {
                        let version = |object: Option<&Resource>| object.map(|object| object.version);
                        prop_assert_eq!(version(found.as_ref()), version(world.rows.get(&key(n))));
                    }
                }
                let state = at_hand.state().unwrap();
                prop_assert!(state.bytes <= limit);
                prop_assert_eq!(state.bytes, state.objects.iter().map(|(_, entry)| entry.bytes).sum::<usize>());
            }
        }
    }

    #[test]
    fn what_was_read_or_written_is_found_until_it_is_the_oldest() {
        let at_hand = AtHand::with_limit(true, 3 * (ENTRY_BYTES + 100));
        let find = |n: u8| at_hand.find(&key(n)).map(|found| found.map(|object| object.version)).ok();
        for n in 0..2 {
            let Err(begun) = at_hand.find(&key(n)) else { panic!("found") };
            at_hand.keep(begun, &key(n), (n == 0).then(|| object(&key(0), 7)), 100);
        }
        at_hand.doubt([&key(2)].into_iter());
        at_hand.settle([(key(2), Some(object(&key(2), 8)), 100)].into_iter());
        assert_eq!((find(1), find(2), find(0)), (Some(None), Some(Some(8)), Some(Some(7))));
        at_hand.doubt([&key(3)].into_iter());
        at_hand.settle([(key(3), Some(object(&key(3), 9)), 100)].into_iter());
        assert_eq!((find(0), find(1), find(2), find(3)), (Some(Some(7)), None, Some(Some(8)), Some(Some(9))));
        at_hand.close();
        assert_eq!((find(0), find(3)), (None, None));
    }

    #[test]
    fn nothing_is_at_hand_where_others_write() {
        let at_hand = AtHand::new(false);
        let Err(begun) = at_hand.find(&key(1)) else { panic!("found") };
        at_hand.keep(begun, &key(1), Some(object(&key(1), 1)), 100);
        at_hand.settle([(key(1), Some(object(&key(1), 1)), 100)].into_iter());
        assert!(at_hand.find(&key(1)).is_err());
    }

    #[test]
    fn a_reading_that_outlasts_many_commits_is_not_kept() {
        let at_hand = AtHand::new(true);
        let Err(begun) = at_hand.find(&key(0)) else { panic!("found") };
        for n in 0..TOUCHED + 2 {
            let other = Key { name: format!("other-{n}"), ..key(0) };
            at_hand.doubt([&other].into_iter());
        }
        at_hand.keep(begun, &key(0), None, 0);
        assert!(at_hand.find(&key(0)).is_err());
    }
}
