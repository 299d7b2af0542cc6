use farwater_api::objects::Health::{self, *};
use serde_json::Value;

use super::evaluate;

/// Evaluates an object that is given as YAML.
fn check(object: &str, health: Health, message: &str) {
    let object: Value = serde_saphyr::from_str(object).unwrap();
    let (is, said) = evaluate(&object);
    assert_eq!(is, health, "{object:#}\nsaid: {said}");
    assert!(said.contains(message), "{said:?} does not say {message:?}");
}

fn deployment(spec: &str, status: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{generation: 2}}, spec: {{{spec}}}, status: {{{status}}}}}"
    )
}

const AVAILABLE: &str = "{type: Available, status: 'True'}";
const NEW_SET: &str = "{type: Progressing, status: 'True', reason: NewReplicaSetAvailable}";
const ALL_THREE: &str = "replicas: 3, updatedReplicas: 3, availableReplicas: 3, readyReplicas: 3";

#[test]
fn a_deployment_is_current_when_its_newest_replicas_are_available() {
    let spec = "replicas: 3, progressDeadlineSeconds: 600";
    let done = format!("observedGeneration: 2, {ALL_THREE}, conditions: [{AVAILABLE}, {NEW_SET}]");
    check(&deployment(spec, &done), Current, "");
    check(&deployment(spec, ""), InProgress, "0 of 3 replicas exist");
    check(
        &deployment(spec, &format!("observedGeneration: 1, {ALL_THREE}")),
        InProgress,
        "generation 1 of 2",
    );
    check(
        &deployment(spec, "replicas: 3, updatedReplicas: 1"),
        InProgress,
        "1 of 3 replicas updated",
    );
    check(
        &deployment(spec, "replicas: 4, updatedReplicas: 3"),
        InProgress,
        "1 replicas wait for termination",
    );
    check(
        &deployment(spec, "replicas: 3, updatedReplicas: 3, availableReplicas: 2"),
        InProgress,
        "2 of 3 replicas available",
    );
    check(&deployment(spec, ALL_THREE), InProgress, "new replica set");
    check(
        &deployment(spec, &format!("{ALL_THREE}, conditions: [{NEW_SET}]")),
        InProgress,
        "not yet available",
    );
    let stuck = "conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded, message: slow}]";
    check(&deployment(spec, stuck), Failed, "slow");
}

#[test]
fn a_deployment_without_a_deadline_has_no_progressing_condition() {
    check(
        &deployment("replicas: 3", &format!("{ALL_THREE}, conditions: [{AVAILABLE}]")),
        Current,
        "",
    );
    let never = "replicas: 3, progressDeadlineSeconds: 2147483647";
    check(
        &deployment(never, &format!("{ALL_THREE}, conditions: [{AVAILABLE}]")),
        Current,
        "",
    );
}

#[test]
fn what_is_paused_or_updated_by_hand_is_current_and_says_so() {
    let paused = "replicas: 3, paused: true, progressDeadlineSeconds: 600";
    let status = "replicas: 3, updatedReplicas: 1, availableReplicas: 3, readyReplicas: 3";
    check(&deployment(paused, status), Current, "paused: 1 of 3 replicas updated");
    check(
        &deployment(paused, "replicas: 3, updatedReplicas: 1, readyReplicas: 2"),
        InProgress,
        "1 of 3 replicas updated",
    );
    let daemons = "{apiVersion: apps/v1, kind: DaemonSet, spec: {updateStrategy: {type: OnDelete}}, status: {observedGeneration: 1, \
                   desiredNumberScheduled: 1, currentNumberScheduled: 1, numberAvailable: 1, numberReady: READY}}";
    check(&daemons.replace("READY", "1"), Current, "");
    check(&daemons.replace("READY", "0"), InProgress, "0 of 1 pods ready");
    check(
        "{apiVersion: batch/v1, kind: CronJob, spec: {suspend: true}}",
        Current,
        "suspended",
    );
}

