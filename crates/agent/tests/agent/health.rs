//! Why objects are not healthy, on a real API server with the real controllers. No pod runs: the tests write the
//! statuses of a kubelet.

use std::time::Instant;

use crate::support::{
    FakeHub, PATIENCE, Service, api,
    custom::{create, custom, define, in_next_wave, set_status},
    object, outcome,
    pods::{NOBODY, uid_of},
    report,
    world::{World, world},
};
use farwater_api::{
    objects::{Health, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::{Entry, ServiceAccount},
};
use farwater_fleet::health::unseen::{NEVER_SEEN, UNSEEN};
use farwater_testkit::wait_for;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};

pub fn workload(kind: &str, name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      schedulerName: {NOBODY}
      containers: [{{name: main, image: x}}]
"
    )
}

/// The names of the pods with this label, once there are this many.
pub async fn pods(client: &Client, namespace: &str, app: &str, count: usize) -> (Api<DynamicObject>, Vec<String>) {
    let pods = api(client, "", "v1", "Pod", namespace);
    let selector = ListParams::default().labels(&format!("app={app}"));
    let what = format!("{count} pods of {app}");
    let named = wait_for(&what, PATIENCE, || async {
        let items = pods.list(&selector).await?.items;
        Ok((items.len() == count).then(|| {
            items
                .into_iter()
                .filter_map(|pod| pod.metadata.name)
                .collect::<Vec<_>>()
        }))
    });
    let mut named = named.await.unwrap();
    named.sort();
    (pods, named)
}

fn container(state: Value, last: Value) -> Value {
    json!([{"name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 3, "state": state, "lastState": last}])
}

pub fn pulls() -> Value {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}});
    json!({"phase": "Pending", "containerStatuses": container(waiting, json!({}))})
}

pub fn loops() -> Value {
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}});
    let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "hunter2"}});
    json!({"phase": "Running", "containerStatuses": container(waiting, killed)})
}

pub fn ready() -> Value {
    json!({"phase": "Running", "containerStatuses": null,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

/// Waits until the message of an object contains this text, and returns its report.
pub async fn said(hub: &FakeHub, entry: &Entry, kind: &str, name: &str, text: &str) -> ObjectReport {
    let of = |report: &ServiceReport| {
        report
            .objects
            .iter()
            .any(|o| o.object.kind == kind && o.object.name == name && o.message.contains(text))
    };
    object(&report(hub, entry, of).await, kind, name).clone()
}

pub async fn healthy(hub: &FakeHub, entry: &Entry, kind: &str, name: &str) -> ObjectReport {
    let of = |report: &ServiceReport| {
        report
            .objects
            .iter()
            .any(|o| o.object.kind == kind && o.object.name == name && o.health == Health::Current)
    };
    object(&report(hub, entry, of).await, kind, name).clone()
}

fn set(world: &World, name: &str, files: &[(&str, &str)]) -> (Service, Entry) {
    let service = Service::new(&world.hub, name, files);
    let entry = world.hub.set(service.entry());
    (service, entry)
}

#[tokio::test]
async fn a_deployment_is_explained_by_its_worst_pod() {
    let world = world().await;
    let place = world.hub.place("pulls");
    let client = world.client().await;
    let (_, entry) = set(world, "pulls", &[("a.yaml", &workload("Deployment", "web", 2))]);
    let (pods, names) = pods(&client, &place, "web", 2).await;
    for name in &names {
        set_status(&pods, name, pulls()).await;
    }
    let begun = Instant::now();
    let expected = format!(
        "0 of 2 replicas available; Pod {}: container main: ImagePullBackOff: Back-off pulling image \"x\"; 1 more pod is not ready",
        names[0]
    );
    let found = said(&world.hub, &entry, "Deployment", "web", &expected).await;
    eprintln!("named after {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(
        (found.sync, found.health),
        (SyncState::Synced, Health::InProgress),
        "{found:?}"
    );

    // The state of the other pod is worse.
    set_status(&pods, &names[1], loops()).await;
    let expected = format!(
        "Pod {}: container main: CrashLoopBackOff, exit code 137 (OOMKilled); 1 more pod",
        names[1]
    );
    let found = said(&world.hub, &entry, "Deployment", "web", &expected).await;
    assert!(!found.message.contains("hunter2"), "{}", found.message);

    for name in &names {
        set_status(&pods, name, ready()).await;
    }
    let found = healthy(&world.hub, &entry, "Deployment", "web").await;
    assert_eq!(found.message, "");
}

#[tokio::test]
async fn what_a_quota_keeps_from_being_made_is_named() {
    let world = world().await;
    let place = world.hub.place("quota");
    let client = world.client().await;
    create(&client, "", "v1", "Namespace", "", json!({"metadata": {"name": place}})).await;
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    create(&client, "", "v1", "ResourceQuota", &place, none).await;
    let quotas = api(&client, "", "v1", "ResourceQuota", &place);
    wait_for("the quota to count", PATIENCE, || async {
        Ok(quotas.get("none").await?.data["status"]["hard"]
            .is_object()
            .then_some(()))
    })
    .await
    .unwrap();
    let (web, db) = (workload("Deployment", "web", 1), workload("StatefulSet", "db", 1));
    let (_, entry) = set(world, "quota", &[("a.yaml", &web), ("b.yaml", &db)]);
    let found = said(&world.hub, &entry, "Deployment", "web", "exceeded quota: none").await;
    assert!(
        found.message.contains("ReplicaSet web-") && found.message.contains("FailedCreate"),
        "{}",
        found.message
    );
    // The StatefulSet's controller reports this only as an event.
    let found = said(&world.hub, &entry, "StatefulSet", "db", "exceeded quota: none").await;
    assert!(
        found.message.starts_with("0 of 1 replicas exist; FailedCreate: "),
        "{}",
        found.message
    );
}

#[tokio::test]
async fn what_an_account_may_not_read_is_said_and_fails_nothing() {
    let world = world().await;
    let place = world.hub.place("narrow");
    let client = world.client().await;
    create(&client, "", "v1", "Namespace", "", json!({"metadata": {"name": place}})).await;
    create(
        &client,
        "",
        "v1",
        "ServiceAccount",
        &place,
        json!({"metadata": {"name": "deployer"}}),
    )
    .await;
    let role = json!({"metadata": {"name": "deployer"}, "rules": [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]}]});
    create(&client, "rbac.authorization.k8s.io", "v1", "Role", &place, role).await;
    let binding = json!({"metadata": {"name": "deployer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "deployer"},
        "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": place}]});
    create(
        &client,
        "rbac.authorization.k8s.io",
        "v1",
        "RoleBinding",
        &place,
        binding,
    )
    .await;
    let mut service = Service::new(&world.hub, "narrow", &[("a.yaml", &workload("Deployment", "web", 1))]);
    service.deployment.ceiling.service_account = ServiceAccount {
        namespace: place,
        name: "deployer".into(),
    };
    let entry = world.hub.set(service.entry());
    let found = said(&world.hub, &entry, "Deployment", "web", "why can't be told: Forbidden").await;
    assert_eq!(
        (found.sync, found.health),
        (SyncState::Synced, Health::InProgress),
        "{found:?}"
    );
    assert!(found.message.contains("replicasets"), "{}", found.message);
    outcome(&world.hub, &entry, Outcome::Applied).await;
}

