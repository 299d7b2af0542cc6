//! Services on a real API server, with one agent for all tests.

use std::time::{Duration, Instant};

use crate::support::{
    Service, api, config_map, config_maps, gone, object, outcome, report, states, value, world::world,
};
use farwater_api::{
    objects::{Health, Outcome, SyncState},
    protocol::{Action, Entry, ServiceAccount},
    service_deployment::DeletionPolicy,
};
use farwater_testkit::wait_for;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn a_folder_becomes_objects_in_a_namespace_that_did_not_exist() {
    let world = world().await;
    let place = world.hub.place("first");
    let deployment = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx}]}
";
    let service = world
        .applied("first", &[("a.yaml", &config_map("a", "1")), ("web.yaml", deployment)])
        .await;
    let report = report(&world.hub, &service.entry(), |r| {
        object(r, "Deployment", "web").health == Health::Current
    })
    .await;
    assert_eq!(states(&report, SyncState::Synced).len(), 2);
    assert_eq!(object(&report, "ConfigMap", "a").object.namespace, place);
    let map = config_maps(&world.client().await, &place).get("a").await.unwrap();
    let owner = format!("{} ConfigMap {place}/a", service.uid());
    assert_eq!(map.metadata.annotations.unwrap()["farwater.dev/owner"], owner);
    assert!(map.metadata.labels.unwrap().contains_key("farwater.dev/service"));
    assert!(
        map.metadata
            .managed_fields
            .unwrap()
            .iter()
            .any(|f| f.manager.as_deref() == Some("farwater-agent"))
    );
}

#[tokio::test]
async fn a_definition_and_its_resource_arrive_in_one_bundle() {
    let world = world().await;
    let place = world.hub.place("boats");
    let group = world.hub.group("boats");
    let definition = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Boat, plural: boats}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"
    .replace("GROUP", &group);
    let boat = format!("apiVersion: {group}/v1\nkind: Boat\nmetadata: {{name: ark}}\nspec: {{length: 300}}\n");
    let service = world
        .applied("boats", &[("a-boat.yaml", &boat), ("z-crd.yaml", &definition)])
        .await;
    let boats = api(&world.client().await, &group, "v1", "Boat", &place);
    assert_eq!(boats.get("ark").await.unwrap().data["spec"]["length"], 300);
    // The deletion of a definition needs an approval.
    let without = world
        .hub
        .set(service.with(&world.hub, &[("a.yaml", &config_map("a", "1"))]).entry());
    let held = report(&world.hub, &without, |r| r.held_prune.is_some()).await;
    assert_eq!(states(&held, SyncState::PruneHeld).len(), 2);
    assert!(boats.get_opt("ark").await.unwrap().is_some());
}

#[tokio::test]
async fn a_kind_that_nobody_serves_waits_and_stops_nothing_else() {
    let world = world().await;
    let ghost = "apiVersion: nowhere.example.com/v1\nkind: Ghost\nmetadata: {name: g}\n";
    let service = Service::new(
        &world.hub,
        "ghosts",
        &[("a.yaml", &config_map("a", "1")), ("g.yaml", ghost)],
    );
    let entry = world.hub.set(service.entry());
    let report = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(states(&report, SyncState::Waiting), ["g"]);
    assert_eq!(states(&report, SyncState::Synced), ["a"]);
    assert!(
        object(&report, "Ghost", "g").message.contains("does not serve"),
        "{report:#?}"
    );
}

