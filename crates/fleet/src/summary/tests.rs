use farwater_api::{
    apply_options::ApplyOptions,
    deletion::Deletion,
    objects::ObjectRef,
    protocol::{Ceiling, Deployment, ServiceAccount},
    service_deployment::HeldPrune,
};

use super::*;
use crate::{assignment::Trouble, windows::Closed};

fn candidate() -> Candidate {
    Candidate::of_commit("abc")
}

fn apply() -> Action {
    Action::Apply(Deployment {
        bundle: Digest::of("bundle"),
        bundle_bytes: 1,
        path: String::new(),
        renderers: Vec::new(),
        patches: Vec::new(),
        target_namespace: "web".to_owned(),
        prune: true,
        ceiling: Ceiling {
            service_account: ServiceAccount {
                namespace: "a".to_owned(),
                name: "b".to_owned(),
            },
            target_namespaces: None,
            allowed_kinds: None,
            denied_kinds: None,
        },
        secrets: None,
        parameters: None,
        approved_prune: None,
        options: ApplyOptions::default(),
        hold_prune: None,
        configuration: Default::default(),
        origin: None,
        undo: None,
        retry_hook: None,
        turn: 0,
        tests: Vec::new(),
        health: Vec::new(),
    })
}

fn object(name: &str, sync: SyncState, health: Health, message: &str) -> ObjectReport {
    let object = ObjectRef {
        group: "apps".to_owned(),
        version: "v1".to_owned(),
        kind: "Deployment".to_owned(),
        namespace: "web".to_owned(),
        name: name.to_owned(),
    };
    ObjectReport {
        object,
        sync,
        health,
        message: message.to_owned(),
        waits_for: None,
    }
}

fn report(outcome: Outcome, objects: Vec<ObjectReport>) -> ServiceReport {
    ServiceReport {
        entry: Digest::of("entry"),
        outcome,
        message: String::new(),
        held_prune: None,
        deletion: None,
        hooks: Vec::new(),
        objects,
    }
}

struct Case {
    why: Why,
    action: Action,
    assigned: Option<Candidate>,
    deleting: bool,
    joined: bool,
    silent: bool,
    frozen: bool,
    report: Option<ServiceReport>,
    previous: ServiceDeploymentStatus,
    stale: Option<&'static str>,
    held: Option<&'static str>,
    pin: Option<Pin>,
    pinned: Option<&'static str>,
}

impl Case {
    fn new(report: Option<ServiceReport>) -> Self {
        Self {
            why: Why::Current,
            action: apply(),
            assigned: Some(candidate()),
            deleting: false,
            joined: true,
            silent: false,
            frozen: false,
            report,
            previous: ServiceDeploymentStatus::default(),
            held: None,
            pin: None,
            pinned: None,
            stale: None,
        }
    }

    fn status(&self) -> ServiceDeploymentStatus {
        let now = Timestamp::from_second(1_000).unwrap();
        summarize(Inputs {
            generation: 3,
            deleting: self.deleting,
            cluster: "east",
            joined: self.joined,
            silent: self.silent,
            frozen: self.frozen,
            assigned: self.assigned.as_ref(),
            held: self.held,
            pin: self.pin.as_ref(),
            pinned: self.pinned,
            why: &self.why,
            action: &self.action,
            entry: Digest::of("entry"),
            report: self.report.as_ref(),
            report_time: Some(now),
            requested_at: None,
            stale: self.stale,
            previous: &self.previous,
            now,
        })
    }

    /// Compares the conditions, one per line: `Type=Status Reason: message`.
    #[track_caller]
    fn check(&self, expected: &[&str]) -> ServiceDeploymentStatus {
        let status = self.status();
        let said: Vec<String> = status
            .conditions
            .iter()
            .map(|c| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message))
            .collect();
        assert_eq!(said, expected);
        status
    }
}