#[tokio::test]
async fn a_custom_resource_is_waited_for_until_its_controller_has_seen_it() {
    let world = world().await;
    let place = world.hub.place("seen");
    let client = world.client().await;
    let group = world.hub.group("seen");
    define(&client, &group, "Boat").await;
    let (boat, next) = (custom(&group, "Boat", "boat"), in_next_wave("next"));
    let (service, entry) = set(world, "seen", &[("a.yaml", &boat), ("b.yaml", &next)]);
    let found = said(&world.hub, &entry, "Boat", "boat", UNSEEN).await;
    assert_eq!(found.health, Health::InProgress);
    let waits = report(&world.hub, &entry, |r| {
        r.outcome == Outcome::Applying && r.message.contains("wave 1 has not begun")
    })
    .await;
    assert_eq!(object(&waits, "ConfigMap", "next").sync, SyncState::Waiting);

    set_status(
        &api(&client, &group, "v1", "Boat", &place),
        "boat",
        json!({"observedGeneration": 1}),
    )
    .await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    // The agent did not go on because a time limit passed.
    let is_given_up = |report: &ServiceReport| report.objects.iter().any(|object| object.message == NEVER_SEEN);
    assert!(!world.hub.history(service.uid()).iter().any(is_given_up));
}

#[tokio::test]
async fn a_custom_resource_is_explained_by_the_pods_of_what_it_owns() {
    let world = world().await;
    let place = world.hub.place("owns");
    let client = world.client().await;
    let group = world.hub.group("owns");
    define(&client, &group, "Database").await;
    let (_, entry) = set(world, "owns", &[("a.yaml", &custom(&group, "Database", "main"))]);
    let databases = api(&client, &group, "v1", "Database", &place);
    let uid = uid_of(&databases, "main").await;
    let not_ready =
        json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Starting", "message": "1 of 2 parts"}]});
    set_status(&databases, "main", not_ready).await;
    let owner = json!([{"apiVersion": format!("{group}/v1"), "kind": "Database", "name": "main", "uid": uid}]);
    for (name, owners) in [("data", owner), ("foreign", json!([]))] {
        let labels = json!({"app": name});
        let template = json!({"metadata": {"labels": labels}, "spec": {"schedulerName": NOBODY, "containers": [{"name": "main", "image": "x"}]}});
        let deployment = json!({"metadata": {"name": name, "ownerReferences": owners},
            "spec": {"selector": {"matchLabels": labels}, "template": template}});
        create(&client, "apps", "v1", "Deployment", &place, deployment).await;
        let (pods, names) = pods(&client, &place, name, 1).await;
        set_status(&pods, &names[0], if name == "data" { pulls() } else { loops() }).await;
    }
    let found = said(&world.hub, &entry, "Database", "main", "ImagePullBackOff").await;
    assert!(
        found
            .message
            .starts_with("Starting: 1 of 2 parts; Deployment data, Pod data-"),
        "{}",
        found.message
    );
    assert!(!found.message.contains("foreign"), "{}", found.message);
}

#[tokio::test]
async fn a_claim_that_waits_for_its_consumer_keeps_nobody_waiting() {
    let world = world().await;
    let client = world.client().await;
    let late = world.hub.place("late");
    let class = json!({"metadata": {"name": late}, "provisioner": "example.com/none", "volumeBindingMode": "WaitForFirstConsumer"});
    create(&client, "storage.k8s.io", "v1", "StorageClass", "", class).await;
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data}}\nspec: {{storageClassName: {late}, \
         accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n"
    );
    let (_, entry) = set(
        world,
        "claims",
        &[("a.yaml", &claim), ("b.yaml", &in_next_wave("next"))],
    );
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    let claim = object(&applied, "PersistentVolumeClaim", "data");
    assert_eq!(
        (claim.health, claim.message.as_str()),
        (Health::Current, "waits for its first consumer")
    );
}
