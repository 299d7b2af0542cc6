//! Waves, options and drift in the plan, and properties for any input.

use farwater_api::apply_options::{AdoptPolicy, ApplyOptions, DriftMode, ImmutablePolicy};
use proptest::prelude::*;

use super::*;
use crate::plan::options::Guard;

fn under(options: &ApplyOptions, documents: &[String]) -> Resolved {
    let objects = documents.iter().enumerate().map(|(n, text)| RenderedObject {
        manifest: serde_saphyr::from_str(text).unwrap(),
        origin: format!("file-{n}"),
    });
    let render = Render {
        objects: objects.collect(),
        errors: Vec::new(),
    };
    resolve(
        render,
        UID,
        Terms {
            target_namespace: "web",
            ceiling: &ceiling(),
            options,
        },
        &scopes(),
    )
}

fn annotated(name: &str, annotations: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, annotations: {{{annotations}}}}}}}")
}

fn in_wave(name: &str, wave: i32) -> String {
    annotated(name, &format!("farwater.dev/wave: '{wave}'"))
}

fn places(plan: &Plan) -> Vec<(i32, Stage, Vec<&str>)> {
    let names = |wave: &Wave| (wave.number, wave.stage);
    plan.waves
        .iter()
        .map(|wave| {
            let (number, stage) = names(wave);
            (
                number,
                stage,
                wave.changes.iter().map(|change| change.object.name()).collect(),
            )
        })
        .collect()
}

#[test]
fn waves_come_in_order_each_with_its_stages() {
    let deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, annotations: {argocd.argoproj.io/sync-wave: '-1'}}}";
    let source = resolved(&[&in_wave("late", 2), &map("m"), deployment, &in_wave("early", -1)]);
    let plan = Cluster::default().plan(&source);
    assert_eq!(
        places(&plan),
        [
            (-1, Stage::Foundations, vec!["early"]),
            (-1, Stage::Workloads, vec!["d"]),
            (0, Stage::Foundations, vec!["m"]),
            (2, Stage::Foundations, vec!["late"])
        ]
    );
}

#[test]
fn what_an_object_needs_comes_in_its_wave_at_the_latest() {
    let crd = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: boats.x.io, annotations: {farwater.dev/wave: '3'}},
        spec: {group: x.io, scope: Namespaced, names: {kind: Boat}, versions: [{name: v1}]}}";
    let boat = "{apiVersion: x.io/v1, kind: Boat, metadata: {name: ark, namespace: sea, annotations: {farwater.dev/wave: '-2'}}}";
    let source = resolved(&[boat, crd, "{apiVersion: v1, kind: Namespace, metadata: {name: sea}}"]);
    let plan = Cluster::default().plan(&source);
    assert_eq!(
        places(&plan),
        [
            (-2, Stage::Namespaces, vec!["sea"]),
            (-2, Stage::Definitions, vec!["boats.x.io"]),
            (-2, Stage::Rest, vec!["ark"])
        ]
    );
}

#[test]
fn what_was_there_is_put_back_without_waiting_for_waves() {
    let source = resolved(&[&in_wave("a", 1), &in_wave("b", 1), &in_wave("c", 1)]);
    let mut cluster = Cluster::after(&source);
    cluster.set("a", Live::Absent);
    cluster.object("b").fields = None;
    let causes = |plan: &Plan| {
        plan.waves
            .iter()
            .flat_map(|w| &w.changes)
            .map(|c| c.cause.is_repair())
            .collect::<Vec<_>>()
    };
    assert_eq!(causes(&cluster.plan(&source)), [true, true]);
    // Another manifest of the same object is an update, not a repair.
    assert_eq!(
        causes(&cluster.plan(&resolved(&[&in_wave("a", 2), &in_wave("b", 2), &in_wave("c", 2)]))),
        [false; 3]
    );
}

