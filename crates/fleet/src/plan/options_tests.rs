use serde_json::json;

use super::*;

fn object(group: &str, kind: &str) -> ObjectRef {
    ObjectRef {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        namespace: "web".into(),
        name: "a".into(),
    }
}

fn manifest(annotations: Value) -> Value {
    json!({"metadata": {"name": "a", "annotations": annotations}, "spec": {"replicas": 1, "list": [{"name": "x"}]}})
}

fn read(annotations: Value, service: &ApplyOptions) -> Result<ObjectOptions, String> {
    read_options(&manifest(annotations), &object("apps", "Deployment"), service).map_err(|bad| bad.to_string())
}

#[track_caller]
fn check(annotations: Value, expected: ObjectOptions) {
    assert_eq!(read(annotations, &ApplyOptions::default()), Ok(expected));
}

#[track_caller]
fn wrong(annotations: Value, expected: &str) {
    assert_eq!(read(annotations, &ApplyOptions::default()), Err(expected.to_owned()));
}

fn defaults() -> ObjectOptions {
    ObjectOptions::default()
}

#[test]
fn ours_and_theirs_mean_the_same() {
    check(json!({}), defaults());
    for recreate in [
        json!({"farwater.dev/immutable": "Recreate"}),
        json!({"kustomize.toolkit.fluxcd.io/force": "enabled"}),
        json!({"argocd.argoproj.io/sync-options": "Prune=false, Force=true"}),
    ] {
        check(
            recreate,
            ObjectOptions {
                recreate: true,
                ..defaults()
            },
        );
    }
    for replace in [
        json!({"farwater.dev/method": "Replace"}),
        json!({"argocd.argoproj.io/sync-options": "Replace=true"}),
    ] {
        check(
            replace,
            ObjectOptions {
                replace: true,
                ..defaults()
            },
        );
    }
    for off in [
        json!({"farwater.dev/drift": "Ignore"}),
        json!({"helm.toolkit.fluxcd.io/driftDetection": "disabled"}),
    ] {
        check(
            off,
            ObjectOptions {
                drift: DriftMode::Ignore,
                ..defaults()
            },
        );
    }
    check(
        json!({"farwater.dev/adopt": "Never"}),
        ObjectOptions {
            adopt: AdoptPolicy::Never,
            ..defaults()
        },
    );
    check(
        json!({"farwater.dev/conflicts": "Report"}),
        ObjectOptions {
            conflicts: ConflictPolicy::Report,
            ..defaults()
        },
    );
    let ignore = vec![
        Pointer::parse("/spec/replicas").unwrap(),
        Pointer::parse("/metadata/annotations/a.b~1c").unwrap(),
    ];
    check(
        json!({"farwater.dev/ignore-differences": "/spec/replicas, /metadata/annotations/a.b~1c", "farwater.dev/ignore-managers": "hpa"}),
        ObjectOptions {
            ignore,
            ignore_managers: vec!["hpa".into()],
            ..defaults()
        },
    );
    for left in [
        json!({"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}),
        json!({"kustomize.toolkit.fluxcd.io/ssa": "Ignore"}),
    ] {
        let (name, value) = left.as_object().unwrap().iter().next().unwrap();
        let said = format!("{name}: {}", value.as_str().unwrap());
        check(
            left.clone(),
            ObjectOptions {
                left: Some(said),
                ..defaults()
            },
        );
    }
    check(json!({"kustomize.toolkit.fluxcd.io/reconcile": "enabled"}), defaults());
    for once in ["IfNotPresent", "ifnotpresent"] {
        check(
            json!({"kustomize.toolkit.fluxcd.io/ssa": once}),
            ObjectOptions {
                create_only: true,
                ..defaults()
            },
        );
    }
    // Farwater's annotations override those of other tools.
    check(
        json!({"farwater.dev/method": "Apply", "argocd.argoproj.io/sync-options": "Replace=true"}),
        defaults(),
    );
}

#[test]
fn what_other_tools_would_do_and_this_one_does_not_is_named() {
    let unheard = |annotations: Value, expected: &[&str]| {
        let expected = expected.iter().map(|item| (*item).to_owned()).collect();
        check(
            annotations,
            ObjectOptions {
                unheard: expected,
                ..defaults()
            },
        );
    };
    let (sync, compare) = ("argocd.argoproj.io/sync-options", "argocd.argoproj.io/compare-options");
    let ssa = "kustomize.toolkit.fluxcd.io/ssa";
    unheard(
        json!({sync: "Validate=false, ServerSideApply=true"}),
        &["argocd.argoproj.io/sync-options: Validate=false"],
    );
    unheard(
        json!({sync: "ServerSideApply=false,Sometimes"}),
        &[
            "argocd.argoproj.io/sync-options: ServerSideApply=false",
            "argocd.argoproj.io/sync-options: Sometimes",
        ],
    );
    unheard(
        json!({compare: "IgnoreExtraneous,ServerSideDiff=true"}),
        &["argocd.argoproj.io/compare-options: ServerSideDiff=true"],
    );
    unheard(json!({ssa: "merge"}), &["kustomize.toolkit.fluxcd.io/ssa: Merge"]);
    unheard(json!({ssa: "Override"}), &["kustomize.toolkit.fluxcd.io/ssa: Override"]);
    // Options that are always in effect, and options that are followed.
    unheard(json!({compare: "IgnoreExtraneous"}), &[]);
    unheard(
        json!({sync: "SkipDryRunOnMissingResource=true,PruneLast=true,Prune=true,Delete=true,Replace=false"}),
        &[],
    );
}

#[test]
fn a_value_that_means_nothing_is_named_and_never_the_default() {
    wrong(
        json!({"farwater.dev/adopt": "sometimes"}),
        "farwater.dev/adopt is \"sometimes\", and must be Always, IfNoDifference, Never",
    );
    wrong(
        json!({"farwater.dev/drift": "off"}),
        "farwater.dev/drift is \"off\", and must be Correct, Report, Ignore",
    );
    wrong(
        json!({"farwater.dev/method": "Patch"}),
        "farwater.dev/method is \"Patch\", and must be Apply or Replace",
    );
    wrong(
        json!({"kustomize.toolkit.fluxcd.io/force": "true"}),
        "kustomize.toolkit.fluxcd.io/force is \"true\", and must be enabled or disabled",
    );
    wrong(
        json!({"kustomize.toolkit.fluxcd.io/reconcile": "off"}),
        "kustomize.toolkit.fluxcd.io/reconcile is \"off\", and must be disabled or enabled",
    );
    wrong(
        json!({"kustomize.toolkit.fluxcd.io/ssa": "Never"}),
        "kustomize.toolkit.fluxcd.io/ssa is \"Never\", and must be Override or Merge or IfNotPresent or Ignore",
    );
    wrong(
        json!({"argocd.argoproj.io/sync-options": "Replace=yes"}),
        "argocd.argoproj.io/sync-options Replace is \"yes\", and must be true or false",
    );
    wrong(
        json!({"farwater.dev/prune": "false"}),
        "farwater.dev/prune is \"false\", and must be disabled or confirm or enabled",
    );
    for (pointer, expected) in [
        ("spec.replicas", "a JSON pointer, such as /spec/replicas"),
        ("/spec/~2", "a JSON pointer, such as /spec/replicas"),
        (
            "/spec/list/0/name",
            "a pointer through maps: a list is ignored as a whole",
        ),
        ("/metadata", "a field that an agent can do without"),
        ("/metadata/annotations", "a field that an agent can do without"),
        ("/kind", "a field that an agent can do without"),
    ] {
        wrong(
            json!({"farwater.dev/ignore-differences": pointer}),
            &format!("farwater.dev/ignore-differences is {pointer:?}, and must be {expected}"),
        );
    }
}

#[test]
fn an_object_says_more_than_its_service() {
    let service = ApplyOptions {
        adopt: AdoptPolicy::Never,
        drift: DriftMode::Report,
        immutable: ImmutablePolicy::Recreate,
        ..ApplyOptions::default()
    };
    let of_service = ObjectOptions {
        adopt: AdoptPolicy::Never,
        drift: DriftMode::Report,
        recreate: true,
        ..defaults()
    };
    assert_eq!(read(json!({}), &service), Ok(of_service.clone()));
    let own =
        json!({"farwater.dev/adopt": "Always", "farwater.dev/drift": "Correct", "farwater.dev/immutable": "Report"});
    assert_eq!(read(own, &service), Ok(defaults()));
    // An object that holds data is recreated only if it says so itself.
    let of = |annotations| {
        read_options(&manifest(annotations), &object("apps", "StatefulSet"), &service)
            .unwrap()
            .recreate
    };
    assert!(!of(json!({})) && of(json!({"farwater.dev/immutable": "Recreate"})));
}

#[test]
fn remarks_are_what_means_nothing_and_what_has_no_answer() {
    assert_eq!(defaults().remarks(), None);
    let options = ObjectOptions {
        unheard: vec!["a: b".into(), "c: d".into()],
        unanswered: vec!["x ignores nothing".into()],
        ..defaults()
    };
    assert_eq!(
        options.remarks().as_deref(),
        Some("this means nothing here: a: b, c: d; x ignores nothing")
    );
}

#[test]
fn a_wave_is_an_integer() {
    let check = |annotations: Value, expected: Result<i32, &str>| {
        let read = read_wave(&manifest(annotations)["metadata"]).map_err(|bad| bad.to_string());
        assert_eq!(read, expected.map_err(str::to_owned));
    };
    check(json!({}), Ok(0));
    check(json!({"farwater.dev/wave": "-5"}), Ok(-5));
    check(json!({"argocd.argoproj.io/sync-wave": "3"}), Ok(3));
    check(
        json!({"farwater.dev/wave": "1", "argocd.argoproj.io/sync-wave": "3"}),
        Ok(1),
    );
    check(
        json!({"argocd.argoproj.io/sync-wave": "first"}),
        Err("argocd.argoproj.io/sync-wave is \"first\", and must be an integer"),
    );
}

#[test]
fn protection_is_read_from_the_live_object_and_a_typing_error_protects() {
    let check = |annotations: Value, prune: &str, removal: &str| {
        let protection = read_protection(&manifest(annotations)["metadata"]);
        let said = |guard: &Guard| match guard {
            Guard::None => String::new(),
            Guard::Confirm => "confirm".to_owned(),
            Guard::Keep(annotation) => annotation.clone(),
        };
        assert_eq!(
            (said(&protection.prune).as_str(), said(&protection.removal).as_str()),
            (prune, removal)
        );
        protection.bad.is_some()
    };
    assert!(!check(json!({}), "", ""));
    let ours = "farwater.dev/prune: disabled";
    assert!(!check(json!({"farwater.dev/prune": "disabled"}), ours, ours));
    assert!(!check(json!({"farwater.dev/prune": "confirm"}), "confirm", "confirm"));
    assert!(check(
        json!({"farwater.dev/prune": "disable"}),
        "farwater.dev/prune: disable",
        "farwater.dev/prune: disable"
    ));
    let flux = "kustomize.toolkit.fluxcd.io/prune: disabled";
    assert!(!check(
        json!({"kustomize.toolkit.fluxcd.io/prune": "disabled"}),
        flux,
        flux
    ));
    assert!(!check(
        json!({"helm.sh/resource-policy": "keep"}),
        "helm.sh/resource-policy: keep",
        "helm.sh/resource-policy: keep"
    ));
    let argo = |option: &str| json!({"argocd.argoproj.io/sync-options": option});
    assert!(!check(
        argo("Prune=false"),
        "argocd.argoproj.io/sync-options Prune: false",
        ""
    ));
    assert!(!check(
        argo("Delete=false"),
        "",
        "argocd.argoproj.io/sync-options Delete: false"
    ));
    assert!(!check(argo("Prune=confirm,Delete=confirm"), "confirm", "confirm"));
    for left in [
        "kustomize.toolkit.fluxcd.io/reconcile: disabled",
        "kustomize.toolkit.fluxcd.io/ssa: Ignore",
    ] {
        let (name, value) = left.split_once(": ").unwrap();
        assert!(!check(json!({name: value}), left, left));
        // The object is kept, whatever other annotations would allow.
        assert!(!check(
            json!({name: value, "argocd.argoproj.io/sync-options": "Prune=true,Delete=true"}),
            left,
            left
        ));
        assert!(!check(json!({name: value, "farwater.dev/prune": "enabled"}), "", ""));
    }
    assert!(!check(
        json!({"kustomize.toolkit.fluxcd.io/ssa": "IfNotPresent"}),
        "",
        ""
    ));
    let typo = "kustomize.toolkit.fluxcd.io/reconcile: disable";
    assert!(check(
        json!({"kustomize.toolkit.fluxcd.io/reconcile": "disable"}),
        typo,
        typo
    ));
    // Farwater's annotation on the live object overrides all others.
    assert!(!check(
        json!({"farwater.dev/prune": "enabled", "helm.sh/resource-policy": "keep"}),
        "",
        ""
    ));
}

#[test]
fn what_is_refused_as_immutable_may_be_made_anew_by_a_line_that_is_told() {
    let offer = |kind: &str, annotations: Value| {
        let group = if kind == "ConfigMap" { "" } else { "apps" };
        let options = read_options(&manifest(annotations), &object(group, kind), &ApplyOptions::default()).unwrap();
        options.offer_recreation(&object(group, kind))
    };
    let told = "to have it deleted and recreated, annotate it in the source with farwater.dev/immutable: Recreate";
    assert_eq!(offer("ConfigMap", json!({})).as_deref(), Some(told));
    let with_loss = format!("{told}; its data and the objects that it holds can go with it");
    assert_eq!(offer("StatefulSet", json!({})), Some(with_loss));
    assert_eq!(
        offer("StatefulSet", json!({"farwater.dev/immutable": "Recreate"})),
        None
    );
}
