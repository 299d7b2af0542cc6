//! ManagedNamespaces: a namespace on each cluster that a selector finds.

use std::time::Duration;

use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    objects::{Health, Outcome},
    parameters::Parameters,
    protocol::{Action, Entry, SealedSecrets},
    service_deployment::DeletionPolicy,
};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{PATIENCE, Rig, condition, message},
};

const NAME: &str = "shop";
const SET: &str = "namespace-shop";

async fn cluster(rig: &Rig, name: &str, env: &str) -> Agent {
    let spec = json!({"spec": {"pollInterval": "30s"}, "labels": {"env": env}});
    rig.create("Cluster", ADMIN_NAMESPACE, name, spec).await;
    Agent::join(rig, name).await
}

async fn label(rig: &Rig, name: &str, env: &str) {
    rig.edit("Cluster", ADMIN_NAMESPACE, name, |cluster| {
        cluster["metadata"]["labels"]["env"] = env.into()
    })
    .await;
}

/// What the agent of a cluster is to make, by what it was handed.
async fn objects(rig: &Rig, agent: &Agent, entry: &Entry) -> Vec<Value> {
    let mac: Digest = applied(entry).unwrap().parameters.unwrap();
    let uid = &entry.service.uid;
    let answer = agent.parameters(rig, uid, &mac).await;
    assert_eq!(answer.status, StatusCode::OK);
    let sealed: SealedSecrets = serde_json::from_slice(&answer.body).unwrap();
    let handed: Parameters = serde_json::from_slice(&agent.open_parameters(&sealed, uid, &mac).unwrap()).unwrap();
    let text = handed.values["configuration"]["objects"].as_str().unwrap().to_owned();
    text.split("---\n")
        .skip(1)
        .map(|object| serde_json::from_str(object).unwrap())
        .collect()
}

