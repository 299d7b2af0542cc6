//! Private repositories, what is signed, and what belongs to a commit beside its own files.

use std::os::unix::fs::PermissionsExt as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::{ADMIN_NAMESPACE, SOURCE_CREDENTIALS, URL_PREFIX};
use farwater_testkit::{
    app_api::{APP, AppApi, INSTALLATION},
    git::{Auth, Fault, GitServer, Repository},
    lfs::pointer,
    squid::{Options, Squid},
    ssh::{Key, SshServer},
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, message},
    shop::{ask, bundle, service, source, start, wait_files, wait_service},
};

fn data(pairs: &[(&str, &str)]) -> Value {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Value::from(STANDARD.encode(value))))
        .collect()
}

async fn secret(rig: &Rig, name: &str, pairs: &[(&str, &str)]) {
    rig.create("Secret", ADMIN_NAMESPACE, name, json!({"data": data(pairs)}))
        .await;
}

async fn shared(rig: &Rig, name: &str, prefix: &str, pairs: &[(&str, &str)]) {
    let annotations = json!({URL_PREFIX: prefix});
    let object = json!({"data": data(pairs), "type": SOURCE_CREDENTIALS, "annotations": annotations});
    rig.create("Secret", ADMIN_NAMESPACE, name, object).await;
}

async fn git_source(rig: &Rig, name: &str, spec: Value) -> String {
    let mut full = json!({"interval": "1h"});
    for (field, value) in spec.as_object().unwrap() {
        full[field] = value.clone();
    }
    source(rig, "GitRepository", name, full).await
}

async fn wait_source(rig: &Rig, name: &str, kind: &str, expected: &str) -> Value {
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, name, |object| {
        condition(object, kind) == expected
    })
    .await
}

