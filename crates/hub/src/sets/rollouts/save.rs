//! Saves a decision about a set's rollout.

use std::collections::BTreeMap;

use farwater_api::service_set::RolloutStatus;
use farwater_fleet::rollout::{Decision, Track};
use farwater_store::{
    Resource, StoreError,
    delivery::{RollingMember, save_rest, save_rollout, save_track},
};

use super::{
    observe::Sight,
    row::{Written, code_of},
};
use crate::{
    notify::Postings,
    replica::Replica,
    resources,
    sets::set_versions::{self, Note},
};

/// Changes to a member's row.
struct MemberChange {
    service_uid: String,
    /// Track and step.
    track: Option<(String, i64)>,
    /// Code of `rests`, and the member's count of changes: saved only while that count is the same.
    rests: Option<(i64, i64)>,
}

fn find_changes(rows: &[RollingMember], steps: &[u16], decision: &Decision) -> Result<Vec<MemberChange>, StoreError> {
    let tracks: BTreeMap<usize, Track> = decision.tracks.iter().copied().collect();
    let mut changes = Vec::new();
    for (index, member) in rows.iter().enumerate() {
        let row = &member.row;
        let (step, changed) = (i64::from(steps[index]), tracks.get(&index));
        let track = match changed {
            Some(track) => Some((serde_json::to_string(track).map_err(StoreError::abort)?, step)),
            None => (step != row.step).then(|| (row.track.clone(), step)),
        };
        let rests = code_of(decision.rests[index]);
        // A new track wakes a resting member.
        let rested = if track.is_some() { 0 } else { member.rests };
        let rests = (rests != rested).then_some((rests, member.changes));
        if track.is_some() || rests.is_some() {
            changes.push(MemberChange {
                service_uid: row.service_uid.clone(),
                track,
                rests,
            });
        }
    }
    Ok(changes)
}

/// Saves all in one transaction, so that the rollout's state and its members' tracks always match. False: the set was
/// changed since it was read (e.g. paused), so nothing decided from the old one is saved.
pub(super) async fn save(
    replica: &Replica,
    (resource, generation): (&Resource, Option<i64>),
    (sight, steps): (&Sight, &[u16]),
    decision: &Decision,
    (note, postings): (Option<Note>, Postings),
) -> Result<bool, StoreError> {
    let Decision {
        state, outlook, counts, ..
    } = decision.clone();
    let next = Written {
        state,
        outlook,
        counts,
        policy: Some(sight.basis),
    };
    let next = serde_json::to_string(&next).map_err(StoreError::abort)?;
    let changes = find_changes(&sight.rows, steps, decision)?;
    if changes.is_empty() && sight.written.as_ref() == Some(&next) && note.is_none() {
        return Ok(true);
    }

    let (key, set_uid, told) = (resource.key.clone(), resource.uid.clone(), postings.clone());
    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            if !resources::is_current(tx, &key, (&set_uid, generation)).await? {
                return Ok(false);
            }
            for MemberChange {
                service_uid,
                track,
                rests,
            } in &changes
            {
                if let Some((track, step)) = track {
                    save_track(tx, service_uid, (track, *step)).await?;
                }
                if let Some(rests) = rests {
                    save_rest(tx, service_uid, *rests).await?;
                }
            }
            save_rollout(tx, &set_uid, &next).await?;
            if let Some(note) = &note {
                set_versions::save(tx, &set_uid, note).await?;
            }
            told.save(tx).await?;
            Ok(true)
        })
    });

    let is_saved = saved.await?;
    if is_saved {
        postings.wake(&replica.notifications);
    }
    Ok(is_saved)
}

pub(super) fn rollout_status(decision: &Decision) -> RolloutStatus {
    let (counts, outlook) = (decision.counts, &decision.outlook);
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    RolloutStatus {
        number: decision.state.number,
        phase: decision.phase,
        step: if outlook.step.is_some() {
            outlook.step_name.clone()
        } else {
            String::new()
        },
        updated: count(counts.updated),
        progressing: count(counts.progressing),
        soaking: count(counts.soaking),
        failed: count(counts.failed),
        deferred: count(counts.deferred),
        waiting: count(counts.waiting + counts.standing),
        halted_by: outlook.halted_by.clone(),
    }
}
