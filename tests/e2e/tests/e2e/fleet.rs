//! A set on a fleet of simulated and real clusters; `cargo xtask campaign fleet-rollouts` has 303, and more kills.

use anyhow::Result;
use farwater_e2e::rollouts;
use farwater_testkit::shared;

const SIMULATED: usize = 40;
const KILLS: u32 = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_never_all_broken_at_once() -> Result<()> {
    let planes = [shared(1).await?, shared(2).await?];
    let outcome = rollouts::run(&planes, SIMULATED, KILLS, 7, |scene| eprintln!("{scene}")).await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    Ok(())
}
