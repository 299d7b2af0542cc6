//! Waves, options and order of deletes on a real API server, with one agent for all tests.

use std::collections::BTreeMap;

use crate::support::{
    PATIENCE, Service, api, config_map, config_maps, gone, object, outcome, report, states, value,
    world::{World, world},
};
use farwater_api::{
    apply_options::{AdoptPolicy, ConflictPolicy, DriftMode, IgnoreDifference},
    objects::{Health, Outcome, ServiceReport, SyncState},
    protocol::Entry,
    service_deployment::DeletionPolicy,
};
use farwater_testkit::{
    ports, wait_for,
    webhook::{self, Webhook},
};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// A ConfigMap with annotations, as flow mappings without braces.
fn annotated(name: &str, value: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\ndata: {{value: \"{value}\"}}\n"
    )
}

fn in_wave(name: &str, wave: i32) -> String {
    annotated(name, "1", &format!("farwater.dev/wave: '{wave}'"))
}

/// Defines a kind whose health follows its `Ready` condition. Its status is written like any other field.
async fn gates(world: &World, group: &str) -> Client {
    let client = world.client().await;
    let definition = json!({
        "metadata": {"name": format!("gates.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": "Gate", "plural": "gates"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let definitions = api(&client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "");
    definitions
        .create(&PostParams::default(), &serde_json::from_value(definition).unwrap())
        .await
        .unwrap();
    wait_for("the kind to be served", PATIENCE, || async {
        Ok(api(&client, group, "v1", "Gate", "default")
            .list(&Default::default())
            .await
            .is_ok()
            .then_some(()))
    })
    .await
    .unwrap();
    client
}

fn status(ready: bool) -> Value {
    json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "reason": "Told", "message": "by the test"}]})
}

fn gate(group: &str, ready: Option<bool>) -> String {
    let status = ready.map_or_else(String::new, |ready| format!("status: {}\n", status(ready)));
    format!("apiVersion: {group}/v1\nkind: Gate\nmetadata: {{name: gate}}\n{status}")
}

async fn namespace(client: &Client, name: &str) {
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    api(client, "", "v1", "Namespace", "")
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
}

async fn write(api: &Api<DynamicObject>, name: &str, patch: Value) {
    api.patch(
        name,
        &PatchParams {
            field_manager: Some("somebody".into()),
            ..PatchParams::default()
        },
        &Patch::Merge(patch),
    )
    .await
    .unwrap();
}

fn outcomes(world: &World, entry: &Entry) -> Vec<Outcome> {
    let history = world.hub.history(&entry.service.uid);
    history
        .iter()
        .filter(|r| r.entry == entry.digest())
        .map(|r| r.outcome)
        .collect()
}

async fn superseded(world: &World, entry: &Entry) {
    let waited = wait_for("the old attempt to be superseded", PATIENCE, || async {
        Ok(outcomes(world, entry).contains(&Outcome::Superseded).then_some(()))
    })
    .await;
    waited.unwrap_or_else(|e| panic!("{e:#}: {:?}", outcomes(world, entry)));
    assert!(
        !outcomes(world, entry).contains(&Outcome::Failed),
        "{:?}",
        outcomes(world, entry)
    );
}

fn message<'a>(report: &'a ServiceReport, kind: &str, name: &str) -> &'a str {
    &object(report, kind, name).message
}

