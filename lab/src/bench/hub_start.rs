//! Time until the hub is ready: at the first start, which creates its keys and database, and at later starts.

use std::time::{Duration, Instant};

use anyhow::Result;
use farwater_testkit::Hub;

use super::{Figure, milliseconds, percentile};

/// Limit in milliseconds, from the issue.
const GOAL: f64 = 1000.0;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 3 } else { 20 };
    let (mut first, mut again): (Vec<Duration>, Vec<Duration>) = Default::default();
    let mut resident = 0;
    for round in 1..=rounds {
        let dir = tempfile::tempdir()?;
        let start = Instant::now();
        let mut hub = Hub::start(dir.path()).await?;
        first.push(start.elapsed());
        resident = resident.max(hub.process().resident_bytes()?);
        hub.stop()?;
        let start = Instant::now();
        hub.restart().await?;
        again.push(start.elapsed());
        eprintln!("round {round} of {rounds}");
    }
    let workload = format!("{rounds} starts, empty data");
    Ok(vec![
        Figure::new(
            "hub_first_start_p50",
            &workload,
            milliseconds(percentile(&mut first, 0.5)),
            "ms",
        )
        .at_most(GOAL),
        Figure::new(
            "hub_first_start_max",
            &workload,
            milliseconds(percentile(&mut first, 1.0)),
            "ms",
        )
        .at_most(GOAL),
        Figure::new(
            "hub_restart_p50",
            &workload,
            milliseconds(percentile(&mut again, 0.5)),
            "ms",
        )
        .at_most(GOAL),
        Figure::new("hub_resident", &workload, resident as f64 / f64::from(1 << 20), "MiB"),
    ])
}
