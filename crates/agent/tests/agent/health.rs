//! Why objects are not healthy, on a real API server with the real controllers. No pod runs: what a kubelet would say of one the
//! tests say.

use std::time::{Duration, Instant};

use crate::support::{
    FakeHub, PATIENCE, Service, agent, api,
    custom::{create, custom, define, in_next_wave, set_status},
    object, outcome,
    pods::uid_of,
    report,
    world::{World, world_without_nodes},
};
use farwater_api::{
    objects::{Health, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::{Entry, ServiceAccount},
};
use farwater_testkit::{Plane, PlaneOptions, wait_for};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};

fn workload(kind: &str, name: &str, replicas: u32) -> String {
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
      containers: [{{name: main, image: x}}]
"
    )
}

/// Names of the pods with this label, once there are so many.
async fn pods(client: &Client, namespace: &str, app: &str, count: usize) -> (Api<DynamicObject>, Vec<String>) {
    let pods = api(client, "", "v1", "Pod", namespace);
    let selector = ListParams::default().labels(&format!("app={app}"));
    let what = format!("{count} pods of {app}");
    let named = wait_for(&what, PATIENCE, || async {
        let items = pods.list(&selector).await?.items;
        Ok((items.len() == count).then(|| items.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()))
    });
    let mut named = named.await.unwrap();
    named.sort();
    (pods, named)
}

fn container(state: Value, last: Value) -> Value {
    json!([{"name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 3, "state": state, "lastState": last}])
}

fn pulls() -> Value {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}});
    json!({"phase": "Pending", "containerStatuses": container(waiting, json!({}))})
}

fn loops() -> Value {
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}});
    let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "hunter2"}});
    json!({"phase": "Running", "containerStatuses": container(waiting, killed)})
}

fn ready() -> Value {
    json!({"phase": "Running", "containerStatuses": null,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
}

/// Waits until this is said of an object; what else is.
async fn said(hub: &FakeHub, entry: &Entry, kind: &str, name: &str, text: &str) -> ObjectReport {
    let of = |report: &ServiceReport| {
        report.objects.iter().any(|o| o.object.kind == kind && o.object.name == name && o.message.contains(text))
    };
    object(&report(hub, entry, of).await, kind, name).clone()
}

async fn healthy(hub: &FakeHub, entry: &Entry, kind: &str, name: &str) -> ObjectReport {
    let of = |report: &ServiceReport| {
        report.objects.iter().any(|o| o.object.kind == kind && o.object.name == name && o.health == Health::Current)
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
    let world = world_without_nodes().await;
    let client = world.client().await;
    let (_, entry) = set(world, "pulls", &[("a.yaml", &workload("Deployment", "web", 2))]);
    let (pods, names) = pods(&client, "pulls", "web", 2).await;
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
    assert_eq!((found.sync, found.health), (SyncState::Synced, Health::InProgress), "{found:?}");

    // What the other one does is worse.
    set_status(&pods, &names[1], loops()).await;
    let expected = format!("Pod {}: container main: CrashLoopBackOff, exit code 137 (OOMKilled); 1 more pod", names[1]);
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
    let world = world_without_nodes().await;
    let client = world.client().await;
    create(&client, "", "v1", "Namespace", "", json!({"metadata": {"name": "quota"}})).await;
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    create(&client, "", "v1", "ResourceQuota", "quota", none).await;
    let quotas = api(&client, "", "v1", "ResourceQuota", "quota");
    wait_for("the quota to count", PATIENCE, || async {
        Ok(quotas.get("none").await?.data["status"]["hard"].is_object().then_some(()))
    })
    .await
    .unwrap();
    let (web, db) = (workload("Deployment", "web", 1), workload("StatefulSet", "db", 1));
    let (_, entry) = set(world, "quota", &[("a.yaml", &web), ("b.yaml", &db)]);
    let found = said(&world.hub, &entry, "Deployment", "web", "exceeded quota: none").await;
    assert!(found.message.contains("ReplicaSet web-") && found.message.contains("FailedCreate"), "{}", found.message);
    // Its controller tells that in an event alone.
    let found = said(&world.hub, &entry, "StatefulSet", "db", "exceeded quota: none").await;
    assert!(found.message.starts_with("0 of 1 replicas exist; FailedCreate: "), "{}", found.message);
}

#[tokio::test]
async fn what_an_account_may_not_read_is_said_and_fails_nothing() {
    let world = world_without_nodes().await;
    let client = world.client().await;
    create(&client, "", "v1", "Namespace", "", json!({"metadata": {"name": "narrow"}})).await;
    create(&client, "", "v1", "ServiceAccount", "narrow", json!({"metadata": {"name": "deployer"}})).await;
    let role = json!({"metadata": {"name": "deployer"}, "rules": [
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]}]});
    create(&client, "rbac.authorization.k8s.io", "v1", "Role", "narrow", role).await;
    let binding = json!({"metadata": {"name": "deployer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "deployer"},
        "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": "narrow"}]});
    create(&client, "rbac.authorization.k8s.io", "v1", "RoleBinding", "narrow", binding).await;
    let mut service = Service::new(&world.hub, "narrow", &[("a.yaml", &workload("Deployment", "web", 1))]);
    service.deployment.ceiling.service_account = ServiceAccount { namespace: "narrow".into(), name: "deployer".into() };
    let entry = world.hub.set(service.entry());
    let found = said(&world.hub, &entry, "Deployment", "web", "why can't be told: Forbidden").await;
    assert_eq!((found.sync, found.health), (SyncState::Synced, Health::InProgress), "{found:?}");
    assert!(found.message.contains("replicasets"), "{}", found.message);
    outcome(&world.hub, &entry, Outcome::Applied).await;
}

