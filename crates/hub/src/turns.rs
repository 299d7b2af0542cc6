//! Turns: limits on concurrent requests of one class, on one client's share of them, and on concurrent lists.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::Duration,
};

use axum::response::Response;
use http::StatusCode;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::status::try_later;

/// How long a request waits for its turn before it is refused.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rows of the longest list that counts as a page: kubectl and client-go ask for this many.
const PAGE: usize = 500;

/// Agents and the API have separate turns, so that many lists don't delay agents.
#[derive(Clone)]
pub struct Turns {
    permits: Arc<Semaphore>,
    patience: Duration,
    refusal: StatusCode,
    reason: &'static str,
}

/// A request's turn. It ends when this is dropped.
pub struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// For requests that cost nothing and are never refused.
    pub fn free() -> Self {
        Self { _permit: None }
    }
}

impl Turns {
    pub fn of_api(limit: usize) -> Self {
        Self::new(limit, StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")
    }

    pub fn of_agents(limit: usize) -> Self {
        Self::new(limit, StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
    }

    fn new(limit: usize, refusal: StatusCode, reason: &'static str) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limit)),
            patience: PATIENCE,
            refusal,
            reason,
        }
    }

    /// The turn of a new request, or its refusal. A request that is refused soon can go to another replica, or be
    /// repeated.
    pub async fn begin(&self) -> Result<Turn, Response> {
        match timeout(self.patience, self.next()).await {
            Ok(turn) => Ok(turn),
            Err(_) => {
                let message = "the server has too many requests to work on; try again";
                Err(try_later(self.refusal, self.reason, message))
            }
        }
    }

    /// A turn of these; if none is free, one of `reserved`.
    pub async fn begin_or(&self, reserved: &Self) -> Result<Turn, Response> {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => Ok(Turn { _permit: Some(permit) }),
            Err(_) => reserved.begin().await,
        }
    }

    /// A further turn of a running request, which waits as long as it takes. Turns are granted in order.
    pub async fn next(&self) -> Turn {
        Turn::of(&self.permits).await
    }
}

impl Turn {
    async fn of(permits: &Arc<Semaphore>) -> Self {
        // The semaphore is never closed. If it were, continuing would be better than an incomplete answer.
        Self {
            _permit: Arc::clone(permits).acquire_owned().await.ok(),
        }
    }
}

/// Limits each client's part of a class. A client is a user, or the address of an unauthenticated client.
pub struct Shares {
    each: usize,
    known: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The name by which requests from an address are counted: an IPv4 address, or the /64 network of an IPv6 address.
pub fn peer_name(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            address.segments()[..4]
                .iter()
                .map(|part| format!("{part:x}:"))
                .collect::<String>()
                + ":/64"
        }
    }
}

/// A client's place. It is released when this is dropped.
pub struct Share(#[expect(dead_code, reason = "it is held")] OwnedSemaphorePermit);

impl Shares {
    /// Below this number of clients, unused entries are not removed.
    const FEW: usize = 1024;

    pub fn new(each: usize) -> Self {
        Self {
            each: each.max(1),
            known: Mutex::default(),
        }
    }

    /// One of a client's places; None: the client uses all of them.
    pub fn take(&self, client: &str) -> Option<Share> {
        self.of(client).try_acquire_owned().ok().map(Share)
    }

    /// The same, but waits for a place, in order. None: that took too long.
    pub async fn wait(&self, client: &str) -> Option<Share> {
        timeout(PATIENCE, self.of(client).acquire_owned())
            .await
            .ok()?
            .ok()
            .map(Share)
    }

    /// The client's places.
    pub fn of(&self, client: &str) -> Arc<Semaphore> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = known.get(client).and_then(Weak::upgrade) {
            return places;
        }
        if known.len() >= Self::FEW {
            known.retain(|_, places| places.strong_count() > 0);
        }
        let places = Arc::new(Semaphore::new(self.each));
        known.insert(client.to_owned(), Arc::downgrade(&places));
        places
    }
}

/// How many lists are read from the database and serialized at a time.
///
/// A database file is read by threads of the same priority as those that answer agents. If lists used all processors,
/// each poll would wait for one of them to pause.
#[derive(Clone)]
pub struct ListTurns {
    pages: Arc<Semaphore>,
    /// Turns of long lists, which take none of the pages' turns.
    long: Arc<Semaphore>,
}

impl ListTurns {
    /// Pages use at most half of this machine's processors, and so do long lists.
    pub fn of_a_file() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::new((processors / 2).max(1))
    }

    /// A database server reads on its own processors, and limits connections itself.
    pub fn of_a_server() -> Self {
        Self::new(Semaphore::MAX_PERMITS)
    }

    fn new(limit: usize) -> Self {
        Self {
            pages: Arc::new(Semaphore::new(limit)),
            long: Arc::new(Semaphore::new(limit)),
        }
    }

    /// The turn to read up to `limit` rows (0: all). Turns are granted in order.
    pub async fn next(&self, limit: usize) -> Turn {
        Turn::of(if (1..=PAGE).contains(&limit) {
            &self.pages
        } else {
            &self.long
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http::header;

    use super::*;

    #[tokio::test]
    async fn a_storm_of_lists_makes_no_agent_late() {
        let api = Turns {
            patience: Duration::from_millis(50),
            ..Turns::of_api(1)
        };
        let agents = Turns::of_agents(1);
        let list = api.begin().await.unwrap();
        let refused = api.begin().await.err().unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        assert!(agents.begin().await.is_ok());
        drop(list);
        assert!(api.begin().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_no_more_than_its_share() {
        let shares = Shares::new(2);
        let held = [shares.take("a").unwrap(), shares.take("a").unwrap()];
        assert!(shares.take("a").is_none() && shares.wait("a").await.is_none() && shares.take("b").is_some());
        drop(held);
        assert!(shares.wait("a").await.is_some());
        assert_eq!(
            shares
                .known
                .lock()
                .unwrap()
                .values()
                .filter(|places| places.strong_count() > 0)
                .count(),
            0
        );
    }

    #[tokio::test]
    async fn administrators_have_turns_that_others_can_not_take() {
        let (api, reserved) = (Turns::of_api(1), Turns::of_api(1));
        let _taken = api.begin().await.unwrap();
        assert!(api.begin_or(&reserved).await.is_ok());
    }

    #[tokio::test]
    async fn pages_are_read_one_after_the_other_and_wait_for_no_long_list() {
        let lists = ListTurns::new(1);
        let _long = lists.next(0).await;
        let page = lists.next(PAGE).await;
        assert!(lists.next(50).now_or_never().is_none());
        assert!(lists.next(PAGE + 1).now_or_never().is_none());
        drop(page);
        assert!(lists.next(50).now_or_never().is_some());
    }
}
