//! Connections that break, and an API server that throttles a service, cost time and nothing else.

use std::time::Duration;

use crate::support::{
    PATIENCE, api, config_map, config_maps,
    faulty::Ground,
    outcome,
    pods::{end_pod, job, node, pod, uid_of},
    report, value,
};
use farwater_api::{
    hooks::{HookPhase, HookState},
    objects::Outcome,
};
use farwater_testkit::{api_faults::Faults, wait_for};
use kube::api::{Patch, PatchParams};
use serde_json::json;

#[tokio::test]
async fn a_lost_connection_is_no_refusal_and_runs_no_hook_of_a_failure() {
    let ground = Ground::new(0.2).await;
    let place = ground.hub.place("lost");
    let (map, other) = (config_map("map", "1"), config_map("other", "1"));
    let alarm = job("alarm", "argocd.argoproj.io/hook: SyncFail", "1");
    // More losses than one attempt repeats.
    ground.server.set(Faults {
        lost: Some(("/configmaps/map".to_owned(), 6)),
        ..Faults::default()
    });
    let service = ground.service("lost", &[("a.yaml", &map), ("b.yaml", &other), ("c.yaml", &alarm)]);
    let entry = ground.hub.set(service.entry());
    let applied = outcome(&ground.hub, &entry, Outcome::Applied).await;
    let seen = ground.server.seen();
    assert_eq!(seen.lost, 6, "{seen:?}");
    assert!(applied.hooks.is_empty(), "{:#?}", applied.hooks);
    let history = ground.hub.history(&entry.service.uid);
    assert!(history.iter().all(|report| report.hooks.is_empty()), "{history:#?}");
    let maps = config_maps(&ground.plane.client().await.unwrap(), &place);
    value(&maps, "map", "1").await;
    value(&maps, "other", "1").await;
}

#[tokio::test]
async fn a_log_that_can_not_be_read_at_once_is_waited_for() {
    const LOG: &str = "it says more than its exit code\n";
    let ground = Ground::new(0.2).await;
    let place = ground.hub.place("logged");
    let client = ground.plane.client().await.unwrap();
    let _kubelet = node(&client, &place, LOG).await;
    let map = config_map("map", "1");
    let first = ground.service("logged", &[("a.yaml", &map)]);
    let entry = ground.hub.set(first.entry());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    // A namespace accepts pods when it has their service account.
    uid_of(&api(&client, "", "v1", "ServiceAccount", &place), "default").await;

    ground.server.set(Faults {
        reads: Some(("/log?".to_owned(), 503)),
        ..Faults::default()
    });
    let pre = pod("pre", "farwater.dev/hook: PreSync", &place);
    let entry = ground
        .hub
        .set(first.with(&ground.hub, &[("a.yaml", &map), ("b.yaml", &pre)]).entry());
    report(&ground.hub, &entry, |report| {
        report.hooks.iter().any(|hook| hook.state == HookState::Running)
    })
    .await;
    end_pod(&client, &place, "pre", 0).await;
    report(&ground.hub, &entry, |report| {
        report
            .hooks
            .iter()
            .any(|hook| hook.message.contains("log can't be read"))
    })
    .await;
    ground.server.set(Faults::default());
    let applied = outcome(&ground.hub, &entry, Outcome::Applied).await;
    let hook = applied
        .hooks
        .iter()
        .find(|hook| hook.phase == HookPhase::PreSync)
        .unwrap();
    assert_eq!((hook.state, hook.log.as_deref()), (HookState::Succeeded, Some(LOG)));
}