#[tokio::test]
async fn a_custom_resource_is_waited_for_until_its_controller_has_seen_it_and_not_for_ever() {
    let world = world_without_nodes().await;
    let client = world.client().await;
    define(&client, "seen.example.com", "Boat").await;
    let (boat, next) = (custom("seen.example.com", "Boat", "boat"), in_next_wave("next"));
    let (_, entry) = set(world, "seen", &[("a.yaml", &boat), ("b.yaml", &next)]);
    let begun = Instant::now();
    let found = said(&world.hub, &entry, "Boat", "boat", "no controller has looked at it yet").await;
    assert_eq!(found.health, Health::InProgress);
    let waits =
        report(&world.hub, &entry, |r| r.outcome == Outcome::Applying && r.message.contains("wave 1 has not begun"))
            .await;
    assert_eq!(object(&waits, "ConfigMap", "next").sync, SyncState::Waiting);

    let (_, alone) = set(
        world,
        "unseen",
        &[("a.yaml", &custom("seen.example.com", "Boat", "alone")), ("b.yaml", &in_next_wave("next"))],
    );
    let created = Instant::now();
    said(&world.hub, &alone, "Boat", "alone", "no controller has looked at it yet").await;

    // A controller comes to the one, and nobody to the other.
    set_status(&api(&client, "seen.example.com", "v1", "Boat", "seen"), "boat", json!({"observedGeneration": 1})).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(begun.elapsed() < Duration::from_secs(50), "it was the time that let it go on");
    let given_up = wait_for("what nobody looks at to be taken as it is", 2 * PATIENCE, || async {
        let report = world.hub.report(&alone.service.uid).filter(|r| r.outcome == Outcome::Applied);
        Ok(report.map(|report| object(&report, "Boat", "alone").clone()))
    });
    let given_up = given_up.await.unwrap();
    assert_eq!((given_up.health, given_up.message.as_str()), (Health::Current, "no controller has written a status"));
    eprintln!("waited {:.0} s for nobody", created.elapsed().as_secs_f64());
    assert!(created.elapsed() > Duration::from_secs(50));
}

