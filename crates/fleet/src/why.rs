//! Why a service is not healthy: the first broken link from Git to health.
//!
//! The chain is source → bundle → parameters → dependencies → placement → cluster → agent → hooks → objects → health →
//! prune → window → rollout. Links are judged in this order, and the first one that is not in order is the answer: the
//! state of later links is a consequence of it, or outdated. Sets, clusters and sources have explanations of their own
//! in the same words.
//!
//! A next step never names a command with no information: `objects` is not suggested for a service without objects.

mod set;
mod source;

use farwater_api::{
    AGENT_FINALIZER, AnySource, Cluster, Condition, GROUP, PROPOSE_PRUNE, RolloutPhase, ServiceDeployment,
    objects::{Health, ObjectRef, ObjectReport, SyncState},
    service_deployment::{Contents, DependencyKind, HeldPrune},
    service_set::{Member, Progress, RolloutStatus},
    service_sources::SourceReference,
};
use jiff::Timestamp;
use serde::Serialize;
pub use set::{SetEvidence, explain_cluster, explain_set};
pub use source::explain_source;

use crate::{
    conditions::{find, holding},
    deletion, freeze,
    parameters::WAITS,
    summary::{FLEET_FROZEN, FROZEN, HOOK_FAILED, REMOVAL_EXIT, REMOVAL_HELD, TEST_FAILED, WAITING_FOR_AGENT},
    words::{counted, verb},
};

/// Most lines of evidence; the rest is one command away.
const MAX_EVIDENCE: usize = 6;

/// A step on the way from a commit to healthy objects, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Link {
    Source,
    Bundle,
    /// Parameters and Secrets that the hub supplies to the service.
    Parameters,
    Dependencies,
    Placement,
    Cluster,
    Agent,
    Hooks,
    Objects,
    Health,
    Prune,
    Window,
    Rollout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// Every link is in order.
    Healthy,
    /// The link has not been passed yet, and nothing shows that it will not be.
    Progressing,
    /// A person has to act, or an outside system has to recover.
    Broken,
}

/// The result of a lookup. A forbidden lookup is not the same as a missing object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lookup<T> {
    Found(T),
    Missing,
    Unreadable,
}

impl<T> Lookup<T> {
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(value) => Some(value),
            Self::Missing | Self::Unreadable => None,
        }
    }
}

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

/// The next step. The caller adds how its user starts each program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NextStep {
    /// Arguments of `farwater`.
    Farwater(String),
    /// Arguments of kubectl, against the hub.
    Kubectl(String),
    /// Arguments of kubectl, against the cluster that the service runs on.
    InCluster(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub standing: Standing,
    /// The first link that is not in order. None: all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// One sentence, no full stop.
    pub sentence: String,
    pub evidence: Vec<String>,
    /// A step that comes before `next`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<NextStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<NextStep>,
}

impl Finding {
    fn new(standing: Standing, link: Link, sentence: impl Into<String>) -> Self {
        Self {
            standing,
            link: Some(link),
            sentence: sentence.into(),
            evidence: Vec::new(),
            first: None,
            next: None,
        }
    }

    fn broken(link: Link, sentence: impl Into<String>) -> Self {
        Self::new(Standing::Broken, link, sentence)
    }

    fn progressing(link: Link, sentence: impl Into<String>) -> Self {
        Self::new(Standing::Progressing, link, sentence)
    }

    fn because(mut self, line: impl Into<String>) -> Self {
        let line = line.into();
        if !line.is_empty() && self.evidence.len() < MAX_EVIDENCE {
            self.evidence.push(line);
        }
        self
    }

    fn condition(self, of: &str, condition: Option<&Condition>) -> Self {
        let Some(condition) = condition else { return self };
        let message = if condition.message.is_empty() {
            String::new()
        } else {
            format!(": {}", condition.message)
        };
        self.because(format!(
            "{of} {}={} ({}){message}",
            condition.type_, condition.status, condition.reason
        ))
    }

