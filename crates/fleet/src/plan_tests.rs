use std::sync::Arc;

use farwater_api::{
    apply_options::ApplyOptions,
    protocol::{Ceiling, ServiceAccount},
};
use proptest::prelude::*;

use super::namespaces::creates_namespace;
use super::*;
use crate::{ownership::owner_annotation, prune::Verdict, transfer::Holdings};

#[path = "plan/engine_tests.rs"]
mod engine;

const UID: &str = "uid-1";

fn ceiling() -> Ceiling {
    Ceiling {
        service_account: ServiceAccount {
            namespace: "n".into(),
            name: "a".into(),
        },
        target_namespaces: None,
        allowed_kinds: None,
        denied_kinds: None,
    }
}

fn scopes() -> Scopes {
    [
        ("", "v1", "ConfigMap", Scope::Namespaced),
        ("", "v1", "Secret", Scope::Namespaced),
        ("", "v1", "ServiceAccount", Scope::Namespaced),
        ("", "v1", "Namespace", Scope::Cluster),
        ("apps", "v1", "Deployment", Scope::Namespaced),
        ("apps", "v1", "StatefulSet", Scope::Namespaced),
        ("batch", "v1", "Job", Scope::Namespaced),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", Scope::Cluster),
    ]
    .into_iter()
    .map(|(group, version, kind, scope)| {
        (
            GroupVersionKind {
                group: group.into(),
                version: version.into(),
                kind: kind.into(),
            },
            scope,
        )
    })
    .collect()
}

/// Objects as YAML documents, resolved for the target namespace `web`.
fn resolved_under(ceiling: &Ceiling, documents: &[&str], errors: &[&str]) -> Resolved {
    let objects = documents.iter().enumerate().map(|(n, text)| RenderedObject {
        manifest: serde_saphyr::from_str(text).unwrap(),
        origin: format!("file-{n}"),
    });
    let render = Render {
        objects: objects.collect(),
        errors: errors.iter().map(|e| (*e).to_owned()).collect(),
    };
    let options = ApplyOptions::default();
    resolve(
        render,
        UID,
        Terms {
            target_namespace: "web",
            ceiling,
            options: &options,
        },
        &scopes(),
    )
}

fn resolved(documents: &[&str]) -> Resolved {
    resolved_under(&ceiling(), documents, &[])
}

fn map(name: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}")
}

fn maps(names: std::ops::Range<usize>) -> Vec<String> {
    names.map(|n| map(&format!("m{n}"))).collect()
}

