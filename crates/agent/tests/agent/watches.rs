//! Changes that a watch does not report are found nevertheless.

use std::time::Duration;

use crate::support::{
    FakeHub, PATIENCE, Service, config_map, config_maps, local::LocalAgent, outcome, turn::Turn, value,
};
use farwater_agent::WatchLimits;
use farwater_api::objects::Outcome;
use farwater_testkit::{
    api_faults::{ApiFaults, Asked, Faults},
    wait_for,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::json;

/// An applied service and an agent in this process, because no option sets how long it trusts its watches. Fields are
/// dropped in order.
struct Ground {
    _agent: LocalAgent,
    /// The proxy between the agent and the API server.
    way: ApiFaults,
    live: Api<DynamicObject>,
    _hub: FakeHub,
    _dir: tempfile::TempDir,
    _turn: Turn,
}

impl Ground {
    async fn new(watches: WatchLimits) -> Self {
        let turn = Turn::take().await;
        let hub = FakeHub::start();
        let dir = tempfile::tempdir().unwrap();
        let way = ApiFaults::start(turn.plane, dir.path(), 1).await.unwrap();
        let agent = LocalAgent::start(&hub, |options| {
            options.kubeconfig = Some(way.kubeconfig().to_owned());
            options.state_dir = dir.path().join("state");
            options.watches = watches;
        });
        let (a, b) = (config_map("a", "1"), config_map("b", "1"));
        let service = Service::new(&hub, "watched", &[("a.yaml", &a), ("b.yaml", &b)]);
        let entry = hub.set(service.entry());
        outcome(&hub, &entry, Outcome::Applied).await;
        let live = config_maps(&turn.plane.client().await.unwrap(), &hub.place("watched"));
        let ground = Self {
            _agent: agent,
            way,
            live,
            _hub: hub,
            _dir: dir,
            _turn: turn,
        };
        ground.watched(1).await;
        ground
    }

    /// Waits until this many more watches have been opened.
    async fn watched(&self, more: u64) {
        let before = self.way.seen().watches;
        let what = format!("{more} more watches after {before}");
        let watched = || async { Ok((self.way.seen().watches >= before + more).then_some(())) };
        wait_for(&what, PATIENCE, watched).await.unwrap();
    }

    /// The agent's requests besides watches and its Lease.
    fn asked(&self) -> Asked {
        let mut asked = self.way.asked();
        asked.retain(|(verb, resource), _| verb != "WATCH" && resource != "leases");
        asked
    }

    /// The same, once no more requests come.
    async fn at_rest(&self) -> Asked {
        let rests = || async {
            let first = self.asked();
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok((self.asked() == first).then_some(first))
        };
        wait_for("the agent to be at rest", PATIENCE, rests).await.unwrap()
    }

    /// Changes an object of the service as somebody else.
    async fn change(&self, name: &str) {
        let patch = Patch::Merge(json!({"data": {"value": "changed"}}));
        self.live.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_watch_goes_on_where_it_was_and_lists_nothing() {
    let limits = WatchLimits {
        silence: Duration::from_secs(1),
        ..WatchLimits::default()
    };
    let ground = Ground::new(limits).await;

    // If nothing changes, the watch is opened again and again, and nothing else is requested.
    let before = ground.at_rest().await;
    ground.watched(3).await;
    assert_eq!(ground.asked(), before);

    let lists = ground.way.seen().lists;
    ground.way.set(Faults {
        stall: true,
        ..Faults::default()
    });
    ground.change("a").await;
    let held = || async { Ok((ground.way.seen().stalled > 0).then_some(())) };
    wait_for("the change to be held back", PATIENCE, held).await.unwrap();
    ground.way.set(Faults::default());
    value(&ground.live, "a", "1").await;
    assert_eq!(ground.way.seen().lists, lists);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_event_told_is_found_by_a_list() {
    let limits = WatchLimits {
        unlisted: Duration::from_secs(2),
        ..WatchLimits::default()
    };
    let ground = Ground::new(limits).await;
    ground.way.set(Faults {
        swallow: Some("a".to_owned()),
        ..Faults::default()
    });
    ground.change("a").await;
    value(&ground.live, "a", "1").await;
    ground.live.delete("a", &DeleteParams::default()).await.unwrap();
    value(&ground.live, "a", "1").await;
    assert!(ground.way.seen().swallowed > 0, "{:?}", ground.way.seen());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_loses_its_version_while_it_runs_goes_on_with_a_list() {
    let limits = WatchLimits {
        silence: Duration::from_secs(1),
        ..WatchLimits::default()
    };
    let ground = Ground::new(limits).await;
    let lists = ground.way.seen().lists;
    // No event reports the change, so only the list can.
    ground.way.set(Faults {
        swallow: Some("a".to_owned()),
        expired_later: 1.0,
        ..Faults::default()
    });
    ground.change("a").await;
    value(&ground.live, "a", "1").await;
    let seen = ground.way.seen();
    assert!(seen.expired_later > 0 && seen.lists > lists, "{seen:?}");
}
