//! Keeps the last values of references while a backend is unavailable, and refreshes them.
//!
//! No caller waits for a backend. The keeper answers with the known values at once, reads unknown references in the
//! background, and reports the changes. It spreads its reads over time: an edit or a restart of a hub does not request
//! everything at once, and a backend that recovers gets requests at a limited rate.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use zeroize::Zeroizing;

use crate::{
    backend::{Reference, SecretBytes, Values},
    backends::{Backends, ReadError},
    gate,
};

/// Least pause between two reads: at most 20 reads per second, of all backends together.
const PACE: Duration = Duration::from_millis(50);
/// Maximum number of concurrent reads. The gate of each backend lets fewer through, so a slow backend does not delay
/// the others.
const PARALLEL: usize = 16;
/// Maximum number of kept references: each of 10,000 services may have some of its own.
pub(crate) const MAX_KEPT: usize = 50_000;
/// Maximum size of all values in memory, in bytes: 5 KiB for each of so many references. A single one may have 384 KiB.
pub(crate) const MAX_KEPT_BYTES: usize = 256 << 20;

/// Where the last good values outlive the process. Implementations encrypt them. The values to store come with
/// [`Changed`], so that the caller writes them in one transaction with the consequences.
#[async_trait]
pub trait Shelf: Send + Sync {
    async fn load(&self, id: &str) -> Result<Option<Kept>, ShelfError>;
}

/// Stored values of one reference.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    /// When the values were read, in seconds since 1970.
    pub read: i64,
    /// The values as bytes. The shelf encrypts them.
    pub values: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("read", &self.read).finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("load the last values of a backend")]
pub struct ShelfError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// The known state of a reference.
#[derive(Clone, Debug)]
pub struct Known {
    /// The values of the last successful read, or why there was none.
    pub values: Result<Arc<Values>, ReadError>,
    /// Set if the backend was unavailable or refused a read after the values were read.
    pub stale: Option<Stale>,
    /// Number that changes with the values, and when they become stale or current.
    pub turn: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// When the values were read, in seconds since 1970. After a restart of the hub: when the values last changed.
    pub since: i64,
    pub error: ReadError,
}

/// A change of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub backend: String,
    pub reference: Reference,
    /// Names whose values were changed, added or removed. None: no values were known before.
    pub keys: Option<Vec<String>>,
    /// Whether the values became stale, or current again.
    pub is_age: bool,
    /// The values to store on the shelf. None: they are stored already.
    pub kept: Option<Kept>,
}

/// State of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub backend: String,
    /// Whether the last request failed because the backend was unavailable.
    pub is_away: bool,
    /// Number of kept references, and of those whose values may be stale.
    pub kept: usize,
    pub stale: usize,
}

struct Item {
    backend: String,
    reference: Reference,
    values: Option<Arc<Values>>,
    read: i64,
    error: Option<ReadError>,
    /// The values are from the shelf, and were not read since. Another process reported their age.
    is_inherited: bool,
    turn: u64,
    /// When it is read next. It is in no queue during a read.
    next: Instant,
    /// When it was first requested.
    begun: Instant,
}

impl Item {
    fn bytes(&self) -> usize {
        self.values
            .iter()
            .flat_map(|values| &**values)
            .map(|(name, value)| name.len() + value.expose().len())
            .sum()
    }

    fn known(&self) -> Known {
        let first = || ReadError::Unread(self.backend.clone());
        let values = match &self.values {
            Some(values) => Ok(Arc::clone(values)),
            None => Err(self.error.clone().unwrap_or_else(first)),
        };
        let stale = self.error.clone().filter(|_| values.is_ok()).map(|error| Stale {
            since: self.read,
            error,
        });
        Known {
            values,
            stale,
            turn: self.turn,
        }
    }

    /// Stores the result of a read. None: it changes nothing.
    fn take(&mut self, read: Result<Values, ReadError>) -> Option<Changed> {
        let is_inherited = std::mem::take(&mut self.is_inherited);
        let (keys, is_age, kept) = match read {
            Ok(values) => {
                let (was_old, was_known) = (self.error.take().is_some() || is_inherited, self.values.is_some());
                let keys = differing(self.values.as_deref(), &values);
                self.read = now();
                let kept = (!was_known || !keys.is_empty()).then(|| {
                    let values = self.values.insert(Arc::new(values));
                    Kept {
                        read: self.read,
                        values: encode_values(values),
                    }
                });
                (was_known.then_some(keys), was_old && was_known, kept)
            }
            Err(error) => {
                let before = self.error.replace(error.clone());
                if before.is_some_and(|before| before.is_passing() == error.is_passing()) {
                    return None;
                }
                let is_known = self.values.is_some();
                if is_known {
                    tracing::warn!(%error, "a secret can't be read; its last values stay in use");
                }
                (is_known.then(Vec::new), is_known, None)
            }
        };
        let is_news = is_age || keys.as_ref().is_none_or(|keys| !keys.is_empty());
        let (backend, reference) = (self.backend.clone(), self.reference.clone());
        is_news.then_some(Changed {
            backend,
            reference,
            keys,
            is_age,
            kept,
        })
    }
}

