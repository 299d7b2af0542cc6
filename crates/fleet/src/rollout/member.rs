//! What is known of a set and its members, and what is remembered.

use std::collections::BTreeSet;

use farwater_api::Digest;
use serde::{Deserialize, Serialize};

use super::{ChangeId, Evidence, Published, Reach, Said};
use crate::windows::Closed;

/// One cluster of a set, as far as it is known.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// uid of the Cluster.
    pub cluster: &'a str,
    /// `namespace/name` of the Cluster.
    pub name: &'a str,
    /// As [`place`](super::place) says.
    pub step: u16,
    /// Value of the label that the policy partitions by.
    pub partition: Option<&'a str>,
    /// None: it is to be looked at, since something that it is made of has moved, or it can't be made. Whoever reads the rows
    /// compares what they were made for with what there is: a row that is behind is none.
    pub wanted: Option<ChangeId>,
    pub track: Track,
    pub published: Option<Published>,
    pub evidence: Option<&'a Evidence>,
    pub reach: Reach,
    /// Of several reasons the first of [`Stands`].
    pub stands: Option<Stands>,
}

impl Member<'_> {
    /// Whether its agent says that it is healthy at this change.
    pub(super) fn is_healthy_at(&self, change: Option<ChangeId>) -> bool {
        let said = self.evidence.and_then(|evidence| evidence.on(self.published));
        said.is_some_and(|said| *said.said() == Said::Healthy && Some(said.change()) == change)
    }

    /// Whether a progressing member is healthy at its released version, and its agent is heard.
    pub(super) fn soaks(&self, track: &Track) -> bool {
        !matches!(self.reach, Reach::Silent { .. }) && self.is_healthy_at(track.released)
    }

    /// Why it stands still, as far as that stops what it is released for: what its agent has begun goes on in a closed window.
    pub(super) fn stopped_by(&self, track: &Track) -> Option<&Stands> {
        let said = self.evidence.and_then(|evidence| evidence.on(self.published));
        let has_begun = said.is_some_and(|said| Some(said.change()) == track.released);
        self.stands.as_ref().filter(|stands| !(has_begun && matches!(stands, Stands::Window(_))))
    }
}

/// Why a member stands still, beside the rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stands {
    Suspended,
    Pinned,
    /// No right to be there.
    Denied(String),
    /// Somebody else's service has its name.
    NameTaken,
    /// No change may begin now. Whoever says so has it looked at again when that is over.
    Window(Closed),
    /// For what it depends on: what it is released for is not published yet.
    Waiting(String),
}

/// What a rollout remembers of a member. [`decide`](super::decide) alone makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Track {
    /// What its service may be assigned; none: nothing yet.
    pub released: Option<ChangeId>,
    /// It was done with that, once.
    pub is_done: bool,
    /// What it was done with last: with that it need not soak again.
    pub good: Option<ChangeId>,
    /// What it goes back to: what it was done with before it was released.
    pub back: Option<ChangeId>,
    /// It failed at this, or was taken back from it.
    pub refused: Option<ChangeId>,
    /// A person has said that nobody waits for this.
    pub skipped: Option<ChangeId>,
    /// What it wanted when the set was looked at last and that was known: what it is asked for in the present rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<ChangeId>,
    /// The rollout that released it.
    pub number: u64,
    /// Since when it must get on; none while it waits for others.
    pub clock: Option<i64>,
}

/// What a rollout remembers of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    pub number: u64,
    /// What the set asked for when something moved last.
    pub target: Option<Digest>,
    /// Whether something moves.
    pub open: bool,
    /// The first number since the set was last at rest.
    pub began: u64,
    pub last_good: Option<LastGood>,
    /// Of the order that was carried out, or came for another number.
    pub obeyed: Option<Digest>,
    /// A person has let it begin.
    pub promoted: bool,
    pub aborted: bool,
    /// Steps that a person has gone past.
    pub passed: BTreeSet<u16>,
}

/// What the whole set was done with last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastGood {
    pub number: u64,
    pub target: Digest,
}

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub now: i64,
    /// When the hub started, or its clock was set last: times of before tell nothing, and from then on they only grow.
    pub started: i64,
}

impl Clock {
    /// From when on something counts that began at a time. What lies in the future began before the clock was set back.
    pub(super) fn count_from(self, time: i64) -> i64 {
        if time > self.now { self.started } else { time.max(self.started) }
    }
}