    fn next(mut self, step: NextStep) -> Self {
        self.next = Some(step);
        self
    }

    fn first(mut self, step: NextStep) -> Self {
        self.first = Some(step);
        self
    }
}

/// Explains the first broken link, or that there is none.
pub fn explain(evidence: &Evidence<'_>) -> Finding {
    let mut finding = judge(evidence);
    // A pin breaks nothing, but may be the reason why nothing changes.
    if let Some(pin) = describe_pin(evidence.service) {
        finding.evidence.insert(0, pin);
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
        farwater_api::service_deployment::DeletionPolicy::Orphan => "let go of its objects",
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
            farwater_api::service_deployment::DeletionPolicy::Orphan => "the hub lets go of its objects by itself",
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

/// What keeps a revision from the cluster's desired state, in the hub's words: a missing source or cluster, a bundle
/// that can't be made, a missing right, a hold.
fn judge_assignment(evidence: &Evidence<'_>) -> Option<Finding> {
    let service = evidence.service;
    let status = service.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, "Ready");
    let of = format!("ServiceDeployment {}", name_of(service));
    let wait = || NextStep::Farwater(format!("wait {}", flags(service)));
    let current = status.observed_generation.unwrap_or_default() >= service.metadata.generation.unwrap_or_default();
    let refusal = ready.filter(|_| current).and_then(|c| refuse(evidence, c));
    if refusal.is_some() {
        return refusal;
    }
    if status.assigned_revision.is_none() && frozen(service).is_some() {
        return judge_window(evidence);
    }
    if status.assigned_revision.is_none() || !current {
        return Some(
            Finding::progressing(Link::Bundle, "the hub has not assigned a bundle for this spec yet")
                .condition(&of, ready)
                .next(wait()),
        );
    }
    None
}

/// A newer version that a service does not get now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// `main@sha1:c is held back: …`
    pub sentence: String,
    /// A pin, a window or a suspension holds it, which does not end soon by itself.
    pub by_people: bool,
}

/// The version of the source that the service does not run because it is held back.
pub fn held_back(service: &ServiceDeployment) -> Option<HeldBack> {
    let status = service.status.as_ref()?;
    let held = status.held_revision.as_ref()?;
    let holds = |type_: &str| holding(&status.conditions, type_).map(sentence);
    let suspended = || service.spec.suspend.then(|| "the service is suspended".to_owned());
    Some(match holds("Pinned").or_else(|| holds(FROZEN)).or_else(suspended) {
        Some(why) => HeldBack {
            sentence: format!("{held} is held back: {why}"),
            by_people: true,
        },
        None => {
            let why = find(&status.conditions, "Ready").map(sentence).unwrap_or_default();
            HeldBack {
                sentence: format!("{held} is not assigned yet: {why}"),
                by_people: false,
            }
        }
    })
}

/// Why a service keeps its version, apart from its agent's plan: the newer version is held back, or can't be delivered.
/// None: the service has the version that it should have, healthy or not.
pub fn refused(service: &ServiceDeployment) -> Option<String> {
    let status = service.status.as_ref()?;
    let current = status.observed_generation.unwrap_or_default() >= service.metadata.generation.unwrap_or_default();
    let ready = find(&status.conditions, "Ready").filter(|_| current);
    let alone = Evidence {
        service,
        sources: &[],
        cluster: Lookup::Unreadable,
        objects: Lookup::Unreadable,
        rollout: None,
        now: Timestamp::UNIX_EPOCH,
    };
    let is_refusal = |c: &&Condition| refuse(&alone, c).is_some();
    held_back(service)
        .map(|held| held.sentence)
        .or_else(|| ready.filter(is_refusal).map(sentence))
}