#[test]
fn an_option_that_means_nothing_refuses_its_object_and_no_other() {
    let source = resolved(&[
        &annotated("a", "farwater.dev/wave: first"),
        &annotated("b", "farwater.dev/adopt: Maybe"),
        &map("c"),
    ]);
    let plan = Cluster::default().plan(&source);
    assert_eq!(changes(&plan), [("c".into(), Cause::Create)]);
    let skips = skips(&plan);
    assert!(
        skips[0].1.contains("farwater.dev/wave is \"first\"") && skips[1].1.contains("Maybe"),
        "{skips:?}"
    );
}

#[test]
fn what_exists_and_belongs_to_nobody_is_adopted_by_policy() {
    let check = |adopt: AdoptPolicy, expected: Result<Cause, &str>| {
        let source = under(
            &ApplyOptions {
                adopt,
                ..ApplyOptions::default()
            },
            &[map("a")],
        );
        let mut cluster = Cluster::default();
        let live = LiveObject {
            uid: "u".into(),
            ..LiveObject::default()
        };
        cluster.live.insert(source.objects[0].key(), Live::Present(live));
        let plan = cluster.plan(&source);
        match expected {
            Ok(cause) => assert_eq!(changes(&plan), [("a".into(), cause)]),
            Err(reason) => assert!(skips(&plan)[0].1.contains(reason), "{:?}", skips(&plan)),
        }
        // An object that is ours stays ours, whatever the policy.
        let ours = under(
            &ApplyOptions {
                adopt,
                ..ApplyOptions::default()
            },
            &[map("a")],
        );
        assert_eq!(Cluster::after(&ours).plan(&ours).unchanged.len(), 1);
    };
    check(AdoptPolicy::Always, Ok(Cause::Adopt));
    check(AdoptPolicy::IfNoDifference, Ok(Cause::AdoptUnchanged));
    check(AdoptPolicy::Never, Err("the adopt policy is Never"));
}

#[test]
fn drift_is_corrected_told_or_let_be() {
    let check = |drift: DriftMode, corrected: usize, told: usize, unchanged: usize| {
        let source = under(
            &ApplyOptions {
                drift,
                ..ApplyOptions::default()
            },
            &[map("a"), map("b"), map("c")],
        );
        let mut cluster = Cluster::after(&source);
        cluster.object("a").fields = None;
        cluster.set("b", Live::Absent);
        let plan = cluster.plan(&source);
        assert_eq!(
            (changes(&plan).len(), plan.drifted.len(), plan.unchanged.len()),
            (corrected, told, unchanged),
            "{drift:?}"
        );
        // A new version is applied in any mode.
        let next = under(
            &ApplyOptions {
                drift,
                ..ApplyOptions::default()
            },
            &[in_wave("a", 1), in_wave("b", 1)],
        );
        assert_eq!(
            changes(&cluster.plan(&next)),
            [("a".into(), Cause::Update), ("b".into(), Cause::Create)]
        );
    };
    check(DriftMode::Correct, 2, 0, 1);
    check(DriftMode::Report, 0, 2, 1);
    // A missing object is reported even in the mode that ignores fields.
    check(DriftMode::Ignore, 0, 1, 2);
}

#[test]
fn only_what_is_ours_is_made_anew() {
    let options = ApplyOptions {
        immutable: ImmutablePolicy::Recreate,
        ..ApplyOptions::default()
    };
    let source = under(&options, &[map("a")]);
    let mut cluster = Cluster::after(&source);
    let next = under(&options, &[in_wave("a", 1)]);
    let recreate = |cluster: &Cluster| cluster.plan(&next).waves[0].changes[0].recreate.clone();
    assert_eq!(recreate(&cluster).as_deref(), Some("uid of ConfigMap web/a"));
    cluster.object("a").owner = None;
    assert_eq!(recreate(&cluster), None);
}

