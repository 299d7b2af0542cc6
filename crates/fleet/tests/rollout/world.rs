//! A hub with one set and its clusters: rows, looks, publications, polls and reports, in ticks of ten seconds.

use std::collections::{BTreeMap, HashMap};

use farwater_api::{Digest, RolloutPolicy, rollout::RolloutOrder};
use farwater_fleet::rollout::{
    ChangeId, Clock, Cluster, Content, Decision, Evidence, Member, Policy, Published, Reach, Resting, Said, State,
    decide, place,
};

use crate::{
    agent::{Word, report},
    events::{Quality, Setting, Stop},
    oracle::Oracle,
    resting,
    row::Row,
};

pub const TICK: i64 = 10;
pub struct World {
    pub rows: Vec<Row>,
    pub stated: RolloutPolicy,
    pub policy: Policy,
    pub state: State,
    pub oracle: Oracle,
    /// Contents of the source by number, the newest last.
    commits: Vec<u32>,
    contents: u32,
    /// Number of commits that change nothing for any member.
    foreign: u32,
    ids: HashMap<(u32, u32), ChangeId>,
    qualities: HashMap<ChangeId, Quality>,
    entries: u64,
    /// The real time, which a jump of the hub's clock doesn't change.
    time: i64,
    pub clock: Clock,
    made: usize,
}

impl World {
    pub fn new(setting: &Setting) -> Self {
        let stated: RolloutPolicy = serde_json::from_value(setting.policy.clone()).unwrap();
        let policy = Policy::of(&stated).unwrap();
        let start = 1_800_000_000;
        let mut world = Self {
            rows: Vec::new(),
            stated,
            policy,
            state: State::default(),
            oracle: Oracle::default(),
            commits: Vec::new(),
            contents: 0,
            foreign: 0,
            ids: HashMap::new(),
            qualities: HashMap::new(),
            entries: 0,
            time: start,
            clock: Clock {
                now: start,
                started: start,
            },
            made: 0,
        };
        world.commit(Quality::Good, 0);
        for _ in 0..setting.members {
            world.join();
        }
        world
    }

    pub fn target(&self) -> Digest {
        Digest::of(format!(
            "content {}, {} of others",
            self.commits.last().unwrap(),
            self.foreign
        ))
    }

    fn id(&mut self, content: u32, own: u32) -> ChangeId {
        let make = || {
            let bundle = Digest::of(format!("{content}/{own}"));
            ChangeId::of(&Content {
                template: bundle,
                bundle,
                path: "",
                origin: None,
                parameters: None,
                configuration: &BTreeMap::new(),
            })
        };
        *self.ids.entry((content, own)).or_insert_with(make)
    }

    pub fn commit(&mut self, quality: Quality, first: u8) {
        self.contents += 1;
        self.commits.push(self.contents);
        for index in 0..self.rows.len() {
            let id = self.id(self.contents, self.rows[index].own);
            self.qualities.insert(id, quality);
        }
        let id = self.id(self.contents, 0);
        self.qualities.insert(id, quality);
        self.look_again(first);
    }

    pub fn commit_foreign(&mut self) {
        self.foreign += 1;
    }

    pub fn revert(&mut self) {
        if let Some(before) = self.commits.len().checked_sub(2) {
            self.commits.push(self.commits[before]);
            self.look_again(0);
        }
    }

    /// Forgets what members want until they are looked at again, three per tick.
    fn look_again(&mut self, first: u8) {
        let count = self.rows.len();
        for (index, row) in self.rows.iter_mut().enumerate() {
            row.wanted = None;
            row.looked_at_in = u8::try_from((index + count - usize::from(first) % count) % count / 3).unwrap();
        }
    }

    pub fn change(&mut self, index: usize, quality: Quality) {
        self.made += 1;
        self.rows[index].own = u32::try_from(1000 + self.made).unwrap();
        let id = self.id(*self.commits.last().unwrap(), self.rows[index].own);
        self.qualities.insert(id, quality);
        self.rows[index].wanted = None;
    }

    pub fn join(&mut self) {
        self.rows.push(Row::new(self.made, self.clock.now));
        self.made += 1;
    }

    pub fn crash(&mut self, index: usize, ticks: u8) {
        self.rows[index].agent.crash(self.time + i64::from(ticks) * TICK);
    }

    pub fn renew(&mut self, index: usize) {
        if self.rows[index].published.is_some() {
            self.publish(index);
        }
    }

    pub fn repeat(&mut self, index: usize) {
        if let Some(word) = self.rows[index].agent.last {
            self.deliver(index, word);
        }
    }

    /// Restarts the hub: its memory is lost, and stored values go through their text form.
    pub fn restart(&mut self, ticks: u8, jump: i64) {
        for _ in 0..ticks {
            self.time += TICK;
            for row in &mut self.rows {
                row.agent.tell(row.number, self.time);
            }
        }
        let now = self.clock.now + i64::from(ticks) * TICK + jump;
        self.clock = Clock { now, started: now };
        self.state = through_text(&self.state);
        for row in &mut self.rows {
            row.heard = None;
            row.track = through_text(&row.track);
            row.published = through_text(&row.published);
            row.evidence = through_text(&row.evidence);
        }
    }

    /// Writes an order of a person into the spec.
    pub fn order(&mut self, order: Option<RolloutOrder>) {
        self.stated.order = order;
        self.policy = Policy::of(&self.stated).unwrap();
        self.wake_all();
    }

    pub fn pause(&mut self, paused: bool) {
        self.wake_all();
        self.stated.paused = paused;
        self.policy.paused = paused;
    }

