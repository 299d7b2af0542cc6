//! Waves of faults in all parts that lead to deletions, on their own plane.

use anyhow::Result;
use farwater_e2e::prune_chaos;
use farwater_testkit::{Plane, PlaneOptions};

use super::Round;

/// Faults in one round. The setup of a round takes as long as a wave of faults.
const FAULTS: u64 = 100;

/// Counts faults.
pub async fn round(seed: u64) -> Result<Round> {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let outcome = prune_chaos::run(&plane, seed, FAULTS, |so_far| {
        eprintln!("  {} faults, {} intended deletions", so_far.faults, so_far.intended);
    })
    .await?;
    let failures = outcome.check().err().map(|error| format!("seed {seed}: {error:#}"));
    Ok(Round {
        count: outcome.faults,
        failures: failures.into_iter().collect(),
        figures: serde_json::to_value(&outcome)?,
    })
}
