//! On a real node: what pods do there is what they do anywhere, and hub and agent are pods.

use std::{
    collections::BTreeSet,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{AGENT_NAMESPACE, AgentPolicy, Cluster};
use farwater_e2e::condition;
use farwater_testkit::{
    Node, Site,
    images::{AGENT_BROKEN, AGENT_NEXT, BUSYBOX, HUB, Images},
    wait_for,
};
use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Namespace};
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
    let before = ours(&site)?;
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
    assert_eq!(ours(&site)?, before, "leave takes what join made");
    let namespaces: Api<Namespace> = Api::all(site.node.client().await?);
    assert!(namespaces.get_opt(AGENT_NAMESPACE).await?.is_none());
    assert!(site.ours::<Cluster>().await?.get_opt("east").await?.is_none());
    assert_eq!(site.uids().await?, uids);
    Ok(())
}

fn kubectl(site: &Site, arguments: &[&str]) -> Result<String> {
    let output = site.node.plane().kubectl()?.args(arguments).output()?;
    ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Everything in the cluster that bears our label.
fn ours(site: &Site) -> Result<BTreeSet<String>> {
    let kinds = kubectl(site, &["api-resources", "--verbs=list,delete", "-o", "name"])?;
    let kinds = kinds.split_whitespace().collect::<Vec<_>>().join(",");
    let label = "app.kubernetes.io/part-of=farwater";
    let found = kubectl(site, &["get", &kinds, "--all-namespaces", "--selector", label, "--output", "name"])?;
    Ok(found.lines().map(str::to_owned).collect())
}

/// What somebody does who has just a cluster and the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_takes_the_current_context_and_prints_the_way_in() -> Result<()> {
    let site = Site::start().await?;
    let installed = site.run(&["install", "--image", HUB])?;
    let said = String::from_utf8_lossy(&installed.stderr).into_owned();
    ensure!(installed.status.success() && said.contains("the hub is ready"), "{said}");
    assert_eq!(String::from_utf8_lossy(&installed.stdout).trim(), "https://localhost:8443");
    let way = said.lines().find_map(|line| line.trim().strip_prefix("kubectl ")).context("no way in is printed")?;
    let mut forward = site.node.plane().kubectl()?;
    let forward = forward.args(way.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let forward = Ended(forward);
    let clusters = wait_for("the hub to be reached", PATIENCE, || async {
        let output = site.run(&["get", "clusters", "-A"])?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    });
    clusters.await.with_context(|| said.clone())?;
    drop(forward);
    Ok(())
}

/// A process that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