#[tokio::test]
async fn one_bad_object_does_not_stop_the_others() {
    let world = world().await;
    let bad = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {ports: [{port: 123456}]}\n";
    let mistyped = "apiVersion: v1\nkind: Secret\nmetadata: {name: typo}\nstringData: {password: 31337}\n";
    let files = [
        ("a.yaml", config_map("a", "1")),
        ("b.yaml", bad.into()),
        ("c.yaml", mistyped.into()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let service = Service::new(&world.hub, "partly", &files);
    let entry = world.hub.set(service.entry());
    let report = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(states(&report, SyncState::Synced), ["a"]);
    let message = &object(&report, "Service", "bad").message;
    assert!(
        message.contains("spec.ports[0].port") && !message.contains("123456"),
        "{message}"
    );
    let message = &object(&report, "Secret", "typo").message;
    assert!(
        message.contains(".stringData.password") && !message.contains("31337"),
        "{message}"
    );
}

#[tokio::test]
async fn what_leaves_the_source_is_pruned_and_what_changes_is_changed() {
    let world = world().await;
    let place = world.hub.place("prunes");
    let maps = [config_map("a", "1"), config_map("b", "1"), config_map("c", "1")];
    let service = world
        .applied(
            "prunes",
            &[("a.yaml", &maps[0]), ("b.yaml", &maps[1]), ("c.yaml", &maps[2])],
        )
        .await;
    let changed = config_map("a", "2");
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &changed), ("b.yaml", &maps[1])])
            .entry(),
    );
    let report = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(report.objects.len(), 2);
    let client = config_maps(&world.client().await, &place);
    value(&client, "a", "2").await;
    assert!(client.get_opt("c").await.unwrap().is_none());
}

#[tokio::test]
async fn an_empty_source_is_held_until_exactly_this_prune_is_approved() {
    let world = world().await;
    let place = world.hub.place("emptied");
    let service = world
        .applied(
            "emptied",
            &[("a.yaml", &config_map("a", "1")), ("b.yaml", &config_map("b", "1"))],
        )
        .await;
    let mut empty = service.with(&world.hub, &[]);
    let entry = world.hub.set(empty.entry());
    let held = report(&world.hub, &entry, |r| r.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    assert_eq!(held.count, 2);
    assert!(held.reason.contains("no objects"), "{}", held.reason);
    let maps = config_maps(&world.client().await, &place);
    assert!(maps.get_opt("a").await.unwrap().is_some());

    empty.deployment.approved_prune = Some(farwater_api::Digest::of("another plan"));
    let entry = world.hub.set(empty.entry());
    let still = report(&world.hub, &entry, |r| r.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    assert_eq!(still.digest, held.digest);

    empty.deployment.approved_prune = Some(held.digest);
    let entry = world.hub.set(empty.entry());
    let report = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(report.held_prune.is_none() && report.objects.is_empty(), "{report:#?}");
    gone(&maps, "a").await;
    gone(&maps, "b").await;
}

#[tokio::test]
async fn a_source_that_cannot_be_read_prunes_nothing() {
    let world = world().await;
    let place = world.hub.place("unreadable");
    let maps = [config_map("a", "1"), config_map("b", "1"), config_map("c", "1")];
    let service = world
        .applied(
            "unreadable",
            &[("a.yaml", &maps[0]), ("b.yaml", &maps[1]), ("c.yaml", &maps[2])],
        )
        .await;
    let changed = config_map("a", "2");
    let entry = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &changed), ("b.yaml", "a: [b: }")])
            .entry(),
    );
    let report = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(report.message.contains("b.yaml"), "{}", report.message);
    let maps = config_maps(&world.client().await, &place);
    value(&maps, "a", "2").await;
    assert!(maps.get_opt("c").await.unwrap().is_some());
}