/// A service of a folder of the source `infra`.
async fn web(rig: &Rig, name: &str) -> String {
    service(
        rig,
        name,
        json!({"sourceRef": {"kind": "GitRepository", "name": "infra"}, "path": "apps"}),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_over_ssh_is_delivered_as_soon_as_its_secret_is_right() {
    let (key, other) = (
        Key::make("ed25519", "phrase", "").unwrap(),
        Key::make("ed25519", "", "").unwrap(),
    );
    let server = SshServer::start(&[&key]).await.unwrap();
    server
        .create("infra")
        .unwrap()
        .commit("main", &[("apps/a.yaml", "kind: A")])
        .unwrap();
    let rig = start().await;
    git_source(
        &rig,
        "infra",
        json!({"url": server.url("infra"), "secretRef": {"name": "key"}}),
    )
    .await;
    wait_source(&rig, "infra", "Stalled", "True/SecretNotFound").await;
    let hosts = server.known_hosts();
    secret(&rig, "key", &[("identity", &other.private), ("known_hosts", &hosts)]).await;
    wait_source(&rig, "infra", "Stalled", "True/AuthenticationFailed").await;
    let put = async |pairs: &[(&str, &str)]| {
        rig.edit("Secret", ADMIN_NAMESPACE, "key", |object| object["data"] = data(pairs))
            .await;
    };
    put(&[("identity", &key.private), ("password", "phrase")]).await;
    let told = wait_source(&rig, "infra", "Stalled", "True/SecretInvalid").await;
    assert!(message(&told, "Ready").contains("ssh-keyscan"), "{told:#}");
    put(&[
        ("identity", &key.private),
        ("password", "phrase"),
        ("known_hosts", &hosts),
    ])
    .await;
    wait_source(&rig, "infra", "Ready", "True/Fetched").await;
    let uid = web(&rig, "web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(files["apps/a.yaml"], "kind: A");
    let told = rig
        .get("GitRepository", ADMIN_NAMESPACE, "infra")
        .await
        .unwrap()
        .to_string();
    assert!(!told.contains("PRIVATE KEY") && !told.contains("phrase"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_apps_token_is_minted_through_the_proxy_that_its_source_names() {
    let (server, api) = (GitServer::start().await.unwrap(), AppApi::start().await.unwrap());
    server
        .create("infra")
        .unwrap()
        .commit("main", &[("apps/a.yaml", "kind: A")])
        .unwrap();
    server.set_auth(Auth::Basic {
        username: "x-access-token".into(),
        password: AppApi::token(1),
    });
    let credentials = Some(("p".to_owned(), "right".to_owned()));
    let squid = Squid::start(&Options {
        credentials,
        ..Options::default()
    })
    .await
    .unwrap();
    let (rig, base, address) = (start().await, api.url(), squid.url(""));
    let app = [
        ("githubAppID", APP),
        ("githubAppInstallationID", INSTALLATION),
        ("githubAppPrivateKey", api.key()),
        ("githubAppBaseURL", &base),
    ];
    secret(&rig, "app", &app).await;
    let proxy = |password| data(&[("address", &address), ("username", "p"), ("password", password)]);
    rig.create("Secret", ADMIN_NAMESPACE, "proxy", json!({"data": proxy("wrong")}))
        .await;
    let (secret, proxy_secret) = (json!({"name": "app"}), json!({"name": "proxy"}));
    let spec = json!({"url": server.url("infra"), "secretRef": secret, "proxySecretRef": proxy_secret});
    git_source(&rig, "infra", spec).await;
    wait_source(&rig, "infra", "Ready", "False/ProxyRefused").await;
    assert_eq!(
        (api.given(), server.counts().requests),
        (0, 0),
        "nothing goes past the proxy"
    );
    rig.edit("Secret", ADMIN_NAMESPACE, "proxy", |object| {
        object["data"] = proxy("right")
    })
    .await;
    let told = wait_source(&rig, "infra", "Ready", "True/Fetched").await.to_string();
    assert_eq!(api.given(), 1, "{:?}", api.refused());
    assert!(
        !told.contains(&AppApi::token(1)) && !told.contains("PRIVATE KEY"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_the_hubs_configuration_says_the_credentials_of_the_namespaces_that_it_serves() {
    let server = GitServer::start_tls().await.unwrap();
    server
        .create("infra")
        .unwrap()
        .commit("main", &[("apps/a.yaml", "kind: A")])
        .unwrap();
    server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "of-a-program".into(),
    });
    let folder = tempfile::tempdir().unwrap();
    let (program, log) = (folder.path().join("say"), folder.path().join("log"));
    let say = |password: &str| {
        let script = format!(
            "#!/bin/sh\ncat >>{}\necho username=u; echo password={password}\n",
            log.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    say("of-a-program");
    let rig = Rig::start_with_program(&format!("{} {}", server.origin(), program.display())).await;
    rig.cluster("east").await;
    let spec = json!({"url": server.url("infra"), "interval": "1h", "secretRef": {"name": "authority"}});
    for namespace in [ADMIN_NAMESPACE, "team-a"] {
        let authority = json!({"data": data(&[("ca.crt", server.ca().unwrap())])});
        rig.create("Secret", namespace, "authority", authority).await;
        rig.create("GitRepository", namespace, "infra", json!({"spec": spec}))
            .await;
    }
    let told = wait_source(&rig, "infra", "Ready", "True/Fetched").await.to_string();
    assert!(!told.contains("of-a-program"), "{told}");
    // Whoever is not named has to bring credentials.
    let is_refused = |object: &Value| condition(object, "Stalled") == "True/AuthenticationFailed";
    rig.wait_for("GitRepository", "team-a", "infra", is_refused).await;
    let asked = std::fs::read_to_string(&log).unwrap();
    assert!(
        asked.contains(&format!("namespace={ADMIN_NAMESPACE}")) && !asked.contains("team-a"),
        "{asked}"
    );
    let uid = web(&rig, "web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(files["apps/a.yaml"], "kind: A");
    // What it said is taken back: it is asked again, and its next word counts.
    server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "of-tomorrow".into(),
    });
    say("of-tomorrow");
    for _ in 0..2 {
        ask(&rig, "GitRepository", "infra").await;
    }
    let told = wait_source(&rig, "infra", "Ready", "True/Fetched").await.to_string();
    assert!(!told.contains("of-tomorrow"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_prefix_says_which_credentials_serve_a_source() {
    let server = GitServer::start().await.unwrap();
    server
        .create("infra")
        .unwrap()
        .commit("main", &[("apps/a.yaml", "kind: A")])
        .unwrap();
    server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "right".into(),
    });
    let rig = start().await;
    git_source(&rig, "infra", json!({"url": server.url("infra")})).await;
    wait_source(&rig, "infra", "Stalled", "True/AuthenticationFailed").await;
    let of = |password| [("username", "u"), ("password", password)];
    shared(&rig, "host", &server.origin(), &of("wrong")).await;
    let told = wait_source(&rig, "infra", "Ready", "False/AuthenticationFailed").await;
    assert_eq!(condition(&told, "Stalled"), "True/AuthenticationFailed");
    shared(&rig, "exact", &format!("{}/infra", server.origin()), &of("right")).await;
    wait_source(&rig, "infra", "Ready", "True/Fetched").await;
    // Another repository of the host has the other one's.
    server
        .create("inframarine")
        .unwrap()
        .commit("main", &[("a", "1")])
        .unwrap();
    git_source(&rig, "other", json!({"url": server.url("inframarine")})).await;
    wait_source(&rig, "other", "Stalled", "True/AuthenticationFailed").await;
    // Of one's own Secret no other is asked.
    secret(&rig, "own", &of("also wrong")).await;
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |object| {
        object["spec"]["secretRef"] = json!({"name": "own"})
    })
    .await;
    wait_source(&rig, "infra", "Stalled", "True/AuthenticationFailed").await;
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |object| {
        object["spec"]["secretRef"] = Value::Null
    })
    .await;
    wait_source(&rig, "infra", "Ready", "True/Fetched").await;
    rig.delete("Secret", ADMIN_NAMESPACE, "exact").await;
    wait_source(&rig, "infra", "Stalled", "True/AuthenticationFailed").await;
    let wrong = STANDARD.encode("u:wrong");
    assert!(server.authorizations().contains(&format!("Basic {wrong}")));
}

/// Files, and a submodule at `apps/lib`.
fn commit_with(repository: &Repository, url: &str, module: &str, files: &[(&str, &str)]) -> String {
    let blob = |text: &str| repository.write_object("blob", text.as_bytes()).unwrap();
    let listed = blob(&format!("[submodule \"lib\"]\n\tpath = apps/lib\n\turl = {url}\n"));
    let blobs: Vec<_> = files.iter().map(|(name, text)| (*name, blob(text))).collect();
    let mut entries: Vec<(&str, &[u8], &str)> = blobs
        .iter()
        .map(|(name, id)| ("100644", name.as_bytes(), id.as_str()))
        .collect();
    entries.push(("160000", b"lib", module));
    entries.sort_by_key(|(_, name, _)| *name);
    let apps = repository.write_tree(&entries).unwrap();
    let root = repository
        .write_tree(&[("100644", b".gitmodules", &listed), ("40000", b"apps", &apps)])
        .unwrap();
    repository.commit_tree("main", &root).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn submodules_and_large_files_are_delivered_where_they_are_asked_for() {
    let server = GitServer::start().await.unwrap();
    let (infra, lib) = (server.create("infra").unwrap(), server.create("lib").unwrap());
    let first = lib
        .commit("main", &[("lib.yaml", "kind: Lib"), ("lib.bin", &pointer(b"of lib"))])
        .unwrap();
    commit_with(
        &infra,
        "../lib.git",
        &first,
        &[("a.yaml", "kind: A"), ("a.bin", &pointer(b"of infra"))],
    );
    server.lfs(|lfs| lfs.put(b"of infra"));
    let rig = start().await;
    git_source(&rig, "infra", json!({"url": server.url("infra")})).await;
    let uid = web(&rig, "web").await;
    let agent = Agent::join(&rig, "east").await;
    let told = wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/BundleFailed").await;
    assert!(message(&told, "Ready").contains("recurseSubmodules"), "{told:#}");
    let turn = async |field: &str, on: bool| {
        rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |object| {
            object["spec"][field] = on.into()
        })
        .await;
    };
    turn("recurseSubmodules", true).await;
    let (plain, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(
        (files["apps/lib/lib.yaml"].as_str(), files["apps/a.bin"].as_str()),
        ("kind: Lib", &*pointer(b"of infra"))
    );

    // One of the large files can't be had: what runs stays.
    turn("lfs", true).await;
    let told = wait_service(&rig, "web", |s| message(s, "Ready").contains("no such object")).await;
    assert_eq!(condition(&told, "Ready"), "False/FilesNotReady");
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), plain.digest());
    server.lfs(|lfs| lfs.put(b"of lib"));
    infra
        .git(&["update-ref", "refs/heads/same", "refs/heads/main"], b"")
        .unwrap();
    let again = json!({"farwater.dev/requestedAt": "now"});
    let (large, files) = {
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            s["metadata"]["annotations"] = again.clone()
        })
        .await;
        wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&plain)).await
    };
    assert_eq!(
        (files["apps/a.bin"].as_str(), files["apps/lib/lib.bin"].as_str()),
        ("of infra", "of lib")
    );

    // A restart finds it as it was, and so does a hub that has lost its cache.
    std::fs::remove_dir_all(rig.path().join("cache")).unwrap();
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    let (same, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(
        (same.digest(), files["apps/lib/lib.bin"].as_str()),
        (large.digest(), "of lib")
    );
    // One that has lost the large files too has them fetched, and who asks again gets the bundle.
    std::fs::remove_dir_all(rig.path().join("cache")).unwrap();
    for mirror in std::fs::read_dir(rig.path().join("mirrors")).unwrap() {
        let _ = std::fs::remove_dir_all(mirror.unwrap().path().join("farwater-large"));
    }
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    let digest = bundle(&same).unwrap();
    let is_there = async || agent.bundle(&rig, &digest).await.status.is_success();
    rig.wait_until("the bundle is made again", is_there).await;
    // Another commit of the submodule is another bundle.
    let second = lib.change("main", &[("lib.yaml", Some("kind: Newer"))]).unwrap();
    commit_with(&infra, "../lib.git", &second, &[("a.yaml", "kind: A")]);
    ask(&rig, "GitRepository", "infra").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&large)).await;
    assert_eq!(files["apps/lib/lib.yaml"], "kind: Newer");
}

#[tokio::test(flavor = "multi_thread")]
async fn submodules_that_are_nested_without_end_are_refused_and_what_runs_stays() {
    let server = GitServer::start().await.unwrap();
    let infra = server.create("infra").unwrap();
    infra.commit("main", &[("apps/a.yaml", "kind: A")]).unwrap();
    let rig = start().await;
    git_source(
        &rig,
        "infra",
        json!({"url": server.url("infra"), "recurseSubmodules": true}),
    )
    .await;
    let uid = web(&rig, "web").await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = wait_files(&rig, &agent, &uid, |_| true).await;
    let mut inner = server
        .create("m0")
        .unwrap()
        .commit("main", &[("x.yaml", "kind: X")])
        .unwrap();
    for n in 1..7 {
        let url = format!("../m{}.git", n - 1);
        inner = commit_with(
            &server.create(&format!("m{n}")).unwrap(),
            &url,
            &inner,
            &[("a.yaml", "kind: A")],
        );
    }
    commit_with(&infra, "../m6.git", &inner, &[("a.yaml", "kind: B")]);
    ask(&rig, "GitRepository", "infra").await;
    let told = wait_source(&rig, "infra", "Stalled", "True/SubmodulesInvalid").await;
    assert!(message(&told, "Ready").contains("nested more than 5 deep"), "{told:#}");
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), before.digest());
}