fn resolved_maps(names: std::ops::Range<usize>) -> Resolved {
    let maps = maps(names);
    resolved(&maps.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A cluster in which a source was applied without any problem.
#[derive(Clone, Default)]
struct Cluster {
    inventory: Inventory,
    live: BTreeMap<ObjectKey, Live>,
    services: BTreeMap<String, String>,
    cooling: Cooling,
    transfers: Transfers,
}

impl Cluster {
    fn after(resolved: &Resolved) -> Self {
        let mut cluster = Self::default();
        for object in &resolved.objects {
            let key = object.key();
            let uid = format!("uid of {key}");
            let fields = Some(Digest::of("fields"));
            let entry = InventoryEntry {
                object: object.object.clone(),
                uid: Some(uid.clone()),
                hash: Some(object.hash),
                fields,
                adopted: false,
                doomed: false,
                done: false,
                incomplete: false,
                overruled: Vec::new(),
            };
            cluster.inventory.entries.insert(key.clone(), entry);
            let owner = Some(owner_annotation(UID, &key));
            let live = LiveObject {
                uid,
                owner,
                fields,
                ..LiveObject::default()
            };
            cluster.live.insert(key, Live::Present(live));
        }
        cluster.inventory.baseline = cluster.inventory.entries.len();
        cluster
    }

    fn plan(&self, resolved: &Resolved) -> Plan {
        let mut live = self.live.clone();
        for object in &resolved.objects {
            live.entry(object.key()).or_insert(Live::Absent);
        }
        plan(&self.input(resolved, &live))
    }

    fn input<'a>(&'a self, resolved: &'a Resolved, live: &'a BTreeMap<ObjectKey, Live>) -> PlanInput<'a> {
        PlanInput {
            service_uid: UID,
            prune: true,
            approved_prune: None,
            resolved,
            inventory: &self.inventory,
            live,
            services: &self.services,
            cooling: &self.cooling,
            target_namespace_exists: Some(true),
            hold_prune: None,
            origin: None,
            transfers: &self.transfers,
        }
    }

    fn object(&mut self, name: &str) -> &mut LiveObject {
        match self
            .live
            .iter_mut()
            .find(|(key, _)| key.name() == name)
            .map(|(_, live)| live)
        {
            Some(Live::Present(live)) => live,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn set(&mut self, name: &str, live: Live) {
        let key = self.live.keys().find(|key| key.name() == name).unwrap().clone();
        self.live.insert(key, live);
    }
}

fn changes(plan: &Plan) -> Vec<(String, Cause)> {
    plan.waves
        .iter()
        .flat_map(|w| &w.changes)
        .map(|c| (c.object.name().to_owned(), c.cause))
        .collect()
}

fn skips(plan: &Plan) -> Vec<(String, String)> {
    plan.skipped
        .iter()
        .map(|s| (s.object.name.clone(), s.reason.to_string()))
        .collect()
}

fn deletes(plan: &Plan) -> Vec<&str> {
    plan.prune.candidates.iter().map(|c| c.object.name.as_str()).collect()
}

#[test]
fn what_is_as_desired_is_not_sent_again() {
    let source = resolved_maps(0..3);
    let plan = Cluster::after(&source).plan(&source);
    assert_eq!(plan.unchanged.len(), 3);
    assert!(plan.waves.is_empty() && plan.skipped.is_empty() && plan.prune.verdict == Verdict::Nothing);
}

#[test]
fn what_is_missing_is_created_and_what_differs_is_updated() {
    let source = resolved_maps(0..2);
    assert_eq!(
        changes(&Cluster::default().plan(&source)),
        [("m0".into(), Cause::Create), ("m1".into(), Cause::Create)]
    );
    let mut cluster = Cluster::after(&source);
    cluster.set("m0", Live::Absent);
    let changed = resolved(&[
        &map("m0"),
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: m1}, data: {a: b}}",
    ]);
    assert_eq!(
        changes(&cluster.plan(&changed)),
        [("m0".into(), Cause::Restore), ("m1".into(), Cause::Update)]
    );
}

#[test]
fn a_job_that_is_done_and_gone_is_not_made_again_before_it_changes() {
    let source = resolved_maps(0..1);
    let mut cluster = Cluster::after(&source);
    cluster.set("m0", Live::Absent);
    cluster
        .inventory
        .entries
        .values_mut()
        .for_each(|entry| entry.done = true);
    let plan = cluster.plan(&source);
    assert_eq!((plan.unchanged.len(), changes(&plan).len()), (1, 0));
    let changed = resolved(&["{apiVersion: v1, kind: ConfigMap, metadata: {name: m0}, data: {a: b}}"]);
    assert_eq!(changes(&cluster.plan(&changed)), [("m0".into(), Cause::Create)]);
}

#[test]
fn a_job_that_goes_by_itself_never_runs_twice_for_one_manifest() {
    let job = |spec: &str, image: &str| {
        let pod = format!("{{spec: {{containers: [{{name: a, image: {image}}}]}}}}");
        resolved(&[&format!(
            "{{apiVersion: batch/v1, kind: Job, metadata: {{name: a}}, spec: {{{spec} template: {pod}}}}}"
        )])
    };
    let source = job("ttlSecondsAfterFinished: 0,", "x");
    let mut cluster = Cluster::after(&source);
    cluster.set("a", Live::Absent);
    // Nobody saw it, also where the agent was away.
    assert_eq!(
        (
            cluster.plan(&source).unchanged.len(),
            changes(&cluster.plan(&source)).len()
        ),
        (1, 0)
    );
    let changed = job("ttlSecondsAfterFinished: 0,", "y");
    assert_eq!(changes(&cluster.plan(&changed)), [("a".into(), Cause::Create)]);
    // Somebody deleted it while it ran.
    cluster
        .inventory
        .entries
        .values_mut()
        .for_each(|entry| entry.incomplete = true);
    assert_eq!(changes(&cluster.plan(&source)), [("a".into(), Cause::Restore)]);
    let stays = job("", "x");
    let mut cluster = Cluster::after(&stays);
    cluster.set("a", Live::Absent);
    assert_eq!(changes(&cluster.plan(&stays)), [("a".into(), Cause::Restore)]);
}

