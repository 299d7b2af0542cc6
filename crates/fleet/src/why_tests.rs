use farwater_api::{
    AnySource, Cluster, GitRepository, HelmRepository, ServiceDeployment, granted_cluster::GrantedCluster,
    objects::ObjectReport,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::{freeze, summary::NO_CLUSTERS};

/// A service, cluster and source without problems. Each test breaks one or two things.
struct World {
    service: Value,
    source: Value,
    cluster: Value,
    objects: Value,
    /// Status of a rollout, and a member.
    rollout: Option<(Value, Value)>,
}

fn world() -> World {
    World {
        service: json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceDeployment",
            "metadata": {"name": "web", "namespace": "team-a", "generation": 3},
            "spec": {"clusterRef": {"name": "east"}, "targetNamespace": "web",
                     "sourceRef": {"kind": "GitRepository", "name": "infra"}, "path": "apps/web"},
            "status": {"observedGeneration": 3, "assignedRevision": "main@sha1:b", "appliedRevision": "main@sha1:b",
                       "bundleDigest": format!("sha256:{}", "0".repeat(64)),
                       "objects": {"total": 2, "healthy": 2, "progressing": 0, "failed": 0},
                       "conditions": [condition("Ready", "True", "Healthy", "")]}
        }),
        source: json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "GitRepository",
            "metadata": {"name": "infra", "namespace": "team-a"},
            "spec": {"url": "https://git.example.com/infra.git"},
            "status": {"revision": "main@sha1:b", "conditions": [condition("Ready", "True", "Fetched", "")]}
        }),
        cluster: json!({
            "apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "east", "namespace": "team-a"}, "spec": {},
            "status": {"lastHeardTime": "2026-01-01T11:59:58Z", "conditions": [condition("Ready", "True", "Heard", "")]}
        }),
        objects: json!([
            object("Deployment", "web", "Synced", "Current", ""),
            object("Service", "web", "Synced", "Current", "")
        ]),
        rollout: None,
    }
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
           "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn object(kind: &str, name: &str, sync: &str, health: &str, message: &str) -> Value {
    let group = if kind == "Deployment" { "apps" } else { "" };
    json!({"group": group, "version": "v1", "kind": kind, "namespace": "web", "name": name,
           "sync": sync, "health": health, "message": message})
}

fn lookup<T: serde::de::DeserializeOwned>(value: &Value) -> Lookup<T> {
    match value {
        Value::Null => Lookup::Missing,
        Value::String(_) => Lookup::Unreadable,
        value => Lookup::Found(serde_json::from_value(value.clone()).unwrap()),
    }
}

fn as_ref<T>(lookup: &Lookup<T>) -> Lookup<&T> {
    match lookup {
        Lookup::Found(value) => Lookup::Found(value),
        Lookup::Missing => Lookup::Missing,
        Lookup::Unreadable => Lookup::Unreadable,
    }
}

fn seen(cluster: &Value) -> ClusterEvidence {
    let cluster = cluster.clone();
    match cluster["kind"] == "GrantedCluster" {
        true => (&serde_json::from_value::<GrantedCluster>(cluster).unwrap()).into(),
        false => (&serde_json::from_value::<Cluster>(cluster).unwrap()).into(),
    }
}

fn judge(world: &World) -> Finding {
    let service: ServiceDeployment = serde_json::from_value(world.service.clone()).unwrap();
    let source: Lookup<AnySource> = match lookup::<Value>(&world.source) {
        Lookup::Found(source) if source["kind"] == "HelmRepository" => {
            Lookup::Found(serde_json::from_value::<HelmRepository>(source).unwrap().into())
        }
        Lookup::Found(source) => Lookup::Found(serde_json::from_value::<GitRepository>(source).unwrap().into()),
        Lookup::Missing => Lookup::Missing,
        Lookup::Unreadable => Lookup::Unreadable,
    };
    let sources = [(service.spec.source_ref.clone(), source)];
    let cluster: Lookup<ClusterEvidence> = match lookup::<Value>(&world.cluster) {
        Lookup::Found(cluster) => Lookup::Found(seen(&cluster)),
        Lookup::Missing => Lookup::Missing,
        Lookup::Unreadable => Lookup::Unreadable,
    };
    let objects: Lookup<Vec<ObjectReport>> = lookup(&world.objects);
    let turn: Option<(RolloutStatus, Member)> = world.rollout.clone().map(|(rollout, member)| {
        (
            serde_json::from_value(rollout).unwrap(),
            serde_json::from_value(member).unwrap(),
        )
    });
    explain(&Evidence {
        service: &service,
        sources: &sources,
        cluster: as_ref(&cluster),
        objects: match &objects {
            Lookup::Found(objects) => Lookup::Found(objects.as_slice()),
            Lookup::Missing => Lookup::Missing,
            Lookup::Unreadable => Lookup::Unreadable,
        },
        rollout: turn.as_ref().map(|(rollout, member)| Turn {
            set: "webs",
            rollout,
            member,
        }),
        now: "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap(),
    })
}

/// Breaks the world and compares the finding.
fn check(breaks: impl Fn(&mut World), standing: Standing, link: Option<Link>, sentence: &str) {
    let mut world = world();
    breaks(&mut world);
    let finding = judge(&world);
    assert_eq!(
        (finding.standing, finding.link, finding.sentence.as_str()),
        (standing, link, sentence)
    );
}

fn broken(breaks: impl Fn(&mut World), link: Link, sentence: &str) {
    check(breaks, Standing::Broken, Some(link), sentence);
}

fn progressing(breaks: impl Fn(&mut World), link: Link, sentence: &str) {
    check(breaks, Standing::Progressing, Some(link), sentence);
}

#[test]
fn everything_in_order_is_healthy() {
    check(|_| {}, Standing::Healthy, None, "web is healthy at main@sha1:b on east");
}

