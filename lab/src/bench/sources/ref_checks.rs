//! Requests to a Git host, counted in its own log, from a hub that serves one repository to more and more clusters.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::GitRepository;
use farwater_fleetsim::{Poller, allow_files, bundles};
use farwater_testkit::{git::Counts, process::bare_command};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::task::JoinSet;

use super::field::{BRANCH, Field, config_map, folder};
use crate::bench::Figure;

const SOURCE: &str = "fleet";
/// The shortest possible interval. The counts are scaled to the default of 2 minutes.
const INTERVAL: Duration = Duration::from_secs(10);
const DEFAULTS_PER_HOUR: f64 = 30.0;
const WINDOW: Duration = Duration::from_secs(120);
/// Poll interval of each cluster: ten times as often as the default.
const POLL: Duration = Duration::from_secs(3);
/// Limit for polls per hour: M11 of the design.
const PER_HOUR: f64 = 33.0;
const REQUESTS: f64 = 3.0;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let sizes: &[usize] = if quick { &[1, 20] } else { &[1, 100, 1_000] };
    allow_files()?;
    let field = Field::start().await?;
    let repository = field.git.create(SOURCE)?;
    repository.commit(BRANCH, &[("app/map.yaml", &config_map("0"))])?;
    field.repository(SOURCE, &format!("{}s", INTERVAL.as_secs())).await?;
    let by_hand = ls_remote(&field)?;
    let (mut figures, mut polling, mut joined) = (Vec::new(), JoinSet::new(), 0);
    for &size in sizes {
        let names: Vec<String> = (joined..size).map(|n| format!("cluster-{n}")).collect();
        eprintln!("joining {} clusters", names.len());
        let new: Vec<Poller> = stream::iter(&names)
            .map(|name| Poller::join(&field.hub, name))
            .buffer_unordered(32)
            .try_collect()
            .await?;
        field
            .services(
                names
                    .iter()
                    .map(|name| (format!("app-of-{name}"), name.clone(), folder(SOURCE, "app"))),
            )
            .await?;
        for poller in new {
            polling.spawn(poll(poller));
        }
        joined = size;
        tokio::time::sleep(INTERVAL).await;
        // Push one commit between the checks. It reaches every cluster.
        let before = field.git.counts();
        tokio::time::sleep(WINDOW / 2).await;
        let idle = field.git.counts();
        let commit = repository.commit(BRANCH, &[("app/map.yaml", &config_map(&size.to_string()))])?;
        tokio::time::sleep(WINDOW / 2).await;
        let after = field.git.counts();
        field.served(SOURCE, &commit).await?;
        if let Some(ended) = polling.try_join_next() {
            bail!("a cluster stopped polling: {:?}", ended?);
        }
        figures.extend(figures_of(size, [before, idle, after], by_hand)?);
    }
    polling.shutdown().await;
    // A person's fetch request is one check, too.
    let before = field.git.counts();
    field.ask::<GitRepository>(SOURCE).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = field.git.counts().ls_refs - before.ls_refs;
    ensure!((1..=2).contains(&asked), "a fetch request caused {asked} checks");
    Ok(figures)
}

fn figures_of(size: usize, [before, idle, after]: [Counts; 3], by_hand: usize) -> Result<Vec<Figure>> {
    let intervals = WINDOW.as_secs_f64() / INTERVAL.as_secs_f64();
    let workload = format!(
        "{size} clusters that poll each {} s, one repository asked each {} s for {} s with one commit, told as of 2 minutes",
        POLL.as_secs(),
        INTERVAL.as_secs(),
        WINDOW.as_secs()
    );
    let checks = after.ls_refs - before.ls_refs;
    ensure!(
        checks > 0 && idle.ls_refs > before.ls_refs,
        "the Git server got no requests"
    );
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let per_hour = round(checks as f64 / intervals * DEFAULTS_PER_HOUR);
    let each = round((idle.requests - before.requests) as f64 / (idle.ls_refs - before.ls_refs) as f64);
    let with_commit = round((after.requests - before.requests) as f64 / checks as f64);
    Ok(vec![
        Figure::new("ref_checks_per_repository_and_hour", &workload, per_hour, "checks").at_most(PER_HOUR),
        Figure::new("requests_per_check_without_change", &workload, each, "requests")
            .compared("git ls-remote", by_hand as f64)
            .at_most(REQUESTS),
        Figure::new("requests_per_check", &workload, with_commit, "requests").at_most(REQUESTS),
        Figure::new(
            "fetches_of_one_commit",
            &workload,
            (after.fetches - before.fetches) as f64,
            "requests",
        ),
    ])
}

/// Polls like an agent without a connection. Ends only with an error.
async fn poll(mut poller: Poller) -> Result<()> {
    loop {
        if let Some(desired) = poller.poll().await? {
            ensure!(bundles(&desired).len() <= 1, "a cluster has more than one service");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Number of requests that git itself needs for the same answer.
fn ls_remote(field: &Field) -> Result<usize> {
    let before = field.git.counts().requests;
    let url = field.git.url(SOURCE);
    let mut git = bare_command("git");
    git.args(["ls-remote", &url, &format!("refs/heads/{BRANCH}")]);
    let output = git.output().context("run git ls-remote")?;
    ensure!(
        output.status.success(),
        "git ls-remote: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(field.git.counts().requests - before)
}
