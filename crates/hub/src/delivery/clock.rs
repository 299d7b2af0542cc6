//! The machine's clock, and since when nobody has set it.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use farwater_fleet::rollout::Clock;
use jiff::Timestamp;

/// Milliseconds. What keeps clocks in step moves them by less, and by less than a thousandth of the time that passes.
const STEP: i64 = 2_000;

/// Times that were noted before the clock was set, forward or back, don't tell how long something has lasted. They count as those
/// from before a start do: whatever is waited for, is waited for anew.
#[derive(Debug)]
pub struct SteadyClock(Mutex<Reading>);

#[derive(Debug)]
struct Reading {
    /// Milliseconds since 1970.
    wall: i64,
    at: Instant,
    /// Seconds since 1970.
    steady_since: i64,
}

impl SteadyClock {
    pub fn start() -> Self {
        let wall = Timestamp::now().as_millisecond();
        Self(Mutex::new(Reading { wall, at: Instant::now(), steady_since: wall.div_euclid(1_000) }))
    }

    pub fn read(&self) -> Clock {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.follow(Timestamp::now().as_millisecond(), Instant::now());
        Clock { now: last.wall.div_euclid(1_000), started: last.steady_since }
    }

    /// Seconds since 1970: when the hub started, or its clock was set last.
    pub fn steady_since(&self) -> i64 {
        self.read().started
    }
}

impl Reading {
    fn follow(&mut self, wall: i64, at: Instant) {
        let passed = i64::try_from(at.saturating_duration_since(self.at).as_millis()).unwrap_or(i64::MAX);
        let off = wall.saturating_sub(self.wall).saturating_sub(passed);
        if off.saturating_abs() > STEP.saturating_add(passed / 1_000) {
            tracing::warn!(seconds = off / 1_000, "the clock was set: what soaks or is waited for counts from now on");
            self.steady_since = wall.div_euclid(1_000);
        }
        (self.wall, self.at) = (wall, at);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_is_set_is_another_one_and_one_that_drifts_is_not() {
        let start = Instant::now();
        let mut reading = Reading { wall: 1_000_000, at: start, steady_since: 1_000 };
        // (milliseconds that have passed, what the clock says then, since when it counts)
        let course = [
            (500, 1_000_500, 1_000),
            (10_500, 1_012_400, 1_000),
            // An hour, and three seconds that it was kept in step by.
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
