//! The machine's clock, and since when it was not set.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use farwater_fleet::rollout::Clock;
use jiff::Timestamp;

/// Milliseconds by which the clock must jump to count as set. Time synchronization moves a clock by less, and by less
/// than a thousandth of the time that passes.
const STEP: i64 = 2_000;

/// A clock that notices when it was set. A time noted before that does not tell how long something has lasted; it
/// counts like one from before a start, so every wait begins again.
pub struct SteadyClock {
    last: Mutex<Reading>,
    /// How far it is ahead of the machine's clock. Tests turn it instead of waiting.
    ahead: Box<dyn Fn() -> Duration + Send + Sync>,
}

#[derive(Debug)]
struct Reading {
    /// Milliseconds since 1970.
    wall: i64,
    at: Instant,
    /// When the hub started or the clock was set last, in seconds since 1970.
    steady_since: i64,
}

impl SteadyClock {
    pub fn start() -> Self {
        Self::ahead_by(|| Duration::ZERO)
    }

    /// A clock ahead of the machine's by the result of `ahead`, which must not shrink. If the result grows, that counts
    /// as time that has passed, not as a clock that was set.
    pub fn ahead_by(ahead: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let more = ahead();
        let wall = (Timestamp::now() + more).as_millisecond();
        let reading = Reading {
            wall,
            at: Instant::now() + more,
            steady_since: wall.div_euclid(1_000),
        };
        Self {
            last: Mutex::new(reading),
            ahead: Box::new(ahead),
        }
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::now() + (self.ahead)()
    }

    pub fn read(&self) -> Clock {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = (self.ahead)();
        last.follow((Timestamp::now() + ahead).as_millisecond(), Instant::now() + ahead);
        Clock {
            now: last.wall.div_euclid(1_000),
            started: last.steady_since,
        }
    }

    /// When the hub started or its clock was set last, in seconds since 1970.
    pub fn steady_since(&self) -> i64 {
        self.read().started
    }
}

impl fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyClock")
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl Reading {
    fn follow(&mut self, wall: i64, at: Instant) {
        let passed = i64::try_from(at.saturating_duration_since(self.at).as_millis()).unwrap_or(i64::MAX);
        let off = wall.saturating_sub(self.wall).saturating_sub(passed);
        if off.saturating_abs() > STEP.saturating_add(passed / 1_000) {
            tracing::warn!(
                seconds = off / 1_000,
                "the clock was set: soak and wait times count from now"
            );
            self.steady_since = wall.div_euclid(1_000);
        }
        (self.wall, self.at) = (wall, at);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;

    #[test]
    fn time_that_a_test_lets_pass_is_no_clock_that_was_set() {
        let seconds = Arc::new(AtomicU64::new(0));
        let ahead = Arc::clone(&seconds);
        let clock = SteadyClock::ahead_by(move || Duration::from_secs(ahead.load(Ordering::Relaxed)));
        let before = clock.read();
        seconds.store(3_600, Ordering::Relaxed);
        let after = clock.read();
        assert_eq!(after.started, before.started);
        assert!(after.now >= before.now + 3_600 && clock.now().as_second() >= after.now);
    }

    #[test]
    fn a_clock_that_is_set_is_another_one_and_one_that_drifts_is_not() {
        let start = Instant::now();
        let mut reading = Reading {
            wall: 1_000_000,
            at: start,
            steady_since: 1_000,
        };
        // (milliseconds that have passed, the time on the clock then, since when it is steady)
        let course = [
            (500, 1_000_500, 1_000),
            (10_500, 1_012_400, 1_000),
            // An hour, and a correction of three seconds in that time.
            (3_610_500, 4_615_500, 1_000),
            // A machine that slept; its monotonic clock stood still.
            (3_611_500, 8_216_500, 8_216),
            (3_612_500, 8_217_500, 8_216),
            (3_613_500, 8_128_500, 8_128),
            (3_614_500, 8_129_400, 8_128),
        ];
        for (passed, wall, since) in course {
            reading.follow(wall, start + Duration::from_millis(passed));
            assert_eq!(reading.steady_since, since, "{passed}");
        }
    }
}
