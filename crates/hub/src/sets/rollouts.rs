//! Rollouts of ServiceSets: which member's newer content and spec count, and when.
//!
//! A member's service states its new spec at once, but that spec counts only when the member's turn has come. Until
//! then its entry is made of the earlier assignment and the spec that belongs to it. One decision,
//! `fleet::rollout::decide`, says whose turn it is.

mod look;
mod members;
mod news;
mod observe;
mod report;
mod row;
mod save;
mod whole;

use farwater_api::{ServiceSet, service_set::RolloutStatus};
use farwater_fleet::{
    rollout::{Counts, Decision, Policy, State, decide},
    windows::Closed,
};
use farwater_store::{Resource, StoreError, delivery::RollingMember};

use super::set_versions;
use crate::{
    memory::{pipelines::Part, sets::Scope},
    replica::Replica,
    resources::Name,
    services::dependencies,
};

pub use crate::memory::sets::Heard;
pub use look::{Look, Looked, Looking};
use members::Members;
use news::News;
use observe::{Gate, Sight};
pub use report::{Count, MemberProgress, count, is_looked_at, tell_members};
pub use row::{counting_document, held_spec, note_report, published, spec_to_hold};
use save::{rollout_status, save};
pub use whole::{Whole, look_at_heard, look_at_whole};

/// Progress of a rollout after one decision.
pub struct Advance {
    pub status: RolloutStatus,
    pub counts: Counts,
    /// Number of the last good version.
    pub last_good: Option<u64>,
    /// When to decide again, in seconds since 1970.
    pub next_look: Option<i64>,
    /// Number of members that wait for a change window, and the window of the first.
    pub frozen: Option<(usize, Closed)>,
}

/// Decides whose turn it is, and saves that. `scope`: clusters that may have changed without a write to their members'
/// rows.
///
/// None: nothing was decided. Either the policy can't be read, because an older or newer hub wrote it, or the set was
/// changed since it was read, which requeues it.
pub async fn advance(
    replica: &Replica,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    scope: &Scope,
) -> Result<Option<Advance>, StoreError> {
    let Ok(policy) = Policy::of(&set.spec.rollout) else {
        return Ok(None);
    };
    let sight = Sight::load(replica, name, (resource, set), &policy, scope).await?;
    let Sight {
        rows,
        resting,
        target,
        before,
        ..
    } = &sight;
    let clock = replica.clock.read();
    let gate = Gate::of(name, resource, set);
    let members = Members::read(replica, &policy, (rows, resting), &target.sources, (clock, &gate))?;

    let of_set = members.of_set();
    let decision = decide(&policy, &before.state, target.digest, (&of_set, resting), clock);
    let begins_by_it = |index: &usize| gate.stated(replica, &rows[*index].row).is_some();
    let overridden = gate
        .overridden
        .as_ref()
        .filter(|_| decision.released.iter().any(begins_by_it));

    let of = (name, resource.uid.as_str(), set);
    let words = (target.revision.as_str(), overridden);
    let note = set_versions::note_rollout(replica, of, (&before.state, &decision), words).await?;
    let news = News {
        policy: &policy,
        before: &before.state,
        decision: &decision,
        members: &of_set,
        clock,
    };
    let postings = news.find(replica, name, resource, target);
    let of = (resource, set.metadata.generation);
    if !save(replica, of, (&sight, &members.steps), &decision, (note, postings)).await? {
        return Ok(None);
    }

    follow_up(replica, name, (rows, &before.state), &decision).await?;
    Ok(Some(Advance {
        status: rollout_status(&decision),
        counts: decision.counts,
        last_good: decision.state.last_good.map(|good| good.number),
        next_look: decision.next_look,
        frozen: members.frozen(),
    }))
}

/// Requeues what depends on a decision that was saved.
async fn follow_up(
    replica: &Replica,
    name: &Name,
    (rows, before): (&[RollingMember], &State),
    decision: &Decision,
) -> Result<(), StoreError> {
    replica.memory.sets.note_read(name);
    if before.target != decision.state.target {
        // A commit that concerns no member leaves the set's status as it is, so wake pipelines and dependents here.
        replica.memory.pipelines.note_change(Part::Set, name);
        dependencies::wake_dependents_of_set(replica, name).await?;
    }

    // These members were resolved for another version than the one the set is pinned at now.
    let outdated = rows.iter().filter(|member| !member.row.is_of_pin());
    let turned = decision.released.iter().chain(&decision.retracted);
    for member in outdated.chain(turned.map(|index| &rows[*index])) {
        let service = Name::new(&name.namespace, &member.row.service_name);
        replica.wake_after_turn(service);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
