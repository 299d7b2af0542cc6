use proptest::prelude::*;

use super::*;

fn candidate(kind: &str, name: &str) -> Candidate {
    let group = match kind {
        "StatefulSet" | "Deployment" => "apps",
        "Job" => "batch",
        "CustomResourceDefinition" => "apiextensions.k8s.io",
        "Role" | "ClusterRole" | "ClusterRoleBinding" => "rbac.authorization.k8s.io",
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" | "ValidatingAdmissionPolicy" => {
            "admissionregistration.k8s.io"
        }
        _ => "",
    };
    let object = ObjectRef {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        namespace: "web".into(),
        name: name.into(),
    };
    Candidate {
        object,
        uid: format!("uid-{name}"),
        wave: 0,
        confirm: false,
        waits: false,
    }
}

fn maps(count: usize) -> Vec<Candidate> {
    (0..count).map(|n| candidate("ConfigMap", &format!("m{n}"))).collect()
}

static NOTHING: Generated = Generated::new();

const GUARDS: Guards<'_> = Guards {
    generated: &NOTHING,
    purpose: Purpose::Sync,
    desired: 100,
    inventory: 100,
    unapplied: 0,
    approved: None,
    begun: None,
    was_held: None,
    held: &[],
};

/// The approved prune of a held plan.
fn approved_prune(plan: &PrunePlan) -> ApprovedPrune {
    ApprovedPrune::of(&PrunePlan {
        approved: Some(plan.digest),
        ..plan.clone()
    })
    .unwrap()
}

fn check(candidates: Vec<Candidate>, guards: Guards<'_>, reasons: &[&str]) {
    let plan = decide(candidates, &guards);
    match plan.held() {
        Some(held) => {
            assert!(!reasons.is_empty(), "held: {}", held.reason);
            for reason in reasons {
                assert!(
                    held.reason.contains(reason),
                    "{:?} does not say {reason:?}",
                    held.reason
                );
            }
        }
        None => assert!(reasons.is_empty(), "not held, want {reasons:?}"),
    }
}

#[test]
fn a_few_objects_go_at_once() {
    check(maps(0), GUARDS, &[]);
    check(maps(5), GUARDS, &[]);
    check(maps(20), GUARDS, &[]);
    check(
        maps(5),
        Guards {
            inventory: 10,
            desired: 5,
            ..GUARDS
        },
        &[],
    );
    check(
        maps(1),
        Guards {
            inventory: 2,
            desired: 1,
            ..GUARDS
        },
        &[],
    );
}

#[test]
fn many_objects_wait() {
    check(maps(21), GUARDS, &["21 of 100"]);
    check(
        maps(6),
        Guards {
            inventory: 29,
            ..GUARDS
        },
        &["6 of 29"],
    );
    check(
        maps(6),
        Guards {
            inventory: 30,
            ..GUARDS
        },
        &[],
    );
    // More than half wait, however few they are.
    check(
        maps(2),
        Guards {
            inventory: 3,
            desired: 1,
            ..GUARDS
        },
        &["2 of 3"],
    );
    check(
        maps(1),
        Guards {
            inventory: 1,
            desired: 1,
            ..GUARDS
        },
        &["1 of 1"],
    );
}

#[test]
fn what_comes_back_with_another_hash_in_its_name_is_not_lost() {
    let named = |names: &[&str]| -> Vec<Candidate> {
        let mut all = maps(names.len());
        all.iter_mut()
            .zip(names)
            .for_each(|(candidate, name)| candidate.object.name = (*name).to_owned());
        all
    };
    let stated = |names: &[&str]| -> Generated {
        let mut all = Generated::new();
        for one in named(names).iter().filter_map(|candidate| generated(&candidate.object)) {
            *all.entry(one).or_default() += 1;
        }
        all
    };
    let going = ["a-5h2k8m9f7t", "b-5h2k8m9f7t", "c-5h2k8m9f7t"];
    let small = Guards {
        inventory: 4,
        desired: 4,
        ..GUARDS
    };
    check(
        named(&going),
        Guards {
            generated: &stated(&["a-b4dg6kt2cm", "b-b4dg6kt2cm", "c-b4dg6kt2cm"]),
            ..small
        },
        &[],
    );
    let reason = "3 of 3 objects would be deleted, and 1 of them replaced";
    check(
        named(&going),
        Guards {
            generated: &stated(&["a-b4dg6kt2cm", "x-b4dg6kt2cm"]),
            inventory: 3,
            ..small
        },
        &[reason],
    );
    // Other names, as from a wrong prefix for all objects, are losses.
    check(
        named(&["a", "b", "c"]),
        Guards {
            generated: &stated(&["pre-a", "pre-b", "pre-c"]),
            ..small
        },
        &["3 of 4"],
    );
}

