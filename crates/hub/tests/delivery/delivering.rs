//! From a commit to a desired state and its bundles.

use std::time::Duration;

use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    protocol::{Action, Deployment, Entry, POLL_INTERVAL_HEADER},
};
use farwater_store::delivery::load_assignment;
use http::{StatusCode, header};
use serde_json::json;

use crate::{
    agent::Agent,
    rig::{Rig, WEB, condition, message, repository},
};

pub fn applied(entry: &Entry) -> Option<&Deployment> {
    match &entry.action {
        Action::Apply(deployment) => Some(deployment),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_reaches_an_agent_and_an_unchanged_poll_is_empty() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "./apps/web/").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/SourceNotFound"
    })
    .await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let agent = Agent::join(&rig, "east").await;
    let (state, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let deployment = applied(&entry).unwrap();
    assert_eq!(
        (deployment.path.as_str(), deployment.target_namespace.as_str()),
        ("apps/web", "web")
    );
    assert_eq!(deployment.ceiling.service_account.name, "farwater-administrator");

    let answer = agent.poll(&rig, Some(&state.statement.etag())).await;
    assert_eq!(answer.status, StatusCode::NOT_MODIFIED);
    assert_eq!(answer.headers[POLL_INTERVAL_HEADER], "30");
    assert!(answer.body.is_empty());

    let bundle = agent.bundle(&rig, &deployment.bundle).await;
    assert_eq!(bundle.status, StatusCode::OK);
    let archive = zstd::decode_all(bundle.body.as_slice()).unwrap();
    assert_eq!(
        (Digest::of(&archive), archive.len() as u64),
        (deployment.bundle, deployment.bundle_bytes)
    );

    let source = rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.unwrap();
    assert_eq!(condition(&source, "Ready"), "True/Fetched");
    assert!(source["status"]["revision"].as_str().unwrap().starts_with("main@sha1:"));
}

