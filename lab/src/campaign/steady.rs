//! Runs the tests again and again, as for every change. None may fail.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use xtask::{repository, step::Group};

use super::Round;

const LOOK: Duration = Duration::from_millis(200);

/// Runs all tests once, with the existing build.
pub fn round(seed: u64) -> Result<Round> {
    run(seed, &["--only", "test"])
}

/// Runs the hub's black-box tests on the engines that they don't use in every run.
pub fn round_of_other_engines(seed: u64) -> Result<Round> {
    run(seed, &["--only", "test", "--swap-engines"])
}

/// Runs the tests that are too slow for every run.
pub fn round_of_slow_tests(seed: u64) -> Result<Round> {
    run(seed, &["--only", "test", "--slow"])
}

fn run(seed: u64, arguments: &[&str]) -> Result<Round> {
    let mut cargo = repository::cargo()?;
    cargo.args(["xtask", "test"]).args(arguments);
    let path = repository::target_directory()?.join("xtask/tests.json");
    // Remove the old record, so that a run that ends without one does not count as the run before it.
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    }
    // The group shows its progress on our terminal and ends with this process.
    let mut group = Group::spawn(&mut cargo).context("run cargo xtask test")?;
    let status = loop {
        match group.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(LOOK),
        }
    };
    let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let record: Value = serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    let failures = if status.success() {
        Vec::new()
    } else {
        vec![format!("{status}: {}, {}", record["failedTests"], record["faults"])]
    };
    let figures = json!({
        "seed": seed,
        "commit": record["commit"],
        "seconds": record["seconds"],
        "processorSeconds": record["processorSeconds"],
        "passed": record["passed"],
        "shaky": record["shaky"],
    });
    Ok(Round {
        count: 1,
        failures,
        figures,
    })
}
