//! Rollouts to three real and three hundred simulated clusters. The hub is killed in between.

use std::time::Duration;

use anyhow::Result;
use farwater_e2e::rollouts::{self, Play};
use farwater_testkit::{Plane, PlaneOptions};
use serde_json::json;

use super::Round;

const SIMULATED: usize = 300;
/// Kills in one round.
pub const KILLS: u32 = 20;

/// Counts kills.
pub async fn round(seed: u64) -> Result<Round> {
    farwater_fleetsim::allow_files()?;
    let mut planes = Vec::new();
    for _ in 0..3 {
        planes.push(Plane::start_with(PlaneOptions::without_nodes()).await?);
    }
    let planes: Vec<&Plane> = planes.iter().collect();
    let play = Play {
        simulated: SIMULATED,
        seed,
        scenes: &rollouts::SCENES,
        kills: KILLS,
        soak: Duration::from_secs(3),
        unavailable: 20,
        watched: Duration::from_secs(5),
    };
    let outcome = rollouts::run(&planes, play, |scene| eprintln!("  {scene}")).await;
    Ok(match outcome {
        Ok(outcome) => Round {
            count: u64::from(outcome.kills),
            failures: Vec::new(),
            figures: serde_json::to_value(&outcome)?,
        },
        Err(error) => Round {
            count: 0,
            failures: vec![format!("seed {seed}: {error:#}")],
            figures: json!({"seed": seed}),
        },
    })
}
