//! Receivers: the endpoint for webhooks of Git hosts, and the receivers in memory.
//!
//! ```text
//!  POST /hook/… ─ signature ─ hint ─► inbox ─ ask_sources ─► fetch_sources
//!                                       ▲
//!  Receiver, Secret ─ serve_receivers ──┘
//! ```

mod body;
mod door;
mod log;
mod payload;
pub mod serve_receivers;
mod signature;
pub mod sources;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use farwater_api::ReceiverSpec;
use farwater_fleet::webhooks::hint::{Hint, Inbox};
use farwater_store::{Store, StoreError};

use self::{body::Room, sources::Sources};
pub use self::{
    door::{endpoints, router},
    log::{DeliveryNote, Log},
    signature::{Token, TokenError},
};
use crate::resources::Name;

/// Time limit for a whole body. Hosts give up after the same time themselves.
const BODY_TIME: Duration = Duration::from_secs(10);

/// All receivers of this replica.
pub struct Receivers {
    known: RwLock<KnownReceivers>,
    sources: Mutex<SourcesByNamespace>,
    /// Token that deliveries to unknown paths are checked against, so that these take as long as others.
    nobody: Token,
    room: Room,
    /// Time limit for a whole body; tests use another one.
    pub body_time: Duration,
}

#[derive(Default)]
struct KnownReceivers {
    is_loaded: bool,
    by_name: HashMap<Name, KnownReceiver>,
    by_path: HashMap<String, Arc<Live>>,
}

struct KnownReceiver {
    /// Name of the Secret that has its token.
    secret: String,
    log: Arc<Log>,
    live: Option<Arc<Live>>,
}

#[derive(Default)]
struct SourcesByNamespace {
    /// Counts the changes of sources: sources that were read before a change are not kept.
    changes: u64,
    loaded: HashMap<String, Arc<Sources>>,
}

/// A receiver that checks deliveries. It is replaced as a whole when it or its token changes.
pub struct Live {
    pub name: Name,
    pub uid: String,
    pub generation: i64,
    /// The part after `/hook/`.
    pub path: String,
    pub spec: ReceiverSpec,
    pub token: Token,
    pub log: Arc<Log>,
    inbox: Mutex<Inbox>,
}

impl Live {
    pub fn new(name: Name, uid: String, generation: i64, spec: ReceiverSpec, token: Token, log: Arc<Log>) -> Self {
        let path = token.path(&name);
        Self {
            name,
            uid,
            generation,
            path,
            spec,
            token,
            log,
            inbox: Mutex::default(),
        }
    }

    /// Whether it is the same receiver with the same token, which determines the path.
    fn is_same(&self, other: &Self) -> bool {
        (&self.uid, self.generation, &self.path) == (&other.uid, other.generation, &other.path)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn put(&self, hints: impl IntoIterator<Item = Hint>) {
        let mut inbox = self.inbox();
        hints.into_iter().for_each(|hint| inbox.add(hint));
    }

    pub fn take_hints(&self) -> Vec<Hint> {
        self.inbox().take()
    }
}

impl Default for Receivers {
    fn default() -> Self {
        Self::new()
    }
}

impl Receivers {
    pub fn new() -> Self {
        Self {
            known: RwLock::default(),
            sources: Mutex::default(),
            nobody: Token::random(),
            room: Room::default(),
            body_time: BODY_TIME,
        }
    }

    fn known(&self) -> RwLockReadGuard<'_, KnownReceivers> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, KnownReceivers> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before that, a missing receiver may still exist, so its deliveries are not refused as unknown.
    pub fn set_loaded(&self) {
        self.change().is_loaded = true;
    }

    fn is_loaded(&self) -> bool {
        self.known().is_loaded
    }

    fn at(&self, path: &str) -> Option<Arc<Live>> {
        self.known().by_path.get(path).cloned()
    }

    pub fn live(&self, name: &Name) -> Option<Arc<Live>> {
        self.known().by_name.get(name)?.live.clone()
    }

    /// Receivers that name this Secret for their token, whether it exists or not.
    pub fn of_secret(&self, secret: &Name) -> Vec<Name> {
        let known = self.known();
        let theirs = known
            .by_name
            .iter()
            .filter(|(name, known)| name.namespace == secret.namespace && known.secret == secret.name);
        theirs.map(|(name, _)| name.clone()).collect()
    }

