//! Judges the assignment: why a revision is not in the desired state of its cluster, in the words of the hub.

use farwater_api::{
    Condition, ServiceDeployment, service_deployment::DependencyKind, service_sources::SourceReference,
};
use jiff::Timestamp;

use super::{
    finding::{Finding, Link, Lookup, NextStep},
    source,
};
use crate::{
    assignment::{describe_suspension, is_suspended},
    conditions::{find, holding},
    parameters::WAITS,
    summary::{FROZEN, ROLLOUT_HELD},
    why::{
        Evidence, frozen, judge_window, of_cluster,
        words::{flags, name_of, namespace_of, revisions, sentence},
    },
};

/// The reason why a revision is not in the cluster's desired state: a missing source or cluster, a bundle that can't be
/// built, a missing right, or a hold.
pub(super) fn judge_assignment(evidence: &Evidence<'_>) -> Option<Finding> {
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

/// A version that a service would run if nothing held it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// `main@sha1:c is held back: …`
    pub sentence: String,
    /// A pin, a window or a suspension holds it. None of these ends soon by itself.
    pub by_people: bool,
}

/// The version that is held back, and the reason.
pub fn held_back(service: &ServiceDeployment) -> Option<HeldBack> {
    let status = service.status.as_ref()?;
    let held = status.held_revision.as_ref()?;
    let holds = |type_: &str| holding(&status.conditions, type_).map(sentence);

    // A pin whose version is not assigned yet is held back itself.
    let pin = service.spec.pin.as_ref().map(|pin| pin.bundle);
    let is_pin_held = pin.is_some() && pin != status.bundle_digest;
    let pinned = holds("Pinned").filter(|_| !is_pin_held);
    let suspended = || service.spec.suspend.then(|| describe_suspension(&service.spec));
    if let Some(why) = pinned.or_else(|| holds(FROZEN)).or_else(suspended) {
        return Some(HeldBack {
            sentence: format!("{held} is held back: {why}"),
            by_people: true,
        });
    }

    let ready = || find(&status.conditions, "Ready").map(sentence).unwrap_or_default();
    let why = holds(ROLLOUT_HELD).unwrap_or_else(ready);
    Some(HeldBack {
        sentence: format!("{held} is not assigned yet: {why}"),
        by_people: false,
    })
}

/// A sentence about a service, followed by its suspension: nothing changes before the service is resumed. A sentence that
/// says so stays as it is.
pub fn with_suspension(service: &ServiceDeployment, told: String, now: Timestamp) -> String {
    let suspension = describe_suspension(&service.spec);
    if is_suspended(&service.spec, now) && !told.contains(&suspension) {
        format!("{told}; {suspension}")
    } else {
        told
    }
}

/// Why a service keeps its version: another version is held back, or can't be delivered. None: the service has the
/// version that it should have, healthy or not.
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
        "NotGranted" => Finding::broken(Link::Placement, format!("the service is held: {told}")).next(
            NextStep::Farwater("get clustergrants -o yaml # an administrator can change them".to_owned()),
        ),
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
        return Finding::broken(Link::Bundle, format!("the bundle of {path:?} can't be built: {told}"));
    }
    let (revision, rest) = told.split_once(": ").unwrap_or(("its revision", told));
    let folder = rest.split_once(": ").map_or(path, |(folder, _)| folder);
    Finding::broken(
        Link::Source,
        format!("the source has no folder {folder:?} at {revision}"),
    )
    .because("push it, or correct spec.path; the next command fetches the source now")
}

/// The next step for a dependency. With several dependencies, the service's status does not say which one is missing.
fn of_dependency(service: &ServiceDeployment) -> NextStep {
    let namespace = namespace_of(service);
    NextStep::Farwater(match service.spec.depends_on.as_slice() {
        [one] if one.kind == DependencyKind::ServiceSet => format!("why serviceset/{} -n {namespace}", one.name),
        [one] => format!("why {} -n {namespace}", one.name),
        _ => format!("get servicedeployments,servicesets -n {namespace}"),
    })
}
