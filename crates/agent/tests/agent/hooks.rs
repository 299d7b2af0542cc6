//! Hooks and tests of services on a real API server with its Job controller. Pods end when a test says so.

use crate::{
    health::{loops, pods, workload},
    support::{
        PATIENCE, Service, api, config_map, config_maps,
        custom::{create, set_status},
        gone, object, outcome,
        pods::{end_job, end_pod, job, jobs, node, pod, uid_of},
        report, value,
        world::{World, world},
    },
};
use farwater_api::{
    HealthRuleSpec,
    hooks::{HookPhase, HookReport, HookState},
    objects::{Outcome, ServiceReport, SyncState},
    protocol::Entry,
    service_deployment::DeletionPolicy,
    test_container::ServiceTest,
};
use farwater_testkit::wait_for;
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::json;

fn hook<'a>(report: &'a ServiceReport, phase: HookPhase, name: &str) -> &'a HookReport {
    let found = report
        .hooks
        .iter()
        .find(|hook| hook.phase == phase && hook.object.name == name);
    found.unwrap_or_else(|| panic!("no {phase} hook {name} in {report:#?}"))
}

/// Waits until a hook of an entry runs.
async fn running(world: &World, entry: &Entry, phase: HookPhase, name: &str) -> ServiceReport {
    report(&world.hub, entry, |report| {
        report
            .hooks
            .iter()
            .any(|hook| hook.phase == phase && hook.object.name == name && hook.state == HookState::Running)
    })
    .await
}

async fn touch(maps: &Api<DynamicObject>, name: &str) {
    let other = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    maps.patch(name, &other, &Patch::Merge(json!({"data": {"value": "x"}})))
        .await
        .unwrap();
}

async fn is_there(api: &Api<DynamicObject>, name: &str) -> bool {
    api.get_opt(name).await.unwrap().is_some()
}

async fn namespace(client: &Client, name: &str) {
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    api(client, "", "v1", "Namespace", "")
        .create(&Default::default(), &namespace)
        .await
        .unwrap();
}

#[tokio::test]
async fn hooks_run_once_around_the_objects_of_their_version() {
    let world = world().await;
    let place = world.hub.place("once");
    let client = world.client().await;
    let pre = job("pre", "farwater.dev/hook: PreSync", "1");
    let post = job(
        "post",
        "helm.sh/hook: 'post-install,post-upgrade', helm.sh/hook-weight: '5'",
        "1",
    );
    let settings = config_map("before", "1").replace(
        "{name: before}",
        "{name: before, annotations: {argocd.argoproj.io/hook: PreSync, argocd.argoproj.io/sync-wave: '-1'}}",
    );
    let map = config_map("settings", "1");
    let files = [
        ("a.yaml", pre.as_str()),
        ("b.yaml", &map),
        ("c.yaml", &post),
        ("d.yaml", &settings),
    ];
    let service = Service::new(&world.hub, "once", &files);
    let entry = world.hub.set(service.entry());
    let (jobs, maps) = (jobs(&client, &place), config_maps(&client, &place));

    let waiting = running(world, &entry, HookPhase::PreSync, "pre").await;
    assert_eq!(waiting.outcome, Outcome::Applying);
    assert_eq!(hook(&waiting, HookPhase::PreSync, "before").state, HookState::Succeeded);
    let held = object(&waiting, "ConfigMap", "settings");
    assert_eq!(
        (held.sync, held.waits_for.as_ref().unwrap().name.as_str()),
        (SyncState::Waiting, "pre")
    );
    assert!(
        held.message
            .contains(&format!("PreSync hook Job.batch {place}/pre is running")),
        "{}",
        held.message
    );
    assert!(!is_there(&maps, "settings").await && is_there(&maps, "before").await && !is_there(&jobs, "post").await);

    end_job(&client, &place, "pre", 0).await;
    let waiting = running(world, &entry, HookPhase::PostSync, "post").await;
    assert_eq!(
        (waiting.outcome, hook(&waiting, HookPhase::PreSync, "pre").state),
        (Outcome::Applying, HookState::Succeeded)
    );
    assert!(is_there(&maps, "settings").await);
    end_job(&client, &place, "post", 0).await;
    let applied = outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(hook(&applied, HookPhase::PostSync, "post").state, HookState::Succeeded);
    assert!(hook(&applied, HookPhase::PreSync, "pre").ended.is_some());

    // A repair runs no hook again, whether the hook's object still exists or not.
    let uid = uid_of(&jobs, "post").await;
    jobs.delete("pre", &DeleteParams::background()).await.unwrap();
    gone(&jobs, "pre").await;
    touch(&maps, "settings").await;
    value(&maps, "settings", "1").await;
    maps.delete("settings", &DeleteParams::default()).await.unwrap();
    value(&maps, "settings", "1").await;
    assert!(!is_there(&jobs, "pre").await);
    assert_eq!(uid_of(&jobs, "post").await, uid);

    // The next version runs its hooks again. They replace the earlier objects, and a hook that it doesn't state is
    // deleted.
    let map = config_map("settings", "2");
    let next = service.with(&world.hub, &[("a.yaml", &pre), ("b.yaml", &map)]);
    let entry = world.hub.set(next.entry());
    running(world, &entry, HookPhase::PreSync, "pre").await;
    gone(&jobs, "post").await;
    gone(&maps, "before").await;
    value(&maps, "settings", "1").await;
    end_job(&client, &place, "pre", 0).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    value(&maps, "settings", "2").await;
}

