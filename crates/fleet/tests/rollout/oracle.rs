//! The properties of each decision, judged by the ledgers.

use std::collections::BTreeSet;

use farwater_api::{
    Digest,
    rollout::{OnFailure, Strategy},
};
use farwater_fleet::rollout::{Decision, Phase, Reach};

use crate::{
    agent::Truth,
    events::Stop,
    ledger::{Fallen, count_from},
    row::Row,
    world::{World, soak},
};

/// A commit that is bad everywhere and came to a set at rest.
#[derive(Debug)]
pub struct BadCommit {
    pub target: Digest,
    /// Whether a canary could take it.
    pub has_canary: bool,
    /// Number of events since that may bring it to one more cluster each.
    pub faults: usize,
    hit: Vec<String>,
}

impl BadCommit {
    pub fn new(target: Digest, has_canary: bool) -> Self {
        Self {
            target,
            has_canary,
            faults: 0,
            hit: Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
pub struct Oracle {
    /// Targets with which all members were done.
    good: Vec<Digest>,
    /// Number of the rollout in which a person has passed a step.
    pub passed: u64,
    /// Number of the rollout that a person has aborted.
    pub aborted: u64,
    pub bad: Option<BadCommit>,
    pub released: u64,
    pub retracted: u64,
}

type Verdict = Result<(), String>;

fn must(holds: bool, property: &str, told: impl FnOnce() -> String) -> Verdict {
    if holds {
        Ok(())
    } else {
        Err(format!("{property}: {}", told()))
    }
}

fn has(row: &Row, stop: Stop) -> bool {
    row.stops.contains(&stop)
}

fn is_still(row: &Row) -> bool {
    has(row, Stop::Suspended) || has(row, Stop::Denied)
}

fn is_skipped(row: &Row) -> bool {
    row.wanted.is_some() && row.ledger.skipped == row.wanted
}

impl World {
    fn is_silent(&self, row: &Row) -> bool {
        matches!(self.reach(row), Reach::Silent { .. })
    }

    /// Seconds since the member could make progress.
    fn pressed(&self, row: &Row) -> i64 {
        self.clock.now - count_from(self.clock, row.ledger.released_at)
    }

    fn is_broken(&self, row: &Row) -> bool {
        let is_late = self.pressed(row) >= self.policy.progress_deadline;
        let says = |truth| row.ledger.says(row.published, truth);
        row.track.released.is_some() && (says(Truth::Failed) || (is_late && !says(Truth::Healthy)))
    }

    /// Notes in the ledgers what a person's order means, if it counts.
    pub fn note_skip(&mut self, name: &str) {
        for row in self.rows.iter_mut().filter(|row| row.name == name) {
            row.ledger.skipped = row.wanted;
            row.ledger.is_out = false;
        }
    }

    pub fn note_soak(&mut self) {
        for row in &mut self.rows {
            if let Some(published) = row.published.filter(|published| Some(published.change) == row.wanted)
                && !is_still(row)
                && row.ledger.says(row.published, Truth::Healthy)
                && row.track.refused != row.wanted
                && row.ledger.skipped != row.wanted
            {
                row.ledger.prove(published.change);
                row.ledger.is_out &= row.heard.is_none();
            }
        }
    }

    pub fn note_abort(&mut self) {
        for row in &mut self.rows {
            row.ledger.aborted = row.wanted.or(row.ledger.aborted);
        }
    }

    pub fn note_go_on(&mut self) {
        for row in &mut self.rows {
            row.ledger.fallen.clear();
            row.ledger.aborted = None;
            // A member that failed is not waited for, or tries again.
            if row.track.refused.is_some() && row.track.refused == row.wanted {
                row.ledger.is_out = false;
                if row.track.released == row.wanted {
                    row.ledger.skipped = row.wanted;
                }
            }
        }
    }

    /// Notes the failures that count by now. The decision that is judged next has to know them.
    fn note_failures(&mut self, decision: &Decision) {
        let (clock, policy) = (self.clock, self.policy.clone());
        let reaches: Vec<Reach> = self.rows.iter().map(|row| self.reach(row)).collect();
        for (row, reach) in self.rows.iter_mut().zip(reaches) {
            let pressed = clock.now - count_from(clock, row.ledger.released_at);
            let is_late = pressed >= policy.progress_deadline && !row.ledger.says(row.published, Truth::Healthy);
            row.ledger
                .late
                .extend(row.wanted.filter(|_| is_late && row.track.released == row.wanted));
            for fallen in &mut row.ledger.fallen {
                fallen.was_left |= row.wanted.is_some_and(|wanted| wanted != fallen.change);
            }
            let Some((on, Truth::Failed, since)) = row.ledger.word else {
                continue;
            };
            let counts = Some(on) == row.published
                && row.wanted == Some(on.change)
                && row.track.released == row.wanted
                && matches!(reach, Reach::Heard { .. })
                && !is_still(row)
                && !is_skipped(row)
                && decision.state.open
                && row.ledger.released_number >= decision.state.began;
            let is_known = |fallen: &Fallen| fallen.change == on.change && !fallen.was_left;
            if counts
                && clock.now >= count_from(clock, since) + policy.fail_after
                && !row.ledger.fallen.iter().any(is_known)
            {
                row.ledger.late.push(on.change);
                row.ledger.fallen.push(Fallen {
                    change: on.change,
                    was_left: false,
                });
            }
        }
    }

    fn is_latched(&self) -> bool {
        let holds = |row: &&Row| {
            let is_wanted = |fallen: &Fallen| Some(fallen.change) == row.wanted && !fallen.was_left;
            !is_skipped(row) && !is_still(row) && row.ledger.fallen.iter().any(is_wanted)
        };
        let count = self.rows.iter().filter(holds).count();
        let is_canary = self.rows.iter().filter(holds).any(|row| row.step == 0);
        count > 0 && (is_canary || count >= self.policy.halt_after.of(self.rows.len()))
    }

    /// Judges all properties of one decision, before it is carried out.
    pub fn judge(&mut self, decision: &Decision) -> Verdict {
        self.note_failures(decision);
        let is_at_once = self.policy.strategy == Strategy::AllAtOnce;
        let is_latched = self.is_latched();
        for &index in &decision.released {
            let (row, track) = (&self.rows[index], track_of(decision, index));
            let told = || format!("{} in {decision:?}", row.name);
            must(
                track.is_some_and(|track| track.released == row.wanted && row.wanted.is_some()),
                "P3",
                told,
            )?;
            let is_held = self.policy.paused || is_still(row) || has(row, Stop::Window) || is_skipped(row);
            must(!is_held, "P5 released", told)?;
            must(self.is_heard_or(is_at_once, row), "a silent one is released", told)?;
            let failed_here = |fallen: &&Fallen| Some(fallen.change) == row.wanted && !fallen.was_left;
            must(
                !row.ledger.fallen.iter().any(|fallen| failed_here(&fallen)),
                "P12",
                told,
            )?;
            if is_at_once || self.is_broken(row) {
                continue;
            }
            must(!is_latched && decision.state.number != self.oracle.aborted, "P4", told)?;
            let is_newcomer = row.track.released.is_none() && self.oracle.good.contains(&self.target());
            if !is_newcomer && self.oracle.passed != decision.state.number {
                let earlier = self.rows.iter().filter(|other| other.step < row.step);
                if let Some(other) = earlier.into_iter().find(|other| !self.lets_pass(other)) {
                    return Err(format!(
                        "P2: {} is released before {} is done: {decision:?}",
                        row.name, other.name
                    ));
                }
            }
        }
        for &index in &decision.retracted {
            let (row, track) = (&self.rows[index], track_of(decision, index));
            let told = || format!("{} in {decision:?}", row.name);
            must(
                !self.policy.paused && !is_still(row) && !has(row, Stop::Window),
                "P5 retracted",
                told,
            )?;
            let is_meant = self.policy.on_failure == OnFailure::Rollback || decision.state.aborted;
            must(is_meant, "nobody has asked for a retraction", told)?;
            let back = track.and_then(|track| track.released);
            must(
                back.is_some_and(|back| row.ledger.proven.contains(&back)),
                "it goes back to what it never was done with",
                told,
            )?;
        }
        self.judge_refusals(decision)?;
        self.judge_bad_commit(decision)?;
        self.judge_partitions(decision)?;
        self.judge_unavailable(decision)
    }

    fn is_heard_or(&self, otherwise: bool, row: &Row) -> bool {
        otherwise || matches!(self.reach(row), Reach::Heard { .. })
    }

    /// P2: later steps wait for a member unless this returns true.
    fn lets_pass(&self, row: &Row) -> bool {
        is_still(row)
            || is_skipped(row)
            || self.is_silent(row)
            || row.wanted.is_some_and(|wanted| row.ledger.is_done(row, wanted))
            // Fewer failures than the limit, and not in a canary.
            || (row.step > 0 && row.wanted.is_some_and(|wanted| row.ledger.late.contains(&wanted)))
            || (row.step > 0 && row.wanted.is_some() && row.wanted == row.ledger.aborted)
    }

    fn judge_refusals(&self, decision: &Decision) -> Verdict {
        for (index, track) in &decision.tracks {
            let row = &self.rows[*index];
            let is_new = track.refused.is_some() && track.refused != row.track.refused;
            let is_there = row
                .published
                .is_some_and(|published| Some(published.change) == row.track.released);
            let has_entry = matches!(self.reach(row), Reach::Silent { has_entry: true, .. });
            let is_unreached = self.is_silent(row) && !(is_there && has_entry);
            let is_meant = decision.state.aborted || decision.retracted.contains(index);
            must(!is_new || !is_unreached || is_meant, "P6", || {
                format!("{} in {decision:?}", row.name)
            })?;
        }
        Ok(())
    }

    /// P9: a bad commit reaches canaries only, or one other member if there is no canary.
    fn judge_bad_commit(&mut self, decision: &Decision) -> Verdict {
        let target = self.target();
        let Some(mut bad) = self.oracle.bad.take().filter(|bad| bad.target == target) else {
            return Ok(());
        };
        // A canary that fails before it gets the commit gives up its place.
        bad.has_canary &= self.rows.iter().any(|row| row.step == 0);
        let healthy = decision.released.iter().map(|index| &self.rows[*index]);
        let healthy = healthy.filter(|row| row.step > 0 && !self.is_broken(row) && !row.is_new());
        bad.hit.extend(healthy.map(|row| row.name.clone()));
        let most = usize::from(!bad.has_canary) + bad.faults;
        let is_borne =
            bad.hit.len() <= most || self.policy.strategy == Strategy::AllAtOnce || self.policy.canary.is_none();
        let verdict = must(is_borne, "P9", || format!("{bad:?} in {decision:?}"));
        self.oracle.bad = Some(bad);
        verdict
    }

    /// P16: members that were done before, or have nothing, are released in at most `max_partitions` partitions per
    /// look.
    fn judge_partitions(&self, decision: &Decision) -> Verdict {
        let Some(key) = self
            .policy
            .partition_by
            .as_ref()
            .filter(|_| self.policy.strategy != Strategy::AllAtOnce)
        else {
            return Ok(());
        };
        let is_fine = |row: &&Row| {
            row.track
                .released
                .is_none_or(|released| row.ledger.is_done(row, released))
        };
        let released = decision.released.iter().map(|index| &self.rows[*index]).filter(is_fine);
        let reached: BTreeSet<_> = released.map(|row| row.labels.get(key)).collect();
        must(reached.len() <= self.policy.max_partitions, "P16", || {
            format!("{reached:?} in one look: {decision:?}")
        })
    }

    /// P1: no healthy member is taken while the allowed number is out or unhealthy. It holds for all members and for
    /// each step.
    fn judge_unavailable(&mut self, decision: &Decision) -> Verdict {
        let (oracle, now) = (&mut self.oracle, self.clock.now);
        oracle.released += decision.released.len() as u64;
        oracle.retracted += decision.retracted.len() as u64;
        let mut taken_of = BTreeSet::new();
        for &index in decision.released.iter().chain(&decision.retracted) {
            let row = &self.rows[index];
            let was_done = row
                .track
                .released
                .is_some_and(|released| row.ledger.is_done(row, released));
            let row = &mut self.rows[index];
            if was_done && !row.ledger.is_out {
                taken_of.insert(row.step);
            }
            row.ledger.is_out |= was_done;
            row.ledger.released_at = now;
            row.ledger.released_number = decision.state.number;
        }
        for &index in &decision.retracted {
            let row = &mut self.rows[index];
            row.ledger.late.extend(row.wanted);
            if let Some(back) = track_of(decision, index).and_then(|track| track.released) {
                row.ledger.prove(back);
            }
        }
        let is_out = |(index, row): &(usize, &Row)| {
            let released = track_of(decision, *index).map_or(row.track.released, |track| track.released);
            // The member has the version that it was given.
            let is_back = released.is_some_and(|released| row.ledger.is_done(row, released));
            let is_ill = row.ledger.says(row.published, Truth::Failed);
            let is_unavailable = (row.ledger.is_out && !is_back) || is_ill;
            is_unavailable && !self.is_silent(row) && !is_still(row) && !is_skipped(row)
        };
        let steps: Vec<u16> = self
            .rows
            .iter()
            .enumerate()
            .filter(is_out)
            .map(|(_, row)| row.step)
            .collect();
        let is_at_once = self.policy.strategy == Strategy::AllAtOnce && decision.retracted.is_empty();
        let (out, max) = (steps.len(), self.policy.max_unavailable.of(self.rows.len()));
        let is_fine = taken_of.is_empty() || out <= max || is_at_once;
        must(is_fine, "P1", || format!("{out} of {max} are out: {decision:?}"))?;
        for step in taken_of.into_iter().filter(|_| !is_at_once) {
            let all = self.rows.iter().filter(|row| row.step == step).count();
            let stated = usize::from(step)
                .checked_sub(1)
                .and_then(|index| self.policy.steps.get(index));
            let Some(limit) = stated.and_then(|stated| stated.max_unavailable) else {
                continue;
            };
            let (out, max) = (steps.iter().filter(|other| **other == step).count(), limit.of(all));
            must(out <= max, "P1", || {
                format!("{out} of {max} of step {step} are out: {decision:?}")
            })?;
        }
        let mut all = self
            .rows
            .iter()
            .filter(|row| !is_still(row) && !is_skipped(row) && !self.is_silent(row));
        let is_done = |row: &Row| row.wanted.is_some_and(|wanted| row.ledger.is_done(row, wanted));
        if self.rows.iter().any(is_done) && all.all(is_done) && self.rows.iter().all(|row| row.wanted.is_some()) {
            let target = self.target();
            self.oracle.good.push(target);
        }
        Ok(())
    }

    /// P7: what keeps the set from its end. None: nothing.
    pub fn unfinished(&self, decision: &Decision) -> Option<String> {
        let is_done = |row: &Row| row.wanted.is_some_and(|wanted| row.ledger.is_done(row, wanted));
        let late = self.rows.iter().find(|row| !self.is_silent(row) && !is_done(row));
        let late = late.map(|row| format!("{} is not done", row.name));
        let moves = decision.phase != Phase::Complete
            || decision.state.last_good.is_none_or(|good| good.target != self.target());
        let anybody = self.rows.iter().any(|row| !self.is_silent(row));
        late.or_else(|| (moves && anybody).then(|| format!("the set is {:?}", decision.phase)))
    }

    /// Whether all members are done.
    pub fn is_at_rest(&self) -> bool {
        self.rows
            .iter()
            .all(|row| row.wanted.is_some_and(|wanted| row.ledger.is_done(row, wanted)))
    }

    pub fn has_canary(&self) -> bool {
        self.rows
            .iter()
            .any(|row| row.step == 0 && !is_still(row) && !has(row, Stop::Window) && row.agent.is_heard())
    }

    pub fn soak_of(&self, row: &Row) -> i64 {
        soak(&self.policy, row.step)
    }
}

impl Row {
    fn is_new(&self) -> bool {
        self.track.released.is_none()
    }
}

fn track_of(decision: &Decision, index: usize) -> Option<&farwater_fleet::rollout::Track> {
    decision
        .tracks
        .iter()
        .find(|(at, _)| *at == index)
        .map(|(_, track)| track)
}
