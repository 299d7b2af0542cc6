//! What is deleted with a service, and when. No pod runs: the test does what a kubelet would do.

use crate::support::{PATIENCE, api, config_map, config_maps, gone, object, outcome, report, world::world};
use farwater_api::{
    objects::{Health, Outcome, ServiceReport},
    service_deployment::DeletionPolicy,
};
use farwater_testkit::wait_for;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// The workload is in a wave after everything else.
const WORKLOAD: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, annotations: {farwater.dev/wave: '1'}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {schedulerName: nobody, containers: [{name: main, image: x}]}
";

#[tokio::test]
async fn an_earlier_wave_stays_until_the_pods_of_a_later_one_have_ended() {
    let world = world().await;
    let place = world.hub.place("ending");
    let client = world.client().await;
    let settings = config_map("settings", "1");
    let service = world
        .applied("ending", &[("a.yaml", &settings), ("b.yaml", WORKLOAD)])
        .await;
    let pods = api(&client, "", "v1", "Pod", &place);
    let pod = wait_for("its pod", PATIENCE, || async {
        Ok(pods
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .find_map(|pod| pod.metadata.name))
    })
    .await
    .unwrap();
    // The pod takes its time to end.
    let hold = async |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        pods.patch(&pod, &PatchParams::default(), &patch).await.unwrap();
    };
    hold(json!(["example.com/ending"])).await;

    let entry = world.hub.set(service.removal(DeletionPolicy::Delete, None));
    let says = |report: &ServiceReport, kind: &str, part: &str| {
        report
            .objects
            .iter()
            .any(|one| one.object.kind == kind && one.message.contains(part))
    };
    let waits = format!("its deletion waits until Deployment.apps {place}/web is gone");
    let waiting = report(&world.hub, &entry, |r| {
        says(r, "ConfigMap", &waits) && says(r, "Deployment", "waits for finalizer foregroundDeletion")
    })
    .await;
    assert_eq!(object(&waiting, "Deployment", "web").health, Health::Terminating);
    let maps = config_maps(&client, &place);
    assert!(maps.get_opt("settings").await.unwrap().is_some());

    hold(Value::Null).await;
    outcome(&world.hub, &entry, Outcome::Removed).await;
    gone(&pods, &pod).await;
    gone(&api(&client, "apps", "v1", "Deployment", &place), "web").await;
    gone(&maps, "settings").await;
}