#[test]
fn what_an_annotation_protects_stays_and_so_does_what_holds_it() {
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: web}}";
    let source = resolved(&[namespace, &map("a"), &map("b"), &map("c"), &map("d")]);
    let mut cluster = Cluster::after(&source);
    let keep = |guard: Guard| Protection {
        prune: guard.clone(),
        removal: guard,
        left: None,
        bad: None,
    };
    *cluster.object("a").protection = keep(Guard::Keep("farwater.dev/prune: disabled".into()));
    let plan = cluster.plan(&resolved(&[&map("b"), &map("c"), &map("d")]));
    assert!(plan.prune.candidates.is_empty());
    let kept: Vec<String> = plan.kept.iter().map(|(key, why)| format!("{key} {why}")).collect();
    assert_eq!(
        kept,
        [
            "ConfigMap web/a left the source and stays: its annotation farwater.dev/prune: disabled says so",
            "Namespace web left the source and stays: ConfigMap web/a, which is protected, would go with it"
        ]
    );
    let removal = plan_removal(UID, &cluster.inventory, &cluster.live, None, &Transfers::default());
    assert_eq!((removal.kept.len(), removal.prune.candidates.len()), (2, 3));
    // Argo CD's options distinguish a prune from a removal.
    *cluster.object("a").protection = Protection {
        removal: Guard::None,
        ..keep(Guard::Keep("x".into()))
    };
    assert!(
        plan_removal(UID, &cluster.inventory, &cluster.live, None, &Transfers::default())
            .kept
            .is_empty()
    );
    *cluster.object("a").protection = keep(Guard::Confirm);
    let plan = cluster.plan(&resolved(&[namespace, &map("b"), &map("c"), &map("d")]));
    assert!(plan.prune.held().unwrap().reason.contains("asks for an approval"));
}

#[test]
fn a_namespace_or_definition_that_holds_what_is_stated_stays_whoever_approved_its_deletion() {
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: web}}";
    let mut cluster = Cluster::after(&resolved(&[namespace, &map("a"), &map("b")]));
    let next = resolved(&[&map("a"), &map("b")]);
    let check = |cluster: &Cluster, next: &Resolved, expected: &[&str]| {
        let plan = cluster.plan(next);
        let kept: Vec<String> = plan.kept.iter().map(|(key, why)| format!("{key} {why}")).collect();
        assert_eq!(kept, expected);
        plan.prune
            .going()
            .iter()
            .map(|candidate| candidate.object.to_string())
            .collect::<Vec<_>>()
    };
    let kept = "Namespace web left the source and stays: ConfigMap web/a, ConfigMap web/b would be deleted with it";
    assert!(check(&cluster, &next, &[kept]).is_empty());
    for entry in cluster.inventory.entries.values_mut() {
        entry.doomed = true;
    }
    assert!(
        check(&cluster, &next, &[kept]).is_empty(),
        "also where its deletion was approved and begun"
    );
    // Objects that other services state.
    let elsewhere = resolved(&["{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: other}}"]);
    let maps = [
        ObjectKey::new("", "ConfigMap", "web", "c"),
        ObjectKey::new("", "ConfigMap", "web", "d"),
    ];
    let holdings = |is_leaving| Arc::new(Holdings::of(maps.iter()).leaving(is_leaving));
    let mut cluster = Cluster::after(&resolved(&[namespace]));
    cluster.transfers.others = vec![("team/shop".to_owned(), holdings(false))];
    let kept = "Namespace web left the source and stays: 2 objects of service team/shop would be deleted with it";
    assert!(check(&cluster, &elsewhere, &[kept]).is_empty());
    cluster.transfers.others = vec![("team/shop".to_owned(), holdings(true))];
    let kept = "Namespace web left the source and waits until 2 objects of service team/shop are gone";
    assert!(check(&cluster, &elsewhere, &[kept]).is_empty());
    cluster.transfers.others = vec![("team/shop".to_owned(), Arc::default())];
    assert_eq!(check(&cluster, &elsewhere, &[]), ["Namespace web"]);
    let definition = ObjectKey::new(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "",
        "boats.example.com",
    );
    let boat = ObjectKey::new("example.com", "Boat", "sea", "a");
    assert_eq!(Holdings::of([&boat, &definition].into_iter()).within(&definition), 1);
}

