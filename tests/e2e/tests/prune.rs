//! What leaves the source leaves the cluster, but never by mistake.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use farwater_api::APPROVE_PRUNE;
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::{Plane, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::ListParams};
use serde_json::json;

async fn names(plane: &Plane, namespace: &str) -> Result<Vec<String>> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, namespace);
    let list = api.list(&ListParams::default()).await?;
    let names = list.items.into_iter().filter_map(|c| c.metadata.name);
    Ok(names.filter(|name| name != "kube-root-ca.crt").collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_folder_is_held_until_exactly_that_plan_is_approved() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (a, b) = (config_map("a", "one"), config_map("b", "one"));
    let repository = fleet.repository("infra", &[("app/a.yaml", &a), ("app/b.yaml", &b)]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet.until_applied("app", &repository.branch("main").unwrap_or_default()).await?;
    let namespace = fleet.namespace("app");

    repository.change("main", &[("app/a.yaml", None), ("app/b.yaml", None), ("app/keep.yaml", Some("---\n"))])?;
    fleet.reconcile("infra").await?;
    let service =
        fleet.until_service("app", "hold its prune", |s| s.status.as_ref().is_some_and(|s| s.held_prune.is_some()));
    let held = service.await?.status.and_then(|s| s.held_prune).context("a held prune")?;
    ensure!(held.count == 2 && held.objects.len() == 2, "{held:?}");
    fleet
        .always("both objects exist", Duration::from_secs(3), || async {
            Ok(names(plane, &namespace).await?.len() == 2)
        })
        .await?;

    let wrong = farwater_api::Digest::of("another plan").to_string();
    fleet.annotate("app", APPROVE_PRUNE, &wrong).await?;
    fleet
        .always("both objects exist", Duration::from_secs(3), || async {
            Ok(names(plane, &namespace).await?.len() == 2)
        })
        .await?;
    fleet.annotate("app", APPROVE_PRUNE, &held.digest.to_string()).await?;
    fleet.until("the objects to go", || async { Ok(names(plane, &namespace).await?.is_empty().then_some(())) }).await?;
    fleet.until_service("app", "hold nothing", |s| s.status.as_ref().is_some_and(|s| s.held_prune.is_none())).await?;
    let deleted = fleet.until_service("app", "name its deletion", |s| {
        let status = s.status.as_ref();
        status.is_some_and(|status| status.last_deletion.as_ref().is_some_and(|one| one.digest == held.digest))
    });
    let status = deleted.await?.status.context("a status")?;
    ensure!(status.approved_by.is_some() && status.approved_at.is_some(), "{status:?}");
    let approver = status.last_deletion.and_then(|deletion| deletion.approved_by);
    ensure!(approver == status.approved_by, "{approver:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_left_git_while_the_agent_was_down_and_lost_its_state_is_pruned() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let maps: Vec<_> = (0..4).map(|n| (format!("app/m{n}.yaml"), config_map(&format!("m{n}"), "one"))).collect();
    let files: Vec<_> = maps.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let repository = fleet.repository("infra", &files).await?;
    fleet.deploy("app", "west", "infra", "app").await?;
    fleet.until_applied("app", &repository.branch("main").unwrap_or_default()).await?;

    fleet.agent("west")?.kill9();
    std::fs::remove_dir_all(fleet.state_dir("west"))?;
    let next = repository.change("main", &[("app/m3.yaml", None)])?;
    fleet.reconcile("infra").await?;
    fleet
        .until_service("app", "be assigned the next commit", |s| {
            s.status.as_ref().and_then(|s| s.assigned_revision.as_deref()).is_some_and(|r| r.ends_with(&next))
        })
        .await?;
    fleet.agent("west")?.restart()?;
    fleet.until_applied("app", &next).await?;
    let namespace = fleet.namespace("app");
    ensure!(names(plane, &namespace).await? == ["m0", "m1", "m2"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_service_orphans_or_deletes_as_it_says() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let map = config_map("a", "one");
    let repository = fleet.repository("infra", &[("stays/a.yaml", &map), ("goes/a.yaml", &map)]).await?;
    fleet.deploy("stays", "east", "infra", "stays").await?;
    fleet.deploy_with("goes", "east", "infra", "goes", json!({"deletionPolicy": "Delete"})).await?;
    let commit = repository.branch("main").unwrap_or_default();
    fleet.until_applied("stays", &commit).await?;
    fleet.until_applied("goes", &commit).await?;

    fleet.delete_service("stays").await?;
    fleet.delete_service("goes").await?;
    ensure!(names(plane, &fleet.namespace("stays")).await? == ["a"]);
    ensure!(names(plane, &fleet.namespace("goes")).await?.is_empty());
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("stays"));
    let left = api.get("a").await?.metadata;
    ensure!(left.labels.unwrap_or_default().keys().all(|key| !key.contains("farwater")), "an orphan is nobody's");
    Ok(())
}