#[tokio::test]
async fn a_wave_begins_when_all_before_it_is_healthy() {
    let world = world().await;
    let place = world.hub.place("waves");
    let group = world.hub.group("one");
    let client = gates(world, &group).await;
    namespace(&client, &place).await;
    let gates = api(&client, &group, "v1", "Gate", &place);
    let closed = json!({"apiVersion": format!("{group}/v1"), "kind": "Gate", "metadata": {"name": "gate"}, "status": status(false)});
    gates
        .create(&PostParams::default(), &serde_json::from_value(closed).unwrap())
        .await
        .unwrap();

    let (now, next, last) = (config_map("now", "1"), in_wave("next", 1), in_wave("last", 2));
    let files = [
        ("a.yaml", gate(&group, None)),
        ("b.yaml", now),
        ("c.yaml", next),
        ("d.yaml", last),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let service = Service::new(&world.hub, "waves", &files);
    let entry = world.hub.set(service.entry());
    let waiting = report(&world.hub, &entry, |r| r.objects.iter().any(|o| o.waits_for.is_some())).await;
    assert_eq!(waiting.outcome, Outcome::Applying);
    let waits = format!("wave 1 has not begun, 2 objects wait: Gate.{group} {place}/gate is not ready");
    assert!(waiting.message.contains(&waits), "{waiting:#?}");
    assert_eq!(object(&waiting, "ConfigMap", "now").sync, SyncState::Synced);
    let next = object(&waiting, "ConfigMap", "next");
    assert_eq!(
        (next.sync, next.waits_for.as_ref().unwrap().kind.as_str()),
        (SyncState::Waiting, "Gate")
    );
    let maps = config_maps(&client, &place);
    assert!(maps.get_opt("next").await.unwrap().is_none() && maps.get_opt("last").await.unwrap().is_none());

    // Existing objects are repaired meanwhile.
    write(&maps, "now", json!({"data": {"value": "x"}})).await;
    value(&maps, "now", "1").await;
    assert!(maps.get_opt("next").await.unwrap().is_none());

    write(&gates, "gate", json!({"status": status(true)})).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(maps.get_opt("next").await.unwrap().is_some() && maps.get_opt("last").await.unwrap().is_some());

    // Drift in a later wave is repaired, although an earlier one is not healthy.
    write(&gates, "gate", json!({"status": status(false)})).await;
    report(&world.hub, &entry, |r| {
        object(r, "Gate", "gate").health == Health::InProgress
    })
    .await;
    write(&maps, "next", json!({"data": {"value": "x"}})).await;
    value(&maps, "next", "1").await;
}

#[tokio::test]
async fn a_version_that_never_becomes_healthy_is_replaced_by_its_fix() {
    let world = world().await;
    let group = world.hub.group("two");
    gates(world, &group).await;
    let (broken, fixed) = (gate(&group, Some(false)), gate(&group, Some(true)));
    let later = in_wave("later", 1);
    let service = Service::new(&world.hub, "stuck", &[("a.yaml", &broken), ("b.yaml", &later)]);
    let first = world.hub.set(service.entry());
    report(&world.hub, &first, |r| r.objects.iter().any(|o| o.waits_for.is_some())).await;
    let second = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &fixed), ("b.yaml", &later)])
            .entry(),
    );
    outcome(&world.hub, &second, Outcome::Applied).await;
    superseded(world, &first).await;
    // The same if nothing but health is waited for.
    let third = world.hub.set(service.with(&world.hub, &[("a.yaml", &broken)]).entry());
    report(&world.hub, &third, |r| {
        r.outcome == Outcome::Applied && object(r, "Gate", "gate").health == Health::InProgress
    })
    .await;
    let fourth = world.hub.set(service.with(&world.hub, &[("a.yaml", &fixed)]).entry());
    report(&world.hub, &fourth, |r| {
        r.outcome == Outcome::Applied && object(r, "Gate", "gate").health == Health::Current
    })
    .await;
    superseded(world, &third).await;
    assert!(
        !outcomes(world, &second).contains(&Outcome::Superseded),
        "one that was healthy has come to its end"
    );
}

#[tokio::test]
async fn a_refused_object_holds_later_waves_and_nothing_of_its_own() {
    let world = world().await;
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 123456}]}\n";
    let (fine, later) = (config_map("fine", "1"), in_wave("later", 5));
    let mistyped = annotated("typo", "1", "farwater.dev/wave: third");
    let files = [("a.yaml", bad), ("b.yaml", &fine), ("c.yaml", &later)];
    let service = Service::new(&world.hub, "partwave", &files);
    let entry = world.hub.set(service.entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(object(&failed, "ConfigMap", "fine").sync, SyncState::Synced);
    let held = object(&failed, "ConfigMap", "later");
    assert_eq!(
        (held.sync, held.waits_for.as_ref().unwrap().name.as_str()),
        (SyncState::Waiting, "bad")
    );
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("b.yaml", &fine), ("c.yaml", &later)])
            .entry(),
    );
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("b.yaml", &fine), ("c.yaml", &mistyped)])
            .entry(),
    );
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(message(&failed, "ConfigMap", "typo").contains("farwater.dev/wave is \"third\", and must be an integer"));
}

