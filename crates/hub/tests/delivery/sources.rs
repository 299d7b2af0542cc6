//! How remotes are asked, and what is kept of them.

use std::time::Duration;

use farwater_api::ADMIN_NAMESPACE;
use farwater_testkit::{
    Origin, Registry,
    git::{Fault, GitServer},
    registry::SignIn,
};
use serde_json::json;

use crate::{
    delivering::applied,
    rig::{PATIENCE, Rig, condition, repository},
    shop::{helm_repository, oci_repository},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_is_asked_again_after_its_interval() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    let spec = json!({"url": server.url("infra.git"), "interval": "10s"});
    rig.create("GitRepository", ADMIN_NAMESPACE, "infra", json!({"spec": spec}))
        .await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        condition(s, "Ready") == "True/Fetched"
    })
    .await;
    let commit = git.change("main", &[("README", Some("y"))]).unwrap();
    let revision = format!("main@sha1:{commit}");
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        s["status"]["revision"] == revision.as_str()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_remote_is_only_asked() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        condition(s, "Ready") == "True/Fetched"
    })
    .await;
    let before = server.counts();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let after = server.counts();
    assert_eq!(after.fetches, before.fetches);
    assert_eq!(after.ls_refs, before.ls_refs + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_host_does_not_hold_up_others() {
    let (server, _git) = repository().await;
    let stuck = GitServer::start().await.unwrap();
    stuck
        .create("stuck.git")
        .unwrap()
        .commit("main", &[("a", "b")])
        .unwrap();
    stuck.set_fault(Fault::Stall);
    let rig = Rig::start().await;
    for n in 0..20 {
        rig.repository(ADMIN_NAMESPACE, &format!("stuck-{n}"), &stuck.url("stuck.git"))
            .await;
    }
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        condition(s, "Ready") == "True/Fetched"
    })
    .await;
}

/// Thirty sources of ten repositories, and how often each is asked.
const SOURCES: usize = 30;

fn names() -> Vec<String> {
    (0..SOURCES).map(|n| format!("source-{n}")).collect()
}

async fn wait_for_all(rig: &Rig, kind: &str, expected: &str) {
    for name in names() {
        rig.wait_for(kind, ADMIN_NAMESPACE, &name, |s| condition(s, "Ready") == expected)
            .await;
    }
}