#[tokio::test]
async fn a_hook_that_fails_fails_its_version_and_holds_no_later_one() {
    let world = world().await;
    let place = world.hub.place("failing");
    let client = world.client().await;
    let pre = |argument: &str| {
        job(
            "pre",
            "argocd.argoproj.io/hook: PreSync, argocd.argoproj.io/hook-delete-policy: HookSucceeded",
            argument,
        )
    };
    let alarm = job("alarm", "argocd.argoproj.io/hook: SyncFail", "1");
    let (map, broken) = (config_map("settings", "1"), pre("bad"));
    let service = Service::new(
        &world.hub,
        "failing",
        &[("a.yaml", &broken), ("b.yaml", &map), ("c.yaml", &alarm)],
    );
    let first = world.hub.set(service.entry());
    running(world, &first, HookPhase::PreSync, "pre").await;
    end_job(&client, &place, "pre", 3).await;
    let failed = report(&world.hub, &first, |report| report.hooks.len() == 2).await;
    assert_eq!(failed.outcome, Outcome::Failed);
    let pre_hook = hook(&failed, HookPhase::PreSync, "pre");
    assert_eq!((pre_hook.state, pre_hook.exit_code), (HookState::Failed, Some(3)));
    assert!(
        failed
            .message
            .contains(&format!("PreSync hook Job.batch {place}/pre failed: exit code 3")),
        "{}",
        failed.message
    );
    let maps = config_maps(&client, &place);
    assert!(!is_there(&maps, "settings").await);
    end_job(&client, &place, "alarm", 0).await;
    report(&world.hub, &first, |report| {
        report.outcome == Outcome::Failed && hook(report, HookPhase::SyncFail, "alarm").state == HookState::Succeeded
    })
    .await;

    // Somebody says that the reason was not its own.
    let mut again = service.clone();
    again.deployment.retry_hook = Some(pre_hook.run);
    let retried = world.hub.set(again.entry());
    running(world, &retried, HookPhase::PreSync, "pre").await;
    end_job(&client, &place, "pre", 4).await;
    let failed = outcome(&world.hub, &retried, Outcome::Failed).await;
    let retried = hook(&failed, HookPhase::PreSync, "pre");
    assert!(
        retried.exit_code == Some(4) && retried.run != pre_hook.run,
        "{failed:#?}"
    );

    let fixed = pre("good");
    let second = world.hub.set(
        service
            .with(&world.hub, &[("a.yaml", &fixed), ("b.yaml", &map), ("c.yaml", &alarm)])
            .entry(),
    );
    running(world, &second, HookPhase::PreSync, "pre").await;
    end_job(&client, &place, "pre", 0).await;
    let applied = outcome(&world.hub, &second, Outcome::Applied).await;
    assert_eq!(applied.hooks.len(), 1, "{:#?}", applied.hooks);
    value(&maps, "settings", "1").await;
    // Deleted, as its policy says.
    gone(&jobs(&client, &place), "pre").await;
}

