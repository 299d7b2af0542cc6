//! ServiceSets: one template on many clusters.

use std::collections::BTreeSet;

use farwater_api::{
    ADMIN_NAMESPACE, FREEZE_PRUNES, ServiceSet,
    objects::{Health, Outcome},
    protocol::Action,
    service_deployment::DeletionPolicy,
};
use farwater_hub::{resources::Name, sets::plan_sets};
use farwater_store::{
    Kind, ListQuery,
    delivery::{SetMember, members_of_set},
};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{Rig, condition, message, repository},
};

const SET: &str = "web";
const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];

fn set(more: Value) -> Value {
    let mut spec = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}},
        // How a change spreads is the matter of others.
        "rollout": {"strategy": "AllAtOnce"},
        "template": {"spec": {
            "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web",
            "configuration": {"color": "blue"},
        }},
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"spec": spec})
}

async fn cluster(rig: &Rig, namespace: &str, name: &str, labels: Value) -> String {
    rig.create(
        "Cluster",
        namespace,
        name,
        json!({"spec": {"pollInterval": "30s"}, "labels": labels}),
    )
    .await
}

/// With the administrators' Namespace, which says whether anything may be deleted.
async fn start() -> Rig {
    let rig = Rig::start().await;
    rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
    rig
}

async fn clusters(rig: &Rig) {
    for name in CLUSTERS {
        cluster(rig, ADMIN_NAMESPACE, name, json!({"env": "prod"})).await;
    }
}

async fn services(rig: &Rig, namespace: &str) -> BTreeSet<String> {
    let query = ListQuery {
        namespace: Some(namespace.to_owned()),
        ..ListQuery::all(Kind::new("servicedeployments", "farwater.dev"))
    };
    let found = rig.store.list(&query).await.unwrap().items;
    let stays = |object: &Value| !object["metadata"]["deletionTimestamp"].is_string();
    found
        .into_iter()
        .filter(|found| stays(&found.object))
        .map(|found| found.key.name)
        .collect()
}

async fn wait_services(rig: &Rig, namespace: &str, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    rig.wait_until(&format!("the services are {expected:?}"), async || {
        services(rig, namespace).await == expected
    })
    .await;
}

async fn wait_matched(rig: &Rig, matched: i64) -> Value {
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        set["status"]["clusters"]["matched"] == matched
            && set["status"]["observedGeneration"] == set["metadata"]["generation"]
    })
    .await
}

async fn label(rig: &Rig, name: &str, env: &str) {
    rig.edit("Cluster", ADMIN_NAMESPACE, name, |cluster| {
        cluster["metadata"]["labels"]["env"] = env.into()
    })
    .await;
}

