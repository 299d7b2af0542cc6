use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::plan::hooks::Step;

fn object(name: &str) -> ObjectRef {
    ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: "web".into(),
        name: name.into(),
    }
}

pub(super) fn hook(name: &str, phase: HookPhase, only: Option<Occasion>, wave: i32) -> ResolvedHook {
    ResolvedHook {
        object: object(name),
        body: String::new(),
        hash: Digest::of(name),
        steps: vec![Step { phase, only }],
        wave,
        delete: DeletePolicy::default(),
        test: None,
    }
}

pub(super) fn run(record: &Record, hook: &ResolvedHook, state: HookState) -> Run {
    Run {
        object: hook.object.clone(),
        phase: hook.steps[0].phase,
        id: record.id(hook, hook.steps[0].phase),
        uid: "uid".into(),
        hash: hook.hash,
        terms: Digest::of("terms"),
        state,
        message: String::new(),
        test: None,
        started: None,
        ended: None,
        exit_code: None,
        delete: hook.delete,
        ttl: None,
        removed: false,
    }
}

#[test]
fn an_object_goes_by_its_policy_or_its_time_to_live_once_its_end_is_known() {
    let now: Timestamp = "2026-12-24T12:00:30Z".parse().unwrap();
    let ended = Some(Time("2026-12-24T12:00:00Z".parse().unwrap()));
    let (record, hook) = (first("1"), hook("a", HookPhase::PreSync, None, 0));
    let check = |state: HookState, ttl: Option<u32>, expected: Option<u64>| {
        let run = Run {
            ttl,
            ended: ended.clone(),
            delete: DeletePolicy::default(),
            ..run(&record, &hook, state)
        };
        assert_eq!(
            run.goes_in(now).map(|left| left.as_secs()),
            expected,
            "{state:?} {ttl:?}"
        );
    };
    check(HookState::Running, Some(0), None);
    check(HookState::Succeeded, None, None);
    check(HookState::Succeeded, Some(0), Some(0));
    check(HookState::Failed, Some(100), Some(70));
}

fn first(version: &str) -> Record {
    Record::next(None, Digest::of(version), false)
}

fn ask<'a>(hooks: &'a [ResolvedHook], record: &'a Record, last: i32) -> Next<'a> {
    next(hooks, record, HookPhase::PreSync, Digest::of("terms"), last)
}

#[test]
fn hooks_of_a_wave_run_beside_each_other_and_waves_one_after_another() {
    let hooks = [("b", 0), ("c", 1), ("a", 0)].map(|(name, wave)| hook(name, HookPhase::PreSync, None, wave));
    let [b, c, a] = &hooks;
    let mut record = first("1");
    assert_eq!(ask(&hooks, &record, i32::MAX), Next::Start(vec![b, a]));
    record.note(run(&record, b, HookState::Failed));
    assert_eq!(ask(&hooks, &record, i32::MAX), Next::Start(vec![a]));
    record.note(run(&record, a, HookState::Running));
    assert!(matches!(ask(&hooks, &record, i32::MAX), Next::Running(run) if run.object.name == "a"));
    record.note(run(&record, a, HookState::Succeeded));
    assert!(matches!(ask(&hooks, &record, i32::MAX), Next::Failed(run) if run.object.name == "b"));
    record.note(run(&record, b, HookState::Succeeded));
    assert_eq!(ask(&hooks, &record, i32::MAX), Next::Start(vec![c]));
    assert_eq!(ask(&hooks, &record, 0), Next::Done);
    record.note(run(&record, c, HookState::Succeeded));
    assert_eq!(ask(&hooks, &record, i32::MAX), Next::Done);
    assert_eq!(
        next(&hooks, &record, HookPhase::PostSync, Digest::of("terms"), i32::MAX),
        Next::Done
    );
}

