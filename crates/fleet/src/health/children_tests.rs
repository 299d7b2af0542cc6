use std::{slice, sync::Arc};

use farwater_api::HealthRuleSpec;
use serde_json::Value;

use super::*;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn check_places(object: &str, expected: &[&str]) {
    let places = places(&yaml(object));
    let told: Vec<String> = places
        .iter()
        .map(|p| format!("{} {}", p.kind.plural, p.selector))
        .collect();
    assert_eq!(told, expected, "{object}");
}

#[test]
fn selectors_lead_from_workloads_to_what_they_own() {
    let workload = |version: &str, kind: &str, selector: &str| {
        format!("{{apiVersion: {version}, kind: {kind}, spec: {{selector: {selector}}}}}")
    };
    let labels = "{matchLabels: {app: web, tier: front}}";
    check_places(
        &workload("apps/v1", "Deployment", labels),
        &["replicasets app=web,tier=front"],
    );
    for kind in ["ReplicaSet", "StatefulSet", "DaemonSet"] {
        check_places(&workload("apps/v1", kind, labels), &["pods app=web,tier=front"]);
    }
    check_places(&workload("batch/v1", "Job", labels), &["pods app=web,tier=front"]);
    check_places(
        &workload("v1", "ReplicationController", "{app: web}"),
        &["pods app=web"],
    );
    let expressions = "{matchExpressions: [{key: a, operator: In, values: [v, w]}, {key: b, operator: NotIn, values: [z]}, \
                       {key: c, operator: Exists}, {key: d, operator: DoesNotExist}]}";
    check_places(
        &workload("apps/v1", "StatefulSet", expressions),
        &["pods a in (v,w),b notin (z),c,!d"],
    );
    // An empty selector doesn't mean the whole namespace, and an unknown operator yields no place.
    check_places(&workload("apps/v1", "StatefulSet", "{}"), &[]);
    check_places(
        &workload(
            "apps/v1",
            "StatefulSet",
            "{matchExpressions: [{key: a, operator: Like}]}",
        ),
        &[],
    );
    for (version, kind) in [
        ("v1", "Service"),
        ("v1", "Pod"),
        ("batch/v1", "CronJob"),
        ("rbac.authorization.k8s.io/v1", "Role"),
    ] {
        check_places(&format!("{{apiVersion: {version}, kind: {kind}}}"), &[]);
    }
}

#[test]
fn what_a_custom_resource_owns_is_among_the_workloads_of_its_namespace() {
    let all = [
        "deployments ",
        "statefulsets ",
        "daemonsets ",
        "jobs ",
        "replicasets ",
        "pods ",
        "persistentvolumeclaims ",
    ];
    check_places("{apiVersion: example.com/v1, kind: Database}", &all);
    check_places("{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway}", &all);
    let place = &places(&yaml("{apiVersion: example.com/v1, kind: Database}"))[5];
    assert!(!place.is_read_whole());
}

#[test]
fn objects_without_children_are_not_asked_about() {
    for (group, kind, namespace, expected) in [
        ("apps", "Deployment", "web", true),
        ("batch", "Job", "web", true),
        ("batch", "CronJob", "web", false),
        ("", "Pod", "web", true),
        ("", "PersistentVolumeClaim", "web", true),
        ("", "Service", "web", false),
        ("example.com", "Database", "web", true),
        // The children of a cluster-scoped object may be in any namespace.
        ("example.com", "Fleet", "", false),
        ("apiextensions.k8s.io", "CustomResourceDefinition", "", false),
    ] {
        assert_eq!(may_explain(group, kind, namespace), expected, "{group} {kind}");
    }
}

fn pod(name: &str, status: &str) -> Value {
    yaml(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, status: {{{status}}}}}"
    ))
}

const READY: &str = "phase: Running, conditions: [{type: Ready, status: 'True'}]";
const PULLS: &str = "phase: Pending, containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff, message: no such image}}}]";
const LOOPS: &str = "phase: Running, containerStatuses: [{name: c, state: {waiting: {reason: CrashLoopBackOff, message: 'back-off 40s'}}, \
                     lastState: {terminated: {exitCode: 137, reason: OOMKilled}}}]";

/// The message about the worst of some pods.
fn check_worst(owner: &str, pods: Vec<Value>, expected: Option<(&str, usize)>) {
    let owner = yaml(&format!("{{apiVersion: x/v1, kind: {owner}}}"));
    let rules = Rules::default();
    let found = worst(&rules, &owner, pods);
    let found = found.map(|(pod, others)| (format!("{}: {}", title(&pod), rules.evaluate(&pod).1), others));
    assert_eq!(found.as_ref().map(|(text, others)| (text.as_str(), *others)), expected);
}

#[test]
fn the_worst_child_is_the_one_that_says_most() {
    let evicted = || pod("a-evicted", "phase: Failed, reason: Evicted, message: disk");
    check_worst("ReplicaSet", vec![], None);
    check_worst("ReplicaSet", vec![pod("a", READY)], None);
    check_worst(
        "ReplicaSet",
        vec![
            pod("c", PULLS),
            pod("b", PULLS),
            pod("a", "phase: Pending"),
            pod("d", READY),
        ],
        Some(("Pod b: container c: ImagePullBackOff: no such image", 2)),
    );
    check_worst(
        "ReplicaSet",
        vec![pod("a", PULLS), pod("b", LOOPS)],
        Some(("Pod b: container c: CrashLoopBackOff, exit code 137 (OOMKilled)", 1)),
    );
    // A ReplicaSet has replaced the evicted pod. For a Job, that pod is what went wrong.
    check_worst(
        "ReplicaSet",
        vec![evicted(), pod("b", PULLS)],
        Some(("Pod b: container c: ImagePullBackOff: no such image", 1)),
    );
    check_worst(
        "Job",
        vec![evicted(), pod("b", PULLS)],
        Some(("Pod a-evicted: Evicted: disk", 1)),
    );
}

