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
//! 8. At most `maxPartitions` partitions have members on their way, or some released and some not within the open step: of later
//!    steps a partition may have members that wait for other partitions. What is broken goes wherever it is.
//! 9. With `Rollback`, and where it was aborted, members that were released since the set was last at rest go back to the last
//!    change that they were done with before, unavailable ones at once and others within `maxUnavailable`; there they need not
//!    soak. They refuse what they were taken from, so that nothing goes forth and back by itself.
//!
//! The number counts up when the set asks some member for something else, or when something moves in a set at rest: a commit that
//! concerns no member is no other rollout. It names a rollout for people; an order counts for its number and only once.
//!
//! Of a large set most members are done with what the set asks for, and stay it: they are [`Resting`]. They are told of by numbers,
//! and need not be read: as long as nothing of them changes the decision is the same with them and with their numbers.

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

/// Why nothing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Latch {
    Halted,
    Aborted,
}

/// Each member counts once, those that soak also among those that are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub updated: usize,
    pub progressing: usize,
    /// Of these: healthy at the released version, but not yet for the length of the soak.
    #[serde(default)]
    pub soaking: usize,
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
    /// By index: which of them rest from now on, as long as nothing of them changes.
    pub rests: Vec<Option<Rest>>,
    /// What [`standing`] needs to know of the others.
    pub outlook: Outlook,
    /// When time alone may change the decision; none: not before something happens.
    pub next_look: Option<i64>,
}

/// Pure: the same members in whatever order give the same decision. `target` is of all that members share: template, pin, what
/// their sources have, contexts. `resting`: how many there are beside `members`.
pub fn decide(
    policy: &Policy,
    state: &State,
    target: Digest,
    (members, resting): (&[Member<'_>], &Resting),
    clock: Clock,
) -> Decision {
    let mut state = state.clone();
    let mut views = look(policy, &state, members, members.iter().map(|member| member.track), clock);
    let begins = begin(&mut state, target, members, &views);
    // Until it is known whether another rollout begins it is not known which one is meant.
    let is_known = state.target == Some(target);
    if is_known {
        views.iter_mut().zip(members).for_each(|(view, member)| view.ask(member));
    }
    if begins {
        let tracks: Vec<Track> = views.iter().map(|view| view.track).collect();
        views = look(policy, &state, members, tracks, clock);
    }
    if let Some(order) = policy.order.as_ref().filter(|order| is_known && state.obeyed != Some(order.id)) {
        let tracks = orders::obey(policy, &mut state, order, members, &views);
        views = look(policy, &state, members, tracks, clock);
    }
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
    let changed = members.iter().zip(&views).enumerate().filter(|(_, (member, view))| view.track != member.track);
    let tracks = changed.map(|(index, (_, view))| (index, view.track)).collect();
    let phase = phase(policy, &state, &gates, &views);
    let counts = count(members, &views, resting);
    let rests = members.iter().zip(&views).map(|(member, view)| view.rests(&state, member)).collect();
    let outlook = Outlook::of(policy, &gates, members, &views, phase);
    let next_look = views.iter().filter_map(|view| view.due).min();
    Decision { tracks, released, retracted, phase, latch: gates.latch, counts, rests, outlook, next_look, state }
}

/// All members, with what there is to learn of them.
fn look(
    policy: &Policy,
    state: &State,
    members: &[Member<'_>],
    tracks: impl IntoIterator<Item = Track>,
    clock: Clock,
) -> Vec<View> {
    let view = |(member, track)| {
        let view = View::of(policy, state, member, track, clock);
        view.learn().map_or(view, |track| View::of(policy, state, member, track, clock))
    };
    members.iter().zip(tracks).map(view).collect()
}

/// Counts a rollout; whether another one has begun. While one is under way, that is where the set asks some member for something else:
/// of a commit that concerns none of them its sources have a new revision, and nothing else is new.
fn begin(state: &mut State, target: Digest, members: &[Member<'_>], views: &[View]) -> bool {
    // What is refused waits for a person, who has to name the number that it is refused in now.
    let moves = views.iter().any(|view| matches!(view.case, Case::Pending | Case::Refused));
    let is_new = || views.iter().zip(members).any(|(view, member)| view.is_asked_anew(member));
    if !moves || (state.open && (state.target == Some(target) || !is_new())) {
        // What the set asks for now is nothing else to any of them.
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

/// Notes that nothing moves any more.
fn rest(state: &mut State, target: Digest, views: &[View], resting: &Resting) {
    if !views.iter().all(|view| view.case.is_settled()) {
        return;
    }
    state.open = false;
    state.target = Some(target);
    if resting.done() > 0 || views.iter().any(|view| view.case == Case::Done) {
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

fn count(members: &[Member<'_>], views: &[View], resting: &Resting) -> Counts {
    let mut counts = Counts { updated: resting.done(), deferred: resting.deferred(), ..Counts::default() };
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