/// Of more hosts and more repositories than there are places for Git.
#[tokio::test(flavor = "multi_thread")]
async fn submodules_at_stuck_hosts_hold_up_no_others() {
    let (server, mut stuck, mut names) = (GitServer::start().await.unwrap(), Vec::new(), Vec::new());
    let module = server
        .create("lib")
        .unwrap()
        .commit("main", &[("lib.yaml", "kind: Lib")])
        .unwrap();
    for host in 0..3 {
        let other = GitServer::start().await.unwrap();
        other.set_fault(Fault::Stall);
        for n in 0..8 {
            let name = format!("stuck-{host}-{n}");
            commit_with(
                &server.create(&name).unwrap(),
                &other.url(&name),
                &module,
                &[("a.yaml", "kind: A")],
            );
            names.push(name);
        }
        stuck.push(other);
    }
    commit_with(
        &server.create("infra").unwrap(),
        "../lib.git",
        &module,
        &[("a.yaml", "kind: A")],
    );
    let rig = start().await;
    for name in &names {
        git_source(&rig, name, json!({"url": server.url(name), "recurseSubmodules": true})).await;
    }
    let is_asked = || stuck.iter().all(|other| other.counts().requests > 0);
    rig.wait_until("the stuck hosts are asked", async || is_asked()).await;
    git_source(
        &rig,
        "infra",
        json!({"url": server.url("infra"), "recurseSubmodules": true}),
    )
    .await;
    wait_source(&rig, "infra", "Ready", "True/Fetched").await;
    let most = stuck.iter().map(|other| other.counts().most_at_once).max();
    assert_eq!(most, Some(1), "of a host that never answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_with_large_files_is_mounted_in_another() {
    let server = GitServer::start().await.unwrap();
    server
        .create("infra")
        .unwrap()
        .commit("main", &[("apps/a.yaml", "kind: A")])
        .unwrap();
    let big = server.lfs(|lfs| lfs.put(b"large"));
    server
        .create("values")
        .unwrap()
        .commit("main", &[("v/big.bin", &big), ("v/x.yaml", "x: 1")])
        .unwrap();
    let rig = start().await;
    git_source(&rig, "infra", json!({"url": server.url("infra")})).await;
    git_source(&rig, "values", json!({"url": server.url("values"), "lfs": true})).await;
    let second = json!({"sourceRef": {"kind": "GitRepository", "name": "values"}, "path": "v", "mountPath": "apps/v"});
    let spec = json!({"sourceRef": {"kind": "GitRepository", "name": "infra"}, "path": "apps", "sources": [second]});
    let uid = service(&rig, "web", spec).await;
    let agent = Agent::join(&rig, "east").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["apps/a.yaml", "apps/v/big.bin", "apps/v/x.yaml"]);
    assert_eq!(files["apps/v/big.bin"], "large");
}