#[test]
fn the_account_that_comes_with_a_namespace_does_not_keep_it() {
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: web}}";
    let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: web}}";
    let source = resolved(&[namespace, account, &map("a")]);
    let mut cluster = Cluster::after(&source);
    let guard = Guard::Keep("farwater.dev/prune: disabled".into());
    let keep = Protection {
        prune: guard.clone(),
        removal: guard,
        left: None,
        bad: None,
    };
    for (key, live) in &mut cluster.live {
        if let (Live::Present(object), "ServiceAccount") = (live, key.kind()) {
            *object.protection = keep.clone();
        }
    }
    let removal = plan_removal(UID, &cluster.inventory, &cluster.live, None, &Transfers::default());
    assert_eq!((removal.kept.len(), removal.prune.candidates.len()), (1, 2));
    assert!(
        removal.prune.held().unwrap().reason.contains("Namespace"),
        "{:?}",
        removal.prune.held()
    );
}

/// The cluster after the whole plan was carried out.
fn carried_out(cluster: &Cluster, source: &Resolved, plan: &Plan) -> Cluster {
    let mut after = cluster.clone();
    let objects: BTreeMap<ObjectKey, &ResolvedObject> = source.objects.iter().map(|o| (o.key(), o)).collect();
    for change in plan.waves.iter().flat_map(|w| &w.changes) {
        let object = objects[&change.object];
        let uid = match after.live.get(&change.object) {
            Some(Live::Present(live)) => live.uid.clone(),
            _ => format!("new uid of {}", change.object),
        };
        let fields = Some(Digest::of(object.hash.to_hex()));
        let owner = Some(owner_annotation(UID, &change.object));
        let live = LiveObject {
            uid: uid.clone(),
            owner,
            fields,
            wave: object.wave,
            ..LiveObject::default()
        };
        after.live.insert(change.object.clone(), Live::Present(live));
        let (object, hash) = (object.object.clone(), Some(object.hash));
        let entry = InventoryEntry {
            object,
            uid: Some(uid),
            hash,
            fields,
            adopted: false,
            doomed: false,
            done: false,
            incomplete: false,
            overruled: Vec::new(),
        };
        after.inventory.entries.insert(change.object.clone(), entry);
    }
    let pruned = if plan.prune.verdict == Verdict::Delete {
        plan.prune.candidates.as_slice()
    } else {
        &[]
    };
    for candidate in pruned.iter().chain(&plan.doomed) {
        let key = ObjectKey::from(&candidate.object);
        after.live.remove(&key);
        after.inventory.entries.remove(&key);
    }
    for (key, _) in &plan.forgotten {
        after.inventory.entries.remove(key);
    }
    after
}

/// Puts an object into one of several states, or gives it an option.
fn meddle(cluster: &mut Cluster, name: &str, state: u8) {
    match state {
        1 => cluster.set(name, Live::Absent),
        2 => cluster.object(name).fields = Some(Digest::of("others")),
        3 => cluster.object(name).uid = "another".into(),
        4 => cluster.object(name).owner = None,
        5 => cluster.object(name).protection.prune = Guard::Keep("x".into()),
        6 => cluster.object(name).moves = true,
        _ => {}
    }
}

fn document(n: usize, state: u8) -> String {
    match state % 6 {
        1 => annotated(&format!("m{n}"), "farwater.dev/wave: '1'"),
        2 => annotated(&format!("m{n}"), "farwater.dev/adopt: Never"),
        3 => annotated(&format!("m{n}"), "farwater.dev/drift: Report"),
        4 => annotated(
            &format!("m{n}"),
            "farwater.dev/immutable: Recreate, argocd.argoproj.io/sync-wave: '-3'",
        ),
        5 => annotated(&format!("m{n}"), "farwater.dev/wave: nonsense"),
        _ => map(&format!("m{n}")),
    }
}

