//! Rollouts: which members of a set get the change that they want, when, and what goes back.
//!
//! A *member* is one cluster of a set. A *change* is all that a rollout holds of it: template, content, parameters. [`decide`] is
//! level-triggered: a rollout is the members whose wanted change isn't the one that they are released for, so a commit that comes
//! before the last one is through, a cluster that joins, comes back or changes a label are no cases. What is remembered is a
//! [`Track`] per member and a [`State`] per set. A release names a change and not a member: what comes a second later waits.
//!
//! 1. A member is *done* when its agent says of the entry that is published that it is healthy, has said so for the soak, and was
//!    heard when the soak ended. Neither silence nor a clock that jumps is a success. What was done once is done again as soon as
//!    it is healthy: a soak tells of the change, and the change has been told of.
//! 2. A silent cluster that a change has not reached is passed over, neither failed nor waited for. One that fell silent with its
//!    change counts as failed after the progress deadline. Before a hub that was away has heard a cluster nobody follows it.
//! 3. A member that fails at its change *refuses* it from then on: it is not released for it again, even after it has recovered.
//!    So that the set is halted is no state of its own: it is that so many members want what they refuse. It ends when they want
//!    something else or are gone, or by an order.
//! 4. Of canaries, and until one member has got through, one failure halts. Later `haltAfter` do, or as many as may be
//!    unavailable, since with these nothing could go on. Fewer hold up no later step.
//! 5. What is broken and wants something that it doesn't refuse gets it first: before canaries, and while the set is halted, but
//!    not while it goes back. At most `maxUnavailable` of these are on their way at one time: a wrong fix is one more change.
//! 6. A member is *unavailable* from its release, or retraction, until it is done with what it got, whatever it wants by then; and
//!    while it has failed at anything. At most `maxUnavailable` are, of the whole and of a step, when a healthy one is taken.
//! 7. A step opens when all members of earlier ones are done at what they want now, passed over, or stand still by a person's
//!    will. Where no canary can go, the first other member goes alone. A member that is new to a set whose target is good
//!    already waits for no step.
//! 8. At most `maxPartitions` partitions have members on their way, or some released and some not within the open step.
//! 9. With `Rollback`, and where it was aborted, members that were released since the set was last at rest go back to the last
//!    change that they were done with before, unavailable ones at once and others within `maxUnavailable`. They refuse what they
//!    were taken from.
//!
//! The number counts up when what the set asks for changes, or when something moves in a set at rest. It names a rollout for people;
//! an order counts for its number and only once.

mod change;
mod evidence;
mod gates;
mod orders;
mod policy;
mod standing;
mod steps;
mod view;

pub use change::{ChangeId, Content, ParseChangeError};
pub use evidence::{Evidence, Published, Reach, Said};
pub use policy::{CanaryPolicy, InvalidPolicy, Order, Policy, StepPolicy};
pub use standing::{Held, Outlook, Standing, standing};
pub use steps::{Cluster, place};

use std::collections::BTreeSet;

use farwater_api::Digest;
use serde::{Deserialize, Serialize};

use gates::Gates;
use view::{Case, View};

/// One cluster of a set, as far as it is known.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// uid of the Cluster.
    pub cluster: &'a str,
    /// `namespace/name` of the Cluster.
    pub name: &'a str,
    /// As [`place`] says.
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

/// Why a member stands still, beside the rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stands {
    Suspended,
    Pinned,
    /// No right to be there.
    Denied(String),
    /// Somebody else's service has its name.
    NameTaken,
    /// Until a window opens; nobody may know when.
    Window {
        until: Option<i64>,
    },
    /// For what it depends on: what it is released for is not published yet.
    Waiting(String),
}

/// What a rollout remembers of a member. [`decide`] alone makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Track {
    /// What its service may be assigned; none: nothing yet.
    pub released: Option<ChangeId>,
    /// What it was done with last.
    pub good: Option<ChangeId>,
    /// What it goes back to: what it was done with before it was released.
    pub back: Option<ChangeId>,
    /// It failed at this, or was taken back from it.
    pub refused: Option<ChangeId>,
    /// A person has said that nobody waits for this.
    pub skipped: Option<ChangeId>,
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

/// Seconds since 1970. Between two starts of a hub they only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    pub now: i64,
    /// When the hub started: before that nobody could tell it anything.
    pub started: i64,
}

impl Clock {
    /// From when on something counts that began at a time. What lies in the future began before the clock was set back.
    fn count_from(self, time: i64) -> i64 {
        if time > self.now { self.started } else { time.max(self.started) }
    }
}

/// Why nothing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Latch {
    Halted,
    Aborted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing moves.
    #[default]
    Complete,
    Progressing,
    Paused,
    /// Until a person promotes it.
    OnHold,
    Halted,
    RollingBack,
    Aborted,
}