#[test]
fn a_live_object_that_lost_fields_or_marks_has_drifted() {
    let source = resolved_maps(0..3);
    let mut cluster = Cluster::after(&source);
    cluster.object("m0").fields = Some(Digest::of("others"));
    cluster.object("m1").owner = None;
    cluster.object("m2").fields = None;
    assert!(
        changes(&cluster.plan(&source))
            .iter()
            .all(|(_, cause)| *cause == Cause::Drift)
    );
    assert_eq!(changes(&cluster.plan(&source)).len(), 3);
}

#[test]
fn an_object_that_is_fought_over_waits_and_holds_no_prune() {
    let source = resolved_maps(0..3);
    let mut cluster = Cluster::after(&source);
    cluster.object("m0").fields = None;
    let key = source.objects[0].key();
    cluster.cooling.insert(key, None);
    let plan = cluster.plan(&resolved_maps(0..2));
    assert!(skips(&plan)[0].1.starts_with("something else keeps changing it back: "));
    assert_eq!((deletes(&plan), &plan.prune.verdict), (vec!["m2"], &Verdict::Delete));
}

#[test]
fn who_fights_is_named_with_when_and_what_to_do() {
    let check = |operation: &str, subresource: Option<&str>, time: Option<&str>, expected: &str| {
        let writer = Writer {
            manager: "kube-controller-manager".into(),
            operation: operation.into(),
            subresource: subresource.map(str::to_owned),
            time: time.map(str::to_owned),
        };
        let text = Wait::Fight(Some(Box::new(writer))).to_string();
        let (said, remedy) = text.split_once(": ").unwrap();
        assert_eq!(said, format!("kube-controller-manager{expected}"));
        assert!(remedy.contains("farwater.dev/ignore-differences") && remedy.contains("farwater.dev/drift: Report"));
        // A plan shows at most this much of a reason.
        assert!(text.len() <= 256, "{text}");
    };
    let time = "2026-11-23T02:41:09Z";
    check(
        "Update",
        Some("scale"),
        Some(time),
        " (scale) keeps changing it back (last at 2026-11-23T02:41:09Z)",
    );
    check(
        "Update",
        None,
        Some(time),
        " keeps changing it back (last at 2026-11-23T02:41:09Z)",
    );
    check("Apply", None, None, " (Apply) keeps changing it back");
}

#[test]
fn the_stages_come_in_order_and_name_what_they_need() {
    let crd = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: boats.x.io},
        spec: {group: x.io, scope: Namespaced, names: {kind: Boat}, versions: [{name: v1}]}}";
    let source = resolved(&[
        "{apiVersion: x.io/v1, kind: Boat, metadata: {name: ark, namespace: sea}}",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}",
        &map("m"),
        crd,
        "{apiVersion: v1, kind: Namespace, metadata: {name: sea}}",
    ]);
    let plan = Cluster::default().plan(&source);
    let stages: Vec<Stage> = plan.waves.iter().map(|w| w.stage).collect();
    let in_order = [
        Stage::Namespaces,
        Stage::Definitions,
        Stage::Foundations,
        Stage::Workloads,
        Stage::Rest,
    ];
    assert_eq!(stages, in_order);
    let boat = plan
        .waves
        .iter()
        .flat_map(|w| &w.changes)
        .find(|c| c.object.name() == "ark")
        .unwrap();
    let needs: Vec<String> = boat.needs.iter().map(ToString::to_string).collect();
    assert_eq!(
        needs,
        [
            "CustomResourceDefinition.apiextensions.k8s.io boats.x.io",
            "Namespace sea"
        ]
    );
}

#[test]
fn an_unknown_kind_waits_and_its_objects_are_not_pruned() {
    let source = resolved_maps(0..2);
    let mut cluster = Cluster::after(&source);
    let boat = ObjectRef {
        group: "x.io".into(),
        version: "v1".into(),
        kind: "Boat".into(),
        namespace: "web".into(),
        name: "ark".into(),
    };
    let entry = InventoryEntry {
        object: boat.clone(),
        uid: None,
        hash: None,
        fields: None,
        adopted: false,
        doomed: false,
        done: false,
        incomplete: false,
        overruled: Vec::new(),
    };
    cluster.inventory.entries.insert(ObjectKey::from(&boat), entry);
    cluster.live.insert(ObjectKey::from(&boat), Live::Absent);
    let plan = cluster.plan(&resolved(&[
        &map("m0"),
        &map("m1"),
        "{apiVersion: x.io/v1, kind: Boat, metadata: {name: ark}}",
    ]));
    assert!(skips(&plan)[0].1.contains("does not serve"));
    assert!(plan.prune.candidates.is_empty() && plan.forgotten.is_empty());
}

