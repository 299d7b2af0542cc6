//! How long unhealthy objects are waited for, and how often they are read, with an agent whose limits are shorter than
//! usual.

use std::time::{Duration, Instant};

use crate::{
    health::{healthy, pods, pulls, ready, said, workload},
    support::{
        FakeHub, PATIENCE, Service,
        custom::{custom, define, in_next_wave, set_status},
        local::LocalAgent,
        object, outcome,
        turn::Turn,
    },
};
use farwater_agent::HealthLimits;
use farwater_api::objects::{Health, Outcome};
use farwater_fleet::health::unseen::NEVER_SEEN;
use farwater_testkit::{Plane, api_faults::ApiFaults, wait_for};

/// Fields are dropped in order: the agent ends before the next one may start.
struct Ground {
    _agent: LocalAgent,
    /// The proxy between the agent and the API server.
    way: ApiFaults,
    hub: FakeHub,
    plane: &'static Plane,
    _dir: tempfile::TempDir,
    _turn: Turn,
}

impl Ground {
    async fn new(health: HealthLimits) -> Self {
        let turn = Turn::take().await;
        let (hub, dir) = (FakeHub::start(), tempfile::tempdir().unwrap());
        let way = ApiFaults::start(turn.plane, dir.path(), 1).await.unwrap();
        let agent = LocalAgent::start(&hub, |options| {
            options.kubeconfig = Some(way.kubeconfig().to_owned());
            options.state_dir = dir.path().join("state");
            options.health = health;
        });
        Self {
            _agent: agent,
            way,
            hub,
            plane: turn.plane,
            _dir: dir,
            _turn: turn,
        }
    }

    /// How often this resource has been listed so far.
    fn lists(&self, resource: &str) -> u64 {
        self.way
            .asked()
            .get(&("LIST".to_owned(), resource.to_owned()))
            .copied()
            .unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_resource_is_not_waited_for_for_ever() {
    let unseen = Duration::from_secs(3);
    let ground = Ground::new(HealthLimits {
        unseen,
        ..HealthLimits::default()
    })
    .await;
    let group = ground.hub.group("unseen");
    define(&ground.plane.client().await.unwrap(), &group, "Boat").await;
    let (boat, next) = (custom(&group, "Boat", "alone"), in_next_wave("next"));
    let service = Service::new(&ground.hub, "unseen", &[("a.yaml", &boat), ("b.yaml", &next)]);
    let begun = Instant::now();
    let entry = ground.hub.set(service.entry());
    let given_up = outcome(&ground.hub, &entry, Outcome::Applied).await;
    let boat = object(&given_up, "Boat", "alone");
    assert_eq!((boat.health, boat.message.as_str()), (Health::Current, NEVER_SEEN));
    // API servers record the creation of an object to the second.
    assert!(
        begun.elapsed() > unseen - Duration::from_secs(1),
        "after {:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasons_are_asked_for_rarely_and_not_at_all_when_all_is_well() {
    let look = Duration::from_millis(200);
    let ground = Ground::new(HealthLimits {
        first_look: look,
        next_look: look,
        ..HealthLimits::default()
    })
    .await;
    let (hub, client) = (&ground.hub, ground.plane.client().await.unwrap());
    let service = Service::new(hub, "rarely", &[("a.yaml", &workload("StatefulSet", "db", 1))]);
    let entry = hub.set(service.entry());
    let (pods, names) = pods(&client, &hub.place("rarely"), "db", 1).await;
    set_status(&pods, &names[0], pulls()).await;
    said(
        hub,
        &entry,
        "StatefulSet",
        "db",
        "Pod db-0: container main: ImagePullBackOff",
    )
    .await;
    // Since nothing changes, the pause between looks doubles. Only the StatefulSet's own status may shorten it once.
    let (before, begun) = (ground.lists("pods"), Instant::now());
    wait_for("four looks", PATIENCE, || async {
        Ok((ground.lists("pods") >= before + 4).then_some(()))
    })
    .await
    .unwrap();
    assert!(begun.elapsed() > 6 * look, "four looks in {:?}", begun.elapsed());

    set_status(&pods, &names[0], ready()).await;
    healthy(hub, &entry, "StatefulSet", "db").await;
    let lists = || ["pods", "replicasets", "events"].map(|resource| ground.lists(resource));
    // A look that is in progress ends within two polls.
    let seen = hub.polls();
    wait_for("two polls", PATIENCE, || async {
        Ok((hub.polls() >= seen + 2).then_some(()))
    })
    .await
    .unwrap();
    let (before, polls) = (lists(), hub.polls());
    // The next look would have come during these polls.
    wait_for("some polls", PATIENCE, || async {
        Ok((hub.polls() >= polls + 14).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(lists(), before);
}