#[test]
fn a_service_is_ready_when_everything_applied_is_healthy() {
    let objects = vec![object("web", SyncState::Synced, Health::Current, "")];
    let status = Case::new(Some(report(Outcome::Applied, objects)))
        .check(&["Ready=True Applied: applied main@sha1:abc; 1 object is healthy"]);
    assert_eq!(status.applied_revision.as_deref(), Some("main@sha1:abc"));
    assert_eq!(status.observed_generation, Some(3));
}

#[test]
fn a_report_about_an_older_entry_says_nothing_about_now() {
    let mut old = report(
        Outcome::Applied,
        vec![object("web", SyncState::Synced, Health::Current, "")],
    );
    old.entry = Digest::of("yesterday");
    let waits = "waits for the agent of cluster east to apply main@sha1:abc";
    let status = Case::new(Some(old)).check(&[
        &format!("Ready=False WaitingForAgent: {waits}"),
        &format!("Reconciling=True WaitingForAgent: {waits}"),
    ]);
    assert_eq!(status.applied_revision, None);
}

#[test]
fn a_cluster_that_never_joined_is_named_with_the_command() {
    let case = Case {
        joined: false,
        ..Case::new(None)
    };
    let message = "cluster east has not joined; run: farwater cluster join east";
    case.check(&[
        &format!("Ready=False WaitingForAgent: {message}"),
        &format!("Reconciling=True WaitingForAgent: {message}"),
    ]);
}

#[test]
fn failed_objects_come_first_and_are_named() {
    let objects = vec![
        object("slow", SyncState::Synced, Health::InProgress, "1 of 2 replicas"),
        object("bad", SyncState::Refused, Health::Unknown, "forbidden"),
    ];
    let message = "1 of 2 objects failed: Deployment.apps web/bad: forbidden";
    let status = Case::new(Some(report(Outcome::Applied, objects))).check(&[
        &format!("Ready=False Unhealthy: {message}"),
        &format!("Stalled=True Unhealthy: {message}"),
    ]);
    let names: Vec<_> = status.unhealthy.iter().map(|u| u.object.name.as_str()).collect();
    assert_eq!(names, ["bad", "slow"]);
    assert_eq!(
        status.objects,
        Some(ObjectCounts {
            total: 2,
            healthy: 0,
            progressing: 1,
            failed: 1
        })
    );
}

#[test]
fn a_drift_that_is_left_is_a_condition_and_no_failure() {
    let objects = vec![
        object(
            "a",
            SyncState::Drifted,
            Health::Current,
            "others changed it: .data.value (somebody)",
        ),
        object("b", SyncState::Synced, Health::Current, ""),
    ];
    Case::new(Some(report(Outcome::Applied, objects))).check(&[
        "Ready=True Applied: applied main@sha1:abc; 2 objects are healthy",
        "Drifted=True ChangedByOthers: 1 object differs from the source: Deployment.apps web/a: others changed it: .data.value (somebody)",
    ]);
}

#[test]
fn parameters_that_are_about_to_come_are_no_failure() {
    let check = |message: &str, expected: &str| {
        let why = Why::Trouble(Trouble::Parameters {
            message: message.to_owned(),
        });
        let status = Case { why, ..Case::new(None) }.status();
        let kinds: Vec<&str> = status
            .conditions
            .iter()
            .map(|condition| condition.type_.as_str())
            .collect();
        assert_eq!(
            (kinds, &*status.conditions[1].reason),
            (vec!["Ready", expected], "ParametersNotReady")
        );
    };
    check(
        &format!("{WAITS}Secret kv/db of backend vault, which was not read yet"),
        "Reconciling",
    );
    check("ConfigMap sizes has no key cpu", "Stalled");
}

#[test]
fn values_that_are_old_are_a_condition_and_no_failure() {
    let why = "kv/db is as it was read at 2026-11-23T08:00:00Z: backend vault: Vault is not ready (503)";
    let case = Case {
        stale: Some(why),
        ..Case::new(Some(report(Outcome::Applied, Vec::new())))
    };
    let status = case.status();
    let said = |kind: &str| {
        status
            .conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .unwrap()
    };
    assert_eq!(said("Ready").status, "True");
    let stale = said("SecretsStale");
    assert_eq!(
        (&*stale.status, &*stale.reason, &*stale.message),
        ("True", "BackendFailed", why)
    );
}

