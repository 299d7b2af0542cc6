//! Which tenants reach which clusters.

use farwater_api::{ADMIN_NAMESPACE, protocol::Action};
use serde_json::json;

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, message, repository},
    shop::{self, Repository},
};

fn grant() -> serde_json::Value {
    json!({"spec": {
        "clusterSelector": {"matchLabels": {"env": "test"}}, "namespaces": ["team-a"], "verbs": ["deploy"],
        "targetNamespaces": ["web"], "deniedKinds": ["ClusterRole.rbac.authorization.k8s.io"],
        "serviceAccountName": "deployer",
    }})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_grant_holds_and_a_new_one_lets_go() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository("team-a", "infra", &server.url("infra.git")).await;
    let uid = rig.service("team-a", "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let held = |entry: &farwater_api::protocol::Entry| matches!(entry.action, Action::Hold { .. });
    agent.wait_entry(&rig, &uid, held).await;
    rig.wait_for("ServiceDeployment", "team-a", "web", |s| {
        condition(s, "Stalled") == "True/NotGranted"
    })
    .await;

    rig.create("ClusterGrant", "", "team-a", grant()).await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let ceiling = &applied(&entry).unwrap().ceiling;
    assert_eq!(
        (
            ceiling.service_account.namespace.as_str(),
            ceiling.service_account.name.as_str()
        ),
        ("web", "deployer")
    );
    assert_eq!(
        ceiling.target_namespaces.as_deref(),
        Some(["web".to_owned()].as_slice())
    );

    rig.delete("ClusterGrant", "", "team-a").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, held).await;
    assert!(
        matches!(&entry.action, Action::Hold { reason } if reason.contains("ClusterGrant")),
        "{entry:?}"
    );
    rig.wait_for("ServiceDeployment", "team-a", "web", |s| {
        condition(s, "Stalled") == "True/NotGranted"
    })
    .await;

    rig.create("ClusterGrant", "", "team-a", grant()).await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clusters_labels_decide_too() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository("team-a", "infra", &server.url("infra.git")).await;
    rig.create("ClusterGrant", "", "team-a", grant()).await;
    let uid = rig.service("team-a", "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["metadata"]["labels"]["env"] = "prod".into()
    })
    .await;
    agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_service_or_cluster_is_held_where_it_is() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, before) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let suspend = |on: bool| move |object: &mut serde_json::Value| object["spec"]["suspend"] = on.into();
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", suspend(true))
        .await;
    agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. }))
        .await;
    git.change("main", &[("apps/web/more.yaml", Some("{}"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", suspend(true)).await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", suspend(false))
        .await;
    agent
        .wait_entry(
            &rig,
            &uid,
            |e| matches!(&e.action, Action::Hold { reason } if reason.contains("cluster")),
        )
        .await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", suspend(false)).await;
    let (_, after) = agent
        .wait_entry(&rig, &uid, |entry| {
            applied(entry).is_some_and(|d| Some(d.bundle) != applied(&before).map(|d| d.bundle))
        })
        .await;
    assert_ne!(after.digest(), before.digest());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_allows_every_source_of_a_service_or_none() {
    let (server, git) = repository().await;
    let charts = Repository::start(&[("redis", "7.0.0")]).await;
    let rig = shop::start().await;
    let mut with_sources = grant();
    with_sources["spec"]["allowedSources"] = json!([server.origin()]);
    rig.create("ClusterGrant", "", "team-a", with_sources.clone()).await;
    rig.repository("team-a", "infra", &server.url("infra.git")).await;
    let url = charts.origin.url();
    rig.create(
        "HelmRepository",
        "team-a",
        "charts",
        json!({"spec": {"url": url, "interval": "1h"}}),
    )
    .await;
    let chart = format!(
        "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies:\n- {{name: redis, version: '*', repository: '{url}'}}\n"
    );
    git.change("main", &[("chart/Chart.yaml", Some(&chart))]).unwrap();
    let spec = |path: &str, sources: serde_json::Value| {
        json!({"spec": {
            "clusterRef": {"name": "east"}, "targetNamespace": "web", "path": path, "sourceRef": {"name": "infra"}, "sources": sources,
        }})
    };
    let redis = json!([{
        "sourceRef": {"kind": "HelmRepository", "name": "charts"}, "chart": {"name": "redis", "version": "*"}, "mountPath": "redis",
    }]);
    rig.ask("team-a", "infra").await;
    // Stated by the service, or only by its chart.
    let uids = [
        (
            "stated",
            rig.create("ServiceDeployment", "team-a", "stated", spec("apps/web", redis))
                .await,
        ),
        (
            "led-to",
            rig.create("ServiceDeployment", "team-a", "led-to", spec("chart", json!([])))
                .await,
        ),
    ];
    let agent = Agent::join(&rig, "east").await;
    for (name, uid) in &uids {
        let told = rig
            .wait_for("ServiceDeployment", "team-a", name, |s| {
                condition(s, "Stalled") == "True/NotGranted"
            })
            .await;
        assert!(
            message(&told, "Ready").contains(&format!("does not allow source {url}")),
            "{told:#}"
        );
        agent
            .wait_entry(&rig, uid, |entry| matches!(entry.action, Action::Hold { .. }))
            .await;
    }
    rig.edit("ClusterGrant", "", "team-a", |g| {
        g["spec"]["allowedSources"] = json!([server.origin(), url])
    })
    .await;
    for (_, uid) in &uids {
        agent.wait_entry(&rig, uid, |entry| applied(entry).is_some()).await;
    }
    // What was allowed and is no more, is held and not taken away.
    rig.edit("ClusterGrant", "", "team-a", |g| {
        g["spec"]["allowedSources"] = json!([server.origin()])
    })
    .await;
    for (_, uid) in &uids {
        agent
            .wait_entry(&rig, uid, |entry| matches!(entry.action, Action::Hold { .. }))
            .await;
    }
}

/// Content was once assigned under an allowed address that the source's spec had got after the fetch.
#[tokio::test(flavor = "multi_thread")]
async fn content_is_judged_by_the_address_that_it_came_from() {
    let (server, _git) = repository().await;
    let (elsewhere, _other) = repository().await;
    let charts = Repository::start(&[("redis", "7.0.0")]).await;
    let rig = shop::start().await;
    let mut granted = grant();
    granted["spec"]["allowedSources"] = json!([server.origin()]);
    rig.create("ClusterGrant", "", "team-a", granted).await;
    rig.repository("team-a", "infra", &elsewhere.url("infra.git")).await;
    let spec = json!({"spec": {"url": charts.origin.url(), "interval": "1h"}});
    rig.create("HelmRepository", "team-a", "charts", spec).await;
    let place = |source: serde_json::Value| {
        let mut spec = json!({"clusterRef": {"name": "east"}, "targetNamespace": "web"});
        spec.as_object_mut()
            .unwrap()
            .extend(source.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    let of_git = place(json!({"path": "apps/web", "sourceRef": {"name": "infra"}}));
    let of_charts = place(json!({
        "sourceRef": {"kind": "HelmRepository", "name": "charts"}, "chart": {"name": "redis", "version": "*"},
    }));
    let agent = Agent::join(&rig, "east").await;
    let refused = async |name: &str, address: &str| {
        let is_refused = |service: &serde_json::Value| condition(service, "Stalled") == "True/NotGranted";
        let told = rig.wait_for("ServiceDeployment", "team-a", name, is_refused).await;
        assert!(
            message(&told, "Ready").contains(&format!("does not allow source {address}")),
            "{told:#}"
        );
    };
    let first = rig
        .create("ServiceDeployment", "team-a", "git-first", of_git.clone())
        .await;
    let second = rig
        .create("ServiceDeployment", "team-a", "chart-first", of_charts.clone())
        .await;
    refused("git-first", &elsewhere.url("infra.git")).await;
    refused("chart-first", &charts.origin.url()).await;

    // An address that is allowed, where nothing answers.
    let nothing = format!("{}/nothing", server.origin());
    for (kind, name) in [("GitRepository", "infra"), ("HelmRepository", "charts")] {
        rig.edit(kind, "team-a", name, |source| {
            source["spec"]["url"] = nothing.clone().into()
        })
        .await;
        rig.wait_for(kind, "team-a", name, |source| {
            condition(source, "Ready").starts_with("False")
        })
        .await;
    }
    let third = rig.create("ServiceDeployment", "team-a", "git-later", of_git).await;
    let fourth = rig
        .create("ServiceDeployment", "team-a", "chart-later", of_charts)
        .await;
    refused("git-later", &elsewhere.url("infra.git")).await;
    refused("chart-later", &charts.origin.url()).await;
    let state = agent.desired(&rig).await;
    for uid in [&first, &second, &third, &fourth] {
        let entry = state.entries.iter().find(|entry| entry.service.uid == *uid);
        assert!(entry.is_none_or(|entry| applied(entry).is_none()), "{entry:?}");
    }

    // Once the allowed address has answered, it is served.
    rig.edit("GitRepository", "team-a", "infra", |source| {
        source["spec"]["url"] = server.url("infra.git").into()
    })
    .await;
    agent.wait_entry(&rig, &third, |entry| applied(entry).is_some()).await;
}
