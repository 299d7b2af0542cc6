//! Charts of repositories and registries, and artifacts of registries, from their servers to an agent.

use farwater_api::ADMIN_NAMESPACE;
use farwater_testkit::{
    Registry,
    git::{Auth, Fault, GitServer},
    registry::{CosignKey, LOGIN, SignIn},
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    digests::pack,
    rig::{condition, message},
    shop::{
        Repository, ask, bundle, helm_repository, oci_repository, service, source, start, wait_files, wait_service,
    },
};

fn chart_service(version: &str) -> Value {
    json!({"sourceRef": {"kind": "HelmRepository", "name": "charts"}, "chart": {"name": "web", "version": version}})
}

fn oci_service() -> Value {
    json!({"sourceRef": {"kind": "OCIRepository", "name": "apps"}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_is_delivered_and_follows_its_range() {
    let repository = Repository::start(&[("web", "1.0.0"), ("redis", "7.0.0")]).await;
    let rig = start().await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    let uid = service(&rig, "web", chart_service("^1")).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    let paths: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(paths, ["Chart.yaml", "templates/map.yaml", "values.yaml"]);
    let told = wait_service(&rig, "web", |s| s["status"]["assignedRevision"].is_string()).await;
    assert!(
        told["status"]["assignedRevision"]
            .as_str()
            .unwrap()
            .starts_with("1.0.0@sha256:"),
        "{told:#}"
    );
    let index = rig.get("HelmRepository", ADMIN_NAMESPACE, "charts").await.unwrap();
    assert_eq!(condition(&index, "Ready"), "True/Fetched");
    assert!(
        index["status"]["revision"].as_str().unwrap().starts_with("sha256:"),
        "{index:#}"
    );

    // What the range doesn't take, and other charts, change nothing; the index is asked once and no chart again.
    repository.add(&[("web", "2.0.0"), ("redis", "7.1.0")]);
    repository.origin.forget_seen();
    ask(&rig, "HelmRepository", "charts").await;
    rig.wait_idle().await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), first.digest());
    assert_eq!(repository.origin.seen().len(), 1, "{:?}", repository.origin.seen());
    repository.add(&[("web", "1.1.0")]);
    ask(&rig, "HelmRepository", "charts").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert!(files["Chart.yaml"].contains("version: 1.1.0"));

    // Another range is another wish, and what a second service wants is downloaded once.
    repository.origin.forget_seen();
    let both = [
        service(&rig, "two", chart_service("2.0.0")).await,
        service(&rig, "three", chart_service("2.0.0")).await,
    ];
    for uid in &both {
        let (_, files) = wait_files(&rig, &agent, uid, |_| true).await;
        assert!(files["Chart.yaml"].contains("version: 2.0.0"));
    }
    assert_eq!(repository.origin.count("web-2.0.0.tgz"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_that_is_replaced_under_its_version_is_another_and_counts_as_its_index_says() {
    let repository = Repository::start(&[]).await;
    let folder = repository.path().to_owned();
    // The index anew, or as it was of what lay there before.
    let put = |value: &str, is_told: bool| {
        let (chart, values) = ("apiVersion: v2\nname: web\nversion: 1.0.0\n", format!("a: {value}\n"));
        pack(
            &folder,
            "web-1.0.0.tgz",
            &[("web/Chart.yaml", chart), ("web/values.yaml", &values)],
        );
        if is_told {
            let _ = std::fs::remove_file(folder.join("index.yaml"));
            repository.helm.index(&folder, None).unwrap();
        }
    };
    put("1", true);
    let rig = start().await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    let uid = service(&rig, "web", chart_service("^1")).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(files["values.yaml"], "a: 1\n");
    put("2", true);
    ask(&rig, "HelmRepository", "charts").await;
    let (second, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert_eq!(files["values.yaml"], "a: 2\n");
    let told = wait_service(&rig, "web", |s| {
        s["status"]["bundleDigest"] != bundle(&first).unwrap().to_string()
    })
    .await;
    assert!(
        told["status"]["assignedRevision"]
            .as_str()
            .unwrap()
            .starts_with("1.0.0@sha256:"),
        "{told:#}"
    );

    // The index names the one, and the other lies there: nobody knows which is meant.
    put("3", true);
    put("4", false);
    ask(&rig, "HelmRepository", "charts").await;
    let told = wait_service(&rig, "web", |s| condition(s, "Ready").starts_with("False/")).await;
    assert!(message(&told, "Ready").contains("sha256:"), "{told:#}");
    assert_eq!(
        agent.desired(&rig).await.entries[0].digest(),
        second.digest(),
        "what runs stays"
    );
    put("4", true);
    ask(&rig, "HelmRepository", "charts").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&second)).await;
    assert_eq!(files["values.yaml"], "a: 4\n");
    wait_service(&rig, "web", |s| condition(s, "Stalled") == "absent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_that_is_gone_goes_on_running_and_its_service_says_so() {
    let repository = Repository::start(&[("web", "1.0.0")]).await;
    let rig = start().await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    let missing = service(&rig, "missing", chart_service("^9")).await;
    let told = wait_service(&rig, "missing", |s| condition(s, "Stalled") == "True/ChartNotFound").await;
    assert!(
        message(&told, "Ready").contains("chart web ^9 does not exist"),
        "{told:#}"
    );
    let uid = service(&rig, "web", chart_service("^1")).await;
    let agent = Agent::join(&rig, "east").await;
    let (entry, _) = wait_files(&rig, &agent, &uid, |_| true).await;

    repository.add(&[("redis", "7.0.0")]);
    repository.remove("web", "1.0.0");
    let index = ask(&rig, "HelmRepository", "charts").await;
    assert_eq!(condition(&index, "Ready"), "True/Fetched", "the repository is well");
    let told = wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/ChartNotFound").await;
    assert!(
        message(&told, "Ready").contains("1.0.0@sha256:") && message(&told, "Ready").contains("stays assigned"),
        "{told:#}"
    );
    assert_eq!(
        agent
            .desired(&rig)
            .await
            .entries
            .iter()
            .find(|e| e.service.uid == uid)
            .unwrap()
            .digest(),
        entry.digest()
    );
    // Back again, nothing is wrong any more; what was never there may come.
    repository.add(&[("web", "1.0.0"), ("web", "9.0.0")]);
    ask(&rig, "HelmRepository", "charts").await;
    wait_service(&rig, "web", |s| condition(s, "Stalled") == "absent").await;
    let (_, files) = wait_files(&rig, &agent, &missing, |_| true).await;
    assert!(files["Chart.yaml"].contains("version: 9.0.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_assigned_is_made_again_when_its_sources_are_deleted() {
    let repository = Repository::start(&[("redis", "7.0.0")]).await;
    let server = GitServer::start().await.unwrap();
    let git = server.create("infra.git").unwrap();
    let chart = format!(
        "apiVersion: v2\nname: web\nversion: 0.1.0\ndependencies:\n- {{name: redis, version: '*', repository: '{}'}}\n",
        repository.origin.url()
    );
    git.commit("main", &[("web/Chart.yaml", &chart)]).unwrap();
    let rig = start().await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = service(&rig, "web", json!({"sourceRef": {"name": "infra"}, "path": "web"})).await;
    let agent = Agent::join(&rig, "east").await;
    let (before, files) = wait_files(&rig, &agent, &uid, |_| true).await;

    rig.delete("HelmRepository", ADMIN_NAMESPACE, "charts").await;
    rig.delete("GitRepository", ADMIN_NAMESPACE, "infra").await;
    wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/SourceNotFound").await;
    farwater_hub::sources::collect_mirrors::collect_mirrors(&rig.replica)
        .await
        .unwrap();
    let file = rig
        .path()
        .join("cache/bundles")
        .join(format!("{}.tar.zst", bundle(&before).unwrap().to_hex()));
    std::fs::remove_file(file).unwrap();
    let (after, again) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!((bundle(&after), again), (bundle(&before), files));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_fails_keeps_what_is_assigned_also_across_a_restart() {
    let mut repository = Repository::start(&[("web", "1.0.0")]).await;
    let mut rig = start().await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    let uid = service(&rig, "web", chart_service("^1")).await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = wait_files(&rig, &agent, &uid, |_| true).await;
    repository.add(&[("web", "1.1.0")]);
    for (fault, reason) in [
        (Fault::Status(500), "False/ServerError"),
        (Fault::Status(429), "False/Throttled"),
        (Fault::Status(401), "False/AuthenticationFailed"),
        (Fault::Status(404), "False/RepositoryNotFound"),
        (Fault::Cut(10), "False/AnswerBrokenOff"),
    ] {
        repository.origin.set_fault(fault);
        let index = ask(&rig, "HelmRepository", "charts").await;
        assert_eq!(condition(&index, "Ready"), reason, "{}", message(&index, "Ready"));
        assert!(index["status"]["staleSince"].is_string());
        assert!(
            message(&index, "Ready").contains("stays in use"),
            "{}",
            message(&index, "Ready")
        );
    }
    repository.origin.set_fault(Fault::None);
    std::fs::write(repository.path().join("index.yaml"), "entries: [hostile").unwrap();
    let index = ask(&rig, "HelmRepository", "charts").await;
    assert_eq!(condition(&index, "Stalled"), "True/IndexMalformed");
    repository.origin.stop().await;
    ask(&rig, "HelmRepository", "charts").await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), before.digest());
    rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), before.digest());
    // A bundle that the cache lost is made from what was kept, with the server away.
    let file = rig
        .path()
        .join("cache/bundles")
        .join(format!("{}.tar.zst", bundle(&before).unwrap().to_hex()));
    std::fs::remove_file(file).unwrap();
    wait_files(&rig, &agent, &uid, |_| true).await;
    repository.origin.resume().await.unwrap();
    repository.add(&[("web", "1.2.0")]);
    ask(&rig, "HelmRepository", "charts").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&before)).await;
    assert!(files["Chart.yaml"].contains("version: 1.2.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_of_a_registry_are_delivered_with_dockers_credentials() {
    let registry = Registry::start(SignIn::Token).await.unwrap();
    let repository = Repository::start(&[("web", "1.0.0"), ("web", "1.1.0")]).await;
    let push = |version: &str| {
        let archive = repository.path().join(format!("web-{version}.tgz"));
        repository
            .helm
            .push(&archive, &format!("{}/charts", registry.host()), registry.login())
            .unwrap();
    };
    push("1.0.0");
    let rig = start().await;
    let login = json!({"auths": {registry.host(): {"username": LOGIN.0, "password": LOGIN.1}}}).to_string();
    let login = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, login);
    let spec = json!({"url": registry.url("charts"), "type": "oci", "insecure": true, "secretRef": {"name": "login"}});
    source(&rig, "HelmRepository", "charts", spec).await;
    let uid = service(&rig, "web", chart_service("~1")).await;
    rig.wait_for("HelmRepository", ADMIN_NAMESPACE, "charts", |s| {
        condition(s, "Ready") == "False/SecretNotFound"
    })
    .await;
    rig.create(
        "Secret",
        ADMIN_NAMESPACE,
        "login",
        json!({"data": {".dockerconfigjson": login}}),
    )
    .await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert!(files["Chart.yaml"].contains("version: 1.0.0"));
    push("1.1.0");
    let told = ask(&rig, "HelmRepository", "charts").await;
    assert_eq!(message(&told, "Ready"), "charts that are followed: 1");
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert!(files["Chart.yaml"].contains("version: 1.1.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_delivered_and_a_tag_that_moves_is_followed() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let digest = registry
        .push_files("apps", "latest", &[("web/a.yaml", "a"), ("db/b.yaml", "b")])
        .await
        .unwrap();
    let rig = start().await;
    oci_repository(&rig, "apps", &registry.url("apps")).await;
    let mut spec = oci_service();
    spec["path"] = "web".into();
    let uid = service(&rig, "web", spec).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(
        files.into_iter().collect::<Vec<_>>(),
        [("web/a.yaml".to_owned(), "a".to_owned())]
    );
    let apps = rig.get("OCIRepository", ADMIN_NAMESPACE, "apps").await.unwrap();
    assert_eq!(apps["status"]["revision"], format!("latest@{digest}"));
    wait_service(&rig, "web", |s| {
        s["status"]["assignedRevision"] == format!("latest@{digest}").as_str()
    })
    .await;
    // Another folder is none of the service's.
    let other = registry
        .push_files("apps", "latest", &[("web/a.yaml", "a"), ("db/b.yaml", "other")])
        .await
        .unwrap();
    ask(&rig, "OCIRepository", "apps").await;
    wait_service(&rig, "web", |s| {
        s["status"]["assignedRevision"] == format!("latest@{other}").as_str()
    })
    .await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), first.digest());
    registry
        .push_files("apps", "latest", &[("web/a.yaml", "new")])
        .await
        .unwrap();
    ask(&rig, "OCIRepository", "apps").await;
    let (second, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert_eq!(files["web/a.yaml"], "new");

    // A tag that is deleted takes nothing away.
    let apps = rig.get("OCIRepository", ADMIN_NAMESPACE, "apps").await.unwrap();
    let served = apps["status"]["revision"]
        .as_str()
        .unwrap()
        .split_once('@')
        .unwrap()
        .1
        .to_owned();
    registry.delete("apps", &served).await.unwrap();
    let apps = ask(&rig, "OCIRepository", "apps").await;
    assert_eq!(condition(&apps, "Stalled"), "True/ReferenceNotFound");
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), second.digest());
    // By its digest, an artifact is what it was.
    rig.edit("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        s["spec"]["ref"] = json!({"digest": digest})
    })
    .await;
    wait_service(&rig, "web", |s| s["status"]["assignedRevision"] == digest.as_str()).await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&second)).await;
    assert_eq!(files["web/a.yaml"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_key_has_signed_is_never_served_and_the_last_verified_stays() {
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let (ours, other) = (CosignKey::generate().unwrap(), CosignKey::generate().unwrap());
    let push = async |content: &str| {
        registry
            .push_files("apps", "latest", &[("a.yaml", content)])
            .await
            .unwrap()
    };
    push("before any key").await;
    let rig = start().await;
    let uid_of_source = oci_repository(&rig, "apps", &registry.url("apps")).await;
    let uid = service(&rig, "web", oci_service()).await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = wait_files(&rig, &agent, &uid, |_| true).await;

    // Asked for a signature, what was served without one is served no more; what runs goes on.
    let encode = |key: &CosignKey| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key.public());
    rig.create(
        "Secret",
        ADMIN_NAMESPACE,
        "keys",
        json!({"data": {"ours.pub": encode(&ours)}}),
    )
    .await;
    rig.edit("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        s["spec"]["verify"] = json!({"provider": "cosign", "secretRef": {"name": "keys"}});
    })
    .await;
    let apps = rig
        .wait_for("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
            condition(s, "Ready") == "False/VerificationFailed"
        })
        .await;
    assert_eq!(condition(&apps, "SourceVerified"), "False/VerificationFailed");
    assert!(apps["status"]["revision"].is_null(), "{apps:#}");
    let new = service(&rig, "new", oci_service()).await;
    wait_service(&rig, "new", |s| condition(s, "Ready") == "False/SourceNotReady").await;
    let entries = agent.desired(&rig).await.entries;
    assert_eq!(
        entries.iter().find(|e| e.service.uid == uid).unwrap().digest(),
        before.digest()
    );
    assert!(entries.iter().all(|e| e.service.uid != new || bundle(e).is_none()));

    let signed = push("signed").await;
    registry.sign("apps", &signed, &ours).await.unwrap();
    let apps = ask(&rig, "OCIRepository", "apps").await;
    assert_eq!(
        (condition(&apps, "Ready"), condition(&apps, "SourceVerified")),
        ("True/Fetched".into(), "True/Succeeded".into())
    );
    let (verified, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&before)).await;
    assert_eq!(files["a.yaml"], "signed");
    wait_files(&rig, &agent, &new, |_| true).await;

    // Signed by another, or by nobody: the last verified stays.
    for sign in [None, Some(&other)] {
        let digest = push(if sign.is_some() { "foreign" } else { "unsigned" }).await;
        if let Some(key) = sign {
            registry.sign("apps", &digest, key).await.unwrap();
        }
        let apps = ask(&rig, "OCIRepository", "apps").await;
        assert_eq!(condition(&apps, "Ready"), "False/VerificationFailed");
        assert_eq!(apps["status"]["revision"], format!("latest@{signed}"));
        assert_eq!(
            agent
                .desired(&rig)
                .await
                .entries
                .iter()
                .find(|e| e.service.uid == uid)
                .unwrap()
                .digest(),
            verified.digest()
        );
    }
    // Another key counts at once. Without any, the condition says so and the last verified stays.
    rig.edit("Secret", ADMIN_NAMESPACE, "keys", |s| {
        s["data"]["other.pub"] = encode(&other).into()
    })
    .await;
    let (foreign, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&verified)).await;
    assert_eq!(files["a.yaml"], "foreign");
    rig.edit("Secret", ADMIN_NAMESPACE, "keys", |s| s["data"] = json!({"none": ""}))
        .await;
    rig.wait_for("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        condition(s, "Ready") == "False/SecretInvalid"
    })
    .await;
    assert_eq!(
        agent
            .desired(&rig)
            .await
            .entries
            .iter()
            .find(|e| e.service.uid == uid)
            .unwrap()
            .digest(),
        foreign.digest()
    );
    // So it does where the disk has nothing of it and the registry is away.
    rig.edit("Secret", ADMIN_NAMESPACE, "keys", |s| {
        s["data"] = json!({"other.pub": encode(&other)})
    })
    .await;
    let apps = rig
        .wait_for("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
            condition(s, "Ready") == "True/Fetched"
        })
        .await;
    drop(registry);
    std::fs::remove_dir_all(rig.path().join("mirrors").join(uid_of_source)).unwrap();
    let missed = ask(&rig, "OCIRepository", "apps").await;
    assert_eq!(condition(&missed, "Ready"), "False/Unreachable");
    assert_eq!(missed["status"]["revision"], apps["status"]["revision"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_layer_of_the_same_artifact_is_another_content() {
    use farwater_testkit::registry::{Layer, tar};
    let registry = Registry::start(SignIn::Nobody).await.unwrap();
    let layer = |kind: &str, content: &str| Layer::new(kind, tar(&[("a.yaml", content)]).unwrap());
    registry
        .push(
            "apps",
            "latest",
            "application/x-config",
            &[layer("application/x-one", "1"), layer("application/x-two", "2")],
        )
        .await
        .unwrap();
    let rig = start().await;
    oci_repository(&rig, "apps", &registry.url("apps")).await;
    let uid = service(&rig, "web", oci_service()).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(files["a.yaml"], "1");
    rig.edit("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        s["spec"]["layerSelector"] = json!({"mediaType": "application/x-two"})
    })
    .await;
    let (second, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert_eq!(files["a.yaml"], "2");

    // One that it has not is the source's matter, and what was read before stays.
    rig.edit("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        s["spec"]["layerSelector"] = json!({"mediaType": "application/x-three"})
    })
    .await;
    rig.wait_for("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        condition(s, "Stalled") == "True/ArtifactMalformed"
    })
    .await;
    let requested = jiff::Timestamp::now().to_string();
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["metadata"]["annotations"]["farwater.dev/requestedAt"] = requested.clone().into();
    })
    .await;
    let told = wait_service(&rig, "web", |s| {
        s["status"]["lastHandledReconcileAt"] == requested.as_str()
    })
    .await;
    assert_eq!(condition(&told, "Stalled"), "absent", "{told:#}");
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), second.digest());
    rig.edit("OCIRepository", ADMIN_NAMESPACE, "apps", |s| {
        s["spec"].as_object_mut().unwrap().remove("layerSelector");
    })
    .await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) == bundle(&first)).await;
    assert_eq!(files["a.yaml"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_in_git_is_delivered_with_all_that_it_depends_on() {
    let repository = Repository::start(&[
        ("redis", "7.0.0"),
        ("redis", "7.2.0"),
        ("common", "1.0.0"),
        ("nats", "2.0.0"),
    ])
    .await;
    // Another one that no resource states, with the same charts.
    let linked = farwater_testkit::Origin::of_folder(repository.path(), None)
        .await
        .unwrap();
    let server = GitServer::start().await.unwrap();
    let git = server.create("infra.git").unwrap();
    let chart_yaml = format!(
        "apiVersion: v2\nname: web\nversion: 0.1.0\ndependencies:\n\
         - {{name: redis, version: ^7, repository: '{}'}}\n\
         - {{name: common, version: 1.x, repository: '@charts', alias: shared}}\n\
         - {{name: nats, version: '*', repository: '{}', condition: nats.enabled}}\n\
         - {{name: lib, version: 0.1.0, repository: 'file://../lib'}}\n",
        repository.origin.url(),
        linked.url()
    );
    let lib = format!(
        "apiVersion: v2\nname: lib\nversion: 0.1.0\ntype: library\ndependencies:\n- {{name: common, version: 1.0.0, repository: '{}/'}}\n",
        repository.origin.url()
    );
    git.commit(
        "main",
        &[
            ("charts/web/Chart.yaml", &chart_yaml),
            ("charts/web/values.yaml", "a: b\n"),
            ("charts/lib/Chart.yaml", &lib),
            ("README", "x"),
        ],
    )
    .unwrap();
    let rig = start().await;
    let spec = json!({"sourceRef": {"name": "infra"}, "path": "charts/web"});
    let uid = service(&rig, "web", spec).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let told = wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/ChartNotFound").await;
    assert!(
        message(&told, "Ready")
            .contains("charts/web/Chart.yaml: dependency common: there is no HelmRepository @charts"),
        "{told:#}"
    );
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    for path in [
        "charts/web/charts/redis-7.2.0/templates/map.yaml",
        "charts/web/charts/common-1.0.0/Chart.yaml",
        "charts/web/charts/nats-2.0.0/Chart.yaml",
        "charts/web/charts/lib/Chart.yaml",
        "charts/web/charts/lib/charts/common-1.0.0/Chart.yaml",
        "charts/lib/Chart.yaml",
    ] {
        assert!(files.contains_key(path), "{path} in {:?}", files.keys());
    }
    assert!(linked.seen().iter().all(|seen| seen.authorization.is_none()));

    // A dependency that moves is followed, and a commit elsewhere changes nothing.
    git.change("main", &[("README", Some("y"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    repository.add(&[("redis", "7.3.0")]);
    ask(&rig, "HelmRepository", "charts").await;
    let (second, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert!(files.contains_key("charts/web/charts/redis-7.3.0/Chart.yaml"));
    // With a lock it is not.
    let lock = format!(
        "dependencies:\n- {{name: redis, repository: '{0}', version: 7.0.0}}\n- {{name: common, repository: '@charts', version: 1.0.0}}\n\
         - {{name: nats, repository: '{1}', version: 2.0.0}}\n- {{name: lib, repository: 'file://../lib', version: 0.1.0}}\ndigest: sha256:x\n",
        repository.origin.url(),
        linked.url()
    );
    git.change("main", &[("charts/web/Chart.lock", Some(&lock))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (locked, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&second)).await;
    assert!(
        files.contains_key("charts/web/charts/redis-7.0.0/Chart.yaml"),
        "{:?}",
        files.keys()
    );
    repository.add(&[("redis", "7.4.0")]);
    ask(&rig, "HelmRepository", "charts").await;
    rig.wait_idle().await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), locked.digest());
    // The bundle is made again without asking anybody.
    let file = rig
        .path()
        .join("cache/bundles")
        .join(format!("{}.tar.zst", bundle(&locked).unwrap().to_hex()));
    std::fs::remove_file(file).unwrap();
    repository.origin.forget_seen();
    wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(repository.origin.seen(), []);
    // A lock that is not of these dependencies is refused with its place.
    git.change("main", &[("charts/web/Chart.lock", Some("dependencies: []\n"))])
        .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let told = wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/BundleFailed").await;
    assert!(
        message(&told, "Ready").contains("charts/web/Chart.lock: has no entry for dependency redis"),
        "{told:#}"
    );
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), locked.digest());
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_that_depend_on_one_another_are_refused() {
    let server = GitServer::start().await.unwrap();
    let git = server.create("infra.git").unwrap();
    let chart = |name: &str, other: &str| {
        format!(
            "apiVersion: v2\nname: {name}\nversion: 0.1.0\ndependencies:\n- {{name: {other}, repository: 'file://../{other}'}}\n"
        )
    };
    git.commit(
        "main",
        &[("a/Chart.yaml", &chart("a", "b")), ("b/Chart.yaml", &chart("b", "a"))],
    )
    .unwrap();
    let rig = start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    service(&rig, "web", json!({"sourceRef": {"name": "infra"}, "path": "a"})).await;
    let told = wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/BundleFailed").await;
    assert!(
        message(&told, "Ready").contains("charts depend on one another: a, b"),
        "{told:#}"
    );
}

/// Of a host that never answered one request waits, of one that did eight.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_stuck_holds_up_no_others() {
    let repository = Repository::start(&[("web", "1.0.0")]).await;
    let [never, once] = [(); 2].map(|()| farwater_testkit::Origin::of_folder(repository.path(), None));
    let (never, once) = (never.await.unwrap(), once.await.unwrap());
    never.set_fault(Fault::Stall);
    let rig = start().await;
    for n in 0..30 {
        helm_repository(&rig, &format!("never-{n}"), &format!("{}/{n}", never.url())).await;
        oci_repository(&rig, &format!("never-{n}"), &format!("oci://{}/apps-{n}", never.host())).await;
        helm_repository(&rig, &format!("once-{n}"), &format!("{}/{n}", once.url())).await;
    }
    for n in 0..30 {
        let is_told = |s: &Value| condition(s, "Ready") == "False/RepositoryNotFound";
        rig.wait_for("HelmRepository", ADMIN_NAMESPACE, &format!("once-{n}"), is_told)
            .await;
    }
    once.set_fault(Fault::Stall);
    once.forget_seen();
    for n in 0..30 {
        rig.edit("HelmRepository", ADMIN_NAMESPACE, &format!("once-{n}"), |s| {
            s["spec"]["interval"] = "2h".into()
        })
        .await;
    }
    rig.wait_until("the stuck hosts are asked", async || {
        never.count("") >= 1 && once.count("") >= 8
    })
    .await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    let uid = service(&rig, "web", chart_service("*")).await;
    let agent = Agent::join(&rig, "east").await;
    wait_files(&rig, &agent, &uid, |_| true).await;
    // Those that wait for a turn have looked for one since, twice.
    let looks = || rig.replica.queues.sources.counts().done;
    let before = looks();
    rig.wait_until("they have looked", async || looks() >= before + 2 * 22)
        .await;
    assert_eq!((never.count(""), once.count("")), (1, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_are_corrected_are_tried_at_once() {
    let repository = Repository::start(&[("web", "1.0.0")]).await;
    repository.origin.set_auth(Auth::Basic {
        username: "robot".into(),
        password: "right".into(),
    });
    let rig = start().await;
    let encode = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let data = |password: &str| json!({"username": encode("robot"), "password": encode(password)});
    rig.create("Secret", ADMIN_NAMESPACE, "login", json!({"data": data("wrong")}))
        .await;
    let spec = json!({"url": repository.origin.url(), "interval": "1h", "secretRef": {"name": "login"}});
    source(&rig, "HelmRepository", "charts", spec).await;
    rig.wait_for("HelmRepository", ADMIN_NAMESPACE, "charts", |s| {
        condition(s, "Ready") == "False/AuthenticationFailed"
    })
    .await;
    rig.edit("Secret", ADMIN_NAMESPACE, "login", |s| s["data"] = data("right"))
        .await;
    rig.wait_for("HelmRepository", ADMIN_NAMESPACE, "charts", |s| {
        condition(s, "Ready") == "True/Fetched"
    })
    .await;
}
