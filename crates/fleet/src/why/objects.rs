//! Links inside the cluster: hooks, objects, their health, and prunes that wait.

use farwater_api::{
    PROPOSE_PRUNE,
    objects::{Health, ObjectRef, ObjectReport, SyncState},
    service_deployment::{Contents, HeldPrune},
};

use super::finding::{Finding, Link, NextStep, Standing};
use crate::{
    conditions::find,
    freeze,
    incomplete::unreadable_files,
    summary::{APPLY_FAILED, FLEET_FROZEN, HOOK_FAILED, TEST_FAILED},
    why::{
        Evidence,
        words::{flags, revisions, sentence},
    },
    words::counted,
};

/// A failed hook, in the hub's words, which name it. Objects that wait for the hook are a consequence.
pub(super) fn judge_hooks(evidence: &Evidence<'_>) -> Option<Finding> {
    let service = evidence.service;
    let status = service.status.as_ref()?;
    let ready =
        find(&status.conditions, "Ready").filter(|c| [HOOK_FAILED, TEST_FAILED].contains(&c.reason.as_str()))?;
    let counts = status.hooks.unwrap_or_default();
    let counted = format!(
        "hooks and tests: {} failed, {} succeeded",
        counts.failed, counts.succeeded
    );
    Some(
        Finding::broken(Link::Hooks, sentence(ready))
            .because(counted)
            .because(revisions(service))
            .because(format!(
                "it runs again for another version or changed Secrets; if its files are not the cause: `hooks {} --retry HOOK`",
                flags(service)
            ))
            .next(NextStep::Farwater(format!("hooks {}", flags(service)))),
    )
}

/// Files that the agent can't read. The objects come from files, so what is wrong with the others is evidence.
pub(super) fn judge_files(evidence: &Evidence<'_>) -> Option<Finding> {
    let status = evidence.service.status.as_ref()?;
    let ready = find(&status.conditions, "Ready").filter(|c| c.reason == APPLY_FAILED)?;
    let files = unreadable_files(&ready.message)?.trim_end_matches('.');
    let finding = Finding::broken(Link::Bundle, files);
    let finding = match judge_objects(evidence).or_else(|| judge_health(evidence)) {
        Some(objects) => finding.because(objects.sentence).because_all(objects.evidence),
        None => finding.because(revisions(evidence.service)),
    };
    Some(finding.next(NextStep::Farwater(format!("plan {}", flags(evidence.service)))))
}

pub(super) fn judge_objects(evidence: &Evidence<'_>) -> Option<Finding> {
    let objects = evidence.objects.found()?;
    let refused: Vec<_> = objects.iter().filter(|o| o.sync == SyncState::Refused).collect();
    let list = NextStep::Farwater(format!("objects {}", flags(evidence.service)));
    if let Some(first) = refused.first() {
        let finding = Finding::broken(
            Link::Objects,
            format!("{} was refused: {}", first.object, or_silence(first)),
        )
        .because(waiters(objects, &first.object));
        return Some(finding.because_all(others(objects, first)).next(list));
    }
    let waiting: Vec<_> = objects.iter().filter(|o| o.sync == SyncState::Waiting).collect();
    // The waiting objects wait for the unhealthy one.
    if waiting.is_empty() || objects.iter().any(|o| o.health == Health::Failed) {
        return None;
    }
    let first = waiting[0];
    let message = or_silence(first);
    let what = message
        .strip_prefix("waits ")
        .map_or_else(|| format!("waits: {message}"), |what| format!("waits {what}"));
    let finding = Finding::progressing(Link::Objects, format!("{} {what}", first.object));
    let next = first.waits_for.as_deref().map_or(list, describe_in_cluster);
    let more = waiting.iter().skip(1).map(|object| describe(object));
    Some(finding.because_all(more).next(next))
}

pub(super) fn judge_health(evidence: &Evidence<'_>) -> Option<Finding> {
    let objects = evidence.objects.found()?;
    // The enum is ordered from worst to best.
    let worst = objects
        .iter()
        .filter(|o| o.sync == SyncState::Synced)
        .min_by_key(|o| o.health)?;
    let (standing, verb) = match worst.health {
        Health::Current | Health::Unknown => return None,
        Health::Failed => (Standing::Broken, "has failed"),
        Health::InProgress => (Standing::Progressing, "is not ready yet"),
        Health::Terminating => (Standing::Progressing, "is terminating"),
    };
    let message = if worst.message.is_empty() {
        String::new()
    } else {
        format!(": {}", worst.message)
    };
    let finding = Finding::new(standing, Link::Health, format!("{} {verb}{message}", worst.object))
        .because(waiters(objects, &worst.object));
    Some(
        finding
            .because_all(others(objects, worst))
            .next(describe_in_cluster(&worst.object)),
    )
}