/// Who is woken is found by rows, and a service that was just made has none.
#[tokio::test(flavor = "multi_thread")]
async fn services_that_are_made_together_with_what_they_name_are_all_assigned() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    for round in 0..10 {
        let name = format!("round-{round}");
        let service = async |number: u64| {
            tokio::time::sleep(Duration::from_millis(3 * number)).await;
            let spec = json!({
                "clusterRef": {"name": name}, "targetNamespace": "web", "path": "apps/web",
                "sourceRef": {"kind": "GitRepository", "name": name},
            });
            let own = format!("{name}-{number}");
            rig.create("ServiceDeployment", ADMIN_NAMESPACE, &own, json!({"spec": spec}))
                .await
        };
        let services = futures::future::join_all((0..24).map(service));
        let url = server.url("infra.git");
        let source = rig.repository(ADMIN_NAMESPACE, &name, &url);
        let (_, _, uids) = futures::join!(source, rig.cluster(&name), services);
        for uid in uids {
            rig.wait_until("the service is assigned", async || {
                let row = load_assignment(&mut rig.store.tables().await.unwrap(), &uid)
                    .await
                    .unwrap();
                row.is_some_and(|row| row.assigned.is_some())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_outside_the_closure_changes_no_digest_and_no_generation() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let db = rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    let (before, old_db) = agent.wait_entry(&rig, &db, |entry| applied(entry).is_some()).await;

    rig.wait_idle().await;
    let (looks, revision) = (
        rig.looks(),
        rig.get("ServiceDeployment", ADMIN_NAMESPACE, "db").await.unwrap(),
    );
    git.change("main", &[("README", Some("y"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_idle().await;
    assert_eq!(
        rig.looks(),
        looks,
        "services were looked at that the commit doesn't concern"
    );
    assert_eq!(agent.desired(&rig).await, before);

    // Of two services of one repository only the one that changed gets another bundle.
    git.change(
        "main",
        &[("apps/web/web.yaml", Some(&WEB.replace("name: web", "name: other")))],
    )
    .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let old_web = before.entries.iter().find(|entry| entry.service.uid == web).unwrap();
    let (state, _) = agent
        .wait_entry(&rig, &web, |entry| entry.digest() != old_web.digest())
        .await;
    assert_eq!(state.statement.generation, before.statement.generation + 1);
    assert!(state.entries.contains(&old_db.into()));
    let now = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "db").await.unwrap();
    assert_eq!(now, revision, "not even its status was written");
}

/// What a service is made of lies in several folders, and one that was looked for and not found decides too.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_concerns_the_services_whose_files_it_touches() {
    let (server, git) = repository().await;
    let map = |value: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{v: '{value}'}}\n");
    let overlay = "resources: [../../base]\n";
    let (one, two) = (map("1"), map("2"));
    git.change(
        "main",
        &[
            ("overlays/east/kustomization.yaml", Some(overlay)),
            ("base/kustomization.yaml", Some("resources: [map.yaml]\n")),
            ("base/map.yaml", Some(&one)),
            ("lonely/map.yaml", Some(&one)),
        ],
    )
    .unwrap();
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let overlay = rig.service(ADMIN_NAMESPACE, "overlay", "east", "overlays/east").await;
    let lonely = rig.service(ADMIN_NAMESPACE, "lonely", "east", "lonely").await;
    let agent = Agent::join(&rig, "east").await;
    let digest = async |rig: &Rig, uid: &str| {
        let (_, entry) = agent.wait_entry(rig, uid, |entry| applied(entry).is_some()).await;
        applied(&entry).unwrap().bundle
    };
    let (first, alone) = (digest(&rig, &overlay).await, digest(&rig, &lonely).await);
    rig.wait_idle().await;
    // What the revision says of which commit is the one that was looked at.
    let check = async |rig: &Rig, changes: &[(&str, Option<&str>)], concerns: bool| {
        let before = digest(rig, &overlay).await;
        let commit = git.change("main", changes).unwrap();
        rig.ask(ADMIN_NAMESPACE, "infra").await;
        rig.wait_idle().await;
        let is_so = |entry: &Entry| applied(entry).is_some_and(|now| (now.bundle != before) == concerns);
        agent.wait_entry(rig, &overlay, is_so).await;
        let is_told = |service: &serde_json::Value| {
            let revision = service["status"]["assignedRevision"].as_str();
            revision.is_some_and(|revision| revision.ends_with(&commit) == concerns)
        };
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "overlay", is_told)
            .await;
        assert_eq!(digest(rig, &lonely).await, alone, "{changes:?}");
    };
    check(&rig, &[("base/map.yaml", Some(&two))], true).await;
    check(&rig, &[("README", Some("z"))], false).await;
    check(&rig, &[("overlays/east/extra.yaml", Some(&one))], true).await;
    check(
        &rig,
        &[("overlays/west/map.yaml", Some(&one)), ("base2/map.yaml", Some(&one))],
        false,
    )
    .await;
    check(
        &rig,
        &[
            ("base/kustomization.yaml", Some("resources: [map.yaml, ../shared]\n")),
            ("shared/map.yaml", Some(&one)),
        ],
        true,
    )
    .await;
    // What it leads to now counts from then on, also for a hub that was restarted, or crashed.
    check(&rig, &[("shared/map.yaml", Some(&two))], true).await;
    rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    check(&rig, &[("docs/index.md", Some("x"))], false).await;
    rig = rig.crash_before(async |_, _| {}).await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    rig.wait_idle().await;
    check(&rig, &[("docs/index.md", Some("y"))], false).await;
    check(
        &rig,
        &[
            ("shared", None),
            ("base/kustomization.yaml", Some("resources: [map.yaml]\n")),
        ],
        true,
    )
    .await;

    // A folder that is missing keeps what was there, and one that comes back is seen.
    git.change(
        "main",
        &[(
            "overlays/east/kustomization.yaml",
            Some("resources: [../../base, ../../later]\n"),
        )],
    )
    .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let missing = |s: &serde_json::Value| message(s, "Ready").contains("later does not exist");
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "overlay", missing)
        .await;
    let commit = git.change("main", &[("later/map.yaml", Some(&one))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let found = |s: &serde_json::Value| {
        s["status"]["assignedRevision"]
            .as_str()
            .is_some_and(|r| r.ends_with(&commit))
    };
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "overlay", found)
        .await;
    assert_ne!(digest(&rig, &overlay).await, first);
}

/// The bundle's commit may be nowhere any more: what the source has now makes the same one.
#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_is_lost_with_its_commit_is_made_of_what_the_source_has_now() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let digest = applied(&entry).unwrap().bundle;
    rig.wait_idle().await;
    git.change("main", &[("README", Some("y"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_idle().await;
    rig.forget_commit(&uid).await;
    std::fs::remove_file(
        rig.path()
            .join("cache/bundles")
            .join(format!("{}.tar.zst", digest.to_hex())),
    )
    .unwrap();
    rig.wait_until("the bundle is there again", async || {
        agent.bundle(&rig, &digest).await.status == StatusCode::OK
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_keeps_what_is_assigned_also_across_a_restart() {
    let (mut server, git) = repository().await;
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (before, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;

    git.delete_branch("main").unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let source = rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.unwrap();
    assert_eq!(
        condition(&source, "Ready"),
        "False/RepositoryEmpty",
        "{}",
        message(&source, "Ready")
    );
    assert_eq!(condition(&source, "Stalled"), "True/RepositoryEmpty");

    server.stop().await;
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let source = rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.unwrap();
    assert_eq!(condition(&source, "Ready"), "False/Unreachable");
    assert!(source["status"]["staleSince"].is_string());
    assert!(
        message(&source, "Ready").contains("stays in use"),
        "{}",
        message(&source, "Ready")
    );
    assert_eq!(agent.desired(&rig).await, before);

    rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    assert_eq!(agent.desired(&rig).await, before);
    let bundle = agent.bundle(&rig, &applied(&entry).unwrap().bundle).await;
    assert_eq!(bundle.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_the_cache_lost_is_made_again() {
    let (server, _git) = repository().await;
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let digest = applied(&entry).unwrap().bundle;
    let file = rig
        .path()
        .join("cache/bundles")
        .join(format!("{}.tar.zst", digest.to_hex()));
    for damage in [None, Some(b"not a bundle".as_slice())] {
        match damage {
            None => std::fs::remove_file(&file).unwrap(),
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
        }
        // What was served already is in memory.
        rig = rig.restart().await;
        rig.wait_loaded().await;
        let made = agent.bundle(&rig, &digest).await;
        assert_eq!(made.status, StatusCode::OK);
        assert_eq!(made.body, std::fs::read(&file).unwrap());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(agent.bundle(&rig, &digest).await.body, made.body);
        std::fs::write(&file, made.body).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_clusters_bundle_is_refused() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let east = Agent::join(&rig, "east").await;
    let west = Agent::join(&rig, "west").await;
    let (_, entry) = east.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let digest = applied(&entry).unwrap().bundle;
    assert_eq!(west.bundle(&rig, &digest).await.refusal(), "403 NotDesired");
    assert_eq!(
        east.bundle(&rig, &Digest::of("no bundle")).await.refusal(),
        "403 NotDesired"
    );
    let nobody = Agent::new();
    assert_eq!(nobody.bundle(&rig, &digest).await.refusal(), "401 TokenUnknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_commit_names_file_and_line_and_keeps_the_old_bundle() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    git.change(
        "main",
        &[("apps/web/kustomization.yaml", Some("resources:\n- ../../../etc\n"))],
    )
    .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Stalled") == "True/BundleFailed"
        })
        .await;
    assert!(
        message(&service, "Ready").contains("apps/web/kustomization.yaml:2"),
        "{}",
        message(&service, "Ready")
    );
    assert!(message(&service, "Ready").contains("stays assigned"));
    assert_eq!(agent.desired(&rig).await, before);
    git.change("main", &[("apps/web/kustomization.yaml", None)]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "absent"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_secret_is_an_error_and_making_it_is_noticed_at_once() {
    let (server, _git) = repository().await;
    server.set_auth(farwater_testkit::git::Auth::Basic {
        username: "u".to_owned(),
        password: "p".to_owned(),
    });
    let rig = Rig::start().await;
    let spec = json!({"url": server.url("infra.git"), "interval": "10m", "secretRef": {"name": "git"}});
    rig.create("GitRepository", ADMIN_NAMESPACE, "infra", json!({"spec": spec}))
        .await;
    let ready = |wanted: &'static str| move |s: &serde_json::Value| condition(s, "Ready") == wanted;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", ready("False/SecretNotFound"))
        .await;
    // "u" and "wrong", then "p", as kubectl writes them.
    rig.create(
        "Secret",
        ADMIN_NAMESPACE,
        "git",
        json!({"data": {"username": "dQ==", "password": "d3Jvbmc="}}),
    )
    .await;
    rig.wait_for(
        "GitRepository",
        ADMIN_NAMESPACE,
        "infra",
        ready("False/AuthenticationFailed"),
    )
    .await;
    rig.edit("Secret", ADMIN_NAMESPACE, "git", |secret| {
        secret["data"]["password"] = "cA==".into()
    })
    .await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", ready("True/Fetched"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_has_loaded_nothing_says_so() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        c["status"]["conditions"].is_array()
    })
    .await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_polled(&rig).await;
    rig.replica
        .memory
        .clusters
        .change(&agent.joined.as_ref().unwrap().cluster.uid, |state| state.etag = None);
    let answer = agent.poll(&rig, None).await;
    assert_eq!(answer.refusal(), "503 Unavailable");
    assert!(answer.headers.contains_key(header::RETRY_AFTER));
}
