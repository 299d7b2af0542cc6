//! When something newer comes, the running attempt ends between two objects, and the newer one judges the rest.

use std::{collections::BTreeMap, ops::Deref, time::Duration};

use crate::support::{PATIENCE, Service, config_map, config_maps, faulty, outcome, report, value};
use farwater_api::{deletion::undo_request, objects::Outcome, protocol::Entry, service_deployment::HeldPrune};
use farwater_testkit::{api_faults::Faults, wait_for};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};

const ALL: usize = 1000;
/// Few enough deletions that no guard holds them.
const LEAVING: usize = 190;
/// Objects that must be left for the newer version to judge.
const SOME: usize = 20;

/// A service with `ALL` objects, applied by an agent whose API server can be slow.
struct Ground {
    faulty: faulty::Ground,
    maps: Api<DynamicObject>,
    service: Service,
}

fn stated(count: usize) -> String {
    (0..count)
        .map(|n| format!("---\n{}", config_map(&format!("map-{n}"), "1")))
        .collect()
}

impl Deref for Ground {
    type Target = faulty::Ground;

    fn deref(&self) -> &faulty::Ground {
        &self.faulty
    }
}

impl Ground {
    async fn new(name: &str) -> Self {
        let faulty = faulty::Ground::new(0.1).await;
        let service = Service::new(&faulty.hub, name, &[("a.yaml", &stated(ALL))]);
        let entry = faulty.hub.set(service.entry());
        outcome(&faulty.hub, &entry, Outcome::Applied).await;
        let maps = config_maps(&faulty.plane.client().await.unwrap(), &faulty.hub.place(name));
        Self { faulty, maps, service }
    }

    /// The service with fewer objects.
    fn of(&self, count: usize) -> Service {
        self.service.with(&self.hub, &[("a.yaml", &stated(count))])
    }

    fn be_slow(&self) {
        self.server.set(Faults {
            latency: Duration::from_millis(500),
            ..Faults::default()
        });
    }

    /// Uids by name.
    async fn uids(&self) -> BTreeMap<String, String> {
        let list = self.maps.list(&ListParams::default()).await.unwrap();
        let named = list
            .into_iter()
            .filter_map(|map| Some((map.metadata.name?, map.metadata.uid?)));
        named.filter(|(name, _)| name.starts_with("map-")).collect()
    }