/// The broken link of a refusal, and the next command.
fn refuse(evidence: &Evidence<'_>, c: &Condition) -> Option<Finding> {
    let service = evidence.service;
    let (told, spec) = (sentence(c), &service.spec);
    let SourceReference { kind, name } = &spec.source_ref;
    let namespace = namespace_of(service);
    let of_source = || NextStep::Farwater(format!("why {}/{name} -n {namespace}", kind.as_str().to_lowercase()));
    let fetch = || NextStep::Farwater(format!("wait {} --fetch", flags(service)));
    let edit = || NextStep::Kubectl(format!("edit servicedeployments {}", flags(service)));
    let parameters = || NextStep::Farwater(format!("explain parameters {}", flags(service)));

    let finding = match c.reason.as_str() {
        "SourceNotFound" => Finding::broken(Link::Source, told).next(edit()),
        "ChartNotFound" => Finding::broken(Link::Source, told)
            .because("publish it, or correct spec.chart")
            .next(edit()),
        "SourceNotReady" => Finding::progressing(Link::Source, told).next(of_source()),
        "FilesNotReady" => Finding::progressing(Link::Source, told).next(fetch()),
        "PinFailed" => {
            Finding::broken(Link::Bundle, told).next(NextStep::Farwater(format!("history {}", flags(service))))
        }
        "BundleFailed" => judge_bundle(service, &told).next(fetch()),
        "SecretNotReady" => match source::missing_secret(&c.message) {
            Some(secret) => {
                let create = format!("create secret generic {secret} -n {namespace} --from-literal=KEY=VALUE");
                Finding::broken(Link::Parameters, told).next(NextStep::Kubectl(create))
            }
            None => Finding::broken(Link::Parameters, told).next(parameters()),
        },
        "ParametersNotReady" if c.message.starts_with(WAITS) => {
            Finding::progressing(Link::Parameters, told).next(parameters())
        }
        "ParametersNotReady" => Finding::broken(Link::Parameters, told).next(parameters()),
        "DependencyNotReady" => Finding::progressing(Link::Dependencies, told).next(of_dependency(service)),
        "DependencyCycle" => Finding::broken(Link::Dependencies, told).next(edit()),
        "NotGranted" => Finding::broken(Link::Placement, format!("the service is held: {told}"))
            .next(NextStep::Farwater("get clustergrants -o wide".to_owned())),
        "Held" => {
            let finding = Finding::broken(Link::Placement, format!("the service is {told}"));
            let by = service.status.as_ref().and_then(|status| status.suspended_by.as_ref());
            let by = by
                .filter(|_| spec.suspend)
                .map(|by| format!("suspended by {by}"))
                .unwrap_or_default();
            let next = match spec.suspend {
                true => format!("resume {}", flags(service)),
                false => format!("get {}", of_cluster(evidence)),
            };
            finding.because(by).next(NextStep::Farwater(next))
        }
        "ClusterNotFound" => {
            Finding::broken(Link::Cluster, told).next(NextStep::Farwater("get clusters -A".to_owned()))
        }
        _ => return None,
    };

    Some(finding.because(revisions(service)))
}

/// Files that can't be gathered. `told`: the hub's message, `REVISION: FILE: WHY`.
fn judge_bundle(service: &ServiceDeployment, told: &str) -> Finding {
    const NO_FOLDER: &str = "the source has no such folder";
    let path = if service.spec.path.is_empty() {
        "."
    } else {
        &service.spec.path
    };
    if !told.contains(NO_FOLDER) {
        return Finding::broken(Link::Bundle, format!("no bundle of {path:?} can be made: {told}"));
    }
    let (revision, rest) = told.split_once(": ").unwrap_or(("its revision", told));
    let folder = rest.split_once(": ").map_or(path, |(folder, _)| folder);
    Finding::broken(
        Link::Source,
        format!("the source has no folder {folder:?} at {revision}"),
    )
    .because("push it, or correct spec.path; the next command asks the source now")
}

