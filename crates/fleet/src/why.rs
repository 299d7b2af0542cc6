//! Why a service is not healthy: the first broken link from Git to health.
//!
//! The chain is source → bundle → parameters → dependencies → placement → cluster → agent → hooks → objects → health →
//! prune → window → rollout. Links are judged in this order, and the first broken one is the answer: the state of later
//! links is a consequence of it, or outdated. Sets, clusters and sources have explanations of their own in the same
//! words.
//!
//! A next step never names a command with no information: `objects` is not suggested for a service without objects.

mod assignment;
mod cluster;
mod finding;
mod objects;
mod set;
mod source;
mod words;

use std::collections::BTreeSet;

use farwater_api::{
    AGENT_FINALIZER, AnySource, Condition, GROUP, RolloutPhase, ServiceDeployment,
    objects::ObjectReport,
    service_set::{Member, Progress, RolloutStatus},
    service_sources::SourceReference,
};
use jiff::Timestamp;

use crate::{
    assignment::{describe_suspension, is_suspended},
    conditions::{find, holding},
    deletion,
    summary::{FROZEN, REMOVAL_EXIT, REMOVAL_HELD, WAITING_FOR_AGENT},
    words::{counted, verb},
};
use assignment::judge_assignment;
use cluster::judge_cluster;
use objects::{judge_files, judge_health, judge_hooks, judge_objects, judge_prune};
use words::{flags, name_of, namespace_of, revisions, sentence};

pub use assignment::{HeldBack, held_back, refused, with_suspension};
pub use cluster::{ClusterEvidence, explain_cluster};
pub use finding::{Finding, Link, Lookup, NextStep, Standing};
pub use set::{SetEvidence, explain_set};
pub use source::explain_source;
pub use words::ago;

/// Everything that the judgement depends on.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub service: &'a ServiceDeployment,
    /// Sources by the references of the service's spec, its own source first.
    pub sources: &'a [(SourceReference, Lookup<AnySource>)],
    pub cluster: Lookup<&'a ClusterEvidence>,
    /// The agent's report, object by object.
    pub objects: Lookup<&'a [ObjectReport]>,
    /// Its place in the rollout of its set. None: it has no set, or the place is unknown.
    pub rollout: Option<Turn<'a>>,
    pub now: Timestamp,
}

/// The place of a member in a rollout.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// Name of the ServiceSet, in the service's namespace.
    pub set: &'a str,
    pub rollout: &'a RolloutStatus,
    pub member: &'a Member,
}

/// Explains the first broken link, or that there is none.
pub fn explain(evidence: &Evidence<'_>) -> Finding {
    let mut finding = judge(evidence);
    // A pin breaks nothing, but may be the reason why the version stays the same.
    if let Some(pin) = describe_pin(evidence.service) {
        finding.evidence.insert(0, pin);
    }
    // Placement names the suspension itself.
    let spec = &evidence.service.spec;
    if is_suspended(spec, evidence.now) && finding.link != Some(Link::Placement) {
        finding.evidence.insert(0, describe_suspension(spec));
    }
    // The version that waits may repair what is broken.
    if let Some(frozen) = frozen(evidence.service).filter(|_| finding.link != Some(Link::Window)) {
        finding.evidence.insert(0, sentence(frozen));
    }
    finding
}

fn judge(evidence: &Evidence<'_>) -> Finding {
    // A hold of a newer version is not the cause of a failure of the version that runs.
    let held_up = || judge_source(evidence).or_else(|| judge_assignment(evidence));
    judge_deletion(evidence)
        .or_else(|| held_up().map(|finding| finding.besides(judge_running(evidence))))
        .or_else(|| judge_running(evidence))
        .or_else(|| judge_prune(evidence))
        .or_else(|| judge_window(evidence))
        .or_else(|| judge_rollout(evidence))
        .or_else(|| judge_summary(evidence))
        .unwrap_or_else(|| healthy(evidence))
}