#[test]
fn built_in_kinds_say_what_is_wrong_with_them_in_conditions() {
    let object = |version: &str, kind: &str, condition: &str| {
        format!("{{apiVersion: {version}, kind: {kind}, status: {{conditions: [{{{condition}}}]}}}}")
    };
    let aggregated = |condition: &str| object("apiregistration.k8s.io/v1", "APIService", condition);
    check(&aggregated("type: Available, status: 'True'"), Current, "");
    check(
        &aggregated("type: Available, status: 'False', reason: FailedDiscoveryCheck"),
        InProgress,
        "FailedDiscoveryCheck",
    );
    check(
        "{apiVersion: apiregistration.k8s.io/v1, kind: APIService}",
        InProgress,
        "not yet looked at",
    );
    let scaler = |condition: &str| object("autoscaling/v2", "HorizontalPodAutoscaler", condition);
    check(
        &scaler("type: ScalingActive, status: 'False', reason: FailedGetResourceMetric"),
        InProgress,
        "FailedGetResourceMetric",
    );
    check(
        &scaler("type: ScalingActive, status: 'False', reason: ScalingDisabled"),
        Current,
        "",
    );
    check(
        &object(
            "flowcontrol.apiserver.k8s.io/v1",
            "FlowSchema",
            "type: Dangling, status: 'True'",
        ),
        InProgress,
        "Dangling is True",
    );
    check(
        &object("v1", "ReplicationController", "type: ReplicaFailure, status: 'True'"),
        InProgress,
        "ReplicaFailure",
    );
    check(
        "{apiVersion: v1, kind: PersistentVolume, status: {phase: Failed}}",
        Failed,
        "reclamation",
    );
}

fn stateful_set(spec: &str, status: &str) -> String {
    format!("{{apiVersion: apps/v1, kind: StatefulSet, spec: {{{spec}}}, status: {{{status}}}}}")
}

#[test]
fn a_stateful_set_follows_its_update_strategy() {
    check(&stateful_set("updateStrategy: {type: OnDelete}", ""), Current, "");
    check(
        &stateful_set("replicas: 2", "replicas: 1"),
        InProgress,
        "1 of 2 replicas exist",
    );
    check(
        &stateful_set("replicas: 2", "replicas: 2, readyReplicas: 1"),
        InProgress,
        "1 of 2 replicas ready",
    );
    check(
        &stateful_set("replicas: 1", "replicas: 2, readyReplicas: 2"),
        InProgress,
        "wait for termination",
    );
    let partition = "replicas: 3, updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}";
    check(
        &stateful_set(partition, "replicas: 3, readyReplicas: 3, updatedReplicas: 1"),
        InProgress,
        "1 of 2",
    );
    check(
        &stateful_set(partition, "replicas: 3, readyReplicas: 3, updatedReplicas: 2"),
        Current,
        "",
    );
    let two = "replicas: 2, readyReplicas: 2, currentReplicas: 2";
    check(
        &stateful_set("replicas: 2", &format!("{two}, currentRevision: a, updateRevision: b")),
        InProgress,
        "updated",
    );
    check(
        &stateful_set("replicas: 2", &format!("{two}, currentRevision: a, updateRevision: a")),
        Current,
        "",
    );
}

#[test]
fn a_daemon_set_is_current_on_every_node() {
    let set = |status: &str| format!("{{apiVersion: apps/v1, kind: DaemonSet, status: {{{status}}}}}");
    check(&set(""), InProgress, "not seen it");
    check(&set("desiredNumberScheduled: 0"), InProgress, "not seen it");
    let two = "observedGeneration: 1, desiredNumberScheduled: 2, currentNumberScheduled: 2";
    check(&set(two), InProgress, "0 of 2 pods updated");
    check(
        &set(&format!("{two}, updatedNumberScheduled: 2, numberAvailable: 1")),
        InProgress,
        "1 of 2 pods available",
    );
    check(
        &set(&format!(
            "{two}, updatedNumberScheduled: 2, numberAvailable: 2, numberReady: 2"
        )),
        Current,
        "",
    );
    check(&set("observedGeneration: 1, desiredNumberScheduled: 0"), Current, "");
}

#[test]
fn a_replica_set_needs_all_of_its_replicas() {
    let set = |status: &str| {
        format!("{{apiVersion: apps/v1, kind: ReplicaSet, spec: {{replicas: 1}}, status: {{{status}}}}}")
    };
    check(&set(""), InProgress, "0 of 1 replicas labelled");
    check(
        &set("conditions: [{type: ReplicaFailure, status: 'True', message: quota}]"),
        InProgress,
        "quota",
    );
    let one = "fullyLabeledReplicas: 1, availableReplicas: 1, readyReplicas: 1";
    check(&set(&format!("replicas: 1, {one}")), Current, "");
    check(&set(&format!("replicas: 2, {one}")), InProgress, "termination");
}