/// Until it is well again: then each is asked for by itself. `begin`: what is counted from there.
async fn fail_for_a_while(rig: &Rig, kind: &str, set_fault: impl Fn(Fault), begin: impl FnOnce()) {
    wait_for_all(rig, kind, "True/Fetched").await;
    set_fault(Fault::Status(503));
    for name in names() {
        rig.edit(kind, ADMIN_NAMESPACE, &name, |source| {
            source["metadata"]["annotations"]["farwater.dev/requestedAt"] = jiff::Timestamp::now().to_string().into();
        })
        .await;
    }
    wait_for_all(rig, kind, "False/ServerError").await;
    begin();
    set_fault(Fault::Delay(std::time::Duration::from_millis(20)));
    wait_for_all(rig, kind, "True/Fetched").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_comes_back_is_asked_by_a_few_at_once_and_each_repository_by_one() {
    let server = GitServer::start().await.unwrap();
    for n in 0..10 {
        server
            .create(&format!("r{n}"))
            .unwrap()
            .commit("main", &[("a", "b")])
            .unwrap();
    }
    let rig = Rig::start().await;
    for (n, name) in names().iter().enumerate() {
        rig.repository(ADMIN_NAMESPACE, name, &server.url(&format!("r{}", n % 10)))
            .await;
    }
    let mut before = server.counts();
    let begin = || {
        server.forget_most();
        before = server.counts();
    };
    fail_for_a_while(&rig, "GitRepository", |fault| server.set_fault(fault), begin).await;
    let after = server.counts();
    assert!(after.most_at_once <= 8 && after.most_of_one <= 1, "{after:?}");
    assert_eq!(after.fetches, before.fetches, "what did not move is not fetched");
    assert!(after.ls_refs - before.ls_refs <= 2 * SOURCES, "{before:?} {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_charts_that_comes_back_is_asked_by_a_few_at_once_and_each_repository_by_one() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..10 {
        let place = folder.path().join(n.to_string());
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("index.yaml"), "apiVersion: v1\nentries: {}\n").unwrap();
    }
    let origin = Origin::of_folder(folder.path(), None).await.unwrap();
    let rig = Rig::start().await;
    for (n, name) in names().iter().enumerate() {
        helm_repository(&rig, name, &format!("{}/{}", origin.url(), n % 10)).await;
    }
    fail_for_a_while(
        &rig,
        "HelmRepository",
        |fault| origin.set_fault(fault),
        || origin.forget_seen(),
    )
    .await;
    let most = origin.most_at_once();
    assert!(most.of_all <= 8 && most.of_one_path <= 1, "{most:?}");
    assert!(origin.count("") <= 2 * SOURCES, "{}", origin.count(""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_comes_back_is_asked_by_a_few_at_once_and_each_repository_by_one() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    for n in 0..10 {
        registry
            .push_files(&format!("r{n}"), "latest", &[("a.yaml", "kind: A")])
            .await
            .unwrap();
    }
    let origin = Origin::before(registry.port(), None).await.unwrap();
    let rig = Rig::start().await;
    for (n, name) in names().iter().enumerate() {
        oci_repository(&rig, name, &format!("oci://{}/r{}", origin.host(), n % 10)).await;
    }
    fail_for_a_while(
        &rig,
        "OCIRepository",
        |fault| origin.set_fault(fault),
        || origin.forget_seen(),
    )
    .await;
    let most = origin.most_at_once();
    assert!(most.of_all <= 8 && most.of_one_path <= 1, "{most:?}");
    // What a tag points to, perhaps a second time; what did not move is not pulled.
    assert!(
        origin.count("/manifests/") <= 2 * SOURCES,
        "{}",
        origin.count("/manifests/")
    );
    assert_eq!(origin.count("/blobs/"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fluxs_request_annotation_is_acted_on_too() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        condition(s, "Ready") == "True/Fetched"
    })
    .await;
    let commit = git.change("main", &[("README", Some("y"))]).unwrap();
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |source| {
        source["metadata"]["annotations"]["reconcile.fluxcd.io/requestedAt"] = "now".into();
    })
    .await;
    let source = rig
        .wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
            s["status"]["lastHandledReconcileAt"] == "now"
        })
        .await;
    assert_eq!(source["status"]["revision"], format!("main@sha1:{commit}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_on_a_service_asks_its_source_and_is_acknowledged_when_the_answer_is_assigned() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let service = async |holds: &dyn Fn(&serde_json::Value) -> bool| {
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", holds).await
    };
    service(&|s| s["status"]["assignedRevision"].is_string()).await;
    let request = async |name: &str, value: &str| {
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
            service["metadata"]["annotations"][name] = value.into();
        })
        .await;
        service(&|s| s["status"]["lastHandledReconcileAt"] == value).await
    };
    for (n, name) in ["farwater.dev/requestedAt", "reconcile.fluxcd.io/requestedAt"]
        .into_iter()
        .enumerate()
    {
        let text = format!("# {n}\n{}", crate::rig::WEB);
        let commit = git.change("main", &[("apps/web/web.yaml", Some(&text))]).unwrap();
        // The interval is ten minutes: nothing but the request can bring it.
        let handled = request(name, &format!("x{n}")).await;
        assert_eq!(handled["status"]["assignedRevision"], format!("main@sha1:{commit}"));
    }

    // What can't be asked is acknowledged too; the conditions say what is wrong.
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |source| {
        source["spec"]["suspend"] = true.into()
    })
    .await;
    request("farwater.dev/requestedAt", "y").await;
    rig.delete("GitRepository", ADMIN_NAMESPACE, "infra").await;
    request("farwater.dev/requestedAt", "z").await;
    service(&|s| condition(s, "Stalled") == "True/SourceNotFound").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_before_a_source_was_suspended_is_not_served_after() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let served = rig
        .wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
            condition(s, "Ready") == "True/Fetched"
        })
        .await;
    git.change("main", &[("README", Some("y"))]).unwrap();
    // Long enough for it to be suspended before there is an answer.
    server.set_fault(Fault::Delay(Duration::from_secs(2)));
    let before = server.counts().requests;
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |source| {
        source["metadata"]["annotations"]["farwater.dev/requestedAt"] = "now".into();
    })
    .await;
    rig.wait_until("it is asked", async || server.counts().requests > before)
        .await;
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |source| {
        source["spec"]["suspend"] = true.into()
    })
    .await;
    server.set_fault(Fault::None);
    let suspended = rig
        .wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |source| {
            source["status"]["observedGeneration"] == source["metadata"]["generation"]
                && condition(source, "Ready").ends_with("/Suspended")
        })
        .await;
    assert_eq!(suspended["status"]["revision"], served["status"]["revision"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_goes_when_nothing_needs_it() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    let source = rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = crate::agent::Agent::join(&rig, "east").await;
    let (before, _) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let mirror = rig.path().join("mirrors").join(&source);
    assert!(mirror.exists());

    rig.delete("GitRepository", ADMIN_NAMESPACE, "infra").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/SourceNotFound"
    })
    .await;
    assert!(mirror.exists(), "the service still runs what it holds");
    assert_eq!(agent.desired(&rig).await, before);

    rig.delete("Cluster", ADMIN_NAMESPACE, "east").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/ClusterNotFound"
    })
    .await;
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let started = tokio::time::Instant::now();
    while mirror.exists() {
        assert!(started.elapsed() < PATIENCE, "the mirror stays");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
