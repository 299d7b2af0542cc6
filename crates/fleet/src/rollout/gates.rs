//! What holds members back, and which member goes next.

use std::{cmp::Reverse, collections::BTreeSet};

use farwater_api::{
    Digest,
    rollout::{OnFailure, Strategy},
};

use super::{Case, Latch, Member, Policy, Reach, Resting, State, View};

/// Value of a partition label. Members without the label sort last.
type Partition<'a> = (bool, &'a str);

pub(super) struct Gates {
    pub latch: Option<Latch>,
    /// The rollout waits for a person to promote it.
    pub on_hold: bool,
    /// The first step that later steps still wait for.
    pub step: u16,
    pub max: usize,
    pub unavailable: usize,
    /// No member has got through yet, and there is no canary to wait for.
    pub is_alone: bool,
    is_at_once: bool,
    max_partitions: usize,
    by_partition: bool,
    /// Whether what the set asks for is known to be good.
    is_known: bool,
    number: u64,
    steps: Vec<StepGate>,
}

#[derive(Clone, Copy, Default)]
struct StepGate {
    /// None: the limit of the whole set applies.
    max: Option<usize>,
    unavailable: usize,
    refused: usize,
    total: usize,
}

impl Gates {
    pub fn of(
        policy: &Policy,
        state: &State,
        target: Digest,
        (members, resting): (&[Member<'_>], &Resting),
        views: &[View],
    ) -> Self {
        let steps = count_steps(policy, (members, resting), views);
        let sum = |count: fn(&StepGate) -> usize| steps.iter().map(count).sum::<usize>();
        let (total, unavailable, refused) = (sum(|s| s.total), sum(|s| s.unavailable), sum(|s| s.refused));
        let max = policy.max_unavailable.of(total);
        let is_proven = views
            .iter()
            .any(|view| view.case == Case::Done && view.is_through && view.track.number == state.number);
        let is_unproven = policy.canary.is_some() && !is_proven;
        let bears = if is_unproven {
            1
        } else {
            policy.halt_after.of(total).min(max)
        };
        let is_over = |step: &StepGate| step.max.is_some_and(|max| step.refused >= max);
        let has_failed = refused >= bears || steps[0].refused > 0 || steps.iter().any(is_over);
        let is_at_once = policy.strategy == Strategy::AllAtOnce;
        // An all-at-once rollout is not stopped, but it may go back.
        let may_halt = !is_at_once || policy.on_failure == OnFailure::Rollback;

        let latch = match () {
            () if state.aborted => Some(Latch::Aborted),
            () if has_failed && refused > 0 && may_halt => Some(Latch::Halted),
            () => None,
        };
        let waits = members
            .iter()
            .zip(views)
            .filter(|(member, view)| !view.case.lets_pass(member.step) && !state.passed.contains(&member.step));
        Self {
            latch,
            on_hold: policy.strategy == Strategy::OnHold && !state.promoted,
            step: waits.map(|(member, _)| member.step).min().unwrap_or(u16::MAX),
            max,
            unavailable,
            is_alone: is_unproven && !state.passed.contains(&0),
            is_at_once,
            max_partitions: policy.max_partitions,
            by_partition: policy.partition_by.is_some(),
            is_known: state.last_good.is_some_and(|good| good.target == target),
            number: state.number,
            steps,
        }
    }

    /// Whether changed members go back.
    pub fn goes_back(&self, policy: &Policy) -> bool {
        match self.latch {
            Some(Latch::Aborted) => true,
            Some(Latch::Halted) => policy.on_failure == OnFailure::Rollback,
            None => false,
        }
    }

    /// Whether the member is new to a set that is known to be good. No other member waits for a newcomer.
    pub fn is_newcomer(&self, view: &View) -> bool {
        self.is_known && view.track.released.is_none()
    }

    /// Indices of the members to release now.
    pub fn choose(&self, members: &[Member<'_>], views: &[View]) -> Vec<usize> {
        let ready = |index: &usize| views[*index].is_ready;
        if self.on_hold {
            return Vec::new();
        }
        if self.is_at_once {
            return (0..views.len()).filter(ready).collect();
        }

        let mut hopeful = views.iter().filter(|view| view.is_hopeful).count();
        let mut ready: Vec<usize> = (0..views.len()).filter(ready).collect();
        ready.sort_by_cached_key(|index| {
            let (member, view) = (&members[*index], &views[*index]);
            (
                Reverse(view.is_broken),
                member.step,
                Reverse(view.is_unavailable),
                self.rank(member),
            )
        });
        let broken = ready.iter().take_while(|index| views[**index].is_broken).count();
        let healthy = ready.split_off(broken);
        ready.truncate(self.max.saturating_sub(hopeful));
        let mut chosen = ready;
        hopeful += chosen.len();

        if self.latch.is_some() {
            return chosen;
        }
        let opens = |index: &usize| members[*index].step <= self.step || self.is_newcomer(&views[*index]);
        let mut healthy: Vec<usize> = healthy.into_iter().filter(opens).collect();
        if self.by_partition {
            let allowed = self.partitions(members, views, &healthy);
            healthy.retain(|index| allowed.contains(&partition(&members[*index])));
        }

        let (mut unavailable, mut steps) = (self.unavailable, self.steps.clone());
        for index in healthy {
            let (member, view) = (&members[index], &views[index]);
            let step = &mut steps[usize::from(member.step)];
            let waits = self.is_alone && member.step > 0 && !self.is_newcomer(view) && hopeful > 0;
            let fits = unavailable < self.max && step.max.is_none_or(|max| step.unavailable < max);
            if waits || !(fits || view.is_unavailable) {
                continue;
            }
            if !view.is_unavailable {
                unavailable += 1;
                step.unavailable += 1;
            }
            hopeful += 1;
            chosen.push(index);
        }
        chosen
    }

    /// Indices of the members to take back now.
    pub fn choose_back(&self, members: &[Member<'_>], views: &[View]) -> Vec<usize> {
        // After an abort, every member that was concerned refuses the aborted change.
        let is_meant = |view: &View| self.latch != Some(Latch::Aborted) || view.case == Case::Refused;
        let goes = |index: &usize| views[*index].may_go_back && is_meant(&views[*index]);
        let mut back: Vec<usize> = (0..views.len()).filter(goes).collect();
        back.sort_by_cached_key(|index| (Reverse(views[*index].is_unavailable), self.rank(&members[*index])));
        let (mut unavailable, mut steps) = (self.unavailable, self.steps.clone());
        back.retain(|index| {
            let (member, is_new) = (&members[*index], !views[*index].is_unavailable);
            let step = &mut steps[usize::from(member.step)];
            let fits = !is_new || (unavailable < self.max && step.max.is_none_or(|max| step.unavailable < max));
            let taken = usize::from(fits && is_new);
            // The change never reached this silent cluster, so it no longer counts as unavailable.
            let left = usize::from(!is_new && matches!(member.reach, Reach::Silent { .. }));
            unavailable = unavailable + taken - left;
            step.unavailable = step.unavailable + taken - left;
            fits
        });
        back
    }

    /// Partitions that may have members on their way: first those that have some now, then, while there is room, those
    /// whose members are partly through, then others.
    fn partitions<'a>(
        &self,
        members: &'a [Member<'_>],
        views: &[View],
        candidates: &[usize],
    ) -> BTreeSet<Partition<'a>> {
        let here = |holds: &dyn Fn(&Member<'_>, &View) -> bool| -> BTreeSet<Partition<'a>> {
            let found = members.iter().zip(views).filter(|(member, view)| holds(member, view));
            found.map(|(member, _)| partition(member)).collect()
        };
        let mut open = here(&|_, view| view.is_moving);
        if open.len() > self.max_partitions {
            // A broken member is released whatever its partition, but it opens its partition to no other member.
            return BTreeSet::new();
        }
        let begun = here(&|member, view| member.step == self.step && view.is_through);
        let ready: BTreeSet<Partition<'_>> = candidates.iter().map(|index| partition(&members[*index])).collect();
        let (first, then): (Vec<_>, Vec<_>) = ready.difference(&open).copied().partition(|one| begun.contains(one));
        let room = self.max_partitions - open.len();
        open.extend(first.into_iter().chain(then).take(room));
        open
    }

    /// Order of members within a rollout. The number is hashed in, so that not always the same cluster goes first.
    fn rank(&self, member: &Member<'_>) -> Digest {
        Digest::of(format!("{}/{}", self.number, member.cluster))
    }
}

/// The members of each step, and how many of them may be unavailable.
fn count_steps(policy: &Policy, (members, resting): (&[Member<'_>], &Resting), views: &[View]) -> Vec<StepGate> {
    let last = members.iter().map(|member| usize::from(member.step)).max().unwrap_or(0);
    let resting = resting.done_by_step();
    let mut steps = vec![StepGate::default(); resting.len().max(last + 1)];
    for (step, done) in steps.iter_mut().zip(resting) {
        step.total = *done;
    }

    for (member, view) in members.iter().zip(views) {
        let step = &mut steps[usize::from(member.step)];
        let is_left = matches!(view.case, Case::Deferred | Case::Skipped)
            || (view.case == Case::Pending && matches!(member.reach, Reach::Silent { .. }));
        step.total += usize::from(!is_left);
        step.unavailable += usize::from(view.is_unavailable);
        step.refused += usize::from(view.case == Case::Refused);
    }
    for (number, step) in (0..).zip(&mut steps) {
        step.max = policy
            .step(number)
            .and_then(|stated| stated.max_unavailable)
            .map(|limit| limit.of(step.total));
    }
    steps
}

pub(super) fn partition<'a>(member: &Member<'a>) -> Partition<'a> {
    (member.partition.is_none(), member.partition.unwrap_or_default())
}