#[tokio::test]
async fn a_pod_is_a_hook_as_well_and_its_exit_code_and_log_are_told() {
    const LOG: &str = "begins\nno room left\n";
    let world = world().await;
    let place = world.hub.place("podded");
    let client = world.client().await;
    let _kubelet = node(&client, &place, LOG).await;
    // A namespace accepts pods when it has their service account.
    namespace(&client, &place).await;
    uid_of(&api(&client, "", "v1", "ServiceAccount", &place), "default").await;
    let pre = pod("pre", "farwater.dev/hook: PreSync", &place);
    let post = pod("post", "helm.sh/hook: 'post-install,post-upgrade'", &place);
    let map = config_map("settings", "1");
    let service = Service::new(
        &world.hub,
        "podded",
        &[("a.yaml", &pre), ("b.yaml", &map), ("c.yaml", &post)],
    );
    let entry = world.hub.set(service.entry());
    running(world, &entry, HookPhase::PreSync, "pre").await;
    let maps = config_maps(&client, &place);
    assert!(!is_there(&maps, "settings").await);

    end_pod(&client, &place, "pre", 0).await;
    let waiting = running(world, &entry, HookPhase::PostSync, "post").await;
    let succeeded = hook(&waiting, HookPhase::PreSync, "pre");
    assert_eq!(
        (succeeded.state, succeeded.log.as_deref()),
        (HookState::Succeeded, Some(LOG))
    );
    assert!(is_there(&maps, "settings").await);

    end_pod(&client, &place, "post", 3).await;
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        failed
            .message
            .contains(&format!("PostSync hook Pod {place}/post failed: exit code 3")),
        "{}",
        failed.message
    );
    let post_hook = hook(&failed, HookPhase::PostSync, "post");
    assert_eq!((post_hook.state, post_hook.exit_code), (HookState::Failed, Some(3)));
    assert_eq!(
        (post_hook.message.as_str(), post_hook.log.as_deref()),
        ("exit code 3", Some(LOG))
    );
}

#[tokio::test]
async fn a_workload_that_fails_as_a_hook_says_why_its_pod_does_not_run_and_how_long_it_took() {
    let world = world().await;
    let place = world.hub.place("working");
    let client = world.client().await;
    let hooked = "metadata: {name: pre, annotations: {farwater.dev/hook: PreSync}}";
    let pre = workload("StatefulSet", "pre", 1).replacen("metadata: {name: pre}", hooked, 1);
    let mut service = Service::new(&world.hub, "working", &[("a.yaml", &pre)]);
    service.deployment.health = vec![HealthRuleSpec {
        group: "apps".into(),
        kind: "StatefulSet".into(),
        failed: Some("has(self.metadata.labels) && 'given' in self.metadata.labels".into()),
        current: "self.status.readyReplicas == 1".into(),
        ..HealthRuleSpec::default()
    }];
    let entry = world.hub.set(service.entry());
    let (pods, names) = pods(&client, &place, "pre", 1).await;
    set_status(&pods, &names[0], loops()).await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"given": "up"}}}));
    let sets = api(&client, "apps", "v1", "StatefulSet", &place);
    sets.patch("pre", &PatchParams::default(), &label).await.unwrap();

    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    let told = hook(&failed, HookPhase::PreSync, "pre");
    let cause = "Pod pre-0: container main: CrashLoopBackOff, exit code 137 (OOMKilled)";
    assert!(told.message.ends_with(cause), "{told:#?}");
    assert!(told.started.is_some() && told.ended >= told.started, "{told:#?}");
}

