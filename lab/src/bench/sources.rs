//! What sources cost: bundles beside nginx (M3), a monorepo's commit (M10), what a Git host is asked (M11), what a
//! webhook's delivery costs, and neighbours that do harm.

mod announced;
pub mod deliveries;
pub mod field;
pub mod monorepo;
pub mod neighbours;
mod ref_checks;
pub mod serving;
mod tls_client;

use anyhow::Result;

use super::Figure;

/// What a Git host is asked: by the clock alone, and while webhooks tell of pushes.
pub async fn checks(quick: bool) -> Result<Vec<Figure>> {
    let mut figures = ref_checks::measure(quick).await?;
    figures.extend(announced::measure(quick).await?);
    Ok(figures)
}