/// Commits on top of a branch, signed by a key.
fn commit_signed(repository: &Repository, key: &Key, text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, &key.private).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(path.with_extension("pub"), &key.public).unwrap();
    let before = repository.change("main", &[("apps/a.yaml", Some(text))]).unwrap();
    let tree = repository
        .git(&["rev-parse", &format!("{before}^{{tree}}")], b"")
        .unwrap();
    let signer = format!("user.signingkey={}", path.display());
    let signed = repository
        .git(
            &[
                "-c",
                "gpg.format=ssh",
                "-c",
                &signer,
                "commit-tree",
                "-S",
                "-m",
                "signed",
                "-p",
                &before,
                &tree,
            ],
            b"",
        )
        .unwrap();
    repository.set_ref("refs/heads/main", &signed).unwrap();
    signed
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_signed_is_never_served_and_the_last_verified_stays() {
    let (server, key) = (GitServer::start().await.unwrap(), Key::make("ed25519", "", "").unwrap());
    let infra = server.create("infra").unwrap();
    infra.commit("main", &[("apps/a.yaml", "kind: Unsigned")]).unwrap();
    let rig = start().await;
    secret(&rig, "signers", &[("ann.pub", &key.public)]).await;
    let verify = json!({"mode": "HEAD", "secretRef": {"name": "signers"}});
    git_source(&rig, "infra", json!({"url": server.url("infra"), "verify": verify})).await;
    let told = wait_source(&rig, "infra", "SourceVerified", "False/VerificationFailed").await;
    assert!(told["status"]["revision"].is_null(), "{told:#}");
    let uid = web(&rig, "web").await;
    let agent = Agent::join(&rig, "east").await;
    wait_service(&rig, "web", |s| condition(s, "Ready").starts_with("False/Source")).await;

    let first = commit_signed(&infra, &key, "kind: First");
    ask(&rig, "GitRepository", "infra").await;
    let told = wait_source(&rig, "infra", "SourceVerified", "True/Succeeded").await;
    assert!(
        message(&told, "SourceVerified").ends_with("was verified: HEAD"),
        "{told:#}"
    );
    let (before, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(files["apps/a.yaml"], "kind: First");

    infra.change("main", &[("apps/a.yaml", Some("kind: Forged"))]).unwrap();
    let told = ask(&rig, "GitRepository", "infra").await;
    assert_eq!(condition(&told, "SourceVerified"), "False/VerificationFailed");
    assert!(
        message(&told, "Ready").contains("the last verified, stays in use"),
        "{told:#}"
    );
    assert_eq!(told["status"]["revision"], format!("main@sha1:{first}"));
    rig.wait_idle().await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), before.digest());

    // A key that is taken away takes nothing with it, and vouches for nothing new.
    let stranger = Key::make("ed25519", "", "").unwrap();
    rig.edit("Secret", ADMIN_NAMESPACE, "signers", |object| {
        object["data"] = data(&[("bob.pub", &stranger.public)])
    })
    .await;
    let second = commit_signed(&infra, &key, "kind: Second");
    let told = ask(&rig, "GitRepository", "infra").await;
    assert!(
        message(&told, "SourceVerified").contains("not among the given ones"),
        "{told:#}"
    );
    assert_eq!(told["status"]["revision"], format!("main@sha1:{first}"));
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), before.digest());
    rig.edit("Secret", ADMIN_NAMESPACE, "signers", |object| {
        object["data"] = data(&[("ann.pub", &key.public)])
    })
    .await;
    let revision = format!("main@sha1:{second}");
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        s["status"]["revision"] == revision.as_str()
    })
    .await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&before)).await;
    assert_eq!(files["apps/a.yaml"], "kind: Second");
}