#[tokio::test]
async fn without_prune_what_leaves_stays_and_is_shown() {
    let world = world().await;
    let place = world.hub.place("unpruned");
    let service = world
        .applied(
            "unpruned",
            &[("a.yaml", &config_map("a", "1")), ("b.yaml", &config_map("b", "1"))],
        )
        .await;
    let mut next = service.with(&world.hub, &[("a.yaml", &config_map("a", "1"))]);
    next.deployment.prune = false;
    let entry = world.hub.set(next.entry());
    let report = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(
        object(&report, "ConfigMap", "b").message.contains("prune is off"),
        "{report:#?}"
    );
    assert!(
        config_maps(&world.client().await, &place)
            .get_opt("b")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn an_object_of_another_service_is_refused_and_both_are_told() {
    let world = world().await;
    let place = world.hub.place("owner");
    let owner = world
        .applied("owner", &[("a.yaml", &config_map("shared", "owner"))])
        .await;
    let map = config_map("shared", "thief").replace("{name: shared}", &format!("{{name: shared, namespace: {place}}}"));
    let thief = Service::new(&world.hub, "thief", &[("a.yaml", &map)]);
    let entry = world.hub.set(thief.entry());
    let refused = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(object(&refused, "ConfigMap", "shared").sync, SyncState::Refused);
    assert!(
        object(&refused, "ConfigMap", "shared").message.contains("team/owner"),
        "{refused:#?}"
    );
    report(&world.hub, &owner.entry(), |r| {
        object(r, "ConfigMap", "shared").message.contains("team/thief")
    })
    .await;
    value(&config_maps(&world.client().await, &place), "shared", "owner").await;
}

/// A hub with valid keys signs changes that the agent's installation forbids.
#[tokio::test]
async fn the_agents_own_limits_hold_whatever_the_hub_signs() {
    let world = world().await;
    let theirs =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: of-a-hub, namespace: kube-system}\ndata: {value: x}\n";
    let greedy = Service::new(
        &world.hub,
        "greedy",
        &[("a.yaml", &config_map("a", "1")), ("b.yaml", theirs)],
    );
    let entry = world.hub.set(greedy.entry());
    let refused = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(states(&refused, SyncState::Synced), ["a"]);
    let message = &object(&refused, "ConfigMap", "of-a-hub").message;
    assert!(
        message.contains("this agent may not touch the namespace kube-system"),
        "{message}"
    );

    let mut borrowed = Service::new(&world.hub, "borrowed", &[("a.yaml", &config_map("a", "1"))]);
    borrowed.deployment.ceiling.service_account = ServiceAccount {
        namespace: "kube-system".into(),
        name: "namespace-controller".into(),
    };
    let entry = world.hub.set(borrowed.entry());
    let told = "this agent may not act as the service account kube-system/namespace-controller";
    report(&world.hub, &entry, |report| format!("{report:?}").contains(told)).await;
    let client = world.client().await;
    assert!(
        config_maps(&client, "kube-system")
            .get_opt("of-a-hub")
            .await
            .unwrap()
            .is_none()
    );
    let namespace = api(&client, "", "v1", "Namespace", "")
        .get_opt(&world.hub.place("borrowed"))
        .await
        .unwrap();
    assert!(namespace.is_none(), "nothing is done for it");
}

#[tokio::test]
async fn a_tenant_gets_no_further_than_its_account() {
    let world = world().await;
    let place = world.hub.place("tenant");
    let client = world.client().await;
    let create = |group: &'static str, kind: &'static str, namespace: &str, object: serde_json::Value| {
        let api = api(&client, group, "v1", kind, namespace);
        async move {
            api.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
                .await
                .unwrap();
        }
    };
    create("", "Namespace", "", json!({"metadata": {"name": place}})).await;
    create("", "ServiceAccount", &place, json!({"metadata": {"name": "deployer"}})).await;
    let role = json!({"metadata": {"name": "deployer"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]});
    create("rbac.authorization.k8s.io", "Role", &place, role).await;
    let binding = json!({"metadata": {"name": "deployer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "deployer"},
        "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": place}]});
    create("rbac.authorization.k8s.io", "RoleBinding", &place, binding).await;

    let grab = format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: grab-all}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}}
subjects: [{{kind: ServiceAccount, name: deployer, namespace: {place}}}]
"
    );
    let foreign = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: default}\ndata: {value: x}\n";
    let mut service = Service::new(
        &world.hub,
        "tenant",
        &[
            ("a.yaml", &config_map("a", "1")),
            ("b.yaml", &grab),
            ("c.yaml", foreign),
        ],
    );
    service.deployment.ceiling.service_account = ServiceAccount {
        namespace: place.clone(),
        name: "deployer".into(),
    };
    let account = format!("system:serviceaccount:{place}:deployer");
    let entry = world.hub.set(service.entry());
    let refused = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(states(&refused, SyncState::Synced), ["a"]);
    for (kind, name) in [("ClusterRoleBinding", "grab-all"), ("ConfigMap", "x")] {
        let object = object(&refused, kind, name);
        assert_eq!(object.sync, SyncState::Refused, "{refused:#?}");
        assert!(object.message.contains(&account), "{}", object.message);
    }
    // The account may not watch all namespaces, and drift in its own is still seen.
    let maps = config_maps(&client, &place);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    value(&maps, "a", "1").await;
}