fn held_case() -> Case {
    let mut held = report(
        Outcome::Applied,
        vec![object("old", SyncState::PruneHeld, Health::Current, "")],
    );
    held.held_prune = Some(HeldPrune {
        digest: Digest::of("plan"),
        reason: "nothing would be left".to_owned(),
        count: 4,
        objects: vec![],
        contents: vec![],
        until_applied: false,
        earlier: Vec::new(),
    });
    Case::new(Some(held))
}

#[test]
fn a_held_prune_is_a_condition_of_its_own() {
    let status = held_case().check(&[
        "Ready=False PruneHeld: 4 objects wait to be pruned: nothing would be left",
        "PruneHeld=True ApprovalNeeded: 4 objects wait to be pruned: nothing would be left",
    ]);
    assert_eq!(status.objects.unwrap().total, 0);
    assert_eq!(status.held_prune.unwrap().count, 4);
    // While deletions are frozen in the fleet, an approval doesn't help.
    let frozen = Case {
        frozen: true,
        ..held_case()
    };
    let status = frozen.status();
    let held = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "PruneHeld")
        .unwrap();
    assert_eq!((held.status.as_str(), held.reason.as_str()), ("True", FLEET_FROZEN));
}

#[test]
fn a_deletion_keeps_the_name_of_who_approved_it() {
    let plan = Digest::of("plan");
    let deletion = Deletion {
        digest: plan,
        time: 900,
        count: 1,
        objects: Vec::new(),
        lost: 0,
        approved_plan: None,
        undone: None,
    };
    let mut done = report(Outcome::Applied, Vec::new());
    done.deletion = Some(deletion.clone());
    let mut case = Case::new(Some(done));
    let approver = |case: &Case| case.status().last_deletion.unwrap().approved_by;
    case.previous.approved_by = Some("ann".to_owned());
    assert_eq!(approver(&case), None);
    let Action::Apply(deployment) = &mut case.action else {
        panic!("an action to apply")
    };
    deployment.approved_prune = Some(plan);
    assert_eq!(approver(&case).as_deref(), Some("ann"));
    // The approval was withdrawn. It doesn't count for another deletion.
    case.previous = ServiceDeploymentStatus {
        last_deletion: case.status().last_deletion,
        ..Default::default()
    };
    let Action::Apply(deployment) = &mut case.action else {
        panic!("an action to apply")
    };
    deployment.approved_prune = None;
    assert_eq!(approver(&case).as_deref(), Some("ann"));
    let mut later = report(Outcome::Applied, Vec::new());
    later.deletion = Some(Deletion { time: 950, ..deletion });
    case.report = Some(later);
    assert_eq!(approver(&case), None);
}

#[test]
fn a_removal_that_waits_for_a_silent_agent_names_the_way_out() {
    let removal = |policy| Action::Remove {
        policy,
        approved_prune: None,
    };
    let case = |policy, silent, report| Case {
        deleting: true,
        action: removal(policy),
        silent,
        ..Case::new(report)
    };
    let said = |case: Case| case.status().conditions[0].message.clone();
    let waits = "waits for the agent of cluster east to confirm the removal";
    assert_eq!(said(case(DeletionPolicy::Delete, false, None)), waits);
    assert_eq!(said(case(DeletionPolicy::Orphan, true, None)), waits);
    let exit = format!("the agent is silent: {REMOVAL_EXIT}");
    assert_eq!(
        said(case(DeletionPolicy::Delete, true, None)),
        format!("{waits}; {exit}")
    );
    let mut left = report(Outcome::Applying, Vec::new());
    left.message = "3 objects still to be deleted".to_owned();
    assert_eq!(
        said(case(DeletionPolicy::Delete, true, Some(left))),
        format!("3 objects still to be deleted; {exit}")
    );
}

