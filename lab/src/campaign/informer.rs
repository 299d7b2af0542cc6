//! Runs client-go's informers and leader election for five minutes under churn, and kills the hub every minute.

use std::time::Duration;

use anyhow::Result;
use farwater_testkit::{Hub, informer};

use super::Round;

const MINUTES: u64 = 5;

/// Counts minutes.
pub async fn round(seed: u64) -> Result<Round> {
    let dir = tempfile::tempdir()?;
    let mut hub = Hub::start(dir.path()).await?;
    let (duration, between) = (Duration::from_secs(60 * MINUTES), Duration::from_secs(60));
    let outcome = informer::run(&mut hub, duration, seed as i64, Some(between)).await?;
    let failures = outcome.check().err().map(|error| format!("seed {seed}: {error:#}"));
    Ok(Round {
        count: MINUTES,
        failures: failures.into_iter().collect(),
        figures: serde_json::to_value(&outcome)?,
    })
}
