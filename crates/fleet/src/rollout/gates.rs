//! What holds members up, and who goes next.

use std::{cmp::Reverse, collections::BTreeSet};

use farwater_api::{
    Digest,
    rollout::{OnFailure, Strategy},
};

use super::{Case, Latch, Member, Policy, Reach, Resting, State, View};

/// A partition's value; what has no label comes last.
type Partition<'a> = (bool, &'a str);

pub(super) struct Gates {
    pub latch: Option<Latch>,
    /// For a person to promote it.
    pub on_hold: bool,
    /// The first step that has not let all others pass.
    pub step: u16,
    pub max: usize,
    pub unavailable: usize,
    /// Nobody has got through yet, and there is no canary to wait for.
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
    /// None: as the whole.
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
            step.max = policy.step(number).and_then(|stated| stated.max_unavailable).map(|limit| limit.of(step.total));
        }
        let sum = |count: fn(&StepGate) -> usize| steps.iter().map(count).sum::<usize>();
        let (total, unavailable, refused) = (sum(|s| s.total), sum(|s| s.unavailable), sum(|s| s.refused));
        let max = policy.max_unavailable.of(total);
        let is_proven =
            views.iter().any(|view| view.case == Case::Done && view.is_through && view.track.number == state.number);
        let is_unproven = policy.canary.is_some() && !is_proven;
        let bears = if is_unproven { 1 } else { policy.halt_after.of(total).min(max) };
        let is_over = |step: &StepGate| step.max.is_some_and(|max| step.refused >= max);
        let has_failed = refused >= bears || steps[0].refused > 0 || steps.iter().any(is_over);
        let is_at_once = policy.strategy == Strategy::AllAtOnce;
        // What goes everywhere at once is not stopped, and may go back.
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

    /// Whether what has changed goes back.
    pub fn goes_back(&self, policy: &Policy) -> bool {
        match self.latch {
            Some(Latch::Aborted) => true,
            Some(Latch::Halted) => policy.on_failure == OnFailure::Rollback,
            None => false,
        }
    }

    /// New to a set that is good: it shows nothing that others wait for.
    pub fn is_newcomer(&self, view: &View) -> bool {
        self.is_known && view.track.released.is_none()
    }

    /// Those that get what they want now.
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
            (Reverse(view.is_broken), member.step, Reverse(view.is_unavailable), self.rank(member))
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

    /// Those that go back now.
    pub fn choose_back(&self, members: &[Member<'_>], views: &[View]) -> Vec<usize> {
        // What was aborted is refused by all whom it concerned then.
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
            // Nobody waits for it any more: nothing of the rollout is there.
            let left = usize::from(!is_new && matches!(member.reach, Reach::Silent { .. }));
            unavailable = unavailable + taken - left;
            step.unavailable = step.unavailable + taken - left;
            fits
        });
        back
    }

    /// Those that have members on their way; while there is room, those of which half is through, and then the first others.
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
            // What was broken goes wherever it is, and brings nobody after it.
            return BTreeSet::new();
        }
        let begun = here(&|member, view| member.step == self.step && view.is_through);
        let ready: BTreeSet<Partition<'_>> = candidates.iter().map(|index| partition(&members[*index])).collect();
        let (first, then): (Vec<_>, Vec<_>) = ready.difference(&open).copied().partition(|one| begun.contains(one));
        let room = self.max_partitions - open.len();
        open.extend(first.into_iter().chain(then).take(room));
        open
    }

    /// Not always the same cluster first.
    fn rank(&self, member: &Member<'_>) -> Digest {
        Digest::of(format!("{}/{}", self.number, member.cluster))
    }
}

pub(super) fn partition<'a>(member: &Member<'a>) -> Partition<'a> {
    (member.partition.is_none(), member.partition.unwrap_or_default())
}