#[test]
fn what_is_stated_again_is_no_part_of_an_approved_prune() {
    let mut cluster = Cluster::after(&resolved_maps(0..3));
    let whole = cluster.plan(&resolved_maps(0..0)).prune;
    assert!(matches!(whole.verdict, Verdict::Hold(_)));
    cluster.inventory.approved = ApprovedPrune::of(&PrunePlan {
        approved: Some(whole.digest),
        ..whole.clone()
    });
    cluster.inventory.held = HeldSet::after(None, &whole);
    let verdict = |cluster: &Cluster| {
        let source = resolved_maps(0..0);
        let input = PlanInput {
            approved_prune: Some(whole.digest),
            ..cluster.input(&source, &cluster.live)
        };
        plan(&input).prune.verdict
    };
    assert_eq!(verdict(&cluster), Verdict::Delete);
    let again = cluster.inventory.entries.keys().next().unwrap().clone();
    let gone = cluster.inventory.entries.keys().next_back().unwrap().clone();
    cluster.inventory.entries.remove(&gone);
    assert_eq!(verdict(&cluster), Verdict::Delete, "what is left of it");
    cluster.inventory.entries.get_mut(&again).unwrap().doomed = true;
    cluster.inventory.state_again(&again);
    assert!(!cluster.inventory.entries[&again].doomed);
    assert!(
        matches!(verdict(&cluster), Verdict::Hold(_)),
        "one of them was wanted in between"
    );
}

#[test]
fn texts_of_a_secret_are_sent_as_the_api_server_stores_them() {
    let sent = |fields: &str| -> serde_json::Value {
        let manifest = format!("{{apiVersion: v1, kind: Secret, metadata: {{name: a}}, {fields}}}");
        let body: serde_json::Value = serde_json::from_slice(&resolved(&[&manifest]).objects[0].body).unwrap();
        serde_json::json!([body["data"], body["stringData"]])
    };
    let texts = r#"data: {a: YQ==}, stringData: {b: hunter2, a: b}"#;
    assert_eq!(
        sent(texts),
        serde_json::json!([{"a": "Yg==", "b": "aHVudGVyMg=="}, null])
    );
    // The API server reports the error.
    assert_eq!(sent("stringData: {a: 1}"), serde_json::json!([null, {"a": 1}]));
}

#[test]
fn marks_and_the_target_namespace_are_added_and_server_fields_dropped() {
    let source = resolved(&[
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, uid: x, resourceVersion: '1', managedFields: [], labels: {k: v}}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: b, namespace: wrong}}",
    ]);
    let manifest = |index: usize| serde_json::from_slice::<Value>(&source.objects[index].body).unwrap();
    let map = &manifest(1)["metadata"];
    assert_eq!(map["namespace"], "web");
    assert_eq!(map["labels"]["k"], "v");
    assert_eq!(map["annotations"]["farwater.dev/owner"], "uid-1 ConfigMap web/a");
    assert!(map["uid"].is_null() && map["resourceVersion"].is_null() && map["managedFields"].is_null());
    assert!(manifest(0)["metadata"]["namespace"].is_null());
}

