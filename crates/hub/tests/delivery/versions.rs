//! What a service was assigned before, and pins to it.

use farwater_api::{
    ADMIN_NAMESPACE, Digest, ServiceDeploymentSpec,
    history::{Cause, HistoryEntry, VersionResult},
    hooks::{HookPhase, HookReport, HookState},
    objects::{Health, Outcome},
    protocol::{Action, Entry},
};
use farwater_hub::{
    apiserver::service_admission::{Inadmissible, check_pin},
    services::{hook_runs::load_runs, versions::load_entries},
    sources::collect_mirrors::collect_mirrors,
};
use farwater_testkit::git::Repository;
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{Rig, WEB, condition, message, repository},
};

fn bundle(entry: &Entry) -> Option<Digest> {
    applied(entry).map(|deployment| deployment.bundle)
}

/// Another content of the folder.
fn commit(git: &Repository, name: &str) -> String {
    git.change(
        "main",
        &[(
            "apps/web/web.yaml",
            Some(&WEB.replace("name: web", &format!("name: {name}"))),
        )],
    )
    .unwrap()
}

async fn entries(rig: &Rig, uid: &str) -> Vec<HistoryEntry> {
    load_entries(&rig.replica, uid).await.unwrap()
}

/// Number, cause and result of each, the newest first.
async fn told(rig: &Rig, uid: &str) -> Vec<(u64, Cause, VersionResult)> {
    entries(rig, uid)
        .await
        .into_iter()
        .map(|entry| (entry.number, entry.cause, entry.result))
        .collect()
}

async fn wait_result(rig: &Rig, uid: &str, wanted: VersionResult) {
    rig.wait_until("the newest version has its result", async || {
        entries(rig, uid).await[0].result == wanted
    })
    .await;
}

/// Commits and has the service follow; what it is to run then.
async fn follow(rig: &Rig, git: &Repository, agent: &Agent, uid: &str, name: &str) -> Entry {
    let before = bundle(&agent.wait_entry(rig, uid, |entry| applied(entry).is_some()).await.1);
    commit(git, name);
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    agent
        .wait_entry(rig, uid, |entry| applied(entry).is_some() && bundle(entry) != before)
        .await
        .1
}

async fn pin(rig: &Rig, pin: Value) {
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["status"]["pinnedBy"] = "ann".into();
        service["status"]["changedBy"] = "ann".into();
        match pin.is_null() {
            true => drop(service["spec"].as_object_mut().unwrap().remove("pin")),
            false => service["spec"]["pin"] = pin.clone(),
        }
    })
    .await;
}

