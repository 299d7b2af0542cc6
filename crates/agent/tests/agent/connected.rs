//! A connection in addition to the polls: what it speeds up, and that nothing else depends on it.

use std::time::{Duration, Instant};

use crate::support::{FakeHub, PATIENCE, Service, config_map, fake_hub::connections::Behaviour, outcome, turn::Turn};
use farwater_api::{
    objects::{Outcome, ServiceReport},
    protocol::Hint,
};
use farwater_testkit::{Process, wait_for};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// Seconds between polls that are longer than any test, so that each poll follows a hint.
const NEVER: f64 = 3000.0;
/// Seconds between polls without a connection. `USUAL`: short enough that no test times out. `RARE`: long enough that a
/// poll must have another reason.
const USUAL: f64 = 20.0;
const RARE: f64 = 600.0;
/// Seconds of silence that even a busy machine doesn't reach.
const KEEP_ALIVE: f64 = 30.0;

/// Fields are dropped in order: the agent ends before the next one may start.
struct Ground {
    _agent: Process,
    hub: FakeHub,
    service: Service,
    dir: tempfile::TempDir,
    _turn: Turn,
}

impl Ground {
    /// Starts an agent, and waits until it has applied the service once by polling.
    async fn start(behaviour: Behaviour) -> Self {
        let turn = Turn::take().await;
        let hub = FakeHub::start();
        hub.connections.behave(behaviour);
        hub.connections.welcome(KEEP_ALIVE, NEVER);
        let service = Service::new(&hub, "web", &[("map.yaml", &config_map("map", "0"))]);
        let entry = hub.set(service.entry());
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("agent.log");
        let agent = crate::support::agent(&hub, turn.plane.kubeconfig(), &dir.path().join("state"), &log, true);
        let ground = Self {
            _agent: agent,
            hub,
            service,
            dir,
            _turn: turn,
        };
        outcome(&ground.hub, &entry, Outcome::Applied).await;
        ground
    }

    /// Like `start`, but the agent is connected and polls only when it is told to. `usual`: seconds between polls
    /// without the connection.
    async fn connected(usual: f64) -> Self {
        let ground = Self::start(Behaviour::Serve).await;
        ground
            .until("the agent to be connected", || ground.hub.connections.open_now() == 1)
            .await;
        // The first interval was a short one.
        ground.hub.poll_every(usual);
        ground.hub.connections.say(&Hint::Poll { desired: None });
        ground.rest().await;
        ground
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let waited = wait_for(what, PATIENCE, || async { Ok(holds().then_some(())) }).await;
        waited.unwrap_or_else(|error| panic!("{error:#}\n{}", self.log()));
    }

    /// Waits until no poll has come for two seconds.
    async fn rest(&self) {
        let mut polls = self.hub.polls();
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.hub.polls();
            if now != polls {
                (polls, since) = (now, Instant::now());
            }
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap()
    }

    /// Changes the service's content without a hint, and returns the entry with its generation.
    fn change(&self, value: &str) -> (farwater_api::protocol::Entry, u64) {
        let entry = self
            .service
            .with(&self.hub, &[("map.yaml", &config_map("map", value))])
            .entry();
        let entry = self.hub.set(entry);
        (entry, self.hub.generation())
    }

    async fn applied(&self, entry: &farwater_api::protocol::Entry) {
        outcome(&self.hub, entry, Outcome::Applied).await;
    }
}

