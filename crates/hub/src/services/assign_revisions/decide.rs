//! The decision about one service: a function of its observed state.

use std::collections::BTreeMap;

use farwater_api::Digest;
use farwater_fleet::{
    assignment::{Candidate, Decided, Decision, Inputs, Trouble, Why, decide, held_version, is_suspended},
    conditions::cut,
    dependencies::cycle_trouble,
    windows::Closed,
};
use farwater_store::{
    StoreError,
    delivery::{Assignment, asks_for_the_same, stamp},
};
use jiff::Timestamp;

use super::observe::Observed;
use crate::{
    guards::approvals::Override,
    notify::events::EventText,
    services::{
        ServiceFacts,
        held_specs::HeldNext,
        rows::{TypedRow as _, write_json},
    },
    sets::rollouts::Looked,
};

/// Result of the decision.
pub struct Outcome {
    pub next: Assignment,
    pub why: Why,
    /// The window that keeps changes from starting; None: they may start.
    pub closed: Option<Closed>,
    /// Event about a change that starts despite closed windows.
    pub told: Option<EventText>,
}

/// Decides which version the service runs, and why it keeps the one that it has.
pub fn decide_row(observed: &Observed, now: Timestamp) -> Result<Outcome, StoreError> {
    let is_suspended = is_suspended(&observed.service.spec, now);
    let decided = Decided {
        why: Why::Current,
        suspended: Some(is_suspended),
        sourceless: observed.source_uid().is_none(),
        turn: match &observed.row {
            Some(row) => row.read_decided()?.turn,
            None => 0,
        },
        held: None,
    };
    let mut next = new_row(observed, &decided)?;
    let cluster = match &observed.cluster {
        Ok(cluster) => cluster,
        Err(trouble) => {
            let why = Why::Trouble(trouble.clone());
            return keep(next, Decided { why, ..decided }, None);
        }
    };

    let candidate = choose_candidate(observed);
    let facts = place_facts(observed, &next, candidate.as_ref().ok())?;
    let ceiling = facts.check_placement(cluster, &observed.grants);

    // An override opens the closed windows.
    let mut closed = observed.closed.clone();
    let overridden = observed
        .overridden
        .as_ref()
        .and_then(|said| Some((closed.take()?, said)));
    let inputs = Inputs {
        suspended: is_suspended || cluster.suspended,
        pinned: observed.pinned.as_ref().map(Result::as_ref),
        candidate: candidate.as_ref(),
        waits: &observed.waits.reasons,
        ceiling: ceiling.as_ref(),
        assigned: facts.assigned.as_ref(),
        held: observed.is_held(),
        closed: closed.as_ref(),
        restated: observed.held.restated,
    };
    let decision = decide(inputs);
    let told = overridden.and_then(|(closed, said)| tell_override(inputs, &decision, &closed, said));
    let held = held_version(with_known(inputs, observed, &facts), &decision);
    let held = held.map(|held| held.revision.clone());

    let why = match decision {
        Decision::Keep(why) => why,
        Decision::Assign(candidate) => {
            next.assigned = Some(write_json(&candidate)?);
            Why::Current
        }
    };
    Ok(Outcome {
        told,
        ..keep(next, Decided { why, held, ..decided }, closed)?
    })
}

/// The inputs with the candidate that was known before, if the source can't be read now: a pin still holds that one
/// back.
fn with_known<'a>(inputs: Inputs<'a>, observed: &Observed, facts: &'a ServiceFacts) -> Inputs<'a> {
    match &facts.candidate {
        Some(known) if inputs.candidate.is_err() && observed.kept.is_none() => Inputs {
            candidate: Ok(known),
            ..inputs
        },
        _ => inputs,
    }
}

/// The candidate of the version that its set is pinned at, else of its sources. A service in a cycle has none.
fn choose_candidate(observed: &Observed) -> Result<Candidate, Trouble> {
    match (&observed.waits.cycle, &observed.kept) {
        (Some(cycle), _) => Err(cycle_trouble(cycle)),
        (None, Some(kept)) => kept.clone(),
        (None, None) => observed.resolved.candidate.clone(),
    }
}

/// The service with the addresses of all sources to which grants apply.
fn place_facts(
    observed: &Observed,
    next: &Assignment,
    candidate: Option<&Candidate>,
) -> Result<ServiceFacts, StoreError> {
    let mut facts = ServiceFacts::new(observed.service.clone(), next, observed.urls.clone())?;
    match &observed.pinned {
        Some(Ok(pinned)) if !pinned.source.is_empty() => facts.source_urls = pinned.urls(),
        Some(_) => {}
        // Includes the sources that its charts depend on.
        None => facts
            .source_urls
            .extend(candidate.into_iter().flat_map(Candidate::urls)),
    }
    Ok(facts)
}

fn keep(mut next: Assignment, decided: Decided, closed: Option<Closed>) -> Result<Outcome, StoreError> {
    next.why = write_json(&decided)?;
    Ok(Outcome {
        next,
        why: decided.why,
        closed,
        told: None,
    })
}

