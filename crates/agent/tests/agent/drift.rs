//! Changes that an API server, its webhooks and its controllers make are no drift: they are not reported, and nothing
//! is sent again.

use std::collections::BTreeMap;

use crate::support::{
    PATIENCE, Service, api, object, outcome, report,
    world::{World, world},
};
use farwater_api::{
    AGENT_NAMESPACE, SERVICE_LABEL,
    apply_options::DriftMode,
    objects::{Outcome, ServiceReport, SyncState},
};
use farwater_fleet::ownership::service_label;
use farwater_testkit::{
    wait_for,
    webhook::{self, Webhook},
};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// A manifest that API servers store in another form.
const WEB: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {sidecar: wanted}}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {creationTimestamp: null, labels: {app: web}}
    spec:
      nodeSelector: null
      schedulerName: nobody
      containers: [{name: web, image: IMAGE, resources: {requests: {cpu: 1000m, memory: 0.5Gi}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
";

const LENGTH: &str = "length: {type: integer}";
const PAINT: &str = "paint: {type: string, default: blue}";
const CREW: &str = "crew: {type: integer, default: 4}";

/// A version of a definition, as a flow mapping. `fields`: those of `spec`.
fn version(name: &str, is_stored: bool, fields: &[&str]) -> String {
    const VERSION: &str = "{name: NAME, served: true, storage: STORED, schema: {openAPIV3Schema: \
                           {type: object, properties: {spec: {type: object, properties: {FIELDS}}}}}}";
    let fields = fields.join(", ");
    VERSION
        .replace("NAME", name)
        .replace("STORED", &is_stored.to_string())
        .replace("FIELDS", &fields)
}

fn definition(group: &str, versions: &[String]) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: boats.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{kind: Boat, plural: boats}}
  versions: [{}]
",
        versions.join(", ")
    )
}

fn boat(group: &str, version: &str, spec: &str) -> String {
    format!("apiVersion: {group}/{version}\nkind: Boat\nmetadata: {{name: ark}}\nspec: {{{spec}}}\n")
}

/// Adds a container to a Deployment's pods, once.
fn inject(deployment: &Value) -> Option<Value> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
    let is_there = containers.iter().any(|container| container["name"] == "proxy");
    let proxy = json!({"name": "proxy", "image": "proxy"});
    (!is_there).then(|| json!([{"op": "add", "path": "/spec/template/spec/containers/-", "value": proxy}]))
}

