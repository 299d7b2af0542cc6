//! The record of a run: the time of its phases and tests. The next run orders its jobs by it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::suite::{Group, Report};
use crate::{
    machine::{self, Machine},
    repository,
};

/// Number of programs in the table and in the record.
pub const SLOWEST: usize = 15;
/// Shorter tests are not recorded, because their times don't matter.
const RECORDED: f64 = 1.0;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub commit: String,
    pub machine: Machine,
    pub passed: u64,
    pub failed: u64,
    /// Tests that failed twice, or failed without a second chance.
    pub failed_tests: Vec<String>,
    /// Tests that failed once and then passed alone. They count as passed.
    pub shaky: Vec<String>,
    /// Reasons why the run fails although all tests passed in the end.
    #[serde(default)]
    pub faults: Vec<String>,
    pub seconds: f64,
    pub processor_seconds: f64,
    pub memory_gib: f64,
    pub phases: Vec<PhaseRecord>,
    pub slowest_programs: Vec<ProgramRecord>,
    /// Seconds by test, for tests that take a second or more.
    pub tests: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseRecord {
    pub phase: String,
    pub passed: u64,
    pub failed: u64,
    pub seconds: f64,
    /// Processor time of the whole machine while the phase ran. It includes phases that ran at the same time.
    pub processor_seconds: f64,
    pub memory_gib: f64,
}

/// A test program, or one of its modules.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramRecord {
    pub program: String,
    pub tests: usize,
    /// Sum over its processes, which may run at the same time.
    pub seconds: f64,
    pub processor_seconds: f64,
}

impl Record {
    pub fn of(phases: Vec<PhaseRecord>, time: Duration, report: &Report) -> Result<Self> {
        Ok(Self {
            commit: machine::commit()?,
            machine: machine::describe(),
            passed: phases.iter().map(|phase| phase.passed).sum(),
            failed: phases.iter().map(|phase| phase.failed).sum(),
            failed_tests: report.failed.clone(),
            shaky: report.shaky.clone(),
            faults: report.faults.clone(),
            seconds: rounded(time.as_secs_f64()),
            processor_seconds: rounded(phases.iter().map(|phase| phase.processor_seconds).sum()),
            memory_gib: phases.iter().map(|phase| phase.memory_gib).fold(0.0, f64::max),
            slowest_programs: report.groups.iter().take(SLOWEST).map(ProgramRecord::of).collect(),
            tests: recorded(&report.tests),
            phases,
        })
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

impl ProgramRecord {
    fn of(group: &Group) -> Self {
        let Group {
            name,
            tests,
            seconds,
            processor_seconds,
        } = group;
        let (seconds, processor_seconds) = (rounded(*seconds), rounded(*processor_seconds));
        Self {
            program: name.clone(),
            tests: *tests,
            seconds,
            processor_seconds,
        }
    }
}

fn recorded(tests: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let long = tests.iter().filter(|(_, seconds)| **seconds >= RECORDED);
    long.map(|(test, seconds)| (test.clone(), rounded(*seconds))).collect()
}

/// Rounds to a tenth.
pub fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Path of the record in the repository.
pub fn kept() -> Result<PathBuf> {
    Ok(repository::root()?.join("docs/performance/tests.json"))
}

/// Times of the tests in the last record. Empty if it can't be read, because it is only used to order the tests.
pub fn expected_seconds() -> BTreeMap<String, f64> {
    let read = || -> Result<Record> { Ok(serde_json::from_slice(&fs::read(kept()?)?)?) };
    read().map(|record| record.tests).unwrap_or_default()
}