#[test]
fn an_empty_render_waits_however_little_goes() {
    check(maps(1), Guards { desired: 0, ..GUARDS }, &["no objects"]);
}

#[test]
fn protected_kinds_always_wait() {
    for (kind, holds) in [
        ("Namespace", true),
        ("CustomResourceDefinition", true),
        ("PersistentVolume", true),
        ("PersistentVolumeClaim", true),
        ("StatefulSet", true),
        ("ClusterRole", false),
        ("ClusterRoleBinding", false),
        ("MutatingWebhookConfiguration", false),
        ("ValidatingWebhookConfiguration", false),
    ] {
        check(vec![candidate(kind, "x")], GUARDS, &[kind]);
        check(
            vec![candidate(kind, "x")],
            Guards {
                purpose: Purpose::Removal,
                ..GUARDS
            },
            &[kind],
        );
        // A binding may be recreated if its role can't be changed. An object that holds others is recreated only if it
        // states that itself.
        assert_eq!(holds_others(&candidate(kind, "x").object), holds, "{kind}");
    }
    for kind in ["Role", "Secret", "ValidatingAdmissionPolicy"] {
        check(vec![candidate(kind, "x")], GUARDS, &[]);
    }
    // A kind of another group is another kind, even with the same name.
    let mut other = candidate("ClusterRole", "x");
    other.object.group = "example.com".into();
    check(vec![other], GUARDS, &[]);
}

#[test]
fn workloads_own_pods() {
    for (kind, owns) in [
        ("Deployment", true),
        ("StatefulSet", true),
        ("Job", true),
        ("Pod", false),
        ("Service", false),
    ] {
        assert_eq!(owns_pods(&candidate(kind, "x").object), owns, "{kind}");
    }
    let mut other = candidate("Deployment", "x");
    other.object.group = "example.com".into();
    assert!(!owns_pods(&other.object));
}

#[test]
fn while_something_is_not_applied_nothing_goes() {
    check(
        maps(1),
        Guards { unapplied: 2, ..GUARDS },
        &["2 objects of the source are not applied"],
    );
    // This reason ends by itself. The other ones for a hold don't.
    let waits = |candidates, guards: Guards<'_>| decide(candidates, &guards).held().unwrap().until_applied;
    assert!(waits(maps(1), Guards { unapplied: 2, ..GUARDS }));
    assert!(!waits(maps(21), Guards { unapplied: 2, ..GUARDS }) && !waits(maps(21), GUARDS));
}

#[test]
fn a_removal_may_empty_a_service() {
    let guards = Guards {
        purpose: Purpose::Removal,
        desired: 0,
        inventory: 50,
        ..GUARDS
    };
    check(maps(50), guards, &[]);
}

#[test]
fn an_approval_is_for_exactly_one_set() {
    let guards = Guards { desired: 0, ..GUARDS };
    let held = decide(maps(3), &guards);
    let approved = Guards {
        approved: Some(held.digest),
        ..guards
    };
    check(maps(3), approved, &[]);
    check(maps(4), approved, &["no objects"]);
    let mut recreated = maps(3);
    recreated[0].uid = "another".into();
    check(recreated, approved, &["no objects"]);
}

#[test]
fn what_is_left_of_an_approved_prune_needs_no_other_approval() {
    let guards = Guards { desired: 0, ..GUARDS };
    let whole = decide(maps(3), &guards);
    let begun = approved_prune(&whole);
    let approved = Guards {
        approved: Some(whole.digest),
        begun: Some(&begun),
        ..guards
    };
    check(maps(2), approved, &[]);
    check(maps(4), approved, &["no objects"]);
    let mut recreated = maps(2);
    recreated[0].uid = "another".into();
    check(recreated, approved, &["no objects"]);
    // The approval was withdrawn, or is for something else.
    check(
        maps(2),
        Guards {
            approved: None,
            ..approved
        },
        &["no objects"],
    );
    check(
        maps(2),
        Guards {
            approved: Some(Digest::of("other")),
            ..approved
        },
        &["no objects"],
    );
}

