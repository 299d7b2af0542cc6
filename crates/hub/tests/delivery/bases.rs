//! Folders of other repositories that kustomizations name: fetched by the hub, so that rendering needs no network.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_api::ADMIN_NAMESPACE;
use farwater_bundle::Base;
use farwater_hub::resources::SourceName;
use farwater_testkit::{
    Origin,
    git::{Auth, GitServer},
};
use serde_json::json;

use crate::{
    agent::Agent,
    rig::{Rig, condition, message},
    shop::{bundle, helm_repository, service, source, start, wait_files, wait_service},
};

const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base}\n";

/// `overlay` names folders of another repository.
fn overlay(bases: &[String]) -> String {
    format!("resources: {}\n", json!(bases))
}

/// Has a base's repository asked now.
pub fn ask_base(rig: &Rig, namespace: &str, base: &str) {
    let url = Base::parse(base).unwrap().link();
    rig.replica.memory.checks.hurry(&SourceName::link_uid(namespace, &url));
    rig.replica.queues.sources.add(SourceName::Link {
        namespace: namespace.to_owned(),
        url,
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_base_is_delivered_with_its_own_and_follows_its_branch() {
    let server = GitServer::start().await.unwrap();
    let (infra, base) = (server.create("infra.git").unwrap(), server.create("base.git").unwrap());
    let third = server.create("third.git").unwrap();
    let url = |repository: &str, rest: &str| format!("{}//{rest}", server.url(repository));
    let deep = overlay(&["../common/a.yaml".to_owned(), url("third.git", "x?ref=v1")]);
    base.commit(
        "main",
        &[
            ("deploy/kustomization.yaml", &deep),
            ("common/a.yaml", CONFIG_MAP),
            ("more/kustomization.yaml", "resources: []\n"),
            ("README", "x"),
        ],
    )
    .unwrap();
    let tagged = third
        .commit(
            "main",
            &[
                ("x/kustomization.yaml", "resources: [b.yaml]\n"),
                ("x/b.yaml", CONFIG_MAP),
            ],
        )
        .unwrap();
    third.set_ref("refs/tags/v1", &tagged).unwrap();
    let bases = [url("base.git", "deploy?ref=main"), url("base.git", "more?ref=main")];
    infra
        .commit("main", &[("web/kustomization.yaml", &overlay(&bases)), ("README", "x")])
        .unwrap();
    let rig = start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = service(&rig, "web", json!({"sourceRef": {"name": "infra"}, "path": "web"})).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    let at = |base: &str| Base::parse(base).unwrap().mount();
    let (own, other) = (at(&bases[0]), at(&url("third.git", "x?ref=v1")));
    let expected = [
        format!("{own}/common/a.yaml"),
        format!("{own}/deploy/kustomization.yaml"),
        format!("{own}/more/kustomization.yaml"),
        format!("{other}/x/b.yaml"),
        format!("{other}/x/kustomization.yaml"),
        "web/kustomization.yaml".to_owned(),
    ];
    assert_eq!(files.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());

    // What the service doesn't need changes nothing; what it needs is delivered, without a commit of its own.
    base.change("main", &[("README", Some("y"))]).unwrap();
    ask_base(&rig, ADMIN_NAMESPACE, &bases[0]);
    infra.change("main", &[("README", Some("y"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_idle().await;
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), first.digest());
    base.change("main", &[("common/a.yaml", Some("# changed\n"))]).unwrap();
    ask_base(&rig, ADMIN_NAMESPACE, &bases[0]);
    let (second, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert_eq!(files[&format!("{own}/common/a.yaml")], "# changed\n");

    // A file of a web server is followed in the same way.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("install.yaml"), CONFIG_MAP).unwrap();
    let web = Origin::of_folder(folder.path(), None).await.unwrap();
    let address = format!("{}/install.yaml", web.url());
    let more = overlay(&[bases[0].clone(), bases[1].clone(), address.clone()]);
    infra
        .change("main", &[("web/kustomization.yaml", Some(&more))])
        .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (third, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&second)).await;
    let place = Base::parse(&address).unwrap().place().unwrap().to_string();
    assert_eq!(files[&place], CONFIG_MAP);
    std::fs::write(folder.path().join("install.yaml"), "# another\n").unwrap();
    ask_base(&rig, ADMIN_NAMESPACE, &address);
    let (second, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&third)).await;
    assert_eq!(files[&place], "# another\n");

    // The bundle is made again without asking anybody.
    let file = rig
        .path()
        .join("cache/bundles")
        .join(format!("{}.tar.zst", bundle(&second).unwrap().to_hex()));
    std::fs::remove_file(file).unwrap();
    let before = server.counts().requests;
    wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(server.counts().requests, before);
    // A folder that the other repository has not is told by file and line, and what runs goes on.
    let missing = overlay(&[url("base.git", "none?ref=main")]);
    infra
        .change("main", &[("web/kustomization.yaml", Some(&missing))])
        .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let told = wait_service(&rig, "web", |s| condition(s, "Stalled") == "True/BundleFailed").await;
    let said = message(&told, "Ready");
    assert!(
        said.contains("web/kustomization.yaml:1: names") && said.contains("none does not exist"),
        "{said}"
    );
    assert_eq!(agent.desired(&rig).await.entries[0].digest(), second.digest());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_cannot_be_had_is_told_and_a_repository_of_its_address_lends_its_credentials() {
    let (server, private) = (GitServer::start().await.unwrap(), GitServer::start().await.unwrap());
    private
        .create("base")
        .unwrap()
        .commit("main", &[("kustomization.yaml", "resources: []\n")])
        .unwrap();
    private.set_auth(Auth::Basic {
        username: "u".into(),
        password: "right".into(),
    });
    let base = format!("{}//?ref=main", private.url("base"));
    let infra = server.create("infra").unwrap();
    infra
        .commit("main", &[("kustomization.yaml", &overlay(std::slice::from_ref(&base)))])
        .unwrap();
    let rig = start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra")).await;
    let uid = service(&rig, "web", json!({"sourceRef": {"name": "infra"}})).await;
    let told = wait_service(&rig, "web", |s| message(s, "Ready").contains("can't be had")).await;
    assert_eq!(condition(&told, "Ready"), "False/SourceNotReady", "{told:#}");
    assert!(message(&told, "Ready").contains(&private.url("base")), "{told:#}");

    let encode = |text: &str| STANDARD.encode(text);
    let data = json!({"username": encode("u"), "password": encode("right")});
    rig.create("Secret", ADMIN_NAMESPACE, "login", json!({"data": data}))
        .await;
    // Whatever it follows itself.
    let spec = json!({"url": private.url("base"), "ref": {"branch": "other"}, "interval": "1h", "secretRef": {"name": "login"}});
    source(&rig, "GitRepository", "base", spec).await;
    let agent = Agent::join(&rig, "east").await;
    let (_, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert!(
        files.contains_key(&format!("{}/kustomization.yaml", Base::parse(&base).unwrap().mount())),
        "{files:?}"
    );
}

/// What a chart below a service's folder depends on is fetched once a renderer names it.
#[tokio::test(flavor = "multi_thread")]
async fn charts_and_bases_of_renderers_below_are_completed_too() {
    let repository = crate::shop::Repository::start(&[("redis", "7.0.0"), ("nats", "2.1.0"), ("nats", "3.0.0")]).await;
    let server = GitServer::start().await.unwrap();
    let (infra, base) = (server.create("infra.git").unwrap(), server.create("base.git").unwrap());
    base.commit("main", &[("kustomization.yaml", "resources: []\n")])
        .unwrap();
    let chart = format!(
        "apiVersion: v2\nname: web\nversion: 0.1.0\ndependencies:\n- {{name: redis, version: '*', repository: '{}'}}\n",
        repository.origin.url()
    );
    let base_of_overlay = overlay(&[format!("{}//?ref=main", server.url("base.git"))]);
    let bases = format!(
        "{base_of_overlay}helmCharts: [{{name: nats, repo: '{}', version: ^2, releaseName: n}}]\n",
        repository.origin.url()
    );
    infra
        .commit(
            "main",
            &[
                ("shop/a.yaml", CONFIG_MAP),
                ("shop/chart/Chart.yaml", &chart),
                ("shop/overlay/kustomization.yaml", &bases),
            ],
        )
        .unwrap();
    let rig = start().await;
    helm_repository(&rig, "charts", &repository.origin.url()).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = service(&rig, "web", json!({"sourceRef": {"name": "infra"}, "path": "shop"})).await;
    let agent = Agent::join(&rig, "east").await;
    let (first, files) = wait_files(&rig, &agent, &uid, |_| true).await;
    assert_eq!(files.len(), 3, "nothing renders them yet: {:?}", files.keys());
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["spec"]["renderers"] = json!([{"path": "chart"}, {"path": "overlay"}]);
    })
    .await;
    let (_, files) = wait_files(&rig, &agent, &uid, |entry| bundle(entry) != bundle(&first)).await;
    assert!(
        files.contains_key("shop/chart/charts/redis-7.0.0/Chart.yaml"),
        "{:?}",
        files.keys()
    );
    assert!(
        files.keys().any(|path| path.starts_with(".farwater-bases/")),
        "{:?}",
        files.keys()
    );
    assert!(
        files["shop/overlay/charts/nats-^2/nats/Chart.yaml"].contains("version: 2.1.0"),
        "{:?}",
        files.keys()
    );
}
