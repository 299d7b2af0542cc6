//! Conditions of a service whose newer version or spec is held back. They are set in addition to `Ready`, because the
//! version that it runs may be healthy.

use super::{FROZEN, Inputs, ROLLOUT_HELD};
use crate::{assignment::Why, conditions::Verdict};

/// Why a version is held back, if `Ready` does not say it. A service that is being deleted holds nothing back.
pub(super) fn verdicts(inputs: &Inputs<'_>) -> impl Iterator<Item = Verdict> {
    let all = [judge_pin(inputs), judge_window(inputs), judge_rollout(inputs)];
    all.into_iter().flatten().filter(|_| !inputs.deleting)
}

/// Whether the pinned version is assigned. A suspension or a window may hold a pin itself.
pub(super) fn is_pin_assigned(inputs: &Inputs<'_>) -> bool {
    let assigned = inputs.assigned.map(|assigned| assigned.bundle);
    assigned.is_some() && assigned == inputs.pin.map(|pin| pin.bundle)
}

/// `pinned to main@sha1:abc by ann (def crashes); main@sha1:def is held back`
fn judge_pin(inputs: &Inputs<'_>) -> Option<Verdict> {
    let pin = inputs.pin?;
    let version = inputs.pinned.map_or_else(|| pin.bundle.to_string(), str::to_owned);
    let by = inputs.previous.pinned_by.as_ref();
    let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = pin.reason.as_ref();
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let held = inputs.held.map(|held| format!("; {held} is held back"));
    let message = format!("pinned to {version}{by}{reason}{}", held.unwrap_or_default());
    Some(Verdict::new("Pinned", Some(true), "Pinned", message))
}

fn judge_window(inputs: &Inputs<'_>) -> Option<Verdict> {
    let Why::Frozen(closed) = inputs.why else { return None };
    Some(Verdict::new(FROZEN, Some(true), "WindowClosed", closed.to_string()))
}

fn judge_rollout(inputs: &Inputs<'_>) -> Option<Verdict> {
    let verdict = |reason, message| Some(Verdict::new(ROLLOUT_HELD, Some(true), reason, message));
    match (inputs.why, inputs.held) {
        (Why::Rollout, Some(held)) => verdict("NotReleased", format!("{held} waits for the rollout of its set")),
        (Why::Rollout, None) => verdict(
            "NotReleased",
            "a newer spec or newer parameters wait for the rollout of its set".to_owned(),
        ),
        (Why::Current, Some(held)) if inputs.pin.is_none() => verdict(
            "RolledBack",
            format!("{held} is held back: the rollout of its set went back to an earlier version"),
        ),
        _ => None,
    }
}
