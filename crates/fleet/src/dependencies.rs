//! Dependencies between services: what delays a newer version, and cycles.
//!
//! A service waits for the services that it names, never for those that name it, and the graph has no cycle. So a
//! version that repairs a service is always delivered, even if others wait for that service.

use std::collections::BTreeMap;

use farwater_api::{
    RolloutPhase, ServiceDeployment, ServiceDeploymentStatus, ServiceSet,
    service_deployment::{DependencyClusters, DependencyKind, DependencyReference},
};
use serde_json::Value;

use crate::{
    assignment::{Candidate, Trouble, Why},
    conditions::{find, holding},
    health::expression::{Expression, Subject},
    stamping::service_name,
};

/// Prefix of a set's name where sets and services are named together.
const SET: &str = "ServiceSet/";

/// Target of a service's reference, by its name in graphs and rows: a service, or a whole set as `ServiceSet/NAME`.
/// `cluster`: name of the cluster that the service is on.
pub fn resolve(reference: &DependencyReference, cluster: &str) -> String {
    match (reference.kind, reference.clusters) {
        (DependencyKind::ServiceDeployment, _) => reference.name.clone(),
        (DependencyKind::ServiceSet, DependencyClusters::Same) => service_name(&reference.name, cluster),
        (DependencyKind::ServiceSet, DependencyClusters::All) => set_key(&reference.name),
    }
}

/// Target of a reference in a set's template: a whole set, whichever clusters it is on, or a service.
pub fn resolve_of_set(reference: &DependencyReference) -> String {
    match reference.kind {
        DependencyKind::ServiceDeployment => reference.name.clone(),
        DependencyKind::ServiceSet => set_key(&reference.name),
    }
}

pub fn set_key(name: &str) -> String {
    format!("{SET}{name}")
}

/// The name of the set. None: the key is not that of a set.
pub fn set_of_key(key: &str) -> Option<&str> {
    key.strip_prefix(SET)
}

/// What an expression finds lacking. None: nothing. `object`: the dependency; none if it does not exist.
pub fn judge_by_expression(key: &str, text: &str, object: Option<&Value>) -> Option<String> {
    let what = describe_key(key);
    let Some(object) = object else {
        return Some(format!("waits for {what}, which does not exist"));
    };
    let judged = Expression::compile(text).map_err(|error| error.to_string());
    match judged.and_then(|ready| ready.is_true(&Subject::new(object)).map_err(|error| error.to_string())) {
        Ok(true) => None,
        Ok(false) => Some(format!("waits for {what}, of which {text} is not true")),
        Err(error) => Some(format!("waits for {what}, of which {text} has no value: {error}")),
    }
}

fn describe_key(key: &str) -> String {
    match set_of_key(key) {
        Some(set) => format!("ServiceSet {set}"),
        None => format!("service {key}"),
    }
}

/// A dependency on a whole set.
#[derive(Clone, Copy, Debug)]
pub struct SetDependency<'a> {
    pub name: &'a str,
    /// None: the set does not exist.
    pub set: Option<&'a ServiceSet>,
    /// Whether its rollout has observed its current spec and the current revisions of its sources.
    pub is_looked_at: bool,
    /// What the clusters that are heard lack. Silent clusters are passed over, as in the rollout. None: nothing.
    pub unhealthy: Option<&'a str>,
}

/// What a set lacks before its dependents may proceed, in one sentence. None: nothing.
pub fn judge_set(dependency: SetDependency<'_>) -> Option<String> {
    let name = dependency.name;
    let waits = |what: String| Some(format!("waits for ServiceSet {name}, which {what}"));
    let Some(set) = dependency.set else {
        return waits("does not exist".to_owned());
    };
    if set.metadata.deletion_timestamp.is_some() {
        return waits("is being deleted".to_owned());
    }
    let status = set.status.clone().unwrap_or_default();
    if !dependency.is_looked_at || status.observed_generation != set.metadata.generation {
        return waits("was not looked at since it or its source changed".to_owned());
    }
    let rollout = status.rollout.unwrap_or_default();
    if rollout.phase != RolloutPhase::Complete {
        return waits(format!(
            "is not through with rollout {}: it is {}",
            rollout.number, rollout.phase
        ));
    }
    if let Some(stalled) = holding(&status.conditions, "Stalled") {
        return waits(format!("is not ready: {}", stalled.message));
    }
    dependency.unhealthy.and_then(|lacks| waits(lacks.to_owned()))
}