    async fn until(&self, what: &str, is_so: impl Fn(usize) -> bool) {
        wait_for(what, PATIENCE, || async {
            Ok(is_so(self.uids().await.len()).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until a newer version ended an attempt, and makes the API server fast again.
    async fn overtaken(&self, entry: &Entry) {
        self.superseded(entry).await;
        self.server.set(Faults::default());
    }
}

#[tokio::test]
async fn a_newer_version_ends_a_prune_that_is_under_way() {
    let ground = Ground::new("reverted").await;
    let before = ground.uids().await;
    ground.be_slow();
    let mistake = ground.hub.set(ground.of(ALL - LEAVING).entry());
    ground.until("ten objects to be gone", |count| count <= ALL - 10).await;
    let revert = ground.hub.set(ground.service.entry());
    ground.overtaken(&mistake).await;
    outcome(&ground.hub, &revert, Outcome::Applied).await;
    let after = ground.uids().await;
    assert_eq!(after.len(), ALL);
    let stayed = before
        .iter()
        .filter(|(name, uid)| after.get(*name) == Some(*uid))
        .count();
    assert!(
        (ALL - LEAVING + SOME..=ALL - 10).contains(&stayed),
        "{stayed} of {ALL} stayed"
    );

    // A hold is such a newer version too: the remaining deletions wait, although they had passed the guards.
    let remaining = ALL - LEAVING + 1;
    let fewer = ground.of(remaining);
    ground.be_slow();
    let pruned = ground.hub.set(fewer.entry());
    ground.until("ten objects to be gone", |count| count <= ALL - 10).await;
    let mut stopped = fewer.clone();
    (stopped.deployment.prune, stopped.deployment.hold_prune) = (false, Some("somebody has stopped it".to_owned()));
    let stopped = ground.hub.set(stopped.entry());
    ground.overtaken(&pruned).await;
    let held = report(&ground.hub, &stopped, |report| report.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    let left = ground.uids().await.len() - remaining;
    assert_eq!(held.count as usize, left, "{held:#?}");
    assert!(left >= SOME, "{left} are left");
}

#[tokio::test]
async fn a_hold_that_comes_while_the_agent_is_down_stops_what_it_had_begun() {
    let mut ground = Ground::new("killed").await;
    let remaining = ALL - LEAVING;
    let fewer = ground.of(remaining);
    ground.be_slow();
    ground.hub.set(fewer.entry());
    ground.until("ten objects to be gone", |count| count <= ALL - 10).await;
    ground.faulty.kill();
    ground.server.set(Faults::default());

    let mut stopped = fewer.clone();
    (stopped.deployment.prune, stopped.deployment.hold_prune) = (false, Some("somebody has stopped it".to_owned()));
    let stopped = ground.hub.set(stopped.entry());
    ground.faulty.restart();
    let held = report(&ground.hub, &stopped, |report| report.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    let left = ground.uids().await.len() - remaining;
    assert_eq!(held.count as usize, left, "{held:#?}");
    assert!(left >= SOME, "{left} are left");

    // The version that began the prune may continue, and this part of a service needs no approval.
    let pruned = ground.hub.set(fewer.entry());
    outcome(&ground.hub, &pruned, Outcome::Applied).await;
    assert_eq!(ground.uids().await.len(), remaining);
}

#[tokio::test]
async fn an_approved_prune_that_was_stopped_goes_on_as_soon_as_it_may() {
    // More deletions than are allowed without an approval.
    const REMAINING: usize = ALL - 210;
    let ground = Ground::new("approved").await;
    let mut fewer = ground.of(REMAINING);
    let waiting = ground.hub.set(fewer.entry());
    let held = report(&ground.hub, &waiting, |report| report.held_prune.is_some())
        .await
        .held_prune
        .unwrap();
    assert_eq!(held.count as usize, ALL - REMAINING, "{held:#?}");
    ground.be_slow();
    let mut stopped = fewer.clone();
    (stopped.deployment.prune, stopped.deployment.hold_prune) = (false, Some("somebody has stopped it".to_owned()));
    fewer.deployment.approved_prune = Some(held.digest);
    let approved = ground.hub.set(fewer.entry());
    ground.until("ten objects to be gone", |count| count <= ALL - 10).await;
    let stopped = ground.hub.set(stopped.entry());
    ground.overtaken(&approved).await;
    let is_rest = |prune: &HeldPrune| prune.digest != held.digest;
    let rest = report(&ground.hub, &stopped, |report| {
        report.held_prune.as_ref().is_some_and(is_rest)
    })
    .await;
    let rest = rest.held_prune.unwrap();
    assert!((SOME..ALL - REMAINING).contains(&(rest.count as usize)), "{rest:#?}");
    let approved = ground.hub.set(fewer.entry());
    outcome(&ground.hub, &approved, Outcome::Applied).await;
    assert_eq!(ground.uids().await.len(), REMAINING);
}

#[tokio::test]
async fn a_newer_version_ends_an_undo_that_is_under_way_and_the_next_attempt_goes_on_with_it() {
    let ground = Ground::new("undone").await;
    let remaining = ALL - LEAVING;
    let mut fewer = ground.of(remaining);
    let pruned = ground.hub.set(fewer.entry());
    let deletion = outcome(&ground.hub, &pruned, Outcome::Applied).await.deletion.unwrap();
    assert_eq!(
        (deletion.count as usize, ground.uids().await.len()),
        (LEAVING, remaining)
    );
    ground.be_slow();
    fewer.deployment.undo = Some(undo_request(&deletion.digest, "1"));
    let asked = ground.hub.set(fewer.entry());
    ground
        .until("ten objects to be back", |count| count >= remaining + 10)
        .await;
    let changed = stated(remaining).replacen("\"1\"", "\"2\"", 1);
    let newer = ground.hub.set(fewer.with(&ground.hub, &[("a.yaml", &changed)]).entry());
    // The newer version is applied before the remaining objects are restored.
    value(&ground.maps, "map-0", "2").await;
    let back = ground.uids().await.len();
    assert!(back <= ALL - SOME, "{back} of {ALL} are there");
    ground.overtaken(&asked).await;
    let applied = outcome(&ground.hub, &newer, Outcome::Applied).await;
    let undone = applied.deletion.unwrap().undone.unwrap();
    assert_eq!((undone.restored as usize, undone.failed), (LEAVING, 0), "{undone:#?}");
    assert_eq!(ground.uids().await.len(), ALL);
}