/// The links of the version that runs.
fn judge_running(evidence: &Evidence<'_>) -> Option<Finding> {
    judge_cluster(evidence)
        .or_else(|| judge_agent(evidence))
        .or_else(|| judge_hooks(evidence))
        .or_else(|| judge_files(evidence))
        .or_else(|| judge_objects(evidence))
        .or_else(|| judge_health(evidence))
}

fn judge_deletion(evidence: &Evidence<'_>) -> Option<Finding> {
    let service = evidence.service;
    let since = service.metadata.deletion_timestamp.as_ref()?;
    let what = match service.spec.deletion_policy {
        farwater_api::service_deployment::DeletionPolicy::Delete => "deleted its objects",
        farwater_api::service_deployment::DeletionPolicy::Orphan => "released its objects",
    };
    let age = ago(since.0, evidence.now);
    let finalizers = service.metadata.finalizers.as_deref().unwrap_or_default();
    let holders = deletion::holders(finalizers);
    // The agent has confirmed, and another program has not.
    if !finalizers.is_empty() && !finalizers.iter().any(|finalizer| finalizer == AGENT_FINALIZER) {
        let told = format!("the service is being deleted for {age}; it is held by {holders}");
        return Some(Finding::progressing(Link::Agent, told).next(describe_object(service)));
    }
    if let Some(finding) = judge_cluster(evidence) {
        let exit = match service.spec.deletion_policy {
            farwater_api::service_deployment::DeletionPolicy::Delete => REMOVAL_EXIT,
            farwater_api::service_deployment::DeletionPolicy::Orphan => "the hub releases its objects by itself",
        };
        return Some(
            finding
                .because("the service is being deleted, and the agent has to confirm that")
                .because(exit),
        );
    }
    let ready = service
        .status
        .as_ref()
        .and_then(|status| find(&status.conditions, "Ready"));
    if let Some(held) = ready.filter(|c| c.reason == "Removing" && c.message.starts_with(REMOVAL_HELD)) {
        let told = format!("the service is being deleted for {age}; {}", sentence(held));
        return Some(Finding::progressing(Link::Dependencies, told));
    }
    let finding = Finding::progressing(
        Link::Agent,
        format!("the service is being deleted for {age}; the agent has not yet confirmed that it {what}"),
    );
    let held_by = if holders.is_empty() {
        String::new()
    } else {
        format!("held by {holders}")
    };
    Some(judge_prune(evidence).map_or(finding.because(held_by), |mut held| {
        held.evidence.insert(0, "the service is being deleted".to_owned());
        held
    }))
}

fn describe_object(service: &ServiceDeployment) -> NextStep {
    NextStep::Kubectl(format!("describe servicedeployments.{GROUP} {}", flags(service)))
}

/// The pin as the hub's condition describes it. Before the hub has seen the pin, only the spec describes it.
fn describe_pin(service: &ServiceDeployment) -> Option<String> {
    let (pin, status) = (service.spec.pin.as_ref()?, service.status.as_ref());
    if let Some(pinned) = status.and_then(|status| find(&status.conditions, "Pinned")) {
        return Some(sentence(pinned));
    }
    let assigned = status.filter(|status| status.bundle_digest == Some(pin.bundle));
    let revision = assigned.and_then(|status| status.assigned_revision.clone());
    Some(format!(
        "pinned to {}",
        revision.unwrap_or_else(|| pin.bundle.to_string())
    ))
}

fn judge_source(evidence: &Evidence<'_>) -> Option<Finding> {
    // A pinned version is stored, so the state of the source doesn't matter.
    if evidence.service.spec.pin.is_some() {
        return None;
    }
    let sources = evidence.sources.iter().enumerate();
    let judged = sources.filter_map(|(n, (reference, found))| judge_one_source(evidence, n, reference, found));
    let mut findings: Vec<Finding> = judged.collect();
    // A source that is only awaited doesn't hide one that is broken.
    findings.sort_by_key(|finding| finding.standing != Standing::Broken);
    // A service may state a source twice.
    let mut told = BTreeSet::new();
    findings.retain(|finding| told.insert(finding.sentence.clone()));
    let mut findings = findings.into_iter();
    let first = findings.next()?;
    Some(first.because_all(findings.map(|finding| finding.sentence)))
}

