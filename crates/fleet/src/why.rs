//! Why a service is not healthy: the first broken link from Git to health.
//!
//! The chain is source → bundle → parameters → dependencies → placement → cluster → agent → hooks → objects → health →
//! prune → window → rollout. Links are judged in this order, and the first one that is not in order is the answer: the
//! state of later links is a consequence of it, or outdated. Sets, clusters and sources have explanations of their own
//! in the same words.
//!
//! A next step never names a command with no information: `objects` is not suggested for a service without objects.

mod assignment;
mod finding;
mod objects;
mod set;
mod source;
mod words;

use farwater_api::{
    AGENT_FINALIZER, AnySource, Cluster, Condition, GROUP, RolloutPhase, ServiceDeployment,
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
use finding::MAX_EVIDENCE;
use objects::{judge_health, judge_hooks, judge_objects, judge_prune};
use words::{flags, name_of, namespace_of, revisions, sentence};

pub use assignment::{HeldBack, held_back, refused, with_suspension};
pub use finding::{Finding, Link, Lookup, NextStep, Standing};
pub use set::{SetEvidence, explain_cluster, explain_set};
pub use source::explain_source;
pub use words::ago;

/// Everything that the judgement depends on.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub service: &'a ServiceDeployment,
    /// Sources by the references of the service's spec, its own source first.
    pub sources: &'a [(SourceReference, Lookup<AnySource>)],
    pub cluster: Lookup<&'a Cluster>,
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
    // A pin breaks nothing, but may be the reason why nothing changes.
    if let Some(pin) = describe_pin(evidence.service) {
        finding.evidence.insert(0, pin);
        finding.evidence.truncate(MAX_EVIDENCE);
    }
    // Placement names the suspension itself.
    let spec = &evidence.service.spec;
    if is_suspended(spec, evidence.now) && finding.link != Some(Link::Placement) {
        finding.evidence.insert(0, describe_suspension(spec));
        finding.evidence.truncate(MAX_EVIDENCE);
    }
    // The version that waits may repair what is broken.
    if let Some(frozen) = frozen(evidence.service).filter(|_| finding.link != Some(Link::Window)) {
        finding.evidence.insert(0, sentence(frozen));
        finding.evidence.truncate(MAX_EVIDENCE);
    }
    finding
}

fn judge(evidence: &Evidence<'_>) -> Finding {
    judge_deletion(evidence)
        .or_else(|| judge_source(evidence))
        .or_else(|| judge_assignment(evidence))
        .or_else(|| judge_cluster(evidence))
        .or_else(|| judge_agent(evidence))
        .or_else(|| judge_hooks(evidence))
        .or_else(|| judge_objects(evidence))
        .or_else(|| judge_health(evidence))
        .or_else(|| judge_prune(evidence))
        .or_else(|| judge_window(evidence))
        .or_else(|| judge_rollout(evidence))
        .or_else(|| judge_summary(evidence))
        .unwrap_or_else(|| healthy(evidence))
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
                .because("the service is being deleted, which the agent has to confirm")
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
    Some(judge_prune(evidence).map_or(finding.because(held_by), |held| {
        held.because("the service is being deleted")
    }))
}

fn describe_object(service: &ServiceDeployment) -> NextStep {
    NextStep::Kubectl(format!("describe servicedeployments.{GROUP} {}", flags(service)))
}

/// The pin in the hub's words, or as the spec states it while there are none.
fn describe_pin(service: &ServiceDeployment) -> Option<String> {
    let pin = service.spec.pin.as_ref()?;
    let told = service
        .status
        .as_ref()
        .and_then(|status| find(&status.conditions, "Pinned"));
    Some(told.map_or_else(|| format!("pinned to {}", pin.bundle), sentence))
}

