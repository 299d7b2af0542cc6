//! Sources: what a commit, a check, a webhook's delivery and a bundle cost, at the hub and at the Git server.

mod agents;
mod bundles;
mod checks;
mod deliveries;
mod monorepo;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farwater_api::ADMIN_NAMESPACE;
use farwater_testkit::Hub;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::Client;
use serde_json::{Value, json};

use super::{Figure, usage};

/// Writers at one time: enough that the hub's write combiner has something to combine.
const WRITERS: usize = 64;
/// How long the hub has to be idle to be at rest.
const LOOK: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(3600);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let mut figures = deliveries::measure(quick).await?;
    figures.extend(checks::measure(quick).await?);
    figures.extend(bundles::measure(quick).await?);
    figures.extend(monorepo::measure(quick).await?);
    Ok(figures)
}

/// Waits until the controllers have done what there is to do.
async fn rest(hub: &mut Hub) -> Result<()> {
    let (process, begun) = (hub.process().id(), Instant::now());
    loop {
        let before = usage::processor_time(process)?;
        tokio::time::sleep(LOOK).await;
        if usage::processor_time(process)? - before < LOOK.mul_f64(0.02) {
            return Ok(());
        }
        ensure!(begun.elapsed() < LONGEST, "the hub is still at work after {LONGEST:?}");
    }
}

fn collection(plural: &str) -> String {
    format!("/apis/farwater.dev/v1alpha1/namespaces/{ADMIN_NAMESPACE}/{plural}")
}

async fn create(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path).header("content-type", "application/json");
    let _: Value =
        client.request(request.body(object.to_string().into_bytes())?).await.with_context(|| path.to_owned())?;
    Ok(())
}

/// One of ours in the administrators' namespace.
async fn create_ours(client: &Client, plural: &str, kind: &str, name: &str, spec: Value) -> Result<()> {
    let object = json!({"apiVersion": "farwater.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    create(client, &collection(plural), &object).await
}

/// Services, each of a folder of its own, `per_cluster` of them on each cluster.
async fn create_services(client: &Client, source: &str, count: usize, per_cluster: usize) -> Result<()> {
    stream::iter(0..count)
        .map(|n| async move {
            let spec = json!({
                "clusterRef": {"name": cluster_of(n / per_cluster)}, "targetNamespace": service_of(n), "path": folder_of(n),
                "sourceRef": {"kind": "GitRepository", "name": source},
            });
            create_ours(client, "servicedeployments", "ServiceDeployment", &service_of(n), spec).await
        })
        .buffer_unordered(WRITERS)
        .try_collect()
        .await
}

fn cluster_of(n: usize) -> String {
    format!("cluster-{n:05}")
}

fn service_of(n: usize) -> String {
    format!("service-{n:05}")
}

fn folder_of(n: usize) -> String {
    format!("apps/{:03}/{n:05}", n / 100)
}

async fn object(client: &Client, plural: &str, name: &str) -> Result<Value> {
    Ok(client.request(Request::get(format!("{}/{name}", collection(plural))).body(Vec::new())?).await?)
}

/// What the hub has counted under a name, with labels if it has any.
async fn counted(client: &Client, metric: &str) -> Result<u64> {
    let text = client.request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let count = text.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    count.with_context(|| format!("there is no {metric}"))?.parse().with_context(|| format!("read {metric}"))
}

/// Until a source serves a commit.
async fn until_served(client: &Client, source: &str, commit: &str) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let found = object(client, "gitrepositories", source).await?;
        if found["status"]["revision"].as_str().is_some_and(|revision| revision.ends_with(commit)) {
            return Ok(found);
        }
        ensure!(begun.elapsed() < LONGEST, "{source} does not serve {commit}: {found}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