async fn rows(rig: &Rig, set_uid: &str) -> Vec<SetMember> {
    members_of_set(&mut rig.store.tables().await.unwrap(), set_uid)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_brings_a_service_and_a_label_takes_it() {
    let (server, _git) = repository().await;
    let rig = start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    cluster(&rig, ADMIN_NAMESPACE, "a", json!({"env": "prod", "region": "eu"})).await;
    cluster(&rig, ADMIN_NAMESPACE, "b", json!({"env": "test"})).await;
    let parameters = json!([
        {"name": "region", "fromLabel": "region", "default": "us"}, {"name": "host", "expression": "self.name + '.example.com'"},
    ]);
    rig.create(
        "ServiceSet",
        ADMIN_NAMESPACE,
        SET,
        set(json!({"parameters": parameters})),
    )
    .await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a"]).await;
    let service = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web-a").await.unwrap();
    assert_eq!(
        service["spec"]["configuration"],
        json!({"color": "blue", "region": "eu", "host": "a.example.com"})
    );
    assert_eq!(
        service["spec"]["clusterRef"],
        json!({"name": "a", "namespace": ADMIN_NAMESPACE})
    );
    assert_eq!(
        (&service["spec"]["prune"], &service["spec"]["deletionPolicy"]),
        (&json!(true), &json!("Orphan"))
    );
    assert_eq!(service["metadata"]["labels"], json!({"farwater.dev/set": SET}));

    // It is delivered as any other.
    let mut agent = Agent::join(&rig, "a").await;
    let uid = service["metadata"]["uid"].as_str().unwrap().to_owned();
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    agent
        .say(&rig, &uid, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        condition(set, "Ready") == "True/Healthy"
    })
    .await;

    label(&rig, "b", "prod").await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b"]).await;
    let told = rig
        .wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            condition(set, "Ready") == "False/Progressing"
        })
        .await;
    assert_eq!(message(&told, "Ready"), "healthy on 1 of 2 clusters");
    label(&rig, "a", "gone").await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-b"]).await;
    // What runs there stays, and is nobody's.
    let (_, entry) = agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Remove { .. }))
        .await;
    assert!(
        matches!(
            entry.action,
            Action::Remove {
                policy: DeletionPolicy::Orphan,
                ..
            }
        ),
        "{entry:?}"
    );
    wait_matched(&rig, 1).await;

    // It comes back once the one before is gone.
    label(&rig, "a", "prod").await;
    let waits = rig
        .wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            condition(set, "Stalled") == "True/MembersFailed"
        })
        .await;
    assert!(message(&waits, "Ready").contains("web-a is being deleted"), "{waits}");
    agent.say(&rig, &uid, said(&entry, Outcome::Removed, &[])).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b"]).await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        condition(set, "Stalled") == "absent"
    })
    .await;

    // It goes with its objects where the set says so.
    let again = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web-a").await.unwrap();
    let uid = again["metadata"]["uid"].as_str().unwrap().to_owned();
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        set["spec"]["deletionPolicy"] = "Delete".into()
    })
    .await;
    label(&rig, "a", "gone").await;
    let (_, entry) = agent
        .wait_entry(&rig, &uid, |entry| matches!(entry.action, Action::Remove { .. }))
        .await;
    assert!(
        matches!(
            entry.action,
            Action::Remove {
                policy: DeletionPolicy::Delete,
                ..
            }
        ),
        "{entry:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_template_changes_each_service_and_leaves_what_is_its_users() {
    let rig = start().await;
    clusters(&rig).await;
    rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b", "web-c", "web-d"]).await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web-a", |service| {
        service["spec"]["suspend"] = true.into()
    })
    .await;
    rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        set["spec"]["template"]["spec"]["path"] = "apps/other".into();
        set["spec"]["template"]["metadata"] = json!({"labels": {"team": "x"}});
        set["spec"]["overrides"] = json!([
            {"clusterSelector": {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}, "patch": {"path": "never"}},
            {"clusterSelector": {"matchLabels": {"tier": "small"}}, "patch": {"path": "small", "configuration": null}},
        ]);
    })
    .await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "b", |cluster| {
        cluster["metadata"]["labels"]["tier"] = "small".into()
    })
    .await;
    for (name, path, suspended) in [
        ("web-a", "apps/other", true),
        ("web-b", "small", false),
        ("web-d", "apps/other", false),
    ] {
        let service = rig
            .wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |service| {
                service["spec"]["path"] == path
            })
            .await;
        assert_eq!(service["spec"]["suspend"], suspended, "{name}");
        assert_eq!(
            service["metadata"]["labels"],
            json!({"farwater.dev/set": SET, "team": "x"})
        );
        assert_eq!(service["spec"]["configuration"].is_null(), name == "web-b", "{service}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_what_it_needs_is_named_and_keeps_what_it_has_while_others_go_on() {
    let rig = start().await;
    cluster(&rig, ADMIN_NAMESPACE, "a", json!({"env": "prod", "region": "eu"})).await;
    cluster(&rig, ADMIN_NAMESPACE, "b", json!({"env": "prod"})).await;
    let parameters = json!([{"name": "region", "fromLabel": "region"}]);
    rig.create(
        "ServiceSet",
        ADMIN_NAMESPACE,
        SET,
        set(json!({"parameters": parameters})),
    )
    .await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a"]).await;
    let told = rig
        .wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            condition(set, "Stalled") == "True/MembersFailed"
        })
        .await;
    let why = "parameter region: the cluster has no label region; label it, or state a default";
    assert_eq!(
        message(&told, "Ready"),
        format!("1 of 2 clusters can't be served: farwater-admin/b: {why}")
    );
    assert_eq!(
        told["status"]["errors"],
        json!([{"cluster": "farwater-admin/b", "message": why}])
    );
    assert_eq!(
        told["status"]["clusters"],
        json!({"matched": 2, "ready": 0, "failed": 1, "leaving": 0})
    );

    // Losing the label loses no service.
    rig.edit("Cluster", ADMIN_NAMESPACE, "a", |cluster| {
        cluster["metadata"]["labels"].as_object_mut().unwrap().remove("region");
    })
    .await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        set["status"]["clusters"]["failed"] == 2
    })
    .await;
    let service = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web-a").await.unwrap();
    assert_eq!(service["spec"]["configuration"]["region"], "eu");
    rig.edit("Cluster", ADMIN_NAMESPACE, "b", |cluster| {
        cluster["metadata"]["labels"]["region"] = "us".into()
    })
    .await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_bears_the_name_already_is_left_alone() {
    let rig = start().await;
    cluster(&rig, ADMIN_NAMESPACE, "a", json!({"env": "prod"})).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web-a", "a", "apps/own").await;
    rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    let told = rig
        .wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            condition(set, "Stalled") == "True/MembersFailed"
        })
        .await;
    assert!(
        message(&told, "Ready").contains("ServiceDeployment web-a exists and is not the set's"),
        "{told}"
    );
    let service = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web-a").await.unwrap();
    assert_eq!(
        (&service["metadata"]["uid"], &service["spec"]["path"]),
        (&json!(uid), &json!("apps/own"))
    );
    // Once its owner lets it go there is room.
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web-a").await;
    rig.wait_until("the set's own is made", async || {
        let found = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web-a").await;
        found.is_some_and(|service| service["spec"]["path"] == "apps/web")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_reaches_granted_clusters_only_and_learns_of_no_others() {
    let rig = start().await;
    cluster(&rig, ADMIN_NAMESPACE, "shared", json!({"env": "prod"})).await;
    cluster(&rig, ADMIN_NAMESPACE, "secret", json!({"env": "secret"})).await;
    cluster(&rig, "team-b", "other", json!({"env": "prod"})).await;
    cluster(&rig, "team-a", "own", json!({"env": "prod"})).await;
    let uid = rig
        .create("ServiceSet", "team-a", SET, set(json!({"clusterSelector": {}})))
        .await;
    rig.wait_for("ServiceSet", "team-a", SET, |set| {
        condition(set, "Ready") == "False/NoClusters"
    })
    .await;
    assert!(rows(&rig, &uid).await.is_empty());
    let grant = json!({"spec": {
        "clusterSelector": {"matchLabels": {"env": "prod"}}, "namespaces": ["team-a"], "verbs": ["deploy"],
        "targetNamespaces": ["web"], "serviceAccountName": "deployer",
    }});
    rig.create("ClusterGrant", "", "team-a", grant).await;
    wait_services(&rig, "team-a", &["web-own", "web-shared"]).await;
    assert!(services(&rig, ADMIN_NAMESPACE).await.is_empty());

    // A lost right takes no service away, and says so.
    rig.delete("ClusterGrant", "", "team-a").await;
    let told = rig
        .wait_for("ServiceSet", "team-a", SET, |set| {
            set["status"]["clusters"]["failed"] == 2
        })
        .await;
    assert!(
        message(&told, "Ready").contains("no ClusterGrant lets namespace team-a deploy"),
        "{told}"
    );
    assert_eq!(services(&rig, "team-a").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typo_in_the_selector_takes_nothing_until_somebody_has_looked() {
    let rig = start().await;
    clusters(&rig).await;
    rig.create(
        "ServiceSet",
        ADMIN_NAMESPACE,
        SET,
        set(json!({"deletionPolicy": "Delete"})),
    )
    .await;
    let all = ["web-a", "web-b", "web-c", "web-d"];
    wait_services(&rig, ADMIN_NAMESPACE, &all).await;
    let select = async |env: &'static str| {
        rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            set["spec"]["clusterSelector"]["matchLabels"]["env"] = env.into();
        })
        .await;
    };
    select("porduction").await;
    let braked = rig
        .wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
            condition(set, "Braked") == "True/ManyAtOnce"
        })
        .await;
    assert!(
        message(&braked, "Braked").contains("the selector no longer finds 4 clusters"),
        "{braked}"
    );
    let frozen = rig.get("Namespace", "", ADMIN_NAMESPACE).await.unwrap();
    let why = frozen["metadata"]["annotations"][FREEZE_PRUNES]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(why, "a ServiceSet has lost 4 of its 4 clusters within 10 minutes");
    assert_eq!(services(&rig, ADMIN_NAMESPACE).await.len(), 4);
    // The typo is mended: nothing has happened.
    select("prod").await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        condition(set, "Braked") == "absent"
    })
    .await;
    assert_eq!(services(&rig, ADMIN_NAMESPACE).await.len(), 4);
    let release = async || {
        rig.edit("Namespace", "", ADMIN_NAMESPACE, |namespace| {
            namespace["metadata"]["annotations"]
                .as_object_mut()
                .unwrap()
                .remove(FREEZE_PRUNES);
        })
        .await;
    };
    release().await;
    rig.wait_until("deletions go on", async || rig.replica.memory.freeze.reason().is_none())
        .await;
    assert_eq!(services(&rig, ADMIN_NAMESPACE).await.len(), 4);

    // Meant so, it goes on when an administrator has looked.
    select("none").await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        condition(set, "Braked") == "True/ManyAtOnce"
    })
    .await;
    assert_eq!(services(&rig, ADMIN_NAMESPACE).await.len(), 4);
    release().await;
    wait_services(&rig, ADMIN_NAMESPACE, &[]).await;
    assert!(
        rig.replica.memory.freeze.reason().is_none(),
        "it was looked at once, and that is enough"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_while_nothing_is_deleted_anyway_is_one_more_reason_to_look_at() {
    let rig = start().await;
    clusters(&rig).await;
    rig.create(
        "ServiceSet",
        ADMIN_NAMESPACE,
        SET,
        set(json!({"deletionPolicy": "Delete"})),
    )
    .await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b", "web-c", "web-d"]).await;
    rig.edit("Namespace", "", ADMIN_NAMESPACE, |namespace| {
        namespace["metadata"]["annotations"][FREEZE_PRUNES] = "a backup is restored".into();
    })
    .await;
    rig.wait_until("nothing is deleted", async || {
        rig.replica.memory.freeze.reason().is_some()
    })
    .await;
    rig.edit("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        set["spec"]["clusterSelector"]["matchLabels"]["env"] = "porduction".into();
    })
    .await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        condition(set, "Braked") == "True/ManyAtOnce"
    })
    .await;
    let frozen = rig.get("Namespace", "", ADMIN_NAMESPACE).await.unwrap();
    assert_eq!(
        frozen["metadata"]["annotations"][FREEZE_PRUNES],
        "a ServiceSet has lost 4 of its 4 clusters within 10 minutes; and before: a backup is restored"
    );
    let told = rig.events().await;
    assert!(told.iter().any(|event| event["reason"] == "PrunesFrozen"), "{told:#?}");
    assert_eq!(services(&rig, ADMIN_NAMESPACE).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_that_leave_one_by_one_are_counted_together() {
    let rig = start().await;
    clusters(&rig).await;
    rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b", "web-c", "web-d"]).await;
    label(&rig, "a", "x").await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-b", "web-c", "web-d"]).await;
    label(&rig, "b", "x").await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-c", "web-d"]).await;
    assert!(rig.replica.memory.freeze.reason().is_none());
    label(&rig, "c", "x").await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, |set| {
        condition(set, "Braked") == "True/ManyAtOnce"
    })
    .await;
    assert_eq!(
        services(&rig, ADMIN_NAMESPACE).await,
        ["web-c".to_owned(), "web-d".to_owned()].into()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_removed_takes_its_service_and_brakes_nothing() {
    let rig = start().await;
    clusters(&rig).await;
    rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b", "web-c", "web-d"]).await;
    for name in ["a", "b", "c"] {
        rig.delete("Cluster", ADMIN_NAMESPACE, name).await;
    }
    wait_services(&rig, ADMIN_NAMESPACE, &["web-d"]).await;
    assert!(rig.replica.memory.freeze.reason().is_none());
    // One of the same name is another.
    cluster(&rig, ADMIN_NAMESPACE, "a", json!({"env": "prod"})).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-d"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_is_deleted_takes_its_services_or_leaves_them() {
    let rig = start().await;
    for name in ["a", "b"] {
        cluster(&rig, ADMIN_NAMESPACE, name, json!({"env": "prod"})).await;
    }
    rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    rig.create("ServiceSet", ADMIN_NAMESPACE, "kept", set(json!({}))).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["kept-a", "kept-b", "web-a", "web-b"]).await;
    let held = |set: &Value| set["metadata"]["finalizers"].to_string().contains("farwater.dev/set");
    for name in [SET, "kept"] {
        rig.wait_for("ServiceSet", ADMIN_NAMESPACE, name, held).await;
    }
    rig.edit("ServiceSet", ADMIN_NAMESPACE, "kept", |set| {
        set["metadata"]["finalizers"]
            .as_array_mut()
            .unwrap()
            .push("orphan".into());
    })
    .await;
    rig.delete("ServiceSet", ADMIN_NAMESPACE, SET).await;
    rig.delete("ServiceSet", ADMIN_NAMESPACE, "kept").await;
    wait_services(&rig, ADMIN_NAMESPACE, &["kept-a", "kept-b"]).await;
    rig.wait_gone("ServiceSet", ADMIN_NAMESPACE, SET).await;
    rig.wait_for("ServiceSet", ADMIN_NAMESPACE, "kept", |set| !held(set))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_while_the_hub_is_down_is_done_when_it_is_back() {
    let rig = start().await;
    clusters(&rig).await;
    rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b", "web-c", "web-d"]).await;
    rig.wait_idle().await;
    rig.kill_controllers().await;
    label(&rig, "a", "x").await;
    cluster(&rig, ADMIN_NAMESPACE, "e", json!({"env": "prod"})).await;
    let rig = rig.crash_before(async |_, _| {}).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-b", "web-c", "web-d", "web-e"]).await;
    rig.wait_idle().await;

    // After an orderly stop it goes on where it was.
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    label(&rig, "b", "x").await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-c", "web-d", "web-e"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_label_of_many_clusters_looks_at_one_service() {
    let rig = start().await;
    for n in 0..60 {
        cluster(&rig, ADMIN_NAMESPACE, &format!("c{n:02}"), json!({"env": "prod"})).await;
    }
    let uid = rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    let names: Vec<String> = (0..60).map(|n| format!("web-c{n:02}")).collect();
    wait_services(
        &rig,
        ADMIN_NAMESPACE,
        &names.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    rig.wait_idle().await;
    let looks = rig.looks();
    label(&rig, "c07", "test").await;
    rig.wait_until("it has left", async || {
        services(&rig, ADMIN_NAMESPACE).await.len() == 59
    })
    .await;
    rig.wait_idle().await;
    let more = rig.looks() - looks;
    assert!(more <= 6, "{more} looks at services");
    assert_eq!(rows(&rig, &uid).await.iter().filter(|row| row.has_left()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_says_which_clusters_would_be_added_changed_and_dropped() {
    let rig = start().await;
    clusters(&rig).await;
    let uid = rig.create("ServiceSet", ADMIN_NAMESPACE, SET, set(json!({}))).await;
    wait_services(&rig, ADMIN_NAMESPACE, &["web-a", "web-b", "web-c", "web-d"]).await;
    wait_matched(&rig, 4).await;
    for (name, labels) in [
        ("e", json!({"env": "new"})),
        ("f", json!({"env": "new", "region": "eu"})),
    ] {
        cluster(&rig, ADMIN_NAMESPACE, name, labels).await;
    }
    rig.edit("Cluster", ADMIN_NAMESPACE, "a", |cluster| {
        cluster["metadata"]["labels"]["region"] = "eu".into()
    })
    .await;
    rig.wait_idle().await;
    let plan = async |more: Value| {
        let mut object = rig.get("ServiceSet", ADMIN_NAMESPACE, SET).await.unwrap();
        object["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let set: ServiceSet = serde_json::from_value(object).unwrap();
        plan_sets::plan(&rig.replica, &Name::new(ADMIN_NAMESPACE, SET), &uid, &set)
            .await
            .unwrap()
            .unwrap()
    };
    let quiet = plan(json!({})).await;
    assert_eq!(
        (
            quiet.counts.unchanged,
            quiet.added.len() + quiet.changed.len() + quiet.dropped.len()
        ),
        (4, 0)
    );
    let wanted = plan(json!({
        "clusterSelector": {"matchExpressions": [{"key": "env", "operator": "In", "values": ["new", "prod"]}]},
        "parameters": [{"name": "region", "fromLabel": "region"}],
    }))
    .await;
    assert_eq!(wanted.added, ["farwater-admin/f"]);
    let changed: Vec<_> = wanted
        .changed
        .iter()
        .map(|one| (one.cluster.as_str(), one.fields.clone()))
        .collect();
    assert_eq!(changed, [("farwater-admin/a", vec!["configuration".to_owned()])]);
    let errors: Vec<_> = wanted.errors.iter().map(|one| one.cluster.as_str()).collect();
    assert_eq!(
        errors,
        [
            "farwater-admin/b",
            "farwater-admin/c",
            "farwater-admin/d",
            "farwater-admin/e"
        ]
    );
    let typo = plan(json!({"clusterSelector": {"matchLabels": {"env": "porduction"}}})).await;
    assert_eq!((typo.counts.dropped, typo.dropped.len()), (4, 4));
    assert_eq!(
        typo.brake.as_deref(),
        Some("a ServiceSet has lost 4 of its 4 clusters within 10 minutes")
    );
    // Nothing of it was done.
    assert_eq!(services(&rig, ADMIN_NAMESPACE).await.len(), 4);
}
