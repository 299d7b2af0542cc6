//! Processor time and memory that a phase uses, with everything that it starts.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

const PERIOD: Duration = Duration::from_millis(500);
/// Columns of `/proc/stat` that count as busy: user, nice, system, irq, softirq. Idle and iowait don't count.
const BUSY: [usize; 5] = [0, 1, 2, 5, 6];

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time of the whole machine. It includes phases that ran at the same time.
    pub processor_seconds: f64,
    /// Maximum memory in KiB, beyond the machine's usage before the first phase.
    pub memory: u64,
}

/// Watches the machine in a thread that runs until the process ends.
pub struct Watch(Arc<Mutex<Seen>>);

struct Seen {
    /// Available memory in KiB before the first phase.
    available_before: u64,
    busy: f64,
    phases: BTreeMap<&'static str, Usage>,
}

impl Watch {
    pub fn start() -> Self {
        let seen = Seen {
            available_before: available(),
            busy: busy_seconds(),
            phases: BTreeMap::new(),
        };
        let watch = Self(Arc::new(Mutex::new(seen)));
        let seen = Self(Arc::clone(&watch.0));
        thread::spawn(move || {
            loop {
                seen.lock().look(available(), busy_seconds());
                thread::sleep(PERIOD);
            }
        });
        watch
    }

    pub fn begin(&self, phase: &'static str) {
        let mut seen = self.lock();
        seen.look(available(), busy_seconds());
        seen.phases.insert(phase, Usage::default());
    }

    pub fn end(&self, phase: &'static str) -> Usage {
        let mut seen = self.lock();
        seen.look(available(), busy_seconds());
        seen.phases.remove(phase).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn look(&mut self, available: u64, busy: f64) {
        let share = (busy - self.busy).max(0.0) / self.phases.len().max(1) as f64;
        let used = self.available_before.saturating_sub(available);
        self.busy = busy;
        for usage in self.phases.values_mut() {
            usage.processor_seconds += share;
            usage.memory = usage.memory.max(used);
        }
    }
}

/// Available memory in KiB. The maximum if it can't be read, so that the usage is counted as zero.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|value| value.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(u64::MAX)
}

/// Busy seconds of all processors since the machine started. 0 if they can't be read.
pub fn busy_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&text) as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn busy_ticks(stat: &str) -> u64 {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> = all
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|tick| tick.parse().ok())
        .collect();
    BUSY.iter().filter_map(|index| ticks.get(*index)).sum()
}

pub fn gibibytes(kibibytes: u64) -> String {
    format!("{:.1} GiB", kibibytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_no_work() {
        assert_eq!(busy_ticks("cpu  10 20 30 4000 500 6 7 0 0 0\ncpu0 1 2 3\n"), 73);
        assert_eq!(busy_ticks(""), 0);
        assert!(busy_seconds() > 0.0);
    }

    #[test]
    fn phases_share_what_the_machine_does_while_they_run_at_the_same_time() {
        let mut seen = Seen {
            available_before: 1000,
            busy: 10.0,
            phases: BTreeMap::from([("a", Usage::default())]),
        };
        seen.look(900, 12.0);
        seen.phases.insert("b", Usage::default());
        seen.look(950, 16.0);
        assert_eq!(
            seen.phases["a"],
            Usage {
                processor_seconds: 4.0,
                memory: 100
            }
        );
        assert_eq!(
            seen.phases["b"],
            Usage {
                processor_seconds: 2.0,
                memory: 50
            }
        );
    }
}
