//! Members for which there is nothing to decide.

use std::collections::BTreeMap;

use farwater_api::Digest;

use super::{Policy, State, steps::group};

/// How a member rests: it is released for what it wants, that is published, and the present rollout does not concern
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Done with its change.
    Done,
    /// Silent and passed over.
    Deferred,
}

/// How many members rest in each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resting {
    done: Vec<usize>,
    deferred: Vec<usize>,
}

impl Resting {
    pub fn add(&mut self, step: u16, rest: Rest, count: usize) {
        let counts = match rest {
            Rest::Done => &mut self.done,
            Rest::Deferred => &mut self.deferred,
        };
        let step = usize::from(step);
        if counts.len() <= step {
            counts.resize(step + 1, 0);
        }
        counts[step] += count;
    }

    pub fn done(&self) -> usize {
        self.done.iter().sum()
    }

    pub fn deferred(&self) -> usize {
        self.deferred.iter().sum()
    }

    /// Whether these counts suffice for a decision under the policy that the members came to rest with. They do while
    /// the set asks for the same target, no order is open (it may name any member), and all resting members stay in
    /// their steps. `awake`: labels of the others.
    pub fn suffice<'a>(
        &self,
        policy: &Policy,
        (state, target): (&State, Digest),
        mut awake: impl Iterator<Item = &'a BTreeMap<String, String>>,
    ) -> bool {
        let is_obeyed = policy.order.as_ref().is_none_or(|order| state.obeyed == Some(order.id));
        let is_placed = policy
            .canary
            .as_ref()
            .is_none_or(|canary| match (&canary.selector, canary.count) {
                (Some(_), None) => true,
                (Some(_), Some(count)) => self.has_canaries(count),
                // Canaries come from the first step, unless an awake cluster is in an earlier one now.
                (None, Some(count)) => {
                    self.has_canaries(count)
                        && awake.all(|labels| usize::from(group(policy, labels)) >= self.first_group())
                }
                (None, None) => false,
            });
        state.target == Some(target) && is_obeyed && is_placed
    }

    /// Whether no resting member can become a canary: there are enough, or all are silent, and a silent cluster never
    /// becomes one.
    fn has_canaries(&self, count: usize) -> bool {
        self.canaries() >= count || (self.canaries() == 0 && self.done() == 0)
    }

    /// The first step with members that are not canaries.
    pub(super) fn first_group(&self) -> usize {
        let first = |counts: &[usize]| counts.iter().skip(1).position(|count| *count > 0).map(|at| at + 1);
        [first(&self.done), first(&self.deferred)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(usize::MAX)
    }

    pub(super) fn canaries(&self) -> usize {
        [&self.done, &self.deferred]
            .into_iter()
            .filter_map(|counts| counts.first())
            .sum()
    }

    /// Counts of done members, from the first step on.
    pub(super) fn done_by_step(&self) -> &[usize] {
        &self.done
    }
}