/// The resourceVersion of each ConfigMap whose name has this prefix.
async fn versions(maps: &Api<DynamicObject>, prefix: &str) -> BTreeMap<String, String> {
    let found = maps.list(&ListParams::default()).await.unwrap().into_iter();
    let versions = found.map(|map| (map.metadata.name.unwrap(), map.metadata.resource_version.unwrap()));
    versions.filter(|(name, _)| name.starts_with(prefix)).collect()
}

#[tokio::test]
async fn a_webhook_that_is_down_and_a_kind_that_is_missing_hold_up_two_of_two_hundred_objects() {
    let world = world().await;
    let place = world.hub.place("most");
    let client = world.client().await;
    let webhooks = api(
        &client,
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "",
    );
    let (name, late_group) = (&world.hub.group("checks"), &world.hub.group("late"));
    let configuration = |client: &Value| webhook::configuration(name, client, ["", "v1", "configmaps"], "checked");
    let nobody = json!({"url": format!("https://127.0.0.1:{}/", ports::free().unwrap())});
    let down = serde_json::from_value(configuration(&nobody)).unwrap();
    webhooks.create(&PostParams::default(), &down).await.unwrap();
    let probe = serde_json::from_value(json!({"metadata": {"name": "probe", "labels": {"checked": "yes"}}})).unwrap();
    let (elsewhere, dry) = (
        config_maps(&client, "default"),
        PostParams {
            dry_run: true,
            ..PostParams::default()
        },
    );
    wait_for("the webhook to be asked", PATIENCE, || async {
        Ok(elsewhere.create(&dry, &probe).await.is_err().then_some(()))
    })
    .await
    .unwrap();

    let fine: String = (0..198)
        .map(|n| format!("---\n{}", config_map(&format!("fine-{n}"), "1")))
        .collect();
    let checked = config_map("checked", "1").replace("{name: checked}", "{name: checked, labels: {checked: 'yes'}}");
    let late = gate(late_group, None);
    let service = Service::new(
        &world.hub,
        "most",
        &[("a.yaml", &fine), ("b.yaml", &checked), ("c.yaml", &late)],
    );
    let entry = world.hub.set(service.entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(states(&failed, SyncState::Synced).len(), 198);
    assert_eq!(states(&failed, SyncState::Waiting), ["gate"]);
    assert!(
        message(&failed, "Gate", "gate").contains("does not serve"),
        "{}",
        message(&failed, "Gate", "gate")
    );
    assert_eq!(states(&failed, SyncState::Refused), ["checked"]);
    let refused = message(&failed, "ConfigMap", "checked");
    assert!(
        refused.contains("failed calling webhook") && refused.contains(name.as_str()),
        "{refused}"
    );
    assert!(
        failed.message.contains("2 of 200 objects not applied"),
        "{}",
        failed.message
    );

    // Both are repaired, which doesn't affect the others.
    let maps = config_maps(&client, &place);
    let before = versions(&maps, "fine-").await;
    let up = Webhook::start(|_| None).await.unwrap();
    let patch = Patch::Merge(configuration(&up.client()));
    webhooks.patch(name, &PatchParams::default(), &patch).await.unwrap();
    gates(world, late_group).await;
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(states(&applied, SyncState::Synced).len(), 200);
    assert_eq!((versions(&maps, "fine-").await, before.len()), (before, 198));
}

#[tokio::test]
async fn deletes_go_in_reverse_and_nothing_before_what_it_holds() {
    let world = world().await;
    let place = world.hub.place("reversed");
    let group = world.hub.group("reverse");
    let definition = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rafts.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Raft, plural: rafts}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
"
    .replace("GROUP", &group);
    let raft =
        format!("apiVersion: {group}/v1\nkind: Raft\nmetadata: {{name: raft, finalizers: [example.com/held]}}\n");
    let (early, late) = (in_wave("early", -1), in_wave("late", 1));
    let files = [
        ("a.yaml", definition.as_str()),
        ("b.yaml", &raft),
        ("c.yaml", &early),
        ("d.yaml", &late),
    ];
    let service = world.applied("reversed", &files).await;
    let entry = world.hub.set(service.removal(DeletionPolicy::Delete, None));
    let held = report(&world.hub, &entry, |r| r.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    let entry = world
        .hub
        .set(service.removal(DeletionPolicy::Delete, Some(held.digest)));
    let waits = |r: &ServiceReport| {
        r.objects
            .iter()
            .filter(|o| o.waits_for.as_ref().is_some_and(|w| w.kind == "Raft"))
            .count()
    };
    let waiting = report(&world.hub, &entry, |r| waits(r) == 2).await;
    let waits = format!("waits until Raft.{group} {place}/raft is gone");
    assert!(message(&waiting, "ConfigMap", "early").contains(&waits), "{waiting:#?}");
    let client = world.client().await;
    let maps = config_maps(&client, &place);
    gone(&maps, "late").await;
    let definitions = api(&client, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "");
    let left = definitions.get(&format!("rafts.{group}")).await.unwrap();
    assert!(left.metadata.deletion_timestamp.is_none() && maps.get_opt("early").await.unwrap().is_some());
    write(
        &api(&client, &group, "v1", "Raft", &place),
        "raft",
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    outcome(&world.hub, &entry, Outcome::Removed).await;
    gone(&definitions, &format!("rafts.{group}")).await;
    gone(&maps, "early").await;
}

#[tokio::test]
async fn what_is_protected_stays_and_loses_our_marks_with_its_service() {
    let world = world().await;
    let place = world.hub.place("guarded");
    let (kept, other) = (
        annotated("kept", "1", "kustomize.toolkit.fluxcd.io/prune: disabled"),
        config_map("other", "1"),
    );
    let third = config_map("third", "1");
    let service = world
        .applied("guarded", &[("a.yaml", &kept), ("b.yaml", &other), ("c.yaml", &third)])
        .await;
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("b.yaml", &other), ("c.yaml", &third)])
            .entry(),
    );
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(
        message(&applied, "ConfigMap", "kept").contains("prune: disabled"),
        "{applied:#?}"
    );
    // The live object is protected by hand. When the value is put back, the agent has seen the protection.
    let maps = config_maps(&world.client().await, &place);
    let protect = json!({"metadata": {"annotations": {"farwater.dev/prune": "disabled"}}, "data": {"value": "x"}});
    write(&maps, "third", protect).await;
    value(&maps, "third", "1").await;
    let entry = world.hub.set(service.with(&world.hub, &[("b.yaml", &other)]).entry());
    report(&world.hub, &entry, |r| {
        r.outcome == Outcome::Applied && message(r, "ConfigMap", "third").contains("farwater.dev/prune: disabled")
    })
    .await;
    let entry = world.hub.set(service.removal(DeletionPolicy::Delete, None));
    let removed = outcome(&world.hub, &entry, Outcome::Removed).await;
    assert!(
        removed.message.contains(&format!("ConfigMap {place}/kept"))
            && removed.message.contains(&format!("{place}/third")),
        "{}",
        removed.message
    );
    gone(&maps, "other").await;
    for name in ["kept", "third"] {
        let metadata = maps.get(name).await.unwrap().metadata;
        assert!(metadata.labels.unwrap_or_default().is_empty(), "{name}");
        assert!(
            !metadata
                .annotations
                .unwrap_or_default()
                .contains_key("farwater.dev/owner"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn what_other_tools_leave_alone_is_left_alone() {
    let world = world().await;
    let place = world.hub.place("alone");
    let flux = |word: &str| format!("kustomize.toolkit.fluxcd.io/{word}");
    let once = |value: &str| annotated("once", value, &flux("ssa: IfNotPresent"));
    let merged = annotated("merged", "1", &flux("ssa: Merge"));
    let never = annotated("never", "1", &flux("reconcile: disabled"));
    let paused = |value: &str| config_map("paused", value);
    let (one, two) = ((once("1"), paused("1")), (once("2"), paused("2")));
    let others = [("c.yaml", merged.as_str()), ("d.yaml", never.as_str())];
    let first = [[("a.yaml", one.0.as_str()), ("b.yaml", one.1.as_str())], others].concat();
    let second = [[("a.yaml", two.0.as_str()), ("b.yaml", two.1.as_str())], others].concat();
    let service = world.applied("alone", &first).await;
    let maps = config_maps(&world.client().await, &place);
    assert!(maps.get_opt("never").await.unwrap().is_none());
    let applied = outcome(&world.hub, &service.entry(), Outcome::Applied).await;
    assert!(
        applied
            .objects
            .iter()
            .all(|o| (o.sync, o.health) == (SyncState::Synced, Health::Current)),
        "{applied:#?}"
    );
    assert!(
        message(&applied, "ConfigMap", "never").starts_with("left alone: its annotation"),
        "{applied:#?}"
    );
    assert!(
        message(&applied, "ConfigMap", "merged").contains("means nothing here"),
        "{applied:#?}"
    );

    // Somebody pauses one live object, and changes both. The next version changes neither, and the service is healthy.
    let pause = json!({"metadata": {"annotations": {flux("reconcile"): "disabled"}}});
    write(&maps, "paused", pause).await;
    let has_paused = |r: &ServiceReport| message(r, "ConfigMap", "paused").contains("on the live object");
    report(&world.hub, &service.entry(), has_paused).await;
    write(&maps, "paused", json!({"data": {"value": "mine"}})).await;
    write(&maps, "once", json!({"data": {"value": "mine"}})).await;
    let entry = world.hub.set(service.with(&world.hub, &second).entry());
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(
        applied
            .objects
            .iter()
            .all(|o| (o.sync, o.health) == (SyncState::Synced, Health::Current)),
        "{applied:#?}"
    );
    for name in ["paused", "once"] {
        assert_eq!(maps.get(name).await.unwrap().data["data"]["value"], "mine", "{name}");
    }
    // When it is no longer paused, it is changed to what its source says.
    write(
        &maps,
        "paused",
        json!({"metadata": {"annotations": {flux("reconcile"): null}}}),
    )
    .await;
    value(&maps, "paused", "2").await;
}

#[tokio::test]
async fn ignored_fields_are_others_and_no_drift() {
    let world = world().await;
    let place = world.hub.place("ignoring");
    let deployment = |image: &str| {
        format!(
            "apiVersion: apps/v1
kind: Deployment
metadata: {{name: scaled, annotations: {{farwater.dev/ignore-differences: /spec/replicas}}}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: scaled}}}}
  template:
    metadata: {{labels: {{app: scaled}}}}
    spec: {{containers: [{{name: web, image: {image}}}]}}
"
        )
    };
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {ours: '1', theirs: '1'}\n";
    let mut service = Service::new(
        &world.hub,
        "ignoring",
        &[("a.yaml", &deployment("one")), ("b.yaml", map)],
    );
    service.deployment.options.ignore_differences = vec![IgnoreDifference {
        kind: Some("ConfigMap".into()),
        managed_fields_managers: vec!["somebody".into()],
        ..IgnoreDifference::default()
    }];
    let entry = world.hub.set(service.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let client = world.client().await;
    let (deployments, maps) = (
        api(&client, "apps", "v1", "Deployment", &place),
        config_maps(&client, &place),
    );
    write(&deployments, "scaled", json!({"spec": {"replicas": 3}})).await;
    write(&maps, "shared", json!({"data": {"theirs": "2"}})).await;
    // A drift of another field is repaired. This shows that the watch has seen the earlier change.
    write(&maps, "shared", json!({"data": {"theirs": "3"}})).await;
    let rival = PatchParams {
        field_manager: Some("rival".into()),
        ..PatchParams::default()
    };
    maps.patch("shared", &rival, &Patch::Merge(json!({"data": {"ours": "x"}})))
        .await
        .unwrap();
    wait_for("the other field to be put back", PATIENCE, || async {
        Ok((maps.get("shared").await?.data["data"] == json!({"ours": "1", "theirs": "3"})).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(deployments.get("scaled").await.unwrap().data["spec"]["replicas"], 3);
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &deployment("two")), ("b.yaml", map)])
            .entry(),
    );
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let live = deployments.get("scaled").await.unwrap();
    assert_eq!(live.data["spec"]["template"]["spec"]["containers"][0]["image"], "two");
    assert_eq!(live.data["spec"]["replicas"], 3);
}