/// Kept references, and when each is read again.
#[derive(Default)]
struct Items {
    /// Items by their ids.
    all: BTreeMap<String, Item>,
    /// Size of all values.
    bytes: usize,
    queues: BTreeMap<String, Queue>,
}

/// Items of one backend that wait for a read.
#[derive(Default)]
struct Queue {
    waiting: BTreeSet<(Instant, String)>,
    reading: usize,
}

impl Items {
    fn queue(&mut self, backend: &str) -> &mut Queue {
        self.queues.entry(backend.to_owned()).or_default()
    }

    /// Queues an item for a read at `next`.
    fn wait(&mut self, id: &str, next: Instant) {
        let Some(item) = self.all.get_mut(id) else { return };
        let (backend, before) = (item.backend.clone(), std::mem::replace(&mut item.next, next));
        let queue = self.queue(&backend);
        queue.waiting.remove(&(before, id.to_owned()));
        queue.waiting.insert((next, id.to_owned()));
    }

    /// The next item to read, of those backends whose gate lets one more request through.
    fn next_due(&self) -> Option<(Instant, String)> {
        let free = self.queues.values().filter(|queue| queue.reading < gate::PARALLEL);
        free.filter_map(|queue| queue.waiting.first()).min().cloned()
    }

    fn begin(&mut self, id: &str) -> Option<(String, Reference)> {
        let item = self.all.get(id)?;
        let (backend, reference, next) = (item.backend.clone(), item.reference.clone(), item.next);
        let queue = self.queue(&backend);
        queue.waiting.remove(&(next, id.to_owned()));
        queue.reading += 1;
        Some((backend, reference))
    }

    fn retain(&mut self, stays: impl Fn(&str, &Item) -> bool) {
        let Self { all, bytes, queues } = self;
        all.retain(|id, item| {
            let stays = stays(id, item);
            if let Some(queue) = queues.get_mut(&item.backend).filter(|_| !stays) {
                queue.waiting.remove(&(item.next, id.clone()));
                *bytes -= item.bytes();
            }
            stays
        });
    }
}

/// Keeps values, and reports which have changed.
pub struct Keeper<S> {
    backends: Backends,
    shelf: S,
    refresh: Duration,
    items: Mutex<Items>,
    turns: AtomicU64,
    added: Notify,
    changes: watch::Sender<u64>,
    changed: Mutex<Vec<Changed>>,
}

impl<S: Shelf> Keeper<S> {
    pub fn new(backends: Backends, refresh: Duration, shelf: S) -> Self {
        Self {
            backends,
            shelf,
            refresh,
            items: Mutex::default(),
            turns: AtomicU64::new(0),
            added: Notify::new(),
            changes: watch::Sender::new(0),
            changed: Mutex::default(),
        }
    }

    /// The known state of a reference, without a request to its backend. An unknown reference is read soon.
    ///
    /// # Errors
    ///
    /// The configuration does not allow the reference (any more), or too many are kept.
    pub async fn get(&self, backend: &str, reference: &Reference) -> Result<Known, ReadError> {
        self.backends.check(backend, reference)?;
        let id = reference.id(backend);
        let known = self.items().all.get(&id).map(Item::known);
        if let Some(known) = known {
            return Ok(known);
        }
        let kept = self.load(&id, backend).await;
        self.insert(id, backend, reference, kept)
    }

    /// Whether the configuration has the backend and lets the namespace read the reference.
    pub fn allows(&self, backend: &str, reference: &Reference) -> bool {
        self.backends.check(backend, reference).is_ok()
    }

    /// The result of [`Self::get`] if the reference is in memory.
    pub fn peek(&self, backend: &str, reference: &Reference) -> Option<Known> {
        self.items().all.get(&reference.id(backend)).map(Item::known)
    }

    /// Drops references that are not in use. `used`: their ids, by [`Reference::id`]. A reference that was requested a
    /// moment ago stays, because its caller may not have saved yet that it uses it.
    pub fn retain(&self, used: &HashSet<String>) {
        let moment = Instant::now().checked_sub(self.refresh);
        self.items()
            .retain(|id, item| used.contains(id) || moment.is_none_or(|moment| item.begun > moment));
    }

    /// Whether the reference with this id is in memory.
    pub fn has(&self, id: &str) -> bool {
        self.items().all.contains_key(id)
    }

    pub fn refresh(&self) -> Duration {
        self.refresh
    }

    /// Changes since the last call, in order.
    pub fn take_changed(&self) -> Vec<Changed> {
        std::mem::take(&mut *lock(&self.changed))
    }

    /// State of each backend.
    pub fn conditions(&self) -> Vec<Condition> {
        let items = self.items();
        let condition = |backend: &str| {
            let of_it = || items.all.values().filter(|item| item.backend == backend);
            Condition {
                backend: backend.to_owned(),
                is_away: self.backends.is_away(backend),
                kept: of_it().count(),
                stale: of_it().filter(|item| item.error.is_some()).count(),
            }
        };
        self.backends.names().map(condition).collect()
    }

