//! One commit reaches every cluster at once, and each reports that it is healthy. Simulated agents poll like agents
//! without a connection.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use farwater_api::GitRepository;
use farwater_fleetsim::{Sim, allow_files};

use super::{CHOSEN, Fleet, SHARE, SMALL, SOURCE, cluster, path, rounded};
use crate::bench::{
    Figure, milliseconds,
    sources::field::{BRANCH, config_map},
    usage,
};

/// Interval between two polls of an agent.
const POLL: Duration = Duration::from_secs(10);
/// Soak time: short, because only the time until the change is healthy is measured.
const SHORT_SOAK: &str = "1s";
/// Time in which agents only poll.
const REST: Duration = Duration::from_secs(30);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let clusters = if quick { 1_000 } else { 10_000 };
    allow_files()?;
    let of_few = reach_all(SMALL).await?;
    let of_many = reach_all(clusters).await?;
    let workload =
        format!("one commit to {clusters} simulated clusters without a rollout, until each says that it is healthy");
    let each = Figure::new("hub_processor_time_per_cluster", &workload, of_many.each, "ms");
    Ok(vec![
        each.at_most_of(&format!("in a fleet of {SMALL}"), of_few.each, SHARE),
        Figure::new(
            "until_all_are_healthy",
            &workload,
            rounded(of_many.took.as_secs_f64()),
            "s",
        )
        .compared("seconds between two polls", POLL.as_secs_f64()),
    ])
}

struct Reached {
    /// The hub's processor time in milliseconds.
    each: f64,
    took: Duration,
}

async fn reach_all(clusters: usize) -> Result<Reached> {
    let mut fleet = Fleet::start(1).await?;
    eprintln!("{clusters} agents join");
    let labels = BTreeMap::from([("env".to_owned(), CHOSEN.to_owned())]);
    let named = (0..clusters).map(|n| (cluster(n), labels.clone())).collect();
    let mut sim = Sim::join_polling(&fleet.field.hub, named, POLL).await?;
    fleet.make_sets(SHORT_SOAK).await?;
    let wanted = i64::try_from(clusters)?;
    let is_everywhere =
        |status: &serde_json::Value| status["rollout"]["phase"] == "Complete" && status["rollout"]["updated"] == wanted;
    fleet.until_set(0, "be everywhere", is_everywhere).await?;
    let process = fleet.field.hub.process().id();
    let at_rest = usage::processor_time_of_all(process)?;
    tokio::time::sleep(REST).await;
    let at_rest = usage::processor_time_of_all(process)?.saturating_sub(at_rest);
    let share = at_rest.as_secs_f64() / REST.as_secs_f64();

    let reached = sim.ledger().len();
    let (before, begun) = (fleet.field.processor_time()?, Instant::now());
    let commit = fleet.repository.change(BRANCH, &[(&path(0), Some(&config_map("1")))])?;
    fleet.field.ask::<GitRepository>(SOURCE).await?;
    fleet.field.served(SOURCE, &commit).await?;
    let is_reached = |status: &serde_json::Value| is_everywhere(status) && sim.ledger().len() == reached + clusters;
    fleet.until_set(0, "be everywhere again", is_reached).await?;
    let took = begun.elapsed();
    // Wait for the remaining writes.
    tokio::time::sleep(POLL).await;
    let spent = fleet.spent_since(before, begun.elapsed(), share)?;
    sim.check().await?;
    ensure!(
        sim.ledger().len() == reached + clusters,
        "some clusters were reached twice"
    );
    Ok(Reached {
        each: rounded(milliseconds(spent) / clusters as f64),
        took,
    })
}