#[tokio::test(flavor = "multi_thread")]
async fn signatures_that_are_demanded_later_withdraw_what_was_never_verified() {
    let (server, key) = (GitServer::start().await.unwrap(), Key::make("ed25519", "", "").unwrap());
    server
        .create("infra")
        .unwrap()
        .commit("main", &[("apps/a.yaml", "kind: Unsigned")])
        .unwrap();
    let rig = start().await;
    git_source(&rig, "infra", json!({"url": server.url("infra")})).await;
    let uid = web(&rig, "web").await;
    let agent = Agent::join(&rig, "east").await;
    let (before, _) = wait_files(&rig, &agent, &uid, |_| true).await;
    secret(&rig, "signers", &[("ann.pub", &key.public)]).await;
    rig.edit("GitRepository", ADMIN_NAMESPACE, "infra", |object| {
        object["spec"]["verify"] = json!({"mode": "HEAD", "secretRef": {"name": "signers"}});
    })
    .await;
    let told = wait_source(&rig, "infra", "SourceVerified", "False/VerificationFailed").await;
    assert!(told["status"]["revision"].is_null(), "{told:#}");
    web(&rig, "late").await;
    wait_service(&rig, "late", |s| condition(s, "Ready").starts_with("False/Source")).await;
    rig.wait_idle().await;
    let entries = agent.desired(&rig).await.entries;
    let own = entries.iter().find(|entry| entry.service.uid == uid).unwrap();
    assert_eq!(own.digest(), before.digest(), "what runs is nobody's to take away");
    assert_eq!(entries.iter().filter(|entry| applied(entry).is_some()).count(), 1);
}