#[test]
fn trouble_keeps_what_is_assigned_and_says_so() {
    let trouble = Trouble::Bundle {
        revision: "main@sha1:def".to_owned(),
        message: "apps/web/kustomization.yaml:3: ../../../etc leaves the repository".to_owned(),
    };
    let case = Case {
        why: Why::Trouble(trouble),
        ..Case::new(None)
    };
    let message = "main@sha1:def: apps/web/kustomization.yaml:3: ../../../etc leaves the repository; main@sha1:abc stays assigned";
    let status = case.check(&[
        &format!("Ready=False BundleFailed: {message}"),
        &format!("Stalled=True BundleFailed: {message}"),
    ]);
    assert_eq!(status.assigned_revision.as_deref(), Some("main@sha1:abc"));
}

#[test]
fn a_lost_grant_stalls_and_a_suspension_is_unknown() {
    let hold = |reason: &str| Action::Hold {
        reason: reason.to_owned(),
    };
    let lost = Case {
        why: Why::NotGranted("no grant".to_owned()),
        action: hold("no grant"),
        ..Case::new(None)
    };
    lost.check(&["Ready=False NotGranted: no grant", "Stalled=True NotGranted: no grant"]);
    let suspended = Case {
        why: Why::Suspended,
        action: hold("the service is suspended"),
        ..Case::new(None)
    };
    suspended.check(&["Ready=Unknown Held: held: the service is suspended"]);
}

#[test]
fn a_status_never_exceeds_four_kilobytes() {
    let long = "x".repeat(250);
    let objects: Vec<_> = (0..20)
        .map(|_| object(&long, SyncState::Refused, Health::Failed, &"y".repeat(1024)))
        .collect();
    let mut huge = report(Outcome::Failed, objects);
    huge.message = "z".repeat(4096);
    huge.held_prune = Some(HeldPrune {
        digest: Digest::of("plan"),
        reason: long.clone(),
        count: 50,
        objects: (0..50)
            .map(|_| object(&long, SyncState::PruneHeld, Health::Current, "").object)
            .collect(),
        contents: vec![],
        until_applied: false,
        earlier: Vec::new(),
    });
    let status = Case::new(Some(huge)).status();
    assert!(serde_json::to_vec(&status).unwrap().len() <= MAX_STATUS_BYTES);
    assert_eq!(status.held_prune.unwrap().count, 50);
    assert!(!status.unhealthy.is_empty());
}

#[test]
fn what_only_a_newer_hub_understands_is_neither_applied_nor_removed() {
    let mut said = report(
        Outcome::Unknown,
        vec![object("a", SyncState::Unknown, Health::Current, "")],
    );
    said.message = "paused".to_owned();
    let status = Case::new(Some(said)).status();
    let ready = &status.conditions[0];
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("Unknown", "ReportUnknown")
    );
    assert!(ready.message.contains("upgrade the hub: paused"), "{}", ready.message);
    assert_eq!((status.applied_revision, status.objects.unwrap().healthy), (None, 0));
}

const NEWER: Option<&str> = Some("main@sha1:def");