#[test]
fn what_failed_runs_again_with_other_terms_and_what_succeeded_does_not() {
    let hooks = [
        hook("a", HookPhase::PreSync, None, 0),
        hook("b", HookPhase::PreSync, None, 0),
    ];
    let mut record = first("1");
    record.note(run(&record, &hooks[0], HookState::Failed));
    record.note(run(&record, &hooks[1], HookState::Succeeded));
    assert!(matches!(ask(&hooks, &record, 0), Next::Failed(_)));
    let other = next(&hooks, &record, HookPhase::PreSync, Digest::of("another secret"), 0);
    assert_eq!(other, Next::Start(vec![&hooks[0]]));
}

#[test]
fn a_run_that_failed_is_retried_once_and_for_its_version_alone() {
    let hooks = [
        hook("a", HookPhase::PreSync, None, 0),
        hook("b", HookPhase::PreSync, None, 0),
    ];
    let [a, b] = &hooks;
    let mut record = first("1");
    record.note(run(&record, a, HookState::Failed));
    record.note(run(&record, b, HookState::Succeeded));
    let [failed, fine] = [a, b].map(|hook| record.id(hook, HookPhase::PreSync));
    let before = record.clone();
    record.retry(fine);
    record.retry(Digest::of("of another version"));
    assert_eq!(record, before);

    record.retry(failed);
    assert_eq!(ask(&hooks, &record, 0), Next::Start(vec![a]));
    // The remains of the earlier run are removed before another one.
    assert_eq!(
        (record.former.len(), record.id(a, HookPhase::PreSync) != failed),
        (1, true)
    );
    record.note(run(&record, a, HookState::Failed));
    let text = serde_json::to_string(&record).unwrap();
    record = serde_json::from_str(&text).unwrap();
    record.retry(failed);
    assert!(matches!(ask(&hooks, &record, 0), Next::Failed(_)), "one word, one run");
    // A repeated request names the newest run.
    record.retry(record.id(a, HookPhase::PreSync));
    assert_eq!(ask(&hooks, &record, 0), Next::Start(vec![a]));

    let mut next = Record::next(Some(before.clone()), Digest::of("2"), true);
    next.note(run(&next, a, HookState::Failed));
    next.retry(failed);
    assert_eq!(ask(&hooks, &next, 0), Next::Start(vec![b]), "the other has failed");
    let mut complete = Record {
        complete: true,
        ..before
    };
    complete.retry(failed);
    assert!(complete.retried.is_empty(), "all that follows it is in place");
}

#[test]
fn a_version_that_comes_back_runs_its_hooks_again() {
    let hooks = [hook("a", HookPhase::PreSync, None, 0)];
    let mut record = first("1");
    record.note(run(&record, &hooks[0], HookState::Succeeded));
    let id = record.id(&hooks[0], HookPhase::PreSync);
    let same = Record::next(Some(record.clone()), Digest::of("1"), true);
    assert_eq!(same, record);
    let second = Record::next(Some(record), Digest::of("2"), true);
    assert_eq!((second.number, second.runs.len(), second.former.len()), (2, 0, 1));
    let third = Record::next(Some(second), Digest::of("1"), true);
    assert_eq!(ask(&hooks, &third, 0), Next::Start(vec![&hooks[0]]));
    assert_ne!(third.id(&hooks[0], HookPhase::PreSync), id);
}

#[test]
fn it_is_an_install_until_a_version_was_in_place() {
    let hooks = [
        hook("install", HookPhase::PreSync, Some(Occasion::Install), 0),
        hook("upgrade", HookPhase::PreSync, Some(Occasion::Upgrade), 0),
    ];
    let check = |record: &Record, expected: usize| {
        assert_eq!(ask(&hooks, record, 0), Next::Start(vec![&hooks[expected]]));
    };
    let one = first("1");
    check(&one, 0);
    let mut two = Record::next(Some(one), Digest::of("2"), true);
    check(&two, 0);
    two.complete = true;
    // A completed version starts no further hook, except tests.
    assert_eq!(ask(&hooks, &two, 0), Next::Done);
    let tests = [hook("smoke", HookPhase::Test, None, 0)];
    assert_eq!(
        next(&tests, &two, HookPhase::Test, Digest::of("terms"), 0),
        Next::Start(vec![&tests[0]])
    );
    check(&Record::next(Some(two), Digest::of("3"), true), 1);
    check(&Record::next(None, Digest::of("1"), true), 1);
}

