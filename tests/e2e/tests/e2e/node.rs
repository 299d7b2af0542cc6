//! On a real node: pods behave as everywhere, and hub and agent are pods.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{AGENT_NAMESPACE, Cluster, ServiceDeployment};
use farwater_e2e::{
    life,
    page::{Page, Shell},
};
use farwater_testkit::{
    Node, Site,
    images::{BUSYBOX, Images},
    site::{CLUSTER, CONTEXT, HUB_NAMESPACE, SERVICE},
    wait_for,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Namespace, PersistentVolume},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

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
    let images = Images::of_run(dir.path())?;
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

/// `cargo xtask campaign node` does the same with the shipped images.
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

/// The node's cluster under the names that a documentation page uses.
fn name_contexts(site: &Site, names: &[&str]) -> Result<PathBuf> {
    let mut kubeconfig: Value = serde_json::from_slice(&fs::read(site.node.plane().kubeconfig())?)?;
    let contexts = kubeconfig["contexts"]
        .as_array_mut()
        .context("the kubeconfig has contexts")?;
    let own = contexts.iter().find(|context| context["name"] == CONTEXT).cloned();
    let own = own.context("the kubeconfig has the administrator's context")?;
    for name in names {
        let mut named = own.clone();
        named["name"] = json!(name);
        contexts.push(named);
    }
    let path = site.path("contexts");
    fs::write(&path, kubeconfig.to_string())?;
    Ok(path)
}

async fn has_namespace(site: &Site, name: &str) -> Result<bool> {
    let namespaces: Api<Namespace> = Api::all(site.node.client().await?);
    Ok(namespaces.get_opt(name).await?.is_some())
}

async fn has_cluster(site: &Site) -> Result<bool> {
    Ok(site.ours::<Cluster>().await?.get_opt(CLUSTER).await?.is_some())
}

/// A cluster that leaves, and a dead one: `docs/uninstall.md` up to the hub's part.
async fn leave_as_the_page_says(site: &Site, shell: &Shell, page: &mut Page) -> Result<()> {
    let before = life::ours(site)?;
    site.join()?;
    site.poll_every("1s").await?;
    site.deploy().await?;
    let workload = site.uids().await?;
    let leave = page.next("farwater cluster leave east --context east")?;
    shell.run(&leave)?;
    let left = life::ours(site)?;
    ensure!(left == before, "leave takes what join made, not {before:?} to {left:?}");
    ensure!(!has_namespace(site, AGENT_NAMESPACE).await? && !has_cluster(site).await?);
    ensure!(site.uids().await? == workload, "the workload has changed");
    let find = "kubectl get all,cm,secret,ingress -A -l farwater.dev/service";
    ensure!(
        page.text.contains(&format!("`{find}`")),
        "the page does not say how to find what stays"
    );
    let found = shell.run(&format!("{find} -o name"))?.stdout;
    ensure!(found.lines().any(|line| line == "deployment.apps/web"), "{found}");

    // There is no agent left to confirm.
    let services = site.ours::<ServiceDeployment>().await?;
    services.get(SERVICE).await.context("the service stays in the hub")?;
    services.delete(SERVICE, &DeleteParams::default()).await?;
    wait_for("the service to be gone from the hub", PATIENCE, || async {
        Ok(services.get_opt(SERVICE).await?.is_none().then_some(()))
    })
    .await?;

    site.join()?;
    let agents: Api<Deployment> = site.theirs(AGENT_NAMESPACE).await?;
    agents.delete("farwater-agent", &DeleteParams::default()).await?;
    shell.run(&page.next("farwater cluster leave east")?)?;
    ensure!(
        !has_cluster(site).await? && has_namespace(site, AGENT_NAMESPACE).await?,
        "the hub alone forgets it"
    );
    ensure!(
        page.text.contains("`--force` removes it all the same"),
        "the page does not say how to remove the rest"
    );
    shell.run(&format!("{leave} --force"))?;
    let left = life::ours(site)?;
    ensure!(left == before, "--force takes what is left, not {before:?} to {left:?}");
    ensure!(site.uids().await? == workload, "the workload has changed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_about_uninstalling_takes_all_that_is_ours_and_no_workload() -> Result<()> {
    let site = Site::start().await?;
    site.install()?;
    let shell = Shell::new(&site.path(""))?.with_kubeconfig(name_contexts(&site, &["east", "management"])?);
    let mut page = Page::read("uninstall.md")?;
    leave_as_the_page_says(&site, &shell, &mut page).await?;

    let workload = site.uids().await?;
    shell.run(&page.next("farwater admin backup --context management last.backup")?)?;
    ensure!(site.path("last.backup").is_file(), "there is no backup");
    shell.run(&page.next("kubectl --context management delete statefulset,")?)?;
    shell.run(&page.next("kubectl --context management delete namespace farwater-hub")?)?;
    ensure!(page.lines.is_empty(), "not run: {:?}", page.lines);
    let left = life::ours(&site)?;
    ensure!(
        left.is_empty() && !has_namespace(&site, HUB_NAMESPACE).await?,
        "still there: {left:?}"
    );
    ensure!(site.uids().await? == workload, "the workload has changed");
    // The page's statement about the volume.
    let volumes: Api<PersistentVolume> = Api::all(site.node.client().await?);
    volumes.get("hub").await.context("the volume stays")?;
    ensure!(
        site.volume("hub")?.join("hub.db").is_file(),
        "the volume holds no database"
    );
    Ok(())
}