#[test]
fn a_missing_source_is_the_first_link() {
    broken(
        |w| w.source = Value::Null,
        Link::Source,
        "the GitRepository team-a/infra does not exist",
    );
}

const URL: &str = "https://git.example.com/infra.git";

/// The source has failed for three hours, with this reason and message of the hub.
fn fails(world: &mut World, reason: &str, cause: &str) {
    let message = format!(
        "fetch from {URL}: {cause} (fatal: whatever); do something; main@sha1:b stays in use, unchecked since then"
    );
    world.source["status"]["staleSince"] = json!("2026-01-01T09:00:00Z");
    world.source["status"]["conditions"] = json!([condition("Ready", "False", reason, &message)]);
}

#[test]
fn only_a_silent_server_has_not_answered_and_each_other_cause_has_its_own_sentence_and_command() {
    let check = |reason: &str, cause: &str, sentence: &str, next: NextStep| {
        let mut world = world();
        world.source["spec"]["secretRef"] = json!({"name": "gitcred"});
        fails(&mut world, reason, cause);
        let finding = judge(&world);
        assert_eq!(
            (finding.standing, finding.link),
            (Standing::Broken, Some(Link::Source)),
            "{reason}"
        );
        assert_eq!(
            (finding.sentence, finding.next),
            (format!("{URL} {sentence}; main@sha1:b stays in use"), Some(next))
        );
        assert!(
            finding.evidence[0].contains("fatal: whatever"),
            "{:?}",
            finding.evidence
        );
    };
    let patch = |spec: &str| {
        NextStep::Kubectl(format!(
            "patch gitrepositories infra -n team-a --type merge -p '{{\"spec\":{{{spec}}}}}'"
        ))
    };
    let again = || NextStep::Farwater("wait gitrepository/infra -n team-a --fetch".to_owned());
    check(
        "Unreachable",
        "the server can't be reached",
        "has not answered for 3h",
        again(),
    );
    check("Timeout", "no answer within 60 s", "has not answered for 3h", again());
    check(
        "ServerError",
        "the server failed",
        "can't be fetched for 3h: the server failed",
        again(),
    );
    let login = r#"{"stringData":{"username":"USER","password":"TOKEN"}}"#;
    check(
        "AuthenticationFailed",
        "the server refused the credentials",
        "can't be fetched for 3h: the server refused the credentials",
        NextStep::Kubectl(format!("patch secret gitcred -n team-a --type merge -p '{login}'")),
    );
    check(
        "ReferenceNotFound",
        "branch nobranch does not exist",
        "can't be fetched for 3h: branch nobranch does not exist",
        patch(r#""ref":{"branch":"BRANCH"}"#),
    );
    check(
        "HostNotFound",
        "the name of the server's host is not known",
        "can't be fetched for 3h: the name of the server's host is not known",
        patch(r#""url":"URL""#),
    );
}

#[test]
fn a_reference_that_is_missing_is_corrected_in_the_field_that_is_in_use() {
    let check = |stated: Value, expected: &str| {
        let mut world = world();
        world.source["spec"]["ref"] = stated;
        fails(&mut world, "ReferenceNotFound", "what is followed does not exist");
        let (NextStep::Kubectl(next) | NextStep::Farwater(next) | NextStep::InCluster(next)) =
            judge(&world).next.unwrap();
        assert!(next.contains(expected), "{next}");
    };
    check(Value::Null, r#"{"ref":{"branch":"BRANCH"}}"#);
    check(json!({"branch": "nobranch"}), r#"{"ref":{"branch":"BRANCH"}}"#);
    check(json!({"tag": "v9"}), r#"{"ref":{"tag":"TAG"}}"#);
    check(json!({"semver": "^9"}), r#"{"ref":{"semver":"SEMVER"}}"#);
    check(json!({"pipeline": "shop"}), "pipeline status shop -n team-a");
}

#[test]
fn a_source_without_its_secret_is_told_how_to_get_one() {
    let mut world = world();
    world.source["status"] = json!({"staleSince": "2026-01-01T11:59:00Z",
        "conditions": [condition("Ready", "False", "SecretNotFound", "Secret gitcred does not exist; nothing was fetched yet")]});
    let finding = judge(&world);
    let told = format!("{URL} can't be fetched for 60s: Secret gitcred does not exist; no revision was ever fetched");
    assert_eq!(finding.sentence, told);
    let create = "create secret generic gitcred -n team-a --from-literal=username=USER --from-literal=password=TOKEN";
    assert_eq!(finding.next, Some(NextStep::Kubectl(create.to_owned())));
    fails(
        &mut world,
        "AuthenticationFailed",
        "the server wants credentials and the repository names none",
    );
    let finding = judge(&world);
    let create = "create secret generic NAME -n team-a --from-literal=username=USER --from-literal=password=TOKEN";
    assert_eq!(finding.first, Some(NextStep::Kubectl(create.to_owned())));
    let patch = r#"patch gitrepositories infra -n team-a --type merge -p '{"spec":{"secretRef":{"name":"NAME"}}}'"#;
    assert_eq!(finding.next, Some(NextStep::Kubectl(patch.to_owned())));
}

#[test]
fn a_refused_fetch_is_not_nothing_desired() {
    broken(
        |w| w.source["status"]["conditions"] = json!([condition("Ready", "False", "Unauthorized", "401")]),
        Link::Source,
        "https://git.example.com/infra.git can't be fetched: 401; main@sha1:b stays in use",
    );
}

#[test]
fn a_folder_that_is_missing_is_asked_for_again() {
    let mut world = world();
    let told = "main@sha1:b: apps/web: the source has no such folder; main@sha1:a stays assigned";
    world.service["status"]["conditions"] = stalled("BundleFailed", told);
    let finding = judge(&world);
    assert_eq!(finding.sentence, "the source has no folder \"apps/web\" at main@sha1:b");
    assert_eq!(
        (finding.link, finding.next),
        (
            Some(Link::Source),
            Some(NextStep::Farwater("wait web -n team-a --fetch".into()))
        )
    );
}

#[test]
fn all_that_is_missing_is_named_and_the_first_of_it_made() {
    let mut world = world();
    let told = "Secret regcred does not exist in namespace team-a; Secret database does not exist in namespace team-a";
    world.service["status"]["conditions"] = stalled("SecretNotReady", told);
    let finding = judge(&world);
    assert_eq!(
        (finding.link, finding.sentence.as_str()),
        (Some(Link::Parameters), told)
    );
    let create = "create secret generic regcred -n team-a --from-literal=KEY=VALUE";
    assert_eq!(finding.next, Some(NextStep::Kubectl(create.to_owned())));
    world.service["status"]["conditions"] = stalled("ParametersNotReady", "ConfigMap sizes has no key replicas");
    assert_eq!(
        judge(&world).next,
        Some(NextStep::Farwater("explain parameters web -n team-a".to_owned()))
    );
}

#[test]
fn a_file_that_can_not_be_read_and_refused_objects_are_both_told() {
    let mut world = world();
    let files = "the source can't be read completely: apps/web/x.yaml:5 (document 1): invalid YAML";
    let told =
        format!("main@sha1:b was not applied completely: {files}; 1 of 3 objects not applied: Service web/web: no");
    world.service["status"]["conditions"] = stalled("ApplyFailed", &told);
    world.objects = json!([
        object("Deployment", "web", "Synced", "Failed", "image pull denied"),
        object("Service", "web", "Refused", "Unknown", "services is forbidden"),
        object("ConfigMap", "odd", "Waiting", "Unknown", "waits for its kind"),
    ]);
    let finding = judge(&world);
    assert_eq!((finding.link, finding.sentence.as_str()), (Some(Link::Bundle), files));
    assert_eq!(
        finding.evidence,
        [
            "Service web/web was refused: services is forbidden",
            "Deployment.apps web/web is Failed: image pull denied",
            "ConfigMap web/odd is Waiting: waits for its kind",
        ]
    );
    assert_eq!(finding.next, Some(NextStep::Farwater("plan web -n team-a".to_owned())));
}

#[test]
fn a_source_that_fails_hides_no_other_source_and_nothing_that_fails_in_the_cluster() {
    let mut world = world();
    world.objects[0] = object("Deployment", "web", "Synced", "Failed", "crash");
    world.source = Value::Null;
    let finding = judge(&world);
    assert_eq!(finding.sentence, "the GitRepository team-a/infra does not exist");
    assert_eq!(
        finding.evidence,
        [
            "spec.sourceRef.name is \"infra\"",
            "besides, Deployment.apps web/web has failed: crash"
        ]
    );

    let service: ServiceDeployment = serde_json::from_value(world.service).unwrap();
    let source = |name: &str| SourceReference {
        name: name.to_owned(),
        ..SourceReference::default()
    };
    let sources = ["a", "b", "a"].map(|name| (source(name), Lookup::Missing));
    let finding = explain(&Evidence {
        service: &service,
        sources: &sources,
        cluster: Lookup::Unreadable,
        objects: Lookup::Unreadable,
        rollout: None,
        now: Timestamp::UNIX_EPOCH,
    });
    assert_eq!(finding.sentence, "the GitRepository team-a/a does not exist");
    assert_eq!(finding.evidence[1], "the GitRepository team-a/b does not exist");
    assert_eq!(finding.evidence.len(), 2);
}

#[test]
fn evidence_that_has_no_room_is_counted() {
    let mut world = world();
    let refused = |n: u32| object("Service", &format!("s{n}"), "Refused", "Unknown", "");
    world.objects = (0..9).map(refused).collect();
    let evidence = judge(&world).evidence;
    assert_eq!((evidence.len(), evidence[5].as_str()), (6, "and 3 more"));
}

#[test]
fn no_next_step_is_an_empty_list_of_objects() {
    let mut world = world();
    world.objects = json!([]);
    world.service["status"]["appliedRevision"] = Value::Null;
    let told = "main@sha1:b was not applied completely: apps/web/x.yaml:5 (document 1): invalid YAML";
    world.service["status"]["conditions"] = stalled("ApplyFailed", told);
    let finding = judge(&world);
    assert_eq!((finding.link, finding.sentence.as_str()), (Some(Link::Bundle), told));
    assert_eq!(finding.next, Some(NextStep::Farwater("plan web -n team-a".to_owned())));
    world.service["status"]["conditions"] = reconciling("Progressing", "applying main@sha1:b");
    assert_eq!(
        judge(&world).next,
        Some(NextStep::Farwater("wait web -n team-a".to_owned()))
    );
}

#[test]
fn what_a_service_is_kept_from_is_told_and_what_is_ill_with_what_it_has_is_not() {
    let check = |change: &dyn Fn(&mut Value), expected: Option<&str>| {
        let mut world = world();
        change(&mut world.service);
        let service = serde_json::from_value(world.service).unwrap();
        assert_eq!(refused(&service).as_deref(), expected);
    };
    check(&|_| {}, None);
    check(
        &|service| service["status"]["conditions"] = stalled("Unhealthy", "1 of 2 objects failed"),
        None,
    );
    let told = "main@sha1:c: apps/web: the source has no such folder";
    check(
        &|service| service["status"]["conditions"] = stalled("BundleFailed", told),
        Some(told),
    );
    let frozen = |service: &mut Value| {
        service["status"]["heldRevision"] = json!("main@sha1:c");
        let told = condition(
            "Frozen",
            "True",
            "WindowClosed",
            "ChangeWindow ops/holidays lets no change begin",
        );
        service["status"]["conditions"].as_array_mut().unwrap().push(told);
    };
    check(
        &frozen,
        Some("main@sha1:c is held back: ChangeWindow ops/holidays lets no change begin"),
    );
    // A pin that is not assigned yet is held by the window, and does not hold another version.
    let pinned = |service: &mut Value, assigned: &str| {
        frozen(service);
        service["spec"]["pin"] = json!({"bundle": farwater_api::Digest::of("c")});
        service["status"]["bundleDigest"] = json!(farwater_api::Digest::of(assigned));
        let told = condition("Pinned", "True", "Pinned", "pinned to main@sha1:c by ann");
        service["status"]["conditions"].as_array_mut().unwrap().push(told);
    };
    check(
        &|service| pinned(service, "b"),
        Some("main@sha1:c is held back: ChangeWindow ops/holidays lets no change begin"),
    );
    check(
        &|service| pinned(service, "c"),
        Some("main@sha1:c is held back: pinned to main@sha1:c by ann"),
    );
    let waits = "main@sha1:c waits for the rollout of its set";
    check(
        &|service| {
            service["status"]["heldRevision"] = json!("main@sha1:c");
            let held = condition("RolloutHeld", "True", "NotReleased", waits);
            service["status"]["conditions"].as_array_mut().unwrap().push(held);
        },
        Some(&format!("main@sha1:c is not assigned yet: {waits}")),
    );
}

#[test]
fn a_source_and_a_cluster_are_explained_by_themselves() {
    let now = "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap();
    let mut world = world();
    let reference = SourceReference {
        name: "infra".to_owned(),
        ..SourceReference::default()
    };
    let source = |world: &World| {
        let source: GitRepository = serde_json::from_value(world.source.clone()).unwrap();
        explain_source(&source.into(), &reference, "team-a", now)
    };
    let finding = source(&world);
    assert_eq!(
        (finding.standing, finding.sentence.as_str()),
        (Standing::Healthy, "GitRepository infra serves main@sha1:b")
    );
    fails(&mut world, "Timeout", "no answer within 60 s");
    assert_eq!(source(&world).standing, Standing::Broken);
    let cluster = |world: &World| explain_cluster(&seen(&world.cluster), now);
    let finding = cluster(&world);
    assert_eq!(
        (finding.standing, finding.sentence.as_str()),
        (Standing::Healthy, "the cluster east is ready")
    );
    assert_eq!(finding.evidence, ["heard 2s ago"]);
    world.cluster["status"] = json!({});
    assert_eq!(cluster(&world).sentence, "the cluster east has never joined");
}

#[test]
fn a_granted_cluster_is_explained_by_its_health_alone() {
    let now = "2026-01-01T12:00:00Z".parse::<Timestamp>().unwrap();
    let granted = |status: Value| {
        json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "GrantedCluster",
               "metadata": {"name": "east", "namespace": "team-a"},
               "spec": {"clusterRef": {"name": "east", "namespace": "ops"}}, "status": status})
    };
    let check = |status: Value, sentence: &str, evidence: &[&str]| {
        let mut world = world();
        world.cluster = granted(status);
        let finding = explain_cluster(&seen(&world.cluster), now);
        assert_eq!((finding.sentence.as_str(), finding.next), (sentence, None));
        assert_eq!(finding.evidence, evidence);
        judge(&world)
    };
    let ready = json!({"ready": "True", "connected": true, "lastHeardTime": "2026-01-01T11:59:58Z"});
    let finding = check(ready, "the cluster east is ready", &["heard 2s ago"]);
    assert_eq!((finding.standing, finding.evidence.len()), (Standing::Healthy, 1));

    let silent = json!({"ready": "False", "connected": false, "lastHeardTime": "2026-01-01T11:53:00Z"});
    let asks = "an administrator of the hub sees the cause: farwater why cluster/ops/east";
    let told = "the cluster east is not ready: its agent was last heard 7m ago";
    let finding = check(silent, told, &["workloads there keep running as last reported", asks]);
    assert_eq!((finding.link, finding.sentence.as_str()), (Some(Link::Cluster), told));
    let never = json!({"ready": "Unknown", "connected": false});
    check(
        never,
        "the cluster east is not ready: its agent was not heard yet",
        &[asks],
    );
}

/// A set of three clusters, one of which is not healthy, with a rollout in the given phase.
fn set(phase: &str, conditions: Value) -> Value {
    json!({
        "apiVersion": "farwater.dev/v1alpha1", "kind": "ServiceSet",
        "metadata": {"name": "site", "namespace": "team-a", "generation": 2},
        "spec": {"template": {"spec": {}}},
        "status": {"observedGeneration": 2, "clusters": {"matched": 3, "ready": 2}, "conditions": conditions,
                   "rollout": {"number": 4, "phase": phase, "updated": 1, "waiting": 2}},
    })
}

fn member(cluster: &str, state: &str, progress: &str, standing: &str) -> Value {
    json!({"cluster": format!("team-a/{cluster}"), "service": format!("site-{cluster}"), "state": state, "progress": progress,
           "standing": standing})
}

#[test]
fn a_set_is_explained_by_its_spec_its_rollout_and_its_clusters_in_this_order() {
    let explain = |set: &Value, members: &Value| {
        let set = serde_json::from_value(set.clone()).unwrap();
        let members: Vec<Member> = serde_json::from_value(members.clone()).unwrap();
        explain_set(&SetEvidence {
            set: &set,
            members: &members,
            now: "2026-01-01T12:00:00Z".parse().unwrap(),
        })
    };
    let done = json!([
        member("east", "Ready", "Done", "is done"),
        member("west", "Ready", "Done", "is done")
    ]);
    let ready = json!([condition("Ready", "True", "Healthy", "")]);
    let not_ready = json!([condition("Ready", "False", "Progressing", "healthy on 2 of 3 clusters")]);

    let finding = explain(&set("Complete", ready), &done);
    assert_eq!(
        (finding.standing, finding.sentence.as_str()),
        (Standing::Healthy, "site is healthy on 3 clusters")
    );
    assert_eq!(finding.evidence, ["rollout 4 is Complete"]);

    let ill = json!([
        member("east", "Ready", "Done", "is done"),
        member("west", "Failed", "Done", "is done")
    ]);
    let finding = explain(&set("Complete", not_ready.clone()), &ill);
    assert_eq!(
        (finding.link, finding.sentence.as_str()),
        (Some(Link::Health), "healthy on 1 of 2 clusters")
    );
    assert_eq!(finding.evidence, ["team-a/west has failed"]);
    assert_eq!(
        finding.next,
        Some(NextStep::Farwater("why site-west -n team-a".to_owned()))
    );

    let halted = json!([
        member("west", "Ready", "Waiting", "waits"),
        member("east", "Failed", "Failed", "failed: crashes")
    ]);
    let mut pinned = set(
        "Halted",
        stalled("RolloutHalted", "rollout 4 is halted: team-a/east failed"),
    );
    pinned["spec"]["pin"] = json!({"version": 1, "reason": "slow"});
    let finding = explain(&pinned, &halted);
    assert_eq!(
        (finding.standing, finding.link),
        (Standing::Broken, Some(Link::Rollout))
    );
    assert_eq!(finding.sentence, "rollout 4 is Halted: 1 of 3 clusters are done");
    assert_eq!(
        finding.evidence,
        [
            "pinned to version 1 (slow)",
            "team-a/east failed: crashes",
            "team-a/west waits"
        ]
    );
    assert_eq!(
        finding.next,
        Some(NextStep::Farwater("why site-east -n team-a".to_owned()))
    );

    let pending = "pending: its selector env=prod selects no cluster that this namespace may deploy to";
    let finding = explain(
        &set("Complete", json!([condition("Ready", "False", NO_CLUSTERS, pending)])),
        &json!([]),
    );
    assert_eq!(
        (finding.standing, finding.link),
        (Standing::Progressing, Some(Link::Placement))
    );
    assert_eq!(finding.sentence, pending);

    let mut wrong = set("Complete", not_ready);
    wrong["status"]["errors"] = json!([{"cluster": "team-a/north", "message": "no region"}]);
    let finding = explain(&wrong, &done);
    assert_eq!(
        (finding.link, finding.sentence.as_str()),
        (Some(Link::Placement), "team-a/north: no region")
    );
    assert_eq!(
        finding.next,
        Some(NextStep::Farwater("plan serviceset/site -n team-a".to_owned()))
    );
}

#[test]
fn a_source_before_its_first_fetch_is_progressing() {
    progressing(
        |w| w.source["status"] = json!({}),
        Link::Source,
        "https://git.example.com/infra.git has not been fetched yet",
    );
}

/// Not ready, for a reason that doesn't end by itself.
fn stalled(reason: &str, message: &str) -> Value {
    json!([
        condition("Ready", "False", reason, message),
        condition("Stalled", "True", reason, message)
    ])
}

/// Not ready, but in progress.
fn reconciling(reason: &str, message: &str) -> Value {
    json!([
        condition("Ready", "False", reason, message),
        condition("Reconciling", "True", reason, message)
    ])
}

#[test]
fn a_closure_error_is_the_bundles() {
    let message = "main@sha1:b: apps/web/kustomization.yaml:3: ../../.. leaves the repository.";
    broken(
        |w| w.service["status"]["conditions"] = stalled("BundleFailed", message),
        Link::Bundle,
        "the bundle of \"apps/web\" can't be built: main@sha1:b: apps/web/kustomization.yaml:3: ../../.. leaves the repository",
    );
}

#[test]
fn a_lost_grant_is_named_before_the_objects() {
    let breaks = |w: &mut World| {
        w.service["status"]["conditions"] = stalled("NotGranted", "no grant of east for team-a");
        w.objects = json!([object("Deployment", "web", "Synced", "Failed", "crash")]);
    };
    broken(
        breaks,
        Link::Placement,
        "the service is held: no grant of east for team-a",
    );
}

#[test]
fn a_suspended_service_is_held() {
    let held = json!([condition("Ready", "Unknown", "Held", "held: the service is suspended")]);
    broken(
        |w| w.service["status"]["conditions"] = held.clone(),
        Link::Placement,
        "the service is held: the service is suspended",
    );
}

#[test]
fn a_suspension_is_told_with_its_end_its_author_and_the_way_out() {
    let mut world = world();
    let told = "held: the service is suspended until 2026-01-01T13:00:00Z: a move";
    world.service["spec"]["suspend"] = json!(true);
    world.service["status"]["suspendedBy"] = json!("ann");
    world.service["status"]["heldRevision"] = json!("main@sha1:c");
    world.service["status"]["conditions"] = json!([condition("Ready", "Unknown", "Held", told)]);
    let finding = judge(&world);
    assert_eq!(finding.sentence, format!("the service is {told}"));
    let revisions = "assigned main@sha1:b, applied main@sha1:b, held back main@sha1:c";
    assert_eq!(finding.evidence, ["suspended by ann", revisions]);
    assert_eq!(
        finding.next,
        Some(NextStep::Farwater("resume web -n team-a".to_owned()))
    );
}

/// A person who mends the source still has to resume the service.
#[test]
fn a_suspension_is_told_beside_a_broken_source() {
    let told = "the service is suspended until 2026-01-01T13:00:00Z: a move";
    let mut world = world();
    world.source = Value::Null;
    world.service["spec"]["suspend"] = json!(true);
    world.service["spec"]["suspension"] = json!({"until": "2026-01-01T13:00:00Z", "reason": "a move"});
    let finding = judge(&world);
    assert_eq!(finding.sentence, "the GitRepository team-a/infra does not exist");
    assert_eq!(finding.evidence[0], told);

    let service: ServiceDeployment = serde_json::from_value(world.service.clone()).unwrap();
    let at = |time: &str, sentence: &str| with_suspension(&service, sentence.to_owned(), time.parse().unwrap());
    let during = "2026-01-01T12:00:00Z";
    assert_eq!(at(during, "no branch main"), format!("no branch main; {told}"));
    assert_eq!(at(during, &format!("held: {told}")), format!("held: {told}"));
    assert_eq!(at("2026-01-01T13:00:00Z", "no branch main"), "no branch main");
}

#[test]
fn a_pinned_service_is_well_without_its_source_and_says_that_it_is_pinned() {
    let pinned = "pinned to main@sha1:b by ann (c crashes); main@sha1:c is held back";
    let mut world = world();
    world.source = Value::Null;
    world.service["spec"]["pin"] = json!({"bundle": format!("sha256:{}", "0".repeat(64))});
    world.service["status"]["conditions"] = json!([
        condition("Ready", "True", "Applied", ""),
        condition("Pinned", "True", "Pinned", pinned)
    ]);
    let finding = judge(&world);
    assert_eq!(
        (finding.standing, finding.evidence[0].as_str()),
        (Standing::Healthy, pinned)
    );
    world.objects = json!([object("Deployment", "web", "Synced", "Failed", "crash")]);
    let finding = judge(&world);
    assert_eq!(
        (finding.link, finding.evidence[0].as_str()),
        (Some(Link::Health), pinned)
    );

    // Before the hub has described the pin, the assigned version gives it a name.
    let mut world = self::world();
    world.service["spec"]["pin"] = json!({"bundle": farwater_api::Digest::of("b")});
    world.service["status"]["bundleDigest"] = json!(farwater_api::Digest::of("b"));
    assert_eq!(judge(&world).evidence[0], "pinned to main@sha1:b");
}

#[test]
fn a_dependency_that_is_missing_or_ill_is_what_a_service_waits_for() {
    let told = "main@sha1:c waits for service database, which does not exist; main@sha1:b stays assigned";
    let reason = "DependencyNotReady";
    progressing(
        |w| w.service["status"]["conditions"] = reconciling(reason, told),
        Link::Dependencies,
        told,
    );
    let told = "it depends on itself: web → database → web; main@sha1:b stays assigned";
    broken(
        |w| w.service["status"]["conditions"] = stalled("DependencyCycle", told),
        Link::Dependencies,
        told,
    );
    let held = "removal is held: api depends on it and goes first";
    let delete = |w: &mut World| {
        w.service["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:00Z");
        w.service["status"]["conditions"] = reconciling("Removing", held);
    };
    progressing(
        delete,
        Link::Dependencies,
        &format!("the service is being deleted for 60s; {held}"),
    );
}

#[test]
fn the_hubs_word_about_an_older_spec_is_no_answer() {
    let breaks = |w: &mut World| {
        w.service["metadata"]["generation"] = json!(4);
        w.service["status"]["conditions"] = stalled("NotGranted", "no grant");
    };
    progressing(
        breaks,
        Link::Bundle,
        "the hub has not assigned a bundle for this spec yet",
    );
}

#[test]
fn a_spec_that_the_hub_has_not_seen_is_progressing() {
    progressing(
        |w| w.service["metadata"]["generation"] = json!(4),
        Link::Bundle,
        "the hub has not assigned a bundle for this spec yet",
    );
}

#[test]
fn a_cluster_that_never_joined_is_told_how() {
    let mut world = world();
    world.cluster["status"] = json!({});
    let finding = judge(&world);
    assert_eq!(finding.sentence, "the cluster east has never joined");
    assert_eq!(
        finding.next,
        Some(NextStep::Farwater("cluster join east -n team-a".to_owned()))
    );
}

#[test]
fn a_silent_cluster_hides_what_its_objects_said() {
    let breaks = |w: &mut World| {
        w.cluster["status"] = json!({"lastHeardTime": "2026-01-01T11:53:00Z",
            "conditions": [condition("Ready", "False", "Silent", "")]});
        w.objects = json!([object("Deployment", "web", "Synced", "Failed", "crash")]);
    };
    broken(
        breaks,
        Link::Cluster,
        "the hub has not heard from the cluster east for 7m",
    );
}

#[test]
fn a_missing_cluster_is_named() {
    broken(
        |w| w.cluster = Value::Null,
        Link::Cluster,
        "the cluster \"east\" does not exist",
    );
}

#[test]
fn a_report_about_an_older_entry_is_not_todays_health() {
    let breaks = |w: &mut World| {
        w.service["status"]["conditions"] = reconciling("WaitingForAgent", "waits for the agent");
        w.objects = json!([object("Deployment", "web", "Synced", "Failed", "crash")]);
    };
    progressing(breaks, Link::Agent, "the agent has not reported on main@sha1:b yet");
}

#[test]
fn a_refused_object_is_named_with_its_reason() {
    let breaks = |w: &mut World| {
        w.objects[1] = object("Service", "web", "Refused", "Unknown", "services is forbidden");
        w.service["status"]["conditions"] = stalled("ApplyFailed", "");
    };
    broken(
        breaks,
        Link::Objects,
        "Service web/web was refused: services is forbidden",
    );
}

#[test]
fn what_others_wait_for_is_named_rather_than_who_waits() {
    let waits = object("Deployment", "web", "Waiting", "Unknown", "waits for Service web/web");
    progressing(
        |w| w.objects[0] = waits.clone(),
        Link::Objects,
        "Deployment.apps web/web waits for Service web/web",
    );
    broken(
        |w| {
            w.objects = json!([
                waits,
                object("Job", "migrate", "Synced", "Failed", "BackoffLimitExceeded")
            ])
        },
        Link::Health,
        "Job web/migrate has failed: BackoffLimitExceeded",
    );
}

#[test]
fn a_wave_that_waits_names_what_holds_it() {
    let waits = |name: &str| {
        let mut waits = object(
            "Deployment",
            name,
            "Waiting",
            "Unknown",
            "waits for wave 0: Job web/migrate is not ready",
        );
        waits["waitsFor"] = json!({"version": "v1", "kind": "Job", "namespace": "web", "name": "migrate"});
        waits
    };
    let mut world = world();
    world.objects = json!([
        waits("a"),
        waits("b"),
        object("Job", "migrate", "Synced", "InProgress", "")
    ]);
    let finding = judge(&world);
    assert_eq!(
        finding.sentence,
        "Deployment.apps web/a waits for wave 0: Job web/migrate is not ready"
    );
    assert_eq!(
        finding.next,
        Some(NextStep::InCluster("describe job migrate -n web".into()))
    );
    for (sync, health, sentence) in [
        ("Synced", "Failed", "Job web/migrate has failed: why"),
        ("Refused", "Unknown", "Job web/migrate was refused: why"),
    ] {
        world.objects = json!([waits("a"), waits("b"), object("Job", "migrate", sync, health, "why")]);
        let finding = judge(&world);
        assert_eq!(finding.sentence, sentence);
        assert_eq!(finding.evidence[0], "2 objects of later waves wait for it");
    }
}

#[test]
fn a_failed_object_wins_over_one_in_progress() {
    let mut world = world();
    world.objects = json!([
        object("Service", "web", "Synced", "InProgress", ""),
        object("Deployment", "web", "Synced", "Failed", "image pull denied"),
    ]);
    let finding = judge(&world);
    assert_eq!(
        finding.sentence,
        "Deployment.apps web/web has failed: image pull denied"
    );
    assert_eq!(finding.evidence, ["Service web/web is InProgress"]);
    assert_eq!(
        finding.next,
        Some(NextStep::InCluster("describe deployment.apps web -n web".to_owned()))
    );
}

#[test]
fn a_held_prune_comes_with_the_command_that_approves_it() {
    let mut world = world();
    let digest = format!("sha256:{}", "1".repeat(64));
    world.service["status"]["heldPrune"] = json!({"digest": digest, "reason": "a Namespace is among them", "count": 1,
        "objects": [{"version": "v1", "kind": "Namespace", "name": "web"}]});
    let finding = judge(&world);
    assert_eq!(finding.link, Some(Link::Prune));
    assert_eq!(
        finding.sentence,
        "the deletion of 1 object waits for your approval: a Namespace is among them"
    );
    assert_eq!(finding.evidence, ["would delete Namespace web"]);
    assert_eq!(
        finding.next,
        Some(NextStep::Farwater("approve web -n team-a".to_owned()))
    );
    world.service["metadata"]["annotations"] = json!({"farwater.dev/propose-prune": digest});
    world.service["status"]["pruneProposedBy"] = "ada".into();
    assert_eq!(
        judge(&world).evidence,
        ["ada proposed to approve it", "would delete Namespace web"]
    );
    // Deletions are frozen in the fleet, so an approval would change nothing.
    world.service["status"]["conditions"] = json!([condition("PruneHeld", "True", "FleetFrozen", "")]);
    let finding = judge(&world);
    assert_eq!(
        finding.sentence,
        "the deletion of 1 object waits: a Namespace is among them"
    );
    assert_eq!(finding.evidence[0], freeze::LOOK_FIRST);
    let release = "annotate namespace farwater-admin farwater.dev/freeze-prunes-".to_owned();
    assert_eq!(finding.next, Some(NextStep::Kubectl(release)));
}

#[test]
fn what_may_not_be_read_is_not_taken_for_missing() {
    let mut world = world();
    world.source = json!("403");
    world.cluster = json!("403");
    let finding = judge(&world);
    assert_eq!(finding.standing, Standing::Healthy);
    assert!(
        finding
            .evidence
            .contains(&"you may not read the cluster, so it is left out of this answer".to_owned())
    );
}

#[test]
fn a_deletion_waits_for_a_cluster_that_may_be_silent() {
    let delete = |w: &mut World| w.service["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:00Z");
    progressing(
        delete,
        Link::Agent,
        "the service is being deleted for 60s; the agent has not yet confirmed that it released its objects",
    );
    let held = |w: &mut World| {
        delete(w);
        w.service["metadata"]["finalizers"] = json!(["example.com/audit"]);
    };
    let told = "the service is being deleted for 60s; it is held by finalizer example.com/audit, until the program that set it takes it off";
    progressing(held, Link::Agent, told);
    let silent = |w: &mut World| {
        delete(w);
        w.cluster["status"]["conditions"] = json!([condition("Ready", "Unknown", "Silent", "")]);
        w.cluster["status"]["lastHeardTime"] = json!("2026-01-01T10:00:00Z");
    };
    broken(
        silent,
        Link::Cluster,
        "the hub has not heard from the cluster east for 2h",
    );
    let mut world = world();
    silent(&mut world);
    world.service["spec"]["deletionPolicy"] = json!("Delete");
    let evidence = judge(&world).evidence;
    let names_it = |line: &String| line.contains("spec.deletionPolicy to Orphan or delete the Cluster");
    assert!(evidence.iter().any(names_it), "{evidence:?}");
}

#[test]
fn without_reasons_in_the_objects_the_hubs_word_counts() {
    broken(
        |w| w.service["status"]["conditions"] = stalled("ApplyFailed", "the bundle is empty"),
        Link::Health,
        "the bundle is empty",
    );
}

#[test]
fn an_apply_that_goes_on_is_no_failure() {
    let breaks = |w: &mut World| {
        w.service["status"]["conditions"] = reconciling("Progressing", "applying main@sha1:b");
        w.objects = json!([]);
    };
    progressing(breaks, Link::Health, "applying main@sha1:b");
}

#[test]
fn a_hook_that_failed_comes_before_what_waits_for_it() {
    let breaks = |w: &mut World| {
        let message = "a hook of main@sha1:b failed: PreSync hook Job.batch web/migrate failed: exit code 3";
        w.service["status"]["conditions"] = json!([condition("Ready", "False", "HookFailed", message)]);
        w.service["status"]["hooks"] = json!({"running": 0, "succeeded": 1, "failed": 1});
        w.objects[0] = object(
            "Deployment",
            "web",
            "Waiting",
            "Unknown",
            "waits for a hook: PreSync hook failed",
        );
    };
    broken(
        breaks,
        Link::Hooks,
        "a hook of main@sha1:b failed: PreSync hook Job.batch web/migrate failed: exit code 3",
    );
    let mut world = world();
    breaks(&mut world);
    let finding = judge(&world);
    assert_eq!(finding.evidence[0], "hooks and tests: 1 failed, 1 succeeded");
    assert!(matches!(finding.next, Some(NextStep::Farwater(next)) if next == "hooks web -n team-a"));
}

#[test]
fn a_service_whose_turn_has_not_come_says_in_which_rollout() {
    let turn = |phase: &str, progress: &str, standing: &str| {
        let rollout = json!({"number": 3, "phase": phase, "haltedBy": if phase == "Halted" { json!("team-a/west") } else { Value::Null }});
        Some((
            rollout,
            json!({"cluster": "team-a/east", "state": "Ready", "step": "rest", "standing": standing, "progress": progress}),
        ))
    };
    progressing(
        |world| {
            world.rollout = turn(
                "Progressing",
                "Waiting",
                "waits for step canary: team-a/west is not done",
            )
        },
        Link::Rollout,
        "the running version is healthy, and a newer version waits: rollout 3 of ServiceSet webs is Progressing, step rest: it \
         waits for step canary: team-a/west is not done",
    );
    broken(
        |world| {
            world.rollout = turn(
                "Halted",
                "Waiting",
                "waits: the rollout is halted, since team-a/west failed",
            )
        },
        Link::Rollout,
        "the running version is healthy, and a newer version waits: rollout 3 of ServiceSet webs is Halted, step rest: it waits: \
         the rollout is halted, since team-a/west failed",
    );
    // The service has the newer version already, or a person keeps it from it.
    progressing(
        |world| world.rollout = turn("Progressing", "Soaking", "is healthy and soaks"),
        Link::Rollout,
        "the running version is healthy, but has not completed its rollout: rollout 3 of ServiceSet webs is Progressing, step rest: it \
         is healthy and soaks",
    );
    progressing(
        |world| world.rollout = turn("Progressing", "Still", "is skipped"),
        Link::Rollout,
        "the running version is healthy, and a newer version is not released to it: rollout 3 of ServiceSet webs is Progressing, step rest: it \
         is skipped",
    );
    // A problem of the running version comes first.
    broken(
        |world| {
            world.rollout = turn("Progressing", "Progressing", "is on its way");
            world.source = Value::Null;
        },
        Link::Source,
        "the GitRepository team-a/infra does not exist",
    );
    let mut done = world();
    done.rollout = turn("Progressing", "Done", "is done");
    assert_eq!(judge(&done).standing, Standing::Healthy);
}

#[test]
fn what_waits_for_a_change_window_is_told_once_all_else_is_in_order() {
    let told = "ChangeWindow ops/holidays lets no change begin until 2027-01-04T06:00:00Z: holidays";
    let freeze = |world: &mut World| {
        let conditions = world.service["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(condition("Frozen", "True", "WindowClosed", told));
        world.service["status"]["heldRevision"] = "main@sha1:c".into();
    };
    progressing(
        freeze,
        Link::Window,
        &format!("the running version is healthy, and main@sha1:c waits: {told}"),
    );
    let next = |breaks: &dyn Fn(&mut World)| {
        let mut world = world();
        freeze(&mut world);
        breaks(&mut world);
        let finding = judge(&world);
        (
            finding.link,
            finding.evidence.first().cloned().unwrap_or_default(),
            finding.next,
        )
    };
    let override_it = |what: &str| {
        Some(NextStep::Farwater(format!(
            "freeze --override {what} -n team-a --reason TEXT"
        )))
    };
    let revisions = "assigned main@sha1:b, applied main@sha1:b, held back main@sha1:c".to_owned();
    assert_eq!(next(&|_| ()), (Some(Link::Window), revisions, override_it("web")));
    let member = json!({
        "cluster": "team-a/east", "state": "Ready", "step": "rest", "standing": "waits", "progress": "Waiting",
    });
    let rollout = json!({"number": 3, "phase": "Progressing"});
    let (.., of_set) = next(&|world| world.rollout = Some((rollout.clone(), member.clone())));
    assert_eq!(of_set, override_it("serviceset/webs"));
    let (link, evidence, _) = next(&|world| world.objects[0]["health"] = "Failed".into());
    assert_eq!(
        (link, evidence),
        (Some(Link::Health), told.to_owned()),
        "its fix may be what waits"
    );
    progressing(
        |world| {
            freeze(world);
            world.service["status"]
                .as_object_mut()
                .unwrap()
                .remove("assignedRevision");
        },
        Link::Window,
        &format!("the first version waits: {told}"),
    );
}