fn containers(deployment: &DynamicObject) -> Vec<&str> {
    let containers = deployment.data["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap();
    containers
        .iter()
        .map(|container| container["name"].as_str().unwrap())
        .collect()
}

/// Makes the API server call `inject` for Deployments that want it. It is in effect when this returns.
async fn install(client: &Client, name: &str) -> Webhook {
    let webhook = Webhook::start(inject).await.unwrap();
    let configurations = api(
        client,
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "",
    );
    let resource = ["apps", "v1", "deployments"];
    let configuration = webhook::configuration(name, &webhook.client(), resource, "sidecar");
    configurations
        .create(&PostParams::default(), &serde_json::from_value(configuration).unwrap())
        .await
        .unwrap();
    let (labels, pod) = (
        json!({"app": "probe"}),
        json!({"containers": [{"name": "web", "image": "x"}]}),
    );
    let probe = json!({
        "metadata": {"name": "probe", "labels": {"sidecar": "wanted"}},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    });
    let probe: DynamicObject = serde_json::from_value(probe).unwrap();
    let deployments = api(client, "apps", "v1", "Deployment", "default");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait_for("the webhook to be asked", PATIENCE, || async {
        let made = deployments.create(&dry, &probe).await?;
        Ok((containers(&made).len() == 2).then_some(()))
    })
    .await
    .unwrap();
    webhook
}

/// The resourceVersion of each object of a service and of each of the agent's records about it, and how often
/// Deployments and Boats were sent.
type Written = (BTreeMap<String, String>, u64);

async fn written(client: &Client, service: &Service, boats: &str) -> Written {
    let label = service_label(service.uid());
    let kinds = [
        ("apps", "Deployment", ""),
        ("", "Service", ""),
        ("apiextensions.k8s.io", "CustomResourceDefinition", ""),
        (boats, "Boat", ""),
        ("", "Secret", AGENT_NAMESPACE),
    ];
    let mut versions = BTreeMap::new();
    for (group, kind, namespace) in kinds {
        let found = api(client, group, "v1", kind, namespace)
            .list(&ListParams::default())
            .await
            .unwrap();
        for DynamicObject { metadata, .. } in found {
            let name = metadata.name.unwrap();
            let is_ours = metadata.labels.unwrap_or_default().get(SERVICE_LABEL) == Some(&label);
            if is_ours || name.contains(&label) {
                versions.insert(format!("{kind} {name}"), metadata.resource_version.unwrap());
            }
        }
    }
    (versions, applies(client, "apps").await + applies(client, boats).await)
}

/// How often objects of a group have been applied so far.
async fn applies(client: &Client, group: &str) -> u64 {
    let metrics = client
        .request_text(http::Request::get("/metrics").body(Vec::new()).unwrap())
        .await
        .unwrap();
    let counts = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains("verb=\"APPLY\"")
            && line.contains(&format!("group=\"{group}\""))
    };
    metrics
        .lines()
        .filter(counts)
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

/// Waits for some polls. What the agent does by itself has begun by then.
async fn polls(world: &World, count: u64) {
    let before = world.hub.polls();
    wait_for("some polls", PATIENCE, || async {
        Ok((world.hub.polls() >= before + count).then_some(()))
    })
    .await
    .unwrap();
}

/// The state after all controllers have finished.
async fn at_rest(world: &World, client: &Client, service: &Service, boats: &str) -> Written {
    wait_for("all to be at rest", PATIENCE, || async {
        let first = written(client, service, boats).await;
        polls(world, 3).await;
        Ok((written(client, service, boats).await == first).then_some(first))
    })
    .await
    .unwrap()
}

/// Reports about a service's objects since its first apply, except that they are as desired.
fn told(world: &World, service: &Service) -> Vec<String> {
    let history = world.hub.history(service.uid()).into_iter();
    let since = history.skip_while(|report| report.outcome != Outcome::Applied);
    let objects = since
        .flat_map(|report| report.objects)
        .filter(|object| object.sync != SyncState::Synced);
    objects
        .map(|object| format!("{} is {:?}: {}", object.object, object.sync, object.message))
        .collect()
}

#[tokio::test]
async fn what_servers_webhooks_and_autoscalers_change_is_no_drift_and_is_not_sent_again() {
    let world = world().await;
    let place = world.hub.place("defaulted");
    let client = world.client().await;
    let _webhook = install(&client, &world.hub.group("inject")).await;
    let group = &world.hub.group("drift");
    let definition = definition(group, &[version("v1", true, &[LENGTH, PAINT, CREW])]);
    let (web, boat) = (
        WEB.replace("IMAGE", "one"),
        boat(group, "v1", "length: 300, paint: null"),
    );
    let files = [("a.yaml", web.as_str()), ("b.yaml", &definition), ("c.yaml", &boat)];
    let service = world.applied("defaulted", &files).await;
    let deployments = api(&client, "apps", "v1", "Deployment", &place);
    let autoscaler = PatchParams {
        field_manager: Some("horizontal-pod-autoscaler".into()),
        ..PatchParams::default()
    };
    deployments
        .patch_scale("web", &autoscaler, &Patch::Merge(json!({"spec": {"replicas": 3}})))
        .await
        .unwrap();

    let before = at_rest(world, &client, &service, group).await;
    let live = deployments.get("web").await.unwrap();
    assert_eq!(
        (containers(&live), &live.data["spec"]["replicas"]),
        (vec!["web", "proxy"], &json!(3))
    );
    let requests = &live.data["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": "1", "memory": "512Mi"}));
    let boats = api(&client, group, "v1", "Boat", &place);
    assert_eq!(
        boats.get("ark").await.unwrap().data["spec"],
        json!({"length": 300, "paint": "blue", "crew": 4})
    );
    assert_eq!(before.0.len(), 5, "four objects and an inventory: {before:?}");

    polls(world, 5).await;
    assert_eq!(written(&client, &service, group).await, before);
    let reports = world.hub.history(service.uid()).len();
    world.restart_agent();
    wait_for("a report of the new agent", PATIENCE, || async {
        let since = world.hub.history(service.uid()).split_off(reports);
        Ok(since
            .iter()
            .any(|report| report.outcome == Outcome::Applied)
            .then_some(()))
    })
    .await
    .unwrap();
    polls(world, 5).await;
    assert_eq!(written(&client, &service, group).await, before);
    let told = told(world, &service);
    assert!(told.is_empty(), "{told:#?}");

    // The next version leaves the fields of others as they are.
    let web = WEB.replace("IMAGE", "two");
    let files = [("a.yaml", web.as_str()), ("b.yaml", &definition), ("c.yaml", &boat)];
    let entry = world.hub.set(service.with(&world.hub, &files).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let live = deployments.get("web").await.unwrap();
    assert_eq!(live.data["spec"]["template"]["spec"]["containers"][0]["image"], "two");
    assert_eq!(
        (containers(&live), &live.data["spec"]["replicas"]),
        (vec!["web", "proxy"], &json!(3))
    );
}

