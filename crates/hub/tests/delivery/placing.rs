//! Which tenants reach which clusters.

use farwater_api::{ADMIN_NAMESPACE, protocol::Action};
use serde_json::json;

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, repository},
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
    rig.wait_for("ServiceDeployment", "team-a", "web", |s| condition(s, "Stalled") == "True/NotGranted").await;

    rig.create("ClusterGrant", "", "team-a", grant()).await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let ceiling = &applied(&entry).unwrap().ceiling;
    assert_eq!(
        (ceiling.service_account.namespace.as_str(), ceiling.service_account.name.as_str()),
        ("web", "deployer")
    );
    assert_eq!(ceiling.target_namespaces.as_deref(), Some(["web".to_owned()].as_slice()));

    rig.delete("ClusterGrant", "", "team-a").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, held).await;
    assert!(matches!(&entry.action, Action::Hold { reason } if reason.contains("ClusterGrant")), "{entry:?}");
    rig.wait_for("ServiceDeployment", "team-a", "web", |s| condition(s, "Stalled") == "True/NotGranted").await;

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
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| cluster["metadata"]["labels"]["env"] = "prod".into()).await;
    agent.wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. })).await;
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
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", suspend(true)).await;
    agent.wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Hold { .. })).await;
    git.change("main", &[("apps/web/more.yaml", Some("{}"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", suspend(true)).await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", suspend(false)).await;
    agent.wait_entry(&rig, &uid, |e| matches!(&e.action, Action::Hold { reason } if reason.contains("cluster"))).await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", suspend(false)).await;
    let (_, after) = agent
        .wait_entry(&rig, &uid, |entry| {
            applied(entry).is_some_and(|d| Some(d.bundle) != applied(&before).map(|d| d.bundle))
        })
        .await;
    assert_ne!(after.digest(), before.digest());
}
