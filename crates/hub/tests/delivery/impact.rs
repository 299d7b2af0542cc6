//! What another revision would change: told beforehand, and then so.

use std::collections::BTreeSet;

use farwater_api::{
    ADMIN_NAMESPACE, GitRepository,
    impact::{Impact, ImpactEffect, ImpactTarget},
};
use farwater_hub::{
    resources::{self, Name},
    services::measure_impact::{ImpactError, measure},
};
use farwater_sources::Named;
use farwater_store::delivery::load_assignment;
use farwater_testkit::git::{GitServer, Repository};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    rig::{Rig, WEB, key, repository},
};

/// A service for each of these folders on each of two clusters.
const FOLDERS: [&str; 3] = ["apps/web", "apps/api", "apps/db"];

async fn start() -> (GitServer, Repository, Rig) {
    let (server, git) = repository().await;
    let files = FOLDERS.map(|folder| (format!("{folder}/a.yaml"), WEB));
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), Some(*text))).collect();
    git.change("main", &files).unwrap();
    let rig = Rig::start().await;
    rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    for cluster in ["east", "west"] {
        rig.cluster(cluster).await;
        for folder in FOLDERS {
            let name = format!("{}-{cluster}", folder.replace('/', "-"));
            rig.service(ADMIN_NAMESPACE, &name, cluster, folder).await;
        }
    }
    for cluster in ["east", "west"] {
        for folder in FOLDERS {
            let name = format!("{}-{cluster}", folder.replace('/', "-"));
            rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, &name, |service| {
                service["status"]["assignedRevision"].is_string()
            })
            .await;
        }
    }
    rig.wait_idle().await;
    (server, git, rig)
}

async fn ask(rig: &Rig, reference: &str) -> Result<Impact, ImpactError> {
    let name = Name::new(ADMIN_NAMESPACE, "infra");
    let repository = rig
        .store
        .get(&key("GitRepository", ADMIN_NAMESPACE, "infra"))
        .await
        .unwrap()
        .unwrap();
    let parsed: GitRepository = resources::parse(&repository).unwrap();
    measure(
        &rig.replica,
        &name,
        (&repository.uid, &parsed.spec),
        &Named::parse(reference).unwrap(),
    )
    .await
}

/// Services that an effect is told of.
fn told(impact: &Impact, effect: ImpactEffect) -> BTreeSet<&str> {
    let groups = impact.groups.iter().filter(|group| group.effect == effect);
    groups
        .flat_map(|group| &group.first)
        .map(|target| target.service.as_str())
        .collect()
}