/// An API server refuses an account that does not exist in the same words as one without rights.
#[tokio::test]
async fn an_account_that_does_not_exist_is_named_with_the_command_that_makes_it() {
    let world = world().await;
    let place = world.hub.place("unprepared");
    let mut service = Service::new(&world.hub, "unprepared", &[("a.yaml", &config_map("a", "1"))]);
    service.deployment.ceiling.service_account = ServiceAccount {
        namespace: place.clone(),
        name: "farwater".into(),
    };
    let entry = world.hub.set(service.entry());
    let refused = outcome(&world.hub, &entry, Outcome::Failed).await;
    let missing = format!("ServiceAccount {place}/farwater does not exist in cluster ");
    let command = format!(" --target-namespace {place} --apply --context CONTEXT` makes it");
    let message = &object(&refused, "ConfigMap", "a").message;
    assert!(
        message.starts_with(&missing) && message.ends_with(&command),
        "{message}"
    );

    let client = world.client().await;
    let named = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let namespaces = api(&client, "", "v1", "Namespace", "");
    namespaces.create(&PostParams::default(), &named(&place)).await.unwrap();
    let accounts = api(&client, "", "v1", "ServiceAccount", &place);
    accounts
        .create(&PostParams::default(), &named("farwater"))
        .await
        .unwrap();
    let told = format!("User \\\"system:serviceaccount:{place}:farwater\\\" cannot get");
    report(&world.hub, &entry, |report| format!("{report:?}").contains(&told)).await;
}

#[tokio::test]
async fn the_grants_limits_are_refused_per_object() {
    let world = world().await;
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n";
    let elsewhere = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: e, namespace: default}\n";
    let mut service = Service::new(
        &world.hub,
        "limited",
        &[
            ("a.yaml", &config_map("a", "1")),
            ("b.yaml", secret),
            ("c.yaml", elsewhere),
        ],
    );
    service.deployment.ceiling.denied_kinds = Some(vec!["Secret".into()]);
    service.deployment.ceiling.target_namespaces = Some(vec!["lim*".into()]);
    let entry = world.hub.set(service.entry());
    let refused = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert_eq!(states(&refused, SyncState::Synced), ["a"]);
    assert!(object(&refused, "Secret", "s").message.contains("deniedKinds"));
    assert!(object(&refused, "ConfigMap", "e").message.contains("default"));
}

#[tokio::test]
async fn drift_is_repaired_within_two_seconds() {
    let world = world().await;
    let place = world.hub.place("drifts");
    // Eight rounds, because a busy machine may delay some of them.
    let names: Vec<String> = (0..8).map(|n| format!("m{n}")).collect();
    let all: String = names
        .iter()
        .map(|name| format!("---\n{}", config_map(name, "1")))
        .collect();
    let service = world.applied("drifts", &[("a.yaml", &all)]).await;
    let maps = config_maps(&world.client().await, &place);
    // The first repair proves that the watch is open.
    maps.patch(
        "m0",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"value": "x"}})),
    )
    .await
    .unwrap();
    value(&maps, "m0", "1").await;
    let unlabelled = json!({"metadata": {"labels": {"farwater.dev/service": null}}, "data": {"value": "label"}});
    for drift in [Some(unlabelled), None] {
        let mut took = Vec::new();
        for name in &names {
            let started = Instant::now();
            match &drift {
                Some(patch) => drop(
                    maps.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                        .await
                        .unwrap(),
                ),
                None => drop(maps.delete(name, &DeleteParams::default()).await.unwrap()),
            }
            value(&maps, name, "1").await;
            took.push(started.elapsed());
            let map = maps.get(name).await.unwrap();
            assert!(map.metadata.labels.unwrap().contains_key("farwater.dev/service"));
        }
        took.sort();
        assert!(took[names.len() / 2] < Duration::from_secs(2), "{drift:?}: {took:?}");
    }
    // Fields that others add belong to them.
    maps.patch(
        "m0",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"other": "y"}})),
    )
    .await
    .unwrap();
    report(&world.hub, &service.entry(), |r| r.outcome == Outcome::Applied).await;
    assert_eq!(maps.get("m0").await.unwrap().data["data"]["other"], "y");
}

