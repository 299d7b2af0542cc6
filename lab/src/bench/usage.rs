//! Memory and processor time of a running program, as the kernel counts them.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Plane, kube::Part};

const MEGABYTE: f64 = 1_000_000.0;
/// `USER_HZ`, the unit of times in /proc. It is a constant of Linux's interface, independent of the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All pages in memory, including those of the program's file (`VmRSS`).
    pub resident: u64,
    /// Peak of all pages in memory (`VmHWM`).
    pub peak: u64,
    /// Pages in memory, with shared pages divided by the number of their users (`Pss`).
    pub proportional: u64,
    /// Pages without a file: heap and stacks (`RssAnon`).
    pub anonymous: u64,
}

pub fn memory(process: u32) -> Result<Memory> {
    let status = read(process, "status")?;
    let rollup = read(process, "smaps_rollup")?;
    Ok(Memory {
        resident: kilobytes(&status, "VmRSS:")? * 1024,
        peak: kilobytes(&status, "VmHWM:")? * 1024,
        proportional: kilobytes(&rollup, "Pss:")? * 1024,
        anonymous: kilobytes(&status, "RssAnon:")? * 1024,
    })
}

/// Processor time of all threads of a process since its start.
pub fn processor_time(process: u32) -> Result<Duration> {
    ticks(&read(process, "stat")?).map(|ticks| Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

/// Processor time of a process, including its children that have ended.
pub fn processor_time_of_all(process: u32) -> Result<Duration> {
    let stat = read(process, "stat")?;
    let all = times(&stat, 4)?.iter().sum::<u64>();
    Ok(Duration::from_secs_f64(all as f64 / TICKS_PER_SECOND))
}

/// Processor time of a plane's API server and its database.
pub fn server_time(plane: &mut Plane) -> Result<Duration> {
    Ok(processor_time(plane.part(Part::ApiServer)?.id())? + processor_time(plane.part(Part::Etcd)?.id())?)
}

/// Average processor usage over a time, in thousandths of a core.
pub fn millicores(used: Duration, over: Duration) -> f64 {
    (used.as_secs_f64() / over.as_secs_f64() * 100_000.0).round() / 100.0
}

pub fn megabytes(bytes: u64) -> f64 {
    (bytes as f64 / MEGABYTE * 100.0).round() / 100.0
}

fn read(process: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{process}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

fn kilobytes(text: &str, field: &str) -> Result<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .with_context(|| format!("no {field} line"))?;
    value
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .with_context(|| format!("read {field} {value:?}"))
}

/// Fields 14 and 15 of `stat`: user and system time. The second field, the name, may contain spaces and parentheses.
fn ticks(stat: &str) -> Result<u64> {
    Ok(times(stat, 2)?.iter().sum())
}

/// User and system time from a line of /proc, then those of the children.
fn times(stat: &str, count: usize) -> Result<Vec<u64>> {
    let (_, fields) = stat.rsplit_once(')').context("stat has no name")?;
    let fields: Vec<&str> = fields.split_whitespace().skip(11).take(count).collect();
    ensure!(fields.len() == count, "stat has no times");
    fields
        .into_iter()
        .map(|field| field.parse::<u64>().context("read a time of stat"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 100 0 0 0 17 25 3 4 20 0 1 0 100 1000 10";
        assert_eq!(ticks(stat).unwrap(), 42);
        assert_eq!(times(stat, 4).unwrap(), [17, 25, 3, 4]);
        assert!(ticks("42 (a) S 1").is_err());
    }

    #[test]
    fn a_running_program_has_memory() {
        let memory = memory(std::process::id()).unwrap();
        assert!(
            memory.resident >= memory.anonymous && memory.resident >= memory.proportional,
            "{memory:?}"
        );
        assert!(kilobytes("VmRSS:\t  12 kB\n", "Pss:").is_err());
    }
}
