//! Who may speak for a cluster.

use aws_lc_rs::signature::KeyPair as _;
use farwater_api::{
    ADMIN_NAMESPACE,
    protocol::{Assertion, SignedAssertion},
};
use farwater_hub::delivery::token;
use farwater_store::delivery::{JoinToken, save_join_token};
use http::StatusCode;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    agent::{Agent, call, invite, post},
    rig::Rig,
};

async fn try_join(rig: &Rig, agent: &Agent, token: &str) -> String {
    let answer = call(rig, post("/agent/v1/join", &agent.join_request(token))).await;
    if answer.status == StatusCode::OK {
        "joined".to_owned()
    } else {
        answer.refusal()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_token_works_once_for_its_own_cluster() {
    let rig = Rig::start().await;
    let uid = rig.cluster("east").await;
    rig.cluster("west").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "west", |c| {
        c["status"]["conditions"].is_array()
    })
    .await;
    let token = invite(&rig, "east").await;
    let agent = Agent::new();
    assert_eq!(try_join(&rig, &agent, "fwj_guessed").await, "401 TokenUnknown");

    let mut unproven = agent.join_request(&token);
    unproven.proof = Agent::new().join_request(&token).proof;
    assert_eq!(
        call(&rig, post("/agent/v1/join", &unproven)).await.refusal(),
        "403 Invalid"
    );

    let answer = call(&rig, post("/agent/v1/join", &agent.join_request(&token))).await;
    let joined: farwater_api::protocol::JoinAnswer = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((joined.cluster.uid, joined.cluster.name.as_str()), (uid, "east"));
    assert_eq!(try_join(&rig, &agent, &token).await, "401 TokenUsed");

    // One Kubernetes cluster is one Cluster, and the refusal leaves the token usable.
    let other = invite(&rig, "west").await;
    assert_eq!(try_join(&rig, &agent, &other).await, "403 Invalid");
    assert_eq!(try_join(&rig, &Agent::new(), &other).await, "joined");

    let elsewhere = Rig::start().await;
    elsewhere.cluster("east").await;
    let foreign = invite(&elsewhere, "east").await;
    assert_eq!(try_join(&rig, &Agent::new(), &foreign).await, "401 TokenUnknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_join_token_is_told_from_an_unknown_one() {
    let rig = Rig::start().await;
    let cluster_uid = rig.cluster("east").await;
    rig.wait_loaded().await;
    let row = JoinToken {
        hash: Sha256::digest(b"fwj_old").into(),
        cluster_uid,
        expires: 1,
    };
    rig.store
        .transact(move |tx| Box::pin(async move { save_join_token(tx, &row).await }))
        .await
        .unwrap();
    assert_eq!(try_join(&rig, &Agent::new(), "fwj_old").await, "401 TokenExpired");
}

#[tokio::test(flavor = "multi_thread")]
async fn joining_again_replaces_the_identity() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        c["status"]["conditions"].is_array()
    })
    .await;
    let old = Agent::join(&rig, "east").await;
    let new = Agent::join(&rig, "east").await;
    assert_eq!(old.poll(&rig, None).await.refusal(), "401 IdentityUnknown");
    let assertion = old.sign(&old.assertion());
    assert_eq!(
        call(&rig, post("/agent/v1/token", &assertion)).await.refusal(),
        "401 IdentityUnknown"
    );
    new.wait_polled(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assertion_is_signed_timely_and_used_once() {
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        c["status"]["conditions"].is_array()
    })
    .await;
    let agent = Agent::join(&rig, "east").await;
    let ask = async |rig: &Rig, assertion: SignedAssertion| {
        let answer = call(rig, post("/agent/v1/token", &assertion)).await;
        if answer.status == StatusCode::OK {
            "token".to_owned()
        } else {
            answer.refusal()
        }
    };
    let mut assertion = agent.assertion();
    let signed = agent.sign(&assertion);
    assert_eq!(ask(&rig, signed.clone()).await, "token");
    assert_eq!(ask(&rig, signed.clone()).await, "401 TokenUsed");
    rig = rig.restart().await;
    rig.wait_loaded().await;
    assert_eq!(ask(&rig, signed).await, "401 TokenUsed", "a restart forgets no nonce");

    assertion.time += 200;
    assertion.nonce = "0".repeat(32);
    assert_eq!(ask(&rig, agent.sign(&assertion)).await, "401 ClockSkew");
    assertion.time -= 400;
    assert_eq!(ask(&rig, agent.sign(&assertion)).await, "401 ClockSkew");
    assert_eq!(
        ask(&rig, Agent::new().sign(&agent.assertion())).await,
        "401 IdentityUnknown"
    );
    let mut foreign = agent.assertion();
    foreign.installation = uuid::Uuid::new_v4().to_string();
    assert_eq!(ask(&rig, agent.sign(&foreign)).await, "401 IdentityUnknown");
    let mut short = agent.assertion();
    short.nonce.truncate(8);
    assert_eq!(ask(&rig, agent.sign(&short)).await, "400 Invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_access_token_that_was_touched_is_refused() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        c["status"]["conditions"].is_array()
    })
    .await;
    let mut agent = Agent::join(&rig, "east").await;
    let good = agent.access.clone();
    let (claims, mac) = good.rsplit_once('.').unwrap();
    for wrong in [
        String::new(),
        "x".to_owned(),
        format!("{claims}0.{mac}"),
        format!("{claims}.{}", "0".repeat(64)),
    ] {
        agent.access = wrong;
        assert_eq!(agent.poll(&rig, None).await.refusal(), "401 TokenUnknown");
    }
    let uid = &agent.joined.as_ref().unwrap().cluster.uid;
    agent.access = token::issue(
        &rig.identity,
        uid,
        &token::key_print(agent.key.public_key().as_ref()),
        "",
        1,
    );
    assert_eq!(agent.poll(&rig, None).await.refusal(), "401 TokenExpired");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_one_cluster_is_refused_as_the_agent_of_another() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    let mut east = Agent::join(&rig, "east").await;
    let west = Agent::join(&rig, "west").await;
    let cluster = |agent: &Agent| agent.joined.as_ref().unwrap().cluster.uid.clone();

    // The signature of one agent counts only for its own cluster: for tokens, and for new keys.
    let assertion = Assertion {
        cluster_uid: cluster(&west),
        ..east.assertion()
    };
    let answer = call(&rig, post("/agent/v1/token", &east.sign(&assertion))).await;
    assert_eq!(answer.refusal(), "401 IdentityUnknown");
    let mut as_west = east.copy("");
    as_west.joined = west.joined.clone();
    let handover = as_west.hand_over(&as_west.with_new_keys());
    assert_eq!(as_west.send_keys(&rig, &[handover]).await, "401 IdentityUnknown");

    // The hub's MAC covers the cluster in an access token, and a valid token needs the key of that cluster's agent.
    let good = east.access.clone();
    east.access = good.replace(&cluster(&east), &cluster(&west));
    assert_eq!(east.poll(&rig, None).await.refusal(), "401 TokenUnknown");
    let print = token::key_print(east.key.public_key().as_ref());
    east.access = token::issue(&rig.identity, &cluster(&west), &print, "", i64::MAX);
    assert_eq!(east.poll(&rig, None).await.refusal(), "401 IdentityUnknown");

    east.access = good;
    east.wait_polled(&rig).await;
    west.wait_polled(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_with_one_identity_are_both_quarantined_until_one_joins_anew() {
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    let joined = Agent::join(&rig, "east").await;
    let (mut first, mut second) = (joined.copy(&"a".repeat(16)), joined.copy(&"b".repeat(16)));
    first.renew(&rig).await;
    first.wait_polled(&rig).await;
    // As after a restart.
    second.renew(&rig).await;
    second.wait_polled(&rig).await;
    // One that stands by is no second agent.
    let standby = Assertion {
        instance: "c".repeat(16),
        standby: true,
        ..joined.assertion()
    };
    assert_eq!(
        call(&rig, post("/agent/v1/token", &joined.sign(&standby))).await.status,
        StatusCode::OK
    );
    assert_eq!(
        first.poll(&rig, None).await.status,
        StatusCode::OK,
        "a request that was late"
    );
    assert_eq!(first.poll(&rig, None).await.refusal(), "403 Quarantined");
    assert_eq!(second.poll(&rig, None).await.refusal(), "403 Quarantined");
    let shown = |cluster: &Value| {
        let ready = &cluster["status"]["conditions"][0];
        ready["reason"] == "DuplicateIdentity" && ready["message"].as_str().is_some_and(|m| m.contains(&"a".repeat(16)))
    };
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", shown).await;
    rig = rig.restart().await;
    rig.wait_loaded().await;
    assert_eq!(
        second.poll(&rig, None).await.refusal(),
        "403 Quarantined",
        "a restart lets nobody out"
    );

    let mut joined_again = Agent::new();
    joined_again.cluster_id.clone_from(&joined.cluster_id);
    let answer = call(
        &rig,
        post(
            "/agent/v1/join",
            &joined_again.join_request(&invite(&rig, "east").await),
        ),
    )
    .await;
    assert_eq!(answer.status, StatusCode::OK);
    joined_again.joined = Some(serde_json::from_slice(&answer.body).unwrap());
    joined_again.renew(&rig).await;
    joined_again.wait_polled(&rig).await;
    assert_eq!(second.poll(&rig, None).await.refusal(), "401 IdentityUnknown");
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        c["status"]["conditions"][0]["status"] == "True"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_refused_in_the_agents_own_words() {
    let rig = Rig::start().await;
    assert_eq!(
        call(&rig, post("/agent/v1/join", &"what")).await.refusal(),
        "400 Invalid"
    );
    let huge = "x".repeat(1 << 20);
    assert_eq!(call(&rig, post("/agent/v1/join", &huge)).await.refusal(), "413 Invalid");
}