#[tokio::test]
async fn fields_that_an_expression_picks_are_others_and_no_drift() {
    let world = world().await;
    let place = world.hub.place("tuning");
    let map = |value: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: tuned}}\n\
             data: {{auto.size: '{value}', auto.rate: '{value}', fixed: '{value}'}}\n"
        )
    };
    let rule = |expression: &str| IgnoreDifference {
        expression: Some(expression.into()),
        ..Default::default()
    };
    let mut service = Service::new(&world.hub, "tuning", &[("a.yaml", &map("1"))]);
    let rules = [
        rule("field.startsWith('/data/auto.')"),
        rule("self.data.absent == field"),
    ];
    service.deployment.options.ignore_differences = rules.to_vec();
    let entry = world.hub.set(service.entry());
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    let told =
        "ignoreDifferences[1].expression has no answer at /data, which stays a difference: there is no \"absent\"";
    assert!(message(&applied, "ConfigMap", "tuned").contains(told), "{applied:#?}");
    let maps = config_maps(&world.client().await, &place);
    assert_eq!(maps.get("tuned").await.unwrap().data["data"]["auto.size"], "1");
    write(&maps, "tuned", json!({"data": {"auto.size": "5"}})).await;
    // When this field is put back, the watch has seen the other change.
    write(&maps, "tuned", json!({"data": {"fixed": "5"}})).await;
    let is = |expected: Value| {
        let maps = &maps;
        async move {
            wait_for("the other field to be put back", PATIENCE, || async {
                Ok((maps.get("tuned").await?.data["data"] == expected).then_some(()))
            })
            .await
            .unwrap();
        }
    };
    is(json!({"auto.size": "5", "auto.rate": "1", "fixed": "1"})).await;
    let entry = world
        .hub
        .set(service.with(&world.hub, &[("a.yaml", &map("2"))]).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    is(json!({"auto.size": "5", "auto.rate": "1", "fixed": "2"})).await;
}