/// A service whose second version failed.
async fn failed() -> (
    farwater_testkit::git::GitServer,
    Repository,
    Rig,
    Agent,
    String,
    [Entry; 2],
) {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, first) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    agent
        .say(&rig, &uid, said(&first, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    wait_result(&rig, &uid, VersionResult::Healthy).await;
    let second = follow(&rig, &git, &agent, &uid, "second").await;
    agent
        .say(
            &rig,
            &uid,
            said(&second, Outcome::Applied, &[("second", Health::Failed)]),
        )
        .await;
    wait_result(&rig, &uid, VersionResult::Failed).await;
    (server, git, rig, agent, uid, [first, second])
}

#[tokio::test(flavor = "multi_thread")]
async fn each_version_is_kept_with_its_cause_and_what_became_of_it() {
    let (_server, git, rig, mut agent, uid, _) = failed().await;
    // A commit outside the closure is no version.
    git.change("main", &[("README", Some("y"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let third = follow(&rig, &git, &agent, &uid, "third").await;
    // The next one comes before anybody has said anything of this one.
    let ann = "Ann Example <ann@example.com>";
    follow(&rig, &git.by(ann), &agent, &uid, "fourth").await;
    agent
        .say(
            &rig,
            &uid,
            said(&third, Outcome::Applied, &[("third", Health::Current)]),
        )
        .await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["status"]["changedBy"] = "zoe".into();
        service["spec"]["path"] = "apps/db".into();
    })
    .await;
    let path = |entry: &Entry| applied(entry).is_some_and(|deployment| deployment.path == "apps/db");
    agent.wait_entry(&rig, &uid, path).await;
    let expected = [
        (5, Cause::Spec, VersionResult::Pending),
        (4, Cause::Commit, VersionResult::Superseded),
        (3, Cause::Commit, VersionResult::Superseded),
        (2, Cause::Commit, VersionResult::Failed),
        (1, Cause::Created, VersionResult::Healthy),
    ];
    assert_eq!(told(&rig, &uid).await, expected);
    let entries_now = entries(&rig, &uid).await;
    let who: Vec<_> = entries_now
        .iter()
        .map(|entry| (entry.by.as_deref(), entry.author.as_deref()))
        .collect();
    let test = Some("Test <test@example.com>");
    assert_eq!(
        who,
        [
            (Some("zoe"), Some(ann)),
            (None, Some(ann)),
            (None, test),
            (None, test),
            (None, test)
        ]
    );

    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let (_, entry) = agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Remove { .. }))
        .await;
    agent.say(&rig, &uid, said(&entry, Outcome::Removed, &[])).await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    assert!(entries(&rig, &uid).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_brings_back_a_version_and_holds_back_what_comes_until_it_goes() {
    let (server, git, rig, mut agent, uid, [first, second]) = failed().await;
    let wanted = bundle(&first).unwrap();
    pin(&rig, json!({"bundle": wanted, "reason": "second crashes"})).await;
    let (_, entry) = agent
        .wait_entry(&rig, &uid, |entry| bundle(entry) == Some(wanted))
        .await;
    assert_ne!(
        entry.digest(),
        first.digest(),
        "what was said of the first one is no word on this one"
    );
    agent
        .say(&rig, &uid, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Ready") == "True/Applied"
        })
        .await;
    assert!(
        message(&service, "Pinned").contains("by ann (second crashes); main@sha1:"),
        "{service:#}"
    );
    let newest = &entries(&rig, &uid).await[0];
    assert_eq!(
        (newest.number, newest.cause, newest.by.as_deref()),
        (3, Cause::Pinned, Some("ann"))
    );
    assert_eq!(newest.reason.as_deref(), Some("second crashes"));
    let left = &entries(&rig, &uid).await[1].revision;
    let told = format!(
        "applied {} again, rolled back from {left} by ann: second crashes",
        newest.revision
    );
    rig.wait_until("an Event names the rollback", async || {
        rig.events().await.iter().any(|event| event["message"] == told.as_str())
    })
    .await;

    // What comes is told and not delivered, and the pin survives a source that is no more.
    let held = commit(&git, "third");
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["status"]["heldRevision"] == format!("main@sha1:{held}").as_str()
    })
    .await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), entry.digest());
    rig.delete("GitRepository", ADMIN_NAMESPACE, "infra").await;
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Ready") == "True/Applied"
        })
        .await;
    assert_eq!(condition(&service, "Stalled"), "absent");
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), entry.digest());
    assert_eq!(agent.bundle(&rig, &wanted).await.status, StatusCode::OK);

    // Without the pin the source counts again, and what runs stays as long as there is none.
    pin(&rig, Value::Null).await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/SourceNotFound"
    })
    .await;
    let (_, kept) = agent.wait_entry(&rig, &uid, |now| now.digest() != entry.digest()).await;
    let (turn, before) = (applied(&kept).unwrap().turn, applied(&entry).unwrap().turn);
    assert_eq!(
        (bundle(&kept), turn),
        (Some(wanted), before + 1),
        "its spec changed, and nothing that runs"
    );
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let news = |entry: &Entry| ![bundle(&first), bundle(&second)].contains(&bundle(entry)) && applied(entry).is_some();
    agent.wait_entry(&rig, &uid, news).await;
    let newest = &entries(&rig, &uid).await[0];
    assert_eq!(
        (newest.number, newest.cause, newest.result),
        (4, Cause::Unpinned, VersionResult::Pending)
    );
    assert_eq!(newest.by.as_deref(), Some("ann"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bundles_of_a_history_outlive_a_forced_push_and_a_lost_mirror() {
    let (_server, git, rig, _agent, uid, [first, _]) = failed().await;
    git.rewrite("main", &[("apps/web/web.yaml", &WEB.replace("web", "anew"))])
        .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    collect_mirrors(&rig.replica).await.unwrap();
    std::fs::remove_dir_all(rig.path().join("mirrors")).unwrap();
    let spec = |bundle: Digest| -> ServiceDeploymentSpec {
        let spec = json!({"clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "infra"},
                          "pin": {"bundle": bundle}});
        serde_json::from_value(spec).unwrap()
    };
    let check = async |uid: &str, bundle: Digest| {
        check_pin(&rig.replica, ADMIN_NAMESPACE, uid, &spec(bundle), None)
            .await
            .map_err(|error| error.to_string())
    };
    let wanted = bundle(&first).unwrap();
    check(&uid, wanted).await.unwrap();

    // What never was assigned, or is gone, is refused before anything is written.
    let unknown = Digest::of("never assigned");
    let refused = check(&uid, unknown).await.unwrap_err();
    assert!(
        refused.starts_with(&format!("{unknown} is not in the history")),
        "{refused}"
    );
    assert!(check("another", wanted).await.is_err());
    std::fs::remove_file(
        rig.path()
            .join("cache/bundles")
            .join(format!("{}.tar.zst", wanted.to_hex())),
    )
    .unwrap();
    let refused = check(&uid, wanted).await.unwrap_err();
    assert!(
        refused.contains("version 1 of this service, is gone from this hub"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_stands_under_the_grants_of_its_own_source() {
    let (server, git) = repository().await;
    let other = server.create("other.git").unwrap();
    other
        .commit("main", &[("apps/web/web.yaml", &WEB.replace("web", "other"))])
        .unwrap();
    let rig = Rig::start().await;
    rig.cluster("east").await;
    let grant = |source: String| {
        json!({"spec": {"clusterSelector": {}, "namespaces": ["team-a"], "verbs": ["deploy"],
                        "serviceAccountName": "deployer", "allowedSources": [source]}})
    };
    rig.create("ClusterGrant", "", "team-a", grant(server.url("infra.git")))
        .await;
    rig.repository("team-a", "infra", &server.url("infra.git")).await;
    let uid = rig.service("team-a", "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, first) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    commit(&git, "second");
    rig.ask("team-a", "infra").await;
    let (_, second) = agent
        .wait_entry(&rig, &uid, |e| applied(e).is_some() && bundle(e) != bundle(&first))
        .await;

    // The tenant loses the source, and with it what came from there, pinned or not.
    rig.edit("ClusterGrant", "", "team-a", |grant| {
        grant["spec"]["allowedSources"] = json!([server.url("other.git")]);
    })
    .await;
    agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;
    rig.repository("team-a", "other", &server.url("other.git")).await;
    rig.edit("ServiceDeployment", "team-a", "web", |s| {
        s["spec"]["sourceRef"]["name"] = "other".into()
    })
    .await;
    let known = [bundle(&first), bundle(&second)];
    agent
        .wait_entry(&rig, &uid, |e| applied(e).is_some() && !known.contains(&bundle(e)))
        .await;
    let spec: ServiceDeploymentSpec = serde_json::from_value(json!({
        "clusterRef": {"name": "east"}, "targetNamespace": "web", "sourceRef": {"name": "other"},
        "pin": {"bundle": bundle(&first).unwrap()},
    }))
    .unwrap();
    let refused = check_pin(&rig.replica, "team-a", &uid, &spec, None).await;
    assert!(matches!(refused, Err(Inadmissible::Denied(_))), "{refused:?}");
    rig.edit("ServiceDeployment", "team-a", "web", |s| {
        s["spec"]["pin"] = json!({"bundle": bundle(&first)})
    })
    .await;
    rig.wait_for("ServiceDeployment", "team-a", "web", |s| {
        s["status"]["observedGeneration"] == 3 && condition(s, "Stalled") == "True/NotGranted"
    })
    .await;
    let now = agent.desired(&rig).await;
    assert!(
        now.entries.iter().all(|entry| bundle(entry) != bundle(&first)),
        "{now:?}"
    );
}

fn test_report(run: &str, state: HookState, output: Option<&str>) -> HookReport {
    serde_json::from_value(json!({
        "group": "batch", "version": "v1", "kind": "Job", "namespace": "web", "name": "web-test-smoke", "phase": HookPhase::Test,
        "run": Digest::of(run), "state": state, "test": "smoke", "message": "exit code 3", "log": output, "junit": output,
    }))
    .unwrap()
}

/// State and JUnit file of each hook of a version.
async fn hooks(rig: &Rig, uid: &str, number: u64) -> Vec<(HookState, Option<String>)> {
    let mut found = Vec::new();
    for run in load_runs(&rig.replica, uid, None)
        .await
        .unwrap()
        .into_iter()
        .filter(|run| run.number == number)
    {
        assert!(
            run.report.log.is_none() && run.report.junit.is_none(),
            "only of one that is asked for"
        );
        let whole = load_runs(&rig.replica, uid, Some(&run.report.run)).await.unwrap();
        found.push((run.report.state, whole[0].report.junit.clone()));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_healthy_when_its_tests_are_and_keeps_what_they_left_behind() {
    let (_server, git, rig, mut agent, uid, _) = failed().await;
    let tests = json!([{"name": "smoke", "image": "curl", "timeout": "1m"}]);
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["spec"]["tests"] = tests.clone()
    })
    .await;
    let entry = follow(&rig, &git, &agent, &uid, "third").await;
    assert_eq!(applied(&entry).unwrap().tests[0].name, "smoke");
    let fine = [("third", Health::Current)];
    // An agent that knows no tests says nothing of them.
    agent.say(&rig, &uid, said(&entry, Outcome::Applied, &fine)).await;
    wait_result(&rig, &uid, VersionResult::Applied).await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Ready").ends_with("/TestNotRun")
    })
    .await;

    let mut report = said(&entry, Outcome::Failed, &fine);
    report.message = "test smoke failed: exit code 3".to_owned();
    report.hooks = vec![test_report("1", HookState::Failed, Some("<testsuite/>"))];
    agent.say(&rig, &uid, report.clone()).await;
    wait_result(&rig, &uid, VersionResult::Failed).await;
    let failed = vec![(HookState::Failed, Some("<testsuite/>".to_owned()))];
    assert_eq!(hooks(&rig, &uid, 3).await, failed);
    // Of an agent that was restarted.
    report.hooks = vec![test_report("1", HookState::Failed, None)];
    report.message.push('.');
    agent.say(&rig, &uid, report).await;
    rig.wait_until("the newer report counts", async || {
        entries(&rig, &uid).await[0].result == VersionResult::Failed
    })
    .await;
    assert_eq!(hooks(&rig, &uid, 3).await, failed);

    let mut report = said(&entry, Outcome::Applied, &fine);
    report.hooks = vec![test_report("2", HookState::Succeeded, None)];
    agent.say(&rig, &uid, report).await;
    wait_result(&rig, &uid, VersionResult::Healthy).await;
    assert_eq!(hooks(&rig, &uid, 3).await, vec![(HookState::Succeeded, None)]);
    // With the version they go.
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let (_, entry) = agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Remove { .. }))
        .await;
    agent.say(&rig, &uid, said(&entry, Outcome::Removed, &[])).await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    assert!(load_runs(&rig.replica, &uid, None).await.unwrap().is_empty());
}
