//! Small pieces shared by the tasks.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Locks. A panic elsewhere leaves the data usable.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `duration` plus or minus `share` of it, so that a fleet doesn't act in step.
pub fn jitter(duration: Duration, share: f64) -> Duration {
    duration.mul_f64(rand::random_range(1.0 - share..=1.0 + share))
}

/// Any time up to `longest`, to spread what many would do at the same time.
pub fn full_jitter(longest: Duration) -> Duration {
    longest.mul_f64(rand::random_range(0.0..=1.0))
}

/// Waits that double from `first` to `most`.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            next: first,
        }
    }

    pub fn advance(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.most);
        jitter(wait, 0.1)
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}
