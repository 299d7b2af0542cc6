//! The shipped images on a real node, from `install` to `leave`.

use anyhow::Result;
use farwater_e2e::life;
use serde_json::json;

use super::Round;
use crate::image::Shipped;

/// Counts clusters that joined and left, or that joined by names alone.
pub async fn round(seed: u64) -> Result<Round> {
    let shipped = Shipped::make()?;
    let lived = life::run(&shipped.site().await?).await;
    let named = life::by_names(&shipped.site().await?).await;
    let digests = json!({"hub": shipped.made.hub.digest, "agent": shipped.made.agent.digest});
    let figures = json!({"seed": seed, "images": digests, "seconds": lived.as_ref().ok()});
    let failures = [lived.err(), named.err()]
        .into_iter()
        .flatten()
        .map(|error| format!("{error:#}"))
        .collect();
    Ok(Round {
        count: 2,
        failures,
        figures,
    })
}