fn judge_source(evidence: &Evidence<'_>) -> Option<Finding> {
    // A pinned version is stored, so the state of the source doesn't matter.
    if evidence.service.spec.pin.is_some() {
        return None;
    }
    evidence
        .sources
        .iter()
        .enumerate()
        .find_map(|(n, (reference, found))| judge_one_source(evidence, n, reference, found))
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
    let found = evidence
        .cluster
        .found()
        .and_then(|cluster| cluster.metadata.namespace.as_deref());
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

/// Everything that the service runs is in order, but a newer version waits until changes may begin.
fn judge_window(evidence: &Evidence<'_>) -> Option<Finding> {
    let service = evidence.service;
    let told = sentence(frozen(service)?);
    let is_new = service
        .status
        .as_ref()
        .is_some_and(|status| status.assigned_revision.is_none());
    let told = match is_new {
        true => format!("nothing is here yet: {told}"),
        false => format!("what runs is healthy, and something newer is not here yet: {told}"),
    };
    let exit = "overrides the freeze for a day; the reason is recorded";
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

/// Everything that the service runs is in order, but its set asks for a newer version.
fn judge_rollout(evidence: &Evidence<'_>) -> Option<Finding> {
    let Turn { set, rollout, member } = evidence.rollout?;
    // An older hub reports progress in words only.
    let progress = member.progress?;
    let what = match progress {
        Progress::Done => return None,
        _ if rollout.phase == RolloutPhase::Complete => return None,
        Progress::Progressing | Progress::Soaking => "what runs is healthy, and is not through with its rollout yet",
        Progress::Failed => "what runs is healthy, and its rollout has stopped here",
        Progress::Waiting | Progress::Deferred => "what runs is healthy, and a newer version is not here yet",
        Progress::Still => "what runs is healthy, and a newer version does not come here",
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

fn judge_cluster(evidence: &Evidence<'_>) -> Option<Finding> {
    let reference = &evidence.service.spec.cluster_ref;
    let cluster = match evidence.cluster {
        Lookup::Found(cluster) => cluster,
        Lookup::Missing => {
            return Some(
                Finding::broken(
                    Link::Cluster,
                    format!("the cluster {:?} does not exist", reference.name),
                )
                .because(format!("spec.clusterRef.name is {:?}", reference.name))
                .next(NextStep::Farwater("get clusters -A".to_owned())),
            );
        }
        Lookup::Unreadable => return None,
    };
    judge_one_cluster(cluster, &reference.name, evidence.now)
}

/// None: the agent of the cluster is heard.
fn judge_one_cluster(cluster: &Cluster, name: &str, now: Timestamp) -> Option<Finding> {
    let status = cluster.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, "Ready");
    let of = format!("Cluster {name}");
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let heard = status.last_heard_time.as_ref().map(|time| ago(time.0, now));
    match (ready.map(|c| c.status.as_str()), heard) {
        (Some("True"), _) => None,
        (_, None) => Some(
            Finding::broken(Link::Cluster, format!("the cluster {name} has never joined"))
                .condition(&of, ready)
                .next(NextStep::Farwater(format!("cluster join {name} -n {namespace}"))),
        ),
        (_, Some(age)) => Some(
            Finding::broken(
                Link::Cluster,
                format!("nothing was heard from the cluster {name} for {age}"),
            )
            .condition(&of, ready)
            .because("workloads there keep running as last reported")
            .next(NextStep::InCluster(format!(
                "get pods,events -n {} # or the log of farwater-agent",
                farwater_api::AGENT_NAMESPACE
            ))),
        ),
    }
}

/// Whether the agent has reported on the assigned version at all. An older report on the objects says nothing about
/// now.
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
    let text = ready.map_or_else(|| "nothing is known of its health".to_owned(), sentence);
    let stalled = holding(&status.conditions, "Stalled").is_some();
    let standing = if stalled {
        Standing::Broken
    } else {
        Standing::Progressing
    };
    let is_empty = evidence.objects.found().is_none_or(<[ObjectReport]>::is_empty);
    let link = match (status.applied_revision == status.assigned_revision, is_empty) {
        (true, _) => Link::Health,
        // There are no objects to look at, so the files are the cause.
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
            evidence.cluster.found().is_some_and(|c| c.spec.suspend),
            "the cluster is suspended: changes are held",
        ),
        (suspended, "a source is suspended: nothing of it is fetched"),
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
            finding = finding.because(format!("{what}: it was not judged"));
        }
    }

    finding
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
