use std::collections::BTreeMap;

use farwater_api::{
    Digest, RolloutPolicy,
    objects::{Health, ObjectRef, ObjectReport, Outcome, ServiceReport, SyncState},
    service_set::ProgressCounts,
};
use serde_json::{Value, json};

use super::*;
use crate::windows::Closed;

mod gates;
mod going_back;
mod members;

/// The change with this name.
pub fn id(name: &str) -> ChangeId {
    let bundle = Digest::of(name);
    ChangeId::of(&Content {
        template: bundle,
        bundle,
        path: "",
        origin: None,
        parameters: None,
        configuration: &BTreeMap::new(),
    })
}

/// A cluster `a` to `z`: what a caller stores about it.
struct Row {
    name: String,
    step: u16,
    partition: Option<String>,
    wanted: Option<ChangeId>,
    track: Track,
    published: Option<Published>,
    evidence: Option<Evidence>,
    reach: Option<Reach>,
    stands: Option<Stands>,
}

/// A set whose members publish a release at once, and poll all the time.
struct Set {
    policy: RolloutPolicy,
    state: State,
    rows: Vec<Row>,
    target: Digest,
    clock: Clock,
    entries: usize,
}

/// A set with a canary `a`, a soak of 10 s, a deadline of 100 s, and failures that count after 5 s. All members are
/// done with change `0`.
fn set(names: &str, policy: Value) -> Set {
    let mut stated = json!({"soak": "10s", "progressDeadline": "100s", "failAfter": "5s", "maxUnavailable": 2});
    stated
        .as_object_mut()
        .unwrap()
        .extend(policy.as_object().unwrap().clone());
    let mut set = Set {
        policy: serde_json::from_value(stated).unwrap(),
        state: State::default(),
        rows: Vec::new(),
        target: Digest::of("0"),
        clock: Clock { now: 1000, started: 0 },
        entries: 0,
    };
    for name in names.chars() {
        set.join(name);
    }
    set.state.last_good = Some(LastGood {
        number: 0,
        target: set.target,
    });
    set.state.target = Some(set.target);
    for name in names.chars() {
        let track = Track {
            released: Some(id("0")),
            is_done: true,
            good: Some(id("0")),
            ..Track::default()
        };
        set.row(name).track = track;
        set.publish(name);
        set.say(name, Health::Current);
    }
    set.pass(100);
    assert_eq!(set.look().released, "");
    set
}

/// What a look has decided, as names.
#[derive(Debug)]
struct Looked {
    released: String,
    retracted: String,
    phase: Phase,
    next_look: Option<i64>,
}

impl Set {
    fn join(&mut self, name: char) {
        self.rows.push(Row {
            name: format!("fleet/{name}"),
            step: u16::from(name != 'a'),
            partition: None,
            wanted: Some(id("0")),
            track: Track::default(),
            published: None,
            evidence: None,
            reach: None,
            stands: None,
        });
    }

    fn at(&self, name: char) -> usize {
        self.rows.iter().position(|row| row.name.ends_with(name)).unwrap()
    }

    fn row(&mut self, name: char) -> &mut Row {
        let index = self.at(name);
        &mut self.rows[index]
    }

    fn publish(&mut self, name: char) {
        self.entries += 1;
        let entry = Digest::of(self.entries.to_string());
        let row = self.row(name);
        row.published = row.track.released.map(|change| Published { entry, change });
    }

    fn say(&mut self, name: char, health: Health) {
        let now = self.clock.now;
        let row = self.row(name);
        let [group, version, kind, namespace] = ["", "v1", "Pod", "web"].map(str::to_owned);
        let object = ObjectRef {
            group,
            version,
            kind,
            namespace,
            name: "web".to_owned(),
        };
        let message = "crashes".to_owned();
        let report = ServiceReport {
            entry: row.published.unwrap().entry,
            outcome: Outcome::Applied,
            message: String::new(),
            held_prune: None,
            deletion: None,
            hooks: Vec::new(),
            objects: vec![ObjectReport {
                object,
                sync: SyncState::Synced,
                health,
                message,
                waits_for: None,
            }],
        };
        Evidence::note(&mut row.evidence, row.published, &report, &[], now);
    }

