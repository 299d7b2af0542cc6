//! Lists many ServiceDeployments with the real kubectl, as people do: as a table, in pages of 500.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, Cluster, ServiceDeployment};
use farwater_testkit::{Hub, Tools, process::bare_command};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};

use super::{Figure, milliseconds, percentile};

/// Number of concurrent writers: enough for the hub's write combiner.
const WRITERS: usize = 64;
const LISTS: usize = 5;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let count: u32 = if quick { 500 } else { 10_000 };
    let dir = tempfile::tempdir()?;
    let mut hub = Hub::start(dir.path()).await?;
    let client = hub.client().await?;
    let clusters: Api<Cluster> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
    clusters
        .create(
            &PostParams::default(),
            &Cluster::new("east", serde_json::from_value(json!({}))?),
        )
        .await?;

    let services: Api<ServiceDeployment> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
    let start = Instant::now();
    stream::iter(0..count)
        .map(|n| {
            let services = services.clone();
            async move {
                services
                    .create(&PostParams::default(), &service(n)?)
                    .await
                    .map_err(anyhow::Error::from)
            }
        })
        .buffer_unordered(WRITERS)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let writing = start.elapsed();

    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..LISTS {
        let mut kubectl = bare_command(Tools::find()?.kubectl());
        kubectl
            .env("HOME", dir.path())
            .arg("--kubeconfig")
            .arg(hub.kubeconfig());
        kubectl.args([
            "get",
            "servicedeployments.farwater.dev",
            "-n",
            ADMIN_NAMESPACE,
            "--no-headers",
        ]);
        let start = Instant::now();
        let output = kubectl.output()?;
        times.push(start.elapsed());
        let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        ensure!(
            lines == count as usize,
            "kubectl listed {lines} of {count}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let hub_alone = list_alone(&client, count).await?;
    let workload = format!("{count} ServiceDeployments");
    let resident = hub.process().resident_bytes()? as f64 / f64::from(1 << 20);
    Ok(vec![
        Figure::new(
            "kubectl_list_p50",
            &workload,
            milliseconds(percentile(&mut times, 0.5)),
            "ms",
        ),
        Figure::new(
            "same_pages_without_kubectl_p50",
            &workload,
            milliseconds(hub_alone),
            "ms",
        ),
        Figure::new(
            "writes_per_second",
            &workload,
            f64::from(count) / writing.as_secs_f64(),
            "1/s",
        ),
        Figure::new("hub_resident", &workload, resident, "MiB"),
    ])
}

/// Reads the same pages as kubectl, without processing the rows. This shows the hub's share of the time.
async fn list_alone(client: &Client, count: u32) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..LISTS {
        let (start, mut rows, mut next) = (Instant::now(), 0, String::new());
        loop {
            let path = format!(
                "/apis/{}/{}/namespaces/{ADMIN_NAMESPACE}/servicedeployments?limit=500&continue={next}",
                farwater_api::GROUP,
                farwater_api::VERSION
            );
            let request = Request::get(path).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
            let table: Value = client.request(request.body(Vec::new())?).await?;
            rows += table["rows"].as_array().map_or(0, Vec::len);
            next = table["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                break;
            }
        }
        times.push(start.elapsed());
        ensure!(rows == count as usize, "the hub listed {rows} of {count}");
    }
    Ok(percentile(&mut times, 0.5))
}

fn service(n: u32) -> Result<ServiceDeployment> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "farwater.dev/v1alpha1",
        "kind": "ServiceDeployment",
        "metadata": {"name": format!("service-{n:05}"), "labels": {"team": format!("team-{}", n % 20)}},
        "spec": {
            "clusterRef": {"name": "east"},
            "targetNamespace": format!("service-{n:05}"),
            "sourceRef": {"kind": "GitRepository", "name": "infra"},
            "path": format!("apps/service-{n:05}"),
        },
    }))?)
}
