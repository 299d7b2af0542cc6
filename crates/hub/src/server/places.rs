//! Places for connections, in total and for each peer.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use farwater_api::protocol::CONNECTION_PATH;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::interval_at,
};

use crate::{
    refusals::Refusals,
    server::{LEAST_REST, LOOK_FOR_PLACE, standing::Standing},
};

/// The open connections. One place is kept free, so that each new client can connect. If none is free, the
/// unauthenticated connection that has been idle longest is closed. If there is none, the next agent that polls is
/// answered and loses its connection: it does not need it for some seconds, and then opens another one.
///
/// There is no limit per address: the clusters of a company, or all clients behind a load balancer, may share one.
pub(super) struct Places {
    pub(super) free: Arc<Semaphore>,
    pub(super) is_wanted: AtomicBool,
    pub(super) open: Mutex<HashMap<u64, Arc<Standing>>>,
    pub(super) next: AtomicU64,
    pub(super) refusals: Arc<Refusals>,
}

impl Places {
    pub(super) fn new(count: usize, refusals: Arc<Refusals>) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            is_wanted: AtomicBool::new(false),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            refusals,
        }
    }

    /// Waits for a free place. Never returns None.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(taken) = Arc::clone(&self.free).try_acquire_owned() {
            self.is_wanted.store(false, Ordering::Relaxed);
            return Some(taken);
        }
        self.is_wanted.store(!self.end_longest_rest(), Ordering::Relaxed);
        // If the chosen connection doesn't close, or none could be chosen, another one may be idle soon.
        let mut looks = interval_at(tokio::time::Instant::now() + LOOK_FOR_PLACE, LOOK_FOR_PLACE);
        let acquire = Arc::clone(&self.free).acquire_owned();
        tokio::pin!(acquire);
        loop {
            tokio::select! {
                taken = &mut acquire => return taken.ok(),
                _ = looks.tick() => drop(self.end_longest_rest()),
            }
        }
    }

    /// Closes the unauthenticated connection that has been idle longest. False: there is none.
    pub(super) fn end_longest_rest(&self) -> bool {
        let open = self.open();
        let unknown = open
            .values()
            .filter(|standing| !standing.is_known.load(Ordering::Relaxed));
        // This includes connections that are sending an answer: answers to unauthenticated clients are short, unless
        // the client doesn't read.
        let waiting = unknown.filter(|standing| !standing.is_leaving.load(Ordering::Relaxed));
        let rested = waiting.map(|standing| (standing.last_moved(), standing));
        let longest = rested
            .filter(|(since, _)| since.elapsed() >= LEAST_REST)
            .min_by_key(|(since, _)| *since);
        let Some((_, standing)) = longest else { return false };
        standing.close();
        self.refusals.note(standing.peer);
        true
    }

    pub(super) fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Standing>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, which has a place until the returned value is dropped.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr) -> Stay {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let standing = Arc::new(Standing {
            peer,
            requests: AtomicUsize::new(0),
            moved: Mutex::new(Instant::now()),
            is_known: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            leaves: Notify::new(),
        });
        self.open().insert(number, Arc::clone(&standing));
        Stay {
            places: Arc::clone(self),
            number,
            standing,
        }
    }

    /// Whether the connection of a request for this path should be closed to make room.
    pub(super) fn is_given_up(&self, path: &str) -> bool {
        let is_poll = path.starts_with("/agent/") && path != CONNECTION_PATH;
        is_poll && self.is_wanted.swap(false, Ordering::Relaxed)
    }
}

pub(super) struct Stay {
    pub(super) places: Arc<Places>,
    pub(super) number: u64,
    pub(super) standing: Arc<Standing>,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.places.open().remove(&self.number);
    }
}
