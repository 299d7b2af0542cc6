//! The phase `test`: all compiled tests, a second chance for those that failed, and the verdict.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};

use super::{
    jobs::{self, Job, Selection},
    programs::TestProgram,
    record,
    results::{self, Counts},
    rules::Book,
    runner::{Ended, Runner, Servers},
    slow::Time,
};
use crate::step;

/// More in one run are a fault of their own.
const MAX_SHAKY: usize = 3;
/// When this many fail, something is wrong that a second run of each would not explain.
const MAX_SECOND_CHANCES: usize = 12;
/// Lines of each failed test that are repeated on the terminal.
const LINES_OF_A_FAILURE: usize = 12;

/// What is said and recorded of a run beyond its counts.
#[derive(Debug, Default)]
pub struct Report {
    pub groups: Vec<Group>,
    /// Seconds by test.
    pub tests: BTreeMap<String, f64>,
    /// The same, with what each took of the processors.
    pub times: BTreeMap<String, Time>,
    /// The ids of all tests, whether they were run or not.
    pub all_tests: BTreeSet<String>,
    /// Tests that failed, also when they were run once more.
    pub failed: Vec<String>,
    /// Tests that failed once and then passed alone.
    pub shaky: Vec<String>,
    /// Why the run is red although each test passed in the end.
    pub faults: Vec<String>,
    /// Slow tests that were never measured alone: the next record makes them a fault.
    pub unmeasured: Vec<String>,
}

/// A program, or a module of one.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub name: String,
    pub tests: usize,
    pub seconds: f64,
    pub processor_seconds: f64,
}

/// Runs what is selected.
pub fn run(servers: &Servers, log: &Path, selection: &Selection) -> Result<(Counts, Report)> {
    let book = Book::load()?;
    let programs = TestProgram::all()?;
    let tests = jobs::tests(&programs)?;
    let jobs = jobs::plan(&programs, &tests, &book, &record::expected_seconds(), selection)?;
    let mut runner = Runner::new(&programs, servers, log);
    let ended = if selection.alone {
        let all = jobs.len();
        runner.run_alone(jobs, all, 0)?
    } else {
        runner.run(jobs)?
    };

    let first = failures(&ended, &programs);
    for failed in &first {
        eprintln!("    failed: {}", failed.id);
    }
    let shaky = if first.len() > MAX_SECOND_CHANCES { Vec::new() } else { second_chances(&mut runner, &book, &first)? };

    let tests_of_run = seconds_by_test(&ended, &programs);
    let report = Report {
        groups: groups(&ended, &programs),
        unmeasured: book.slow.unmeasured(&tests_of_run).into_iter().map(str::to_owned).collect(),
        tests: tests_of_run,
        times: times_by_test(&ended, &programs),
        all_tests: jobs::ids(&programs, &tests).collect(),
        failed: first.iter().map(|failed| failed.id.clone()).filter(|id| !shaky.contains(id)).collect(),
        faults: faults(shaky.len(), &book),
        shaky,
    };
    let passed = ended.iter().map(|one| one.outcome.passed.len() as u64).sum::<u64>() + report.shaky.len() as u64;
    let failed = (report.failed.len() + report.faults.len()) as u64;
    if failed > 0 {
        let text = step::read_from(log, 0)?;
        eprintln!("{}", results::failures(&text, LINES_OF_A_FAILURE).join("\n"));
        eprintln!("  everything that the tests printed: {}", log.display());
    }
    Ok((Counts { passed, failed }, report))
}

/// A test that failed, and how it is run alone.
struct Failed {
    id: String,
    /// As the files of xtask name it: the same on both engines.
    name: String,
    alone: Job,
}

fn failures(ended: &[Ended], programs: &[TestProgram]) -> Vec<Failed> {
    let of_one = |one: &Ended| -> Vec<Failed> {
        let program = &programs[one.job.program];
        let failed = |test: &String| Failed {
            id: one.job.id(programs, test),
            name: program.id_of(test),
            alone: one.job.only(test),
        };
        one.outcome.faults().map(failed).collect()
    };
    ended.iter().flat_map(of_one).collect()
}

/// Runs what failed once more, alone; those that then passed. Deletions, secrets and authorization have to hold at the first time.
fn second_chances(runner: &mut Runner, book: &Book, failed: &[Failed]) -> Result<Vec<String>> {
    let mut shaky = Vec::new();
    for Failed { id, alone, .. } in failed.iter().filter(|failed| book.has_second_chance(&failed.name)) {
        eprintln!("    once more, alone: {id}");
        let again = runner.run_alone(vec![alone.clone()], 1, 0)?;
        if again.iter().all(|one| one.outcome.faults().next().is_none()) {
            shaky.push(id.clone());
        }
    }
    Ok(shaky)
}

fn faults(shaky: usize, book: &Book) -> Vec<String> {
    let mut faults = Vec::new();
    if shaky > MAX_SHAKY {
        faults.push(format!("{shaky} tests were shaky; a run with more than {MAX_SHAKY} is red"));
    }
    let overdue = book.overdue(jiff::Zoned::now().date());
    faults.extend(overdue.map(|(test, until)| format!("{test} was to be mended by {until} (xtask/shaky.toml)")));
    faults
}

/// The slowest first.
fn groups(ended: &[Ended], programs: &[TestProgram]) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for one in ended {
        let name = one.job.group(programs);
        let group = groups.entry(name.clone()).or_insert_with(|| Group { name, ..Group::default() });
        group.tests += one.job.tests.len();
        group.seconds += one.seconds;
        group.processor_seconds += one.processor_seconds;
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    groups
}

fn seconds_by_test(ended: &[Ended], programs: &[TestProgram]) -> BTreeMap<String, f64> {
    let of_one = |one: &Ended| -> Vec<(String, f64)> {
        one.outcome.seconds.iter().map(|(test, seconds)| (one.job.id(programs, test), *seconds)).collect()
    };
    ended.iter().flat_map(of_one).collect()
}

fn times_by_test(ended: &[Ended], programs: &[TestProgram]) -> BTreeMap<String, Time> {
    let of_one = |one: &Ended| -> Vec<(String, Time)> {
        let all = one.outcome.seconds.values().sum::<f64>().max(f64::MIN_POSITIVE);
        let time = |seconds: f64| Time { seconds, processor_seconds: one.processor_seconds * seconds / all };
        one.outcome.seconds.iter().map(|(test, seconds)| (one.job.id(programs, test), time(*seconds))).collect()
    };
    ended.iter().flat_map(of_one).collect()
}

/// Removes what an earlier run left where this one writes.
pub fn clear(log: &Path) -> Result<()> {
    let folder = log.parent().context("the log lies in no folder")?;
    for entry in fs::read_dir(folder)?.filter_map(Result::ok) {
        if entry.path().extension().is_some_and(|ending| ending == "part") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
