//! Order, and how objects are applied, from a commit through hub and agent to a cluster.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farwater_api::objects::SyncState;
use farwater_e2e::{Fleet, config_map};
use farwater_testkit::shared;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// With a selector that no node has, it never becomes healthy.
fn deployment(selector: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: database, annotations: {{argocd.argoproj.io/sync-wave: '-1'}}}}
spec:
  selector: {{matchLabels: {{app: database}}}}
  template:
    metadata: {{labels: {{app: database}}}}
    spec: {{nodeSelector: {{{selector}}}, containers: [{{name: database, image: postgres}}]}}
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wave_waits_for_the_one_before_and_a_fix_ends_the_wait() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let (nowhere, anywhere) = (deployment("nobody: has-this"), deployment(""));
    let map = config_map("web", "one");
    let repository = fleet.repository("infra", &[("app/a.yaml", &map), ("app/b.yaml", &nowhere)]).await?;
    fleet.deploy("app", "east", "infra", "app").await?;
    fleet.until_condition("app", "Reconciling", "True", "1 object waits: Deployment.apps").await?;
    let namespace = fleet.namespace("app");
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &namespace);
    ensure!(maps.get_opt("web").await?.is_none(), "the later wave has not begun");
    let held = fleet.objects("app").await?.into_iter().find(|o| o.object.kind == "ConfigMap").context("a ConfigMap")?;
    ensure!(held.sync == SyncState::Waiting, "{held:?}");
    ensure!(held.waits_for.as_ref().is_some_and(|object| object.name == "database"), "{held:?}");
    let why = fleet.cli().why("app")?;
    ensure!(why["sentence"].as_str().is_some_and(|said| said.contains("database is not ready")), "{why}");
    ensure!(why["next"].to_string().contains("describe deployment.apps database"), "{why}");

    let next = repository.change("main", &[("app/b.yaml", Some(&anywhere))])?;
    let pushed = Instant::now();
    fleet.reconcile("infra").await?;
    fleet.until_applied("app", &next).await?;
    // Polls come every second; a Deployment takes a few to become available.
    ensure!(pushed.elapsed() < Duration::from_secs(30), "took {:?}", pushed.elapsed());
    let deployments: Api<Deployment> = Api::namespaced(plane.client().await?, &namespace);
    let available = deployments.get("database").await?.status.and_then(|s| s.available_replicas);
    ensure!(available == Some(1), "{available:?}");
    maps.get("web").await?;
    // The attempt that came to nothing is none that has failed.
    fleet
        .until("the history to say so", || async {
            let ran = fleet.cli().expect(0, &["history", "app", "-o", "json"])?;
            let history: Vec<Value> = serde_json::from_str(&ran.stdout)?;
            let results: Vec<_> = history.iter().map(|version| version["result"].as_str()).collect();
            Ok((results == [Some("Healthy"), Some("Superseded")]).then_some(()))
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_services_options_reach_its_objects() -> Result<()> {
    let plane = shared(2).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("west", plane).await?;
    let map = config_map("web", "one");
    let repository = fleet.repository("infra", &[("app/a.yaml", &map)]).await?;
    fleet.deploy_with("app", "west", "infra", "app", json!({"apply": {"drift": "Report"}})).await?;
    fleet.until_applied("app", &repository.branch("main").unwrap_or_default()).await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let by = PatchParams { field_manager: Some("somebody".to_owned()), ..PatchParams::default() };
    maps.patch("web", &by, &Patch::Merge(json!({"data": {"value": "theirs"}}))).await?;
    fleet.until_condition("app", "Drifted", "True", ".data.value (somebody)").await?;
    fleet.until_condition("app", "Ready", "True", "").await?;
    ensure!(maps.get("web").await?.data.unwrap_or_default()["value"] == "theirs");

    let patch = json!({"spec": {"apply": {"drift": "Correct"}}});
    let services: Api<farwater_api::ServiceDeployment> = fleet.api();
    services.patch("app", &PatchParams::default(), &Patch::Merge(patch)).await?;
    fleet
        .until("the drift to be corrected", || async {
            let map = maps.get("web").await?;
            Ok((map.data.unwrap_or_default()["value"] == "one").then_some(()))
        })
        .await?;
    fleet
        .until_service("app", "show no drift", |s| {
            s.status.iter().flat_map(|s| &s.conditions).all(|c| c.type_ != "Drifted" || c.status != "True")
        })
        .await?;
    let wrong = Patch::Merge(json!({"spec": {"apply": {"drift": "Sometimes"}}}));
    let refused = services.patch("app", &PatchParams::default(), &wrong).await;
    let error = refused.err().context("a wrong value is refused")?.to_string();
    ensure!(error.contains("spec.apply.drift") && error.contains("Report"), "{error}");
    Ok(())
}