fn judge_one_source(
    evidence: &Evidence<'_>,
    number: usize,
    reference: &SourceReference,
    found: &Lookup<AnySource>,
) -> Option<Finding> {
    let SourceReference { kind, name } = reference;
    let namespace = namespace_of(evidence.service);
    let source = match found {
        Lookup::Found(source) => source,
        Lookup::Missing => {
            let field = if number == 0 {
                "sourceRef".to_owned()
            } else {
                format!("sources[{}].sourceRef", number - 1)
            };
            return Some(
                Finding::broken(Link::Source, format!("the {kind} {namespace}/{name} does not exist"))
                    .because(format!("spec.{field}.name is {name:?}"))
                    .next(NextStep::Farwater(format!("get {} -n {namespace}", kind.plural()))),
            );
        }
        Lookup::Unreadable => return None,
    };
    source::judge(source, reference, namespace, evidence.now)
}

/// `clusters east -n farwater-admin`
fn of_cluster(evidence: &Evidence<'_>) -> String {
    let reference = &evidence.service.spec.cluster_ref;
    let found = evidence.cluster.found().map(|cluster| cluster.namespace.as_str());
    let namespace = reference
        .namespace
        .as_deref()
        .or(found)
        .unwrap_or(namespace_of(evidence.service));
    format!("clusters {} -n {namespace}", reference.name)
}

fn frozen(service: &ServiceDeployment) -> Option<&Condition> {
    holding(&service.status.as_ref()?.conditions, FROZEN)
}

/// Everything that the service runs is in order, but another version or spec waits until changes may begin.
fn judge_window(evidence: &Evidence<'_>) -> Option<Finding> {
    let service = evidence.service;
    let told = sentence(frozen(service)?);
    let status = service.status.as_ref();
    let told = match status.and_then(|status| status.assigned_revision.as_ref()) {
        None => format!("the first version waits: {told}"),
        Some(_) => {
            let held = status.and_then(|status| status.held_revision.as_deref());
            let held = held.unwrap_or("another spec");
            format!("the running version is healthy, and {held} waits: {told}")
        }
    };
    let exit = "the next command overrides the freeze for a day, and records the reason";
    // For a member of a set, the rollout decides what begins.
    let held = match evidence.rollout {
        Some(Turn { set, .. }) => format!("serviceset/{set} -n {}", namespace_of(service)),
        None => flags(service),
    };
    let next = NextStep::Farwater(format!("freeze --override {held} --reason TEXT"));
    Some(
        Finding::progressing(Link::Window, told)
            .because(revisions(service))
            .because(exit)
            .next(next),
    )
}

/// Everything that the service runs is in order, but its set wants a newer version.
fn judge_rollout(evidence: &Evidence<'_>) -> Option<Finding> {
    let Turn { set, rollout, member } = evidence.rollout?;
    // An older hub reports progress in words only.
    let progress = member.progress?;
    let what = match progress {
        Progress::Done => return None,
        _ if rollout.phase == RolloutPhase::Complete => return None,
        Progress::Progressing | Progress::Soaking => {
            "the running version is healthy, but has not completed its rollout"
        }
        Progress::Failed => "the running version is healthy, and the rollout stopped at this cluster",
        Progress::Waiting | Progress::Deferred => "the running version is healthy, and a newer version waits",
        Progress::Still => "the running version is healthy, and a newer version is not released to it",
    };
    let step = if member.step.is_empty() {
        String::new()
    } else {
        format!(", step {}", member.step)
    };
    let told = format!(
        "{what}: rollout {} of ServiceSet {set} is {}{step}: it {}",
        rollout.number, rollout.phase, member.standing
    );
    let finding = match rollout.phase {
        RolloutPhase::Halted | RolloutPhase::Aborted => Finding::broken(Link::Rollout, told),
        _ => Finding::progressing(Link::Rollout, told),
    };
    let halted = rollout
        .halted_by
        .as_ref()
        .map(|by| format!("halted by {by}"))
        .unwrap_or_default();
    let namespace = namespace_of(evidence.service);
    Some(
        finding
            .because(halted)
            .next(NextStep::Farwater(format!("rollout status {set} -n {namespace}"))),
    )
}

