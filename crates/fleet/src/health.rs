//! Health of one object, by the rules of kstatus (`status/core.go` and `generic.go` in
//! sigs.k8s.io/cli-utils/pkg/kstatus).
//!
//! Deliberate differences: a Job is Current only when complete (kstatus calls it Current as soon as it runs), a Pod in
//! phase Failed is Failed (there: Current), and an unschedulable Pod stays in progress (there: failed after 15 s,
//! which needs a clock).

pub mod children;
pub mod expression;
mod pod;
pub mod rules;
pub mod selection;
pub mod unseen;

use farwater_api::objects::Health;
use serde_json::Value;

type Verdict = (Health, String);

/// Whether the health of a kind can change after it was applied. Other kinds are Current as soon as they exist and need
/// not be read again.
pub fn changes_after_apply(group: &str, kind: &str) -> bool {
    !matches!(
        (group, kind),
        (
            "",
            "ConfigMap" | "Secret" | "ServiceAccount" | "Endpoints" | "LimitRange" | "ResourceQuota" | "Event"
        ) | ("rbac.authorization.k8s.io", _)
            | ("batch", "CronJob")
            | ("networking.k8s.io", "NetworkPolicy" | "IngressClass" | "Ingress")
            | ("policy", "PodDisruptionBudget")
            | (
                "scheduling.k8s.io" | "storage.k8s.io" | "coordination.k8s.io" | "discovery.k8s.io",
                _
            )
            | ("admissionregistration.k8s.io", _)
    )
}

/// The object's health, and why it is not Current. The message may be empty. `object` is the whole object as the API
/// server returns it. The message never quotes `data` or `stringData`.
pub fn evaluate(object: &Value) -> (Health, String) {
    if let Some(verdict) = evaluate_generic(object) {
        return verdict;
    }
    match (group_of(object), object["kind"].as_str().unwrap_or_default()) {
        ("apps", "Deployment") => evaluate_deployment(object),
        ("apps", "StatefulSet") => evaluate_stateful_set(object),
        ("apps", "DaemonSet") => evaluate_daemon_set(object),
        ("apps", "ReplicaSet") => evaluate_replica_set(object),
        ("batch", "Job") => evaluate_job(object),
        ("", "Pod") => pod::evaluate_pod(object),
        ("", "PersistentVolumeClaim") => evaluate_claim(object),
        ("", "Service") => evaluate_service(object),
        ("", "PersistentVolume") if object["status"]["phase"] == "Failed" => failed("its reclamation has failed"),
        ("", "ReplicationController") => evaluate_absence(object, "ReplicaFailure"),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => evaluate_absence(object, "Dangling"),
        ("apiregistration.k8s.io", "APIService") => evaluate_aggregation(object),
        ("autoscaling", "HorizontalPodAutoscaler") => evaluate_autoscaler(object),
        ("batch", "CronJob") if object["spec"]["suspend"] == true => (Health::Current, "suspended".into()),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => evaluate_definition(object),
        (group, kind) if !changes_after_apply(group, kind) => current(),
        _ => evaluate_ready(object),
    }
}

fn group_of(object: &Value) -> &str {
    object["apiVersion"]
        .as_str()
        .and_then(|version| version.split_once('/'))
        .map_or("", |(group, _)| group)
}

/// Whether a group is Kubernetes' own. Other kinds come from definitions, and their controllers may be missing.
fn is_built_in(group: &str) -> bool {
    matches!(group, "" | "apps" | "autoscaling" | "batch" | "policy" | "extensions")
        || group
            .strip_suffix(".k8s.io")
            .is_some_and(|name| BUILT_IN.contains(&name))
}

/// Kubernetes' own groups below `k8s.io`, where its subprojects have definitions too.
const BUILT_IN: [&str; 18] = [
    "admissionregistration",
    "apiextensions",
    "apiregistration",
    "authentication",
    "authorization",
    "certificates",
    "coordination",
    "discovery",
    "events",
    "flowcontrol.apiserver",
    "internal.apiserver",
    "networking",
    "node",
    "rbac.authorization",
    "resource",
    "scheduling",
    "storage",
    "storagemigration",
];

fn current() -> Verdict {
    (Health::Current, String::new())
}

fn progress(message: impl Into<String>) -> Verdict {
    (Health::InProgress, message.into())
}

fn failed(message: impl Into<String>) -> Verdict {
    (Health::Failed, message.into())
}

/// Verdicts that precede every rule: deletion and observed generation.
fn evaluate_bookkeeping(object: &Value) -> Option<Verdict> {
    if object["metadata"]["deletionTimestamp"].is_string() {
        return Some((Health::Terminating, "being deleted".into()));
    }
    let generation = object["metadata"]["generation"].as_i64()?;
    let observed = match object["status"]["observedGeneration"].as_i64() {
        Some(observed) => Some(observed).filter(|observed| *observed != generation),
        // Some controllers say it for each condition only. Some of these count further than the object's generation.
        None => observed_by_conditions(object).filter(|observed| *observed < generation),
    };
    observed.map(|observed| progress(format!("its controller has seen generation {observed} of {generation}")))
}