#[test]
fn an_object_has_one_run_that_counts() {
    let hooks = [
        hook("a", HookPhase::PreSync, None, 0),
        hook("a", HookPhase::PostSync, None, 0),
    ];
    let mut record = first("1");
    record.note(run(&record, &hooks[0], HookState::Succeeded));
    record.note(run(&record, &hooks[1], HookState::Running));
    assert_eq!(
        record.runs.iter().map(|run| run.removed).collect::<Vec<_>>(),
        [true, false]
    );
    record.retire(&[]);
    assert_eq!((record.runs.len(), record.former.len()), (0, 1));
}

#[test]
fn jobs_and_pods_have_ended_when_they_say_so() {
    let job = |conditions: Value| json!({"apiVersion": "batch/v1", "kind": "Job", "status": {"startTime": "2026-01-01T00:00:00Z", "conditions": conditions}});
    let check = |object: Value, state: HookState, is_ending: bool, message: &str| {
        let progress = judge(&Rules::default(), &object);
        assert_eq!(
            (progress.state, progress.is_ending, progress.message.as_str()),
            (state, is_ending, message)
        );
    };
    check(job(json!([])), HookState::Running, false, "");
    check(
        job(json!([{"type": "Suspended", "status": "True"}])),
        HookState::Running,
        false,
        "",
    );
    check(
        job(json!([{"type": "Complete", "status": "True"}])),
        HookState::Succeeded,
        false,
        "",
    );
    check(
        job(json!([{"type": "Complete", "status": "False"}])),
        HookState::Running,
        false,
        "",
    );
    let failing = json!({"type": "FailureTarget", "status": "True"});
    check(job(json!([failing])), HookState::Running, true, "");
    let failed = json!({"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long",
        "lastTransitionTime": "2026-01-01T00:00:09Z"});
    check(
        job(json!([failing, failed])),
        HookState::Failed,
        true,
        "DeadlineExceeded: too long",
    );
    assert!(judge(&Rules::default(), &job(json!([failed]))).ended.is_some());
    let pod = |phase: &str| json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase, "reason": "Evicted"}});
    check(pod("Pending"), HookState::Running, false, "");
    check(pod("Succeeded"), HookState::Succeeded, false, "");
    check(pod("Failed"), HookState::Failed, false, "Evicted");
    check(
        json!({"apiVersion": "v1", "kind": "ConfigMap"}),
        HookState::Succeeded,
        false,
        "",
    );
}

#[test]
fn a_hook_of_another_kind_has_ended_when_its_rule_says_so() {
    let rule = |kind: &str| farwater_api::HealthRuleSpec {
        group: "example.com".into(),
        kind: kind.into(),
        failed: Some("self.status.phase == 'Sunk'".into()),
        current: "self.status.phase == 'Afloat'".into(),
        message: Some("self.status.phase".into()),
        ..Default::default()
    };
    let rules = Rules::compile(&[rule("Boat")], Default::default());
    let check = |object: Value, state: HookState, message: &str| {
        let progress = judge(&rules, &object);
        assert_eq!((progress.state, progress.message.as_str()), (state, message));
    };
    let boat = |phase: &str| json!({"apiVersion": "example.com/v1", "kind": "Boat", "status": {"phase": phase}});
    check(boat("Launching"), HookState::Running, "Launching");
    check(boat("Afloat"), HookState::Succeeded, "");
    check(boat("Sunk"), HookState::Failed, "Sunk");
    let mut built = boat("Sunk");
    built["metadata"] = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
    let progress = judge(&rules, &built);
    assert!(progress.started.is_some() && progress.ended.is_none());
    // The state is unknown, so the hook is waited for.
    let unseen = "health rule of the service can't judge it: failed: there is no \"status\"";
    check(
        json!({"apiVersion": "example.com/v1", "kind": "Boat"}),
        HookState::Running,
        unseen,
    );
    // A Job and a Pod have their own rules for how they ended.
    let mut of_pods = rule("Pod");
    of_pods.group.clear();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Succeeded"}});
    assert_eq!(
        judge(&Rules::compile(&[of_pods], Default::default()), &pod).state,
        HookState::Succeeded
    );
}

