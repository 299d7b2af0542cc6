//! Why a set is not healthy everywhere.

use farwater_api::{
    RolloutPhase, ServiceSet, managed_namespace,
    service_set::{Member, MemberState, Progress},
};
use jiff::Timestamp;

use super::{Finding, Link, NextStep, Standing, ago, find, sentence};
use crate::{
    conditions::holding,
    deletion, freeze,
    summary::{FROZEN, NO_CLUSTERS, ROLLOUT_HALTED},
    words::{counted, verb},
};

/// A set with its members.
#[derive(Clone, Copy, Debug)]
pub struct SetEvidence<'a> {
    pub set: &'a ServiceSet,
    pub members: &'a [Member],
    pub now: Timestamp,
}

/// The first problem of the set itself, then of its rollout, then of its clusters.
pub fn explain_set(evidence: &SetEvidence<'_>) -> Finding {
    let mut finding = judge_deletion(evidence)
        .or_else(|| judge_spec(evidence))
        .or_else(|| judge_brake(evidence))
        .or_else(|| judge_selection(evidence))
        .or_else(|| judge_rollout(evidence))
        .or_else(|| judge_members(evidence))
        .or_else(|| judge_condition(evidence))
        .unwrap_or_else(|| healthy(evidence));
    if let Some(pin) = &evidence.set.spec.pin {
        let reason = pin
            .reason
            .as_ref()
            .map(|reason| format!(" ({reason})"))
            .unwrap_or_default();
        let by = evidence
            .set
            .status
            .as_ref()
            .and_then(|status| status.pinned_by.as_ref());
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        finding
            .evidence
            .insert(0, format!("pinned to version {}{by}{reason}", pin.version));
    }
    let frozen = holds(evidence, FROZEN);
    if let Some(frozen) = frozen.filter(|_| finding.link != Some(Link::Window)) {
        finding = finding.because(sentence(frozen));
    }
    finding
}

pub(super) fn in_order(sentence: String) -> Finding {
    Finding {
        standing: Standing::Healthy,
        link: None,
        sentence,
        evidence: Vec::new(),
        first: None,
        next: None,
    }
}

fn condition<'a>(evidence: &SetEvidence<'a>, type_: &str) -> Option<&'a farwater_api::Condition> {
    find(&evidence.set.status.as_ref()?.conditions, type_)
}

fn holds<'a>(evidence: &SetEvidence<'a>, type_: &str) -> Option<&'a farwater_api::Condition> {
    holding(&evidence.set.status.as_ref()?.conditions, type_)
}

/// Name and namespace of the set, e.g. `site`, `team-a`.
fn names<'a>(evidence: &SetEvidence<'a>) -> (&'a str, &'a str) {
    let metadata = &evidence.set.metadata;
    (
        metadata.name.as_deref().unwrap_or_default(),
        metadata.namespace.as_deref().unwrap_or_default(),
    )
}

/// The set as an argument, for commands that take several kinds.
fn argument(name: &str) -> String {
    match managed_namespace::maker_name(name) {
        Some(maker) => format!("managednamespace/{maker}"),
        None => format!("serviceset/{name}"),
    }
}

fn judge_deletion(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let since = evidence.set.metadata.deletion_timestamp.as_ref()?;
    let (_, namespace) = names(evidence);
    let left = evidence.members.iter().filter(|member| !member.service.is_empty());
    let age = ago(since.0, evidence.now);
    let holders = deletion::holders(evidence.set.metadata.finalizers.as_deref().unwrap_or_default());
    let told = match left.clone().count() {
        0 if !holders.is_empty() => format!("the set is being deleted for {age}; it is held by {holders}"),
        count => {
            let are = verb(&count, "is", "are");
            format!("the set is being deleted for {age}; {count} of its services {are} still there")
        }
    };
    let finding = Finding::progressing(Link::Cluster, told);
    Some(match left.clone().next() {
        Some(first) => finding.next(NextStep::Farwater(format!("why {} -n {namespace}", first.service))),
        None => finding,
    })
}

fn judge_spec(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let (name, namespace) = names(evidence);
    let status = evidence.set.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation).unwrap_or_default();
    let wait = || NextStep::Farwater(format!("wait {} -n {namespace}", argument(name)));
    if observed < evidence.set.metadata.generation.unwrap_or_default() {
        return Some(
            Finding::progressing(Link::Placement, "the hub has not processed the set's new spec yet").next(wait()),
        );
    }
    // The clusters of a halted rollout explain it better than this condition.
    let stalled = holds(evidence, "Stalled").filter(|stalled| stalled.reason != ROLLOUT_HALTED);
    let errors = status.map(|status| status.errors.as_slice()).unwrap_or_default();
    if stalled.is_none() && errors.is_empty() {
        return None;
    }
    let told = match (stalled, errors.first()) {
        (Some(stalled), _) => sentence(stalled),
        (None, first) => first
            .map(|first| format!("{}: {}", first.cluster, first.message))
            .unwrap_or_default(),
    };
    let finding = Finding::broken(Link::Placement, told);
    let finding = errors.iter().fold(finding, |finding, one| {
        finding.because(format!("{}: {}", one.cluster, one.message))
    });
    Some(finding.next(NextStep::Farwater(format!("plan {} -n {namespace}", argument(name)))))
}