#[tokio::test]
async fn a_new_default_of_a_definition_has_no_object_sent_again_and_is_no_drift() {
    let world = world().await;
    let place = world.hub.place("upgraded");
    let client = world.client().await;
    let group = &world.hub.group("upgraded");
    let plain = definition(group, &[version("v1", true, &[LENGTH])]);
    let painted = definition(group, &[version("v1", true, &[LENGTH, PAINT])]);
    let ark = boat(group, "v1", "length: 300");
    let mut service = Service::new(&world.hub, "upgraded", &[("a.yaml", &plain), ("b.yaml", &ark)]);
    // A dry run then finds the differences, and the agent reports them.
    service.deployment.options.drift = DriftMode::Report;
    let entry = world.hub.set(service.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let boats = api(&client, group, "v1", "Boat", &place);
    let made = boats.get("ark").await.unwrap().metadata.resource_version;
    let sent = applies(&client, group).await;

    let upgraded = service.with(&world.hub, &[("a.yaml", &painted), ("b.yaml", &ark)]);
    let entry = world.hub.set(upgraded.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    wait_for("the default to be there", PATIENCE, || async {
        Ok((boats.get("ark").await?.data["spec"] == json!({"length": 300, "paint": "blue"})).then_some(()))
    })
    .await
    .unwrap();
    polls(world, 5).await;
    assert_eq!(boats.get("ark").await.unwrap().metadata.resource_version, made);
    assert_eq!(applies(&client, group).await, sent);
    let told = told(world, &service);
    assert!(told.is_empty(), "{told:#?}");

    let somebody = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    boats
        .patch("ark", &somebody, &Patch::Merge(json!({"spec": {"length": 301}})))
        .await
        .unwrap();
    // An agent that was just started reports no difference.
    let ark_is =
        |r: &ServiceReport, sync: SyncState| r.outcome == Outcome::Applied && object(r, "Boat", "ark").sync == sync;
    let drifted = report(&world.hub, &entry, |r| ark_is(r, SyncState::Drifted)).await;
    let message = &object(&drifted, "Boat", "ark").message;
    assert!(
        message.contains("others changed it: .spec.length (somebody), last at 20"),
        "{message}"
    );
    assert!(message.contains("; it stays so"), "{message}");

    let ark = boat(group, "v1", "length: 302, paint: red");
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &painted), ("b.yaml", &ark)])
            .entry(),
    );
    report(&world.hub, &entry, |r| ark_is(r, SyncState::Synced)).await;
    assert_eq!(
        boats.get("ark").await.unwrap().data["spec"],
        json!({"length": 302, "paint": "red"})
    );
}

/// An API server compares an apply with the last one in the version of that time, which doesn't have this field.
#[tokio::test]
async fn an_object_follows_its_definition_to_a_version_with_a_new_field() {
    let world = world().await;
    let place = world.hub.place("versioned");
    let client = world.client().await;
    let group = &world.hub.group("versioned");
    let old = definition(group, &[version("v1", true, &[LENGTH])]);
    let new = definition(
        group,
        &[version("v1", false, &[LENGTH]), version("v2", true, &[LENGTH, PAINT])],
    );
    let ark = boat(group, "v1", "length: 300");
    let service = world.applied("versioned", &[("a.yaml", &old), ("b.yaml", &ark)]).await;
    let uid = api(&client, group, "v1", "Boat", &place)
        .get("ark")
        .await
        .unwrap()
        .metadata
        .uid;

    let boats: Api<DynamicObject> = api(&client, group, "v2", "Boat", &place);
    for (length, spec) in [(300, "length: 300, paint: red"), (301, "length: 301, paint: red")] {
        let ark = boat(group, "v2", spec);
        let entry = world
            .hub
            .set(service.with(&world.hub, &[("a.yaml", &new), ("b.yaml", &ark)]).entry());
        outcome(&world.hub, &entry, Outcome::Applied).await;
        let live = boats.get("ark").await.unwrap();
        assert_eq!(live.data["spec"], json!({"length": length, "paint": "red"}));
        assert_eq!(live.metadata.uid, uid);
    }
    let sent = applies(&client, group).await;
    polls(world, 5).await;
    assert_eq!(applies(&client, group).await, sent);
}

#[tokio::test]
async fn who_keeps_an_object_in_an_older_version_is_named_and_keeps_its_fields() {
    let world = world().await;
    let place = world.hub.place("shared-boats");
    let client = world.client().await;
    let group = &world.hub.group("shared");
    let old = definition(group, &[version("v1", true, &[LENGTH, CREW])]);
    let new = [
        version("v1", false, &[LENGTH, CREW]),
        version("v2", true, &[LENGTH, CREW, PAINT]),
    ];
    let ark = boat(group, "v1", "length: 300");
    let service = world
        .applied("shared-boats", &[("a.yaml", &old), ("b.yaml", &ark)])
        .await;
    let boats: Api<DynamicObject> = api(&client, group, "v1", "Boat", &place);
    let somebody = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    boats
        .patch("ark", &somebody, &Patch::Merge(json!({"spec": {"crew": 7}})))
        .await
        .unwrap();

    let files = [
        ("a.yaml", definition(group, &new)),
        ("b.yaml", boat(group, "v2", "length: 300, paint: red")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let entry = world.hub.set(service.with(&world.hub, &files).entry());
    let named = format!("somebody in {group}/v1");
    report(&world.hub, &entry, |r| {
        r.objects.iter().any(|object| object.message.contains(&named))
    })
    .await;
    let entries = boats.get("ark").await.unwrap().metadata.managed_fields.unwrap();
    let versions: Vec<_> = entries
        .iter()
        .map(|entry| entry.api_version.as_deref().unwrap_or_default())
        .collect();
    assert_eq!(versions, [format!("{group}/v1"), format!("{group}/v1")], "{entries:#?}");
}