/// Each member counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub updated: usize,
    pub progressing: usize,
    pub failed: usize,
    /// Silent, and passed over.
    pub deferred: usize,
    pub waiting: usize,
    /// By a person, or since they can't be.
    pub standing: usize,
}

/// What to do now, and what to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// By index: the tracks that are others now. All of them and the state are saved at once.
    pub tracks: Vec<(usize, Track)>,
    /// Of these the ones that get what they want.
    pub released: Vec<usize>,
    /// And those that go back.
    pub retracted: Vec<usize>,
    pub state: State,
    pub phase: Phase,
    pub latch: Option<Latch>,
    pub counts: Counts,
    /// What [`standing`] needs to know of the others.
    pub outlook: Outlook,
    /// When time alone may change the decision; none: not before something happens.
    pub next_look: Option<i64>,
}

/// Pure: the same members in whatever order give the same decision. `target` is of all that members share: template, pin, what
/// their sources have, contexts.
pub fn decide(policy: &Policy, state: &State, target: Digest, members: &[Member<'_>], clock: Clock) -> Decision {
    let look = |state: &State, tracks: &mut dyn Iterator<Item = Track>| -> Vec<View> {
        members.iter().zip(tracks).map(|(member, track)| View::of(policy, state, member, track, clock)).collect()
    };
    let mut state = state.clone();
    let mut views = look(&state, &mut members.iter().map(|member| member.track));
    if begin(&mut state, target, &views) {
        views = look(&state, &mut members.iter().map(|member| member.track));
    }
    if let Some(order) = policy.order.as_ref().filter(|order| state.obeyed != Some(order.id)) {
        let tracks = orders::obey(policy, &mut state, order, members, &views);
        views = look(&state, &mut tracks.into_iter());
    }
    for (view, member) in views.iter_mut().zip(members) {
        if let Some(track) = view.learn() {
            *view = View::of(policy, &state, member, track, clock);
        }
    }
    let gates = Gates::of(policy, &state, target, members, &views);
    let (released, retracted) = match gates.goes_back(policy) {
        _ if policy.paused => (Vec::new(), Vec::new()),
        true => (Vec::new(), gates.choose_back(members, &views)),
        false => (gates.choose(members, &views), Vec::new()),
    };
    for index in &released {
        views[*index].release(&members[*index], state.number, clock.now);
    }
    for index in &retracted {
        views[*index].take_back(&members[*index], state.number, clock.now);
    }
    if released.is_empty() && retracted.is_empty() {
        rest(&mut state, target, &views);
    }
    let changed = members.iter().zip(&views).enumerate().filter(|(_, (member, view))| view.track != member.track);
    let tracks = changed.map(|(index, (_, view))| (index, view.track)).collect();
    let phase = phase(policy, &state, &gates, &views);
    let counts = count(&views);
    let outlook = Outlook::of(policy, &gates, members, &views, phase);
    let next_look = views.iter().filter_map(|view| view.due).min();
    Decision { tracks, released, retracted, phase, latch: gates.latch, counts, outlook, next_look, state }
}

/// Counts a rollout; whether another one has begun.
fn begin(state: &mut State, target: Digest, views: &[View]) -> bool {
    let moves = views.iter().any(|view| view.case == Case::Pending);
    if !moves || (state.open && state.target == Some(target)) {
        return false;
    }
    state.number += 1;
    if !state.open {
        state.began = state.number;
    }
    *state = State {
        target: Some(target),
        open: true,
        promoted: false,
        aborted: false,
        passed: BTreeSet::new(),
        ..std::mem::take(state)
    };
    true
}

/// Notes that nothing moves any more.
fn rest(state: &mut State, target: Digest, views: &[View]) {
    if !views.iter().all(|view| view.case.is_settled()) {
        return;
    }
    state.open = false;
    state.target = Some(target);
    if views.iter().any(|view| view.case == Case::Done) {
        state.last_good = Some(LastGood { number: state.number, target });
    }
}

fn phase(policy: &Policy, state: &State, gates: &Gates, views: &[View]) -> Phase {
    let goes_back = gates.goes_back(policy) && views.iter().any(|view| view.is_going_back);
    match gates.latch {
        _ if !state.open => Phase::Complete,
        _ if policy.paused => Phase::Paused,
        _ if goes_back => Phase::RollingBack,
        Some(Latch::Aborted) => Phase::Aborted,
        Some(Latch::Halted) => Phase::Halted,
        None if gates.on_hold => Phase::OnHold,
        None => Phase::Progressing,
    }
}

fn count(views: &[View]) -> Counts {
    let mut counts = Counts::default();
    for view in views {
        let one = match view.case {
            Case::Done => &mut counts.updated,
            Case::InFlight => &mut counts.progressing,
            Case::Refused => &mut counts.failed,
            Case::Deferred => &mut counts.deferred,
            Case::Pending | Case::Looking => &mut counts.waiting,
            Case::Still | Case::Skipped => &mut counts.standing,
        };
        *one += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