#[test]
fn a_pin_says_by_whom_it_is_and_what_it_holds_back() {
    let objects = vec![object("web", SyncState::Synced, Health::Current, "")];
    let pin = Pin {
        bundle: candidate().bundle,
        reason: Some("def crashes".to_owned()),
    };
    let previous = ServiceDeploymentStatus {
        pinned_by: Some("ann".to_owned()),
        ..ServiceDeploymentStatus::default()
    };
    let mut pinned = Case {
        held: NEWER,
        pin: Some(pin),
        pinned: Some("main@sha1:abc"),
        previous,
        ..Case::new(Some(report(Outcome::Applied, objects)))
    };
    let status = pinned.check(&[
        "Ready=True Applied: applied main@sha1:abc and pinned; 1 object is healthy",
        "Pinned=True Pinned: pinned to main@sha1:abc by ann (def crashes); main@sha1:def is held back",
    ]);
    assert_eq!(
        (status.held_revision.as_deref(), status.pinned_by.as_deref()),
        (NEWER, Some("ann"))
    );

    // A freeze holds the pin itself.
    pinned.assigned = Some(Candidate::of_commit("def"));
    pinned.held = pinned.pinned;
    pinned.why = Why::Frozen(holidays());
    let status = pinned.check(&[
        "Ready=True Applied: applied main@sha1:def; 1 object is healthy",
        "Pinned=True Pinned: pinned to main@sha1:abc by ann (def crashes); main@sha1:abc is held back",
        &format!("Frozen=True WindowClosed: {HOLIDAYS}"),
    ]);
    assert_eq!(status.held_revision.as_deref(), Some("main@sha1:abc"));
}

#[test]
fn a_member_says_that_its_rollout_holds_a_newer_version() {
    let check = |why, held, expected: &str| {
        let member = Case {
            why,
            held,
            ..Case::new(Some(report(Outcome::Applied, Vec::new())))
        };
        let ready = "Ready=True Applied: applied main@sha1:abc; 0 objects are healthy";
        member.check(&[ready, expected]);
    };
    check(
        Why::Rollout,
        NEWER,
        "RolloutHeld=True NotReleased: main@sha1:def waits for the rollout of its set",
    );
    check(
        Why::Rollout,
        None,
        "RolloutHeld=True NotReleased: a newer spec or newer parameters wait for the rollout of its set",
    );
    check(
        Why::Current,
        NEWER,
        "RolloutHeld=True RolledBack: main@sha1:def is held back: the rollout of its set went back to an earlier version",
    );
}

#[test]
fn what_waits_for_a_dependency_is_named_with_what_it_waits_for() {
    let why = Why::Waiting("waits for service database, which does not exist".to_owned());
    let message = "main@sha1:def waits for service database, which does not exist; main@sha1:abc stays assigned";
    let waiting = Case {
        why,
        held: NEWER,
        ..Case::new(None)
    };
    let status = waiting.check(&[
        &format!("Ready=False DependencyNotReady: {message}"),
        &format!("Reconciling=True DependencyNotReady: {message}"),
    ]);
    assert_eq!(status.held_revision.as_deref(), NEWER);
}

const HOLIDAYS: &str = "ChangeWindow ops/holidays lets no change begin until 2027-01-04T06:00:00Z: holidays";

fn holidays() -> Closed {
    Closed {
        by: "ops/holidays".to_owned(),
        reason: "holidays".to_owned(),
        until: Some("2027-01-04T06:00:00Z".parse().unwrap()),
    }
}

#[test]
fn what_no_change_window_lets_begin_is_told_beside_how_it_runs() {
    let (told, why) = (HOLIDAYS, Why::Frozen(holidays()));
    let report = report(Outcome::Applied, Vec::new());
    let runs = Case {
        why: why.clone(),
        held: NEWER,
        ..Case::new(Some(report))
    };
    let status = runs.check(&[
        "Ready=True Applied: applied main@sha1:abc; 0 objects are healthy",
        &format!("Frozen=True WindowClosed: {told}"),
    ]);
    assert_eq!(status.held_revision.as_deref(), NEWER);
    let held = Action::Hold {
        reason: told.to_owned(),
    };
    let new = Case {
        why,
        action: held,
        assigned: None,
        ..Case::new(None)
    };
    new.check(&[
        &format!("Ready=False Progressing: {told}"),
        &format!("Reconciling=True Progressing: {told}"),
        &format!("Frozen=True WindowClosed: {told}"),
    ]);
}

fn hook(phase: &str, name: &str, state: &str, test: Option<&str>) -> HookReport {
    serde_json::from_value(serde_json::json!({
        "group": "batch", "version": "v1", "kind": "Job", "namespace": "web", "name": name, "phase": phase, "run": Digest::of(name),
        "state": state, "test": test,
    }))
    .unwrap()
}