#[tokio::test]
async fn what_exists_is_adopted_as_the_policy_says() {
    let world = world().await;
    let place = world.hub.place("adopting");
    let client = world.client().await;
    namespace(&client, &place).await;
    let maps = config_maps(&client, &place);
    for (name, value) in [("same", "1"), ("other", "mine"), ("never", "1")] {
        let map = json!({"metadata": {"name": name}, "data": {"value": value}});
        let params = PostParams {
            field_manager: Some("somebody".into()),
            ..PostParams::default()
        };
        maps.create(&params, &serde_json::from_value(map).unwrap())
            .await
            .unwrap();
    }
    let never = annotated("never", "1", "farwater.dev/adopt: Never");
    let files = [
        ("a.yaml", config_map("same", "1")),
        ("b.yaml", config_map("other", "1")),
        ("c.yaml", never),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let mut service = Service::new(&world.hub, "adopting", &files);
    service.deployment.options.adopt = AdoptPolicy::IfNoDifference;
    let entry = world.hub.set(service.entry());
    let refused = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(object(&refused, "ConfigMap", "same").sync, SyncState::Synced);
    assert!(
        message(&refused, "ConfigMap", "other").contains("differs: .data.value (somebody)"),
        "{refused:#?}"
    );
    assert!(
        message(&refused, "ConfigMap", "never").contains("adopt policy is Never"),
        "{refused:#?}"
    );
    value(&maps, "other", "mine").await;
    assert!(maps.get("never").await.unwrap().metadata.labels.is_none());
    // An object whose apply was refused isn't ours to delete.
    let entry = world.hub.set(service.removal(DeletionPolicy::Delete, None));
    outcome(&world.hub, &entry, Outcome::Removed).await;
    gone(&maps, "same").await;
    assert!(maps.get_opt("other").await.unwrap().is_some() && maps.get_opt("never").await.unwrap().is_some());
}

#[tokio::test]
async fn a_conflict_names_the_other_manager_whoever_wins() {
    let world = world().await;
    let place = world.hub.place("disputed");
    let client = world.client().await;
    let service = world.applied("disputed", &[("a.yaml", &config_map("a", "1"))]).await;
    let maps = config_maps(&client, &place);
    write(&maps, "a", json!({"data": {"value": "theirs"}})).await;
    let won = report(&world.hub, &service.entry(), |r| {
        message(r, "ConfigMap", "a").contains("somebody")
    })
    .await;
    let told = "took fields of others: .data.value (somebody), last at 20";
    assert!(message(&won, "ConfigMap", "a").contains(told), "{won:#?}");
    value(&maps, "a", "1").await;

    let mut polite = service.clone();
    polite.deployment.options.conflicts = ConflictPolicy::Report;
    let entry = world.hub.set(polite.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    write(&maps, "a", json!({"data": {"value": "theirs"}})).await;
    let lost = outcome(&world.hub, &entry, Outcome::Failed).await;
    let told = "others own fields of it: .data.value (somebody), last at 20";
    assert!(message(&lost, "ConfigMap", "a").contains(told), "{lost:#?}");
    value(&maps, "a", "theirs").await;
}

#[tokio::test]
async fn drift_is_told_and_left_where_that_is_asked() {
    let world = world().await;
    let place = world.hub.place("reporting");
    let ignored = annotated("ignored", "1", "farwater.dev/drift: Ignore");
    let files = [
        ("a.yaml", config_map("a", "1")),
        ("b.yaml", config_map("b", "1")),
        ("c.yaml", ignored),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let mut service = Service::new(&world.hub, "reporting", &files);
    service.deployment.options.drift = DriftMode::Report;
    let entry = world.hub.set(service.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let maps = config_maps(&world.client().await, &place);
    write(&maps, "ignored", json!({"data": {"value": "theirs"}})).await;
    write(&maps, "a", json!({"data": {"value": "theirs"}})).await;
    maps.delete("b", &Default::default()).await.unwrap();
    let drifted = report(&world.hub, &entry, |r| {
        ["a", "b"]
            .iter()
            .all(|name| object(r, "ConfigMap", name).sync == SyncState::Drifted)
    })
    .await;
    assert_eq!(drifted.outcome, Outcome::Applied);
    let told = "others changed it: .data.value (somebody), last at 20";
    assert!(message(&drifted, "ConfigMap", "a").contains(told), "{drifted:#?}");
    assert!(
        message(&drifted, "ConfigMap", "b").contains("others deleted it"),
        "{drifted:#?}"
    );
    assert_eq!(object(&drifted, "ConfigMap", "ignored").sync, SyncState::Synced);
    assert_eq!(maps.get("a").await.unwrap().data["data"]["value"], "theirs");
    assert_eq!(maps.get("ignored").await.unwrap().data["data"]["value"], "theirs");
    // A new version is applied nevertheless.
    let next = service.with(
        &world.hub,
        &[("a.yaml", &config_map("a", "2")), ("b.yaml", &config_map("b", "2"))],
    );
    let entry = world.hub.set(next.entry());
    report(&world.hub, &entry, |r| {
        r.objects.iter().filter(|o| o.sync == SyncState::Synced).count() == 2
    })
    .await;
    value(&maps, "a", "2").await;
    value(&maps, "b", "2").await;
}

/// Makes the API server overrule `data.value` of the ConfigMap `a` in a namespace, like a mutating webhook.
async fn overrule(client: &Client, place: &str) {
    let expression = r#"[JSONPatch{op: "replace", path: "/data/value", value: "overruled"}]"#;
    let operations = json!(["CREATE", "UPDATE"]);
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": operations});
    let policy = json!({
        "metadata": {"name": place},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}},
                "resourceRules": [rule]},
            "matchConditions": [{"name": "name", "expression": "object.metadata.name == 'a'"}],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never"}});
    let binding = json!({"metadata": {"name": place}, "spec": {"policyName": place}});
    for (kind, object) in [
        ("MutatingAdmissionPolicy", policy),
        ("MutatingAdmissionPolicyBinding", binding),
    ] {
        let object = serde_json::from_value(object).unwrap();
        let policies = api(client, "admissionregistration.k8s.io", "v1", kind, "");
        policies.create(&PostParams::default(), &object).await.unwrap();
    }
    let probe = serde_json::from_value(json!({"metadata": {"name": "a"}, "data": {"value": "1"}})).unwrap();
    let maps = config_maps(client, place);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait_for("the policy to be in force", PATIENCE, || async {
        let made = maps.create(&dry_run, &probe).await?;
        Ok((made.data["data"]["value"] == "overruled").then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_value_that_the_api_server_overrules_is_told_and_not_fought_for() {
    let world = world().await;
    let place = world.hub.place("overruled");
    let client = world.client().await;
    namespace(&client, &place).await;
    overrule(&client, &place).await;
    let (a, b) = (config_map("a", "1"), config_map("b", "1"));
    let service = world.applied("overruled", &[("a.yaml", &a), ("b.yaml", &b)]).await;
    let is_told = |report: &ServiceReport| {
        let a = object(report, "ConfigMap", "a");
        let told = "the API server keeps another value of .data.value: ";
        a.sync == SyncState::Synced && a.health == Health::Current && a.message.starts_with(told)
    };
    let first = report(&world.hub, &service.entry(), is_told).await;
    assert_eq!(message(&first, "ConfigMap", "b"), "");
    let maps = config_maps(&client, &place);
    let before = maps.get("a").await.unwrap();
    assert_eq!(before.data["data"]["value"], "overruled");
    // The overruled value counts as applied. The message stays for the next version, which doesn't change the object.
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &a), ("b.yaml", &config_map("b", "2"))])
            .entry(),
    );
    report(&world.hub, &entry, |r| r.outcome == Outcome::Applied && is_told(r)).await;
    value(&maps, "b", "2").await;
    assert_eq!(
        maps.get("a").await.unwrap().metadata.resource_version,
        before.metadata.resource_version
    );
    // A write by somebody else is a drift. Its repair doesn't change the value.
    write(
        &maps,
        "a",
        json!({"metadata": {"labels": {"farwater.dev/service": null}}}),
    )
    .await;
    wait_for("the drift to be repaired", PATIENCE, || async {
        let labels = maps.get("a").await?.metadata.labels.unwrap_or_default();
        Ok(labels.contains_key("farwater.dev/service").then_some(()))
    })
    .await
    .unwrap();
    report(&world.hub, &entry, is_told).await;
}

#[tokio::test]
async fn a_replaced_object_loses_what_others_added() {
    let world = world().await;
    let place = world.hub.place("replaced");
    let map = |value: &str| annotated("a", value, "argocd.argoproj.io/sync-options: Replace=true");
    let service = world
        .applied("replaced", &[("a.yaml", &map("1")), ("b.yaml", &config_map("b", "1"))])
        .await;
    let maps = config_maps(&world.client().await, &place);
    for name in ["a", "b"] {
        write(&maps, name, json!({"data": {"added": "x"}})).await;
    }
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &map("2")), ("b.yaml", &config_map("b", "2"))])
            .entry(),
    );
    outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(maps.get("a").await.unwrap().data["data"], json!({"value": "2"}));
    assert_eq!(
        maps.get("b").await.unwrap().data["data"],
        json!({"value": "2", "added": "x"})
    );
    // The fields are ours: drift is seen and repaired.
    write(&maps, "a", json!({"data": {"value": "x"}})).await;
    value(&maps, "a", "2").await;
}