    /// A receiver is about to be read: from now on it is found by its Secret. Returns the log of its deliveries.
    pub fn expect(&self, name: &Name, secret: &str) -> Arc<Log> {
        let mut all = self.change();
        let known = all.by_name.entry(name.clone()).or_insert_with(|| KnownReceiver {
            secret: String::new(),
            log: Arc::default(),
            live: None,
        });
        secret.clone_into(&mut known.secret);
        Arc::clone(&known.log)
    }

    /// From now on deliveries are checked by `next`; None: they are refused. Returns the receiver before, if it was
    /// another one.
    pub fn serve(&self, name: &Name, next: Option<Live>) -> Option<Arc<Live>> {
        let mut all = self.change();
        let all = &mut *all;
        let known = all.by_name.get_mut(name)?;
        if let (Some(live), Some(next)) = (&known.live, &next)
            && live.is_same(next)
        {
            return None;
        }
        let before = known.live.take();
        if let Some(before) = &before {
            all.by_path.remove(&before.path);
        }
        if let Some(next) = next.map(Arc::new) {
            all.by_path.insert(next.path.clone(), Arc::clone(&next));
            known.live = Some(next);
        }
        before
    }

    /// The receiver is gone.
    pub fn forget(&self, name: &Name) -> Option<Arc<Live>> {
        let before = self.serve(name, None);
        self.change().by_name.remove(name);
        before
    }

    /// The sources of a namespace, loaded since one of them changed last.
    pub async fn sources(&self, store: &Store, namespace: &str) -> Result<Arc<Sources>, StoreError> {
        let changes = {
            let all = self.lock_sources();
            if let Some(sources) = all.loaded.get(namespace) {
                return Ok(Arc::clone(sources));
            }
            all.changes
        };
        let sources = Arc::new(Sources::load(store, namespace).await?);
        let mut all = self.lock_sources();
        if all.changes == changes {
            all.loaded.insert(namespace.to_owned(), Arc::clone(&sources));
        }
        Ok(sources)
    }

    pub fn forget_sources(&self, namespace: &str) {
        let mut all = self.lock_sources();
        all.changes += 1;
        all.loaded.remove(namespace);
    }

    fn lock_sources(&self) -> MutexGuard<'_, SourcesByNamespace> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(name: &Name, generation: i64, token: &[u8], log: Arc<Log>) -> Live {
        let token = Token::parse(token).unwrap();
        Live::new(
            name.clone(),
            "uid".to_owned(),
            generation,
            ReceiverSpec::default(),
            token,
            log,
        )
    }

    #[test]
    fn a_receiver_is_found_by_its_path_until_its_token_changes() {
        let (receivers, name) = (Receivers::new(), Name::new("a", "hook"));
        let log = receivers.expect(&name, "secret");
        assert!(
            receivers
                .serve(&name, Some(live(&name, 1, b"a token of some length", log.clone())))
                .is_none()
        );
        let path = receivers.live(&name).unwrap().path.clone();
        assert!(receivers.at(&path).is_some());
        // The same receiver again is no change and keeps its deliveries.
        receivers.at(&path).unwrap().put([Hint::default()]);
        assert!(
            receivers
                .serve(&name, Some(live(&name, 1, b"a token of some length", log.clone())))
                .is_none()
        );
        assert_eq!(receivers.live(&name).unwrap().take_hints(), [Hint::default()]);

        let before = receivers.serve(&name, Some(live(&name, 1, b"another of such length", log.clone())));
        assert_eq!(before.unwrap().path, path);
        assert!(receivers.at(&path).is_none());
        assert!(
            receivers
                .serve(&name, Some(live(&name, 2, b"another of such length", log)))
                .is_some()
        );
        assert_eq!(
            receivers.of_secret(&Name::new("a", "secret")),
            std::slice::from_ref(&name)
        );
        assert_eq!(receivers.of_secret(&Name::new("b", "secret")), []);
        assert!(receivers.forget(&name).is_some());
        assert!(receivers.live(&name).is_none() && receivers.of_secret(&Name::new("a", "secret")).is_empty());
    }
}
