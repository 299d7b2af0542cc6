//! What a running program takes, as the kernel counts it.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{Plane, kube::Part};

const MEGABYTE: f64 = 1_000_000.0;
/// `USER_HZ`, the unit of times in /proc: a constant of Linux' interface, whatever the kernel's own tick is.
const TICKS_PER_SECOND: f64 = 100.0;

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All pages that are in memory (`VmRSS`), those of the program's file included.
    pub resident: u64,
    /// The most that ever was (`VmHWM`).
    pub peak: u64,
    /// The same with shared pages divided by their users (`Pss`).
    pub proportional: u64,
    /// Pages that no file backs: heap and stacks (`RssAnon`).
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

/// Processor time of all of its threads since it was started.
pub fn processor_time(process: u32) -> Result<Duration> {
    ticks(&read(process, "stat")?).map(|ticks| Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND))
}

/// The same with that of the processes that it started and that have ended.
pub fn processor_time_of_all(process: u32) -> Result<Duration> {
    let stat = read(process, "stat")?;
    let all = times(&stat, 4)?.iter().sum::<u64>();
    Ok(Duration::from_secs_f64(all as f64 / TICKS_PER_SECOND))
}

/// The same of a plane's API server and its database.
pub fn server_time(plane: &mut Plane) -> Result<Duration> {
    Ok(processor_time(plane.part(Part::ApiServer)?.id())? + processor_time(plane.part(Part::Etcd)?.id())?)
}

/// Of a core, in thousandths, over some time.
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
    let value = text.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field} line"))?;
    value.trim().trim_end_matches(" kB").parse().with_context(|| format!("read {field} {value:?}"))
}

/// Fields 14 and 15: in the program and in the kernel for it. The second field, the name, may hold spaces and brackets.
fn ticks(stat: &str) -> Result<u64> {
    Ok(times(stat, 2)?.iter().sum())
}

/// Of a line of /proc: in the program and in the kernel, then the same of its children.
fn times(stat: &str, count: usize) -> Result<Vec<u64>> {
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().skip(11).take(count).collect();
    ensure!(fields.len() == count, "stat has no times");
    fields.into_iter().map(|field| field.parse::<u64>().context("read a time of stat")).collect()
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
        assert!(memory.resident >= memory.anonymous && memory.resident >= memory.proportional, "{memory:?}");
        assert!(kilobytes("VmRSS:\t  12 kB\n", "Pss:").is_err());
    }
}