#[test]
fn a_hook_or_test_that_failed_is_named_as_what_is_wrong() {
    let check = |hooks: Vec<HookReport>, message: &str, expected: &str| {
        let failed = ServiceReport {
            message: message.to_owned(),
            hooks,
            ..report(Outcome::Failed, Vec::new())
        };
        let status = Case::new(Some(failed)).status();
        let ready = &status.conditions[0];
        assert_eq!(
            format!("{}={} {}: {}", ready.type_, ready.status, ready.reason, ready.message),
            expected
        );
        status.hooks.unwrap()
    };
    let hooks = vec![
        hook("PreSync", "migrate", "Succeeded", None),
        hook("Test", "web-test-smoke", "Failed", Some("smoke")),
        hook("SyncFail", "alarm", "Failed", None),
    ];
    let counts = check(
        hooks,
        "test smoke failed: exit code 3",
        "Ready=False TestFailed: main@sha1:abc failed its tests: test smoke failed: exit code 3",
    );
    assert_eq!((counts.running, counts.succeeded, counts.failed), (0, 1, 2));
    check(
        vec![hook("PreSync", "migrate", "Failed", None)],
        "PreSync hook failed",
        "Ready=False HookFailed: a hook of main@sha1:abc failed: PreSync hook failed",
    );
}

#[test]
fn a_service_is_not_ready_before_its_tests_have_run() {
    let healthy = report(
        Outcome::Applied,
        vec![object("web", SyncState::Synced, Health::Current, "")],
    );
    let mut case = Case::new(Some(healthy.clone()));
    let Action::Apply(deployment) = &mut case.action else {
        panic!("an action to apply")
    };
    deployment.tests = vec![serde_json::from_value(serde_json::json!({"name": "smoke", "image": "curl"})).unwrap()];
    let status = case.status();
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.reason == "TestNotRun" && c.message.contains("test smoke")),
        "{status:?}"
    );
    let hooks = vec![hook("Test", "web-test-smoke", "Succeeded", Some("smoke"))];
    case.report = Some(ServiceReport { hooks, ..healthy });
    case.check(&["Ready=True Applied: applied main@sha1:abc; 1 object is healthy"]);
}

