//! The agents' connections: their maximum number, invitations to open one, and their end when the hub stops.
//!
//! Each connection is found by its cluster alone ([`ClusterState`]); nothing here iterates over all of them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::clusters::ClusterState;

/// Connections per second that agents are invited to open. A TLS handshake takes 0.15 ms of a processor, so a returning
/// fleet takes less than a tenth of one.
const PER_SECOND: f64 = 500.0;
/// Maximum wait in an invitation: an agent that polls less often is invited again.
const LONGEST: Duration = Duration::from_secs(60);

/// One open connection, as the rest of the hub sees it.
#[derive(Debug)]
pub struct Live {
    /// Notified when something about its cluster has changed.
    pub wake: Notify,
    /// The process that opened it; empty: it did not say.
    pub instance: Box<str>,
    /// Print of the identity that it showed.
    pub key_print: Option<String>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Live {
    fn take_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug)]
pub struct Connections {
    limit: usize,
    permits: Arc<Semaphore>,
    pace: Mutex<Pace>,
    /// Cancelled when the hub stops.
    pub closing: CancellationToken,
    pub tasks: TaskTracker,
}

impl Connections {
    /// `limit`: maximum number of connections; 0: agents only poll.
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        let permits = Arc::new(Semaphore::new(limit));
        Self {
            limit,
            permits,
            pace: Mutex::default(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        self.limit.saturating_sub(self.permits.available_permits())
    }

    /// The time within which an agent without a connection should open one, at a random moment. None: it should not.
    pub fn invite(&self, cluster: &ClusterState) -> Option<Duration> {
        if cluster.connection().is_some() || self.permits.available_permits() == 0 || self.closing.is_cancelled() {
            return None;
        }
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        Some(pace.admit(Instant::now()))
    }

    /// Reserves a connection for an agent; it may take the place of the one that the agent has. None: there is no room.
    pub fn admit(&self, cluster: &ClusterState, instance: &str) -> Option<Arc<Live>> {
        if self.limit == 0 || self.closing.is_cancelled() {
            return None;
        }
        let free = Arc::clone(&self.permits).try_acquire_owned().ok();
        let permit = free.or_else(|| cluster.connection()?.take_permit())?;
        let key_print = cluster.key_print.clone();
        let permit = Mutex::new(Some(permit));
        let live = Arc::new(Live {
            wake: Notify::new(),
            instance: instance.into(),
            key_print,
            permit,
        });
        cluster.connect(Arc::clone(&live));
        Some(live)
    }

    /// The time within which agents should reconnect after the hub has stopped.
    pub fn return_within(&self) -> Duration {
        Duration::from_secs_f64((self.open() as f64 / PER_SECOND).max(1.0)).min(LONGEST)
    }

    /// Asks the agents to reconnect, and waits up to `patience` until the connections have ended.
    pub async fn close(&self, patience: Duration) {
        self.closing.cancel();
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::debug!(connections = self.open(), "agents' connections are cut");
        }
    }
}

/// A leaky bucket. It contains the agents that were invited and have not had the time to connect.
#[derive(Debug, Default)]
struct Pace {
    asked: f64,
    at: Option<Instant>,
}

impl Pace {
    fn admit(&mut self, now: Instant) -> Duration {
        let since = self
            .at
            .replace(now)
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.asked = (self.asked - since.as_secs_f64() * PER_SECOND).max(0.0) + 1.0;
        Duration::from_secs_f64(self.asked / PER_SECOND).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str) -> ClusterState {
        ClusterState::new(name, "farwater-admin", name, Duration::from_secs(30))
    }

    #[test]
    fn a_storm_is_spread_over_the_time_that_it_takes() {
        let start = Instant::now();
        let mut pace = Pace::default();
        let waits: Vec<_> = (0..5_000).map(|_| pace.admit(start)).collect();
        assert!(
            waits[0] < Duration::from_millis(5) && waits[4_999] == Duration::from_secs(10),
            "{:?}",
            waits[4_999]
        );
        assert!(pace.admit(start + Duration::from_secs(9)) < Duration::from_secs(2));
        assert!(pace.admit(start + Duration::from_secs(20)) < Duration::from_millis(5));
        let longest = (0..100_000).map(|_| pace.admit(start + Duration::from_secs(20))).max();
        assert_eq!(longest, Some(LONGEST));
    }

    #[test]
    fn there_are_as_many_as_may_be_and_an_agents_newer_one_takes_the_olders_place() {
        let connections = Connections::new(1);
        let (east, west) = (cluster("east"), cluster("west"));
        assert!(connections.invite(&east).is_some());
        let first = connections.admit(&east, "a").unwrap();
        assert_eq!((connections.open(), connections.invite(&east)), (1, None));
        assert!(connections.invite(&west).is_none() && connections.admit(&west, "b").is_none());
        let second = connections.admit(&east, "a").unwrap();
        assert!(Arc::ptr_eq(&east.connection().unwrap(), &second));
        east.disconnect(&first);
        drop(first);
        assert_eq!(connections.open(), 1);
        east.disconnect(&second);
        drop(second);
        assert!(connections.open() == 0 && connections.admit(&west, "b").is_some());
    }

    #[test]
    fn with_a_limit_of_none_nobody_is_asked() {
        let connections = Connections::new(0);
        assert!(connections.invite(&cluster("east")).is_none());
        assert!(connections.admit(&cluster("east"), "a").is_none());
    }
}
