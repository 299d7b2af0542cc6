//! What a plan does about one object that the source states.

use farwater_api::apply_options::{AdoptPolicy, DriftMode};

use super::{
    Cause, Change, InventoryEntry, Live, LiveObject, PlanInput, ResolvedObject,
    reasons::{Left, Refusal, SkipReason, Wait},
};
use crate::ownership::{ObjectKey, proven_owner};

pub(super) enum Judgement {
    Change(Change),
    Unchanged,
    Drifted,
    Skip(SkipReason),
}

/// A list of rules, as are the functions for absent and present objects: the first rule that fits decides.
pub(super) fn judge(input: &PlanInput<'_>, object: &ResolvedObject) -> Judgement {
    let key = object.key();
    if let Some(annotation) = &object.options.left {
        return Judgement::Skip(SkipReason::Left(Left::Source(annotation.clone())));
    }
    match input.live.get(&key) {
        Some(Live::Present(live)) => judge_present(input, object, &key, live),
        Some(Live::Absent) => judge_absent(input, object, &key),
        Some(Live::Forbidden(message)) => Judgement::Skip(SkipReason::Refused(Refusal::Forbidden(message.clone()))),
        Some(Live::Unknown(message)) => Judgement::Skip(SkipReason::Waiting(Wait::Lookup(message.clone()))),
        // Its kind is defined by this plan, so there was nothing to look up.
        None if !object.needs.is_empty() => change(object, Cause::Create, false, None),
        None => Judgement::Skip(SkipReason::Waiting(Wait::Lookup("not looked up".into()))),
    }
}

/// Whether an object that is missing in the cluster is created or restored.
fn judge_absent(input: &PlanInput<'_>, object: &ResolvedObject, key: &ObjectKey) -> Judgement {
    let entry = input.inventory.entries.get(key);
    if entry.is_some_and(|entry| has_run(object, entry)) {
        return Judgement::Unchanged;
    }
    if entry.is_some_and(|e| e.uid.is_some() && e.hash == Some(object.hash)) {
        return match judge_drift(input, object, key) {
            None => change(object, Cause::Restore, false, None),
            // A missing object is drift even if drift of its fields is ignored.
            Some(Judgement::Unchanged) => Judgement::Drifted,
            Some(other) => other,
        };
    }
    judge_fight(input, key).unwrap_or_else(|| change(object, Cause::Create, false, None))
}

/// Whether an object in the cluster is adopted, updated or corrected.
fn judge_present(input: &PlanInput<'_>, object: &ResolvedObject, key: &ObjectKey, live: &LiveObject) -> Judgement {
    if live.deleting {
        return Judgement::Skip(SkipReason::Waiting(Wait::Deletion));
    }
    if let Some(annotation) = &live.protection.left {
        return Judgement::Skip(SkipReason::Left(Left::Live(annotation.clone())));
    }

    let owner = live
        .owner
        .as_deref()
        .and_then(|annotation| proven_owner(annotation, key));
    let others = owner.filter(|uid| *uid != input.service_uid);
    let is_offered = others.is_some() && input.transfers.offered.get(key).map(String::as_str) == others;
    if let Some(uid) = others
        && !is_offered
        && let Some(service) = input.services.get(uid)
    {
        let refusal = Refusal::OwnedBy {
            service: service.clone(),
            uid: uid.to_owned(),
        };
        return Judgement::Skip(SkipReason::Refused(refusal));
    }
    let ours = owner == Some(input.service_uid);
    let recreate = (object.options.recreate && ours).then(|| live.uid.clone());
    let entry = input.inventory.entries.get(key);
    let entry = entry.filter(|e| e.uid.as_ref() == Some(&live.uid));
    // An object that another service hands over is adopted; otherwise that service would delete it.
    if object.options.create_only && !is_offered {
        return match entry {
            Some(_) if ours => Judgement::Unchanged,
            _ => Judgement::Skip(SkipReason::Left(Left::Exists)),
        };
    }

    let Some(entry) = entry else {
        return match object.options.adopt {
            _ if ours => change(object, Cause::Update, live.moves, recreate),
            AdoptPolicy::Always => change(object, Cause::Adopt, live.moves, None),
            AdoptPolicy::IfNoDifference => change(object, Cause::AdoptUnchanged, live.moves, None),
            AdoptPolicy::Never => Judgement::Skip(SkipReason::Refused(Refusal::Unowned)),
        };
    };
    if entry.hash != Some(object.hash) {
        change(object, Cause::Update, live.moves, recreate)
    } else if !ours || live.fields.is_none() || live.fields != entry.fields {
        judge_drift(input, object, key).unwrap_or_else(|| change(object, Cause::Drift, false, recreate))
    } else {
        Judgement::Unchanged
    }
}

fn change(object: &ResolvedObject, cause: Cause, migrate: bool, recreate: Option<String>) -> Judgement {
    Judgement::Change(Change {
        object: object.key(),
        cause,
        migrate,
        needs: object.needs.clone(),
        recreate,
    })
}

/// Whether a missing Job counts as run, because its manifest has a time to live. Recreating it would run it again.
fn has_run(object: &ResolvedObject, entry: &InventoryEntry) -> bool {
    let may_have_gone = object.goes_by_itself && entry.uid.is_some() && !entry.incomplete;
    entry.hash == Some(object.hash) && (entry.done || may_have_gone)
}

/// What is done about an object that others changed or deleted, where that is not to correct it.
fn judge_drift(input: &PlanInput<'_>, object: &ResolvedObject, key: &ObjectKey) -> Option<Judgement> {
    match object.options.drift {
        DriftMode::Ignore => Some(Judgement::Unchanged),
        DriftMode::Report => Some(Judgement::Drifted),
        DriftMode::Correct => judge_fight(input, key),
    }
}

fn judge_fight(input: &PlanInput<'_>, key: &ObjectKey) -> Option<Judgement> {
    let writer = input.cooling.get(key)?;
    Some(Judgement::Skip(SkipReason::Waiting(Wait::Fight(writer.clone()))))
}
