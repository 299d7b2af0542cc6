//! `cargo xtask test`: runs all checks and tests, on a machine with only Rust, Go and Node.

mod disk;
mod jobs;
mod phases;
mod programs;
mod record;
mod results;
mod rules;
mod runner;
mod slow;
mod suite;
mod usage;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    repository,
    step::{self, seconds},
};
use jobs::Selection;
use phases::{PHASES, Phase};
use record::{PhaseRecord, Record};
use results::Counts;
use suite::{Group, Report};
use usage::Usage;

/// Run all checks: tools, page, lints, generated files, unit and black-box tests, the demo
#[derive(clap::Args)]
pub struct Arguments {
    /// Run only these phases, in the usual order; repeat the option or separate phases with commas
    #[arg(long, value_delimiter = ',', value_name = "PHASE")]
    only: Vec<String>,
    /// List the phases and what each does
    #[arg(long)]
    list: bool,
    /// In the phase `test`, run only tests whose ids contain one of these parts: e2e::prune, hub/api::watches
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    tests: Vec<String>,
    /// In the phase `test`, run only the hub's black-box tests, each on the database engine that it usually doesn't use
    #[arg(long)]
    swap_engines: bool,
    /// In the phase `test`, run only tests that took at least this long in the last record
    #[arg(long, value_name = "SECONDS")]
    over: Option<f64>,
    /// Run one test process at a time, to measure each test on an idle machine
    #[arg(long)]
    alone: bool,
    /// In the phase `test`, run only the tests that are too slow for normal runs (xtask/slow.toml)
    #[arg(long)]
    slow: bool,
    /// Save the record of this run in docs/performance/tests.json, or with --alone in tests-alone.json
    #[arg(long)]
    record: bool,
}

/// Number of phases that run at the same time. Most phases leave a processor idle for part of the time.
const AT_THE_SAME_TIME: usize = 2;

/// Data that the phases share.
pub struct Run {
    /// Folder with one log per phase.
    pub logs: PathBuf,
    pub selection: Selection,
    /// Results of the phase `test`.
    pub report: Mutex<Report>,
}

impl Run {
    pub fn log(&self, phase: &str) -> PathBuf {
        self.logs.join(format!("{phase}.log"))
    }
}