#[tokio::test]
async fn a_newer_version_ends_a_hook_that_runs() {
    let world = world().await;
    let place = world.hub.place("ended");
    let client = world.client().await;
    let (hangs, map) = (
        job("hangs", "farwater.dev/hook: PreSync", "1"),
        config_map("settings", "1"),
    );
    let service = Service::new(&world.hub, "ended", &[("a.yaml", &hangs), ("b.yaml", &map)]);
    let first = world.hub.set(service.entry());
    running(world, &first, HookPhase::PreSync, "hangs").await;
    let second = world.hub.set(service.with(&world.hub, &[("b.yaml", &map)]).entry());
    outcome(&world.hub, &second, Outcome::Applied).await;
    gone(&jobs(&client, &place), "hangs").await;
    let history = world.hub.history(&first.service.uid);
    let of_first = history.iter().filter(|report| report.entry == first.digest());
    assert!(
        of_first
            .map(|report| report.outcome)
            .any(|outcome| outcome == Outcome::Superseded)
    );
}

#[tokio::test]
async fn hooks_of_a_wave_begin_with_it_and_later_waves_wait_for_them() {
    let world = world().await;
    let place = world.hub.place("syncing");
    let client = world.client().await;
    let with = job("with", "farwater.dev/hook: Sync", "1");
    let now = config_map("now", "1");
    let later =
        config_map("later", "1").replace("{name: later}", "{name: later, annotations: {farwater.dev/wave: '1'}}");
    let service = Service::new(
        &world.hub,
        "syncing",
        &[("a.yaml", &with), ("b.yaml", &now), ("c.yaml", &later)],
    );
    let entry = world.hub.set(service.entry());
    let waiting = report(&world.hub, &entry, |report| {
        report.objects.iter().any(|o| o.waits_for.is_some())
    })
    .await;
    assert_eq!(object(&waiting, "ConfigMap", "now").sync, SyncState::Synced);
    assert_eq!(
        object(&waiting, "ConfigMap", "later").waits_for.as_ref().unwrap().name,
        "with"
    );
    end_job(&client, &place, "with", 0).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    value(&config_maps(&client, &place), "later", "1").await;
}

#[tokio::test]
async fn a_hook_is_never_made_over_what_is_not_its_services() {
    let world = world().await;
    let place = world.hub.place("foreign");
    let client = world.client().await;
    namespace(&client, &place).await;
    let jobs = jobs(&client, &place);
    let theirs = json!({"metadata": {"name": "pre"}, "spec": {"suspend": true, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}}}});
    jobs.create(&Default::default(), &serde_json::from_value(theirs).unwrap())
        .await
        .unwrap();
    let uid = uid_of(&jobs, "pre").await;
    let (pre, typo) = (
        job("pre", "farwater.dev/hook: PreSync", "1"),
        job("typo", "farwater.dev/hook: Before", "1"),
    );
    let map = config_map("settings", "1");
    let service = Service::new(&world.hub, "foreign", &[("a.yaml", &pre), ("b.yaml", &map)]);
    let entry = world.hub.set(service.entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        failed.message.contains("was not made by this service"),
        "{}",
        failed.message
    );
    assert_eq!(uid_of(&jobs, "pre").await, uid);
    assert!(!is_there(&config_maps(&client, &place), "settings").await);

    let entry = world
        .hub
        .set(service.with(&world.hub, &[("a.yaml", &typo), ("b.yaml", &map)]).entry());
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        failed
            .message
            .contains("farwater.dev/hook is \"Before\", and must be PreSync"),
        "{}",
        failed.message
    );
    assert!(!is_there(&config_maps(&client, &place), "settings").await);
}