#[test]
fn a_job_is_current_only_when_it_is_complete() {
    let job = |status: &str| format!("{{apiVersion: batch/v1, kind: Job, status: {{{status}}}}}");
    check(&job(""), InProgress, "not yet started");
    // kstatus says Current here, so a migration would count as done while it still runs.
    check(
        &job("startTime: '2026-01-01T00:00:00Z', active: 1"),
        InProgress,
        "1 active",
    );
    check(&job("conditions: [{type: Complete, status: 'True'}]"), Current, "");
    check(
        &job("conditions: [{type: Suspended, status: 'True'}]"),
        Current,
        "suspended",
    );
    check(
        &job("conditions: [{type: Failed, status: 'True', reason: BackoffLimitExceeded}]"),
        Failed,
        "BackoffLimit",
    );
}

#[test]
fn a_pod_runs_and_is_ready_or_has_ended_well() {
    let pod = |status: &str| format!("{{apiVersion: v1, kind: Pod, status: {{{status}}}}}");
    check(
        &pod("phase: Running, conditions: [{type: Ready, status: 'True'}]"),
        Current,
        "",
    );
    check(&pod("phase: Running"), InProgress, "not yet ready");
    let looping = "phase: Running, containerStatuses: [{name: c, state: {waiting: {reason: CrashLoopBackOff}}}]";
    check(&pod(looping), Failed, "container c: CrashLoopBackOff");
    check(&pod("phase: Succeeded"), Current, "");
    check(
        &pod("phase: Failed, reason: Evicted, message: disk"),
        Failed,
        "Evicted: disk",
    );
    check(&pod("phase: Pending"), InProgress, "pending");
    let no_node =
        "phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: no node}]";
    check(&pod(no_node), InProgress, "no node");
    let pulling = "phase: Pending, containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff}}}]";
    check(&pod(pulling), InProgress, "ImagePullBackOff");
}

#[test]
fn a_pod_says_which_container_keeps_it_and_why() {
    let pod = |status: &str| format!("{{apiVersion: v1, kind: Pod, status: {{{status}}}}}");
    let of = |phase: &str, state: &str| pod(&format!("phase: {phase}, containerStatuses: [{{name: web, {state}}}]"));
    let pulls = "state: {waiting: {reason: ImagePullBackOff, message: 'Back-off pulling image \"nope\"'}}";
    check(
        &of("Pending", pulls),
        InProgress,
        "container web: ImagePullBackOff: Back-off pulling image \"nope\"",
    );
    let config = "state: {waiting: {reason: CreateContainerConfigError, message: 'secret \"a\" not found'}}";
    check(
        &of("Pending", config),
        InProgress,
        "CreateContainerConfigError: secret \"a\" not found",
    );
    check(
        &of("Pending", "state: {waiting: {reason: ContainerCreating}}"),
        InProgress,
        "pending",
    );
    let killed = "lastState: {terminated: {exitCode: 137, reason: OOMKilled}}";
    let loops = format!("state: {{waiting: {{reason: CrashLoopBackOff, message: back-off 5m0s}}}}, {killed}");
    check(
        &of("Running", &loops),
        Failed,
        "container web: CrashLoopBackOff, exit code 137 (OOMKilled)",
    );
    let back = format!("state: {{running: {{}}}}, ready: false, {killed}");
    check(
        &of("Running", &back),
        InProgress,
        "container web runs again after exit code 137 (OOMKilled)",
    );
    check(
        &of("Running", "state: {terminated: {exitCode: 1, reason: Error}}"),
        InProgress,
        "container web: exit code 1",
    );
    check(
        &of(
            "Failed",
            "state: {terminated: {exitCode: 3, reason: Error, message: hunter2}}",
        ),
        Failed,
        "exit code 3",
    );
    check(&of("Failed", ""), Failed, "a container exited with an error");
    // The container that waits says more than the one that has ended.
    let two = "phase: Pending, initContainerStatuses: [{name: fetch, state: {terminated: {exitCode: 1}}}], \
               containerStatuses: [{name: web, state: {waiting: {reason: ErrImagePull}}}]";
    check(&pod(two), InProgress, "container web: ErrImagePull");
    let long = format!(
        "state: {{waiting: {{reason: ErrImagePull, message: {}}}}}",
        "x".repeat(2000)
    );
    let (_, said) = evaluate(&serde_saphyr::from_str(&of("Pending", &long)).unwrap());
    assert!(said.len() < 500, "{said}");
}

#[test]
fn a_cron_job_is_current_whatever_its_jobs_do() {
    let cron = |rest: &str| format!("{{apiVersion: batch/v1, kind: CronJob, {rest}}}");
    check(&cron("spec: {schedule: '* * * * *'}"), Current, "");
    check(&cron("spec: {suspend: true}"), Current, "");
    check(
        &cron("status: {active: [{name: a}], lastScheduleTime: '2026-01-01T00:00:00Z'}"),
        Current,
        "",
    );
}

