//! Time from a commit to the changed object, in the demo's fleet: from the fetch request until a watch of the cluster's
//! own API server shows the new value.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::{
    bench::{Figure, milliseconds, percentile},
    demo::{self, scene::Scene, times::Times},
};

const LONGEST: Duration = Duration::from_secs(60);
/// Poll interval of the demo's clusters.
const POLL: Duration = Duration::from_secs(2);

/// Limits with hints, in milliseconds.
const GOALS: [f64; 2] = [120.0, 300.0];

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let rounds = if quick { 5 } else { 50 };
    let ways: &[bool] = if quick { &[true] } else { &[true, false] };
    let mut figures = Vec::new();
    for hints in ways.iter().copied() {
        let mut times = times(rounds, hints).await?;
        let way = if hints {
            "told over a connection"
        } else {
            "at any moment of a poll every 2 s"
        };
        let workload = format!("{rounds} commits, on request, {way}, one of two clusters");
        let name = |figure: &str| format!("commit_to_applied_{}{figure}", if hints { "with_hints_" } else { "" });
        for (share, figure, goal) in [(0.5, "p50", GOALS[0]), (0.99, "p99", GOALS[1])] {
            let value = milliseconds(percentile(&mut times, share));
            let figure = Figure::new(&name(figure), &workload, value, "ms");
            figures.push(if hints { figure.at_most(goal) } else { figure });
        }
    }
    Ok(figures)
}

async fn times(rounds: usize, hints: bool) -> Result<Vec<Duration>> {
    let limit: &[&str] = if hints { &[] } else { &["--max-connected-agents", "0"] };
    let mut scene = Scene::start(limit, &mut Times::start()).await?;
    demo::wait_until_healthy(&scene).await?;
    let mut times = Vec::new();
    for round in 1..=rounds {
        // Commit at a random moment. Directly after a poll, each commit would wait a whole interval.
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
    Ok(times)
}
