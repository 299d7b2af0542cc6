//! Rollouts: which members of a set get the change that they want, when, and what goes back.
//!
//! A *member* is one cluster of a set. A *change* is everything that a rollout delivers to a member: template, content
//! and parameters. [`decide`] is level-triggered: a rollout is the set of members whose wanted change differs from the
//! one they are released for. A commit that arrives before the previous one is through needs no special case, nor does
//! a cluster that joins, comes back or changes a label. The stored state is one [`Track`] per member and one [`State`]
//! per set. A release names a change and not only a member, so a change that arrives a second later waits for its own
//! release.
//!
//! 1. A member is *done* when its agent reports the published entry as healthy, has reported so for the soak, and was
//!    heard when the soak ended. Neither silence nor a clock that jumps is a success. A member that was done once and
//!    falls back is done again as soon as it is healthy: the soak tests the change, and the change has already passed
//!    it.
//! 2. A silent cluster that a change has not reached is passed over: it has not failed, and no member waits for it. A
//!    cluster that fell silent with its change counts as failed after the progress deadline. After the hub was away, no
//!    other member follows a cluster before the hub has heard it.
//! 3. A member that fails at its change *refuses* it from then on: it is not released for it again, even after it has
//!    recovered. *Halted* is therefore derived, not stored: it means that enough members want a change that they
//!    refuse. It ends when they want another change, when they are gone, or by an order.
//! 4. One failure halts the set if a canary failed, or if no member has got through yet. Later `haltAfter` failures
//!    halt it, or as many as may be unavailable, since with these no other member could be released. Fewer failures
//!    delay no later step.
//! 5. A broken member that wants a change it doesn't refuse gets it first: before canaries, and while the set is
//!    halted, but not while the set goes back. At most `maxUnavailable` of these are on their way at one time, because
//!    a wrong fix is one more change.
//! 6. A member is *unavailable* from its release or retraction until it is done with what it got, whatever it wants
//!    meanwhile, and while it has failed at anything. When a healthy member is taken, at most `maxUnavailable` are
//!    unavailable, in the whole set and in its step.
//! 7. A step opens when all members of earlier steps are done with what they want now, passed over, or held by a
//!    person. Where no canary can go, the first other member goes alone. A member that is new to a set whose target is
//!    already known to be good waits for no step.
//! 8. At most `maxPartitions` partitions have members on their way, or some members released and some not within the
//!    open step. Members of later steps may wait in a partition for other partitions. A broken member is released
//!    whatever its partition.
//! 9. With `Rollback`, or after an abort, members that were released since the set was last at rest go back to the last
//!    change that they were done with before: unavailable ones at once, others within `maxUnavailable`. They need not
//!    soak there. They refuse the change they were taken back from, so that nothing alternates by itself.
//!
//! The number increases when the set asks some member for another change, or when something moves in a set at rest. A
//! commit that concerns no member starts no rollout. The number names a rollout for people; an order counts for its
//! number, and only once.
//!
//! Most members of a large set are done with what the set asks for and stay so: they are [`Resting`]. They are passed
//! as counts and need not be read. As long as nothing about them changes, the decision from their counts equals the
//! decision from all members.

mod change;
mod evidence;
mod gates;
mod member;
mod orders;
mod policy;
mod resting;
mod standing;
mod steps;
mod survey;
mod view;

pub use change::{ChangeId, Content, ParseChangeError};
pub use evidence::{Evidence, Published, Reach, Said};
pub use member::{Clock, LastGood, Member, Stands, State, Track};
pub use policy::{CanaryPolicy, InvalidPolicy, Order, Policy, StepPolicy};
pub use resting::{Rest, Resting};
pub use standing::{Held, Outlook, Standing, progress, standing};
pub use steps::{Cluster, place};
pub use survey::{Counted, survey, worst};

use std::collections::BTreeSet;

use farwater_api::Digest;
pub use farwater_api::RolloutPhase as Phase;
use serde::{Deserialize, Serialize};

use gates::Gates;
use view::{Case, View};

/// Why no further member is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Latch {
    Halted,
    Aborted,
}

/// Members by progress. Each counts once, except that soaking members are also counted as progressing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub updated: usize,
    pub progressing: usize,
    /// Of the progressing members: healthy at the released version, but not yet for the length of the soak.
    #[serde(default)]
    pub soaking: usize,
    pub failed: usize,
    /// Silent and passed over.
    pub deferred: usize,
    pub waiting: usize,
    /// Held by a person, or denied a place on the cluster.
    pub standing: usize,
}

