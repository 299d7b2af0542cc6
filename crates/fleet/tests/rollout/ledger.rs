//! Records what was really said and done, independently of the state of the code under test.

use farwater_fleet::rollout::{ChangeId, Clock, Published};

use crate::{
    agent::{Truth, Word},
    row::Row,
};

/// What one cluster has said and was given, in order.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// The cluster's last report: on which entry, and since when it has been the same.
    pub word: Option<(Published, Truth, i64)>,
    healthy: Option<(ChangeId, i64)>,
    /// Changes with which the cluster was healthy and heard for the soak. The latest is last.
    pub proven: Vec<ChangeId>,
    /// The cluster was given something else since it was done, and is not done again yet.
    pub is_out: bool,
    pub released_at: i64,
    pub released_number: u64,
    pub fallen: Vec<Fallen>,
    /// Changes with which the cluster was late, or from which it was taken back.
    pub late: Vec<ChangeId>,
    /// The change that the cluster wanted when it was aborted. The cluster refuses it, and no other waits for it.
    pub aborted: Option<ChangeId>,
    pub skipped: Option<ChangeId>,
}

/// A failure that counts.
#[derive(Clone, Copy, Debug)]
pub struct Fallen {
    pub change: ChangeId,
    /// The cluster has wanted something else since.
    pub was_left: bool,
}

impl Ledger {
    pub fn hear(&mut self, published: Option<Published>, word: Word, now: i64) {
        let Some(published) = published.filter(|published| published.entry == word.entry) else {
            return;
        };
        let before = self.word.filter(|(before, ..)| *before == published);
        let since = before
            .filter(|(_, truth, _)| *truth == word.truth)
            .map_or(now, |(.., since)| since);
        let fell_back = before.is_some_and(|(_, truth, _)| truth == Truth::Healthy) && word.truth != Truth::Healthy;
        self.word = Some((published, word.truth, since));
        if word.truth == Truth::Failed
            || fell_back
            || self.healthy.is_some_and(|(change, _)| change != published.change)
        {
            self.healthy = None;
        }
        if word.truth == Truth::Healthy {
            self.healthy.get_or_insert((published.change, now));
        }
    }

    /// Notes whether the cluster has got through by now.
    pub fn settle(
        &mut self,
        published: Option<Published>,
        given: Option<ChangeId>,
        heard: Option<i64>,
        clock: Clock,
        soak: i64,
    ) {
        if !self.says(published, Truth::Healthy) {
            return;
        }
        let Some((change, since)) = self.healthy.filter(|(change, _)| Some(*change) == given) else {
            return;
        };
        if heard.is_some_and(|heard| heard >= count_from(clock, since) + soak) {
            self.prove(change);
        }
        if heard.is_some() && self.proven.last() == Some(&change) {
            self.is_out = false;
        }
    }

    pub fn prove(&mut self, change: ChangeId) {
        self.proven.retain(|other| *other != change);
        self.proven.push(change);
    }

    pub fn says(&self, published: Option<Published>, truth: Truth) -> bool {
        self.word
            .is_some_and(|(on, said, _)| Some(on) == published && said == truth)
    }

    pub fn is_done(&self, row: &Row, change: ChangeId) -> bool {
        row.published.is_some_and(|published| published.change == change)
            && self.says(row.published, Truth::Healthy)
            && self.proven.last() == Some(&change)
    }
}

pub fn count_from(clock: Clock, time: i64) -> i64 {
    if time > clock.now {
        clock.started
    } else {
        time.max(clock.started)
    }
}