#[test]
fn a_grants_limits_refuse_single_objects() {
    let check = |limit: fn(&mut Ceiling), document: &str, reason: Option<&str>| {
        let mut ceiling = ceiling();
        limit(&mut ceiling);
        let source = resolved_under(&ceiling, &[document], &[]);
        match reason {
            Some(reason) => assert!(
                source.skipped[0].reason.to_string().contains(reason),
                "{:?}",
                source.skipped
            ),
            None => assert!(source.skipped.is_empty(), "{:?}", source.skipped),
        }
    };
    let deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}";
    let elsewhere = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: kube-system}}";
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}";
    check(
        |c| c.denied_kinds = Some(vec!["Deployment".into()]),
        deployment,
        Some("deniedKinds"),
    );
    check(
        |c| c.denied_kinds = Some(vec!["Deployment.apps".into()]),
        deployment,
        Some("deniedKinds"),
    );
    check(
        |c| c.denied_kinds = Some(vec!["Deployment.other".into()]),
        deployment,
        None,
    );
    check(
        |c| c.allowed_kinds = Some(vec!["ConfigMap".into()]),
        deployment,
        Some("allowedKinds"),
    );
    check(|c| c.allowed_kinds = Some(vec!["Deployment".into()]), deployment, None);
    // A dot without a group names the core group.
    check(
        |c| c.allowed_kinds = Some(vec!["Deployment.".into()]),
        deployment,
        Some("allowedKinds"),
    );
    check(|c| c.allowed_kinds = Some(vec!["Namespace.".into()]), namespace, None);
    check(|c| c.target_namespaces = Some(vec!["web".into()]), deployment, None);
    check(|c| c.target_namespaces = Some(vec!["we*".into()]), deployment, None);
    check(
        |c| c.target_namespaces = Some(vec!["web".into()]),
        elsewhere,
        Some("kube-system"),
    );
    check(
        |c| c.target_namespaces = Some(vec!["web".into()]),
        namespace,
        Some("kube-system"),
    );
    check(|c| c.target_namespaces = Some(vec![]), deployment, Some("web"));
}

#[test]
fn an_object_that_is_stated_twice_is_applied_not_even_once() {
    let source = resolved(&[
        &map("a"),
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: web}}",
    ]);
    let plan = Cluster::after(&resolved(&[&map("a")])).plan(&source);
    assert!(changes(&plan).is_empty());
    assert!(skips(&plan)[0].1.contains("file-0 and in file-1"), "{:?}", skips(&plan));
    assert!(plan.prune.candidates.is_empty());
}

#[test]
fn an_object_of_a_living_service_is_refused_and_one_of_a_dead_service_adopted() {
    let source = resolved(&[&map("a")]);
    let key = source.objects[0].key();
    let mut cluster = Cluster::default();
    let owner = Some(owner_annotation("uid-2", &key));
    cluster.live.insert(
        key,
        Live::Present(LiveObject {
            uid: "u".into(),
            owner,
            ..LiveObject::default()
        }),
    );
    assert_eq!(changes(&cluster.plan(&source)), [("a".into(), Cause::Adopt)]);
    cluster.services.insert("uid-2".into(), "team/other".into());
    assert_eq!(
        skips(&cluster.plan(&source)),
        [("a".into(), "owned by service team/other".into())]
    );
    // A copy of the other object's manifest carries a mark that names the other object, so it proves nothing.
    cluster.object("a").owner = Some("uid-2 ConfigMap other/a".into());
    assert_eq!(changes(&cluster.plan(&source)), [("a".into(), Cause::Adopt)]);
}

fn annotated(name: &str, annotation: &str) -> String {
    let (annotation, value) = annotation.split_once(": ").unwrap();
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, annotations: {{{annotation}: {value}}}}}, data: {{a: b}}}}"
    )
}

