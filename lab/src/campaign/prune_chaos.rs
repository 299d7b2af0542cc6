//! Some waves of faults in everything that deletions follow from, on a plane of their own.

use anyhow::Result;
use farwater_e2e::prune_chaos;
use farwater_testkit::{Plane, PlaneOptions};

use super::Round;

/// Faults of one round: what a round begins with takes as long as a wave of them.
const FAULTS: u64 = 100;

/// Counts faults.
pub async fn round(seed: u64) -> Result<Round> {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let outcome = prune_chaos::run(&plane, seed, FAULTS, |so_far| {
        eprintln!("  {} faults, {} deletions that were meant", so_far.faults, so_far.intended);
    })
    .await?;
    let failures = outcome.check().err().map(|error| format!("seed {seed}: {error:#}"));
    Ok(Round {
        count: outcome.faults,
        failures: failures.into_iter().collect(),
        figures: serde_json::to_value(&outcome)?,
    })
}
