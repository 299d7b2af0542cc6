//! How busy the processors are.

use std::fs;

/// Of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq.
const BUSY: [usize; 5] = [0, 1, 2, 5, 6];

/// Seconds that all processors of the machine have worked since it started; 0 where that can't be read.
pub fn busy_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&text) as f64 / rustix::param::clock_ticks_per_second() as f64
}

fn busy_ticks(stat: &str) -> u64 {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> = all.unwrap_or_default().split_whitespace().filter_map(|tick| tick.parse().ok()).collect();
    BUSY.iter().filter_map(|index| ticks.get(*index)).sum()
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
}
