//! Requests to a Git host while a webhook announces its pushes (M11).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farwater_api::GitRepository;
use farwater_testkit::{
    deliveries::{Host, Push, Sender},
    wait_for,
};
use http::StatusCode;
use kube::client::Body;

use super::{
    Figure,
    field::{BRANCH, Field, PATIENCE, TOKEN, config_map},
};

const SOURCE: &str = "announced";
/// The shortest possible interval. The counts are scaled to the default of 2 minutes.
const INTERVAL: Duration = Duration::from_secs(10);
/// Interval at which an announced source is polled.
const STRETCHED: Duration = Duration::from_secs(50);
const TOLD: &str = "asked every 50s";
/// Polls per hour at the stretched default interval.
const STRETCHED_PER_HOUR: f64 = 6.0;
/// Limit for polls per hour: M11 of the design.
const PER_HOUR: f64 = 6.0;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    // Start at a check and end between two checks, so that only whole intervals are counted.
    let intervals = if quick { 2.5 } else { 6.5 };
    let field = Field::start().await?;
    let repository = field.git.create(SOURCE)?;
    let before = repository.commit(BRANCH, &[("app/map.yaml", &config_map("0"))])?;
    field.repository(SOURCE, &format!("{}s", INTERVAL.as_secs())).await?;
    field.served(SOURCE, &before).await?;
    let path = field.receiver().await?;
    let after = repository.commit(BRANCH, &[("app/map.yaml", &config_map("1"))])?;
    let url = field.git.url(SOURCE);
    let push = Push {
        url: &url,
        branch: BRANCH,
        before: &before,
        after: &after,
        size: 2_000,
    };
    let pushed = Instant::now();
    let response = field
        .client
        .send(Sender::new(Host::GitHub, TOKEN).push(&path, push).map(Body::from))
        .await?;
    ensure!(
        response.status() == StatusCode::ACCEPTED,
        "a delivery was answered {}",
        response.status()
    );
    field.served(SOURCE, &after).await?;
    let seen = pushed.elapsed();
    let sources = field.api::<GitRepository>();
    wait_for("deliveries to be proven", PATIENCE, || async {
        let conditions = sources.get(SOURCE).await?.status.unwrap_or_default().conditions;
        Ok(conditions
            .iter()
            .any(|condition| condition.message.contains(TOLD))
            .then_some(()))
    })
    .await?;
    let asked = field.git.counts().ls_refs;
    wait_for("the next check", PATIENCE, || async {
        Ok((field.git.counts().ls_refs > asked).then_some(()))
    })
    .await?;
    let asked = field.git.counts().ls_refs;
    tokio::time::sleep(STRETCHED.mul_f64(intervals)).await;
    let checks = field.git.counts().ls_refs - asked;
    ensure!(checks > 0, "the Git server got no requests");
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let per_hour = round(checks as f64 / intervals * STRETCHED_PER_HOUR);
    let workload = format!(
        "one repository whose pushes are delivered, asked each {} s for {} s, told as of 2 minutes",
        INTERVAL.as_secs(),
        STRETCHED.mul_f64(intervals).as_secs()
    );
    Ok(vec![
        Figure::new(
            "ref_checks_per_repository_and_hour_with_webhooks",
            &workload,
            per_hour,
            "checks",
        )
        .at_most(PER_HOUR),
        Figure::new(
            "push_to_served",
            "one push that a webhook delivers",
            round(seen.as_secs_f64() * 1e3),
            "ms",
        ),
    ])
}