#[test]
fn what_became_of_a_service_is_told_once() {
    let fine = || {
        Case::new(Some(report(
            Outcome::Applied,
            vec![object("a", SyncState::Synced, Health::Current, "")],
        )))
    };
    let failed = || {
        let objects = vec![object("a", SyncState::Synced, Health::Failed, "crashes")];
        Case::new(Some(report(Outcome::Applied, objects)))
    };
    let said = |before: &ServiceDeploymentStatus, now: &ServiceDeploymentStatus| -> Vec<String> {
        let sign = |news: &News| if news.is_warning { "!" } else { "" };
        news(before, now, None)
            .iter()
            .map(|news| format!("{}{}: {}", sign(news), news.reason, news.message))
            .collect()
    };
    let nothing = ServiceDeploymentStatus::default();
    let first = fine().status();
    assert_eq!(said(&nothing, &first), ["Applied: applied main@sha1:abc"]);
    assert_eq!(
        said(
            &first,
            &Case {
                previous: first.clone(),
                ..fine()
            }
            .status()
        ),
        Vec::<String>::new()
    );
    // If an older hub recorded the version as applied, that is not news, but the time is recorded.
    let old = ServiceDeploymentStatus {
        applied_entry: None,
        last_applied_time: None,
        ..first.clone()
    };
    let noted = Case {
        previous: old.clone(),
        ..fine()
    }
    .status();
    assert_eq!(
        (noted.last_applied_time.is_some(), said(&old, &noted)),
        (true, Vec::new())
    );

    let broken = Case {
        previous: first.clone(),
        ..failed()
    }
    .status();
    let message = "1 of 1 object failed: Deployment.apps web/a: crashes";
    assert_eq!(said(&first, &broken), [format!("!Unhealthy: {message}")]);
    let again = Case {
        previous: broken.clone(),
        ..failed()
    }
    .status();
    assert_eq!(said(&broken, &again), Vec::<String>::new());
    let mended = Case {
        previous: broken.clone(),
        ..fine()
    }
    .status();
    assert_eq!(
        said(&broken, &mended),
        ["Recovered: applied main@sha1:abc; 1 object is healthy"]
    );

    // flux2#5738: its pods start first.
    let starts = vec![object(
        "a",
        SyncState::Synced,
        Health::InProgress,
        "0 of 1 replicas ready",
    )];
    let starting = Case {
        previous: broken.clone(),
        ..Case::new(Some(report(Outcome::Applied, starts.clone())))
    }
    .status();
    assert_eq!(said(&broken, &starting), Vec::<String>::new());
    let started = Case {
        previous: starting.clone(),
        ..fine()
    }
    .status();
    assert_eq!(
        said(&starting, &started),
        ["Recovered: applied main@sha1:abc; 1 object is healthy"]
    );
    // A rollout of a healthy service is no recovery.
    let rolling = Case {
        previous: first.clone(),
        ..Case::new(Some(report(Outcome::Applied, starts)))
    }
    .status();
    assert_eq!(
        said(
            &rolling,
            &Case {
                previous: rolling.clone(),
                ..fine()
            }
            .status()
        ),
        Vec::<String>::new()
    );

    let held = Case {
        previous: first.clone(),
        ..held_case()
    }
    .status();
    assert_eq!(
        said(&first, &held),
        ["!PruneHeld: 4 objects wait to be pruned: nothing would be left"]
    );
    let mut gone = fine();
    let objects = vec![object("old", SyncState::Synced, Health::Current, "").object];
    let (digest, time) = (Digest::of("plan"), 900);
    let deletion = Deletion {
        digest,
        time,
        count: 2,
        objects,
        lost: 0,
        approved_plan: None,
        undone: None,
    };
    gone.report.as_mut().unwrap().deletion = Some(deletion);
    let pruned = Case {
        previous: held.clone(),
        ..gone
    }
    .status();
    assert_eq!(
        said(&held, &pruned),
        ["Pruned: deleted 2 objects: Deployment.apps web/old and 1 more"]
    );
}

#[test]
fn an_applied_version_says_that_it_came_back() {
    let applied = |entry: &str, undone: Option<&str>| ServiceDeploymentStatus {
        applied_revision: Some("main@sha1:abc".to_owned()),
        applied_entry: Some(Digest::of(entry)),
        last_deletion: undone.map(|request| {
            let undone = serde_json::json!({"request": request, "restored": 2});
            let deletion = serde_json::json!({
                "digest": Digest::of("plan"), "time": "2026-01-01T00:00:00Z", "count": 2, "undone": undone,
            });
            serde_json::from_value(deletion).unwrap()
        }),
        ..ServiceDeploymentStatus::default()
    };
    let before = applied("1", Some("a"));
    let check = |now: ServiceDeploymentStatus, returned, expected: &str| {
        assert_eq!(
            told(&news(&before, &now, returned))[0],
            format!("Applied: applied main@sha1:abc{expected}")
        );
    };
    check(
        applied("2", Some("a")),
        None,
        ", after a change of its spec, parameters or approvals",
    );
    check(
        applied("2", Some("b")),
        None,
        " again, after an undo restored 2 objects",
    );
    let returned = " again, rolled back from main@sha1:def by ann";
    check(applied("2", Some("a")), Some(returned), returned);
}

fn told(all: &[News]) -> Vec<String> {
    let sign = |news: &News| if news.is_warning { "!" } else { "" };
    all.iter()
        .map(|news| format!("{}{}: {}", sign(news), news.reason, news.message))
        .collect()
}

