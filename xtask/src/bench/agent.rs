//! What the agent does to a cluster, and how fast: M6 to M9 of the design, one after the other.

mod apply;
mod at_rest;
mod commit_to_applied;
mod drift;
mod maps;

use std::time::Instant;

use anyhow::{Context as _, Result};

use super::Figure;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let mut figures = part("from a commit to the cluster", commit_to_applied::measure(quick)).await?;
    figures.extend(part("applying", apply::measure(quick)).await?);
    figures.extend(part("keeping as stated", drift::measure(quick)).await?);
    figures.extend(part("at rest", at_rest::measure(quick)).await?);
    Ok(figures)
}

/// Shows what came of it at once: the whole takes more than half an hour.
async fn part(name: &str, work: impl Future<Output = Result<Vec<Figure>>>) -> Result<Vec<Figure>> {
    eprintln!("{name}");
    let begun = Instant::now();
    let figures = work.await.with_context(|| format!("measure: {name}"))?;
    for figure in &figures {
        eprintln!("  {figure}");
    }
    eprintln!("{name} took {} s", begun.elapsed().as_secs());
    Ok(figures)
}