/// The other objects that are not in order, refused and failed ones first. An object that waits for another one is a
/// consequence, and not told.
fn others<'a>(objects: &'a [ObjectReport], first: &ObjectReport) -> impl Iterator<Item = String> + use<'a> {
    let waits = |o: &ObjectReport| o.sync == SyncState::Waiting && o.waits_for.is_none();
    let is_ill = |o: &&ObjectReport| o.sync == SyncState::Refused || o.health < Health::Unknown || waits(o);
    let others = objects.iter().filter(|o| o.object != first.object).filter(is_ill);
    let mut others: Vec<&ObjectReport> = others.collect();
    others.sort_by_key(|o| (o.sync != SyncState::Refused, o.health));
    others.into_iter().map(describe)
}

pub(super) fn judge_prune(evidence: &Evidence<'_>) -> Option<Finding> {
    let held = evidence.service.status.as_ref()?.held_prune.as_ref()?;
    let HeldPrune {
        digest,
        reason,
        count,
        objects,
        contents,
        until_applied: _,
        earlier: _,
    } = held;
    let objects_held = counted(*count, "object");
    let conditions = evidence.service.status.iter().flat_map(|status| &status.conditions);
    let is_frozen = conditions
        .into_iter()
        .any(|c| c.type_ == "PruneHeld" && c.reason == FLEET_FROZEN);
    let waits = if is_frozen { "waits" } else { "waits for your approval" };
    let finding = Finding::broken(Link::Prune, format!("the deletion of {objects_held} {waits}: {reason}"));
    let finding = if is_frozen {
        finding.because(freeze::LOOK_FIRST)
    } else {
        finding
    };
    let next = match is_frozen {
        true => NextStep::Kubectl(freeze::release()),
        false => NextStep::Farwater(format!("approve {}", flags(evidence.service))),
    };
    let proposed = evidence
        .service
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(PROPOSE_PRUNE));
    let by = evidence
        .service
        .status
        .as_ref()
        .and_then(|status| status.prune_proposed_by.as_ref());
    let finding = match by.filter(|_| proposed.is_some_and(|proposed| *proposed == digest.to_string())) {
        Some(by) => finding.because(format!("{by} proposed to approve it")),
        None => finding,
    };
    let doomed = objects.iter().map(|object| format!("would delete {object}"));
    Some(
        finding
            .because_all(contents.iter().map(describe_contents))
            .because_all(doomed)
            .next(next),
    )
}

fn describe_contents(contents: &Contents) -> String {
    let counts: Vec<_> = contents
        .counts
        .iter()
        .map(|one| format!("{} {}", one.count, one.kind))
        .collect();
    let counted = if counts.is_empty() {
        "nothing".to_owned()
    } else {
        counts.join(", ")
    };
    let unknown = match contents.unknown {
        0 => String::new(),
        kinds => format!(", and objects of {kinds} more kinds, which could not be counted"),
    };
    format!("{} would take with it {counted}{unknown}", contents.object)
}

fn or_silence(object: &ObjectReport) -> &str {
    if object.message.is_empty() {
        "no reason was given"
    } else {
        &object.message
    }
}

/// Number of objects that wait for this one, as a sentence. Empty: none waits.
fn waiters(objects: &[ObjectReport], object: &ObjectRef) -> String {
    match objects
        .iter()
        .filter(|other| other.waits_for.as_deref() == Some(object))
        .count()
    {
        0 => String::new(),
        1 => "1 object of a later wave waits for it".to_owned(),
        count => format!("{count} objects of later waves wait for it"),
    }
}

pub(super) fn describe(object: &ObjectReport) -> String {
    let state = match object.sync {
        SyncState::Synced => format!("{:?}", object.health),
        other => format!("{other:?}"),
    };
    if object.message.is_empty() {
        format!("{} is {state}", object.object)
    } else {
        format!("{} is {state}: {}", object.object, object.message)
    }
}

fn describe_in_cluster(object: &ObjectRef) -> NextStep {
    let kind = if object.group.is_empty() {
        object.kind.clone()
    } else {
        format!("{}.{}", object.kind, object.group)
    };
    let namespace = if object.namespace.is_empty() {
        String::new()
    } else {
        format!(" -n {}", object.namespace)
    };
    NextStep::InCluster(format!("describe {} {}{namespace}", kind.to_lowercase(), object.name))
}
