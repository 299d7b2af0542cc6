//! Cost of sources: serving bundles compared with nginx (M3), a monorepo's commit (M10), requests to a Git host (M11),
//! a webhook's delivery, and harmful neighbours.

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

/// Requests to a Git host, with polls alone and while webhooks announce pushes.
pub async fn checks(quick: bool) -> Result<Vec<Figure>> {
    let mut figures = ref_checks::measure(quick).await?;
    figures.extend(announced::measure(quick).await?);
    Ok(figures)
}
