//! Inputs from public bug reports of other tools, which once went wrong here too.

use farwater_api::{
    deletion::undo_request,
    hooks::{HookPhase, HookState},
    objects::{Health, Outcome, ServiceReport},
};
use farwater_testkit::wait_for;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::support::{
    PATIENCE, Service, api, config_map, config_maps,
    custom::{self, in_next_wave},
    gone,
    ground::Ground,
    object, outcome,
    pods::{end_job, job, jobs, uid_of},
    report,
    world::world,
};

async fn data(api: &Api<DynamicObject>, name: &str) -> Value {
    api.get(name).await.unwrap().data["data"].clone()
}

/// Waits until an object has this data.
async fn until(api: &Api<DynamicObject>, name: &str, expected: Value) {
    let what = format!("{name} with {expected}");
    let found = wait_for(&what, PATIENCE, || async {
        Ok((data(api, name).await == expected).then_some(()))
    });
    found.await.unwrap();
}

/// kubernetes#108008, argo-cd#29109, kustomize-controller#576.
#[tokio::test]
async fn a_key_of_string_data_that_leaves_the_source_leaves_the_cluster_and_other_values_are_drift() {
    let world = world().await;
    let place = world.hub.place("texts");
    let secret =
        |texts: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{{texts}}}\n");
    let service = world
        .applied("texts", &[("a.yaml", &secret("user: ada, password: hunter2"))])
        .await;
    let secrets = api(&world.client().await, "", "v1", "Secret", &place);
    // An older agent applied the Secret as it is in Git.
    let live = secrets.get("db").await.unwrap();
    let as_before = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"user": "ada", "password": "hunter2"},
        "metadata": {"name": "db", "annotations": live.metadata.annotations, "labels": live.metadata.labels},
    });
    let earlier = PatchParams::apply("farwater-agent").force();
    secrets.patch("db", &earlier, &Patch::Apply(&as_before)).await.unwrap();
    let next = service.with(&world.hub, &[("a.yaml", &secret("login: ada, password: hunter2"))]);
    outcome(&world.hub, &world.hub.set(next.entry()), Outcome::Applied).await;
    let expected = json!({"login": "YWRh", "password": "aHVudGVyMg=="});
    assert_eq!(data(&secrets, "db").await, expected);
    let other = PatchParams {
        field_manager: Some("kubectl-patch".into()),
        ..PatchParams::default()
    };
    secrets
        .patch("db", &other, &Patch::Merge(json!({"data": {"password": "bWluZQ=="}})))
        .await
        .unwrap();
    until(&secrets, "db", expected).await;
}

/// cli-utils#274.
#[tokio::test]
async fn a_namespace_that_leaves_the_source_stays_while_the_source_states_what_is_in_it() {
    let world = world().await;
    let place = world.hub.place("homeless");
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {place}}}\n");
    let map = config_map("a", "1");
    let service = world
        .applied("homeless", &[("a.yaml", &map), ("ns.yaml", &namespace)])
        .await;
    let entry = world.hub.set(service.with(&world.hub, &[("a.yaml", &map)]).entry());
    let kept = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(kept.held_prune.is_none(), "{kept:#?}");
    let told = &object(&kept, "Namespace", &place).message;
    assert!(
        told.contains(&format!("stays: ConfigMap {place}/a would be deleted with it")),
        "{told}"
    );
    // It stays by intent, and keeps no service from being ready.
    assert_eq!(object(&kept, "Namespace", &place).health, Health::Current);
    let client = world.client().await;
    assert!(
        api(&client, "", "v1", "Namespace", "")
            .get(&place)
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
    // When the source states nothing in the namespace any more, its deletion needs an approval.
    let elsewhere =
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: NAME}\n".replace("NAME", &place);
    let entry = world
        .hub
        .set(service.with(&world.hub, &[("b.yaml", &elsewhere)]).entry());
    let held = report(&world.hub, &entry, |r| r.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    assert!(
        held.reason
            .contains(&format!("Namespace {place} is of a protected kind")),
        "{}",
        held.reason
    );
}