#[tokio::test]
async fn fields_that_kubectl_applied_go_when_they_leave_the_source() {
    let world = world().await;
    let place = world.hub.place("adopted");
    let client = world.client().await;
    let mut kubectl = world.plane.kubectl().unwrap();
    kubectl.args(["create", "namespace", &place]);
    assert!(kubectl.status().unwrap().success());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: {place}}}\ndata: {{value: old, stale: x}}\n"
    );
    std::fs::write(&file, map).unwrap();
    let mut kubectl = world.plane.kubectl().unwrap();
    kubectl.arg("apply").arg("-f").arg(&file);
    assert!(kubectl.status().unwrap().success());
    world.applied("adopted", &[("a.yaml", &config_map("a", "new"))]).await;
    let map = config_maps(&client, &place).get("a").await.unwrap();
    assert_eq!(map.data["data"], json!({"value": "new"}));
}

#[tokio::test]
async fn a_newer_version_ends_a_running_attempt() {
    let world = world().await;
    let place = world.hub.place("hurried");
    let service = world.applied("hurried", &[("a.yaml", &config_map("a", "1"))]).await;
    let slow = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {value: slow}\n";
    world.hub.hold_bundles(true);
    let first = world.hub.set(service.with(&world.hub, &[("a.yaml", slow)]).entry());
    report(&world.hub, &first, |r| r.outcome == Outcome::Applying).await;
    // Content that no other test uses: a bundle that the agent has already is not held up, so its Applying would not be
    // seen.
    let second = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &config_map("a", "hurried"))])
            .entry(),
    );
    report(&world.hub, &second, |r| r.outcome == Outcome::Applying).await;
    world.hub.hold_bundles(false);
    outcome(&world.hub, &second, Outcome::Applied).await;
    let outcomes: Vec<Outcome> = {
        let history = world.hub.history(service.uid());
        history
            .iter()
            .filter(|r| r.entry == first.digest())
            .map(|r| r.outcome)
            .collect()
    };
    assert!(outcomes.contains(&Outcome::Superseded), "{outcomes:?}");
    assert!(!outcomes.contains(&Outcome::Failed), "{outcomes:?}");
    value(&config_maps(&world.client().await, &place), "a", "hurried").await;
}