#[tokio::test]
async fn hooks_of_a_deletion_run_before_and_after_it_and_nothing_is_left() {
    let world = world().await;
    let place = world.hub.place("departing");
    let client = world.client().await;
    let (before, after) = (
        job("before", "helm.sh/hook: pre-delete", "1"),
        job("after", "farwater.dev/hook: PostDelete", "1"),
    );
    let (pre, map) = (
        job("pre", "farwater.dev/hook: PreSync", "1"),
        config_map("settings", "1"),
    );
    let files = [
        ("a.yaml", before.as_str()),
        ("b.yaml", &after),
        ("c.yaml", &pre),
        ("d.yaml", &map),
    ];
    let service = Service::new(&world.hub, "departing", &files);
    let entry = world.hub.set(service.entry());
    running(world, &entry, HookPhase::PreSync, "pre").await;
    end_job(&client, &place, "pre", 0).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    let (jobs, maps) = (jobs(&client, &place), config_maps(&client, &place));
    assert!(!is_there(&jobs, "before").await && !is_there(&jobs, "after").await);

    let removal = world.hub.set(service.removal(DeletionPolicy::Delete, None));
    end_job(&client, &place, "before", 1).await;
    let failed = outcome(&world.hub, &removal, Outcome::Failed).await;
    assert!(
        failed
            .message
            .contains(&format!("PreDelete hook Job.batch {place}/before failed: exit code 1")),
        "{}",
        failed.message
    );
    assert!(is_there(&maps, "settings").await);
    // If somebody deletes the hook's object, the hook runs again.
    let uid = uid_of(&jobs, "before").await;
    jobs.delete("before", &DeleteParams::background()).await.unwrap();
    wait_for("the hook to run again", PATIENCE, || async {
        let found = jobs.get_opt("before").await?.and_then(|job| job.metadata.uid);
        Ok(found.filter(|found| *found != uid))
    })
    .await
    .unwrap();
    end_job(&client, &place, "before", 0).await;
    gone(&maps, "settings").await;
    end_job(&client, &place, "after", 0).await;
    outcome(&world.hub, &removal, Outcome::Removed).await;
    for name in ["pre", "before", "after"] {
        gone(&jobs, name).await;
    }
}

#[tokio::test]
async fn tests_run_when_all_is_healthy_and_one_that_fails_fails_the_version() {
    let world = world().await;
    let place = world.hub.place("tested");
    let client = world.client().await;
    let test =
        |name: &str| serde_json::from_value::<ServiceTest>(json!({"name": name, "image": "x", "retries": 0})).unwrap();
    let map = config_map("settings", "1");
    let mut service = Service::new(&world.hub, "tested", &[("a.yaml", &map)]);
    service.deployment.tests = vec![test("smoke"), test("load")];
    namespace(&client, &place).await;
    // More CPU than any node has: the agent creates these pods, and none can run.
    let limits = json!({"metadata": {"name": "much"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "1M"}, "defaultRequest": {"cpu": "1M"}}]}});
    create(&client, "", "v1", "LimitRange", &place, limits).await;
    let entry = world.hub.set(service.entry());
    let waiting = running(world, &entry, HookPhase::Test, "tested-test-smoke").await;
    assert_eq!(waiting.outcome, Outcome::Applying);
    assert_eq!(
        hook(&waiting, HookPhase::Test, "tested-test-smoke").test.as_deref(),
        Some("smoke")
    );
    end_job(&client, &place, "tested-test-smoke", 3).await;
    // The other test is not aborted because of that.
    report(&world.hub, &entry, |report| {
        hook(report, HookPhase::Test, "tested-test-smoke").state == HookState::Failed
    })
    .await;
    end_job(&client, &place, "tested-test-load", 0).await;
    let failed = outcome(&world.hub, &entry, Outcome::Failed).await;
    assert!(
        failed.message.contains("test smoke failed: exit code 3"),
        "{}",
        failed.message
    );
    assert_eq!(
        hook(&failed, HookPhase::Test, "tested-test-load").state,
        HookState::Succeeded
    );

    // A changed test of the same version runs again, and unchanged tests don't.
    let uid = uid_of(&jobs(&client, &place), "tested-test-load").await;
    service.deployment.tests[0].args = vec!["--quick".into()];
    let entry = world.hub.set(service.entry());
    running(world, &entry, HookPhase::Test, "tested-test-smoke").await;
    end_job(&client, &place, "tested-test-smoke", 0).await;
    outcome(&world.hub, &entry, Outcome::Applied).await;
    assert_eq!(uid_of(&jobs(&client, &place), "tested-test-load").await, uid);
}