proptest! {
    /// A plan that was carried out is not repeated, and what it skipped is skipped again.
    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do(
        before in 0usize..10,
        states in proptest::collection::vec(0u8..7, 10),
        options in proptest::collection::vec(0u8..6, 10),
    ) {
        let mut cluster = Cluster::after(&resolved_maps(0..before));
        for (n, state) in states.iter().enumerate().take(before) {
            meddle(&mut cluster, &format!("m{n}"), *state);
        }
        let documents: Vec<String> = options.iter().enumerate().skip(2).map(|(n, option)| document(n, *option)).collect();
        let source = under(&ApplyOptions::default(), &documents);
        let first = cluster.plan(&source);
        let after = carried_out(&cluster, &source, &first);
        let second = after.plan(&source);
        prop_assert!(second.waves.is_empty(), "{:?}", second.waves);
        prop_assert!(second.doomed.is_empty() && second.forgotten.is_empty());
        prop_assert_eq!(&second.skipped, &first.skipped);
        prop_assert_eq!(&second.drifted, &first.drifted);
    }

    /// The order of a source's files changes nothing.
    #[test]
    fn a_plan_does_not_depend_on_the_order_of_the_source(
        options in proptest::collection::vec(0u8..6, 8),
        order in Just((0usize..8).collect::<Vec<_>>()).prop_shuffle(),
        states in proptest::collection::vec(0u8..7, 8),
    ) {
        let mut cluster = Cluster::after(&resolved_maps(0..8));
        for (n, state) in states.iter().enumerate() {
            meddle(&mut cluster, &format!("m{n}"), *state);
        }
        let documents: Vec<String> = options.iter().enumerate().map(|(n, option)| document(n, *option)).collect();
        let shuffled: Vec<String> = order.iter().map(|n| documents[*n].clone()).collect();
        let sorted = |documents: &[String]| {
            let mut plan = cluster.plan(&under(&ApplyOptions::default(), documents));
            plan.skipped.sort_by(|a, b| a.object.cmp(&b.object));
            plan
        };
        prop_assert_eq!(sorted(&documents), sorted(&shuffled));
    }

    /// I5, with options: an object that this service didn't apply, that is protected or that the source states is never
    /// deleted or recreated.
    #[test]
    fn nothing_goes_that_this_service_did_not_apply(
        states in proptest::collection::vec(0u8..7, 10),
        options in proptest::collection::vec(0u8..6, 10),
        stated in proptest::collection::vec(any::<bool>(), 10),
        removal in any::<bool>(),
    ) {
        let mut cluster = Cluster::after(&resolved_maps(0..10));
        for (n, state) in states.iter().enumerate() {
            meddle(&mut cluster, &format!("m{n}"), *state);
        }
        // Objects that were never applied: they are not in the inventory.
        for n in [8, 9] {
            let key = cluster.inventory.entries.keys().find(|key| key.name() == format!("m{n}")).unwrap().clone();
            cluster.inventory.entries.remove(&key);
        }
        let documents: Vec<String> =
            options.iter().enumerate().filter(|(n, _)| stated[*n]).map(|(n, option)| document(n, *option)).collect();
        let source = under(&ApplyOptions::default(), &documents);
        let plan = if removal { plan_removal(UID, &cluster.inventory, &cluster.live, None, &Transfers::default()) } else { cluster.plan(&source) };
        for candidate in plan.prune.candidates.iter().chain(&plan.doomed) {
            let key = ObjectKey::from(&candidate.object);
            prop_assert_eq!(cluster.inventory.entries[&key].uid.as_deref(), Some(candidate.uid.as_str()));
            let Live::Present(live) = &cluster.live[&key] else { panic!("not present") };
            prop_assert!(live.uid == candidate.uid && live.owner.as_deref() == Some(&owner_annotation(UID, &key)));
            prop_assert!(removal || (live.protection.prune == Guard::None && source.stated_keys().all(|k| *k != key)));
        }
        for change in plan.waves.iter().flat_map(|w| &w.changes) {
            let Some(uid) = &change.recreate else { continue };
            let Live::Present(live) = &cluster.live[&change.object] else { panic!("not present") };
            prop_assert!(live.uid == *uid && live.owner.as_deref() == Some(&owner_annotation(UID, &change.object)));
        }
    }
}