#[tokio::test]
async fn a_removed_service_goes_or_stays_as_its_policy_says() {
    let world = world().await;
    let client = world.client().await;
    let leaving = world.applied("leaving", &[("a.yaml", &config_map("a", "1"))]).await;
    let staying = world.applied("staying", &[("a.yaml", &config_map("a", "1"))]).await;
    let removal = |service: &Service, policy| Entry {
        service: service.identity.clone(),
        action: Action::Remove {
            policy,
            approved_prune: None,
        },
    };
    let leave = world.hub.set(removal(&leaving, DeletionPolicy::Delete));
    let stay = world.hub.set(removal(&staying, DeletionPolicy::Orphan));
    let left = outcome(&world.hub, &leave, Outcome::Removed).await;
    assert!(left.objects.is_empty(), "{left:#?}");
    // The objects that stay are reported once more.
    let left = outcome(&world.hub, &stay, Outcome::Removed).await;
    assert_eq!(states(&left, SyncState::Synced), ["a"]);
    assert!(
        config_maps(&client, &world.hub.place("leaving"))
            .get_opt("a")
            .await
            .unwrap()
            .is_none()
    );
    let map = config_maps(&client, &world.hub.place("staying"))
        .get("a")
        .await
        .unwrap();
    assert!(map.metadata.labels.unwrap_or_default().is_empty());
    assert!(map.metadata.annotations.unwrap_or_default().is_empty());
    world.hub.unlist(leaving.uid());
    wait_for("the report to be forgotten", crate::support::PATIENCE, || async {
        Ok(world.hub.report(leaving.uid()).is_none().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_removal_of_a_protected_kind_waits_for_an_approval() {
    let world = world().await;
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n";
    let service = world
        .applied("stateful", &[("a.yaml", &config_map("a", "1")), ("b.yaml", claim)])
        .await;
    let mut removal = Entry {
        service: service.identity.clone(),
        action: Action::Remove {
            policy: DeletionPolicy::Delete,
            approved_prune: None,
        },
    };
    let entry = world.hub.set(removal.clone());
    let held = report(&world.hub, &entry, |r| r.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    assert_eq!(held.count, 2);
    removal.action = Action::Remove {
        policy: DeletionPolicy::Delete,
        approved_prune: Some(held.digest),
    };
    let entry = world.hub.set(removal);
    outcome(&world.hub, &entry, Outcome::Removed).await;
}

#[tokio::test]
async fn a_service_that_is_no_longer_listed_is_kept() {
    let world = world().await;
    let place = world.hub.place("vanished");
    let service = world.applied("vanished", &[("a.yaml", &config_map("a", "1"))]).await;
    world.hub.unlist(service.uid());
    report(&world.hub, &service.entry(), |r| r.message.contains("does not list")).await;
    assert!(
        config_maps(&world.client().await, &place)
            .get_opt("a")
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_held_service_is_kept_as_it_was() {
    let world = world().await;
    let place = world.hub.place("holding");
    let service = world.applied("holding", &[("a.yaml", &config_map("a", "1"))]).await;
    let entry = world.hub.set(Entry {
        service: service.identity.clone(),
        action: Action::Hold {
            reason: "the grant was taken away".into(),
        },
    });
    let held = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(held.message.contains("grant"), "{}", held.message);
    let maps = config_maps(&world.client().await, &place);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    value(&maps, "a", "1").await;
}

#[tokio::test]
async fn what_only_a_newer_agent_can_do_is_held_and_names_the_version() {
    let world = world().await;
    let place = world.hub.place("ahead");
    let service = world.applied("ahead", &[("a.yaml", &config_map("a", "1"))]).await;
    let migrate = json!({"type": "Migrate", "needsAgent": "0.9.0", "to": "elsewhere"});
    let entry = world.hub.set(Entry {
        service: service.identity.clone(),
        action: serde_json::from_value(migrate).unwrap(),
    });
    let held = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        held.message.contains("does not know the action \"Migrate\""),
        "{}",
        held.message
    );
    assert!(held.message.contains("upgrade the agent to 0.9.0"), "{}", held.message);
    // The applied objects are kept and repaired.
    let maps = config_maps(&world.client().await, &place);
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    value(&maps, "a", "1").await;
    // A removal that can't be read removes nothing.
    let archive = json!({"type": "Remove", "policy": "Archive"});
    let entry = world.hub.set(Entry {
        service: service.identity.clone(),
        action: serde_json::from_value(archive).unwrap(),
    });
    let held = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        held.message.contains("can't read the action Remove"),
        "{}",
        held.message
    );
    assert!(maps.get_opt("a").await.unwrap().is_some());
}

#[tokio::test]
async fn a_hub_that_lost_its_reports_gets_them_all_again() {
    let world = world().await;
    let service = world.applied("retold", &[("a.yaml", &config_map("a", "1"))]).await;
    world.hub.forget_reports();
    let entry = world
        .hub
        .set(service.with(&world.hub, &[("a.yaml", &config_map("a", "2"))]).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
}

#[tokio::test]
async fn a_fight_is_noticed_and_given_a_pause() {
    let world = world().await;
    let place = world.hub.place("fought");
    let service = world.applied("fought", &[("a.yaml", &config_map("a", "1"))]).await;
    let maps = config_maps(&world.client().await, &place);
    let rival = PatchParams {
        field_manager: Some("rival".into()),
        ..PatchParams::default()
    };
    let paused = wait_for("the agent to notice the fight", crate::support::PATIENCE, || async {
        let patch = Patch::Merge(json!({"data": {"value": "mine"}}));
        maps.patch("a", &rival, &patch).await?;
        let report = world.hub.report(service.uid());
        Ok(report.filter(|r| object(r, "ConfigMap", "a").sync == SyncState::Waiting))
    })
    .await
    .unwrap();
    let message = &object(&paused, "ConfigMap", "a").message;
    assert!(
        message.starts_with("rival keeps changing it back (last at 20"),
        "{message}"
    );
    assert!(message.contains("farwater.dev/ignore-differences"), "{message}");
    assert_eq!(maps.get("a").await.unwrap().data["data"]["value"], "mine");
}