/// The next step for a dependency: the only one, or all of them if it is unknown which one is meant.
fn of_dependency(service: &ServiceDeployment) -> NextStep {
    let namespace = namespace_of(service);
    NextStep::Farwater(match service.spec.depends_on.as_slice() {
        [one] if one.kind == DependencyKind::ServiceSet => format!("why serviceset/{} -n {namespace}", one.name),
        [one] => format!("why {} -n {namespace}", one.name),
        _ => format!("get servicedeployments,servicesets -n {namespace}"),
    })
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

/// A hook that failed or runs, in the hub's words, which name it. What waits for it is a consequence.
fn judge_hooks(evidence: &Evidence<'_>) -> Option<Finding> {
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
            .because("another version, or other Secrets, have it run again; so does `hooks --retry`, where the reason was not its own")
            .next(NextStep::Farwater(format!("hooks {}", flags(service)))),
    )
}

fn judge_objects(evidence: &Evidence<'_>) -> Option<Finding> {
    let objects = evidence.objects.found()?;
    let refused: Vec<_> = objects.iter().filter(|o| o.sync == SyncState::Refused).collect();
    let list = NextStep::Farwater(format!("objects {}", flags(evidence.service)));
    if let Some(first) = refused.first() {
        let finding = Finding::broken(
            Link::Objects,
            format!("{} was refused: {}", first.object, or_silence(first)),
        )
        .because(waiters(objects, &first.object));
        return Some(
            refused
                .iter()
                .skip(1)
                .fold(finding, |f, o| f.because(describe(o)))
                .next(list),
        );
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
    Some(
        waiting
            .iter()
            .skip(1)
            .fold(finding, |f, o| f.because(describe(o)))
            .next(next),
    )
}

fn judge_health(evidence: &Evidence<'_>) -> Option<Finding> {
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
    let others = objects
        .iter()
        .filter(|o| o.object != worst.object && o.health < Health::Unknown);
    Some(
        others
            .fold(finding, |f, o| f.because(describe(o)))
            .next(describe_in_cluster(&worst.object)),
    )
}

fn judge_prune(evidence: &Evidence<'_>) -> Option<Finding> {
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
    let finding = objects
        .iter()
        .fold(finding, |f, o| f.because(format!("would delete {o}")));
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
    Some(
        contents
            .iter()
            .fold(finding, |f, contents| f.because(describe_contents(contents)))
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
        kinds => format!(", and what of {kinds} more kinds could not be counted"),
    };
    format!("with {} would go {counted}{unknown}", contents.object)
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

fn sentence(condition: &Condition) -> String {
    let text = if condition.message.is_empty() {
        &condition.reason
    } else {
        &condition.message
    };
    text.trim_end_matches('.').to_owned()
}

fn or_silence(object: &ObjectReport) -> &str {
    if object.message.is_empty() {
        "no reason was given"
    } else {
        &object.message
    }
}

/// Message with the number of objects that wait for this one. Empty: none does.
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

fn describe(object: &ObjectReport) -> String {
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

fn revisions(service: &ServiceDeployment) -> String {
    let status = service.status.clone().unwrap_or_default();
    format!(
        "assigned {}, applied {}",
        status.assigned_revision.as_deref().unwrap_or("nothing"),
        status.applied_revision.as_deref().unwrap_or("nothing")
    ) + &status
        .held_revision
        .map(|held| format!(", held back {held}"))
        .unwrap_or_default()
}

fn namespace_of(service: &ServiceDeployment) -> &str {
    service.metadata.namespace.as_deref().unwrap_or_default()
}

fn name_of(service: &ServiceDeployment) -> &str {
    service.metadata.name.as_deref().unwrap_or_default()
}

fn flags(service: &ServiceDeployment) -> String {
    format!("{} -n {}", name_of(service), namespace_of(service))
}

/// `42s`, `7m`, `3h` or `5d`: the largest unit is enough to know how worried to be.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