async fn bundle(rig: &Rig, name: &str) -> Value {
    let uid = rig.get("ServiceDeployment", ADMIN_NAMESPACE, name).await.unwrap()["metadata"]["uid"].clone();
    let row = load_assignment(&mut rig.store.tables().await.unwrap(), uid.as_str().unwrap())
        .await
        .unwrap()
        .unwrap();
    serde_json::from_str::<Value>(&row.assigned.unwrap()).unwrap()["bundle"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_branch_would_change_is_told_and_then_changes() {
    let (_server, git, rig) = start().await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "apps-web-west", |service| {
        service["spec"]["suspend"] = true.into();
    })
    .await;
    rig.wait_idle().await;
    git.set_ref("refs/heads/feature", &git.branch("main").unwrap()).unwrap();
    let other = WEB.replace("name: web", "name: other");
    let gone = [
        ("apps/db/a.yaml", None),
        ("apps/db/db.yaml", None),
        ("README", Some("y")),
    ];
    git.change("feature", &gone).unwrap();
    let commit = git.change("feature", &[("apps/web/a.yaml", Some(&other))]).unwrap();
    let before = rig.looks();

    let impact = ask(&rig, "feature").await.unwrap();
    assert_eq!(impact.revision, format!("feature@sha1:{commit}"));
    assert_eq!((impact.services, impact.uncompared, impact.left_out), (6, 0, 0));
    assert_eq!(
        (impact.changing.services, impact.changing.clusters),
        (1, 1),
        "{impact:?}"
    );
    assert_eq!(told(&impact, ImpactEffect::Changes), BTreeSet::from(["apps-web-east"]));
    assert_eq!(told(&impact, ImpactEffect::Stands), BTreeSet::from(["apps-web-west"]));
    // A folder that nothing is left in.
    assert_eq!(
        told(&impact, ImpactEffect::Fails),
        BTreeSet::from(["apps-db-east", "apps-db-west"])
    );
    assert_eq!((impact.failing.services, impact.failing.clusters), (2, 2));
    let fails = impact
        .groups
        .iter()
        .find(|group| group.effect == ImpactEffect::Fails)
        .unwrap();
    assert_eq!(fails.path, "apps/db");
    assert!(
        fails.message.contains("the source has no such folder"),
        "{}",
        fails.message
    );

    // Nothing has moved, and nobody was looked at.
    rig.wait_idle().await;
    assert_eq!(rig.looks(), before);
    let names = [
        "apps-web-east",
        "apps-web-west",
        "apps-api-east",
        "apps-api-west",
        "apps-db-east",
        "apps-db-west",
    ];
    let mut old = Vec::new();
    for name in names {
        old.push(bundle(&rig, name).await);
    }
    git.set_ref("refs/heads/main", &commit).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_until("the service that changes has changed", async || {
        bundle(&rig, "apps-web-east").await != old[0]
    })
    .await;
    rig.wait_idle().await;
    for (name, old) in names.iter().zip(&old).skip(1) {
        assert_eq!(&bundle(&rig, name).await, old, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_merged_meanwhile_is_no_change_of_a_branch() {
    let (_server, git, rig) = start().await;
    git.set_ref("refs/heads/feature", &git.branch("main").unwrap()).unwrap();
    let other = WEB.replace("name: web", "name: other");
    git.change("feature", &[("apps/web/a.yaml", Some(&other))]).unwrap();
    let main = git.change("main", &[("apps/api/a.yaml", Some(&other))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "apps-api-west", |service| {
        service["status"]["assignedRevision"]
            .as_str()
            .is_some_and(|revision| revision.ends_with(&main))
    })
    .await;
    rig.wait_idle().await;
    let impact = ask(&rig, "feature").await.unwrap();
    assert_eq!(
        impact.paths,
        Some(1),
        "the file and nothing of what main has: {impact:?}"
    );
    assert_eq!(
        told(&impact, ImpactEffect::Changes),
        BTreeSet::from(["apps-web-east", "apps-web-west"])
    );
    // What has the same content is no change.
    assert!(ask(&rig, "main").await.unwrap().groups.is_empty());

    let error = ask(&rig, "nowhere").await.unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_of_one_set_and_folder_are_told_as_one() {
    let (_server, git, rig) = start().await;
    let spec = json!({
        "clusterSelector": {},
        "rollout": {"strategy": "AllAtOnce"},
        "template": {"spec": {"targetNamespace": "set", "sourceRef": {"name": "infra"}, "path": "apps/web"}},
    });
    rig.create("ServiceSet", ADMIN_NAMESPACE, "fleet", json!({"spec": spec}))
        .await;
    for name in ["fleet-east", "fleet-west"] {
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |service| {
            service["status"]["assignedRevision"].is_string()
        })
        .await;
    }
    git.set_ref("refs/heads/feature", &git.branch("main").unwrap()).unwrap();
    git.change(
        "feature",
        &[("apps/web/a.yaml", Some(&WEB.replace("name: web", "name: other")))],
    )
    .unwrap();
    let impact = ask(&rig, "feature").await.unwrap();
    let shown: Vec<_> = impact
        .groups
        .iter()
        .map(|group| (group.set.as_deref(), group.services, group.clusters))
        .collect();
    assert_eq!(shown, [(None, 2, 2), (Some("fleet"), 2, 2)], "{impact:?}");
    assert_eq!((impact.changing.services, impact.changing.clusters), (4, 2));
    assert_eq!(impact.groups[1].first[0].cluster, format!("{ADMIN_NAMESPACE}/east"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_is_who_says_what_would_change() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    for name in ["east", "north", "west"] {
        let cluster = json!({"spec": {"pollInterval": "30s"}, "labels": {"name": name}});
        rig.create("Cluster", ADMIN_NAMESPACE, name, cluster).await;
        // It is heard.
        Agent::join(&rig, name).await.poll(&rig, None).await;
    }
    let spec = json!({
        "clusterSelector": {}, "rollout": {"canary": {"clusterSelector": {"matchLabels": {"name": "north"}}}},
        "template": {"spec": {"targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web"}},
    });
    rig.create("ServiceSet", ADMIN_NAMESPACE, "web", json!({"spec": spec}))
        .await;
    let is_told =
        |set: &Value| set["status"]["rollout"]["step"] == "canary" && set["status"]["clusters"]["matched"] == 3;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, "web", is_told).await;
    git.set_ref("refs/heads/feature", &git.branch("main").unwrap()).unwrap();
    git.change(
        "feature",
        &[("apps/web/a.yaml", Some(&WEB.replace("name: web", "name: other")))],
    )
    .unwrap();
    let reaches_all = async || ask(&rig, "feature").await.unwrap().changing.services == 3;
    rig.wait_until("all three are known", reaches_all).await;
    let impact = ask(&rig, "feature").await.unwrap();
    let [group] = &impact.groups[..] else {
        panic!("{impact:?}")
    };
    assert_eq!((group.set.as_deref(), group.services), (Some("web"), 3));
    let canary = ImpactTarget {
        service: "web-north".to_owned(),
        cluster: "farwater-admin/north".to_owned(),
    };
    assert_eq!(group.canary, Some(canary));
}
