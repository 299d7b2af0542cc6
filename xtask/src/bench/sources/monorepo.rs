//! A repository with many services, one of which changes: what the hub does for it, and for how many of the others.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farwater_api::REQUESTED_AT;
use farwater_testkit::{Hub, git::GitServer, temporary_folder};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

use super::{
    super::{milliseconds, percentile},
    Figure, LONGEST,
    agents::Agent,
    collection, counted, create_ours, create_services, folder_of, object, rest, service_of, until_served, usage,
};

const SERVICES: usize = 10_000;
const PER_CLUSTER: usize = 50;
const COMMITS: usize = 10;
/// Milliseconds of the hub's process, from the design (M10).
const GOAL: f64 = 50.0;
const ASSIGNED: &str = "farwater_reconciles_total{controller=\"assign_revisions\"}";
const PUBLISHED: &str = "farwater_desired_published_total";

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (services, commits) = if quick { (SERVICES / 10, 3) } else { (SERVICES, COMMITS) };
    let dir = temporary_folder("farwater-bench-")?;
    let (mut hub, git) = tokio::try_join!(Hub::start(dir.path()), GitServer::start())?;
    let repository = git.create("infra")?;
    let files: Vec<(String, String)> = (0..services).map(|n| (file_of(n), manifest(n, 0))).collect();
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let commit = repository.commit("main", &files)?;
    let client = hub.client().await?;
    let spec = json!({"url": git.url("infra"), "interval": "24h"});
    create_ours(&client, "gitrepositories", "GitRepository", "infra", spec).await?;
    until_served(&client, "infra", &commit).await?;
    for n in 0..services.div_ceil(PER_CLUSTER) {
        create_ours(&client, "clusters", "Cluster", &super::cluster_of(n), json!({"pollInterval": "1m"})).await?;
    }
    eprintln!("{services} services are stated");
    create_services(&client, "infra", services, PER_CLUSTER).await?;
    let agent = Agent::join(&hub, 0).await?;
    rest(&mut hub).await?;
    until_assigned(&client, services - 1, &commit).await?;

    let process = hub.process().id();
    let (mut busy, mut served, mut looked_at, mut published) = (Vec::new(), Vec::new(), 0, 0);
    for round in 1..=commits {
        let n = round % PER_CLUSTER;
        let etag = agent.poll(None).await?.map(|state| state.statement.etag());
        let before = (counted(&client, ASSIGNED).await?, counted(&client, PUBLISHED).await?);
        let commit = repository.change("main", &[(&file_of(n), Some(&manifest(n, round)))])?;
        let (idle, begun) = (usage::processor_time(process)?, Instant::now());
        ask(&client, round).await?;
        while agent.poll(etag.as_deref()).await?.is_none() {
            ensure!(begun.elapsed() < LONGEST, "the change does not reach its cluster");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        served.push(begun.elapsed());
        until_assigned(&client, n, &commit).await?;
        rest(&mut hub).await?;
        busy.push(usage::processor_time(process)?.saturating_sub(idle));
        let after = (counted(&client, ASSIGNED).await?, counted(&client, PUBLISHED).await?);
        looked_at += after.0 - before.0;
        published += after.1 - before.1;
        eprintln!("commit {round} of {commits}: {} services were looked at", after.0 - before.0);
    }
    let workload = format!("{services} services of one repository on {} clusters, 1 changed", services / PER_CLUSTER);
    let each = |total: u64| (total as f64 / commits as f64 * 100.0).round() / 100.0;
    Ok(vec![
        // With the polls that watch for it: a millisecond in all.
        Figure::new("commit_processor_time_p50", &workload, milliseconds(percentile(&mut busy, 0.5)), "ms")
            .at_most(GOAL),
        Figure::new("services_looked_at", &workload, each(looked_at), "services").at_most(1.0),
        Figure::new("desired_states_published", &workload, each(published), "states").at_most(1.0),
        Figure::new("commit_to_served_p50", &workload, milliseconds(percentile(&mut served, 0.5)), "ms"),
    ])
}

fn file_of(n: usize) -> String {
    format!("{}/map.yaml", folder_of(n))
}

fn manifest(n: usize, round: usize) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map}}\ndata: {{service: \"{n}\", round: \"{round}\"}}\n"
    )
}

async fn ask(client: &Client, round: usize) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: round.to_string()}}});
    let path = format!("{}/infra", collection("gitrepositories"));
    let request = Request::patch(path).header("content-type", "application/merge-patch+json");
    let _: Value = client.request(request.body(patch.to_string().into_bytes())?).await.context("ask the source")?;
    Ok(())
}

async fn until_assigned(client: &Client, n: usize, commit: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let service = object(client, "servicedeployments", &service_of(n)).await?;
        if service["status"]["assignedRevision"].as_str().is_some_and(|revision| revision.ends_with(commit)) {
            return Ok(());
        }
        ensure!(begun.elapsed() < LONGEST, "{} is not assigned {commit}: {}", service_of(n), service["status"]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
