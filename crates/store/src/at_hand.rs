//! Cache of recently written or read objects, which controllers read again and again.
//!
//! A read from this cache equals a read from the database. Before a commit, [`AtHand::doubt`] removes the keys that it
//! touches; they are cached again only when the result of the commit is known. So a reader that has seen any part of a
//! transaction never gets an older object. Only used if this process is the only writer.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashlink::LruCache;

use crate::{Key, Resource};

/// Most bytes of stored JSON in the cache.
const BYTES: usize = 16 << 20;
/// Bytes that an entry takes besides its object.
const ENTRY_BYTES: usize = 256;
/// Most keys whose last commit is remembered. Beyond it no read that has begun is cached.
const TOUCHED: usize = 16_384;

pub(crate) struct AtHand {
    /// None: other processes write too, so nothing is cached.
    state: Option<Mutex<State>>,
    limit: usize,
}

struct State {
    objects: LruCache<Key, Entry>,
    bytes: usize,
    /// Number of the commit that last touched a key.
    touched: HashMap<Key, u64>,
    /// Raised before and after each commit.
    number: u64,
    /// Reads that began at a lower number are not cached.
    floor: u64,
    closed: bool,
}

struct Entry {
    /// None: the object does not exist.
    object: Option<Resource>,
    bytes: usize,
}

/// The number at which a read began.
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
        Self {
            state: is_alone.then(|| Mutex::new(state())),
            limit,
        }
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        // Code under this lock never panics half-way through a change.
        self.state
            .as_ref()
            .map(|state| state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The cached object of a key. Err: it must be read, and may then be passed to [`Self::keep`].
    pub(crate) fn find(&self, key: &Key) -> Result<Option<Resource>, Begun> {
        let Some(mut state) = self.state() else {
            return Err(Begun(0));
        };
        let number = state.number;
        state
            .objects
            .get(key)
            .map(|entry| entry.object.clone())
            .ok_or(Begun(number))
    }

    /// Caches an object that was read, unless its key was touched since the read began. `bytes`: size of its JSON.
    pub(crate) fn keep(&self, begun: Begun, key: &Key, object: Option<Resource>, bytes: usize) {
        let Some(mut state) = self.state() else { return };
        if begun.0 >= state.floor && state.touched.get(key).is_none_or(|touched| *touched < begun.0) {
            state.insert(key.clone(), object, bytes);
            state.bound(self.limit);
        }
    }

    /// Removes keys before a commit that touches them.
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

    /// Caches the objects after the commit is known to be made, with the bytes of their JSON.
    pub(crate) fn settle(&self, objects: impl Iterator<Item = (Key, Option<Resource>, usize)>) {
        let Some(mut state) = self.state() else { return };
        state.number += 1;
        for (key, object, bytes) in objects {
            state.insert(key, object, bytes);
        }
        state.bound(self.limit);
    }

    /// Clears the cache, because another process may have written anything.
    pub(crate) fn forget(&self) {
        let Some(mut state) = self.state() else { return };
        state.number += 1;
        state.floor = state.number;
        state.touched.clear();
        state.clear();
    }

    /// Stops caching.
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
        Key {
            kind: "a".into(),
            namespace: String::new(),
            name: n.to_string(),
        }
    }

    fn object(key: &Key, version: u64) -> Resource {
        Resource {
            key: key.clone(),
            uid: String::new(),
            version,
            object: Arc::default(),
        }
    }

    /// Events in any order.
    #[derive(Clone, Debug)]
    enum Event {
        /// A row is read, but not cached yet.
        Read(u8),
        /// The oldest pending read is passed to the cache.
        Arrive,
        /// A transaction that touches these keys begins its commit.
        Doubt(Vec<(u8, bool)>),
        /// The database makes the commit.
        Make,
        /// The commit is known to be made.
        Settle,
        /// The result of the commit stays unknown; it may still be made.
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

    /// The rows of the database, and a commit in progress with the keys that it touches and whether it is made.
    #[derive(Default)]
    struct World {
        rows: HashMap<Key, Resource>,
        committing: Option<(Changes, bool)>,
        /// The caller no longer waits for the commit.
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
                        self.readings
                            .push_back((begun, key(n), self.rows.get(&key(n)).cloned()));
                    }
                }
                Event::Arrive => {
                    if let Some((begun, key, object)) = self.readings.pop_front() {
                        at_hand.keep(begun, &key, object, 100);
                    }
                }
                // A commit that was given up has ended when the next begins, because one lock orders them.
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
                // Called by the committing task.
                Event::Forget if self.committing.as_ref().is_none_or(|(_, is_made)| *is_made) => at_hand.forget(),
                Event::Doubt(_) | Event::Settle | Event::Forget => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
        /// After every event, the cache equals the database.
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
        let find = |n: u8| {
            at_hand
                .find(&key(n))
                .map(|found| found.map(|object| object.version))
                .ok()
        };
        for n in 0..2 {
            let Err(begun) = at_hand.find(&key(n)) else {
                panic!("found")
            };
            at_hand.keep(begun, &key(n), (n == 0).then(|| object(&key(0), 7)), 100);
        }
        at_hand.doubt([&key(2)].into_iter());
        at_hand.settle([(key(2), Some(object(&key(2), 8)), 100)].into_iter());
        assert_eq!((find(1), find(2), find(0)), (Some(None), Some(Some(8)), Some(Some(7))));
        at_hand.doubt([&key(3)].into_iter());
        at_hand.settle([(key(3), Some(object(&key(3), 9)), 100)].into_iter());
        assert_eq!(
            (find(0), find(1), find(2), find(3)),
            (Some(Some(7)), None, Some(Some(8)), Some(Some(9)))
        );
        at_hand.close();
        assert_eq!((find(0), find(3)), (None, None));
    }

    #[test]
    fn nothing_is_at_hand_where_others_write() {
        let at_hand = AtHand::new(false);
        let Err(begun) = at_hand.find(&key(1)) else {
            panic!("found")
        };
        at_hand.keep(begun, &key(1), Some(object(&key(1), 1)), 100);
        at_hand.settle([(key(1), Some(object(&key(1), 1)), 100)].into_iter());
        assert!(at_hand.find(&key(1)).is_err());
    }

    #[test]
    fn a_reading_that_outlasts_many_commits_is_not_kept() {
        let at_hand = AtHand::new(true);
        let Err(begun) = at_hand.find(&key(0)) else {
            panic!("found")
        };
        for n in 0..TOUCHED + 2 {
            let other = Key {
                name: format!("other-{n}"),
                ..key(0)
            };
            at_hand.doubt([&other].into_iter());
        }
        at_hand.keep(begun, &key(0), None, 0);
        assert!(at_hand.find(&key(0)).is_err());
    }
}
