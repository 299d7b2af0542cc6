//! An artifact of a registry with files of a repository in it, from `farwater` to the cluster.

use anyhow::{Result, ensure};
use farwater_api::{OCIRepository, REQUESTED_AT};
use farwater_e2e::{Fleet, condition, config_map};
use farwater_testkit::{Plane, Registry, registry::SignIn, shared};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

async fn until_values(plane: &Plane, fleet: &Fleet, wanted: &[(&str, &str)]) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    let what = format!("the objects to be {wanted:?}");
    fleet
        .until(&what, || async {
            for (name, value) in wanted {
                let found = api.get_opt(name).await?.and_then(|map| map.data?.remove("value"));
                if found.as_deref() != Some(*value) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_artifact_with_files_of_a_repository_is_applied_and_outlives_its_registry() -> Result<()> {
    let plane = shared(1).await?;
    let registry = Registry::start(SignIn::Nobody).await?;
    registry
        .push_files("apps", "stable", &[("a.yaml", &config_map("a", "one"))])
        .await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let repository = fleet
        .repository("infra", &[("east/b.yaml", &config_map("b", "one")), ("README", "x")])
        .await?;
    let spec = json!({"url": registry.url("apps"), "ref": {"tag": "stable"}, "insecure": true, "interval": "1h"});
    let apps: Api<OCIRepository> = fleet.api();
    apps.create(
        &PostParams::default(),
        &OCIRepository::new("apps", serde_json::from_value(spec)?),
    )
    .await?;
    let sources = json!({
        "sourceRef": {"kind": "OCIRepository", "name": "apps"},
        "sources": [{"sourceRef": {"name": "infra"}, "path": "east", "mountPath": "of-cluster"}],
    });
    fleet.deploy_with("app", "east", "apps", "", sources).await?;
    until_values(plane, &fleet, &[("a", "one"), ("b", "one")]).await?;

    let digest = registry
        .push_files("apps", "stable", &[("a.yaml", &config_map("a", "two"))])
        .await?;
    let ask = async || {
        let asked = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now().to_string()}}});
        apps.patch("apps", &PatchParams::default(), &Patch::Merge(asked)).await
    };
    ask().await?;
    let commit = repository.change("main", &[("east/b.yaml", Some(&config_map("b", "two")))])?;
    fleet.reconcile("infra").await?;
    until_values(plane, &fleet, &[("a", "two"), ("b", "two")]).await?;
    let service = fleet.until_applied("app", &digest).await?;
    let cli = fleet.cli();
    let told = cli.expect(0, &["explain", "digest", "app"])?.stdout;
    for line in [
        format!("  OCIRepository apps stable@{digest}\n"),
        format!("  GitRepository infra main@sha1:{commit}, folder east, at of-cluster\n"),
    ] {
        ensure!(told.contains(&line), "{line} in {told}");
    }

    // Without the registry, all objects stay and drift is corrected. `why` names the unreachable registry.
    drop(registry);
    ask().await?;
    fleet
        .until("the registry to be missed", || async {
            let status = apps.get("apps").await?.status.unwrap_or_default();
            Ok(status.stale_since.map(drop))
        })
        .await?;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().await?, &fleet.namespace("app"));
    maps.delete("a", &kube::api::DeleteParams::default()).await?;
    until_values(plane, &fleet, &[("a", "two"), ("b", "two")]).await?;
    let after = fleet.service("app").await?.status.unwrap_or_default();
    let before = service.status.unwrap_or_default();
    ensure!(after.assigned_revision == before.assigned_revision, "{after:?}");
    ensure!(condition(&after.conditions, "Ready") == Some("True"), "{after:?}");
    let why = cli.why("app")?;
    ensure!(why.to_string().contains("stays in use"), "{why:#}");
    Ok(())
}