#[test]
fn what_became_of_a_source_is_told_once() {
    use serde_json::json;
    let status = |revision: Option<&str>, failure: Option<&str>| -> farwater_api::SourceStatus {
        let (ready, reason) = failure.map_or(("True", "Fetched"), |reason| ("False", reason));
        let condition = json!({"type": "Ready", "status": ready, "reason": reason, "message": format!("{reason} it"),
                               "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "revision": revision, "conditions": [condition], "staleSince": failure.map(|_| "2026-01-01T00:00:00Z"),
        }))
        .unwrap()
    };
    let check = |before: &farwater_api::SourceStatus, now: &farwater_api::SourceStatus, expected: &[&str]| {
        assert_eq!(told(&source_news(before, now)), expected);
    };
    let (nothing, first) = (farwater_api::SourceStatus::default(), status(Some("a"), None));
    check(&nothing, &first, &["Fetched: serves a"]);
    check(&first, &first, &[]);
    check(&first, &status(Some("a"), Some("Timeout")), &["!Timeout: Timeout it"]);
    check(
        &status(Some("a"), Some("Timeout")),
        &status(Some("a"), Some("Timeout")),
        &[],
    );
    check(
        &status(Some("a"), Some("Timeout")),
        &status(Some("a"), Some("Unreachable")),
        &["!Unreachable: Unreachable it"],
    );
    check(
        &status(Some("a"), Some("Timeout")),
        &status(Some("b"), None),
        &["Fetched: serves b", "Recovered: Fetched it"],
    );
    check(
        &nothing,
        &status(None, Some("AuthenticationFailed")),
        &["!AuthenticationFailed: AuthenticationFailed it"],
    );
}

#[test]
fn what_became_of_a_rollout_is_told_once() {
    let status = |number: u64, phase: &str, updated: i64| -> farwater_api::ServiceSetStatus {
        let halted_by = (phase == "Halted").then_some("team-a/east");
        let rollout = serde_json::json!({"number": number, "phase": phase, "updated": updated, "waiting": 2 - updated, "haltedBy": halted_by});
        serde_json::from_value(serde_json::json!({"rollout": rollout})).unwrap()
    };
    let check = |before: &farwater_api::ServiceSetStatus, now: &farwater_api::ServiceSetStatus, expected: &[&str]| {
        assert_eq!(told(&set_news(before, now)), expected);
    };
    let nothing = farwater_api::ServiceSetStatus::default();
    let started = status(1, "Progressing", 0);
    check(&nothing, &nothing, &[]);
    check(&nothing, &started, &["RolloutStarted: rollout 1 of 2 clusters started"]);
    check(&started, &status(1, "Progressing", 1), &[]);
    let halted = status(1, "Halted", 1);
    check(
        &started,
        &halted,
        &["!RolloutHalted: rollout 1 is Halted: 1 of 2 clusters are done; halted by team-a/east"],
    );
    check(&halted, &halted, &[]);
    let complete = status(2, "Complete", 2);
    check(
        &halted,
        &complete,
        &[
            "RolloutStarted: rollout 2 of 2 clusters started",
            "RolloutComplete: rollout 2 is Complete: 2 of 2 clusters are done",
        ],
    );
}

#[test]
fn when_it_was_applied_stays_until_something_else_is_applied() {
    let fine = || {
        Case::new(Some(report(
            Outcome::Applied,
            vec![object("a", SyncState::Synced, Health::Current, "")],
        )))
    };
    let mut before = fine().status();
    let long_ago = crate::conditions::whole_seconds(Timestamp::from_second(5).unwrap());
    before.last_applied_time = Some(long_ago.clone());
    let restarted = Case {
        previous: before.clone(),
        ..fine()
    }
    .status();
    assert_eq!(restarted.last_applied_time, Some(long_ago));
    before.applied_entry = Some(Digest::of("another"));
    assert_ne!(
        Case {
            previous: before.clone(),
            ..fine()
        }
        .status()
        .last_applied_time,
        before.last_applied_time
    );
}
