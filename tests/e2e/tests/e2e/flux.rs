//! Flux's kustomize-controller applies a folder with our kinds to a hub, with `spec.kubeConfig` as for any cluster.

use anyhow::{Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, ServiceDeployment};
use farwater_e2e::{Fleet, PATIENCE, config_map, flux::Flux};
use farwater_testkit::shared;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

fn service(fleet: &Fleet, path: &str) -> String {
    let service = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
        "metadata": {"name": "web", "namespace": ADMIN_NAMESPACE},
        "spec": {
            "clusterRef": {"name": "east"}, "targetNamespace": fleet.namespace("web"),
            "sourceRef": {"name": "infra"}, "path": path,
        },
    });
    service.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn flux_applies_a_folder_of_our_kinds_and_waits_for_the_cluster() -> Result<()> {
    let mut fleet = Fleet::start().await?;
    let plane = shared(1).await?;
    fleet.join("east", plane).await?;
    let repository = fleet.git.create("infra")?;
    repository.commit(
        "main",
        &[
            ("one/map.yaml", &config_map("m", "one")),
            ("two/map.yaml", &config_map("m", "two")),
        ],
    )?;
    let source = json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "GitRepository",
        "metadata": {"name": "infra", "namespace": ADMIN_NAMESPACE}, "spec": {"url": fleet.git.url("infra")},
    });
    let note = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note", "namespace": ADMIN_NAMESPACE}, "data": {"a": "b"},
    });
    let namespace = fleet.namespace("flux");
    let flux = Flux::start(&plane.client().await?, plane.kubeconfig(), &namespace, &[]).await?;
    let hub = std::fs::read_to_string(fleet.hub.kubeconfig())?;
    let secret = serde_json::from_value(json!({"metadata": {"name": "hub"}, "stringData": {"value": hub}}))?;
    let secrets: Api<Secret> = Api::namespaced(plane.client().await?, &namespace);
    secrets.create(&PostParams::default(), &secret).await?;
    let files = [
        ("fleet/source.json", source.to_string()),
        ("fleet/service.json", service(&fleet, "one")),
        ("fleet/note.json", note.to_string()),
    ];
    let kustomization = json!({
        "interval": "1h", "retryInterval": "5s", "timeout": "60s", "prune": true, "wait": true, "path": "./fleet",
        "kubeConfig": {"secretRef": {"name": "hub"}},
    });
    let first = "1".repeat(40);
    flux.publish(
        &first,
        &[
            ("fleet/kustomization.yaml", resources(&["source", "service", "note"])),
            files[0].clone(),
            files[1].clone(),
            files[2].clone(),
        ],
    )
    .await?;
    flux.add("fleet", kustomization).await?;
    flux.until_applied(&first, PATIENCE).await?;
    // Flux waited for our Ready condition, so the cluster has the objects.
    let in_cluster: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("web"));
    ensure!(
        in_cluster
            .get("m")
            .await?
            .data
            .is_some_and(|data| data["value"] == "one")
    );
    let web = fleet.service("web").await?;
    let applied = web
        .managed_fields()
        .iter()
        .any(|m| m.manager.as_deref() == Some("kustomize-controller") && m.operation.as_deref() == Some("Apply"));
    ensure!(applied, "{:?}", web.managed_fields());

    // A change of a field that Flux applied is undone. Fields that Flux doesn't own stay.
    let drift = json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"path": "two"}});
    fleet
        .api::<ServiceDeployment>()
        .patch("web", &PatchParams::default(), &Patch::Merge(drift))
        .await?;
    flux.reconcile("fleet").await?;
    fleet
        .until_service("web", "be as Flux has it", |web| web.spec.path == "one")
        .await?;
    ensure!(
        fleet
            .service("web")
            .await?
            .labels()
            .get("mine")
            .is_some_and(|mine| mine == "yes")
    );

    // The next commit changes one object and removes another.
    let second = "2".repeat(40);
    let changed = ("fleet/service.json", service(&fleet, "two"));
    flux.publish(
        &second,
        &[
            ("fleet/kustomization.yaml", resources(&["source", "service"])),
            files[0].clone(),
            changed,
        ],
    )
    .await?;
    flux.until_applied(&second, PATIENCE).await?;
    ensure!(
        in_cluster
            .get("m")
            .await?
            .data
            .is_some_and(|data| data["value"] == "two")
    );
    let notes: Api<ConfigMap> = fleet.api();
    ensure!(
        notes.get_opt("note").await?.is_none(),
        "Flux did not prune an object that left the folder"
    );
    Ok(())
}

fn resources(names: &[&str]) -> String {
    let files: Vec<String> = names.iter().map(|name| format!("{name}.json")).collect();
    json!({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": files}).to_string()
}