fn judge_brake(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let braked = holds(evidence, "Braked")?;
    let finding = Finding::broken(Link::Prune, sentence(braked)).because(freeze::LOOK_FIRST);
    Some(finding.next(NextStep::Kubectl(freeze::release())))
}

/// A set that selects no cluster is not healthy.
fn judge_selection(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let none = condition(evidence, "Ready").filter(|ready| ready.reason == NO_CLUSTERS)?;
    let (_, namespace) = names(evidence);
    let next = NextStep::Farwater(format!("get clusters --show-labels -n {namespace}"));
    Some(Finding::progressing(Link::Placement, sentence(none)).next(next))
}

fn judge_rollout(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let (name, namespace) = names(evidence);
    let rollout = evidence
        .set
        .status
        .as_ref()?
        .rollout
        .as_ref()
        .filter(|rollout| rollout.number > 0)?;
    let so_far = rollout.so_far();
    let status = NextStep::Farwater(format!("rollout status {name} -n {namespace}"));
    let behind = |finding: Finding| {
        let open = evidence
            .members
            .iter()
            .filter(|member| !matches!(member.progress, None | Some(Progress::Done)));
        let mut open: Vec<&Member> = open.collect();
        open.sort_by_key(|member| member.progress);
        open.into_iter().fold(finding, |finding, member| {
            let told = if member.message.is_empty() {
                &member.standing
            } else {
                &member.message
            };
            finding.because(format!("{} {told}", member.cluster))
        })
    };

    let failed = evidence
        .members
        .iter()
        .find(|member| member.progress == Some(Progress::Failed));
    let next = match failed.filter(|member| !member.service.is_empty()) {
        Some(member) => NextStep::Farwater(format!("why {} -n {namespace}", member.service)),
        None => status,
    };
    let halted = rollout
        .halted_by
        .as_ref()
        .map(|by| format!("halted by {by}"))
        .unwrap_or_default();

    let finding = match rollout.phase {
        RolloutPhase::Halted | RolloutPhase::Aborted => Finding::broken(Link::Rollout, so_far).because(halted),
        RolloutPhase::Paused => {
            let reason = evidence.set.spec.rollout.pause_reason.clone().unwrap_or_default();
            Finding::progressing(Link::Rollout, so_far).because(reason)
        }
        RolloutPhase::Complete => return None,
        _ => Finding::progressing(Link::Rollout, so_far),
    };
    let next = match rollout.phase {
        RolloutPhase::Paused => NextStep::Farwater(format!("rollout resume {name} -n {namespace}")),
        RolloutPhase::OnHold => NextStep::Farwater(format!("rollout promote {name} -n {namespace} --reason TEXT")),
        _ => next,
    };
    Some(behind(finding).next(next))
}

/// A cluster that is not healthy with its version, regardless of its progress in the rollout.
fn judge_members(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let (_, namespace) = names(evidence);
    let ill = |state| move |member: &&Member| member.state == state;
    let members = evidence.members.iter();
    let failed = members.clone().filter(ill(MemberState::Failed));
    let waiting = members.clone().filter(ill(MemberState::Progressing));
    let first = failed.clone().chain(waiting.clone()).next()?;
    let standing = if first.state == MemberState::Failed {
        Standing::Broken
    } else {
        Standing::Progressing
    };
    let healthy = members.filter(ill(MemberState::Ready)).count();
    let total = evidence
        .members
        .iter()
        .filter(|member| member.state != MemberState::Leaving)
        .count();
    let told = format!("healthy on {healthy} of {}", counted(total, "cluster"));
    let describe = |member: &Member| {
        let state = if member.state == MemberState::Failed {
            "has failed"
        } else {
            "is not healthy yet"
        };
        let more = if member.message.is_empty() {
            String::new()
        } else {
            format!(": {}", member.message)
        };
        format!("{} {state}{more}", member.cluster)
    };
    let finding = Finding::new(standing, Link::Health, told);
    let finding = failed
        .chain(waiting)
        .fold(finding, |finding, member| finding.because(describe(member)));
    Some(match first.service.is_empty() {
        true => finding,
        false => finding.next(NextStep::Farwater(format!("why {} -n {namespace}", first.service))),
    })
}

/// The set's condition, if the members gave no reason.
fn judge_condition(evidence: &SetEvidence<'_>) -> Option<Finding> {
    let (name, namespace) = names(evidence);
    let ready = condition(evidence, "Ready");
    if ready.is_some_and(|c| c.status == "True") {
        return None;
    }
    let told = ready.map_or_else(|| "the hub has not reconciled the set yet".to_owned(), sentence);
    let next = NextStep::Farwater(format!("rollout status {name} -n {namespace}"));
    Some(Finding::progressing(Link::Health, told).next(next))
}

fn healthy(evidence: &SetEvidence<'_>) -> Finding {
    let (name, _) = names(evidence);
    let count = evidence
        .set
        .status
        .as_ref()
        .map(|status| status.clusters.matched)
        .unwrap_or_default();
    let finding = in_order(format!("{name} is healthy on {}", counted(count, "cluster")));
    let rollout = evidence.set.status.as_ref().and_then(|status| status.rollout.as_ref());
    let rollout = rollout.filter(|rollout| rollout.number > 0);
    finding.because(
        rollout
            .map(|one| format!("rollout {} is {}", one.number, one.phase))
            .unwrap_or_default(),
    )
}
