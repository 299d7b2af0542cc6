//! A namespace on a real cluster, defined once at the hub.

use anyhow::{Context as _, Result, ensure};
use farwater_api::{APPROVE_PRUNE, Cluster, ManagedNamespace, ServiceDeployment};
use farwater_e2e::Fleet;
use farwater_testkit::shared;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, ResourceQuota, Secret, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_comes_with_its_quota_and_pull_secret_and_stays_when_its_cluster_leaves() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let client = plane.client().await?;
    let name = fleet.namespace("shop");
    // The namespace exists already and belongs to others.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let there = json!({"metadata": {"name": name, "labels": {"of": "others", "team": "b"}}});
    namespaces
        .create(&PostParams::default(), &serde_json::from_value(there)?)
        .await?;
    let secret = json!({
        "metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": r#"{"auths": {"registry.example.com": {"auth": "eDp5"}}}"#},
    });
    fleet
        .api::<Secret>()
        .create(&PostParams::default(), &serde_json::from_value(secret)?)
        .await?;
    let spec = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}}, "namespace": name,
        "labels": {"team": "a"}, "annotations": {"note": "{{ raw }}\n--- \"quoted\": # é"},
        "pullSecrets": [{"name": "registry"}], "resourceQuota": {"hard": {"pods": 20, "requests.cpu": "4"}},
        "limitRange": {"limits": [{"type": "Container", "default": {"memory": "256Mi"}}]},
        "rollout": {"soak": "1s", "failAfter": "1s"},
    });
    let stated = ManagedNamespace::new("shop", serde_json::from_value(spec)?);
    fleet
        .api::<ManagedNamespace>()
        .create(&PostParams::default(), &stated)
        .await?;
    let planned = fleet
        .cli()
        .expect(0, &["plan", "managednamespace/shop", "-n", "farwater-admin"])?;
    ensure!(
        planned.stdout.contains("0 added"),
        "no cluster is selected yet: {planned:?}"
    );

    let label = async |fleet: &Fleet, env: &str| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"env": env}}}));
        fleet
            .api::<Cluster>()
            .patch("east", &PatchParams::default(), &patch)
            .await
    };
    label(&fleet, "prod").await?;
    let is_healthy = |namespace: &ManagedNamespace| {
        let status = namespace.status.clone().unwrap_or_default();
        let ready = farwater_e2e::condition(&status.conditions, "Ready") == Some("True");
        ready && status.clusters.ready == 1 && status.observed_generation == namespace.metadata.generation
    };
    let until_healthy = async |fleet: &Fleet| {
        let healthy = fleet.until("the namespace to be healthy", || async {
            Ok(is_healthy(&fleet.api::<ManagedNamespace>().get("shop").await?).then_some(()))
        });
        let healthy = healthy.await;
        let service = fleet.service("namespace-shop-east").await.map(|service| service.status);
        healthy.with_context(|| format!("the service is {service:#?}"))
    };
    until_healthy(&fleet).await?;
    let found = namespaces.get(&name).await?.metadata;
    let labels = found.labels.unwrap_or_default();
    ensure!(labels["team"] == "a" && labels["of"] == "others", "{labels:?}");
    ensure!(found.annotations.unwrap_or_default()["note"] == "{{ raw }}\n--- \"quoted\": # é");
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &name);
    let quota = |found: ResourceQuota| {
        found.spec.and_then(|spec| spec.hard).unwrap_or_default()["pods"]
            .0
            .clone()
    };
    ensure!(quota(quotas.get("farwater").await?) == "20");
    Api::<LimitRange>::namespaced(client.clone(), &name)
        .get("farwater")
        .await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &name);
    let arrived = secrets.get("registry").await?;
    ensure!(
        arrived.type_.as_deref() == Some("kubernetes.io/dockerconfigjson"),
        "{:?}",
        arrived.type_
    );
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
    let account = accounts.get("default").await?;
    let names: Vec<&str> = account
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|secret| secret.name.as_str())
        .collect();
    ensure!(names == ["registry"], "{names:?}");

    // Output of the CLI about it.
    let listed = fleet
        .cli()
        .expect(0, &["get", "managednamespaces", "-n", "farwater-admin"])?;
    ensure!(listed.stdout.contains("healthy on 1 cluster"), "{listed:?}");
    fleet.cli().expect(0, &["plan", "fwmn/shop", "-n", "farwater-admin"])?;
    fleet
        .until("the rollout to be complete", || async {
            let ran = fleet.cli().run(&[
                "rollout",
                "status",
                "managednamespace/shop",
                "-n",
                "farwater-admin",
                "-o",
                "json",
            ])?;
            let told: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
            Ok((ran.code == 0 && told["members"][0]["service"] == "namespace-shop-east").then_some(()))
        })
        .await?;
    let pause = [
        "rollout",
        "pause",
        "managednamespace/shop",
        "-n",
        "farwater-admin",
        "--reason",
        "look",
    ];
    let paused = fleet.cli().expect(0, &pause)?;
    ensure!(
        paused.stdout.contains("managednamespace.farwater.dev/shop paused"),
        "{paused:?}"
    );
    fleet.cli().expect(
        0,
        &["rollout", "resume", "managednamespace/shop", "-n", "farwater-admin"],
    )?;

    // Another quota, and no Secret any more: the account refers to none, and is the same one.
    let patch = Patch::Merge(json!({"spec": {"resourceQuota": {"hard": {"pods": 30}}, "pullSecrets": null}}));
    fleet
        .api::<ManagedNamespace>()
        .patch("shop", &PatchParams::default(), &patch)
        .await?;
    fleet
        .until("the quota to follow and the Secret to go", || async {
            let is_new = quota(quotas.get("farwater").await?) == "30";
            Ok((is_new && secrets.get_opt("registry").await?.is_none()).then_some(()))
        })
        .await?;
    let now = accounts.get("default").await?;
    ensure!(now.metadata.uid == account.metadata.uid);
    ensure!(now.image_pull_secrets.unwrap_or_default().is_empty());
    until_healthy(&fleet).await?;

    // A cluster that leaves keeps its objects, and the hub keeps none.
    label(&fleet, "none").await?;
    fleet
        .until("the service to be gone", || async {
            let services: Api<farwater_api::ServiceDeployment> = fleet.api();
            Ok(services.get_opt("namespace-shop-east").await?.is_none().then_some(()))
        })
        .await?;
    ensure!(namespaces.get(&name).await?.metadata.deletion_timestamp.is_none());
    ensure!(quota(quotas.get("farwater").await?) == "30");
    let namespaced: Api<ManagedNamespace> = fleet.api();
    namespaced.delete("shop", &DeleteParams::default()).await?;
    fleet
        .until("its set to go with it", || async {
            let sets: Api<farwater_api::ServiceSet> = fleet.api();
            Ok(sets.get_opt("namespace-shop").await?.is_none().then_some(()))
        })
        .await?;
    ensure!(namespaces.get(&name).await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_to_go_with_its_cluster_goes_once_somebody_has_looked() -> Result<()> {
    let plane = shared(1).await?;
    let mut fleet = Fleet::start().await?;
    fleet.join("east", plane).await?;
    let label = async |env: &str| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"env": env}}}));
        fleet
            .api::<Cluster>()
            .patch("east", &PatchParams::default(), &patch)
            .await
    };
    label("prod").await?;
    let name = fleet.namespace("shop");
    let spec = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}}, "namespace": name, "deletionPolicy": "Delete",
        "resourceQuota": {"hard": {"pods": 20}}, "rollout": {"soak": "1s", "failAfter": "1s"},
    });
    let stated = ManagedNamespace::new("shop", serde_json::from_value(spec)?);
    fleet
        .api::<ManagedNamespace>()
        .create(&PostParams::default(), &stated)
        .await?;
    let services: Api<ServiceDeployment> = fleet.api();
    let service = "namespace-shop-east";
    fleet
        .until("the service to be made", || async {
            Ok(services.get_opt(service).await?.map(drop))
        })
        .await?;
    fleet.until_condition(service, "Ready", "True", "").await?;

    label("none").await?;
    let is_held = |service: &ServiceDeployment| {
        service
            .status
            .as_ref()
            .is_some_and(|status| status.held_prune.is_some())
    };
    let held = fleet.until_service(service, "hold its prune", is_held).await?;
    let held = held
        .status
        .and_then(|status| status.held_prune)
        .context("a held prune")?;
    let namespaces: Api<Namespace> = Api::all(plane.client().await?);
    let is_there = async || {
        Ok(namespaces
            .get_opt(&name)
            .await?
            .is_some_and(|found| found.metadata.deletion_timestamp.is_none()))
    };
    fleet.stays("the namespace is there", service, &is_there).await?;
    fleet.annotate(service, APPROVE_PRUNE, &held.digest.to_string()).await?;
    fleet
        .until("what was approved to go", || async {
            let is_over = !is_there().await? && services.get_opt(service).await?.is_none();
            Ok(is_over.then_some(()))
        })
        .await
}