/// Says that all is well with the service of a cluster as it is now, once it fits. Another agent polls meanwhile: a soak ends with a
/// word of its cluster.
async fn do_well(
    rig: &Rig,
    agent: &mut Agent,
    other: Option<&Agent>,
    service: &str,
    fits: impl Fn(&Entry) -> bool,
) -> Entry {
    let found = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, service, Value::is_object)
        .await;
    let uid = found["metadata"]["uid"].as_str().unwrap().to_owned();
    let begun = Instant::now();
    let entry = loop {
        if let Some(other) = other {
            other.poll(rig, None).await;
        }
        if agent.poll(rig, None).await.status == StatusCode::OK {
            let state = agent.desired(rig).await;
            let found = state.entries.iter().find(|entry| entry.service.uid == uid);
            if let Some(entry) = found.filter(|entry| applied(entry).is_some() && fits(entry)) {
                break Entry::clone(entry);
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "waited in vain for {service}: {:#?}",
                state.entries
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    agent
        .say(rig, &uid, said(&entry, Outcome::Applied, &[("shop", Health::Current)]))
        .await;
    entry
}

/// While all agents poll.
async fn until(rig: &Rig, agents: &[&Agent], holds: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        for agent in agents {
            agent.poll(rig, None).await;
        }
        let namespace = rig.get("ManagedNamespace", ADMIN_NAMESPACE, NAME).await.unwrap();
        if holds(&namespace) {
            return namespace;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {namespace:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_complete(namespace: &Value) -> bool {
    condition(namespace, "Ready") == "True/Healthy" && namespace["status"]["rollout"]["phase"] == "Complete"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_follows_labels_and_its_changes_go_to_the_canary_first() {
    let rig = Rig::start().await;
    rig.create("Namespace", "", ADMIN_NAMESPACE, json!({})).await;
    let mut a = cluster(&rig, "a", "prod").await;
    let mut b = cluster(&rig, "b", "test").await;
    let secret = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "e30="}});
    rig.create("Secret", ADMIN_NAMESPACE, "registry", secret).await;
    let spec = json!({
        "clusterSelector": {"matchLabels": {"env": "prod"}}, "labels": {"team": "a"}, "pullSecrets": [{"name": "registry"}],
        "resourceQuota": {"hard": {"pods": 20}},
        "rollout": {"soak": "1s", "failAfter": "1s", "maxUnavailable": 1},
    });
    let uid = rig
        .create(
            "ManagedNamespace",
            ADMIN_NAMESPACE,
            NAME,
            json!({"spec": spec, "labels": {"of": "team-a"}}),
        )
        .await;

    // The set is its own, and one label brings it to a cluster.
    let set = rig.wait_for("ServiceSet", ADMIN_NAMESPACE, SET, Value::is_object).await;
    assert_eq!(
        (
            &set["metadata"]["ownerReferences"][0]["uid"],
            &set["metadata"]["labels"]["of"]
        ),
        (&json!(uid), &json!("team-a"))
    );
    let entry = do_well(&rig, &mut a, None, "namespace-shop-a", |_| true).await;
    let deployment = applied(&entry).unwrap();
    assert_eq!(deployment.target_namespace, "shop");
    assert!(deployment.secrets.is_some(), "{deployment:?}");
    let made = objects(&rig, &a, &entry).await;
    assert_eq!(made[0]["metadata"], json!({"name": "shop", "labels": {"team": "a"}}));
    assert_eq!(made[1]["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(made[2]["spec"], json!({"hard": {"pods": "20"}}));
    let bundle = a.bundle(&rig, &deployment.bundle).await;
    assert_eq!(bundle.status, StatusCode::OK);
    let told = until(&rig, &[&a], is_complete).await;
    assert_eq!(message(&told, "Ready"), "healthy on 1 cluster");
    label(&rig, "b", "prod").await;
    do_well(&rig, &mut b, Some(&a), "namespace-shop-b", |_| true).await;
    until(&rig, &[&a, &b], |namespace| {
        is_complete(namespace) && namespace["status"]["clusters"]["ready"] == 2
    })
    .await;

    // Another quota is at the canary, and nowhere else until that is well.
    let before = a.desired(&rig).await.entries[0].digest();
    let kept = b.desired(&rig).await.entries[0].digest();
    rig.edit("ManagedNamespace", ADMIN_NAMESPACE, NAME, |namespace| {
        namespace["spec"]["resourceQuota"]["hard"]["pods"] = 30.into();
    })
    .await;
    let service = rig
        .get("ServiceDeployment", ADMIN_NAMESPACE, "namespace-shop-a")
        .await
        .unwrap();
    let uid = service["metadata"]["uid"].as_str().unwrap().to_owned();
    let (_, entry) = a.wait_entry(&rig, &uid, |entry| entry.digest() != before).await;
    assert_eq!(
        objects(&rig, &a, &entry).await[2]["spec"],
        json!({"hard": {"pods": "30"}})
    );
    a.say(&rig, &uid, said(&entry, Outcome::Failed, &[("shop", Health::Failed)]))
        .await;
    let halted = until(&rig, &[&a, &b], |namespace| {
        namespace["status"]["rollout"]["phase"] == "Halted"
    })
    .await;
    assert_eq!(halted["status"]["rollout"]["haltedBy"], "farwater-admin/a");
    assert_eq!(b.desired(&rig).await.entries[0].digest(), kept, "it was halted");
    rig.edit("ManagedNamespace", ADMIN_NAMESPACE, NAME, |namespace| {
        namespace["spec"]["resourceQuota"]["hard"]["pods"] = 25.into();
    })
    .await;
    let other = entry.digest();
    do_well(&rig, &mut a, Some(&b), "namespace-shop-a", |entry| {
        entry.digest() != other
    })
    .await;
    let entry = do_well(&rig, &mut b, Some(&a), "namespace-shop-b", |entry| {
        entry.digest() != kept
    })
    .await;
    assert_eq!(
        objects(&rig, &b, &entry).await[2]["spec"],
        json!({"hard": {"pods": "25"}})
    );
    until(&rig, &[&a, &b], is_complete).await;

    // A cluster that leaves keeps all of it.
    label(&rig, "b", "test").await;
    let (_, entry) = b
        .wait_entry(&rig, &entry.service.uid, |entry| {
            matches!(entry.action, Action::Remove { .. })
        })
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
    rig.wait_for("ManagedNamespace", ADMIN_NAMESPACE, NAME, |namespace| {
        namespace["status"]["clusters"]["matched"] == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_of_its_name_is_left_alone_and_a_grant_holds_it() {
    let rig = Rig::start().await;
    let own =
        json!({"clusterSelector": {}, "template": {"spec": {"targetNamespace": "x", "sourceRef": {"name": "infra"}}}});
    rig.create("ServiceSet", "team-a", SET, json!({"spec": own})).await;
    rig.create("ManagedNamespace", "team-a", NAME, json!({"spec": {}}))
        .await;
    let told = rig
        .wait_for("ManagedNamespace", "team-a", NAME, |namespace| {
            condition(namespace, "Stalled") == "True/NameTaken"
        })
        .await;
    assert!(
        message(&told, "Ready").contains("ServiceSet namespace-shop exists and is not made of it"),
        "{told}"
    );
    let set = rig.get("ServiceSet", "team-a", SET).await.unwrap();
    assert_eq!(set["spec"], own);
    rig.delete("ServiceSet", "team-a", SET).await;

    // Whatever sources a grant allows, it is the target namespace that counts.
    rig.create(
        "Cluster",
        ADMIN_NAMESPACE,
        "a",
        json!({"spec": {}, "labels": {"env": "prod"}}),
    )
    .await;
    let grant = |targets: &str| {
        json!({"clusterSelector": {}, "namespaces": ["team-a"], "verbs": ["deploy"], "serviceAccountName": "farwater-system/team-a",
               "allowedSources": ["https://git.example.com/"], "targetNamespaces": [targets]})
    };
    rig.create("ClusterGrant", "", "team-a", json!({"spec": grant("web-*")}))
        .await;
    let told = rig
        .wait_for("ManagedNamespace", "team-a", NAME, |namespace| {
            namespace["status"]["clusters"]["failed"] == 1
        })
        .await;
    assert!(
        message(&told, "Ready").contains("does not allow target namespace shop"),
        "{told}"
    );
    rig.edit("ClusterGrant", "", "team-a", |object| object["spec"] = grant("shop"))
        .await;
    rig.wait_for("ServiceDeployment", "team-a", "namespace-shop-a", Value::is_object)
        .await;
}
