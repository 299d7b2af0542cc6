//! On a real node: what pods do there is what they do anywhere, and hub and agent are pods.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use farwater_api::AgentPolicy;
use farwater_e2e::condition;
use farwater_testkit::{
    Node, Site,
    images::{AGENT_BROKEN, AGENT_NEXT, BUSYBOX, Images},
    wait_for,
};
use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
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

async fn agent_image(site: &Site) -> Result<String> {
    let deployments: Api<Deployment> = Api::namespaced(site.node.client().await?, "farwater-system");
    let deployment = serde_json::to_value(deployments.get("farwater-agent").await?)?;
    Ok(deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned())
}

/// Sets the version that agents shall run, and waits until the policy says `Ready` so, or why not.
async fn want_agent(site: &Site, image: &str, ready: &str, reason: &str) -> Result<String> {
    let policies: Api<AgentPolicy> = Api::all(site.hub().await?);
    let policy = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "AgentPolicy", "metadata": {"name": "all"},
        "spec": {"image": image, "deadline": "30s"},
    });
    let made = policies.patch("all", &PatchParams::apply("test").force(), &Patch::Apply(policy)).await?;
    let what = format!("agents to be {image}, or not");
    let settled = wait_for(&what, 2 * PATIENCE, || async {
        let status = policies.get("all").await?.status.unwrap_or_default();
        let current = status.observed_generation == made.metadata.generation;
        let found =
            status.conditions.into_iter().find(|c| c.type_ == "Ready" && c.status == ready && c.reason == reason);
        Ok(found.filter(|_| current).map(|condition| condition.message))
    });
    settled.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_joins_is_upgraded_goes_back_and_leaves_and_its_workload_stays() -> Result<()> {
    let begun = Instant::now();
    let site = Site::start().await?;
    assert_eq!(site.install()?.trim(), site.url());
    eprintln!("a node and a hub: {:.1} s", begun.elapsed().as_secs_f64());
    // Again: nothing is different.
    site.install()?;
    let begun = Instant::now();
    site.join()?;
    eprintln!("join to first heartbeat: {:.1} s", begun.elapsed().as_secs_f64());
    site.poll_every("1s").await?;
    site.deploy().await?;
    let uids = site.uids().await?;
    assert_eq!(uids.len(), 3);

    let begun = Instant::now();
    want_agent(&site, AGENT_NEXT, "True", "Updated").await?;
    eprintln!("upgrade: {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(site.cluster().await?.agent_image.as_deref(), Some(AGENT_NEXT));

    let halted = want_agent(&site, AGENT_BROKEN, "False", "Halted").await?;
    assert!(halted.contains("farwater-admin/east") && halted.contains("this version is broken"), "{halted}");
    assert_eq!(agent_image(&site).await?, AGENT_NEXT);
    let status = site.cluster().await?;
    assert_eq!(condition(&status.conditions, "AgentUpdated"), Some("False"), "{status:?}");
    assert_eq!(condition(&status.conditions, "Ready"), Some("True"), "{status:?}");

    assert_eq!(site.uids().await?, uids);
    site.leave()?;
    let deployments: Api<Deployment> = Api::namespaced(site.node.client().await?, "farwater-system");
    assert!(deployments.get_opt("farwater-agent").await?.is_none());
    assert_eq!(site.uids().await?, uids);
    Ok(())
}