#[tokio::test]
async fn a_hint_is_followed_at_once_and_one_that_is_no_news_is_not() {
    let ground = Ground::connected(RARE).await;
    let hub = &ground.hub;
    let polls = hub.polls();

    // Only the hint makes the agent poll in time.
    let (entry, generation) = ground.change("1");
    hub.connections.hint(generation);
    ground.applied(&entry).await;
    ground.rest().await;
    assert_eq!(hub.polls(), polls + 1, "{}", ground.log());

    // Hints that come twice, late, unreadable, or from a newer hub.
    for _ in 0..50 {
        hub.connections.hint(generation);
        hub.connections.hint(generation - 1);
        hub.connections.say_text("{");
        hub.connections.say_text(r#"{"type":"Sing"}"#);
    }
    ground.rest().await;
    assert_eq!(hub.polls(), polls + 1, "{}", ground.log());

    // Hints in the wrong order: the newest state is fetched once, and the older hint changes nothing.
    ground.change("2");
    let (entry, generation) = ground.change("3");
    hub.connections.hint(generation);
    hub.connections.hint(generation - 1);
    ground.applied(&entry).await;
    ground.rest().await;
    assert_eq!(hub.polls(), polls + 2, "{}", ground.log());

    // Many hints don't cause many polls.
    for ahead in 1..=500 {
        hub.connections.hint(generation + ahead);
    }
    ground.rest().await;
    assert!(hub.polls() <= polls + 20, "{} polls", hub.polls() - polls);
    let log = ground.log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn whatever_becomes_of_hints_the_agent_gets_where_the_polls_would_have_brought_it() {
    let ground = Ground::connected(USUAL).await;
    let hub = &ground.hub;
    let mut random = StdRng::seed_from_u64(6);
    let mut newest = hub.generation();
    let mut changes = Vec::new();
    for step in 0..150 {
        match random.random_range(0..8) {
            0..3 => {
                let (changed, generation) = ground.change(&format!("{step}"));
                newest = generation;
                changes.push(changed);
                // Otherwise the hint is lost.
                if random.random_bool(0.5) {
                    hub.connections.hint(generation);
                }
            }
            3 => hub.connections.hint(newest),
            4 => hub.connections.hint(random.random_range(0..newest)),
            5 => hub.connections.say(&Hint::Poll { desired: None }),
            6 => hub.connections.say_text("not JSON"),
            _ if random.random_bool(0.2) => hub.connections.cut(),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..60))).await;
    }
    // Changes whose hints were lost come with the next poll.
    hub.connections.welcome(KEEP_ALIVE, 0.5);
    hub.poll_every(0.5);
    ground.applied(changes.last().unwrap()).await;
    assert_eq!(hub.accepted_generation(), Some(newest));
    // The agent has skipped some changes, and never went back.
    let place = |report: &ServiceReport| changes.iter().position(|entry| entry.digest() == report.entry);
    let history = hub.history(ground.service.uid());
    let applied = history
        .iter()
        .filter(|report| report.outcome == Outcome::Applied)
        .map(place);
    let applied: Vec<_> = applied.collect();
    assert!(applied.is_sorted(), "{applied:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_or_falls_silent_is_not_trusted_and_is_opened_again() {
    // Without a connection the agent polls too rarely for this test. So the changes came with the poll after a loss.
    let ground = Ground::connected(RARE).await;
    let hub = &ground.hub;

    let (entry, _) = ground.change("cut");
    let asked = hub.connections.asked();
    hub.connections.cut();
    ground.applied(&entry).await;
    ground
        .until("another connection", || {
            hub.connections.asked() > asked && hub.connections.open_now() == 1
        })
        .await;

    // The test must break a connection that the agent knows of: it can't lose one that was over before.
    let opened = || ground.log().matches("connected to the hub").count();
    let before = opened();
    hub.connections.welcome(1.0, NEVER);
    ground
        .until("the agent to expect a word soon", || opened() > before)
        .await;
    let (entry, _) = ground.change("silent");
    let before = opened();
    hub.connections.fall_silent();
    ground.applied(&entry).await;
    assert!(
        ground
            .log()
            .contains("nothing was heard for longer than the hub promised"),
        "{}",
        ground.log()
    );
    ground.until("another connection", || opened() > before).await;

    // The hub stops in order, and says when to come back.
    let (entry, _) = ground.change("stopped");
    hub.connections.say(&Hint::Return { within_seconds: 0.5 });
    hub.connections.cut();
    ground.applied(&entry).await;
    assert!(ground.log().contains("the hub stops"), "{}", ground.log());
}

#[tokio::test]
async fn where_no_connection_comes_about_polls_go_on_as_always() {
    let ground = Ground::start(Behaviour::Refuse).await;
    let hub = &ground.hub;
    for (behaviour, told) in [
        (Behaviour::Refuse, "the hub answered 503"),
        (Behaviour::Swallow, "without the switch to a WebSocket"),
        (Behaviour::Mute, "nothing was heard for longer"),
    ] {
        hub.connections.behave(behaviour);
        if behaviour == Behaviour::Mute {
            // Polls don't wait for a connection that is being opened.
            ground
                .until("a connection that says nothing", || hub.connections.open_now() == 1)
                .await;
            let (asked, polls) = (hub.connections.asked(), hub.polls());
            ground.until("polls meanwhile", || hub.polls() >= polls + 2).await;
            assert_eq!(
                (hub.connections.open_now(), hub.connections.asked()),
                (1, asked),
                "{}",
                ground.log()
            );
        }
        let (entry, _) = ground.change(told);
        ground.applied(&entry).await;
        ground.until(told, || ground.log().contains(told)).await;
    }
    // Each poll has offered a connection. The agent did not try each time.
    ground.until("many polls", || hub.polls() > 30).await;
    let (asked, polls) = (hub.connections.asked(), hub.polls());
    assert!(2 * asked < polls, "{asked} of {polls}");
}