#[test]
fn what_is_to_be_left_alone_is_neither_applied_nor_pruned_and_holds_up_nothing() {
    let disabled = "kustomize.toolkit.fluxcd.io/reconcile: disabled";
    let mut cluster = Cluster::after(&resolved_maps(0..8));
    // The source excludes one object. Somebody excluded two live objects, one of which has left the source.
    let ignored = serde_json::json!({"annotations": {"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}});
    for name in ["m1", "m7"] {
        *cluster.object(name).protection = options::read_protection(&ignored);
        cluster.object(name).fields = None;
    }
    let mut documents = maps(1..6);
    documents.push(annotated("m0", disabled));
    let source = resolved(&documents.iter().map(String::as_str).collect::<Vec<_>>());
    let plan = cluster.plan(&source);
    assert!(changes(&plan).is_empty(), "{:?}", changes(&plan));
    assert_eq!(
        skips(&plan),
        [
            ("m0".into(), format!("left alone: its annotation {disabled} says so")),
            (
                "m1".into(),
                "left alone: kustomize.toolkit.fluxcd.io/ssa: Ignore, on the live object, says so".into()
            ),
        ]
    );
    assert_eq!((deletes(&plan), &plan.prune.verdict), (vec!["m6"], &Verdict::Delete));
    let kept: Vec<_> = plan.kept.iter().map(|(key, keep)| (key.name(), keep.clone())).collect();
    assert_eq!(
        kept,
        [("m7", Keep::Protected("kustomize.toolkit.fluxcd.io/ssa: Ignore".into()))]
    );
    // An object that the source excludes is not created if it is missing.
    assert!(changes(&Cluster::default().plan(&resolved(&[&annotated("a", disabled)]))).is_empty());
}

#[test]
fn what_is_only_to_be_made_is_made_where_it_is_missing_and_never_changed() {
    let once = annotated("m0", "kustomize.toolkit.fluxcd.io/ssa: IfNotPresent");
    let source = resolved(&[&once]);
    assert_eq!(
        changes(&Cluster::default().plan(&source)),
        [("m0".into(), Cause::Create)]
    );
    // The object was created from another manifest, and others have changed it since.
    let mut cluster = Cluster::after(&resolved_maps(0..1));
    cluster.object("m0").fields = None;
    let plan = cluster.plan(&source);
    assert!(changes(&plan).is_empty() && plan.unchanged.len() == 1 && plan.skipped.is_empty());
    // An object of somebody else is not adopted. One that another service hands over is.
    cluster.inventory.entries.clear();
    cluster.object("m0").owner = None;
    let left = "left alone: it existed, and is only to be made where it is missing";
    assert_eq!(skips(&cluster.plan(&source)), [("m0".into(), left.into())]);
    let key = source.objects[0].key();
    cluster.object("m0").owner = Some(owner_annotation("uid-2", &key));
    cluster.services.insert("uid-2".into(), "team/other".into());
    assert_eq!(
        skips(&cluster.plan(&source)),
        [("m0".into(), "owned by service team/other".into())]
    );
    cluster.transfers.offered.insert(key, "uid-2".into());
    assert_eq!(changes(&cluster.plan(&source)), [("m0".into(), Cause::Adopt)]);
    // If others delete the object, it is created again.
    let mut gone = Cluster::after(&source);
    gone.set("m0", Live::Absent);
    assert_eq!(changes(&gone.plan(&source)), [("m0".into(), Cause::Restore)]);
}

#[test]
fn a_failed_look_up_is_neither_gone_nor_new() {
    let source = resolved_maps(0..3);
    let mut cluster = Cluster::after(&source);
    cluster.set("m0", Live::Unknown("timeout".into()));
    cluster.set("m2", Live::Unknown("timeout".into()));
    let plan = cluster.plan(&resolved_maps(0..2));
    assert!(changes(&plan).is_empty() && plan.forgotten.is_empty() && plan.prune.candidates.is_empty());
    assert!(skips(&plan)[0].1.contains("timeout"));
    assert!(matches!(&plan.kept[0].1, Keep::Lookup(_)));
}

#[test]
fn only_what_is_proven_to_be_ours_is_deleted() {
    let source = resolved_maps(0..6);
    let mut cluster = Cluster::after(&source);
    cluster.object("m2").uid = "another object".into();
    cluster.object("m3").owner = None;
    cluster.object("m4").deleting = true;
    let plan = cluster.plan(&resolved_maps(0..2));
    assert_eq!(deletes(&plan), ["m5"]);
    let forgotten: Vec<_> = plan.forgotten.iter().map(|(key, why)| (key.name(), *why)).collect();
    assert_eq!(forgotten, [("m2", Forget::Replaced), ("m3", Forget::NotOurs)]);
    assert_eq!(plan.kept[0].1, Keep::Deleting);
}

#[test]
fn an_incomplete_render_deletes_nothing() {
    let source = resolved_maps(0..10);
    let plan = Cluster::after(&source).plan(&resolved_under(&ceiling(), &[&map("m0")], &["file: broken"]));
    assert!(plan.prune.candidates.is_empty());
    assert_eq!(plan.kept.len(), 9);
}

#[test]
fn without_prune_everything_that_leaves_is_kept_and_named() {
    let source = resolved_maps(0..4);
    let cluster = Cluster::after(&source);
    let next = resolved_maps(0..3);
    let plan = plan(&PlanInput {
        prune: false,
        ..cluster.input(&next, &cluster.live)
    });
    assert!(plan.prune.candidates.is_empty());
    assert_eq!(plan.kept[0].1, Keep::PruneOff);
}

#[test]
fn an_interrupted_attempt_does_not_widen_the_guards() {
    let source = resolved_maps(0..4);
    let mut cluster = Cluster::after(&source);
    // The attempt created twenty more objects before the agent was killed.
    let more = Cluster::after(&resolved_maps(100..120));
    cluster.inventory.entries.extend(more.inventory.entries);
    cluster.live.extend(more.live);
    let plan = cluster.plan(&resolved_maps(3..4));
    assert!(plan.prune.held().is_some());
}

#[test]
fn a_prune_that_was_begun_is_finished() {
    let source = resolved_maps(0..4);
    let mut cluster = Cluster::after(&source);
    for entry in cluster.inventory.entries.values_mut() {
        entry.doomed = true;
    }
    let finished = cluster.plan(&resolved(&[]));
    assert_eq!((finished.doomed.len(), finished.prune.candidates.len()), (4, 0));

    // While something holds all prunes, the marked objects are judged again and wait.
    let next = resolved_maps(0..1);
    let held = PlanInput {
        prune: false,
        hold_prune: Some("stopped"),
        ..cluster.input(&next, &cluster.live)
    };
    let held = plan(&held);
    assert_eq!((held.doomed.len(), held.prune.held().unwrap().count), (0, 3));

    assert!(cluster.inventory.spare_doomed() && !cluster.inventory.spare_doomed());
    let judged = cluster.plan(&next);
    assert_eq!((judged.doomed.len(), judged.prune.candidates.len()), (0, 3));
}

#[test]
fn the_target_namespace_is_made_only_if_it_is_missing_used_and_not_stated() {
    let check = |documents: &[&str], exists, expected: Option<&str>| {
        let source = resolved(documents);
        let live = source.objects.iter().map(|o| (o.key(), Live::Absent)).collect();
        let cluster = Cluster::default();
        let plan = plan(&PlanInput {
            target_namespace_exists: exists,
            ..cluster.input(&source, &live)
        });
        assert_eq!(plan.create_namespace.as_deref(), expected);
    };
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: web}}";
    check(&[&map("a")], Some(false), Some("web"));
    check(&[&map("a")], Some(true), None);
    check(&[&map("a")], None, None);
    check(&[&map("a"), namespace], Some(false), None);
    check(
        &["{apiVersion: v1, kind: Namespace, metadata: {name: other}}"],
        Some(false),
        None,
    );
}

#[test]
fn a_namespace_is_made_as_the_target_by_a_change_or_by_a_hook() {
    let check = |documents: &[&str], hooks: &[&str], expected: [bool; 2]| {
        let source = resolved(documents);
        let live = source.objects.iter().map(|o| (o.key(), Live::Absent)).collect();
        let cluster = Cluster::default();
        let plan = plan(&PlanInput {
            target_namespace_exists: Some(false),
            ..cluster.input(&source, &live)
        });
        let hooks: Vec<ObjectRef> = hooks.iter().map(|hook| serde_json::from_str(hook).unwrap()).collect();
        assert_eq!(
            ["web", "other"].map(|name| creates_namespace(&plan, hooks.iter(), name)),
            expected
        );
    };
    check(&[], &[], [false, false]);
    check(&[&map("a")], &[], [true, false]);
    let other = "{apiVersion: v1, kind: Namespace, metadata: {name: other}}";
    check(&[&map("a"), other], &[], [true, true]);
    let hook = |kind: &str| format!(r#"{{"version": "v1", "kind": "{kind}", "name": "other"}}"#);
    check(&[], &[&hook("Namespace")], [false, true]);
    check(&[], &[&hook("Job")], [false, false]);
}

proptest! {
    /// I5: whatever the state of the cluster, every deleted object is in the inventory and not in the source, and has
    /// the uid of the inventory and our proof of ownership.
    #[test]
    fn deletes_are_always_ours_and_unwanted(
        before in 0usize..12,
        after in 0usize..12,
        states in proptest::collection::vec(0u8..7, 12),
        complete in any::<bool>(),
    ) {
        let source = resolved_maps(0..before);
        let mut cluster = Cluster::after(&source);
        for (n, state) in states.iter().enumerate().take(before) {
            let name = format!("m{n}");
            match state {
                1 => cluster.set(&name, Live::Absent),
                2 => cluster.set(&name, Live::Unknown("x".into())),
                3 => cluster.object(&name).uid = "other".into(),
                4 => cluster.object(&name).owner = Some("uid-2 ConfigMap web/x".into()),
                5 => cluster.object(&name).deleting = true,
                6 => cluster.set(&name, Live::Forbidden("x".into())),
                _ => {}
            }
        }
        let mut next = resolved_maps(0..after);
        next.complete = complete;
        let plan = cluster.plan(&next);
        for candidate in plan.prune.candidates.iter().chain(&plan.doomed) {
            let key = ObjectKey::from(&candidate.object);
            prop_assert!(complete);
            prop_assert!(next.stated_keys().all(|stated| *stated != key));
            let entry = &cluster.inventory.entries[&key];
            prop_assert_eq!(entry.uid.as_deref(), Some(candidate.uid.as_str()));
            let Live::Present(live) = &cluster.live[&key] else { panic!("not present") };
            prop_assert!(live.uid == candidate.uid && live.owner.as_deref() == Some(&owner_annotation(UID, &key)));
        }
        // Every object of the source is in exactly one list of the plan.
        let told = changes(&plan).len() + plan.unchanged.len() + plan.skipped.len();
        prop_assert_eq!(told, after);
    }
}

#[test]
fn what_another_service_of_the_tenant_states_is_left_to_it() {
    let source = resolved_maps(0..10);
    let mut cluster = Cluster::after(&source);
    let key = source.objects[9].key();
    cluster.transfers.claimed.insert(key.clone(), "team/next".into());
    let left = cluster.plan(&resolved_maps(0..9));
    assert_eq!(left.kept, [(key.clone(), Keep::Claimed("team/next".into()))]);
    assert!(left.prune.candidates.is_empty() && left.forgotten.is_empty());
    // An object that the service states itself is not left to another one.
    assert!(cluster.plan(&source).kept.is_empty());
    let removal = plan_removal(UID, &cluster.inventory, &cluster.live, None, &cluster.transfers);
    assert_eq!((removal.kept.len(), removal.prune.candidates.len()), (1, 9));
    // Once the other service has applied the object, it leaves the inventory.
    cluster.object("m9").owner = Some(owner_annotation("uid-2", &key));
    assert_eq!(cluster.plan(&resolved_maps(0..9)).forgotten, [(key, Forget::NotOurs)]);
}

#[test]
fn only_what_its_owner_offers_is_taken_from_a_living_service() {
    let source = resolved(&[&map("a")]);
    let key = source.objects[0].key();
    let mut cluster = Cluster::default();
    cluster.services.insert("uid-2".into(), "team/other".into());
    let owner = Some(owner_annotation("uid-2", &key));
    cluster.live.insert(
        key.clone(),
        Live::Present(LiveObject {
            uid: "u".into(),
            owner,
            ..LiveObject::default()
        }),
    );
    cluster.transfers.offered.insert(key.clone(), "uid-3".into());
    assert_eq!(skips(&cluster.plan(&source)).len(), 1, "its owner is another one");
    cluster.transfers.offered.insert(key, "uid-2".into());
    assert_eq!(changes(&cluster.plan(&source)), [("a".into(), Cause::Adopt)]);
}

#[test]
fn a_prune_that_follows_from_another_origin_waits() {
    let origin = |root: &str, path: &str| Origin {
        root: Some(root.into()),
        path: path.into(),
    };
    let mut cluster = Cluster::after(&resolved_maps(0..20));
    cluster.inventory.origin = Some(origin("a", "app"));
    let next = resolved_maps(0..19);
    let held = |now: &Origin, hold_prune| {
        let input = PlanInput {
            origin: Some(now),
            hold_prune,
            ..cluster.input(&next, &cluster.live)
        };
        plan(&input).prune.held().map(|held| held.reason)
    };
    assert_eq!(held(&origin("a", "app"), None), None);
    assert!(held(&origin("b", "app"), None).unwrap().contains("another repository"));
    assert!(held(&origin("a", "lib"), None).unwrap().contains("folder \"lib\""));
    let said = held(&origin("a", "lib"), None).unwrap();
    assert_eq!(held(&origin("a", "lib"), Some(&said)), Some(said), "said once");
    // The hub's hold counts even though the hub has switched pruning off, for agents that don't know the hold.
    let (now, off) = (origin("a", "app"), cluster.input(&next, &cluster.live));
    let input = PlanInput {
        prune: false,
        hold_prune: Some("not asked"),
        origin: Some(&now),
        ..off
    };
    let held = plan(&input).prune;
    assert_eq!(held.held().unwrap().reason, "not asked");
    let approved = PlanInput {
        approved_prune: Some(held.digest),
        ..input
    };
    assert_eq!(plan(&approved).prune.verdict, Verdict::Delete);
}
