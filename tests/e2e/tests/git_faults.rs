//! What Git does wrong deletes nothing: the last good state goes on being served.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_api::GitRepository;
use farwater_e2e::{Fleet, condition, config_map};
use farwater_testkit::{
    Plane,
    git::{Auth, Repository},
    shared,
};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// A fleet with one healthy service of two ConfigMaps.
async fn serving(plane: &Plane) -> Result<(Fleet, Repository)> {
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (a, b) = (config_map("a", "one"), config_map("b", "one"));
    let repository = fleet.repository("infra", &[("app/a.yaml", &a), ("app/b.yaml", &b)]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet.until_applied("app", &repository.branch("main").unwrap_or_default()).await?;
    Ok((fleet, repository))
}

async fn count(plane: &Plane, fleet: &Fleet) -> Result<usize> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let list = api.list(&ListParams::default()).await?;
    Ok(list.items.iter().filter(|c| c.metadata.name.as_deref() != Some("kube-root-ca.crt")).count())
}

async fn until_source(fleet: &Fleet, status: &str, part: &str) -> Result<GitRepository> {
    let sources: Api<GitRepository> = fleet.api();
    fleet
        .until(&format!("the repository to be Ready={status} with {part:?}"), || async {
            let source = sources.get("infra").await?;
            let conditions = source.status.clone().unwrap_or_default().conditions;
            let found = conditions.iter().any(|c| c.type_ == "Ready" && c.status == status && c.message.contains(part));
            Ok(found.then_some(source))
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_git_server_that_is_gone_is_survived_by_hub_and_agent() -> Result<()> {
    let plane = shared(1).await?;
    let (mut fleet, repository) = serving(plane).await?;
    fleet.git.stop().await;
    fleet.reconcile("infra").await?;
    let source = until_source(&fleet, "False", "").await?;
    let status = source.status.unwrap_or_default();
    ensure!(status.stale_since.is_some() && status.revision.is_some(), "staleness is shown beside what is served");

    // The hub starts again without Git, and an agent that lost its state gets everything from it.
    fleet.hub.restart().await?;
    fleet.agent("east")?.kill9();
    std::fs::remove_dir_all(fleet.state_dir("east").join("bundles"))?;
    fleet.agent("east")?.restart()?;
    fleet
        .always("both objects exist", Duration::from_secs(4), || async { Ok(count(plane, &fleet).await? == 2) })
        .await?;

    fleet.git.resume().await?;
    let next = repository.change("main", &[("app/b.yaml", Some(&config_map("b", "two")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &next).await?;
    let source = until_source(&fleet, "True", "").await?;
    ensure!(source.status.unwrap_or_default().stale_since.is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vanished_branch_and_an_orphan_history_are_not_an_empty_set() -> Result<()> {
    let plane = shared(1).await?;
    let (fleet, repository) = serving(plane).await?;
    repository.delete_branch("main")?;
    fleet.reconcile("infra").await?;
    until_source(&fleet, "False", "main").await?;
    ensure!(count(plane, &fleet).await? == 2);

    // Somebody force-pushes a history in which the folder does not exist.
    repository.rewrite("main", &[("README.md", "start over")])?;
    fleet.reconcile("infra").await?;
    until_source(&fleet, "True", "").await?;
    fleet.until_condition("app", "Ready", "False", "app").await?;
    fleet.always("both objects exist", Duration::from_secs(3), || async { Ok(count(plane, &fleet).await? == 2) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_asked_for_refused_and_then_taken() -> Result<()> {
    let plane = shared(1).await?;
    let (fleet, repository) = serving(plane).await?;
    fleet.git.set_auth(Auth::Basic { username: "robot".to_owned(), password: "right horse".to_owned() });
    fleet.reconcile("infra").await?;
    let source = until_source(&fleet, "False", "").await?;
    let conditions = source.status.unwrap_or_default().conditions;
    ensure!(condition(&conditions, "Ready") == Some("False"));
    let message = conditions.iter().map(|c| c.message.clone()).collect::<String>();
    ensure!(message.contains("secretRef") || message.contains("credential"), "the remedy is named: {message}");
    ensure!(count(plane, &fleet).await? == 2);

    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "git"},
        "stringData": {"username": "robot", "password": "right horse"},
    });
    let secrets: Api<Secret> = fleet.api();
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let patch = json!({"spec": {"secretRef": {"name": "git"}}});
    fleet.api::<GitRepository>().patch("infra", &PatchParams::default(), &Patch::Merge(patch)).await?;
    let next = repository.change("main", &[("app/a.yaml", Some(&config_map("a", "three")))])?;
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &next).await?;
    Ok(())
}