#[test]
fn an_approval_of_more_is_one_of_what_is_left_and_none_of_anything_new() {
    let guards = Guards { desired: 0, ..GUARDS };
    let whole = decide(maps(4), &guards);
    let approved = Guards {
        approved: Some(whole.digest),
        ..guards
    };
    let held = |before: Option<HeldSet>, count: usize| HeldSet::after(before, &decide(maps(count), &guards));
    let first = held(None, 4);
    // One object was handed over while a person reviewed the plan, and another one later.
    let third = held(held(first.clone(), 3), 2);
    assert_eq!(
        third.as_ref().map(|held| (held.plans.len(), held.uids.len())),
        Some((3, 2))
    );
    assert_eq!(third.as_ref().unwrap().earlier().first(), Some(&whole.digest));
    check(
        maps(2),
        Guards {
            was_held: third.as_ref(),
            ..approved
        },
        &[],
    );
    check(
        maps(1),
        Guards {
            was_held: third.as_ref(),
            ..approved
        },
        &[],
    );
    check(
        maps(3),
        Guards {
            was_held: third.as_ref(),
            ..approved
        },
        &["no objects"],
    );
    check(
        maps(2),
        Guards {
            was_held: third.as_ref(),
            ..guards
        },
        &["no objects"],
    );
    let other = Guards {
        approved: Some(Digest::of("other")),
        ..guards
    };
    check(
        maps(2),
        Guards {
            was_held: third.as_ref(),
            ..other
        },
        &["no objects"],
    );
    let mut recreated = maps(2);
    recreated[0].uid = "another".into();
    check(
        recreated,
        Guards {
            was_held: third.as_ref(),
            ..approved
        },
        &["no objects"],
    );
    // The set grows meanwhile, so the approval of the earlier plan is not valid for the rest.
    let grown = held(held(first.clone(), 5), 3);
    check(
        maps(3),
        Guards {
            was_held: grown.as_ref(),
            ..approved
        },
        &["no objects"],
    );
    // It is remembered while nothing is decided, and forgotten after the deletion.
    assert_eq!(HeldSet::after(first.clone(), &decide(maps(0), &guards)), first);
    assert_eq!(HeldSet::after(first, &decide(maps(4), &approved)), None);
    let many = (0..40).fold(None, |before, gone| held(before, 60 - gone)).unwrap();
    assert_eq!(many.plans.len(), MAX_PLANS);
}

#[test]
fn a_namespace_that_waits_for_other_services_is_shown_and_approved_again_in_its_turn() {
    let guards = Guards {
        purpose: Purpose::Removal,
        ..GUARDS
    };
    let waiting = Candidate {
        waits: true,
        ..candidate("Namespace", "web")
    };
    let all = || maps(2).into_iter().chain([waiting.clone()]).collect::<Vec<_>>();
    check(all(), guards, &["Namespace web/web is of a protected kind"]);
    let whole = decide(all(), &guards);
    let begun = approved_prune(&whole);
    let approved = Guards {
        approved: Some(whole.digest),
        begun: Some(&begun),
        ..guards
    };
    assert_eq!(decide(all(), &approved).going(), maps(2));
    assert_eq!(decide(vec![waiting], &approved).verdict, Verdict::Nothing);
    // Objects may have been added to it that no person saw.
    check(
        vec![candidate("Namespace", "web")],
        approved,
        &["Namespace web/web is of a protected kind"],
    );
}

#[test]
fn a_held_prune_lists_ten_and_counts_all() {
    let held = decide(maps(30), &GUARDS).held().unwrap();
    assert_eq!((held.count, held.objects.len()), (30, 10));
}

proptest! {
    #[test]
    fn the_digest_does_not_depend_on_the_order(count in 0usize..20, seed in any::<u64>()) {
        let ordered = decide(maps(count), &GUARDS);
        let mut shuffled = maps(count);
        if count > 0 {
            shuffled.rotate_left(usize::try_from(seed % 20).unwrap() % count);
            shuffled.reverse();
        }
        prop_assert_eq!(ordered, decide(shuffled, &GUARDS));
    }

    #[test]
    fn without_approval_a_sync_never_deletes_most_of_a_service(deletes in 1usize..60, inventory in 0usize..60, desired in 0usize..60) {
        let plan = decide(maps(deletes), &Guards { inventory, desired, ..GUARDS });
        if plan.verdict == Verdict::Delete {
            prop_assert!(desired > 0);
            prop_assert!(deletes * 2 <= inventory);
            prop_assert!(deletes <= FEW || deletes * SHARE <= inventory);
        }
    }
}
