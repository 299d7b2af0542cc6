//! What was read last, for as long as a backend is away, and reading it again now and then.
//!
//! The first read of a reference is asked for; all later ones are the keeper's own, spread over time. So no edit and no restart
//! of a hub asks a backend for everything at once, and a backend that comes back is asked at a pace.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};
use zeroize::Zeroizing;

use crate::{
    backend::{Reference, SecretBytes, Values},
    backends::{Backends, ReadError},
};

/// Between two reads that the keeper begins: at most 20 a second, of all backends together.
const PACE: Duration = Duration::from_millis(50);
/// Reads that are under way: a slow backend does not hold up the others.
const PARALLEL: usize = 16;
/// References that are kept: of 10,000 services each may have some of its own.
const MAX_KEPT: usize = 50_000;
/// A reference that nobody has asked for in so many refreshes is forgotten.
const FORGOTTEN_AFTER: u32 = 12;

/// Where the last good values outlive the process. Implemented with encryption at rest.
#[async_trait]
pub trait Shelf: Send + Sync {
    async fn load(&self, id: &str) -> Result<Option<Kept>, ShelfError>;
    async fn save(&self, id: &str, kept: Kept) -> Result<(), ShelfError>;
    async fn remove(&self, id: &str) -> Result<(), ShelfError>;
}

/// What lies on the shelf under one id.
#[derive(Clone)]
pub struct Kept {
    /// When the values were read; seconds since 1970.
    pub read: i64,
    /// The values as bytes; to be sealed.
    pub values: Zeroizing<Vec<u8>>,
}

#[derive(Debug, thiserror::Error)]
#[error("keep what was read of a backend")]
pub struct ShelfError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// Values, and whether they are what the backend has today as far as anybody knows.
#[derive(Clone, Debug)]
pub struct Known {
    pub values: Arc<Values>,
    /// Where the backend could not be asked, or has refused, since they were read.
    pub stale: Option<Stale>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// When they were read; seconds since 1970.
    pub since: i64,
    pub error: ReadError,
}

/// What has become of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub backend: String,
    pub reference: Reference,
    /// Names whose values have changed, have come or have gone. None: the same values are old now, or are no more.
    pub keys: Vec<String>,
}

/// How one backend is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub backend: String,
    /// It was not to be asked when it was tried last.
    pub is_away: bool,
    /// References that are kept, and those whose values may be old.
    pub kept: usize,
    pub stale: usize,
}

struct Item {
    backend: String,
    reference: Reference,
    values: Option<Arc<Values>>,
    read: i64,
    error: Option<ReadError>,
    next: Instant,
    /// Refreshes since it was asked for.
    unused: u32,
}

