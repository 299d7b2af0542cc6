//! Applies five thousand objects through a hostile API server, on its own plane.

use std::time::Duration;

use anyhow::Result;
use farwater_e2e::hostile::{self, Hostility};
use farwater_testkit::{Plane, PlaneOptions};

use super::Round;

const OBJECTS: usize = 5_000;
/// Maximum time for all objects. With 64 requests at a time, a second each and a third of them refused, it takes some
/// two minutes, and the rest is for retries.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Counts objects.
pub async fn round(seed: u64) -> Result<Round> {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let outcome = hostile::run(&plane, Hostility::of(seed, OBJECTS, PATIENCE)).await?;
    let failures = outcome.check().err().map(|error| format!("seed {seed}: {error:#}"));
    Ok(Round {
        count: outcome.objects as u64,
        failures: failures.into_iter().collect(),
        figures: serde_json::to_value(&outcome)?,
    })
}
