//! Time until a change reaches watchers.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use futures::{AsyncBufReadExt as _, StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, interval};

use super::{collection, name_of};

const WATCHES: usize = 50;
const RATE: u32 = 500;
const SPAN: Duration = Duration::from_secs(20);
/// Mark in the object that a watcher finds without parsing.
const MARK: &str = "bench.farwater.dev/at";

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos()
}

/// Delays of each change at each watcher.
pub async fn lags(client: &Client, size: usize) -> Result<Vec<Duration>> {
    let list: Value = client
        .request(Request::get("/apis/farwater.dev/v1alpha1/servicedeployments?limit=1").body(Vec::new())?)
        .await?;
    let version = list["metadata"]["resourceVersion"]
        .as_str()
        .context("the list has no version")?;
    let changes = (RATE * SPAN.as_secs() as u32) as usize;
    let path = format!("/apis/farwater.dev/v1alpha1/servicedeployments?watch=true&resourceVersion={version}");
    let mut watchers = Vec::new();
    for _ in 0..WATCHES {
        let lines = client
            .request_stream(Request::get(&path).body(Vec::new())?)
            .await?
            .lines();
        watchers.push(tokio::spawn(follow(lines, changes)));
    }
    change(client, size, changes).await?;
    let mut lags = Vec::new();
    for watcher in watchers {
        lags.extend(watcher.await??);
    }
    Ok(lags)
}

async fn follow(lines: impl futures::Stream<Item = std::io::Result<String>>, changes: usize) -> Result<Vec<Duration>> {
    let (mut lags, mut marks) = (Vec::with_capacity(changes), HashSet::new());
    let mut lines = std::pin::pin!(lines);
    while lags.len() < changes {
        let line = tokio::time::timeout(Duration::from_secs(60), lines.next())
            .await
            .context("a watch got no event within 60 s")?;
        let line = line.context("a watch ended")??;
        // The mark's value is a number in quotes. managedFields also contains the mark, but no number.
        let at = line
            .split(MARK)
            .skip(1)
            .find_map(|rest| rest.strip_prefix("\":\"")?.split('"').next()?.parse::<u128>().ok());
        // Controllers write to the same services. Their events repeat the mark of an earlier change, so skip them.
        if let Some(at) = at.filter(|at| marks.insert(*at)) {
            lags.push(Duration::from_nanos(
                u64::try_from(now().saturating_sub(at)).unwrap_or(u64::MAX),
            ));
        }
    }
    Ok(lags)
}

/// Writes changes at a steady rate. Each contains its time.
async fn change(client: &Client, size: usize, changes: usize) -> Result<()> {
    let begun = Instant::now();
    stream::unfold(
        (0, interval(Duration::from_secs(1) / RATE)),
        |(n, mut beat)| async move {
            beat.tick().await;
            (n < changes).then_some((n, (n + 1, beat)))
        },
    )
    .map(|n| async move {
        let target = n % size.min(5_000);
        let patch = json!({"metadata": {"annotations": {MARK: now().to_string()}}});
        let request = Request::patch(format!("{}/{}", collection(target), name_of(target)))
            .header("content-type", "application/merge-patch+json");
        let response = client
            .send(request.body(Body::from(patch.to_string().into_bytes()))?)
            .await?;
        ensure!(response.status().is_success(), "patch: {}", response.status());
        anyhow::Ok(())
    })
    .buffer_unordered(64)
    .try_for_each(|()| async { Ok(()) })
    .await?;
    eprintln!(
        "  {:.0} changes a second",
        changes as f64 / begun.elapsed().as_secs_f64()
    );
    Ok(())
}