/// The newest generation that one of the generic conditions names.
fn observed_by_conditions(object: &Value) -> Option<i64> {
    let conditions = object["status"]["conditions"].as_array()?.iter();
    let generic = conditions.filter(|one| {
        ["Ready", "Reconciling", "Stalled"]
            .iter()
            .any(|kind| one["type"] == *kind)
    });
    generic.filter_map(|one| one["observedGeneration"].as_i64()).max()
}

/// Verdicts that precede the rules of a kind: bookkeeping, `Reconciling` and `Stalled`.
fn evaluate_generic(object: &Value) -> Option<Verdict> {
    if let Some(verdict) = evaluate_bookkeeping(object) {
        return Some(verdict);
    }
    if let Some(condition) = condition(object, "Reconciling").filter(|c| c.holds && !c.is_stale) {
        return Some(progress(condition.text()));
    }
    if let Some(condition) = condition(object, "Stalled").filter(|c| c.holds && !c.is_stale) {
        return Some(failed(condition.text()));
    }
    None
}

/// Kinds without a rule: by their `Ready` condition. Current if they have none.
fn evaluate_ready(object: &Value) -> Verdict {
    match condition(object, "Ready") {
        Some(ready) if ready.holds => current(),
        Some(ready) => progress(ready.text()),
        None => current(),
    }
}

fn evaluate_deployment(object: &Value) -> Verdict {
    let progressing = condition(object, "Progressing");
    if let Some(progressing) = progressing.as_ref().filter(|c| c.reason == "ProgressDeadlineExceeded") {
        return failed(progressing.text());
    }

    let wanted = spec_replicas(object);
    let (exist, updated) = (count(object, "replicas"), count(object, "updatedReplicas"));
    let (available, ready) = (count(object, "availableReplicas"), count(object, "readyReplicas"));
    if wanted > exist {
        return progress(format!("{exist} of {wanted} replicas exist"));
    }
    if object["spec"]["paused"] == true && ready >= wanted {
        return (
            Health::Current,
            format!("paused: {updated} of {wanted} replicas updated"),
        );
    }
    if wanted > updated {
        return progress(format!("{updated} of {wanted} replicas updated"));
    }
    if exist > wanted {
        return progress(format!("{} replicas wait for termination", exist - wanted));
    }
    if updated > available {
        return progress(format!("{available} of {updated} replicas available"));
    }
    if wanted > ready {
        return progress(format!("{ready} of {wanted} replicas ready"));
    }

    // Without a progress deadline the controller never writes Progressing.
    let has_deadline = object["spec"]["progressDeadlineSeconds"]
        .as_i64()
        .is_some_and(|s| s != i64::from(i32::MAX));
    if has_deadline && !progressing.is_some_and(|c| c.holds && c.reason == "NewReplicaSetAvailable") {
        return progress("the new replica set is not yet available");
    }
    match condition(object, "Available") {
        Some(available) if available.holds => current(),
        Some(available) => progress(available.text()),
        None => progress("not yet available"),
    }
}

/// Kinds with a condition that reports a fault.
fn evaluate_absence(object: &Value, fault: &str) -> Verdict {
    match condition(object, fault).filter(|c| c.holds) {
        Some(fault) => progress(fault.text()),
        None => current(),
    }
}

/// An API that another API server serves.
fn evaluate_aggregation(object: &Value) -> Verdict {
    match condition(object, "Available") {
        Some(available) if available.holds => current(),
        Some(available) => progress(available.text()),
        None => progress("not yet looked at"),
    }
}

fn evaluate_autoscaler(object: &Value) -> Verdict {
    let faults = ["AbleToScale", "ScalingActive"].map(|kind| condition(object, kind).filter(|c| c.status == "False"));
    // Ignores a target that was scaled to zero on purpose.
    match faults.into_iter().flatten().find(|c| c.reason != "ScalingDisabled") {
        Some(fault) => progress(fault.text()),
        None => current(),
    }
}

fn evaluate_stateful_set(object: &Value) -> Verdict {
    let strategy = &object["spec"]["updateStrategy"];
    if strategy["type"] == "OnDelete" {
        return current();
    }

    let wanted = spec_replicas(object);
    let (exist, ready) = (count(object, "replicas"), count(object, "readyReplicas"));
    let updated = count(object, "updatedReplicas");
    if wanted > exist {
        return progress(format!("{exist} of {wanted} replicas exist"));
    }
    if wanted > ready {
        return progress(format!("{ready} of {wanted} replicas ready"));
    }
    if exist > wanted {
        return progress(format!("{} replicas wait for termination", exist - wanted));
    }

    if let Some(partition) = strategy["rollingUpdate"]["partition"].as_i64() {
        let to_update = (wanted - partition).max(0);
        return if updated < to_update {
            progress(format!("{updated} of {to_update} replicas updated"))
        } else {
            current()
        };
    }
    let at_current = count(object, "currentReplicas");
    if wanted > at_current {
        return progress(format!("{at_current} of {wanted} replicas at the current revision"));
    }
    if object["status"]["currentRevision"] != object["status"]["updateRevision"] {
        return progress("waits for replicas to be updated");
    }
    current()
}