/// The same report: what was undone is of use at once.
#[tokio::test]
async fn what_waits_for_what_an_undo_brings_back_is_applied_with_it() {
    let world = world().await;
    let map = config_map("a", "1");
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: runner}\n";
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: needs-it}
spec: {schedulerName: nobody, serviceAccountName: runner, containers: [{name: main, image: x}]}
";
    let service = world
        .applied("regained", &[("a.yaml", &map), ("b.yaml", account)])
        .await;
    let entry = world.hub.set(service.with(&world.hub, &[("a.yaml", &map)]).entry());
    let deletion = outcome(&world.hub, &entry, Outcome::Applied).await.deletion.unwrap();
    // Refused as long as the account is missing.
    let mut next = service.with(&world.hub, &[("a.yaml", &map), ("pod.yaml", pod)]);
    next.deployment.undo = Some(undo_request(&deletion.digest, "1"));
    let entry = world.hub.set(next.entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let reports = world
        .hub
        .history(next.uid())
        .into_iter()
        .filter(|report| report.entry == entry.digest());
    let is_undone = |report: &ServiceReport| {
        report
            .deletion
            .as_ref()
            .is_some_and(|deletion| deletion.undone.is_some())
    };
    let after: Vec<ServiceReport> = reports.filter(is_undone).collect();
    assert!(
        !after.is_empty() && after.iter().all(|report| report.outcome == Outcome::Applied),
        "{after:#?}"
    );
}

/// kustomize#1806, flux2#3378.
#[tokio::test]
async fn objects_that_get_other_names_are_no_losses() {
    let world = world().await;
    let place = world.hub.place("renamed");
    let maps = |suffix: &str| {
        ["a", "b", "c"].map(|name| (format!("{name}.yaml"), config_map(&format!("{name}-{suffix}"), suffix)))
    };
    let kept = config_map("kept", "1");
    let files = |suffix: &str| {
        maps(suffix)
            .into_iter()
            .chain([("kept.yaml".to_owned(), kept.clone())])
            .collect::<Vec<_>>()
    };
    let (first, second) = (files("5h2k8m9f7t"), files("b4dg6kt2cm"));
    let texts = |files: &'static [(String, String)]| {
        files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect::<Vec<_>>()
    };
    let service = world.applied("renamed", &texts(first.leak())).await;
    let entry = world.hub.set(service.with(&world.hub, &texts(second.leak())).entry());
    let report = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert!(report.held_prune.is_none() && report.objects.len() == 4, "{report:#?}");
    gone(&config_maps(&world.client().await, &place), "a-5h2k8m9f7t").await;
}

/// kustomize-controller#486.
#[tokio::test]
async fn what_was_replaced_and_is_applied_again_loses_what_leaves_the_source() {
    let world = world().await;
    let place = world.hub.place("back");
    let replaced = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {farwater.dev/method: Replace}}\ndata: DATA\n";
    let service = world
        .applied("back", &[("a.yaml", &replaced.replace("DATA", "{a: '1'}"))])
        .await;
    let both = service.with(&world.hub, &[("a.yaml", &replaced.replace("DATA", "{a: '1', b: '1'}"))]);
    outcome(&world.hub, &world.hub.set(both.entry()), Outcome::Applied).await;
    let applied = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: '1'}\n";
    let entry = world.hub.set(service.with(&world.hub, &[("a.yaml", applied)]).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let map = config_maps(&world.client().await, &place).get("a").await.unwrap();
    assert_eq!(map.data["data"], json!({"a": "1"}));
    let managers: Vec<_> = map
        .metadata
        .managed_fields
        .unwrap()
        .into_iter()
        .map(|entry| entry.operation.unwrap())
        .collect();
    assert_eq!(managers, ["Apply"], "one entry, of applies");
}

