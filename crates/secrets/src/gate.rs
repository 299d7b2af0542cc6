//! Limits the requests to one backend. While the backend is unavailable, one request at a time checks whether it is
//! back.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout},
};

use crate::backend::BackendError;

/// Maximum number of concurrent requests to one backend.
pub(crate) const PARALLEL: usize = 4;
/// Maximum time to wait for a turn, and for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// First pause before the next request to an unavailable backend. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

pub(crate) struct Gate {
    turns: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of failures since the last answer.
    failures: u32,
    shut_until: Option<Instant>,
    /// A request checks whether the backend is back.
    probing: bool,
    last: Option<BackendError>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(PARALLEL),
            state: Mutex::default(),
        }
    }
}

/// The right to send one request. It records the result.
struct Turn<'a> {
    gate: &'a Gate,
    is_probe: bool,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Turn<'_> {
    /// An abandoned check has no result, so the next request may check.
    fn drop(&mut self) {
        if self.is_probe {
            self.gate.state().probing = false;
        }
    }
}

impl Gate {
    /// Sends the request, or returns why the gate is closed.
    pub(crate) async fn pass<T>(&self, ask: impl Future<Output = Result<T, BackendError>>) -> Result<T, BackendError> {
        let turn = self.enter().await?;
        let late = || BackendError::passing(format!("no answer within {} s", PATIENCE.as_secs()));
        let answer = timeout(PATIENCE, ask).await.unwrap_or_else(|_| Err(late()));
        turn.note(answer.as_ref().err());
        answer
    }

    pub(crate) fn is_away(&self) -> bool {
        self.state().failures > 0
    }

    /// When the gate opens. None: it is open.
    pub(crate) fn opens(&self) -> Option<Instant> {
        self.state().shut_until.filter(|until| *until > Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn enter(&self) -> Result<Turn<'_>, BackendError> {
        // Before the wait, because a refused request needs no turn.
        self.check(false)?;
        let permit = timeout(PATIENCE, self.turns.acquire()).await;
        let busy = || BackendError::passing("too many requests wait for it");
        let permit = permit.ok().and_then(Result::ok).ok_or_else(busy)?;
        let is_probe = self.check(true)?;
        Ok(Turn {
            gate: self,
            is_probe,
            _permit: permit,
        })
    }

    /// Whether this request checks if the backend is back. With `begins`, it starts now.
    fn check(&self, begins: bool) -> Result<bool, BackendError> {
        let mut state = self.state();
        if state.failures == 0 {
            return Ok(false);
        }
        let is_shut = state.probing || state.shut_until.is_some_and(|until| until > Instant::now());
        if let (Some(error), true) = (&state.last, is_shut) {
            return Err(error.clone());
        }
        state.probing |= begins;
        Ok(true)
    }
}

impl Turn<'_> {
    fn note(&self, error: Option<&BackendError>) {
        let mut state = self.gate.state();
        let Some(error) = error.filter(|error| error.is_passing()) else {
            *state = State::default();
            return;
        };
        // Requests that were running when the backend failed count as one failure.
        if state.failures > 0 && !self.is_probe {
            return;
        }
        state.failures = state.failures.saturating_add(1);
        let doubled = FIRST_PAUSE
            .saturating_mul(1 << (state.failures - 1).min(10))
            .min(LONGEST_PAUSE);
        let pause = error
            .retry_after
            .map_or(doubled, |wish| wish.clamp(doubled, LONGEST_PAUSE));
        // Random, so that hubs that lost the same backend do not retry at the same moment.
        state.shut_until = Some(Instant::now() + pause.mul_f64(rand::random_range(0.8..=1.2)));
        state.last = Some(error.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    async fn fail(gate: &Gate, asked: &AtomicUsize) -> BackendError {
        let ask = async {
            asked.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(BackendError::passing("away"))
        };
        gate.pass(ask).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_is_away_is_asked_rarely_and_by_one() {
        let (gate, asked) = (Gate::default(), AtomicUsize::new(0));
        for _ in 0..3600 {
            assert_eq!(fail(&gate, &asked).await.to_string(), "away");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // For an hour, with pauses that double from 5 s to 5 min.
        let count = asked.load(Ordering::Relaxed);
        assert!((14..=24).contains(&count), "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_whether_it_is_back_and_then_all_may() {
        let (gate, asked) = (Gate::default(), AtomicUsize::new(0));
        fail(&gate, &asked).await;
        tokio::time::sleep(FIRST_PAUSE * 2).await;
        let slow = gate.pass(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        });
        let other = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            gate.pass(async { Ok(()) }).await
        };
        let (probe, turned_away) = tokio::join!(slow, other);
        assert!(probe.is_ok() && turned_away.is_err());
        assert!(gate.pass(async { Ok(()) }).await.is_ok() && gate.opens().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn few_ask_at_the_same_time_and_none_waits_for_ever() {
        let gate = Gate::default();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ask = || async {
            let count = now.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(count, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        };
        let all = futures::future::join_all((0..100).map(|_| gate.pass(ask()))).await;
        assert_eq!(most.load(Ordering::Relaxed), PARALLEL);
        assert!(
            all.iter().any(Result::is_ok)
                && all
                    .iter()
                    .any(|done| done.as_ref().is_err_and(BackendError::is_passing))
        );
        let silent = gate.pass(std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert_eq!(silent.to_string(), "no answer within 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_means_no_shuts_nothing() {
        let gate = Gate::default();
        let no = || async { Err::<(), _>(BackendError::lasting("there is none")) };
        assert!(gate.pass(no()).await.is_err() && gate.pass(no()).await.is_err());
        assert!(gate.opens().is_none());
    }
}
