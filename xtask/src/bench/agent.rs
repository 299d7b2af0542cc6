//! What the agent does to a cluster, and how fast: M6 to M9 of the design, one after the other.

mod apply;
mod at_rest;
mod commit_to_applied;
mod drift;
mod maps;

use std::{fmt, time::Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use super::Figure;

/// In the order in which they are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Commit,
    Apply,
    Drift,
    Rest,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// All parts, or only one.
pub async fn measure(quick: bool, only: Option<Part>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for part in Part::value_variants().iter().filter(|part| only.is_none_or(|only| only == **part)) {
        eprintln!("{part}");
        let begun = Instant::now();
        let measured = match part {
            Part::Commit => commit_to_applied::measure(quick).await,
            Part::Apply => apply::measure(quick).await,
            Part::Drift => drift::measure(quick).await,
            Part::Rest => at_rest::measure(quick).await,
        };
        let measured = measured.with_context(|| format!("measure {part}"))?;
        // At once: the whole takes more than half an hour.
        for figure in &measured {
            eprintln!("  {figure}");
        }
        eprintln!("{part} took {} s", begun.elapsed().as_secs());
        figures.extend(measured);
    }
    Ok(figures)
}
