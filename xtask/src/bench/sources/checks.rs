//! What the Git host is asked, by its own count, however many clusters there are: with polls alone, and while webhooks arrive.
//!
//! An hour is made shorter: at the shortest interval that a source may have, 10 s, five minutes are the hour of one that is asked
//! every 2 minutes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farwater_testkit::{
    Hub,
    deliveries::{Host, Push, Sender},
    git::{Counts, GitServer, Repository},
    temporary_folder,
};
use http::StatusCode;
use kube::{Client, client::Body};
use serde_json::json;

use super::{
    super::connections::allow_files, Figure, agents::Fleet, create, create_ours, create_services, object, until_served,
};

const INTERVAL: Duration = Duration::from_secs(10);
/// Of 2 minutes.
const SHORTER: u32 = 12;
const HOUR: Duration = Duration::from_secs(3600);
const FLEETS: [usize; 3] = [1, 100, 1_000];
const POLL: Duration = Duration::from_secs(5);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Per repository and hour, and requests of each.
const POLLED: f64 = 33.0;
const ANNOUNCED: f64 = 6.0;
const REQUESTS: f64 = 3.0;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    allow_files()?;
    let dir = temporary_folder("farwater-bench-")?;
    let (hub, git) = tokio::try_join!(Hub::start(dir.path()), GitServer::start())?;
    let repository = git.create("infra")?;
    let commit = repository.commit("main", &[("apps/000/00000/a.yaml", "a: 1\n")])?;
    let client = hub.client().await?;
    let spec = json!({"url": git.url("infra"), "interval": "10s"});
    create_ours(&client, "gitrepositories", "GitRepository", "infra", spec).await?;
    until_served(&client, "infra", &commit).await?;

    let (sizes, hour) = if quick { (&FLEETS[..2], HOUR / SHORTER / 5) } else { (&FLEETS[..], HOUR / SHORTER) };
    let (mut figures, mut fleets) = (Vec::new(), Vec::new());
    let mut polling = 0;
    for size in sizes {
        eprintln!("{size} clusters, polls alone, {} s", hour.as_secs());
        fleets.push(Fleet::join(&hub, polling, size - polling, POLL).await?);
        if polling == 0 {
            create_services(&client, "infra", 1, 1).await?;
        }
        polling = *size;
        let counts = count(&git, hour, INTERVAL).await?;
        figures.extend(told("", *size, counts, hour, POLLED));
    }
    let path = prove(&client, &git, &repository).await?;
    // Of five intervals each: a whole number of them.
    let hour = hour.max(INTERVAL * 10);
    eprintln!("{polling} clusters, webhooks arrive, {} s", hour.as_secs());
    figures.extend(told("_with_webhooks", polling, count(&git, hour, INTERVAL * 5).await?, hour, ANNOUNCED));
    let source = object(&client, "gitrepositories", "infra").await?;
    ensure!(is_announced(&source), "deliveries to {path} are not proven any more: {source}");
    let failed: u64 = fleets.iter().map(Fleet::failed).sum();
    figures.push(Figure::new("failed_polls", &format!("{polling} clusters"), failed as f64, "polls").at_most(0.0));
    Ok(figures)
}

/// What the server is asked in some time, which begins in the middle between two checks.
async fn count(git: &GitServer, time: Duration, interval: Duration) -> Result<Counts> {
    let (before, begun) = (git.counts(), Instant::now());
    while git.counts().ls_refs == before.ls_refs {
        ensure!(begun.elapsed() < 2 * interval, "the source is not asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(interval / 2).await;
    let before = git.counts();
    tokio::time::sleep(time).await;
    let after = git.counts();
    Ok(Counts {
        requests: after.requests - before.requests,
        ls_refs: after.ls_refs - before.ls_refs,
        fetches: after.fetches - before.fetches,
        unauthorized: after.unauthorized - before.unauthorized,
    })
}

fn told(case: &str, clusters: usize, counts: Counts, time: Duration, goal: f64) -> [Figure; 2] {
    let workload = format!("1 repository at 2 minutes, {clusters} polling clusters, time {SHORTER} x shorter");
    let checks = counts.ls_refs as f64 * HOUR.as_secs_f64() / (time * SHORTER).as_secs_f64();
    let each = counts.requests as f64 / (counts.ls_refs.max(1)) as f64;
    let round = |value: f64| (value * 100.0).round() / 100.0;
    [
        Figure::new(&format!("checks_per_hour{case}"), &workload, round(checks), "checks").at_most(goal),
        Figure::new(&format!("requests_per_check{case}"), &workload, round(each), "requests").at_most(REQUESTS),
    ]
}

fn is_announced(source: &serde_json::Value) -> bool {
    source["status"]["conditions"].to_string().contains("webhooks announce pushes")
}

/// Pushes once, with a delivery that is found to be true.
async fn prove(client: &Client, git: &GitServer, repository: &Repository) -> Result<String> {
    let secret = json!({"metadata": {"name": "hook"}, "stringData": {"token": TOKEN}});
    create(client, "/api/v1/namespaces/farwater-admin/secrets", &secret).await?;
    let spec = json!({"type": "github", "resources": [{"name": "infra"}], "secretRef": {"name": "hook"}});
    create_ours(client, "receivers", "Receiver", "hook", spec).await?;
    let begun = Instant::now();
    let path = loop {
        let receiver = object(client, "receivers", "hook").await?;
        if let Some(path) = receiver["status"]["webhookPath"].as_str() {
            break path.to_owned();
        }
        ensure!(begun.elapsed() < HOUR, "the receiver gets no path");
    };
    let before = repository.branch("main").context("the branch is missing")?;
    let after = repository.change("main", &[("apps/000/00000/a.yaml", Some("a: 2\n"))])?;
    let url = git.url("infra");
    let push = Push { url: &url, branch: "main", before: &before, after: &after, size: 1_000 };
    let request = Sender::new(Host::GitHub, TOKEN).push(&path, push);
    let answer = client.send(request.map(Body::from)).await?;
    ensure!(answer.status() == StatusCode::ACCEPTED, "the delivery was answered {}", answer.status());
    let source = until_served(client, "infra", &after).await?;
    ensure!(is_announced(&source), "the delivery is not proven: {source}");
    Ok(path)
}
