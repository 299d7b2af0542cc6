//! A cluster and its agent: what really happens there.

use farwater_api::{
    Digest,
    objects::{Health, ObjectRef, ObjectReport, Outcome, ServiceReport, SyncState},
};
use farwater_fleet::rollout::Published;

use crate::events::Quality;

/// The state that an agent reports, reduced to what matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    Progressing,
    Healthy,
    Failed,
}

/// A report on its way.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub due: i64,
    pub sequence: u64,
    pub entry: Digest,
    pub truth: Truth,
}

#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub is_silent: bool,
    /// The change has cut the agent off: it is not heard until somebody repairs it by hand.
    pub is_cut_off: bool,
    /// What the agent applies, since when, and how that turns out.
    running: Option<(Published, i64, Quality)>,
    crashes_until: i64,
    pub delay: i64,
    said: Option<(Digest, Truth)>,
    sequence: u64,
    pub outbox: Vec<Word>,
    pub last: Option<Word>,
}

impl Agent {
    pub fn is_heard(&self) -> bool {
        !self.is_silent && !self.is_cut_off
    }

    /// Takes over what is published.
    pub fn fetch(&mut self, published: Published, quality: Quality, now: i64) {
        match &mut self.running {
            Some((running, ..)) if *running == published => {}
            // The same change: its pods keep running.
            Some((running, ..)) if running.change == published.change => running.entry = published.entry,
            running => *running = Some((published, now, quality)),
        }
    }

    pub fn crash(&mut self, until: i64) {
        self.crashes_until = until;
    }

    pub fn truth(&self, number: usize, now: i64) -> Option<(Digest, Truth)> {
        let (published, since, quality) = self.running?;
        let age = now - since;
        let healthy_from = |from: i64| {
            if age >= from {
                Truth::Healthy
            } else {
                Truth::Progressing
            }
        };
        let has_bit = |mask: u16| mask & (1 << (number % 16)) != 0;
        let truth = match quality {
            _ if now < self.crashes_until => Truth::Failed,
            Quality::Slow => healthy_from(90),
            Quality::Stuck => Truth::Progressing,
            Quality::BadLater if age >= 150 => Truth::Failed,
            Quality::BadAtFirst if (10..80).contains(&age) => Truth::Failed,
            Quality::Bad if age >= 10 => Truth::Failed,
            Quality::Bad => Truth::Progressing,
            Quality::BadSomewhere(mask) if has_bit(mask) => {
                if age >= 10 {
                    Truth::Failed
                } else {
                    Truth::Progressing
                }
            }
            _ => healthy_from(20),
        };
        Some((published.entry, truth))
    }

    /// Sends a report if the state has changed.
    pub fn tell(&mut self, number: usize, now: i64) {
        if let Some((_, since, Quality::CutOff(mask))) = self.running
            && mask & (1 << (number % 16)) != 0
            && now - since >= 10
        {
            self.is_cut_off = true;
        }
        let truth = self.truth(number, now);
        if let Some((entry, truth)) = truth.filter(|_| truth != self.said) {
            self.said = Some((entry, truth));
            self.sequence += 1;
            self.outbox.push(Word {
                due: now + self.delay,
                sequence: self.sequence,
                entry,
                truth,
            });
        }
    }
}

pub fn report(word: Word) -> ServiceReport {
    let [group, version, kind, namespace, name] = ["", "v1", "Pod", "web", "web"].map(str::to_owned);
    let health = match word.truth {
        Truth::Progressing => Health::InProgress,
        Truth::Healthy => Health::Current,
        Truth::Failed => Health::Failed,
    };
    let object = ObjectRef {
        group,
        version,
        kind,
        namespace,
        name,
    };
    let object = ObjectReport {
        object,
        sync: SyncState::Synced,
        health,
        message: String::new(),
        waits_for: None,
    };
    ServiceReport {
        entry: word.entry,
        outcome: Outcome::Applied,
        message: String::new(),
        held_prune: None,
        deletion: None,
        hooks: Vec::new(),
        objects: vec![object],
    }
}