    pub fn tick(&mut self) {
        self.time += TICK;
        self.clock.now += TICK;
        for index in 0..self.rows.len() {
            self.poll(index);
            let row = &mut self.rows[index];
            row.agent.tell(row.number, self.time);
            self.deliver_due(index);
            self.assign(index);
        }
        self.place();
    }

    /// Has the ledgers note which members got through.
    pub fn settle(&mut self) {
        for row in &mut self.rows {
            row.ledger.settle(
                row.published,
                row.track.released,
                row.heard,
                self.clock,
                soak(&self.policy, row.step),
            );
        }
    }

    fn poll(&mut self, index: usize) {
        let row = &mut self.rows[index];
        if !row.agent.is_heard() {
            return;
        }
        row.heard = Some(self.clock.now);
        row.last_heard = self.clock.now;
        if let Some(published) = row.published {
            row.has_fetched = true;
            row.agent.fetch(published, self.qualities[&published.change], self.time);
        }
    }

    fn deliver_due(&mut self, index: usize) {
        if !self.rows[index].agent.is_heard() {
            return;
        }
        let agent = &mut self.rows[index].agent;
        let (due, later) = std::mem::take(&mut agent.outbox)
            .into_iter()
            .partition(|word| word.due <= self.time);
        agent.outbox = later;
        let due: Vec<Word> = due;
        for word in due {
            // Reports have sequence numbers, and the hub refuses an older one.
            if word.sequence > self.rows[index].sequence {
                self.rows[index].sequence = word.sequence;
                self.rows[index].agent.last = Some(word);
                self.deliver(index, word);
            }
        }
    }

    fn deliver(&mut self, index: usize, word: Word) {
        let row = &mut self.rows[index];
        Evidence::note(&mut row.evidence, row.published, &report(word), &[], self.clock.now);
        row.ledger.hear(row.published, word, self.clock.now);
    }

    /// Looks at a member, and publishes what it is released for.
    fn assign(&mut self, index: usize) {
        let (content, own) = (*self.commits.last().unwrap(), self.rows[index].own);
        let row = &mut self.rows[index];
        if row.wanted.is_none() {
            if row.looked_at_in > 0 {
                row.looked_at_in -= 1;
            } else {
                let id = self.id(content, own);
                // The member's own parameter with a content that came before is as good as that content.
                let quality = self.qualities.get(&id).copied();
                let plain = self.id(content, 0);
                let quality = quality.unwrap_or(self.qualities[&plain]);
                self.qualities.insert(id, quality);
                self.rows[index].wanted = Some(id);
            }
        }
        let row = &mut self.rows[index];
        let is_held = row.stops.iter().any(|stop| *stop != Stop::Window);
        row.waits = row.stops.contains(&Stop::Waiting) && row.published.map(|it| it.change) != row.track.released;
        if row.track.released.is_some()
            && row.published.map(|published| published.change) != row.track.released
            && !is_held
        {
            self.publish(index);
        }
    }

    fn publish(&mut self, index: usize) {
        self.entries += 1;
        let row = &mut self.rows[index];
        let Some(change) = row.track.released else { return };
        row.published = Some(Published {
            entry: Digest::of(format!("{}/{}", row.uid, self.entries)),
            change,
        });
        row.has_fetched = false;
    }

    pub fn clusters(&self) -> Vec<Cluster<'_>> {
        let clusters = self.rows.iter().map(|row| Cluster {
            name: &row.name,
            labels: &row.labels,
            is_healthy: row.evidence.as_ref().map(Evidence::said) == Some(&Said::Healthy),
            reach: self.reach(row),
            is_canary: row.step == 0,
            has_begun: row.wanted.is_some() && row.track.released == row.wanted,
        });
        clusters.collect()
    }

    fn place(&mut self) {
        let steps = place(&self.policy, &self.clusters(), &Resting::default());
        for (row, step) in self.rows.iter_mut().zip(steps) {
            row.step = step;
        }
    }

    pub fn reach(&self, row: &Row) -> Reach {
        row.reach(self.clock)
    }

    pub fn members(&self) -> Vec<Member<'_>> {
        let members = self.rows.iter().map(|row| Member {
            cluster: &row.uid,
            name: &row.name,
            step: row.step,
            partition: self
                .policy
                .partition_by
                .as_ref()
                .and_then(|key| row.labels.get(key))
                .map(String::as_str),
            wanted: row.wanted,
            track: row.track,
            published: row.published,
            evidence: row.evidence.as_ref(),
            reach: self.reach(row),
            stands: row.stands(),
        });
        members.collect()
    }

    pub fn decide(&self) -> Decision {
        self.decide_of(&self.members())
    }

    /// Decides by reading all members.
    pub fn decide_of(&self, members: &[Member<'_>]) -> Decision {
        decide(
            &self.policy,
            &self.state,
            self.target(),
            (members, &Resting::default()),
            self.clock,
        )
    }

    /// Saves the decision.
    pub fn save(&mut self, decision: &Decision) {
        self.state = decision.state.clone();
        for (index, track) in &decision.tracks {
            self.rows[*index].track = *track;
        }
        resting::note(self, &decision.rests);
    }

    fn wake_all(&mut self) {
        self.rows.iter_mut().for_each(|row| row.rested = None);
    }
}

pub fn soak(policy: &Policy, step: u16) -> i64 {
    let own = usize::from(step)
        .checked_sub(1)
        .and_then(|index| policy.steps.get(index))
        .and_then(|step| step.soak);
    own.unwrap_or(policy.soak)
}

fn through_text<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}
