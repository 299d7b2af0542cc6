//! The phase `test`: runs all compiled tests, retries failed ones once, and decides the result.

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

/// Maximum number of shaky tests in a run. With more, the run fails.
const MAX_SHAKY: usize = 3;
/// If this many tests fail, they have a common cause and are not retried.
const MAX_SECOND_CHANCES: usize = 12;
/// Number of lines of each failed test that the terminal shows.
const LINES_OF_A_FAILURE: usize = 12;

/// Results of a run besides its counts.
#[derive(Debug, Default)]
pub struct Report {
    pub groups: Vec<Group>,
    /// Seconds by test.
    pub tests: BTreeMap<String, f64>,
    /// Seconds and processor seconds by test.
    pub times: BTreeMap<String, Time>,
    /// Ids of all tests, including those that were not run.
    pub all_tests: BTreeSet<String>,
    /// Tests that failed twice, or failed without a second chance.
    pub failed: Vec<String>,
    /// Tests that failed once and then passed alone. They count as passed.
    pub shaky: Vec<String>,
    /// Reasons why the run fails although all tests passed in the end.
    pub faults: Vec<String>,
    /// Slow tests that were never measured alone. After the next `--record` the checks fail because of them.
    pub unmeasured: Vec<String>,
}

/// A test program, or one of its modules.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub name: String,
    pub tests: usize,
    pub seconds: f64,
    pub processor_seconds: f64,
}

/// Runs the selected tests.
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
    let shaky = if first.len() > MAX_SECOND_CHANCES {
        Vec::new()
    } else {
        second_chances(&mut runner, &book, &first)?
    };

    let tests_of_run = seconds_by_test(&ended, &programs);
    let report = Report {
        groups: groups(&ended, &programs),
        unmeasured: book
            .slow
            .unmeasured(&tests_of_run)
            .into_iter()
            .map(str::to_owned)
            .collect(),
        tests: tests_of_run,
        times: times_by_test(&ended, &programs),
        all_tests: jobs::ids(&programs, &tests).collect(),
        failed: first
            .iter()
            .map(|failed| failed.id.clone())
            .filter(|id| !shaky.contains(id))
            .collect(),
        faults: faults(shaky.len(), &book),
        shaky,
    };
    let passed = ended.iter().map(|one| one.outcome.passed.len() as u64).sum::<u64>() + report.shaky.len() as u64;
    let failed = (report.failed.len() + report.faults.len()) as u64;
    if failed > 0 {
        let text = step::read_from(log, 0)?;
        eprintln!("{}", results::failures(&text, LINES_OF_A_FAILURE).join("\n"));
        eprintln!("  the complete output of the tests: {}", log.display());
    }
    Ok((Counts { passed, failed }, report))
}

/// A failed test, and the job that runs it alone.
struct Failed {
    id: String,
    /// Id in the files of xtask, which is the same on both engines.
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

/// Runs failed tests once more, alone, and returns those that passed. Tests of deletions, secrets and authorization get
/// no second chance.
fn second_chances(runner: &mut Runner, book: &Book, failed: &[Failed]) -> Result<Vec<String>> {
    let mut shaky = Vec::new();
    for Failed { id, alone, .. } in failed.iter().filter(|failed| book.has_second_chance(&failed.name)) {
        eprintln!("    retrying alone: {id}");
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
        faults.push(format!("{shaky} tests were shaky; at most {MAX_SHAKY} are allowed"));
    }
    let overdue = book.overdue(jiff::Zoned::now().date());
    faults.extend(overdue.map(|(test, until)| format!("{test} had to be fixed by {until} (xtask/shaky.toml)")));
    faults
}

/// Groups of the tests, the slowest first.
fn groups(ended: &[Ended], programs: &[TestProgram]) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for one in ended {
        let name = one.job.group(programs);
        let group = groups.entry(name.clone()).or_insert_with(|| Group {
            name,
            ..Group::default()
        });
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
        one.outcome
            .seconds
            .iter()
            .map(|(test, seconds)| (one.job.id(programs, test), *seconds))
            .collect()
    };
    ended.iter().flat_map(of_one).collect()
}

fn times_by_test(ended: &[Ended], programs: &[TestProgram]) -> BTreeMap<String, Time> {
    let of_one = |one: &Ended| -> Vec<(String, Time)> {
        let all = one.outcome.seconds.values().sum::<f64>().max(f64::MIN_POSITIVE);
        let time = |seconds: f64| Time {
            seconds,
            processor_seconds: one.processor_seconds * seconds / all,
        };
        one.outcome
            .seconds
            .iter()
            .map(|(test, seconds)| (one.job.id(programs, test), time(*seconds)))
            .collect()
    };
    ended.iter().flat_map(of_one).collect()
}

/// Removes the output of an earlier run from the folder of the log.
pub fn clear(log: &Path) -> Result<()> {
    let folder = log.parent().context("the log has no folder")?;
    for entry in fs::read_dir(folder)?.filter_map(Result::ok) {
        if entry.path().extension().is_some_and(|ending| ending == "part") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
