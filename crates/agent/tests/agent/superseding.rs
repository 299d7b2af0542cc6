//! What ends a wait: a newer version ends every wait of an attempt. A request that the API server throttled is still
//! not repeated before its time.

use std::time::Duration;

use crate::support::{
    PATIENCE, config_map, config_maps, fake_hub::connections::Behaviour, faulty::Ground, outcome, report, value,
};
use farwater_api::objects::Outcome;
use farwater_testkit::{api_faults::Faults, wait_for};
use kube::api::{DeleteParams, ListParams};

impl Ground {
    /// How often an object of this resource, or this other path, was requested.
    fn asked(&self, subject: &str) -> u64 {
        self.server
            .asked()
            .get(&("GET".to_owned(), subject.to_owned()))
            .copied()
            .unwrap_or_default()
    }
}

#[tokio::test]
async fn a_fix_is_applied_with_the_poll_that_brings_it() {
    // The agent polls only when the hub asks for it, so no later poll can make up for what an earlier one missed.
    let ground = Ground::new(0.2).await;
    let connections = &ground.hub.connections;
    connections.behave(Behaviour::Serve);
    connections.welcome(30.0, 3000.0);
    wait_for("the agent to be connected", PATIENCE, || async {
        Ok((connections.open_now() == 1).then_some(()))
    })
    .await
    .unwrap();
    let place = ground.hub.place("stuck");
    // Of a class that doesn't exist, so it is never bound.
    let claim = "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: nobodys, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";
    let later = |value: &str| {
        config_map("later", value).replace("{name: later}", "{name: later, annotations: {farwater.dev/wave: '1'}}")
    };
    let (one, two) = (later("1"), later("2"));
    let service = ground.service("stuck", &[("a.yaml", claim), ("b.yaml", &one)]);
    let first = ground.hub.set(service.entry());
    connections.hint(ground.hub.generation());
    report(&ground.hub, &first, |r| r.objects.iter().any(|o| o.waits_for.is_some())).await;
    let polls = ground.hub.polls();
    let second = ground.hub.set(service.with(&ground.hub, &[("b.yaml", &two)]).entry());
    connections.hint(ground.hub.generation());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    let polls = ground.hub.polls() - polls;
    // The poll that brings the fix, and one that was answered before it.
    assert!(polls <= 2, "applied {polls} polls after it was there");
    value(
        &config_maps(&ground.plane.client().await.unwrap(), &place),
        "later",
        "2",
    )
    .await;
    ground.superseded(&first).await;
}

#[tokio::test]
async fn a_newer_version_ends_the_wait_that_the_api_server_asked_for() {
    let ground = Ground::new(0.2).await;
    let place = ground.hub.place("throttled");
    let (one, two) = (config_map("map", "1"), config_map("map", "2"));
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: slow}\n";
    // The longest time for which an attempt waits.
    let throttled = Some(("/serviceaccounts/slow".to_owned(), Duration::from_secs(10)));
    ground.server.set(Faults {
        throttled,
        ..Faults::default()
    });
    let service = ground.service("throttled", &[("a.yaml", &one), ("b.yaml", account)]);
    let first = ground.hub.set(service.entry());
    wait_for("a write to be told to wait", PATIENCE, || async {
        Ok((ground.server.seen().refused > 0).then_some(()))
    })
    .await
    .unwrap();
    let second = ground.hub.set(service.with(&ground.hub, &[("a.yaml", &two)]).entry());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    value(&config_maps(&ground.plane.client().await.unwrap(), &place), "map", "2").await;
    ground.superseded(&first).await;
    // The newer version did not wait until the request could be sent again, and the request was not sent too early.
    let seen = ground.server.seen();
    assert!(seen.refused == 1 && seen.early.is_empty(), "{seen:?}");
}

#[tokio::test]
async fn what_is_refused_for_long_is_left_alone_for_as_long() {
    let ground = Ground::new(0.2).await;
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: slow}\n";
    // Longer than an attempt waits: it ends, and another one comes.
    let throttled = Some(("/serviceaccounts/slow".to_owned(), Duration::from_secs(12)));
    ground.server.set(Faults {
        throttled,
        ..Faults::default()
    });
    let service = ground.service("refused", &[("a.yaml", account)]);
    let entry = ground.hub.set(service.entry());
    wait_for("a write to come again", PATIENCE, || async {
        Ok((ground.server.seen().refused > 1).then_some(()))
    })
    .await
    .unwrap();
    let seen = ground.server.seen();
    assert!(seen.early.is_empty(), "{seen:?}");
    ground.server.set(Faults::default());
    outcome(&ground.hub, &entry, Outcome::Applied).await;
}

#[tokio::test]
async fn a_newer_version_ends_the_wait_for_a_definition() {
    let ground = Ground::new(0.2).await;
    let place = ground.hub.place("unserved");
    let group = ground.hub.group("unserved");
    let definition = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rafts.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {kind: Raft, plural: rafts}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
"
    .replace("GROUP", &group);
    let kind = format!("/apis/{group}/v1");
    ground.server.set(Faults {
        reads: Some((kind.clone(), 500)),
        ..Faults::default()
    });
    let (one, two) = (config_map("map", "1"), config_map("map", "2"));
    let service = ground.service("unserved", &[("a.yaml", &definition), ("b.yaml", &one)]);
    let first = ground.hub.set(service.entry());
    // From then on the kind is requested once a second for 30 s.
    wait_for("the kind to be waited for", PATIENCE, || async {
        Ok((ground.asked(&kind) >= 5).then_some(()))
    })
    .await
    .unwrap();
    let second = ground.hub.set(service.with(&ground.hub, &[("b.yaml", &two)]).entry());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    let (asked, polls) = (ground.asked(&kind), ground.hub.polls());
    wait_for("some polls", PATIENCE, || async {
        Ok((ground.hub.polls() >= polls + 10).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(
        ground.asked(&kind),
        asked,
        "the kind was asked for though it was wanted no more"
    );
    value(&config_maps(&ground.plane.client().await.unwrap(), &place), "map", "2").await;
    ground.superseded(&first).await;
}

#[tokio::test]
async fn a_newer_version_ends_the_look_at_what_was_deleted() {
    let ground = Ground::new(0.2).await;
    let place = ground.hub.place("deleted");
    let many: String = (0..100).map(|n| config_map(&format!("m{n}"), "1") + "---\n").collect();
    let (one, two) = (config_map("map", "1"), config_map("map", "2"));
    let service = ground.service("deleted", &[("a.yaml", &many), ("b.yaml", &one)]);
    let first = ground.hub.set(service.entry());
    outcome(&ground.hub, &first, Outcome::Applied).await;
    let maps = config_maps(&ground.plane.client().await.unwrap(), &place);
    // One after the other, the lookups would take longer than the test waits.
    ground.server.set(Faults {
        latency: Duration::from_secs(2),
        ..Faults::default()
    });
    maps.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    wait_for("what was deleted to be looked up", PATIENCE, || async {
        Ok((ground.asked("configmaps") > 0).then_some(()))
    })
    .await
    .unwrap();
    let second = ground.hub.set(
        service
            .with(&ground.hub, &[("a.yaml", &many), ("b.yaml", &two)])
            .entry(),
    );
    outcome(&ground.hub, &second, Outcome::Applied).await;
    value(&maps, "map", "2").await;
    value(&maps, "m99", "1").await;
}
