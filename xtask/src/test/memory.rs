//! How much memory a phase takes, with everything that it starts.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

const PERIOD: Duration = Duration::from_millis(500);

/// Watches the machine's available memory from a thread that ends with the process.
pub struct Watch {
    /// KiB that were available before the first phase.
    before: u64,
    /// The least since it was last asked.
    least: Arc<AtomicU64>,
}

impl Watch {
    pub fn start() -> Self {
        let before = available();
        let least = Arc::new(AtomicU64::new(before));
        let seen = Arc::clone(&least);
        thread::spawn(move || {
            loop {
                seen.fetch_min(available(), Ordering::Relaxed);
                thread::sleep(PERIOD);
            }
        });
        Self { before, least }
    }

    /// KiB that were taken at the most since the last call, beyond what the machine used before.
    pub fn take_peak(&self) -> u64 {
        self.before.saturating_sub(self.least.swap(available(), Ordering::Relaxed))
    }
}

/// KiB; without an answer, none is taken.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|value| value.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(u64::MAX)
}

pub fn gibibytes(kibibytes: u64) -> String {
    format!("{:.1} GiB", kibibytes as f64 / f64::from(1 << 20))
}
