//! Random histories of a fleet, compared with the oracle of the rollouts' own test. Runs that test with a larger count.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::repository;

use super::Round;

/// Histories in one round, which takes half a minute.
const HISTORIES: u64 = 50_000;
const TEST: &str = "whatever_happens_a_change_spreads_no_further_than_it_is_good_and_ends";

/// Counts histories.
pub fn round(seed: u64) -> Result<Round> {
    let mut cargo = repository::cargo()?;
    cargo
        .args([
            "test",
            "--locked",
            "--release",
            "-p",
            "farwater-fleet",
            "--test",
            "rollout",
            "--",
        ])
        .args(["--exact", TEST, "--nocapture"])
        .env("FARWATER_ROLLOUT_HISTORIES", HISTORIES.to_string())
        .env("FARWATER_ROLLOUT_SEED", seed.to_string())
        .stderr(Stdio::inherit());
    let output = cargo.output().context("run cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("rollout-histories: "));
    let figures: Value = serde_json::from_str(line.with_context(|| format!("the test printed no result:\n{text}"))?)?;
    let faults = figures["faults"]
        .as_array()
        .context("the result has no list of faults")?;
    ensure!(
        output.status.success() || !faults.is_empty(),
        "the test failed:\n{text}"
    );
    Ok(Round {
        count: figures["histories"]
            .as_u64()
            .context("the result has no count of histories")?,
        failures: faults
            .iter()
            .map(|fault| format!("seed {seed}: {}", fault.as_str().unwrap_or_default()))
            .collect(),
        figures,
    })
}
