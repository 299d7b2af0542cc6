//! Services that depend on one another, and suspensions that end.

use std::time::Duration;

use farwater_api::{
    ADMIN_NAMESPACE,
    objects::{Health, Outcome},
    protocol::{Action, Entry},
};
use farwater_hub::{
    apiserver::service_admission::{Inadmissible, check_dependencies, check_set_dependencies},
    resources::Name,
};
use jiff::Timestamp;
use serde_json::json;

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{Rig, WEB, condition, message, repository},
};

async fn depend(rig: &Rig, name: &str, on: &[&str]) {
    let names: Vec<_> = on.iter().map(|name| json!({"name": name})).collect();
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, name, |s| {
        s["spec"]["dependsOn"] = names.clone().into()
    })
    .await;
}

async fn until_waiting(rig: &Rig, name: &str, part: &str) {
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |s| {
        condition(s, "Reconciling") == "True/DependencyNotReady" && message(s, "Ready").contains(part)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_version_comes_after_those_that_it_depends_on_and_a_fix_of_them_always() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    depend(&rig, "web", &["db"]).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let mut east = Agent::join(&rig, "east").await;
    let mut west = Agent::join(&rig, "west").await;
    until_waiting(&rig, "web", "waits for service db, which does not exist").await;
    let held = |entry: &Entry| matches!(&entry.action, Action::Hold { reason } if reason.contains("service db"));
    east.wait_entry(&rig, &web, held).await;

    // On another cluster, and healthy only when its agent says so.
    let db = rig.service(ADMIN_NAMESPACE, "db", "west", "apps/db").await;
    let (_, db_entry) = west.wait_entry(&rig, &db, |entry| applied(entry).is_some()).await;
    west.say(
        &rig,
        &db,
        said(&db_entry, Outcome::Applied, &[("db", Health::InProgress)]),
    )
    .await;
    until_waiting(&rig, "web", "1 of 1 object is not ready yet").await;
    west.say(&rig, &db, said(&db_entry, Outcome::Applied, &[("db", Health::Current)]))
        .await;
    let (_, web_entry) = east.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    east.say(
        &rig,
        &web,
        said(&web_entry, Outcome::Applied, &[("web", Health::Current)]),
    )
    .await;

    // One commit for both: the one that is depended on first, whichever is looked at first.
    let both = |name: &str| WEB.replace("name: web", &format!("name: {name}"));
    git.change(
        "main",
        &[
            ("apps/web/web.yaml", Some(&both("web2"))),
            ("apps/db/db.yaml", Some(&both("db2"))),
        ],
    )
    .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (_, second) = west
        .wait_entry(&rig, &db, |entry| entry.digest() != db_entry.digest())
        .await;
    until_waiting(&rig, "web", "waits for service db").await;
    west.say(&rig, &db, said(&second, Outcome::Applied, &[("db2", Health::Failed)]))
        .await;
    until_waiting(&rig, "web", "1 of 1 object failed").await;
    assert_eq!(east.desired(&rig).await.entries[0].digest(), web_entry.digest());

    // Its fix waits for nobody, and then the other goes on.
    git.change("main", &[("apps/db/db.yaml", Some(&both("db3")))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (_, third) = west
        .wait_entry(&rig, &db, |entry| entry.digest() != second.digest())
        .await;
    west.say(&rig, &db, said(&third, Outcome::Applied, &[("db3", Health::Current)]))
        .await;
    east.wait_entry(&rig, &web, |entry| {
        applied(entry).is_some() && entry.digest() != web_entry.digest()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_is_refused_with_its_way_and_one_that_slipped_in_stands_still() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    depend(&rig, "db", &["web"]).await;
    let web = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web").await.unwrap();
    let mut spec: farwater_api::ServiceDeploymentSpec = serde_json::from_value(web["spec"].clone()).unwrap();
    spec.depends_on = serde_json::from_value(json!([{"name": "db"}])).unwrap();
    let name = Name::new(ADMIN_NAMESPACE, "web");
    let refused = check_dependencies(&rig.store, &name, &spec, None).await.unwrap_err();
    assert!(matches!(refused, Inadmissible::DependsOn(_)));
    assert_eq!(refused.to_string(), "it depends on itself: web → db → web");

    // Two writes at once may both be admitted.
    depend(&rig, "web", &["db"]).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    for name in ["web", "db"] {
        rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |s| {
            condition(s, "Stalled") == "True/DependencyCycle"
                && message(s, "Ready").contains("→ web →") ^ (name == "web")
        })
        .await;
    }
    // Whichever is mended frees both.
    depend(&rig, "db", &[]).await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "db", |s| {
        condition(s, "Stalled") == "absent"
    })
    .await;
    until_waiting(&rig, "web", "waits for service db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_deleted_after_those_that_depend_on_them() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let db = rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &db, |entry| applied(entry).is_some()).await;
    agent
        .say(&rig, &db, said(&entry, Outcome::Applied, &[("db", Health::Current)]))
        .await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    depend(&rig, "web", &["db"]).await;
    agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    rig.wait_idle().await;

    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "db").await;
    let held = |entry: &Entry| matches!(&entry.action, Action::Hold { reason } if reason.contains("web depends on it"));
    agent.wait_entry(&rig, &db, held).await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "db", |s| {
        message(s, "Ready").starts_with("removal is held")
    })
    .await;
    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let removed = |entry: &Entry| matches!(entry.action, Action::Remove { .. });
    let (_, entry) = agent.wait_entry(&rig, &web, removed).await;
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    agent.wait_entry(&rig, &db, held).await;
    agent.say(&rig, &web, said(&entry, Outcome::Removed, &[])).await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "web").await;
    let (_, entry) = agent.wait_entry(&rig, &db, removed).await;
    agent.say(&rig, &db, said(&entry, Outcome::Removed, &[])).await;
    rig.wait_gone("ServiceDeployment", ADMIN_NAMESPACE, "db").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspension_says_why_and_ends_by_itself() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let agent = Agent::join(&rig, "east").await;
    let (_, before) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let suspend = async |seconds: i64| {
        let until = Timestamp::from_second(Timestamp::now().as_second() + seconds).unwrap();
        rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
            service["spec"]["suspend"] = true.into();
            service["spec"]["suspension"] = json!({"until": until.to_string(), "reason": "a move"});
        })
        .await;
        until
    };
    let far = suspend(3600).await;
    let told = format!("the service is suspended until {far}: a move");
    agent
        .wait_entry(
            &rig,
            &uid,
            |e| matches!(&e.action, Action::Hold { reason } if *reason == told),
        )
        .await;
    let commit = git.change("main", &[("apps/web/more.yaml", Some("{}"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            s["status"]["heldRevision"] == format!("main@sha1:{commit}").as_str()
        })
        .await;
    assert_eq!(message(&service, "Ready"), format!("held: {told}"));

    let end = suspend(2).await;
    agent
        .wait_entry(&rig, &uid, |entry| {
            applied(entry).is_some() && entry.digest() != before.digest()
        })
        .await;
    // Not before its end, and by itself: without that it would be looked at some minutes later.
    let late = Timestamp::now().duration_since(end);
    assert!(
        late.is_positive() && late < jiff::SignedDuration::from_secs(60),
        "{late}"
    );
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Ready") == "False/WaitingForAgent"
        })
        .await;
    assert!(service["status"]["heldRevision"].is_null());
    assert_eq!(service["spec"]["suspend"], true, "what people wrote is theirs");

    // A hub that was away at the end finds it past.
    let far = suspend(3600).await;
    let told = format!("the service is suspended until {far}: a move");
    agent
        .wait_entry(
            &rig,
            &uid,
            |e| matches!(&e.action, Action::Hold { reason } if *reason == told),
        )
        .await;
    let end = suspend(1).await;
    let away = rig.restart_after(async |_, _| {
        while Timestamp::now() <= end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let rig = away.await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
}

/// A set on all clusters, from a folder.
async fn set(rig: &Rig, name: &str, path: &str, depends_on: serde_json::Value) {
    let spec = json!({
        "clusterSelector": {},
        "rollout": {"strategy": "AllAtOnce", "soak": "1s"},
        "template": {"spec": {
            "targetNamespace": name, "sourceRef": {"name": "infra"}, "path": path, "dependsOn": depends_on,
        }},
    });
    rig.create("ServiceSet", ADMIN_NAMESPACE, name, json!({"spec": spec}))
        .await;
}

async fn uid(rig: &Rig, name: &str) -> String {
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, name, |service| !service.is_null())
        .await;
    service["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// The agent applies what it is told of a service, and says that it is healthy.
async fn obey(rig: &Rig, agent: &mut Agent, uid: &str) {
    let (_, entry) = agent.wait_entry(rig, uid, |entry| applied(entry).is_some()).await;
    agent
        .say(rig, uid, said(&entry, Outcome::Applied, &[("x", Health::Current)]))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_wait_for_sets_on_their_own_cluster_or_on_all() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    for cluster in ["east", "west"] {
        rig.cluster(cluster).await;
    }
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let (mut east, mut west) = (Agent::join(&rig, "east").await, Agent::join(&rig, "west").await);
    set(&rig, "db", "apps/db", json!([])).await;
    set(&rig, "web", "apps/web", json!([{"kind": "ServiceSet", "name": "db"}])).await;
    set(
        &rig,
        "report",
        "apps/web",
        json!([{"kind": "ServiceSet", "name": "db", "clusters": "All"}]),
    )
    .await;
    let (web_east, web_west) = (uid(&rig, "web-east").await, uid(&rig, "web-west").await);
    let (db_east, db_west) = (uid(&rig, "db-east").await, uid(&rig, "db-west").await);
    until_waiting(&rig, "web-east", "waits for service db-east, which is not healthy").await;
    until_waiting(&rig, "report-east", "waits for ServiceSet db, which").await;

    obey(&rig, &mut east, &db_east).await;
    obey(&rig, &mut east, &web_east).await;
    // Its own cluster has it, and that is not enough for who waits for all.
    until_waiting(&rig, "web-west", "waits for service db-west").await;
    until_waiting(&rig, "report-east", "waits for ServiceSet db, which").await;
    obey(&rig, &mut west, &db_west).await;
    obey(&rig, &mut west, &web_west).await;
    let report = uid(&rig, "report-east").await;
    // Who is healthy and silent is done with nothing.
    rig.wait_until("the report is let go", async || {
        west.poll(&rig, None).await;
        let state = east.desired(&rig).await;
        state
            .entries
            .iter()
            .any(|entry| entry.service.uid == report && applied(entry).is_some())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_says_when_what_is_waited_for_is_ready() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let expression = "self.metadata.annotations['migrated'] == 'yes'";
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["spec"]["dependsOn"] = json!([{"name": "db", "readyExpr": expression}]);
    })
    .await;
    let agent = Agent::join(&rig, "east").await;
    until_waiting(&rig, "web", "has no value").await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "db", |service| {
        service["metadata"]["annotations"]["migrated"] = "yes".into();
    })
    .await;
    // It is not healthy, and need not be.
    agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_says_when_a_set_that_is_waited_for_is_ready() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let agent = Agent::join(&rig, "east").await;
    set(&rig, "db", "apps/db", json!([])).await;
    let expression = "self.metadata.labels['migrated'] == 'yes'";
    let on = json!([{"kind": "ServiceSet", "name": "db", "clusters": "All", "readyExpr": expression}]);
    set(&rig, "web", "apps/web", on).await;
    let web = uid(&rig, "web-east").await;
    until_waiting(&rig, "web-east", "ServiceSet db").await;
    rig.edit("ServiceSet", ADMIN_NAMESPACE, "db", |set| {
        set["metadata"]["labels"]["migrated"] = "yes".into()
    })
    .await;
    // It is not healthy, and need not be.
    agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_of_sets_is_refused_with_the_cycle() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    set(
        &rig,
        "db",
        "apps/db",
        json!([{"kind": "ServiceSet", "name": "web", "clusters": "All"}]),
    )
    .await;
    let web = json!({
        "clusterSelector": {},
        "template": {"spec": {
            "targetNamespace": "web", "sourceRef": {"name": "infra"}, "path": "apps/web",
            "dependsOn": [{"kind": "ServiceSet", "name": "db"}],
        }},
    });
    let spec = serde_json::from_value(web).unwrap();
    let refused = check_set_dependencies(&rig.store, &Name::new(ADMIN_NAMESPACE, "web"), &spec)
        .await
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "it depends on itself: ServiceSet/web → ServiceSet/db → ServiceSet/web"
    );
}
