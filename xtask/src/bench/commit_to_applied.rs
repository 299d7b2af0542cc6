//! From a commit to the changed object, in the demo's fleet: the clock runs from the request to look until the watch
//! of the cluster's own API server shows the new value.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{Figure, milliseconds, percentile};
use crate::demo::{self, scene::Scene};

const LONGEST: Duration = Duration::from_secs(60);
/// Of the demo's clusters.
const POLL: Duration = Duration::from_secs(2);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 5 } else { 50 };
    let mut scene = Scene::start().await?;
    demo::wait_until_healthy(&scene).await?;
    let mut times = Vec::new();
    for round in 1..=rounds {
        // People don't commit right after a poll: without this each commit would wait a whole interval for the next.
        tokio::time::sleep(POLL.mul_f64(rand::random())).await;
        let greeting = format!("hello {round}");
        scene.change_greeting(&greeting)?;
        let watch = scene.watch_greeting(greeting).await?;
        let start = Instant::now();
        scene.ask_now().await?;
        tokio::time::timeout(LONGEST, watch)
            .await
            .with_context(|| format!("round {round} took over {LONGEST:?}"))??;
        times.push(start.elapsed());
        eprintln!("round {round} of {rounds}: {:?}", start.elapsed());
    }
    let workload = format!("{rounds} commits, on request, at any moment of a poll every 2 s, one of two clusters");
    Ok(vec![
        Figure::new("commit_to_applied_p50", &workload, milliseconds(percentile(&mut times, 0.5)), "ms"),
        Figure::new("commit_to_applied_p99", &workload, milliseconds(percentile(&mut times, 0.99)), "ms"),
    ])
}
