//! `cargo xtask test`: everything that must hold, from a bare machine with Rust, Go and Node.

mod disk;
mod jobs;
mod memory;
mod phases;
mod processors;
mod programs;
mod record;
mod results;
mod rules;
mod runner;
mod suite;

use std::{
    cell::RefCell,
    fs,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::repository;
use jobs::Selection;
use phases::{PHASES, Phase};
use record::{PhaseRecord, Record};
use results::Counts;
use suite::{Group, Report};

/// Run everything: tools, page, lints, generated files, unit and black-box tests, the demo
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these phases, in the usual order; may be repeated or separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PHASE")]
    only: Vec<String>,
    /// Show the phases and what each does
    #[arg(long)]
    list: bool,
    /// Of the phase `test` only tests whose ids contain one of these: e2e::prune, hub/api::watches
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    tests: Vec<String>,
    /// Of the phase `test` the hub's black-box tests, each on the engine on which it usually doesn't run
    #[arg(long)]
    swap_engines: bool,
    /// Keep the record of this run in docs/performance/tests.json
    #[arg(long)]
    record: bool,
}

/// What the phases share.
pub struct Run {
    /// One log per phase.
    pub logs: PathBuf,
    pub selection: Selection,
    /// What the phase `test` leaves.
    pub report: RefCell<Report>,
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
    /// Of the whole machine meanwhile.
    processor_seconds: f64,
    /// KiB at the most, beyond what the machine used before.
    memory: u64,
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
    let selection = Selection { parts: arguments.tests.clone(), swapped_engines: arguments.swap_engines };
    let run = Run { logs, selection, report: RefCell::default() };

    let memory = memory::Watch::start();
    let mut outcomes = Vec::new();
    for phase in chosen {
        let outcome = run_phase(phase, &run, &memory);
        let broken = outcome.result.is_err();
        outcomes.push(outcome);
        if broken && phase.needed_by_the_rest {
            eprintln!("the phases after \"{}\" need it and were not run", phase.name);
            break;
        }
    }
    let report = run.report.into_inner();
    let record = Record::of(outcomes.iter().map(Outcome::record).collect(), &report)?;
    record.save(&target.join("xtask/tests.json"))?;
    if arguments.record {
        record.save(&record::kept()?)?;
    }
    Ok(conclude(&outcomes, &report))
}

fn choose(only: &[String]) -> Result<Vec<&'static Phase>> {
    if let Some(wrong) = only.iter().find(|name| !PHASES.iter().any(|phase| phase.name == **name)) {
        let names: Vec<_> = PHASES.iter().map(|phase| phase.name).collect();
        bail!("there is no phase {wrong:?}; the phases are {}", names.join(", "));
    }
    Ok(PHASES.iter().filter(|phase| only.is_empty() || only.iter().any(|name| name == phase.name)).collect())
}

fn run_phase(phase: &'static Phase, run: &Run, memory: &memory::Watch) -> Outcome {
    eprintln!("==> {}: {}", phase.name, phase.about);
    // The log of this run only.
    let _ = fs::remove_file(run.log(phase.name));
    let (start, processors) = (Instant::now(), processors::busy_seconds());
    let result = (phase.run)(run);
    let (time, processor_seconds) = (start.elapsed(), processors::busy_seconds() - processors);
    match &result {
        Ok(counts) if counts.failed == 0 => eprintln!("    ok in {}", seconds(time)),
        Ok(counts) => eprintln!("    {} failed after {}", counts.failed, seconds(time)),
        Err(error) => eprintln!("    FAILED after {}: {error:#}", seconds(time)),
    }
    Outcome { phase: phase.name, result, time, processor_seconds, memory: memory.take_peak() }
}

impl Outcome {
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
            processor_seconds: record::rounded(self.processor_seconds),
            memory_gib: record::rounded(self.memory as f64 / f64::from(1 << 20)),
        }
    }
}

fn conclude(outcomes: &[Outcome], report: &Report) -> ExitCode {
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
        let (time, memory) = (seconds(outcome.time), memory::gibibytes(outcome.memory));
        let processors = seconds(Duration::from_secs_f64(outcome.processor_seconds));
        println!("{:<10} {word:<8} {passed:>6} {failed:>6} {time:>8} {processors:>8} {memory:>9}", outcome.phase);
    }
    let time = outcomes.iter().map(|outcome| outcome.time).sum();
    let processors = seconds(Duration::from_secs_f64(outcomes.iter().map(|outcome| outcome.processor_seconds).sum()));
    let memory = outcomes.iter().map(|outcome| outcome.memory).max().unwrap_or(0);
    println!("{:<33} {:>8} {processors:>8} {:>9}\n", "in all", seconds(time), memory::gibibytes(memory));
    for fault in &report.faults {
        println!("{fault}");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    if !report.shaky.is_empty() {
        println!("{} shaky: {}", report.shaky.len(), report.shaky.join(", "));
    }
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Where the time of the tests went.
fn show_programs(groups: &[Group]) {
    if groups.is_empty() {
        return;
    }
    println!("\n{:<36} {:>6} {:>9} {:>9}", "SLOWEST PROGRAMS", "TESTS", "SECONDS", "CPU");
    for Group { name, tests, seconds, processor_seconds } in groups.iter().take(record::SLOWEST) {
        println!("{name:<36} {tests:>6} {seconds:>9.1} {processor_seconds:>9.1}");
    }
}

fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole >= 60 { format!("{}m{:02}s", whole / 60, whole % 60) } else { format!("{:.1}s", time.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_phase_is_named_with_the_valid_ones() {
        let error = choose(&["fmt".to_owned(), "lint".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("\"lint\"") && error.contains("clippy"), "{error}");
    }

    #[test]
    fn phases_run_in_their_own_order_whatever_was_asked_first() {
        let names: Vec<_> = choose(&["test".to_owned(), "fmt".to_owned()]).unwrap().iter().map(|p| p.name).collect();
        assert_eq!(names, ["fmt", "test"]);
    }
}
