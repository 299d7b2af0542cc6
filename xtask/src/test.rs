//! `cargo xtask test`: everything that must hold, from a bare machine with Rust, Go and Node.

mod disk;
mod lanes;
mod memory;
mod phases;
mod programs;
mod results;

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::repository;
use phases::{PHASES, Phase};
use results::Counts;

/// Run everything: tools, page, lints, generated files, unit and black-box tests, the demo
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these phases, in the usual order; may be repeated or separated by commas
    #[arg(long, value_delimiter = ',', value_name = "PHASE")]
    only: Vec<String>,
    /// Show the phases and what each does
    #[arg(long)]
    list: bool,
}

/// What the phases share.
pub struct Run {
    /// One log per phase.
    pub logs: PathBuf,
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
    let run = Run { logs };

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
    Ok(conclude(&outcomes))
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
    let start = Instant::now();
    let result = (phase.run)(run);
    let time = start.elapsed();
    match &result {
        Ok(counts) if counts.failed == 0 => eprintln!("    ok in {}", seconds(time)),
        Ok(counts) => eprintln!("    {} failed after {}", counts.failed, seconds(time)),
        Err(error) => eprintln!("    FAILED after {}: {error:#}", seconds(time)),
    }
    Outcome { phase: phase.name, result, time, memory: memory.take_peak() }
}

fn conclude(outcomes: &[Outcome]) -> ExitCode {
    println!("\n{:<10} {:<8} {:>6} {:>6} {:>8} {:>9}", "PHASE", "RESULT", "PASSED", "FAILED", "TIME", "MEMORY");
    let mut total = Counts::default();
    for outcome in outcomes {
        let (word, counts) = match &outcome.result {
            Ok(counts) if counts.failed == 0 => ("ok", *counts),
            Ok(counts) => ("FAILED", *counts),
            Err(_) => ("FAILED", Counts::ONE_FAILED),
        };
        total = total.plus(counts);
        let Counts { passed, failed } = counts;
        let (time, memory) = (seconds(outcome.time), memory::gibibytes(outcome.memory));
        println!("{:<10} {word:<8} {passed:>6} {failed:>6} {time:>8} {memory:>9}", outcome.phase);
    }
    let time = outcomes.iter().map(|outcome| outcome.time).sum();
    let memory = outcomes.iter().map(|outcome| outcome.memory).max().unwrap_or(0);
    println!("{:<33} {:>8} {:>9}\n", "in all", seconds(time), memory::gibibytes(memory));
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
