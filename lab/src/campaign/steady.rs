//! The tests again and again, as every change runs them: none may be red.

use std::fs;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use xtask::repository;

use super::Round;

/// One run of what is built.
pub fn round(seed: u64) -> Result<Round> {
    run(seed, &["--only", "test"])
}

/// The hub's black-box tests on the engines on which they don't run every time.
pub fn round_of_other_engines(seed: u64) -> Result<Round> {
    run(seed, &["--only", "test", "--swap-engines"])
}

/// The tests that are too slow for every run.
pub fn round_of_slow_tests(seed: u64) -> Result<Round> {
    run(seed, &["--only", "test", "--slow"])
}

fn run(seed: u64, arguments: &[&str]) -> Result<Round> {
    let mut cargo = repository::cargo()?;
    cargo.args(["xtask", "test"]).args(arguments);
    let path = repository::target_directory()?.join("xtask/tests.json");
    // A run that ends before it writes its record must not pass for the run before it.
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    }
    let status = cargo.status().context("run cargo xtask test")?;
    let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let record: Value = serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    let failures = if status.success() { Vec::new() } else { vec![format!("{}: {}", status, record["failedTests"])] };
    let figures = json!({
        "seed": seed,
        "commit": record["commit"],
        "seconds": record["seconds"],
        "processorSeconds": record["processorSeconds"],
        "passed": record["passed"],
        "shaky": record["shaky"],
    });
    Ok(Round { count: 1, failures, figures })
}
