//! Time by the hub's clock. A cluster's clock may be wrong; the hub's answers show by how much.
//!
//! Between answers the hub's time advances with the machine's monotonic clock, so it stays right when the machine's
//! wall clock is changed, and the difference is right as soon as the wall clock is corrected.

use std::{
    sync::Mutex,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use crate::sync::lock;

/// Seconds of difference that network delay explains.
const TOLERATED: i64 = 5;
/// A smaller difference (seconds) does no harm and is not logged.
const TOLD: i64 = 60;

#[derive(Debug, Default)]
pub struct Clock {
    /// The hub's last time, and when it was received.
    hub: Mutex<Option<(i64, Instant)>>,
}

impl Clock {
    /// Seconds since 1970 by the hub, or by this machine before the hub was heard.
    pub fn now(&self) -> i64 {
        self.hub_now().unwrap_or_else(system_seconds)
    }

    /// Whether the hub has been heard since the start.
    pub fn is_confirmed(&self) -> bool {
        lock(&self.hub).is_some()
    }

    /// Seconds by which this machine's clock is ahead of the hub's. None: the hub was not heard yet.
    pub fn ahead(&self) -> Option<i64> {
        self.hub_now().map(|hub| system_seconds().saturating_sub(hub))
    }

    pub fn correct(&self, hub_time: i64) {
        let before = self.ahead().unwrap_or(0);
        if self
            .hub_now()
            .is_some_and(|known| hub_time.saturating_sub(known).abs() <= TOLERATED)
        {
            return;
        }
        *lock(&self.hub) = Some((hub_time, Instant::now()));
        let ahead = system_seconds().saturating_sub(hub_time);
        if ahead.saturating_sub(before).abs() >= TOLD {
            tracing::warn!(
                seconds_ahead = ahead,
                "this machine's clock differs from the hub's; the agent goes by the hub's time"
            );
        }
    }

    fn hub_now(&self) -> Option<i64> {
        let (said, at) = (*lock(&self.hub))?;
        Some(said.saturating_add(i64::try_from(at.elapsed().as_secs()).unwrap_or(i64::MAX)))
    }
}

/// Seconds since 1970 by this machine's clock.
pub fn system_seconds() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_is_believed_and_small_differences_are_passed_over() {
        let clock = Clock::default();
        assert!(!clock.is_confirmed() && clock.ahead().is_none());
        assert!((clock.now() - system_seconds()).abs() <= 1);
        let hub = system_seconds() - 86_400;
        clock.correct(hub);
        assert!(clock.is_confirmed() && (clock.now() - hub).abs() <= 1);
        assert!((clock.ahead().unwrap() - 86_400).abs() <= 1);
        clock.correct(hub + TOLERATED);
        assert!((clock.now() - hub).abs() <= 1);
        clock.correct(system_seconds());
        assert!(clock.ahead().unwrap().abs() <= 1);
    }
}