/// The row with the new candidate and the present assignment.
fn new_row(observed: &Observed, decided: &Decided) -> Result<Assignment, StoreError> {
    let Observed {
        name, resource, row, ..
    } = observed;
    let row = row.as_ref();
    let candidate = match &observed.resolved.candidate {
        Ok(candidate) => Some(write_json(candidate)?),
        Err(_) => row.and_then(|row| row.candidate.clone()),
    };
    // The assignment still needs the mirror of a source that was deleted.
    let last_source = || row.map_or(String::new(), |row| row.source_uid.clone());
    Ok(Assignment {
        service_uid: resource.uid.clone(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        cluster_uid: observed
            .cluster
            .as_ref()
            .map_or(String::new(), |cluster| cluster.uid.clone()),
        source_uid: observed.source_uid().map_or_else(last_source, str::to_owned),
        generation: resource.object["metadata"]["generation"].as_i64().unwrap_or(0),
        stamp: stamp(&resource.object),
        candidate,
        assigned: row.and_then(|row| row.assigned.clone()),
        why: write_json(decided)?,
    })
}

/// The Event about a change that starts despite a closed window. None: nothing starts, or no window would hold it.
fn tell_override(inputs: Inputs<'_>, decision: &Decision, closed: &Closed, said: &Override) -> Option<EventText> {
    const LONGEST: usize = 1024;
    let begins = match decision {
        Decision::Assign(_) => true,
        Decision::Keep(why) => inputs.restated && *why == Why::Current,
    };
    let is_held = matches!(
        decide(Inputs {
            closed: Some(closed),
            ..inputs
        }),
        Decision::Keep(Why::Frozen(_))
    );
    let candidate = inputs.pinned.unwrap_or(inputs.candidate).ok()?;

    let message = format!(
        "{} begins, by {}: {}; {closed}",
        candidate.revision, said.by, said.reason
    );
    let told = EventText {
        is_warning: true,
        reason: "FreezeOverridden".into(),
        message: cut(&message, LONGEST),
    };
    (begins && is_held).then_some(told)
}

/// Raises the turn if the spec, the content or the cluster differs. An approval does not raise it: by that time the
/// agent has started the prune that it allows, and an entry that differs would end that prune.
pub fn count_turn(
    old: &Assignment,
    new: &mut Assignment,
    member: Option<&Looked>,
    held: Option<&HeldNext>,
) -> Result<(), StoreError> {
    // A spec counts when its turn has come, not when it is written.
    let is_same_spec = match (member, held) {
        (Some(member), _) => !member.released,
        (None, Some(held)) if held.is_released() => false,
        (None, Some(held)) if held.keeps_spec() => true,
        (None, _) => asks_for_the_same(&old.stamp, &new.stamp),
    };
    let same = old.cluster_uid == new.cluster_uid && is_same_spec;
    if !same || assigned_content(old)? != assigned_content(new)? {
        let decided = new.read_decided()?;
        new.why = write_json(&Decided {
            turn: decided.turn + 1,
            ..decided
        })?;
    }
    Ok(())
}

/// The parts of an assignment that the agent gets: bundle, path, origin and the promoted texts.
type Content = (Digest, String, Option<String>, BTreeMap<String, String>);

fn assigned_content(row: &Assignment) -> Result<Option<Content>, StoreError> {
    Ok(row.read_assigned()?.map(|candidate| {
        (
            candidate.bundle,
            candidate.path,
            candidate.origin,
            candidate.configuration,
        )
    }))
}

/// Whether a row's change may change its cluster's desired state. Another revision with the same content does not.
///
/// `held`: the service's own spec and content wait for the set's rollout, or a window holds its spec.
pub fn changes_entry(old: &Assignment, new: &Assignment, held: bool) -> Result<bool, StoreError> {
    let asked = |row: &Assignment| {
        row.stamp
            .split(' ')
            .skip(usize::from(held))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // The agent does not need the version that is held, nor the reason why a rollout or a window holds it.
    let why = |row: &Assignment| -> Result<Decided, StoreError> {
        let decided = Decided {
            held: None,
            ..row.read_decided()?
        };
        Ok(match decided.why {
            Why::Rollout => Decided {
                why: Why::Current,
                ..decided
            },
            Why::Frozen(_) if row.assigned.is_some() => Decided {
                why: Why::Current,
                ..decided
            },
            _ => decided,
        })
    };
    let same_row = old.cluster_uid == new.cluster_uid && asked(old) == asked(new) && why(old)? == why(new)?;
    Ok(!same_row || assigned_content(old)? != assigned_content(new)?)
}

/// Returns the assigned candidate if its content differs from the one assigned before.
pub fn new_version(old: Option<&Assignment>, new: &Assignment) -> Result<Option<Candidate>, StoreError> {
    let before = old.map(Assignment::read_assigned).transpose()?.flatten();
    Ok(new
        .read_assigned()?
        .filter(|now| before.is_none_or(|before| !before.is_same_content(now))))
}