proptest! {
    /// However hooks end and whenever the agent restarts: each hook runs once for its version, in the order of the
    /// waves.
    #[test]
    fn every_hook_runs_once(waves in prop::collection::vec(-2..3i32, 1..8), course in prop::collection::vec(any::<bool>(), 0..64)) {
        let hooks: Vec<ResolvedHook> =
            waves.iter().enumerate().map(|(i, wave)| hook(&i.to_string(), HookPhase::PreSync, None, *wave)).collect();
        let mut record = first("1");
        let mut begun: Vec<(i32, String)> = Vec::new();
        let mut restarts = course.into_iter();
        for _ in 0..64 {
            if restarts.next() == Some(true) {
                let text = serde_json::to_string(&record).unwrap();
                record = Record::next(Some(serde_json::from_str(&text).unwrap()), Digest::of("1"), true);
            }
            match ask(&hooks, &record, i32::MAX) {
                Next::Start(list) => {
                    let runs: Vec<Run> = list.iter().map(|hook| run(&record, hook, HookState::Running)).collect();
                    begun.extend(list.iter().map(|hook| (hook.wave, hook.object.name.clone())));
                    runs.into_iter().for_each(|run| record.note(run));
                }
                Next::Running(run) => {
                    let ended = Run { state: HookState::Succeeded, ..run.clone() };
                    record.note(ended);
                }
                Next::Failed(_) => prop_assert!(false),
                Next::Done => break,
            }
        }
        prop_assert_eq!(ask(&hooks, &record, i32::MAX), Next::Done);
        prop_assert_eq!(begun.len(), hooks.len());
        prop_assert!(begun.is_sorted_by_key(|(wave, _)| *wave));
    }
}

#[test]
fn another_bundle_value_patch_or_parameter_is_another_version_and_an_option_is_none() {
    let deployment = |changes: serde_json::Value| -> Deployment {
        let mut stated = json!({"bundle": Digest::of("b"), "bundleBytes": 1, "path": "app", "targetNamespace": "web", "prune": true,
            "ceiling": {"serviceAccount": {"namespace": "n", "name": "a"}}});
        stated
            .as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        serde_json::from_value(stated).unwrap()
    };
    let before = version_of(&deployment(json!({})));
    for other in [
        json!({"bundle": Digest::of("c")}),
        json!({"path": "other"}),
        json!({"targetNamespace": "other"}),
        json!({"renderers": [{"helm": {"values": {"a": 1}}}]}),
        json!({"patches": [{"patch": "{}"}]}),
        json!({"parameters": Digest::of("p")}),
        json!({"configuration": {"imageTag": "2"}}),
    ] {
        assert_ne!(version_of(&deployment(other.clone())), before, "{other}");
    }
    let parameters = |mac: &str| version_of(&deployment(json!({"parameters": Digest::of(mac)})));
    assert_ne!(parameters("p"), parameters("q"));
    for same in [
        json!({"secrets": Digest::of("s")}),
        json!({"options": {"drift": "Report"}}),
        json!({"turn": 3}),
    ] {
        assert_eq!(version_of(&deployment(same.clone())), before, "{same}");
    }
}
