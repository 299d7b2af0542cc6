//! Time by the hub's clock. A cluster's clock may be wrong; the hub's answers say by how much.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Seconds between the agent's clock and the hub's, as last heard.
#[derive(Debug, Default)]
pub struct Clock {
    offset: AtomicI64,
}

/// A difference below this is the network's, not the clock's.
const TOLERATED: i64 = 5;

impl Clock {
    /// Seconds since 1970, corrected.
    pub fn now(&self) -> i64 {
        system_seconds() + self.offset.load(Ordering::Relaxed)
    }

    pub fn correct(&self, hub_time: i64) {
        let offset = hub_time - system_seconds();
        let before = self.offset.load(Ordering::Relaxed);
        if (offset - before).abs() <= TOLERATED {
            return;
        }
        self.offset.store(offset, Ordering::Relaxed);
        tracing::warn!(seconds = offset, "this machine's clock differs from the hub's; corrected by the hub's time");
    }
}

fn system_seconds() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap_or(i64::MAX),
    }
}
