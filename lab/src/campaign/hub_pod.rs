//! Five deletions of the hub's pod on a real node, while two agents poll.

use std::time::Duration;

use anyhow::Result;
use farwater_testkit::hub_pod;

use super::Round;

const DELETIONS: u32 = 5;
/// Default poll interval of a cluster.
const INTERVAL: Duration = Duration::from_secs(30);

/// Counts deletions.
pub async fn round(seed: u64) -> Result<Round> {
    let outcome = hub_pod::on_a_new_site(INTERVAL, DELETIONS, seed, |number, seconds| {
        eprintln!("  deletion {number}: away for {seconds} s");
    })
    .await?;
    let failures = outcome.check().err().map(|error| format!("seed {seed}: {error:#}"));
    Ok(Round {
        count: u64::from(outcome.deletions),
        failures: failures.into_iter().collect(),
        figures: serde_json::to_value(&outcome)?,
    })
}
