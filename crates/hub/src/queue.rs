//! Work queues of the controllers: keyed and deduplicated. They hold keys, never objects.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fmt::Debug,
    future::Future,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::errors::chain;

/// First wait after a failure; doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_millis(100);
/// A key that keeps failing is retried about once a minute: often enough to recover by itself, rare enough to read the
/// log.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// A key is in the queue at most once and is never reconciled twice at the same time. A key that is added while it is
/// reconciled is queued again afterwards.
pub struct WorkQueue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    running: HashSet<K>,
    later: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    failures: HashMap<K, u32>,
    done: u64,
    failed: u64,
}

/// Counters of a queue, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that wait for a free worker.
    pub ready: usize,
    /// Reconciles, failed ones included.
    pub done: u64,
    /// Reconciles that failed.
    pub failed: u64,
}

/// When a key is requeued without being added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    OnChange,
    After(Duration),
}

impl<K: Clone + Ord + Hash> Default for WorkQueue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            running: HashSet::new(),
            later: BTreeSet::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            done: 0,
            failed: 0,
        };
        Self {
            state: Mutex::new(state),
            wake: Notify::new(),
        }
    }
}

impl<K: Clone + Ord + Hash> WorkQueue<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, key: K) {
        let mut state = self.state();
        if state.queued.insert(key.clone()) && !state.running.contains(&key) {
            state.ready.push_back(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Unfinished keys: queued, being reconciled, or due later.
    pub fn waiting(&self) -> Vec<K> {
        let state = self.state();
        let keys: HashSet<&K> = state
            .queued
            .iter()
            .chain(&state.running)
            .chain(state.due.keys())
            .collect();
        keys.into_iter().cloned().collect()
    }

    /// Whether there is nothing to do now, and nothing will be due within `wait`.
    pub fn is_idle_for(&self, wait: Duration) -> bool {
        let state = self.state();
        let is_later = state.later.first().is_none_or(|(due, _)| *due > Instant::now() + wait);
        state.queued.is_empty() && state.running.is_empty() && is_later
    }

    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts {
            ready: state.ready.len(),
            done: state.done,
            failed: state.failed,
        }
    }

    /// If several times are given for a key, the earliest one counts.
    pub fn add_after(&self, key: K, wait: Duration) {
        let at = Instant::now() + wait;
        let mut state = self.state();
        match state.due.get(&key).copied() {
            Some(due) if due <= at => return,
            Some(due) => {
                state.later.remove(&(due, key.clone()));
            }
            None => {}
        }
        state.due.insert(key.clone(), at);
        state.later.insert((at, key));
        drop(state);
        self.wake.notify_one();
    }

    /// Takes the next key. The caller must call [`Self::finish`].
    async fn take_key(&self) -> K {
        loop {
            let woken = self.wake.notified();
            let next_due = {
                let mut state = self.state();
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.later.first().map(|(at, _)| *at)
            };
            match next_due {
                Some(at) => {
                    tokio::select! { () = woken => {} () = tokio::time::sleep_until(at) => {} }
                }
                None => woken.await,
            }
        }
    }

    fn finish(&self, key: &K, failed: bool) -> u32 {
        let mut state = self.state();
        state.running.remove(key);
        state.done += 1;
        state.failed += u64::from(failed);
        let failures = if failed {
            let count = state.failures.entry(key.clone()).or_default();
            *count = count.saturating_add(1);
            *count
        } else {
            state.failures.remove(key);
            0
        };
        if state.queued.contains(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.wake.notify_one();
        }
        failures
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    fn promote(&mut self, now: Instant) {
        while let Some((at, key)) = self.later.first().cloned() {
            if at > now {
                return;
            }
            self.later.remove(&(at, key.clone()));
            self.due.remove(&key);
            if self.queued.insert(key.clone()) && !self.running.contains(&key) {
                self.ready.push_back(key);
            }
        }
    }
}

/// Reconciles the keys of a queue, at most `concurrency` at a time, until shutdown. A failure is logged and retried,
/// later each time.
pub async fn work<K, E, F, R>(
    name: &'static str,
    queue: Arc<WorkQueue<K>>,
    concurrency: usize,
    shutdown: CancellationToken,
    reconcile: R,
) where
    K: Clone + Ord + Hash + Debug + Send + Sync + 'static,
    E: std::error::Error + 'static,
    F: Future<Output = Result<Next, E>> + Send + 'static,
    R: Fn(K) -> F + Clone + Send + Sync + 'static,
{
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let (queue, reconcile, shutdown) = (Arc::clone(&queue), reconcile.clone(), shutdown.clone());
        workers.spawn(async move {
            while let Some(key) = shutdown.run_until_cancelled(queue.take_key()).await {
                let result = reconcile(key.clone()).await;
                let failures = queue.finish(&key, result.is_err());
                match result {
                    Ok(Next::OnChange) => {}
                    Ok(Next::After(wait)) => queue.add_after(key, wait),
                    Err(error) => {
                        let wait = retry_wait(failures);
                        tracing::warn!(controller = name, ?key, error = %chain(&error), retry = ?wait, "reconcile failed");
                        queue.add_after(key, wait);
                    }
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(controller = name, %error, "a worker ended");
        }
    }
}

fn retry_wait(failures: u32) -> Duration {
    MIN_RETRY
        .saturating_mul(1 << failures.saturating_sub(1).min(16))
        .min(MAX_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_queued_once_and_never_worked_on_twice_at_once() {
        let queue = WorkQueue::default();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.take_key().await, "a");
        queue.add("a");
        assert_eq!(queue.take_key().await, "b");
        assert!(
            tokio::time::timeout(Duration::from_millis(50), queue.take_key())
                .await
                .is_err()
        );
        queue.finish(&"a", false);
        assert_eq!(queue.take_key().await, "a");
        queue.finish(&"a", true);
        assert_eq!(
            queue.counts(),
            Counts {
                ready: 0,
                done: 2,
                failed: 1
            }
        );
    }

    #[tokio::test]
    async fn of_several_times_the_earliest_counts() {
        let queue = WorkQueue::default();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(30));
        queue.add_after("a", Duration::from_millis(20));
        queue.add_after("a", Duration::from_secs(60));
        assert_eq!(queue.take_key().await, "a");
        assert!((20..30_000).contains(&start.elapsed().as_millis()));
        queue.finish(&"a", false);
        assert!(
            tokio::time::timeout(Duration::from_millis(50), queue.take_key())
                .await
                .is_err()
        );
    }

    #[test]
    fn retries_grow_up_to_a_minute() {
        assert_eq!(retry_wait(1), Duration::from_millis(100));
        assert_eq!(retry_wait(3), Duration::from_millis(400));
        assert_eq!(retry_wait(40), MAX_RETRY);
    }
}
