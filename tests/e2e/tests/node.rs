//! On a real node: what pods do there is what they do anywhere, and hub and agent are pods.

use std::time::Duration;

use anyhow::{Context as _, Result};
use farwater_e2e::life;
use farwater_testkit::{
    Node, Site,
    images::{BUSYBOX, Images},
    wait_for,
};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::PostParams};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

fn job(name: &str, script: &str) -> Result<Job> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script]},
        ]}}},
    }))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_end_as_their_containers_do() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let images = Images::make(dir.path())?;
    let node = Node::start(&images.all()).await?;
    let api: Api<Job> = Api::namespaced(node.client().await?, "default");
    api.create(&PostParams::default(), &job("good", "exit 0")?).await?;
    api.create(&PostParams::default(), &job("bad", "exit 3")?).await?;
    let ended = |name: &'static str| {
        let api = api.clone();
        wait_for(name, PATIENCE, move || {
            let api = api.clone();
            async move {
                let status = api.get(name).await?.status.context("a job has a status")?;
                Ok(match (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0)) {
                    (0, 0) => None,
                    counts => Some(counts),
                })
            }
        })
    };
    assert_eq!(ended("good").await?, (1, 0));
    assert_eq!(ended("bad").await?, (0, 1));
    Ok(())
}

/// `cargo xtask campaign node` does the same with the images that are shipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_joins_is_upgraded_goes_back_and_leaves_and_its_workload_stays() -> Result<()> {
    let site = Site::start().await?;
    let durations = life::run(&site).await?;
    eprintln!("{durations:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_takes_the_current_context_and_names_lead_to_hub_and_source() -> Result<()> {
    life::by_names(&Site::start().await?).await
}