struct Outcome {
    phase: &'static str,
    result: Result<Counts>,
    time: Duration,
    usage: Usage,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.list {
        for phase in PHASES {
            println!("{:<10} {}", phase.name, phase.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&arguments.only)?;
    let target = repository::target_directory()?;
    let logs = target.join("xtask/logs");
    fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
    disk::require_room(&target)?;
    let _only = take_turn(&target)?;
    let selection = Selection {
        parts: arguments.tests.clone(),
        swapped_engines: arguments.swap_engines,
        at_least_seconds: arguments.over.unwrap_or_default(),
        alone: arguments.alone,
        slow: arguments.slow,
    };
    let run = Run {
        logs,
        selection,
        report: Mutex::default(),
    };

    let start = Instant::now();
    let outcomes = run_phases(&chosen, &run);
    let time = start.elapsed();
    let report = run.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    let code = conclude(&outcomes, time, &report);
    let record = Record::of(outcomes.iter().map(Outcome::record).collect(), time, &report)?;
    record.save(&target.join("xtask/tests.json"))?;
    match (arguments.record, arguments.alone) {
        (true, true) if record.failed > 0 || report.all_tests.is_empty() => {
            bail!("nothing was recorded, because not all tests ran and passed")
        }
        (true, true) => slow::Alone::add(&report.times, &report.all_tests)?,
        (true, false) => record.save(&record::kept()?)?,
        (false, _) => {}
    }
    Ok(code)
}

/// Waits until no other run uses this target folder, so that each run tests its own build.
fn take_turn(target: &Path) -> Result<fs::File> {
    let path = target.join("xtask/run.lock");
    let file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    if file.try_lock().is_err() {
        step::say(&format!(
            "waiting for another run of the tests that uses {}",
            target.display()
        ));
        file.lock().with_context(|| format!("lock {}", path.display()))?;
    }
    Ok(file)
}

fn choose(only: &[String]) -> Result<Vec<&'static Phase>> {
    if let Some(wrong) = only
        .iter()
        .find(|name| !PHASES.iter().any(|phase| phase.name == **name))
    {
        let names: Vec<_> = PHASES.iter().map(|phase| phase.name).collect();
        bail!("there is no phase {wrong:?}; choose one of {}", names.join(", "));
    }
    Ok(PHASES
        .iter()
        .filter(|phase| only.is_empty() || only.iter().any(|name| name == phase.name))
        .collect())
}

/// Runs the phases, at most [`AT_THE_SAME_TIME`] at once. Each starts when the phases that it needs have ended. It does
/// not run if one of them returned an error.
fn run_phases(chosen: &[&'static Phase], run: &Run) -> Vec<Outcome> {
    let watch = usage::Watch::start();
    let mut waiting = chosen.to_vec();
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut running: Vec<&'static str> = Vec::new();
    thread::scope(|scope| {
        let (sender, ended) = mpsc::channel();
        loop {
            let is_broken = |name: &str| outcomes.iter().any(|one| one.phase == name && one.result.is_err());
            if let Some(index) = waiting
                .iter()
                .position(|phase| phase.needs.iter().any(|name| is_broken(name)))
            {
                let phase = waiting.remove(index);
                step::say(&format!(
                    "==> {}: not run, because it needs a phase that failed",
                    phase.name
                ));
                outcomes.push(Outcome::not_run(phase));
                continue;
            }
            let is_open = |name: &str| running.contains(&name) || waiting.iter().any(|phase| phase.name == name);
            let next = waiting
                .iter()
                .position(|phase| !phase.needs.iter().any(|name| is_open(name)));
            if let (Some(index), true) = (next, running.len() < AT_THE_SAME_TIME) {
                let phase = waiting.remove(index);
                running.push(phase.name);
                let (sender, watch) = (sender.clone(), &watch);
                scope.spawn(move || sender.send(run_phase(phase, run, watch)));
                continue;
            }
            if running.is_empty() {
                break;
            }
            let Ok(outcome) = ended.recv() else { break };
            running.retain(|name| *name != outcome.phase);
            outcomes.push(outcome);
        }
    });
    outcomes.sort_by_key(|outcome| PHASES.iter().position(|phase| phase.name == outcome.phase));
    outcomes
}

fn run_phase(phase: &'static Phase, run: &Run, watch: &usage::Watch) -> Outcome {
    step::say(&format!("==> {}: {}", phase.name, phase.about));
    // Remove the log of an earlier run.
    let _ = fs::remove_file(run.log(phase.name));
    watch.begin(phase.name);
    let start = Instant::now();
    // Catch a panic: if it ended this thread, the run would wait for the phase for ever.
    let result = catch_unwind(AssertUnwindSafe(|| (phase.run)(run))).unwrap_or_else(|_| Err(anyhow!("it panicked")));
    let time = start.elapsed();
    let name = phase.name;
    step::say(&match &result {
        Ok(counts) if counts.failed == 0 => format!("    {name}: ok in {}", seconds(time)),
        Ok(counts) => format!("    {name}: {} failed after {}", counts.failed, seconds(time)),
        Err(error) => format!("    {name}: FAILED after {}: {error:#}", seconds(time)),
    });
    Outcome {
        phase: name,
        result,
        time,
        usage: watch.end(name),
    }
}

impl Outcome {
    fn not_run(phase: &Phase) -> Self {
        let result = Err(anyhow!("it needs a phase that failed"));
        Self {
            phase: phase.name,
            result,
            time: Duration::ZERO,
            usage: Usage::default(),
        }
    }

    fn counts(&self) -> Counts {
        self.result.as_ref().copied().unwrap_or(Counts::ONE_FAILED)
    }

    fn record(&self) -> PhaseRecord {
        let Counts { passed, failed } = self.counts();
        PhaseRecord {
            phase: self.phase.to_owned(),
            passed,
            failed,
            seconds: record::rounded(self.time.as_secs_f64()),
            processor_seconds: record::rounded(self.usage.processor_seconds),
            memory_gib: record::rounded(self.usage.memory as f64 / f64::from(1 << 20)),
        }
    }
}

fn conclude(outcomes: &[Outcome], time: Duration, report: &Report) -> ExitCode {
    show_programs(&report.groups);
    println!(
        "\n{:<10} {:<8} {:>6} {:>6} {:>8} {:>8} {:>9}",
        "PHASE", "RESULT", "PASSED", "FAILED", "TIME", "CPU", "MEMORY"
    );
    let mut total = Counts::default();
    for outcome in outcomes {
        let counts = outcome.counts();
        total = total.plus(counts);
        let word = if counts.failed == 0 { "ok" } else { "FAILED" };
        let Counts { passed, failed } = counts;
        let (time, memory) = (seconds(outcome.time), usage::gibibytes(outcome.usage.memory));
        let processors = seconds(Duration::from_secs_f64(outcome.usage.processor_seconds));
        println!(
            "{:<10} {word:<8} {passed:>6} {failed:>6} {time:>8} {processors:>8} {memory:>9}",
            outcome.phase
        );
    }
    let processors = outcomes.iter().map(|outcome| outcome.usage.processor_seconds).sum();
    let (processors, time) = (seconds(Duration::from_secs_f64(processors)), seconds(time));
    let memory = usage::gibibytes(outcomes.iter().map(|outcome| outcome.usage.memory).max().unwrap_or(0));
    println!("{:<33} {time:>8} {processors:>8} {memory:>9}\n", "total");
    for fault in &report.faults {
        println!("{fault}");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    if !report.unmeasured.is_empty() {
        println!(
            "slow, but not measured alone yet: {} (see CONTRIBUTING.md)",
            report.unmeasured.join(", ")
        );
    }
    if !report.shaky.is_empty() {
        println!("{} shaky: {}", report.shaky.len(), report.shaky.join(", "));
    }
    if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the slowest programs.
fn show_programs(groups: &[Group]) {
    if groups.is_empty() {
        return;
    }
    println!(
        "\n{:<36} {:>6} {:>9} {:>9}",
        "SLOWEST PROGRAMS", "TESTS", "SECONDS", "CPU"
    );
    for Group {
        name,
        tests,
        seconds,
        processor_seconds,
    } in groups.iter().take(record::SLOWEST)
    {
        println!("{name:<36} {tests:>6} {seconds:>9.1} {processor_seconds:>9.1}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_phase_is_named_with_the_valid_ones() {
        let error = choose(&["fmt".to_owned(), "lint".to_owned()])
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("\"lint\"") && error.contains("clippy"), "{error}");
    }

    #[test]
    fn phases_run_in_their_own_order_whatever_was_asked_first() {
        let names: Vec<_> = choose(&["test".to_owned(), "fmt".to_owned()])
            .unwrap()
            .iter()
            .map(|p| p.name)
            .collect();
        assert_eq!(names, ["fmt", "test"]);
    }
}
