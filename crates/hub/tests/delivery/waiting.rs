//! Services that depend on one another, and suspensions that end.

use std::time::Duration;

use farwater_api::{
    ADMIN_NAMESPACE,
    objects::{Health, Outcome},
    protocol::{Action, Entry},
};
use farwater_hub::{
    controllers::resources::Name,
    delivery::admission::{Inadmissible, check_dependencies},
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
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, name, |s| s["spec"]["dependsOn"] = names.clone().into()).await;
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
    west.say(&rig, &db, said(&db_entry, Outcome::Applied, &[("db", Health::InProgress)])).await;
    until_waiting(&rig, "web", "1 of 1 objects are not ready yet").await;
    west.say(&rig, &db, said(&db_entry, Outcome::Applied, &[("db", Health::Current)])).await;
    let (_, web_entry) = east.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    east.say(&rig, &web, said(&web_entry, Outcome::Applied, &[("web", Health::Current)])).await;

    // One commit for both: the one that is depended on first, whichever is looked at first.
    let both = |name: &str| WEB.replace("name: web", &format!("name: {name}"));
    git.change("main", &[("apps/web/web.yaml", Some(&both("web2"))), ("apps/db/db.yaml", Some(&both("db2")))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (_, second) = west.wait_entry(&rig, &db, |entry| entry.digest() != db_entry.digest()).await;
    until_waiting(&rig, "web", "waits for service db").await;
    west.say(&rig, &db, said(&second, Outcome::Applied, &[("db2", Health::Failed)])).await;
    until_waiting(&rig, "web", "1 of 1 objects failed").await;
    assert_eq!(east.desired(&rig).await.entries[0].digest(), web_entry.digest());

    // Its fix waits for nobody, and then the other goes on.
    git.change("main", &[("apps/db/db.yaml", Some(&both("db3")))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (_, third) = west.wait_entry(&rig, &db, |entry| entry.digest() != second.digest()).await;
    west.say(&rig, &db, said(&third, Outcome::Applied, &[("db3", Health::Current)])).await;
    east.wait_entry(&rig, &web, |entry| applied(entry).is_some() && entry.digest() != web_entry.digest()).await;
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
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "db", |s| condition(s, "Stalled") == "absent").await;
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
    agent.say(&rig, &db, said(&entry, Outcome::Applied, &[("db", Health::Current)])).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    depend(&rig, "web", &["db"]).await;
    agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    rig.wait_idle().await;

    rig.delete("ServiceDeployment", ADMIN_NAMESPACE, "db").await;
    let held = |entry: &Entry| matches!(&entry.action, Action::Hold { reason } if reason.contains("web depends on it"));
    agent.wait_entry(&rig, &db, held).await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "db", |s| message(s, "Ready").starts_with("removal is held"))
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
    agent.wait_entry(&rig, &uid, |e| matches!(&e.action, Action::Hold { reason } if *reason == told)).await;
    let commit = git.change("main", &[("apps/web/more.yaml", Some("{}"))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            s["status"]["heldRevision"] == format!("main@sha1:{commit}").as_str()
        })
        .await;
    assert_eq!(message(&service, "Ready"), format!("held: {told}"));

    let end = suspend(2).await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some() && entry.digest() != before.digest()).await;
    let late = Timestamp::now().duration_since(end);
    assert!(late.is_positive() && late < jiff::SignedDuration::from_secs(10), "{late}");
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| condition(s, "Ready") == "False/WaitingForAgent")
        .await;
    assert!(service["status"]["heldRevision"].is_null());
    assert_eq!(service["spec"]["suspend"], true, "what people wrote is theirs");

    // A hub that was away at the end finds it past.
    suspend(1).await;
    let rig = rig.restart_after(async |_, _| tokio::time::sleep(Duration::from_secs(2)).await).await;
    rig.wait_loaded().await;
    agent.wait_polled(&rig).await;
    agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
}
