//! What agents say, and what becomes of it.

use farwater_api::{
    ADMIN_NAMESPACE, APPROVE_PRUNE, Digest,
    deletion::Deletion,
    objects::{Health, Outcome, ServiceReport},
    protocol::MAX_REPORTED_SERVICES,
    service_deployment::HeldPrune,
};
use farwater_hub::delivery::status::load_objects;
use farwater_store::delivery::load_assignment;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};

use crate::{
    agent::{Agent, said},
    delivering::applied,
    rig::{PATIENCE, Rig, WEB, condition, repository},
};

#[tokio::test(flavor = "multi_thread")]
async fn yesterdays_healthy_is_not_todays() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    agent
        .say(&rig, &uid, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    let ready = |wanted: &'static str| move |s: &serde_json::Value| condition(s, "Ready") == wanted;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", ready("True/Applied"))
        .await;
    assert_eq!(
        service["status"]["appliedRevision"],
        service["status"]["assignedRevision"]
    );
    assert_eq!(service["status"]["objects"]["healthy"], 1);
    assert_eq!(load_objects(&rig.replica, &uid).await.unwrap().len(), 1);

    git.change(
        "main",
        &[("apps/web/web.yaml", Some(&WEB.replace("name: web", "name: other")))],
    )
    .unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (_, next) = agent.wait_entry(&rig, &uid, |new| new.digest() != entry.digest()).await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Reconciling").starts_with("True")
        })
        .await;
    assert_ne!(
        service["status"]["appliedRevision"],
        service["status"]["assignedRevision"]
    );
    agent
        .say(&rig, &uid, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    agent
        .say(
            &rig,
            &uid,
            said(&next, Outcome::Applied, &[("other", Health::InProgress)]),
        )
        .await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["status"]["objects"]["progressing"] == 1
    })
    .await;
    agent
        .say(&rig, &uid, said(&next, Outcome::Applied, &[("other", Health::Current)]))
        .await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", ready("True/Applied"))
        .await;

    // Back to the first content: a report on it from before comes late.
    git.change("main", &[("apps/web/web.yaml", Some(WEB))]).unwrap();
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let (_, back) = agent.wait_entry(&rig, &uid, |new| new.digest() != next.digest()).await;
    assert_eq!(applied(&back).unwrap().bundle, applied(&entry).unwrap().bundle);
    agent
        .say(&rig, &uid, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    rig.wait_idle().await;
    let service = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web").await.unwrap();
    assert_eq!(condition(&service, "Ready"), "False/WaitingForAgent");
    agent
        .say(&rig, &uid, said(&back, Outcome::Failed, &[("web", Health::Current)]))
        .await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        condition(s, "Stalled") == "True/ApplyFailed"
    })
    .await;
    agent
        .say(&rig, &uid, said(&back, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", ready("True/Applied"))
        .await;
    rig.wait_idle().await;
    let told = |event: serde_json::Value| (event["reason"].as_str().unwrap().to_owned(), event["count"].as_i64());
    let mut events: Vec<_> = rig.events().await.into_iter().map(told).collect();
    events.sort();
    // The source has an Event too.
    let expected = [("Applied", 3), ("ApplyFailed", 1), ("Fetched", 3), ("Recovered", 1)];
    assert_eq!(
        events,
        expected.map(|(reason, count)| (reason.to_owned(), Some(count))),
        "one for each reason"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_reports_its_own_services_only() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let east = Agent::join(&rig, "east").await;
    let mut west = Agent::join(&rig, "west").await;
    let (_, entry) = east.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    west.say(&rig, &uid, said(&entry, Outcome::Applied, &[("web", Health::Current)]))
        .await;
    west.say(&rig, "no such service", said(&entry, Outcome::Applied, &[]))
        .await;
    assert!(load_objects(&rig.replica, &uid).await.unwrap().is_empty());
}

/// They are looked up before the transaction: 600,000 of them once held the hub's only writer for seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_unknown_services_has_a_limit_and_saves_nothing() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    let agent = Agent::join(&rig, "east").await;
    let uids: Vec<String> = (0..=MAX_REPORTED_SERVICES).map(|n| format!("unknown-{n}")).collect();
    let unknown: Vec<(&str, Option<ServiceReport>)> = uids.iter().map(|uid| (uid.as_str(), None)).collect();
    let answer = agent.send_report(&rig, &agent.report(&unknown)).await;
    assert_eq!(
        answer.status,
        StatusCode::BAD_REQUEST,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let answer = agent.send_report(&rig, &agent.report(&unknown[1..])).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    assert!(load_objects(&rig.replica, "unknown-1").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_on_an_unknown_base_is_asked_for_in_full() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let db = rig.service(ADMIN_NAMESPACE, "db", "east", "apps/db").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, web_entry) = agent.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    let (_, db_entry) = agent.wait_entry(&rig, &db, |entry| applied(entry).is_some()).await;
    agent
        .say(
            &rig,
            &web,
            said(&web_entry, Outcome::Applied, &[("web", Health::Current)]),
        )
        .await;
    let mut report = agent.report(&[]);
    report.base = 17;
    report.sequence = 18;
    assert_eq!(agent.send_report(&rig, &report).await.refusal(), "409 BaseUnknown");
    report.sequence = 17;
    assert_eq!(agent.send_report(&rig, &report).await.refusal(), "400 Invalid");

    // Everything: what isn't said any more is forgotten.
    let mut full = agent.report(&[(&db, Some(said(&db_entry, Outcome::Applied, &[("db", Health::Current)])))]);
    (full.base, full.sequence) = (0, 40);
    assert_eq!(agent.send_report(&rig, &full).await.status, StatusCode::OK);
    assert!(load_objects(&rig.replica, &web).await.unwrap().is_empty());
    assert_eq!(load_objects(&rig.replica, &db).await.unwrap().len(), 1);
    agent.sequence = 40;
    agent.say(&rig, &web, said(&web_entry, Outcome::Applied, &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_prune_is_approved_by_its_digest_for_a_day() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let mut agent = Agent::join(&rig, "east").await;
    let (_, entry) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let plan = Digest::of("plan");
    let mut report = said(&entry, Outcome::Applied, &[]);
    report.held_prune = Some(HeldPrune {
        digest: plan,
        reason: "nothing would be left".to_owned(),
        count: 3,
        objects: vec![],
        contents: vec![],
        until_applied: false,
        earlier: Vec::new(),
    });
    agent.say(&rig, &uid, report).await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "PruneHeld") == "True/ApprovalNeeded"
        })
        .await;
    assert_eq!(service["status"]["heldPrune"]["digest"], plan.to_string());
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["metadata"]["annotations"][APPROVE_PRUNE] = plan.to_string().into();
    })
    .await;
    let (state, approved) = agent
        .wait_entry(&rig, &uid, |entry| {
            applied(entry).is_some_and(|d| d.approved_prune == Some(plan))
        })
        .await;
    // What it allows is not ended by another entry that asks for the same.
    rig.wait_until("the approval was looked at", async || {
        let row = load_assignment(&mut rig.store.tables().await.unwrap(), &uid)
            .await
            .unwrap();
        row.is_some_and(|row| row.stamp.contains(&plan.to_string()))
    })
    .await;
    rig.wait_until("all is done", async || rig.is_at_rest().await).await;
    let after = agent.desired(&rig).await;
    assert_eq!(after.statement.generation, state.statement.generation);
    assert_eq!(applied(&approved).unwrap().turn, applied(&entry).unwrap().turn);
    let entry = approved;
    // The API server writes down who and when. One that nobody has dated counts from when it was found.
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["status"]["approvedAt"].is_string()
    })
    .await;
    let by = |service: &mut serde_json::Value| service["status"]["approvedBy"] = "ann".into();
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", by).await;
    let mut done = said(&entry, Outcome::Applied, &[]);
    let deletion = Deletion {
        digest: plan,
        time: 900,
        count: 3,
        objects: vec![],
        lost: 0,
        approved_plan: None,
        undone: None,
    };
    done.deletion = Some(deletion.clone());
    agent.say(&rig, &uid, done).await;
    let by_ann = |service: &serde_json::Value| {
        let deletion = &service["status"]["lastDeletion"];
        deletion["approvedBy"] == "ann" && deletion["time"] == "1970-01-01T00:15:00Z"
    };
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", by_ann).await;

    let yesterday = Timestamp::now().as_second() - SignedDuration::from_hours(25).as_secs();
    let yesterday = Timestamp::from_second(yesterday).unwrap().to_string();
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["status"]["approvedAt"] = yesterday.clone().into();
        // A label has it looked at now.
        service["metadata"]["labels"]["looked"] = "at".into();
    })
    .await;
    let is_off = |service: &serde_json::Value| service["metadata"]["annotations"][APPROVE_PRUNE].is_null();
    let service = rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", is_off).await;
    assert!(
        service["status"]["approvedBy"].is_null() && service["status"]["approvedAt"].is_null(),
        "{service:#}"
    );
    // The name stays with what it did. What is reported is about the newest entry: another one may come meanwhile.
    let is_heard = |service: &serde_json::Value| service["status"]["objects"]["healthy"] == 1;
    let mut service = serde_json::Value::Null;
    let mut told = Digest::of("nothing");
    let started = tokio::time::Instant::now();
    while !is_heard(&service) {
        assert!(
            started.elapsed() < PATIENCE,
            "waited in vain; the service is {service:#}"
        );
        let (_, entry) = agent
            .wait_entry(&rig, &uid, |entry| {
                applied(entry).is_some_and(|d| d.approved_prune.is_none())
            })
            .await;
        if entry.digest() != told {
            told = entry.digest();
            let mut later = said(&entry, Outcome::Applied, &[("web", Health::Current)]);
            later.deletion = Some(deletion.clone());
            agent.say(&rig, &uid, later).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        service = rig.get("ServiceDeployment", ADMIN_NAMESPACE, "web").await.unwrap();
    }
    assert!(by_ann(&service), "{service:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_ready_while_it_polls() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", |cluster| {
        cluster["spec"]["pollInterval"] = "1s".into()
    })
    .await;
    let ready = |wanted: &'static str| move |c: &serde_json::Value| condition(c, "Ready") == wanted;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", ready("False/NotJoined"))
        .await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_polled(&rig).await;
    let mut cluster = rig
        .wait_for("Cluster", ADMIN_NAMESPACE, "east", ready("True/Connected"))
        .await;
    assert!(
        cluster["status"]["lastHeardTime"].is_null(),
        "a poll is not written to the resource"
    );
    rig.replica.merge_last_heard(&mut cluster);
    assert!(cluster["status"]["lastHeardTime"].is_string());
    rig.pass(10);
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", ready("False/AgentSilent"))
        .await;
    agent.wait_polled(&rig).await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", ready("True/Connected"))
        .await;
}