#[tokio::test]
async fn a_custom_resource_is_explained_by_the_pods_of_what_it_owns() {
    let world = world_without_nodes().await;
    let client = world.client().await;
    define(&client, "owns.example.com", "Database").await;
    let (_, entry) = set(world, "owns", &[("a.yaml", &custom("owns.example.com", "Database", "main"))]);
    let databases = api(&client, "owns.example.com", "v1", "Database", "owns");
    let uid = uid_of(&databases, "main").await;
    let not_ready =
        json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Starting", "message": "1 of 2 parts"}]});
    set_status(&databases, "main", not_ready).await;
    let owner = json!([{"apiVersion": "owns.example.com/v1", "kind": "Database", "name": "main", "uid": uid}]);
    for (name, owners) in [("data", owner), ("foreign", json!([]))] {
        let labels = json!({"app": name});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x"}]}});
        let deployment = json!({"metadata": {"name": name, "ownerReferences": owners},
            "spec": {"selector": {"matchLabels": labels}, "template": template}});
        create(&client, "apps", "v1", "Deployment", "owns", deployment).await;
        let (pods, names) = pods(&client, "owns", name, 1).await;
        set_status(&pods, &names[0], if name == "data" { pulls() } else { loops() }).await;
    }
    let found = said(&world.hub, &entry, "Database", "main", "ImagePullBackOff").await;
    assert!(found.message.starts_with("Starting: 1 of 2 parts; Deployment data, Pod data-"), "{}", found.message);
    assert!(!found.message.contains("foreign"), "{}", found.message);
}

#[tokio::test]
async fn a_claim_that_waits_for_its_consumer_keeps_nobody_waiting() {
    let world = world_without_nodes().await;
    let client = world.client().await;
    let class = json!({"metadata": {"name": "late"}, "provisioner": "example.com/none", "volumeBindingMode": "WaitForFirstConsumer"});
    create(&client, "storage.k8s.io", "v1", "StorageClass", "", class).await;
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {storageClassName: late, \
                 accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
    let (_, entry) = set(world, "claims", &[("a.yaml", claim), ("b.yaml", &in_next_wave("next"))]);
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    let claim = object(&applied, "PersistentVolumeClaim", "data");
    assert_eq!((claim.health, claim.message.as_str()), (Health::Current, "waits for its first consumer"));
}

/// How often pods, ReplicaSets and events were listed so far.
async fn lists(plane: &Plane) -> u64 {
    let client = plane.client().await.unwrap();
    let metrics = client.request_text(http::Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap();
    let counts = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains("verb=\"LIST\"")
            && ["pods", "replicasets", "events"].iter().any(|kind| line.contains(&format!("resource=\"{kind}\"")))
    };
    metrics.lines().filter(counts).map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn reasons_are_asked_for_rarely_and_not_at_all_when_all_is_well() {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await.unwrap();
    let hub = FakeHub::start();
    let dir = tempfile::tempdir().unwrap();
    let _agent = agent(&hub, plane.kubeconfig(), &dir.path().join("state"), &dir.path().join("agent.log"), true);
    let client = plane.client().await.unwrap();
    let service = Service::new(&hub, "rarely", &[("a.yaml", &workload("StatefulSet", "db", 1))]);
    let entry = hub.set(service.entry());
    let (pods, names) = pods(&client, "rarely", "db", 1).await;
    set_status(&pods, &names[0], pulls()).await;
    said(&hub, &entry, "StatefulSet", "db", "Pod db-0: container main: ImagePullBackOff").await;
    let before = lists(&plane).await;
    // Long enough for looks after 5 and 10 more seconds.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let looks = lists(&plane).await - before;
    eprintln!("{looks} lists in 20 s");
    assert!((1..=3).contains(&looks), "{looks} lists in 20 s");

    set_status(&pods, &names[0], ready()).await;
    healthy(&hub, &entry, "StatefulSet", "db").await;
    let (before, polls) = (lists(&plane).await, hub.polls());
    wait_for("ten seconds of polls", PATIENCE, || async { Ok((hub.polls() >= polls + 10).then_some(())) })
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(lists(&plane).await, before);
}
