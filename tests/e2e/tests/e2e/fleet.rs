//! A set on a fleet of simulated and real clusters. `cargo xtask campaign fleet-rollouts` has 303 clusters, all scenes,
//! and more kills.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_e2e::rollouts::{self, Play};
use farwater_testkit::shared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_never_all_broken_at_once() -> Result<()> {
    let planes = [shared(1).await?, shared(2).await?];
    let play = Play {
        simulated: 12,
        seed: 7,
        scenes: &["set", "bad", "halt", "mended, killed"],
        kills: 0,
        soak: Duration::from_secs(2),
        // Half of the fleet: two steps after the canaries.
        unavailable: 50,
        watched: Duration::from_secs(2),
    };
    let outcome = rollouts::run(&planes, play, |scene| eprintln!("{scene}")).await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    ensure!(outcome.kills == 1, "{outcome:?}");
    Ok(())
}