    fn all_say(&mut self, names: &str, health: Health) {
        names.chars().for_each(|name| self.say(name, health));
    }

    /// All members want this change now.
    fn want(&mut self, change: &str) {
        self.target = Digest::of(change);
        self.rows.iter_mut().for_each(|row| row.wanted = Some(id(change)));
    }

    fn pass(&mut self, seconds: i64) {
        self.clock.now += seconds;
    }

    fn silence(&mut self, name: char, has_entry: bool) {
        let since = self.clock.now;
        self.row(name).reach = Some(Reach::Silent { since, has_entry });
    }

    fn hear(&mut self, name: char) {
        self.row(name).reach = None;
    }

    fn order(&mut self, order: Value) {
        let mut order = order;
        order["number"] = json!(self.state.number);
        order["requestedAt"] = json!(self.clock.now.to_string());
        self.policy.order = Some(serde_json::from_value(order).unwrap());
    }

    fn members(&self) -> Vec<Member<'_>> {
        let members = self.rows.iter().map(|row| Member {
            cluster: &row.name,
            name: &row.name,
            step: row.step,
            partition: row.partition.as_deref(),
            wanted: row.wanted,
            track: row.track,
            published: row.published,
            evidence: row.evidence.as_ref(),
            reach: row.reach.unwrap_or(Reach::Heard { at: self.clock.now }),
            stands: row.stands.clone(),
        });
        members.collect()
    }

    fn decide(&self) -> Decision {
        let members = self.members();
        decide(
            &Policy::of(&self.policy).unwrap(),
            &self.state,
            self.target,
            (&members, &Resting::default()),
            self.clock,
        )
    }

    fn standing(&self, name: char) -> String {
        let decision = self.decide();
        let policy = Policy::of(&self.policy).unwrap();
        let member = &self.members()[self.at(name)];
        standing(&policy, &self.state, &decision.outlook, member, self.clock).to_string()
    }

    fn look(&mut self) -> Looked {
        let decision = self.decide();
        self.state = decision.state.clone();
        for (index, track) in &decision.tracks {
            self.rows[*index].track = *track;
        }
        if decision.released.is_empty() && decision.retracted.is_empty() {
            self.check_progress(decision.counts);
        }
        let name = |index: &usize| self.rows[*index].name.chars().last().unwrap();
        let sorted = |list: &[usize]| {
            let mut names: Vec<char> = list.iter().map(name).collect();
            names.sort_unstable();
            names.into_iter().collect::<String>()
        };
        let (released, retracted) = (sorted(&decision.released), sorted(&decision.retracted));
        for name in released.chars().chain(retracted.chars()) {
            if self.row(name).stands.is_none() {
                self.publish(name);
            }
        }
        Looked {
            released,
            retracted,
            phase: decision.phase,
            next_look: decision.next_look,
        }
    }

    /// Checks that the progress of the single members adds up to the counts.
    fn check_progress(&self, expected: Counts) {
        let policy = Policy::of(&self.policy).unwrap();
        let mut told = ProgressCounts::default();
        for member in self.members() {
            told.add(progress(&policy, &self.state, &member, self.clock).0);
        }
        let Counts {
            updated,
            progressing,
            soaking,
            failed,
            deferred,
            waiting,
            standing,
        } = expected;
        assert_eq!(told.soaking, soaking as u64);
        let expected = [updated, progressing, failed, deferred, waiting, standing].map(|count| count as u64);
        let progressing = told.progressing + told.soaking;
        assert_eq!(
            [
                told.done,
                progressing,
                told.failed,
                told.deferred,
                told.waiting,
                told.still
            ],
            expected
        );
    }

    /// The members that are released now.
    fn released(&mut self) -> String {
        self.look().released
    }

    /// These members report that they are healthy, and their soak passes.
    fn get_through(&mut self, names: &str) {
        self.all_say(names, Health::Current);
        self.pass(10);
    }

    /// These members report that they have failed, for long enough that it counts.
    fn fail(&mut self, names: &str) {
        self.all_say(names, Health::Failed);
        self.pass(5);
    }
}