/// Rules with one rule, for a core kind.
fn judged(kind: &str, current: &str, message: &str) -> Rules {
    let rule = HealthRuleSpec {
        kind: kind.to_owned(),
        current: current.to_owned(),
        message: Some(message.to_owned()),
        ..HealthRuleSpec::default()
    };
    Rules::compile(&[rule], Arc::default())
}

#[test]
fn a_child_of_a_kind_with_a_rule_is_judged_by_it() {
    let owner = yaml("{apiVersion: apps/v1, kind: ReplicaSet}");
    let pods = || vec![pod("a", READY), pod("b", PULLS)];
    let rules = judged(
        "Pod",
        "self.status.phase == 'Pending'",
        "'its phase is ' + self.status.phase",
    );
    let (worst, others) = worst(&rules, &owner, pods()).unwrap();
    assert_eq!((title(&worst).as_str(), others), ("Pod a", 0));
    assert_eq!(rules.evaluate(&worst).1, "its phase is Running");
    assert!(tells(&rules, &worst));
    let silent = judged("Pod", "false", "''");
    assert!(!tells(&silent, &worst));
}

#[test]
fn only_what_is_owned_counts_and_of_replica_sets_the_newest() {
    let set = |name: &str, revision: &str, owner: &str| {
        yaml(&format!(
            "{{metadata: {{name: {name}, annotations: {{deployment.kubernetes.io/revision: '{revision}'}}, ownerReferences: [{{uid: {owner}}}]}}}}"
        ))
    };
    assert!(is_owned_by(&set("a", "1", "u"), "u"));
    assert!(!is_owned_by(&set("a", "1", "u"), "v") && !is_owned_by(&yaml("{metadata: {}}"), ""));
    let names = |place: &Place, most| -> Vec<String> {
        let all = vec![set("c", "9", "u"), set("a", "10", "u"), set("b", "2", "u")];
        choose(place, all, most)
            .iter()
            .map(|child| name_of(child).to_owned())
            .collect()
    };
    assert_eq!(
        names(
            &Place {
                kind: &REPLICA_SET,
                selector: "app=web".into()
            },
            3
        ),
        ["a"]
    );
    assert_eq!(
        names(
            &Place {
                kind: &DEPLOYMENT,
                selector: String::new()
            },
            2
        ),
        ["a", "b"]
    );
}

fn event(kind: &str, reason: &str, message: &str, time: &str) -> Value {
    serde_json::json!({"type": kind, "reason": reason, "message": message, "lastTimestamp": time})
}

#[test]
fn events_say_what_an_object_does_not() {
    let pod = pod("a", "phase: Pending");
    let check = |events: &[Value], expected: Option<&str>| {
        assert_eq!(explain_events(&pod, events).as_deref(), expected);
    };
    check(&[], None);
    check(&[event("Normal", "Scheduled", "to node", "2026-01-01T00:00:09Z")], None);
    check(
        &[
            event(
                "Warning",
                "FailedMount",
                "configmap \"a\" not found",
                "2026-01-01T00:00:05Z",
            ),
            event("Warning", "Old", "x", "2026-01-01T00:00:01Z"),
        ],
        Some("FailedMount: configmap \"a\" not found"),
    );
    // The answer of a program to a probe may contain anything.
    let probe = |message: &str| [event("Warning", "Unhealthy", message, "2026-01-01T00:00:01Z")];
    check(
        &probe("Readiness probe failed: HTTP probe failed with statuscode: 503"),
        Some("Unhealthy: Readiness probe failed with status code 503"),
    );
    check(
        &probe("Liveness probe failed: password hunter2 is wrong"),
        Some("Unhealthy: Liveness probe failed"),
    );
}

#[test]
fn a_claim_that_waits_for_its_consumer_is_waited_for_by_nobody() {
    let claim = |annotations: &str, phase: &str| {
        yaml(&format!(
            "{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: a, annotations: {{{annotations}}}}}, status: {{phase: {phase}}}}}"
        ))
    };
    let waits = event(
        "Normal",
        "WaitForFirstConsumer",
        "waiting for first consumer",
        "2026-01-01T00:00:01Z",
    );
    let failed = event("Warning", "ProvisioningFailed", "no space", "2026-01-01T00:00:02Z");
    let selected = "volume.kubernetes.io/selected-node: n";
    let one = slice::from_ref(&waits);
    let rules = Rules::default();
    assert!(waits_for_consumer(&rules, &claim("", "Pending"), one));
    assert!(!waits_for_consumer(&rules, &claim("", "Pending"), &[]));
    assert!(!waits_for_consumer(&rules, &claim(selected, "Pending"), one));
    assert!(!waits_for_consumer(&rules, &claim("", "Bound"), one));
    assert!(!waits_for_consumer(
        &rules,
        &claim("", "Pending"),
        &[waits.clone(), failed.clone()]
    ));
    // A rule of the user requires that the claim is waited for.
    let strict = judged("PersistentVolumeClaim", "self.status.phase == 'Bound'", "'not bound'");
    assert!(!waits_for_consumer(&strict, &claim("", "Pending"), one));
    assert_eq!(
        explain_events(&claim("", "Pending"), &[waits, failed]).as_deref(),
        Some("ProvisioningFailed: no space")
    );
}