/// Keeps values, and tells which have changed.
pub struct Keeper<S> {
    backends: Backends,
    shelf: S,
    refresh: Duration,
    items: Mutex<BTreeMap<String, Item>>,
    /// One first read of each reference at a time.
    firsts: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
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
            firsts: Mutex::default(),
            added: Notify::new(),
            changes: watch::Sender::new(0),
            changed: Mutex::default(),
        }
    }

    /// The values of a reference: at once, if they were ever read; else as soon as the backend has answered.
    ///
    /// # Errors
    ///
    /// Nothing was ever read of it, or it is not allowed (any more).
    pub async fn get(&self, backend: &str, reference: &Reference) -> Result<Known, ReadError> {
        self.backends.check(backend, reference)?;
        let id = reference.id(backend);
        if let Some(known) = self.known(&id) {
            return Ok(known);
        }
        let turn = Arc::clone(lock(&self.firsts).entry(id.clone()).or_default());
        let result = {
            let _first = turn.lock().await;
            match self.known(&id) {
                Some(known) => Ok(known),
                None => self.first(&id, backend, reference).await,
            }
        };
        let mut firsts = lock(&self.firsts);
        if Arc::strong_count(&turn) <= 2 {
            firsts.remove(&id);
        }
        result
    }

    /// References whose values, or whose staleness, have changed since this was last asked.
    pub fn take_changed(&self) -> Vec<Changed> {
        std::mem::take(&mut *lock(&self.changed))
    }

    /// How each backend is doing.
    pub fn conditions(&self) -> Vec<Condition> {
        let items = self.items();
        let condition = |backend: &str| {
            let of_it = || items.values().filter(|item| item.backend == backend);
            Condition {
                backend: backend.to_owned(),
                is_away: self.backends.is_away(backend),
                kept: of_it().count(),
                stale: of_it().filter(|item| item.error.is_some()).count(),
            }
        };
        self.backends.names().map(condition).collect()
    }

    /// Wakes whoever asks [`Self::take_changed`].
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Reads what is in use again and again, until it is dropped.
    pub async fn run(&self) {
        let mut running = FuturesUnordered::new();
        loop {
            let due = if running.len() < PARALLEL { self.next_due() } else { None };
            let at = due.as_ref().map(|(_, at)| *at);
            let wait = async {
                match at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {
                    if let Some((id, _)) = due {
                        self.put_off(&id);
                        running.push(self.read_again(id));
                        sleep(PACE).await;
                    }
                }
                Some(()) = running.next() => {}
                () = self.added.notified() => {}
            }
        }
    }

    fn items(&self) -> MutexGuard<'_, BTreeMap<String, Item>> {
        lock(&self.items)
    }

    fn known(&self, id: &str) -> Option<Known> {
        let mut items = self.items();
        let item = items.get_mut(id)?;
        item.unused = 0;
        let values = Arc::clone(item.values.as_ref()?);
        Some(Known { values, stale: item.error.clone().map(|error| Stale { since: item.read, error }) })
    }

    /// From the shelf, and soon again from the backend; where nothing lies there, from the backend.
    async fn first(&self, id: &str, backend: &str, reference: &Reference) -> Result<Known, ReadError> {
        let kept = match self.shelf.load(id).await {
            Ok(kept) => kept.and_then(|kept| Some((decode_values(&kept.values)?, kept.read))),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, backend, "what was read last can't be loaded");
                None
            }
        };
        if let Some((values, read)) = kept {
            let values = Arc::new(values);
            self.insert(id, backend, reference, (Arc::clone(&values), read), self.spread(0.1));
            return Ok(Known { values, stale: None });
        }
        let values = Arc::new(self.backends.read(backend, reference).await?);
        let read = now();
        self.save(id, &values, read).await;
        self.insert(id, backend, reference, (Arc::clone(&values), read), self.spread(1.0));
        Ok(Known { values, stale: None })
    }

    fn insert(
        &self,
        id: &str,
        backend: &str,
        reference: &Reference,
        (values, read): (Arc<Values>, i64),
        next: Instant,
    ) {
        let mut items = self.items();
        // It is read anew each time then, which is slower and no less right.
        if items.len() >= MAX_KEPT && !items.contains_key(id) {
            return;
        }
        let (backend, reference, values) = (backend.to_owned(), reference.clone(), Some(values));
        items.insert(id.to_owned(), Item { backend, reference, values, read, error: None, next, unused: 0 });
        drop(items);
        self.added.notify_one();
    }

    /// A moment in the next time of refresh, or in a part of it.
    fn spread(&self, part: f64) -> Instant {
        Instant::now() + self.refresh.mul_f64(part * rand::random_range(0.5..=1.0))
    }

    fn next_due(&self) -> Option<(String, Instant)> {
        self.items().iter().min_by_key(|(_, item)| item.next).map(|(id, item)| (id.clone(), item.next))
    }

    /// One that is being read is not due meanwhile.
    fn put_off(&self, id: &str) {
        let next = self.spread(1.0);
        if let Some(item) = self.items().get_mut(id) {
            item.next = next;
        }
    }

    async fn read_again(&self, id: String) {
        let found = {
            let mut items = self.items();
            let Some(item) = items.get_mut(&id) else { return };
            item.unused += 1;
            // A backend that is away says so once, and not for each of its references.
            if let Some(opens) = self.backends.opens(&item.backend).filter(|_| item.error.is_some()) {
                item.next = opens + self.refresh.mul_f64(rand::random_range(0.0..=0.1));
                return;
            }
            (item.unused <= FORGOTTEN_AFTER).then(|| (item.backend.clone(), item.reference.clone()))
        };
        let Some((backend, reference)) = found else { return self.forget(&id).await };
        let read = self.backends.read(&backend, &reference).await;
        let next = match &read {
            Err(error) if error.is_passing() => self.backends.opens(&backend).unwrap_or_else(|| self.spread(0.1)),
            _ => self.spread(1.0),
        };
        let (news, values) = {
            let mut items = self.items();
            let Some(item) = items.get_mut(&id) else { return };
            item.next = next;
            match read {
                Ok(values) => {
                    let was_stale = item.error.take().is_some();
                    item.read = now();
                    let keys = differing(item.values.as_deref(), &values);
                    let is_other = !keys.is_empty();
                    if is_other {
                        item.values = Some(Arc::new(values));
                    }
                    let kept = is_other.then(|| item.values.clone()).flatten().map(|values| (values, item.read));
                    ((is_other || was_stale).then_some(keys), kept)
                }
                Err(error) => {
                    let is_news = item.error.is_none();
                    if is_news {
                        tracing::warn!(%error, "the last values that were read stay in use");
                    }
                    item.error = Some(error);
                    (is_news.then(Vec::new), None)
                }
            }
        };
        if let Some((values, read)) = values {
            self.save(&id, &values, read).await;
        }
        if let Some(keys) = news {
            lock(&self.changed).push(Changed { backend, reference, keys });
            self.changes.send_modify(|count| *count += 1);
        }
    }

    async fn forget(&self, id: &str) {
        self.items().remove(id);
        if let Err(error) = self.shelf.remove(id).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "what nobody uses any more can't be removed");
        }
    }

    async fn save(&self, id: &str, values: &Values, read: i64) {
        let kept = Kept { read, values: encode_values(values) };
        if let Err(error) = self.shelf.save(id, kept).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what was read can't be kept: a restart has to read it again"
            );
        }
    }
}

/// Names that are in one of them alone, or have another value.
fn differing(before: Option<&Values>, after: &Values) -> Vec<String> {
    let before: BTreeMap<_, _> = before.into_iter().flatten().map(|(name, value)| (name, value)).collect();
    let after: BTreeMap<_, _> = after.iter().map(|(name, value)| (name, value)).collect();
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    names.into_iter().filter(|name| before.get(name) != after.get(name)).cloned().collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Values as bytes, for the shelf.
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