#[test]
fn claims_services_and_definitions_have_rules_of_their_own() {
    let object = |kind: &str, rest: &str| format!("{{apiVersion: v1, kind: {kind}, {rest}}}");
    check(
        &object("PersistentVolumeClaim", "status: {phase: Pending}"),
        InProgress,
        "bound",
    );
    check(&object("PersistentVolumeClaim", "status: {phase: Bound}"), Current, "");
    check(
        &object("PersistentVolumeClaim", "status: {phase: Lost}"),
        Failed,
        "lost",
    );
    check(&object("Service", "spec: {type: ClusterIP}"), Current, "");
    check(
        &object("Service", "spec: {type: LoadBalancer}"),
        InProgress,
        "cluster IP",
    );
    // The address comes from a controller that many clusters don't have.
    check(
        &object("Service", "spec: {type: LoadBalancer, clusterIP: 10.0.0.1}"),
        Current,
        "",
    );
    let crd = |conditions: &str| {
        format!(
            "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, status: {{conditions: [{conditions}]}}}}"
        )
    };
    check(&crd(""), InProgress, "established");
    check(&crd("{type: Established, status: 'True'}"), Current, "");
    check(
        &crd("{type: Established, status: 'False', reason: Installing}"),
        InProgress,
        "",
    );
    check(
        &crd("{type: Established, status: 'False', reason: Other}"),
        Failed,
        "Other",
    );
    check(
        &crd("{type: NamesAccepted, status: 'False', reason: Conflict}"),
        Failed,
        "Conflict",
    );
}

#[test]
fn any_other_kind_is_as_its_conditions_say() {
    let object = |metadata: &str, status: &str| {
        format!("{{apiVersion: example.com/v1, kind: Boat, metadata: {{{metadata}}}, status: {{{status}}}}}")
    };
    check(&object("", ""), Current, "");
    check(&object("", "conditions: [{type: Ready, status: 'True'}]"), Current, "");
    check(
        &object(
            "",
            "conditions: [{type: Ready, status: 'False', reason: NoWind, message: wait}]",
        ),
        InProgress,
        "NoWind: wait",
    );
    check(
        &object("", "conditions: [{type: Ready, status: Unknown}]"),
        InProgress,
        "Unknown",
    );
    check(
        &object(
            "generation: 3",
            "observedGeneration: 2, conditions: [{type: Ready, status: 'True'}]",
        ),
        InProgress,
        "2 of 3",
    );
    check(
        &object("", "conditions: [{type: Reconciling, status: 'True', reason: Sailing}]"),
        InProgress,
        "Sailing",
    );
    check(
        &object("", "conditions: [{type: Stalled, status: 'True', reason: Leak}]"),
        Failed,
        "Leak",
    );
    check(
        &object(
            "deletionTimestamp: '2026-01-01T00:00:00Z'",
            "conditions: [{type: Stalled, status: 'True'}]",
        ),
        Terminating,
        "deleted",
    );
}

#[test]
fn what_is_no_object_at_all_panics_nobody() {
    for text in [
        "null",
        "[]",
        "{}",
        "{status: [], metadata: 1, kind: 3}",
        "{kind: Pod, apiVersion: v1, status: {conditions: {}}}",
    ] {
        let object: Value = serde_saphyr::from_str(text).unwrap();
        evaluate(&object);
    }
}

/// argo-cd#24958, #28086.
#[test]
fn conditions_of_an_earlier_generation_say_nothing_about_the_present_one() {
    let object = |conditions: &str| {
        format!(
            "{{apiVersion: example.com/v1, kind: Boat, metadata: {{generation: 2}}, status: {{conditions: [{conditions}]}}}}"
        )
    };
    let of = |kind: &str, status: &str, seen: i64| {
        format!("{{type: {kind}, status: '{status}', reason: Said, observedGeneration: {seen}}}")
    };
    check(
        &object(&of("Ready", "True", 1)),
        InProgress,
        "its controller has seen generation 1 of 2",
    );
    check(&object(&of("Ready", "True", 2)), Current, "");
    check(&object(&of("Stalled", "True", 1)), InProgress, "generation 1 of 2");
    check(&object(&of("Stalled", "True", 2)), Failed, "Said");
    check(
        &object(&format!("{}, {}", of("Ready", "True", 2), of("Stalled", "True", 1))),
        Current,
        "",
    );
    // Its controller counts further.
    check(&object(&of("Ready", "True", 7)), Current, "");
}
