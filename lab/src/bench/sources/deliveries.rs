//! Cost of a webhook's delivery for the hub, compared with hashing the same bytes.

use std::{hint::black_box, time::Instant};

use anyhow::{Result, ensure};
use aws_lc_rs::hmac;
use farwater_testkit::deliveries::{Host, Push, Sender};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::StatusCode;
use http_body_util::BodyExt as _;
use kube::client::Body;

use super::{
    Figure,
    field::{BRANCH, Field, TOKEN},
};

const DELIVERIES: usize = 20_000;
const AT_ONCE: usize = 8;
/// Body of a push with some commits.
const BYTES: usize = 10_000;
const HASHES: u32 = 20_000;
/// Limit in microseconds, from the issue.
const GOAL: f64 = 100.0;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let count = if quick { DELIVERIES / 4 } else { DELIVERIES };
    let mut field = Field::start().await?;
    let commit = field.git.create("infra")?.commit(BRANCH, &[("apps/a.yaml", "a")])?;
    field.repository("infra", "1h").await?;
    field.served("infra", &commit).await?;
    let path = field.receiver().await?;
    let url = field.git.url("infra");
    let push = Push {
        url: &url,
        branch: BRANCH,
        before: &commit,
        after: &commit,
        size: BYTES,
    };
    let request = Sender::new(Host::GitHub, TOKEN).push(&path, push);
    let busy = field.until_quiet().await?;

    eprintln!("{count} deliveries of {} bytes", request.body().len());
    let (client, begun) = (&field.client, Instant::now());
    stream::iter(0..count)
        .map(|_| async {
            let response = client.send(request.clone().map(Body::from)).await?;
            ensure!(
                response.status() == StatusCode::ACCEPTED,
                "a delivery was answered {}",
                response.status()
            );
            response.into_body().collect().await?;
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let took = begun.elapsed();
    let busy = field.until_quiet().await?.saturating_sub(busy);
    let asked = field.git.counts();

    let workload = format!(
        "{count} deliveries of {} bytes over TLS, {AT_ONCE} connections",
        request.body().len()
    );
    let each = busy.as_secs_f64() * 1e6 / count as f64;
    let round = |value: f64| (value * 10.0).round() / 10.0;
    let mut figure = Figure::new("delivery_processor_time", &workload, round(each), "us").at_most(GOAL);
    let peer = figure
        .clone()
        .compared("HMAC-SHA256 of the same bytes", round(hash(request.body())));
    (figure.peer, figure.peer_value, figure.ratio) = (peer.peer, peer.peer_value, peer.ratio);
    Ok(vec![
        figure,
        Figure::new(
            "deliveries",
            &workload,
            (count as f64 / took.as_secs_f64()).round(),
            "1/s",
        ),
        Figure::new(
            "checks_by_deliveries_of_what_is_known",
            &workload,
            asked.ls_refs as f64 - 1.0,
            "checks",
        )
        .at_most(1.0),
    ])
}

/// Microseconds that hashing the bytes takes.
fn hash(bytes: &[u8]) -> f64 {
    let key = hmac::Key::new(hmac::HMAC_SHA256, TOKEN.as_bytes());
    let begun = Instant::now();
    for _ in 0..HASHES {
        black_box(hmac::sign(&key, black_box(bytes)));
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(HASHES)
}