    /// Signals that [`Self::take_changed`] has changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Refreshes the references in use, until the future is dropped.
    pub async fn run(&self) {
        let mut running = FuturesUnordered::new();
        let mut earliest = Instant::now();
        loop {
            let due = if running.len() < PARALLEL {
                self.items().next_due()
            } else {
                None
            };
            let wait = async {
                match &due {
                    Some((at, _)) => sleep_until((*at).max(earliest)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {
                    earliest = Instant::now() + PACE;
                    running.extend(due.and_then(|(_, id)| self.begin(id)).map(|begun| self.read_again(begun)));
                }
                Some(()) = running.next() => {}
                () = self.added.notified() => {}
            }
        }
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        lock(&self.items)
    }

    fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn load(&self, id: &str, backend: &str) -> Option<(Values, i64)> {
        match self.shelf.load(id).await {
            Ok(kept) => kept.and_then(|kept| Some((decode_values(&kept.values)?, kept.read))),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    backend,
                    "can't load the last values of a backend"
                );
                None
            }
        }
    }

    /// Keeps an item that another caller has inserted meanwhile.
    fn insert(
        &self,
        id: String,
        backend: &str,
        reference: &Reference,
        kept: Option<(Values, i64)>,
    ) -> Result<Known, ReadError> {
        let mut items = self.items();
        if let Some(item) = items.all.get(&id) {
            return Ok(item.known());
        }
        if items.all.len() >= MAX_KEPT || items.bytes >= MAX_KEPT_BYTES {
            return Err(ReadError::TooMuch);
        }
        let begun = Instant::now();
        let is_inherited = kept.is_some();
        let next = if is_inherited { self.spread(0.1) } else { begun };
        let (values, read) = kept.map(|(values, read)| (Arc::new(values), read)).unzip();
        let item = Item {
            backend: backend.to_owned(),
            reference: reference.clone(),
            values,
            read: read.unwrap_or_default(),
            error: None,
            is_inherited,
            turn: self.next_turn(),
            next,
            begun,
        };
        let known = item.known();
        items.bytes += item.bytes();
        items.all.insert(id.clone(), item);
        items.wait(&id, next);
        drop(items);
        self.added.notify_one();
        Ok(known)
    }

    /// A random moment in the second half of the refresh interval, or of a part of it.
    fn spread(&self, part: f64) -> Instant {
        Instant::now() + self.refresh.mul_f64(part * rand::random_range(0.5..=1.0))
    }

    /// Takes an item out of its queue for a read. None: it is gone, or its backend is unavailable.
    fn begin(&self, id: String) -> Option<(String, String, Reference)> {
        let mut items = self.items();
        let item = items.all.get(&id)?;
        // One failed read shows that the backend is unavailable; a read of each reference is not needed.
        if let Some(opens) = self.backends.opens(&item.backend).filter(|_| item.error.is_some()) {
            items.wait(&id, opens + self.refresh.mul_f64(rand::random_range(0.0..=0.1)));
            return None;
        }
        let (backend, reference) = items.begin(&id)?;
        Some((id, backend, reference))
    }

    async fn read_again(&self, (id, backend, reference): (String, String, Reference)) {
        let read = self.backends.read(&backend, &reference).await;
        let next = match &read {
            Err(error) if error.is_passing() => self.backends.opens(&backend).unwrap_or_else(|| self.spread(0.1)),
            _ => self.spread(1.0),
        };
        let changed = {
            let mut items = self.items();
            items.queue(&backend).reading -= 1;
            items.wait(&id, next);
            let Some(item) = items.all.get_mut(&id) else { return };
            let before = item.bytes();
            let changed = item.take(read);
            if changed.is_some() {
                item.turn = self.next_turn();
            }
            let after = item.bytes();
            items.bytes = items.bytes - before + after;
            changed
        };
        if let Some(changed) = changed {
            lock(&self.changed).push(changed);
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

/// Names that only one of the sets has, or whose values differ.
fn differing(before: Option<&Values>, after: &Values) -> Vec<String> {
    let before: BTreeMap<_, _> = before
        .into_iter()
        .flatten()
        .map(|(name, value)| (name, value))
        .collect();
    let after: BTreeMap<_, _> = after.iter().map(|(name, value)| (name, value)).collect();
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    names
        .into_iter()
        .filter(|name| before.get(name) != after.get(name))
        .cloned()
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Encodes values for the shelf.
fn encode_values(values: &Values) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(Vec::new());
    for (name, value) in values {
        for part in [name.as_bytes(), value.expose()] {
            out.extend_from_slice(&(part.len() as u64).to_be_bytes());
            out.extend_from_slice(part);
        }
    }
    out
}

fn decode_values(bytes: &[u8]) -> Option<Values> {
    let (mut rest, mut values) = (bytes, Values::new());
    while !rest.is_empty() {
        let mut part = || {
            let (length, behind) = rest.split_first_chunk::<8>()?;
            let (part, behind) = behind.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
            rest = behind;
            Some(part)
        };
        let name = String::from_utf8(part()?.to_vec()).ok()?;
        values.push((name, SecretBytes::new(part()?)));
    }
    Some(values)
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
