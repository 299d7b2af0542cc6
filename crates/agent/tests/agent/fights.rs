//! Whoever changes objects back is found, named and given way to. What an API server overrules is reported and not sent
//! again.

use crate::support::{
    PATIENCE, api, config_map, config_maps, object, outcome,
    pods::NOBODY,
    report, value,
    world::{World, world},
};
use farwater_api::objects::{Outcome, ServiceReport, SyncState};
use farwater_testkit::{
    wait_for,
    webhook::{self, Webhook},
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Writes of the agent and of the other writer before it counts as a fight.
const WRITES: i64 = 8;

fn deployment(replicas: &str) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec: {{schedulerName: {NOBODY}, containers: [{{name: web, image: web}}]}}
"
    )
}

/// The generation, which grows with each change of the spec.
async fn generation(deployments: &Api<DynamicObject>) -> i64 {
    deployments.get("web").await.unwrap().metadata.generation.unwrap()
}

#[tokio::test]
async fn an_autoscaler_that_fights_is_named_with_its_field_and_writes_become_rare() {
    let world = world().await;
    let place = world.hub.place("scaled");
    let service = world.applied("scaled", &[("a.yaml", &deployment("replicas: 1"))]).await;
    let deployments = api(&world.client().await, "apps", "v1", "Deployment", &place);
    // Writes as the autoscaler of kube-controller-manager does, which has no metrics here.
    let autoscaler = PatchParams {
        field_manager: Some("horizontal-pod-autoscaler".into()),
        ..PatchParams::default()
    };
    let three = Patch::Merge(json!({"spec": {"replicas": 3}}));
    let scale = || deployments.patch_scale("web", &autoscaler, &three);
    let before = generation(&deployments).await;
    let noticed = wait_for("the agent to notice the fight", PATIENCE, || async {
        scale().await?;
        let report = world.hub.report(service.uid());
        Ok(report.filter(|report| object(report, "Deployment", "web").sync == SyncState::Waiting))
    })
    .await
    .unwrap();
    let message = &object(&noticed, "Deployment", "web").message;
    assert!(
        message.starts_with("horizontal-pod-autoscaler (scale) keeps changing it back: "),
        "{message}"
    );
    assert!(
        message.contains("took fields of others: .spec.replicas (horizontal-pod-autoscaler)"),
        "{message}"
    );
    assert!(message.contains("farwater.dev/ignore-differences"), "{message}");
    let fought = generation(&deployments).await - before;
    assert!(fought >= WRITES, "{fought} changes before it was called a fight");

    // The other writer continues, and the agent gives way.
    let before = generation(&deployments).await;
    for _ in 0..10 {
        scale().await.unwrap();
        polls(world, 1).await;
    }
    let fought = generation(&deployments).await - before;
    assert!(fought <= 2, "{fought} changes within ten polls of a pause");
    assert_eq!(deployments.get("web").await.unwrap().data["spec"]["replicas"], 3);

    // The next version leaves the field to the other writer.
    let entry = world
        .hub
        .set(service.with(&world.hub, &[("a.yaml", &deployment(""))]).entry());
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(
        object(&applied, "Deployment", "web").sync,
        SyncState::Synced,
        "{applied:#?}"
    );
    assert_eq!(deployments.get("web").await.unwrap().data["spec"]["replicas"], 3);
}

/// Installs a webhook that gives labelled ConfigMaps another value. It is in effect when this returns.
async fn install(client: &Client, name: &str) -> Webhook {
    let theirs = |map: &Value| {
        let is_ours = map["data"]["value"] != "theirs";
        is_ours.then(|| json!([{"op": "add", "path": "/data/value", "value": "theirs"}]))
    };
    let webhook = Webhook::start(theirs).await.unwrap();
    let configurations = api(
        client,
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "",
    );
    let configuration = webhook::configuration(name, &webhook.client(), ["", "v1", "configmaps"], "disputed");
    configurations
        .create(&PostParams::default(), &serde_json::from_value(configuration).unwrap())
        .await
        .unwrap();
    until_value(client, "theirs").await;
    webhook
}

/// Waits until an object that is sent with `ours` gets this value.
async fn until_value(client: &Client, expected: &str) {
    let map = json!({"metadata": {"name": "probe", "labels": {"disputed": "yes"}}, "data": {"value": "ours"}});
    let probe: DynamicObject = serde_json::from_value(map).unwrap();
    let (maps, dry) = (
        config_maps(client, "default"),
        PostParams {
            dry_run: true,
            ..PostParams::default()
        },
    );
    wait_for("the webhook to be asked, or no more", PATIENCE, || async {
        let made = maps.create(&dry, &probe).await?;
        Ok((made.data["data"]["value"] == expected).then_some(()))
    })
    .await
    .unwrap();
}

async fn polls(world: &World, count: u64) {
    let before = world.hub.polls();
    wait_for("some polls", PATIENCE, || async {
        Ok((world.hub.polls() >= before + count).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_webhook_that_overrules_each_apply_is_told_and_costs_no_second_write() {
    let world = world().await;
    let place = world.hub.place("overruling");
    let client = world.client().await;
    let name = world.hub.group("overrule");
    let webhook = install(&client, &name).await;
    let disputed = |value: &str| config_map("a", value).replace("{name: a}", "{name: a, labels: {disputed: 'yes'}}");
    let service = world.applied("overruling", &[("a.yaml", &disputed("1"))]).await;
    let is_told = |report: &ServiceReport| {
        let a = object(report, "ConfigMap", "a");
        let told = "the API server keeps another value of .data.value: a mutating webhook or policy there overrules";
        report.outcome == Outcome::Applied && a.sync == SyncState::Synced && a.message.starts_with(told)
    };
    let maps = config_maps(&client, &place);
    for version in ["1", "2"] {
        let entry = world
            .hub
            .set(service.with(&world.hub, &[("a.yaml", &disputed(version))]).entry());
        report(&world.hub, &entry, is_told).await;
        value(&maps, "a", "theirs").await;
        let written = maps.get("a").await.unwrap().metadata.resource_version;
        polls(world, 10).await;
        assert_eq!(maps.get("a").await.unwrap().metadata.resource_version, written);
    }
    // A write by somebody else is a drift. It is repaired once, which doesn't change the value.
    let unmark = Patch::Merge(json!({"metadata": {"labels": {"farwater.dev/service": null}}}));
    maps.patch("a", &PatchParams::default(), &unmark).await.unwrap();
    wait_for("the drift to be repaired", PATIENCE, || async {
        let labels = maps.get("a").await?.metadata.labels.unwrap_or_default();
        Ok(labels.contains_key("farwater.dev/service").then_some(()))
    })
    .await
    .unwrap();
    let written = maps.get("a").await.unwrap().metadata.resource_version;
    polls(world, 10).await;
    assert_eq!(maps.get("a").await.unwrap().metadata.resource_version, written);
    assert!(is_told(&world.hub.report(service.uid()).unwrap()));

    // Without the webhook, the next version is as its source says.
    let configurations = api(
        &client,
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "",
    );
    configurations.delete(&name, &DeleteParams::default()).await.unwrap();
    until_value(&client, "ours").await;
    drop(webhook);
    let entry = world
        .hub
        .set(service.with(&world.hub, &[("a.yaml", &disputed("3"))]).entry());
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    value(&maps, "a", "3").await;
    assert_eq!(object(&applied, "ConfigMap", "a").message, "");
}
