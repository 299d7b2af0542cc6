use farwater_api::protocol::{Ceiling, ServiceAccount};
use serde_json::json;

use farwater_api::hooks::SUFFIX;

use super::*;
use crate::plan::{Render, resolve};

fn phases(annotations: Value) -> Result<Vec<(HookPhase, Option<Occasion>)>, String> {
    let options = read_hook(&annotations).map_err(|bad| bad.to_string())?;
    Ok(options.steps.into_iter().map(|step| (step.phase, step.only)).collect())
}

#[test]
fn hooks_are_read_in_three_spellings() {
    use HookPhase::{PostDelete, PostSync, PreDelete, PreSync, SyncFail, Test};
    let check = |annotations: Value, expected: &[(HookPhase, Option<Occasion>)]| {
        assert_eq!(phases(annotations.clone()).as_deref(), Ok(expected), "{annotations}");
    };
    check(json!({HOOK: "PreSync, PostSync"}), &[(PreSync, None), (PostSync, None)]);
    check(json!({ARGO_HOOK: "SyncFail"}), &[(SyncFail, None)]);
    check(json!({ARGO_HOOK: "Skip"}), &[]);
    check(json!({HELM_HOOK: "pre-install"}), &[(PreSync, Some(Occasion::Install))]);
    check(json!({HELM_HOOK: "pre-install,pre-upgrade"}), &[(PreSync, None)]);
    check(
        json!({HELM_HOOK: "post-install,pre-upgrade"}),
        &[(PostSync, Some(Occasion::Install)), (PreSync, Some(Occasion::Upgrade))],
    );
    check(
        json!({HELM_HOOK: "pre-delete,post-delete"}),
        &[(PreDelete, None), (PostDelete, None)],
    );
    check(json!({HELM_HOOK: "test-success"}), &[(Test, None)]);
    check(json!({HELM_HOOK: "pre-rollback"}), &[]);
    // The first of the annotations counts.
    check(
        json!({HOOK: "PreDelete", ARGO_HOOK: "Sync", HELM_HOOK: "test"}),
        &[(PreDelete, None)],
    );
    assert!(
        !is_hook(&json!({HELM_HOOK: "crd-install"})) && !is_hook(&json!({})) && is_hook(&json!({HELM_HOOK: "test"}))
    );
}

#[test]
fn a_word_that_means_nothing_is_an_error() {
    let check = |annotations: Value, expected: &str| assert_eq!(phases(annotations), Err(expected.to_owned()));
    check(
        json!({HOOK: "Presync"}),
        "farwater.dev/hook is \"Presync\", and must be PreSync, Sync, PostSync, Test, SyncFail, PreDelete, PostDelete or Skip",
    );
    check(
        json!({HELM_HOOK: "test", HELM_DELETE_POLICY: "HookSucceeded"}),
        "helm.sh/hook-delete-policy is \"HookSucceeded\", and must be hook-succeeded, hook-failed or before-hook-creation",
    );
    check(
        json!({HELM_HOOK: "test", HELM_WEIGHT: "first"}),
        "helm.sh/hook-weight is \"first\", and must be an integer",
    );
}

#[test]
fn weights_and_delete_policies_are_read_in_three_spellings() {
    let check = |annotations: Value, wave: i32, succeeded: bool, failed: bool| {
        let options = read_hook(&annotations).unwrap();
        assert_eq!(
            (options.wave, options.delete),
            (wave, DeletePolicy { succeeded, failed }),
            "{annotations}"
        );
    };
    check(json!({HOOK: "Sync", WAVE: "3", HELM_WEIGHT: "-5"}), 3, false, false);
    check(
        json!({HELM_HOOK: "test", HELM_WEIGHT: "-5", HELM_DELETE_POLICY: "hook-succeeded,hook-failed"}),
        -5,
        true,
        true,
    );
    check(
        json!({ARGO_HOOK: "Sync", ARGO_WAVE: "1", ARGO_DELETE_POLICY: "BeforeHookCreation,HookFailed"}),
        1,
        false,
        true,
    );
    check(
        json!({HOOK: "Sync", HOOK_DELETE_POLICY: "HookSucceeded", HELM_DELETE_POLICY: "nonsense"}),
        0,
        true,
        false,
    );
}

fn rendered(kind: &str, name: &str, annotations: Value) -> RenderedObject {
    let api_version = if kind == "Job" { "batch/v1" } else { "v1" };
    let manifest =
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "annotations": annotations}});
    RenderedObject {
        manifest,
        origin: "a.yaml".to_owned(),
    }
}

fn resolved(objects: Vec<RenderedObject>) -> crate::plan::Resolved {
    let served = [("batch", "Job"), ("", "ConfigMap")].map(|(group, kind)| {
        let gvk = GroupVersionKind {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
        };
        (gvk, Scope::Namespaced)
    });
    let ceiling = Ceiling {
        service_account: ServiceAccount {
            namespace: "team".into(),
            name: "deployer".into(),
        },
        target_namespaces: None,
        allowed_kinds: None,
        denied_kinds: Some(vec!["Secret".into()]),
    };
    let terms = Terms {
        target_namespace: "web",
        ceiling: &ceiling,
        options: &ApplyOptions::default(),
    };
    resolve(
        Render {
            objects,
            errors: Vec::new(),
        },
        "uid",
        terms,
        &served.into(),
    )
}

#[test]
fn hooks_are_no_objects_of_the_source() {
    let objects = vec![
        rendered("ConfigMap", "settings", json!({})),
        rendered("Job", "late", json!({HOOK: "PostSync", WAVE: "1"})),
        rendered("Job", "early", json!({HOOK: "PreSync"})),
        rendered("Job", "never", json!({HOOK: "Skip"})),
    ];
    let resolved = resolved(objects);
    let names: Vec<&str> = resolved.hooks.iter().map(|hook| hook.object.name.as_str()).collect();
    assert_eq!(names, ["early", "late"]);
    assert_eq!(resolved.stated(), 1);
    assert!(resolved.objects.iter().all(|object| object.object.kind == "ConfigMap"));
    assert_eq!(resolved.hooks[0].object.namespace, "web");
    assert!(resolved.hooks[0].body.contains("farwater.dev/owner"));
}

#[test]
fn a_hook_that_breaks_a_rule_holds_what_comes_after_it() {
    let objects = vec![
        rendered("Job", "typo", json!({HOOK: "Before"})),
        rendered("Widget", "unknown", json!({HOOK: "PostSync"})),
        rendered("Job", "one", json!({HOOK: "PreSync"})),
        rendered("Job", "one", json!({HOOK: "PreSync"})),
    ];
    let resolved = resolved(objects);
    let skipped: Vec<(&str, i32)> = resolved
        .skipped
        .iter()
        .map(|s| (s.object.name.as_str(), s.wave))
        .collect();
    assert_eq!(
        skipped,
        [("typo", i32::MIN), ("unknown", i32::MAX - 1), ("one", i32::MIN)]
    );
}

#[test]
fn a_generated_name_is_the_same_each_time() {
    let job = |image: &str| {
        let manifest = json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"generateName": "migrate-", "annotations": {ARGO_HOOK: "PreSync"}}, "spec": {"image": image}});
        let resolved = resolved(vec![RenderedObject {
            manifest,
            origin: "a.yaml".to_owned(),
        }]);
        resolved.hooks[0].object.name.clone()
    };
    assert!(job("a").starts_with("migrate-") && job("a").len() == "migrate-".len() + SUFFIX);
    assert_eq!(job("a"), job("a"));
    assert_ne!(job("a"), job("b"));
}