fn evaluate_daemon_set(object: &Value) -> Verdict {
    let status = &object["status"];
    let (Some(_), Some(wanted)) = (
        status["observedGeneration"].as_i64(),
        status["desiredNumberScheduled"].as_i64(),
    ) else {
        return progress("its controller has not seen it yet");
    };
    for (field, what) in [
        ("currentNumberScheduled", "scheduled"),
        ("updatedNumberScheduled", "updated"),
        ("numberAvailable", "available"),
        ("numberReady", "ready"),
    ] {
        // With this strategy the controller updates no pods; they are updated when they are deleted.
        if field == "updatedNumberScheduled" && object["spec"]["updateStrategy"]["type"] == "OnDelete" {
            continue;
        }
        let is = count(object, field);
        if is < wanted {
            return progress(format!("{is} of {wanted} pods {what}"));
        }
    }
    current()
}

fn evaluate_replica_set(object: &Value) -> Verdict {
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|c| c.holds) {
        return progress(failure.text());
    }
    let wanted = spec_replicas(object);
    for (field, what) in [
        ("fullyLabeledReplicas", "labelled"),
        ("availableReplicas", "available"),
        ("readyReplicas", "ready"),
    ] {
        let is = count(object, field);
        if is < wanted {
            return progress(format!("{is} of {wanted} replicas {what}"));
        }
    }
    let exist = count(object, "replicas");
    if exist > wanted {
        return progress(format!("{} replicas wait for termination", exist - wanted));
    }
    current()
}

fn evaluate_job(object: &Value) -> Verdict {
    if let Some(failure) = condition(object, "Failed").filter(|c| c.holds) {
        return failed(failure.text());
    }
    if condition(object, "Complete").is_some_and(|c| c.holds) {
        return current();
    }
    if condition(object, "Suspended").is_some_and(|c| c.holds) {
        return (Health::Current, "suspended".into());
    }
    if object["status"]["startTime"].is_string() {
        return progress(format!(
            "running: {} active, {} succeeded",
            count(object, "active"),
            count(object, "succeeded")
        ));
    }
    progress("not yet started")
}

/// Whether a Job is complete and its time to live may delete it: it counts as done, also when it is gone.
pub fn is_done(object: &Value) -> bool {
    has_time_to_live(object) && condition(object, "Complete").is_some_and(|c| c.holds)
}

/// Whether it is a Job that the cluster deletes some time after its end.
pub fn has_time_to_live(object: &Value) -> bool {
    (group_of(object), &object["kind"]) == ("batch", &Value::from("Job"))
        && object["spec"]["ttlSecondsAfterFinished"].is_number()
}

fn evaluate_claim(object: &Value) -> Verdict {
    match object["status"]["phase"].as_str() {
        Some("Bound") => current(),
        Some("Lost") => failed("its volume is lost"),
        _ => progress("not yet bound"),
    }
}

fn evaluate_service(object: &Value) -> Verdict {
    let spec = &object["spec"];
    if spec["type"] == "LoadBalancer" && spec["clusterIP"].as_str().is_none_or(str::is_empty) {
        return progress("no cluster IP yet");
    }
    current()
}

fn evaluate_definition(object: &Value) -> Verdict {
    if let Some(names) = condition(object, "NamesAccepted").filter(|c| c.status == "False") {
        return failed(names.text());
    }
    match condition(object, "Established") {
        Some(established) if established.holds => current(),
        Some(established) if established.status == "False" && established.reason != "Installing" => {
            failed(established.text())
        }
        _ => progress("not yet established"),
    }
}

struct Condition<'a> {
    holds: bool,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
    kind: &'a str,
    /// Whether it was set for an earlier generation of the object.
    is_stale: bool,
}

impl Condition<'_> {
    fn text(&self) -> String {
        match (self.reason, self.message) {
            ("", "") => format!(
                "{} is {}",
                self.kind,
                if self.status.is_empty() { "Unknown" } else { self.status }
            ),
            (reason, "") => reason.to_owned(),
            ("", message) => message.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        }
    }
}

fn condition<'a>(object: &'a Value, kind: &'a str) -> Option<Condition<'a>> {
    let found = object["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|c| c["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    let status = text("status");
    let observed = found["observedGeneration"].as_i64();
    let is_stale = observed
        .zip(object["metadata"]["generation"].as_i64())
        .is_some_and(|(seen, now)| seen < now);
    Some(Condition {
        holds: status == "True",
        status,
        reason: text("reason"),
        message: text("message"),
        kind,
        is_stale,
    })
}

fn count(object: &Value, field: &str) -> i64 {
    object["status"][field].as_i64().unwrap_or(0)
}

fn spec_replicas(object: &Value) -> i64 {
    object["spec"]["replicas"].as_i64().unwrap_or(1)
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