/// Whether the agent has reported on the assigned version at all. An older report does not describe the present
/// objects.
fn judge_agent(evidence: &Evidence<'_>) -> Option<Finding> {
    let service = evidence.service;
    let status = service.status.clone().unwrap_or_default();
    let waiting =
        find(&status.conditions, "Reconciling").filter(|c| c.status == "True" && c.reason == WAITING_FOR_AGENT)?;
    let assigned = status.assigned_revision.as_deref().unwrap_or("the assigned bundle");
    Some(
        Finding::progressing(Link::Agent, format!("the agent has not reported on {assigned} yet"))
            .because(revisions(service))
            .condition(&format!("ServiceDeployment {}", name_of(service)), Some(waiting))
            .next(NextStep::Farwater(format!("get {}", of_cluster(evidence)))),
    )
}

/// The hub's condition, if the objects gave no reason.
fn judge_summary(evidence: &Evidence<'_>) -> Option<Finding> {
    let status = evidence.service.status.as_ref()?;
    let ready = find(&status.conditions, "Ready");
    if ready.is_some_and(|c| c.status == "True") {
        return None;
    }
    let text = ready.map_or_else(|| "the hub knows nothing of its health yet".to_owned(), sentence);
    let stalled = holding(&status.conditions, "Stalled").is_some();
    let standing = if stalled {
        Standing::Broken
    } else {
        Standing::Progressing
    };
    let is_empty = evidence.objects.found().is_none_or(<[ObjectReport]>::is_empty);
    let link = match (status.applied_revision == status.assigned_revision, is_empty) {
        (true, _) => Link::Health,
        // The report has no objects, so the files are the cause.
        (false, true) if stalled => Link::Bundle,
        (false, _) => Link::Objects,
    };
    let next = match (is_empty, stalled) {
        (false, _) => "objects",
        (true, true) => "plan",
        (true, false) => "wait",
    };
    Some(
        Finding::new(standing, link, text)
            .because(revisions(evidence.service))
            .next(NextStep::Farwater(format!("{next} {}", flags(evidence.service)))),
    )
}

fn healthy(evidence: &Evidence<'_>) -> Finding {
    let service = evidence.service;
    let status = service.status.clone().unwrap_or_default();
    let revision = status.applied_revision.as_deref().unwrap_or("its revision").to_owned();
    let cluster = &service.spec.cluster_ref.name;
    let mut finding = Finding {
        standing: Standing::Healthy,
        link: None,
        sentence: format!("{} is healthy at {revision} on {cluster}", name_of(service)),
        evidence: Vec::new(),
        first: None,
        next: None,
    };

    if let Some(counts) = status.objects {
        let (all, are) = (counted(counts.total, "object"), verb(&counts.total, "is", "are"));
        finding = finding.because(format!("{} of {all} {are} healthy", counts.healthy));
    }
    if let Some(drifted) = holding(&status.conditions, "Drifted") {
        finding = finding.because(sentence(drifted));
    }

    let any_source = |judge: fn(&Lookup<AnySource>) -> bool| evidence.sources.iter().any(|(_, found)| judge(found));
    let suspended = any_source(|found| matches!(found, Lookup::Found(source) if source.suspend));
    for (held, what) in [
        (
            evidence.cluster.found().is_some_and(|c| c.suspended),
            "the cluster is suspended: its agent holds changes",
        ),
        (suspended, "a source is suspended: the hub does not fetch it"),
    ] {
        if held {
            finding = finding.because(what);
        }
    }
    for (hidden, what) in [
        (
            any_source(|found| matches!(found, Lookup::Unreadable)),
            "you may not read a source",
        ),
        (
            matches!(evidence.cluster, Lookup::Unreadable),
            "you may not read the cluster",
        ),
        (
            matches!(evidence.objects, Lookup::Unreadable),
            "you may not read the objects",
        ),
    ] {
        if hidden {
            finding = finding.because(format!("{what}, so it is left out of this answer"));
        }
    }

    finding
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