/// argo-cd#21055, and argocd-example-apps' sync-waves.
#[tokio::test]
async fn a_hook_without_a_time_to_live_is_seen_to_end_and_one_has_a_generated_name() {
    let world = world().await;
    let place = world.hub.place("brief");
    let hook = "apiVersion: batch/v1
kind: Job
metadata: {generateName: brief-, annotations: {helm.sh/hook: pre-install}}
spec:
  ttlSecondsAfterFinished: 0
  backoffLimit: 0
  template: {spec: {schedulerName: nobody, restartPolicy: Never, containers: [{name: main, image: x}]}}
";
    let map = config_map("a", "1");
    let service = Service::new(&world.hub, "brief", &[("a.yaml", &map), ("hook.yaml", hook)]);
    let entry = world.hub.set(service.entry());
    let running = report(&world.hub, &entry, |r| {
        r.hooks.iter().any(|hook| hook.state == HookState::Running)
    })
    .await;
    let name = running.hooks[0].object.name.clone();
    assert!(
        name.starts_with("brief-") && running.hooks[0].phase == HookPhase::PreSync,
        "{running:#?}"
    );
    let client = world.client().await;
    end_job(&client, &place, &name, 0).await;
    let ended = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(ended.hooks[0].state, HookState::Succeeded, "{ended:#?}");
    gone(&jobs(&client, &place), &name).await;
}

/// argo-cd#8586.
#[tokio::test]
async fn a_job_that_is_complete_and_goes_by_its_time_to_live_is_done() {
    let world = world().await;
    let place = world.hub.place("done");
    let job = "apiVersion: batch/v1
kind: Job
metadata: {name: once, annotations: {note: '1'}}
spec:
  ttlSecondsAfterFinished: 0
  template: {spec: {schedulerName: nobody, restartPolicy: Never, containers: [{name: main, image: x}]}}
";
    let service = Service::new(
        &world.hub,
        "done",
        &[("a.yaml", &config_map("a", "1")), ("job.yaml", job)],
    );
    let entry = world.hub.set(service.entry());
    let client = world.client().await;
    // One that others delete while it runs is made again.
    let jobs = jobs(&client, &place);
    let first = uid_of(&jobs, "once").await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let note = |value: &str| json!({"metadata": {"annotations": {"note": value}}});
    jobs.patch("once", &PatchParams::default(), &Patch::Merge(note("2")))
        .await
        .unwrap();
    let seen = wait_for("the watch to tell of it", PATIENCE, || async {
        let annotations = jobs.get("once").await?.metadata.annotations.unwrap_or_default();
        Ok((annotations.get("note").map(String::as_str) == Some("1")).then_some(()))
    });
    seen.await.unwrap();
    jobs.delete("once", &DeleteParams::background()).await.unwrap();
    let other = wait_for("another run", PATIENCE, || async {
        Ok(jobs
            .get_opt("once")
            .await?
            .filter(|job| job.metadata.uid.as_ref() != Some(&first)))
    });
    other.await.unwrap();
    end_job(&client, &place, "once", 0).await;
    gone(&jobs, "once").await;
    // A newer version has all objects looked at.
    let next = service.with(&world.hub, &[("a.yaml", &config_map("a", "2")), ("job.yaml", job)]);
    let entry = world.hub.set(next.entry());
    let said = outcome(&world.hub, &entry, Outcome::Applied).await;
    // Whether anybody has read it before it went depends on the moment.
    let told = &object(&said, "Job", "once").message;
    assert!(told.contains("gone by its ttlSecondsAfterFinished"), "{told}");
    assert!(jobs.get_opt("once").await.unwrap().is_none());
}