/// What to do now, and what to report.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Changed tracks, by index of the member. The caller saves all of them and `state` in one transaction.
    pub tracks: Vec<(usize, Track)>,
    /// Of the changed members: those released for what they want.
    pub released: Vec<usize>,
    /// Of the changed members: those that go back.
    pub retracted: Vec<usize>,
    pub state: State,
    pub phase: Phase,
    pub latch: Option<Latch>,
    pub counts: Counts,
    /// By index of the member: how it rests from now on, until something about it changes. None: it does not rest.
    pub rests: Vec<Option<Rest>>,
    /// What [`standing`] needs to know about the other members.
    pub outlook: Outlook,
    /// Time in seconds at which time alone may change the decision. None: only an event can change it.
    pub next_look: Option<i64>,
}

/// Decides who is released and who goes back. Pure: the order of `members` does not matter. `target` is the digest of
/// everything that all members share: template, pin, revisions of their sources, contexts. `resting` counts the members
/// that are not in `members`.
pub fn decide(
    policy: &Policy,
    state: &State,
    target: Digest,
    (members, resting): (&[Member<'_>], &Resting),
    clock: Clock,
) -> Decision {
    let mut state = state.clone();
    let mut views = observe(policy, &mut state, target, members, clock);
    let gates = Gates::of(policy, &state, target, (members, resting), &views);
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

    rest(&mut state, target, &views, resting);

    let changed = members
        .iter()
        .zip(&views)
        .enumerate()
        .filter(|(_, (member, view))| view.track != member.track);
    let tracks = changed.map(|(index, (_, view))| (index, view.track)).collect();
    let phase = phase(policy, &state, &gates, &views);
    let counts = count(members, &views, resting);
    let rests = members
        .iter()
        .zip(&views)
        .map(|(member, view)| view.rests(&state, member))
        .collect();
    let outlook = Outlook::of(policy, &gates, members, &views, phase);
    let next_look = views.iter().filter_map(|view| view.due).min();
    Decision {
        tracks,
        released,
        retracted,
        phase,
        latch: gates.latch,
        counts,
        rests,
        outlook,
        next_look,
        state,
    }
}

/// Views of all members, after the state has learned whether another rollout begins and what a person ordered.
fn observe(policy: &Policy, state: &mut State, target: Digest, members: &[Member<'_>], clock: Clock) -> Vec<View> {
    let mut views = look(policy, state, members, members.iter().map(|member| member.track), clock);
    let begins = begin(state, target, members, &views);
    // While it is unknown whether another rollout begins, an order can't be matched to a number.
    let is_known = state.target == Some(target);
    if is_known {
        views
            .iter_mut()
            .zip(members)
            .for_each(|(view, member)| view.ask(member));
    }
    if begins {
        let tracks: Vec<Track> = views.iter().map(|view| view.track).collect();
        views = look(policy, state, members, tracks, clock);
    }
    if let Some(order) = policy
        .order
        .as_ref()
        .filter(|order| is_known && state.obeyed != Some(order.id))
    {
        let tracks = orders::obey(policy, state, order, members, &views);
        views = look(policy, state, members, tracks, clock);
    }
    views
}

/// Views of all members, after each has learned from its evidence.
fn look(
    policy: &Policy,
    state: &State,
    members: &[Member<'_>],
    tracks: impl IntoIterator<Item = Track>,
    clock: Clock,
) -> Vec<View> {
    let view = |(member, track)| {
        let view = View::of(policy, state, member, track, clock);
        view.learn()
            .map_or(view, |track| View::of(policy, state, member, track, clock))
    };
    members.iter().zip(tracks).map(view).collect()
}

/// Counts a rollout if another one begins, and returns whether it did. While a rollout is under way, another one begins
/// only if the set asks some member for another change: after a commit that concerns no member the sources have a new
/// revision, but nothing else is new.
fn begin(state: &mut State, target: Digest, members: &[Member<'_>], views: &[View]) -> bool {
    // A refused change waits for a person, whose order must name the current number.
    let moves = views
        .iter()
        .any(|view| matches!(view.case, Case::Pending | Case::Refused));
    let is_new = || {
        views
            .iter()
            .zip(members)
            .any(|(view, member)| view.wants_new_change(member))
    };
    if !moves || (state.open && (state.target == Some(target) || !is_new())) {
        // The new target asks no member for another change.
        if views.iter().all(|view| view.case != Case::Looking) {
            state.target = Some(target);
        }
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

/// Records that all members are settled.
fn rest(state: &mut State, target: Digest, views: &[View], resting: &Resting) {
    if !views.iter().all(|view| view.case.is_settled()) {
        return;
    }
    state.open = false;
    state.target = Some(target);
    if resting.done() > 0 || views.iter().any(|view| view.case == Case::Done) {
        state.last_good = Some(LastGood {
            number: state.number,
            target,
        });
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

fn count(members: &[Member<'_>], views: &[View], resting: &Resting) -> Counts {
    let mut counts = Counts {
        updated: resting.done(),
        deferred: resting.deferred(),
        ..Counts::default()
    };
    for (member, view) in members.iter().zip(views) {
        counts.soaking += usize::from(view.case == Case::InFlight && member.soaks(&view.track));
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
