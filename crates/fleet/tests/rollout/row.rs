//! One cluster of the set.

use std::collections::BTreeMap;

use farwater_fleet::rollout::{ChangeId, Clock, Evidence, Published, Reach, Stands, Track};
use farwater_fleet::windows::Closed;

use crate::{agent::Agent, events::Stop, ledger::Ledger, resting::Rested, world::TICK};

/// As in the hub: several missed polls.
const SILENCE: i64 = 4 * TICK;

/// One cluster of the set, and what the hub knows of it.
pub struct Row {
    pub uid: String,
    pub name: String,
    pub number: usize,
    pub labels: BTreeMap<String, String>,
    pub step: u16,
    pub wanted: Option<ChangeId>,
    /// What the member wanted when the wanted changes of all members were last known.
    pub asked: Option<ChangeId>,
    /// Ticks until the member is looked at.
    pub looked_at_in: u8,
    pub own: u32,
    pub track: Track,
    pub published: Option<Published>,
    pub has_fetched: bool,
    pub evidence: Option<Evidence>,
    pub sequence: u64,
    /// When the agent was last heard in this run of the hub.
    pub heard: Option<i64>,
    pub last_heard: i64,
    pub stops: Vec<Stop>,
    /// Whether the last assignment had to wait for a dependency.
    pub waits: bool,
    pub rested: Option<Rested>,
    pub agent: Agent,
    pub ledger: Ledger,
}

impl Row {
    pub fn new(number: usize, now: i64) -> Self {
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut labels: BTreeMap<String, String> = BTreeMap::new();
        labels.extend((number % 4 == 1).then(|| label("canary", "yes")));
        labels.extend(["one", "two"].get(number % 3).map(|ring| label("ring", ring)));
        labels.extend(["eu", "us", "ap"].get(number % 4).map(|region| label("region", region)));
        Self {
            uid: format!("uid-{number}"),
            name: format!("fleet/c{number:02}"),
            number,
            labels,
            step: 1,
            wanted: None,
            asked: None,
            looked_at_in: 0,
            own: 0,
            track: Track::default(),
            published: None,
            has_fetched: false,
            evidence: None,
            sequence: 0,
            heard: None,
            last_heard: now,
            stops: Vec::new(),
            waits: false,
            rested: None,
            agent: Agent::default(),
            ledger: Ledger::default(),
        }
    }

    pub fn reach(&self, clock: Clock) -> Reach {
        let Clock { now, started } = clock;
        let has_entry = self.has_fetched;
        match self.heard {
            Some(at) if now - at <= SILENCE => Reach::Heard { at },
            Some(since) => Reach::Silent { since, has_entry },
            None if now - started <= SILENCE => Reach::NotYet,
            None => Reach::Silent {
                since: self.last_heard,
                has_entry,
            },
        }
    }

    pub fn stands(&self) -> Option<Stands> {
        let stops = [Stop::Suspended, Stop::Denied, Stop::Window, Stop::Waiting];
        let stop = stops
            .into_iter()
            .find(|stop| self.stops.contains(stop) && (*stop != Stop::Waiting || self.waits))?;
        Some(match stop {
            Stop::Suspended => Stands::Suspended,
            Stop::Window => Stands::Window(Closed {
                by: "ops/nights".to_owned(),
                reason: String::new(),
                until: None,
            }),
            Stop::Denied => Stands::Denied("no grant".to_owned()),
            Stop::Waiting => Stands::Waiting("waits for the database".to_owned()),
        })
    }
}