/// A Job may fail as well as complete while no agent looks.
#[tokio::test]
async fn a_job_that_went_before_its_end_was_seen_is_unknown_and_holds_the_next_wave() {
    let mut ground = Ground::new().await;
    let place = ground.hub.place("unseen");
    let once = job("once", "", "x").replace(
        "spec:\n  backoffLimit",
        "spec:\n  ttlSecondsAfterFinished: 0\n  backoffLimit",
    );
    let service = Service::new(
        &ground.hub,
        "unseen",
        &[("job.yaml", &once), ("next.yaml", &in_next_wave("next"))],
    );
    let entry = ground.hub.set(service.entry());
    report(&ground.hub, &entry, |said| {
        said.objects.iter().any(|one| one.health == Health::InProgress)
    })
    .await;
    let client = ground.plane.client().await.unwrap();
    ground.kill();
    end_job(&client, &place, "once", 1).await;
    gone(&jobs(&client, &place), "once").await;

    ground.hub.forget_reports();
    ground.start(false);
    let said = report(&ground.hub, &entry, |said| {
        said.objects
            .iter()
            .any(|one| one.object.kind == "Job" && one.health == Health::Unknown)
    });
    let said = said.await;
    let told = &object(&said, "Job", "once").message;
    assert!(told.starts_with("gone before its result was seen"), "{told}");
    assert_ne!(said.outcome, Outcome::Applied, "{said:#?}");
    assert!(
        jobs(&client, &place).get_opt("once").await.unwrap().is_none(),
        "it does not run again"
    );
    assert!(config_maps(&client, &place).get_opt("next").await.unwrap().is_none());
}

/// flux2#2472, argo-cd#2382: the usual `rules: []` would empty the role with each apply.
#[tokio::test]
async fn an_aggregated_role_keeps_the_rules_that_kubernetes_gives_it() {
    let world = world().await;
    let place = world.hub.place("roles");
    let (whole, part) = (format!("whole-{place}"), format!("part-{place}"));
    let roles = format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {whole}}}
aggregationRule: {{clusterRoleSelectors: [{{matchLabels: {{part-of: {whole}}}}}]}}
rules: []
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {part}, labels: {{part-of: {whole}}}}}
rules: [{{apiGroups: [''], resources: [pods], verbs: [get]}}]
"
    );
    let entry = world
        .hub
        .set(Service::new(&world.hub, "roles", &[("a.yaml", &roles)]).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let api = api(
        &world.client().await,
        "rbac.authorization.k8s.io",
        "v1",
        "ClusterRole",
        "",
    );
    let filled = wait_for("the rules of the whole role", PATIENCE, || async {
        Ok(Some(api.get(&whole).await?).filter(|role| role.data["rules"][0]["resources"] == json!(["pods"])))
    });
    let version = filled.await.unwrap().metadata.resource_version;

    // A change of another object has all of them looked at.
    let more = format!("{roles}---\n{}", config_map("a", "1"));
    let entry = world
        .hub
        .set(Service::new(&world.hub, "roles", &[("a.yaml", &more)]).entry());
    outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(
        api.get(&whole).await.unwrap().metadata.resource_version,
        version,
        "nobody wrote it"
    );
}

/// argo-cd#6541.
#[tokio::test]
async fn a_hook_of_another_kind_ends_when_its_controller_says_so() {
    let world = world().await;
    let (place, group) = (world.hub.place("boats"), world.hub.group("boats"));
    let client = world.client().await;
    custom::define(&client, &group, "Boat").await;
    let hook = custom::custom(&group, "Boat", "migrate").replace(
        "{name: migrate}",
        "{name: migrate, annotations: {farwater.dev/hook: PreSync}}",
    );
    let service = Service::new(
        &world.hub,
        "boats",
        &[("a.yaml", &config_map("a", "1")), ("hook.yaml", &hook)],
    );
    let entry = world.hub.set(service.entry());
    let running = report(&world.hub, &entry, |r| {
        r.hooks.iter().any(|hook| hook.state == HookState::Running)
    })
    .await;
    assert!(running.hooks[0].message.contains("controller"), "{running:#?}");
    assert!(config_maps(&client, &place).get_opt("a").await.unwrap().is_none());

    let boats = api(&client, &group, "v1", "Boat", &place);
    let ready = json!({"type": "Ready", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    custom::set_status(&boats, "migrate", json!({"conditions": [ready]})).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
}
