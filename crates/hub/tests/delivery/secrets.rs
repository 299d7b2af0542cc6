//! Secrets that a service takes to its cluster: named by a MAC, sealed to one agent, and nowhere in the clear.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ADMIN_NAMESPACE,
    protocol::{SealedSecrets, Secrets},
};
use http::StatusCode;
use serde_json::json;

use crate::{
    agent::Agent,
    delivering::applied,
    rig::{Rig, condition, message, repository},
};

const PASSWORD: &str = "correct horse battery staple";

fn password(text: &str) -> serde_json::Value {
    json!({"data": {"password": BASE64.encode(text)}})
}

async fn service_with_secret(rig: &Rig, name: &str, cluster: &str) -> String {
    let uid = rig.service(ADMIN_NAMESPACE, name, cluster, "apps/web").await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, name, |service| {
        service["spec"]["secrets"] = json!([{"name": "database"}]);
    })
    .await;
    uid
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_travel_sealed_to_one_agent_and_are_nowhere_else() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.create("Secret", ADMIN_NAMESPACE, "database", password(PASSWORD))
        .await;
    let uid = service_with_secret(&rig, "web", "east").await;
    let other = service_with_secret(&rig, "other", "east").await;
    let (east, west) = (Agent::join(&rig, "east").await, Agent::join(&rig, "west").await);
    let mac_of = |entry: &farwater_api::protocol::Entry| applied(entry).and_then(|deployment| deployment.secrets);
    let (_, entry) = east.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    let (state, neighbour) = east.wait_entry(&rig, &other, |entry| mac_of(entry).is_some()).await;
    let mac = mac_of(&entry).unwrap();
    assert_ne!(
        mac_of(&neighbour),
        Some(mac),
        "two services with one password are not told apart by it"
    );

    let answer = east.secrets(&rig, &uid, &mac).await;
    assert_eq!(
        answer.status,
        StatusCode::OK,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    let sealed: SealedSecrets = serde_json::from_slice(&answer.body).unwrap();
    let opened: Secrets = serde_json::from_slice(&east.open(&sealed, &uid, &mac).unwrap()).unwrap();
    assert_eq!(opened.0["database"].secret_type, "Opaque");
    assert_eq!(opened.0["database"].data["password"], BASE64.encode(PASSWORD));
    assert!(
        east.open(&sealed, &other, &mac).is_none(),
        "what is sealed for one service opens for no other"
    );
    assert!(west.open(&sealed, &uid, &mac).is_none());
    assert_eq!(west.secrets(&rig, &uid, &mac).await.refusal(), "403 NotDesired");
    assert_eq!(east.secrets(&rig, &other, &mac).await.refusal(), "403 NotDesired");

    let clear = [PASSWORD.to_owned(), BASE64.encode(PASSWORD)];
    let bundle = east.bundle(&rig, &applied(&entry).unwrap().bundle).await;
    let seen = [
        serde_json::to_vec(&state).unwrap(),
        zstd::decode_all(bundle.body.as_slice()).unwrap(),
        answer.body,
    ];
    for bytes in seen {
        let text = String::from_utf8_lossy(&bytes);
        assert!(clear.iter().all(|clear| !text.contains(clear)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_changes_changes_its_services_and_one_that_goes_takes_nothing_away() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let plain = rig.service(ADMIN_NAMESPACE, "plain", "east", "apps/db").await;
    let uid = service_with_secret(&rig, "web", "east").await;
    let agent = Agent::join(&rig, "east").await;

    // Missing: the service waits, and says for what.
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Stalled") == "True/SecretNotReady"
        })
        .await;
    assert!(message(&service, "Ready").contains("Secret database does not exist in namespace farwater-admin"));
    let (_, entry) = agent.wait_entry(&rig, &uid, |_| true).await;
    assert!(applied(&entry).is_none());

    rig.create("Secret", ADMIN_NAMESPACE, "database", password("one")).await;
    let (_, first) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_some()).await;
    let (before, untouched) = agent.wait_entry(&rig, &plain, |entry| applied(entry).is_some()).await;

    // Labels are no content.
    rig.edit("Secret", ADMIN_NAMESPACE, "database", |s| {
        s["metadata"]["labels"] = json!({"a": "b"})
    })
    .await;
    rig.edit("Secret", ADMIN_NAMESPACE, "database", |s| {
        s["data"] = password("two")["data"].clone()
    })
    .await;
    let (after, second) = agent
        .wait_entry(&rig, &uid, |entry| entry.digest() != first.digest())
        .await;
    assert_eq!(after.statement.generation, before.statement.generation + 1);
    assert!(after.entries.contains(&untouched.into()));
    let (old, new) = (applied(&first).unwrap(), applied(&second).unwrap());
    assert_eq!(new.bundle, old.bundle);
    let stale = agent.secrets(&rig, &uid, &old.secrets.unwrap()).await;
    assert_eq!(stale.refusal(), "403 NotDesired");

    rig.delete("Secret", ADMIN_NAMESPACE, "database").await;
    let (_, held) = agent.wait_entry(&rig, &uid, |entry| applied(entry).is_none()).await;
    assert!(
        matches!(held.action, farwater_api::protocol::Action::Hold { .. }),
        "{held:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_can_not_be_sent_are_told() {
    let (server, _repository) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.create("Secret", ADMIN_NAMESPACE, "database", password(&"x".repeat(300 << 10)))
        .await;
    service_with_secret(&rig, "web", "east").await;
    let service = rig
        .wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
            condition(s, "Stalled") == "True/SecretNotReady"
        })
        .await;
    assert!(
        message(&service, "Ready").contains("at most 393216 are sent"),
        "{service:#}"
    );
}
