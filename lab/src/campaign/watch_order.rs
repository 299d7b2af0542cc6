//! A quarter of a million writes of three replicas, and all their watchers. Runs the store's test with a larger count.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::repository;

use super::Round;

const EVENTS: u64 = 250_000;
const TEST: &str = "order::watchers_of_three_replicas_miss_nothing_and_see_nothing_twice";

pub fn round(seed: u64) -> Result<Round> {
    let mut cargo = repository::cargo()?;
    cargo
        .args([
            "test",
            "--locked",
            "--release",
            "-p",
            "farwater-store",
            "--test",
            "store",
            "--",
        ])
        .args(["--exact", TEST, "--nocapture"])
        .env("FARWATER_ORDER_EVENTS", EVENTS.to_string())
        // The test's random generators take 32 bits of the seed.
        .env("FARWATER_ORDER_SEED", (seed & u64::from(u32::MAX)).to_string())
        .stderr(Stdio::inherit());
    let output = cargo.output().context("run cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("watch-order: "));
    let figures: Value = serde_json::from_str(line.with_context(|| format!("the test printed no result:\n{text}"))?)?;
    let faults = figures["faults"]
        .as_array()
        .context("the result has no list of faults")?;
    ensure!(
        output.status.success() || !faults.is_empty(),
        "the test failed:\n{text}"
    );
    Ok(Round {
        count: figures["events"]
            .as_u64()
            .context("the result has no count of events")?,
        failures: faults.iter().map(|fault| format!("seed {seed}: {fault}")).collect(),
        figures,
    })
}
