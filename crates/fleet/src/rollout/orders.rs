//! Carries out a person's order, once.

use farwater_api::rollout::{Promote, Strategy};

use super::{Case, Member, Order, Policy, State, Track, View};

/// Returns the tracks after the order. An order for another number is recorded too, so that it never counts.
pub(super) fn obey(
    policy: &Policy,
    state: &mut State,
    order: &Order,
    members: &[Member<'_>],
    views: &[View],
) -> Vec<Track> {
    state.obeyed = Some(order.id);
    let mut tracks: Vec<Track> = views.iter().map(|view| view.track).collect();

    if order.number != state.number {
        return tracks;
    }
    for (member, track) in members.iter().zip(&mut tracks) {
        if order.skip.iter().any(|name| name == member.name) {
            track.skipped = member.wanted;
        }
    }

    match order.promote {
        // On hold, a promotion only lets the rollout begin, whatever it names.
        Some(_) if policy.strategy == Strategy::OnHold && !state.promoted => state.promoted = true,
        Some(Promote::Soak) => promote_soak(members, views, &mut tracks),
        Some(Promote::Step) => {
            let waits = members
                .iter()
                .zip(views)
                .filter(|(member, view)| !view.case.lets_pass(member.step) && !state.passed.contains(&member.step));
            state.passed.extend(waits.map(|(member, _)| member.step).min());
        }
        Some(Promote::Halt) => {
            state.aborted = false;
            promote_halt(members, views, &mut tracks);
        }
        None => {}
    }
    if order.abort && state.open {
        state.aborted = true;
        for ((member, view), track) in members.iter().zip(views).zip(&mut tracks) {
            if view.is_through || matches!(view.case, Case::Pending | Case::Deferred | Case::InFlight) {
                track.refused = member.wanted;
            }
        }
    }
    tracks
}

fn promote_soak(members: &[Member<'_>], views: &[View], tracks: &mut [Track]) {
    for ((member, view), track) in members.iter().zip(views).zip(tracks) {
        if view.case == Case::InFlight && member.is_healthy_at(track.released) {
            track.good = track.released;
        }
    }
}

fn promote_halt(members: &[Member<'_>], views: &[View], tracks: &mut [Track]) {
    for ((member, view), track) in members.iter().zip(views).zip(tracks) {
        if view.case != Case::Refused {
            continue;
        }
        if track.released == member.wanted {
            track.skipped = member.wanted;
        } else {
            track.refused = None;
        }
    }
}
