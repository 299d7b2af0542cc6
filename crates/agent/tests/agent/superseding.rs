//! What ends a wait: a newer version any of them, and what the API server asked for its own time alone.

use std::time::Duration;

use crate::support::{PATIENCE, config_map, config_maps, faulty::Ground, outcome, report, value};
use farwater_api::{objects::Outcome, protocol::Entry};
use farwater_testkit::{api_faults::Faults, wait_for};
use kube::api::{DeleteParams, ListParams};

impl Ground {
    /// Waits until the hub was told that an entry was superseded; it has come to no other end.
    async fn superseded(&self, entry: &Entry) {
        let outcomes = || -> Vec<Outcome> {
            let history = self.hub.history(&entry.service.uid).into_iter();
            history.filter(|report| report.entry == entry.digest()).map(|report| report.outcome).collect()
        };
        wait_for("the older version to be superseded", PATIENCE, || async {
            Ok(outcomes().contains(&Outcome::Superseded).then_some(()))
        })
        .await
        .unwrap();
        let ended = |outcome: &Outcome| matches!(outcome, Outcome::Applied | Outcome::Failed);
        assert!(!outcomes().iter().any(ended), "{:?}", outcomes());
    }

    /// How often one of a resource, or a path that is of none, was asked for.
    fn asked(&self, subject: &str) -> u64 {
        self.server.asked().get(&("GET".to_owned(), subject.to_owned())).copied().unwrap_or_default()
    }
}

#[tokio::test]
async fn a_fix_is_applied_with_the_poll_that_brings_it() {
    // Longer than it takes to apply and to report on a busy machine.
    let ground = Ground::new(5.0).await;
    // Of a class that nobody provides: it is never bound.
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
    report(&ground.hub, &first, |r| r.objects.iter().any(|o| o.waits_for.is_some())).await;
    let polls = ground.hub.polls();
    let second = ground.hub.set(service.with(&ground.hub, &[("b.yaml", &two)]).entry());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    let polls = ground.hub.polls() - polls;
    // The one that brings it, and one that was answered before it was there.
    assert!(polls <= 2, "applied {polls} polls after it was there");
    value(&config_maps(&ground.plane.client().await.unwrap(), "stuck"), "later", "2").await;
    ground.superseded(&first).await;
}

#[tokio::test]
async fn a_newer_version_ends_the_wait_that_the_api_server_asked_for() {
    let ground = Ground::new(0.2).await;
    let (one, two) = (config_map("map", "1"), config_map("map", "2"));
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: slow}\n";
    // As long as one is waited for.
    let throttled = Some(("/serviceaccounts/slow".to_owned(), Duration::from_secs(10)));
    ground.server.set(Faults { throttled, ..Faults::default() });
    let service = ground.service("throttled", &[("a.yaml", &one), ("b.yaml", account)]);
    let first = ground.hub.set(service.entry());
    wait_for("a write to be told to wait", PATIENCE, || async { Ok((ground.server.seen().refused > 0).then_some(())) })
        .await
        .unwrap();
    let second = ground.hub.set(service.with(&ground.hub, &[("a.yaml", &two)]).entry());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    value(&config_maps(&ground.plane.client().await.unwrap(), "throttled"), "map", "2").await;
    ground.superseded(&first).await;
    // Nobody waited until it might be sent again, and nobody has sent it before.
    let seen = ground.server.seen();
    assert!(seen.refused == 1 && seen.early.is_empty(), "{seen:?}");
}

#[tokio::test]
async fn what_is_refused_for_long_is_left_alone_for_as_long() {
    let ground = Ground::new(0.2).await;
    let account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: slow}\n";
    // Longer than an attempt waits for: it ends, and another one comes.
    let throttled = Some(("/serviceaccounts/slow".to_owned(), Duration::from_secs(12)));
    ground.server.set(Faults { throttled, ..Faults::default() });
    let service = ground.service("refused", &[("a.yaml", account)]);
    let entry = ground.hub.set(service.entry());
    wait_for("a write to come again", PATIENCE, || async { Ok((ground.server.seen().refused > 1).then_some(())) })
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
    let definition = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rafts.unserved.example.com}
spec:
  group: unserved.example.com
  scope: Namespaced
  names: {kind: Raft, plural: rafts}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
";
    let kind = "/apis/unserved.example.com/v1";
    ground.server.set(Faults { reads: Some((kind.to_owned(), 500)), ..Faults::default() });
    let (one, two) = (config_map("map", "1"), config_map("map", "2"));
    let service = ground.service("unserved", &[("a.yaml", definition), ("b.yaml", &one)]);
    let first = ground.hub.set(service.entry());
    // From then on it is asked for once a second, 30 s long.
    wait_for("the kind to be waited for", PATIENCE, || async { Ok((ground.asked(kind) >= 5).then_some(())) })
        .await
        .unwrap();
    let before = ground.asked(kind);
    let second = ground.hub.set(service.with(&ground.hub, &[("b.yaml", &two)]).entry());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    let asked = ground.asked(kind) - before;
    assert!(asked < 10, "the kind was asked for {asked} times after it was wanted no more");
    value(&config_maps(&ground.plane.client().await.unwrap(), "unserved"), "map", "2").await;
    ground.superseded(&first).await;
}

#[tokio::test]
async fn a_newer_version_ends_the_look_at_what_was_deleted() {
    let ground = Ground::new(0.2).await;
    let many: String = (0..100).map(|n| config_map(&format!("m{n}"), "1") + "---\n").collect();
    let (one, two) = (config_map("map", "1"), config_map("map", "2"));
    let service = ground.service("deleted", &[("a.yaml", &many), ("b.yaml", &one)]);
    let first = ground.hub.set(service.entry());
    outcome(&ground.hub, &first, Outcome::Applied).await;
    let maps = config_maps(&ground.plane.client().await.unwrap(), "deleted");
    // One after the other they would take longer than anybody waits here.
    ground.server.set(Faults { latency: Duration::from_secs(2), ..Faults::default() });
    maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    wait_for("what was deleted to be looked up", PATIENCE, || async {
        Ok((ground.asked("configmaps") > 0).then_some(()))
    })
    .await
    .unwrap();
    let second = ground.hub.set(service.with(&ground.hub, &[("a.yaml", &many), ("b.yaml", &two)]).entry());
    outcome(&ground.hub, &second, Outcome::Applied).await;
    value(&maps, "map", "2").await;
    value(&maps, "m99", "1").await;
}
