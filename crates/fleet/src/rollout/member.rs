//! What is known of a set and its members, and what a rollout stores.

use std::collections::BTreeSet;

use farwater_api::Digest;
use serde::{Deserialize, Serialize};

use super::{ChangeId, Evidence, Published, Reach, Said};
use crate::windows::Closed;

/// One cluster of a set, as the hub knows it.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// uid of the Cluster.
    pub cluster: &'a str,
    /// `namespace/name` of the Cluster.
    pub name: &'a str,
    /// Index of the step, from [`place`](super::place).
    pub step: u16,
    /// Value of the label that the policy partitions by. None: the cluster lacks the label.
    pub partition: Option<&'a str>,
    /// The change the set wants for it. None: stale, because an input has moved and the member is to be reconciled, or
    /// it can't be made. The reader of the rows compares the inputs that a row was made for with the current ones; a
    /// stale row gives none.
    pub wanted: Option<ChangeId>,
    pub track: Track,
    pub published: Option<Published>,
    pub evidence: Option<&'a Evidence>,
    pub reach: Reach,
    /// Why the member is held apart from the rollout. With several reasons, the first in the order of [`Stands`].
    pub stands: Option<Stands>,
}

impl Member<'_> {
    /// Whether its agent reports it healthy at this change.
    pub(super) fn is_healthy_at(&self, change: Option<ChangeId>) -> bool {
        let said = self.evidence.and_then(|evidence| evidence.on(self.published));
        said.is_some_and(|said| *said.said() == Said::Healthy && Some(said.change()) == change)
    }

    /// Whether a progressing member is healthy at its released version, and its agent is heard.
    pub(super) fn soaks(&self, track: &Track) -> bool {
        !matches!(self.reach, Reach::Silent { .. }) && self.is_healthy_at(track.released)
    }

    /// Why the member is held, if that also stops the change it is released for. A closed window does not stop a change
    /// that the agent has begun.
    pub(super) fn stopped_by(&self, track: &Track) -> Option<&Stands> {
        let said = self.evidence.and_then(|evidence| evidence.on(self.published));
        let has_begun = said.is_some_and(|said| Some(said.change()) == track.released);
        self.stands
            .as_ref()
            .filter(|stands| !(has_begun && matches!(stands, Stands::Window(_))))
    }
}

/// Why a member is held, apart from the rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stands {
    Suspended,
    Pinned,
    /// The service has no right to be on the cluster; the text says why.
    Denied(String),
    /// A service of another owner has its name.
    NameTaken,
    /// No change may begin now. The controller that reports this reconciles the member when the window opens.
    Window(Closed),
    /// The change it is released for is not published yet, because it waits for a dependency.
    Waiting(String),
}

/// What a rollout stores of a member. Only [`decide`](super::decide) makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Track {
    /// The change its service may be assigned. None: nothing yet.
    pub released: Option<ChangeId>,
    /// The member was done with `released` at some time.
    pub is_done: bool,
    /// The change it was last done with. It need not soak with that again.
    pub good: Option<ChangeId>,
    /// The change it goes back to: the one it was done with before it was released.
    pub back: Option<ChangeId>,
    /// The change that it failed at or was taken back from.
    pub refused: Option<ChangeId>,
    /// The change that a person excluded from the rollout for this member, so that no other member waits for it.
    pub skipped: Option<ChangeId>,
    /// The last known change it wanted: what the present rollout asks of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<ChangeId>,
    /// Number of the rollout that released it.
    pub number: u64,
    /// Start of its progress deadline, in seconds. None while it waits for others.
    pub clock: Option<i64>,
}

/// What a rollout stores of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    pub number: u64,
    /// What the set asked for when something last moved.
    pub target: Option<Digest>,
    /// Whether a rollout is under way.
    pub open: bool,
    /// The first rollout number since the set was last at rest.
    pub began: u64,
    pub last_good: Option<LastGood>,
    /// Id of the last order that was carried out, or that named another number.
    pub obeyed: Option<Digest>,
    /// A person has let the rollout begin.
    pub promoted: bool,
    pub aborted: bool,
    /// Steps that a person has let the rollout skip past.
    pub passed: BTreeSet<u16>,
}

/// The last target that the whole set was done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastGood {
    pub number: u64,
    pub target: Digest,
}

/// Times in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub now: i64,
    /// When the hub started, or when its clock was last set. Times before this can't be compared; after it, they only
    /// grow.
    pub started: i64,
}

impl Clock {
    /// The time from which a duration counts that began at `time`. A time in the future was taken before the clock was
    /// set back.
    pub(super) fn count_from(self, time: i64) -> i64 {
        if time > self.now {
            self.started
        } else {
            time.max(self.started)
        }
    }
}