/// A dependency on one service.
#[derive(Clone, Copy, Debug)]
pub struct Dependency<'a> {
    pub name: &'a str,
    /// None: the service does not exist.
    pub service: Option<&'a ServiceDeployment>,
    /// None: nothing was decided about it yet.
    pub decided: Option<Decided<'a>>,
}

/// The last decision about a service.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The generation that the decision was for.
    pub generation: i64,
    pub candidate: Option<&'a Candidate>,
    pub assigned: Option<&'a Candidate>,
    pub why: &'a Why,
    /// The revision that its source has now. None: unknown.
    pub newest: Option<&'a str>,
}

/// What a service lacks before its dependents may proceed, in one sentence. None: nothing.
pub fn judge(dependency: Dependency<'_>) -> Option<String> {
    let name = dependency.name;
    let waits = |what: String| Some(format!("waits for service {name}, which {what}"));
    let Some(service) = dependency.service else {
        return waits("does not exist".to_owned());
    };
    if service.metadata.deletion_timestamp.is_some() {
        return waits("is being deleted".to_owned());
    }

    let generation = service.metadata.generation.unwrap_or_default();
    let Some(decided) = dependency.decided.filter(|decided| decided.generation == generation) else {
        return waits("was not looked at yet".to_owned());
    };
    match decided.why {
        Why::Waiting(reasons) => return waits(format!("itself {reasons}")),
        Why::Trouble(trouble) => return waits(format!("is stuck: {trouble}")),
        Why::NotGranted(reason) => return waits(format!("is held: {reason}")),
        Why::Frozen(closed) => return waits(format!("waits itself: {closed}")),
        Why::Rollout => return waits("waits for its turn in the rollout of its set".to_owned()),
        Why::Current | Why::Suspended => {}
    }

    // A pin or a suspension decides the revision, whatever the source has.
    let stands = service.spec.pin.is_some() || *decided.why == Why::Suspended;
    let known = decided.candidate.map(|candidate| candidate.revision.as_str());
    if let Some(newest) = decided.newest.filter(|newest| !stands && known != Some(newest)) {
        return waits(format!("was not looked at since {newest} came"));
    }

    let Some(assigned) = decided.assigned else {
        return waits("has nothing assigned yet".to_owned());
    };
    let status = service.status.clone().unwrap_or_default();
    let is_current = status.observed_generation == Some(generation)
        && status.bundle_digest == Some(assigned.bundle)
        && status.configuration == assigned.configuration;
    if is_current && is_healthy(&status) {
        return None;
    }

    let ready = find(&status.conditions, "Ready").filter(|_| is_current);
    let told = ready
        .map(|condition| format!(": {}", condition.message))
        .unwrap_or_default();
    waits(format!("is not healthy at {}{told}", assigned.revision))
}

/// Whether a service is ready, except for something held back, e.g. a suspension or a waiting prune.
fn is_healthy(status: &ServiceDeploymentStatus) -> bool {
    let Some(ready) = find(&status.conditions, "Ready") else {
        return false;
    };
    let all = status.objects.is_some_and(|objects| objects.healthy == objects.total);
    let applied = status.applied_revision.is_some() && status.applied_revision == status.assigned_revision;
    ready.status == "True" || (matches!(ready.reason.as_str(), "Held" | "PruneHeld") && all && applied)
}

/// A cycle through a service, with that service at both ends. None: there is none.
pub fn find_cycle(from: &str, names: &BTreeMap<String, Vec<String>>) -> Option<Vec<String>> {
    let mut path = vec![from];
    let mut open: Vec<_> = vec![names.get(from).into_iter().flatten()];
    let mut seen = vec![from];
    while let Some(next) = open.last_mut() {
        let Some(name) = next.next() else {
            open.pop();
            path.pop();
            continue;
        };
        if name == from {
            path.push(from);
            return Some(path.into_iter().map(str::to_owned).collect());
        }
        if !seen.contains(&name.as_str()) {
            seen.push(name);
            path.push(name);
            open.push(names.get(name).into_iter().flatten());
        }
    }
    None
}

/// `web → database → web`
pub fn show_cycle(cycle: &[String]) -> String {
    cycle.join(" → ")
}

/// The trouble of a service in a cycle, as admission and the decision report it.
pub fn cycle_trouble(cycle: &[String]) -> Trouble {
    Trouble::Cycle {
        cycle: show_cycle(cycle),
    }
}

#[cfg(test)]
#[path = "dependencies_tests.rs"]
mod tests;