#[tokio::test]
async fn watches_that_begin_together_share_a_connection() {
    let ground = Ground::new(0.2).await;
    let kinds = [
        ("v1", "ConfigMap", ""),
        ("v1", "Secret", ""),
        ("v1", "ServiceAccount", ""),
        ("v1", "Service", "spec: {clusterIP: None}"),
        (
            "v1",
            "PodTemplate",
            "template: {spec: {containers: [{name: main, image: x}]}}",
        ),
        ("rbac.authorization.k8s.io/v1", "Role", "rules: []"),
        ("networking.k8s.io/v1", "NetworkPolicy", "spec: {podSelector: {}}"),
        ("policy/v1", "PodDisruptionBudget", "spec: {minAvailable: 1}"),
        ("v1", "LimitRange", "spec: {limits: []}"),
        ("v1", "ResourceQuota", "spec: {hard: {pods: '9'}}"),
    ];
    let files: Vec<(String, String)> = kinds
        .iter()
        .map(|(version, kind, rest)| {
            let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: one}}\n{rest}\n");
            (format!("{kind}.yaml"), text)
        })
        .collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let entry = ground.hub.set(ground.service("together", &files).entry());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    let watched = || async { Ok((ground.server.seen().watches >= kinds.len() as u64).then_some(())) };
    wait_for("each kind to be watched", PATIENCE, watched).await.unwrap();
    let seen = ground.server.seen();
    // One connection for the watches, and one for everything else.
    assert_eq!(seen.connections, 2, "{seen:?}");
}

#[tokio::test]
async fn a_watch_that_breaks_again_and_again_is_opened_again_soon() {
    let ground = Ground::new(0.2).await;
    let place = ground.hub.place("broken");
    ground.server.set(Faults {
        cut: Some(Duration::from_secs(2)),
        ..Faults::default()
    });
    // Each round changes another object: whoever changes the same one again and again is in a fight, and the agent
    // pauses.
    let names: Vec<_> = (0..10).map(|round| format!("map-{round}")).collect();
    let all: String = names
        .iter()
        .map(|name| format!("---\n{}", config_map(name, "1")))
        .collect();
    let entry = ground.hub.set(ground.service("broken", &[("a.yaml", &all)]).entry());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
    let client = ground.plane.client().await.unwrap();
    let maps = config_maps(&client, &place);
    let other = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    // If each wait were twice as long as the last one, the later rounds would time out.
    for name in &names {
        let cut = ground.server.seen().cut;
        maps.patch(name, &other, &Patch::Merge(json!({"data": {"value": "x"}})))
            .await
            .unwrap();
        value(&maps, name, "1").await;
        wait_for("another watch", PATIENCE, || async {
            Ok((ground.server.seen().cut > cut).then_some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn a_service_that_is_made_to_wait_keeps_no_other_waiting() {
    let ground = Ground::new(0.2).await;
    let maps = |count: usize| -> String {
        (0..count)
            .map(|n| format!("---\n{}", config_map(&format!("map-{n}"), "1")))
            .collect()
    };
    let service = ground.service("free", &[("a.yaml", &maps(1))]);
    let free = ground.hub.set(service.entry());
    outcome(&ground.hub, &free, Outcome::Applied).await;
    let path = format!("/namespaces/{}/configmaps/", ground.hub.place("held"));
    // The longest time for which an attempt waits.
    let throttled = (path, Duration::from_secs(10));
    ground.server.set(Faults {
        throttled: Some(throttled),
        ..Faults::default()
    });
    // More requests than all services together may have in flight.
    let held = ground
        .hub
        .set(ground.service("held", &[("a.yaml", &maps(100))]).entry());
    let refused = || async { Ok((ground.server.seen().refused >= 64).then_some(())) };
    wait_for("all turns to be taken", PATIENCE, refused).await.unwrap();
    let free = ground
        .hub
        .set(service.with(&ground.hub, &[("a.yaml", &maps(10))]).entry());
    outcome(&ground.hub, &free, Outcome::Applied).await;
    // No waiting request was sent a second time too early.
    let seen = ground.server.seen();
    assert!(seen.refused <= 100, "{seen:?}");
    ground.server.set(Faults::default());
    outcome(&ground.hub, &held, Outcome::Applied).await;
}
