//! What sources cost: bundles beside nginx (M3), a monorepo's commit (M10), what a Git host is asked (M11), what a
//! webhook's delivery costs, and neighbours that do harm.

mod announced;
mod deliveries;
pub mod field;
mod monorepo;
mod neighbours;
mod ref_checks;
mod serving;
mod tls_client;

use std::time::Instant;

use anyhow::{Context as _, Result};

use super::Figure;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for name in ["bundles", "ref checks", "announced", "deliveries", "monorepo", "neighbours"] {
        eprintln!("{name}");
        let begun = Instant::now();
        let measured = match name {
            "bundles" => serving::measure(quick).await,
            "ref checks" => ref_checks::measure(quick).await,
            "announced" => announced::measure(quick).await,
            "deliveries" => deliveries::measure(quick).await,
            "monorepo" => monorepo::measure(quick).await,
            _ => neighbours::measure(quick).await,
        };
        let measured = measured.with_context(|| format!("measure {name}"))?;
        for figure in &measured {
            eprintln!("  {figure}");
        }
        eprintln!("{name} took {} s", begun.elapsed().as_secs());
        figures.extend(measured);
    }
    Ok(figures)
}
