//! Processor time and memory of this process, from the kernel.

use std::fs;

/// Ticks per second in the kernel's times (`USER_HZ`), on all architectures that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time and memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
}

impl Usage {
    /// None: there is no `/proc`.
    pub fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        Some(Self {
            cpu_seconds: cpu_seconds(&stat)?,
            resident_bytes: resident_bytes(&status)?,
        })
    }
}

/// proc(5): user and system time are fields 14 and 15. Field 2, the program's name, may contain any characters.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks: u64 = fields
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_add(fields.next()?.parse().ok()?)?;
    Some(ticks as f64 / TICKS_PER_SECOND)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_what_it_takes() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 9 1 1";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(resident_bytes("Name:\ta\nVmRSS:\t    1024 kB\n"), Some(1 << 20));
        assert_eq!(resident_bytes("Name:\ta\n"), None);
        assert!(Usage::read().unwrap().resident_bytes > 100_000);
    }
}
