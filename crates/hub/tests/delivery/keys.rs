//! Keys that change: the hub's, which agents follow, and agents' own.

use std::{fs, path::PathBuf};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    ADMIN_NAMESPACE, Digest, RENEW_KEYS,
    protocol::{RENEW_KEYS_HEADER, SUCCESSION_HEADER, SealedSecrets, SigningKey},
    succession::{Handover, Position, SignedHandover, Successions, Trusted},
};
use farwater_hub::{
    DataDir, Identity,
    identity::{Change, request_change},
};
use farwater_store::{
    OpenOptions, Store, archive,
    delivery::{load_desired_heads, read_cluster_keys},
};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::json;

use crate::{
    agent::{Agent, call, outcome},
    delivering::applied,
    rig::{PATIENCE, Rig, condition, message, repository},
};

fn verifies(key: &SigningKey, message: &[u8], signature: &str) -> bool {
    let key = UnparsedPublicKey::new(&ED25519, BASE64.decode(&key.public_key).unwrap());
    key.verify(message, &BASE64.decode(signature).unwrap()).is_ok()
}

/// Asks for changes of the hub's keys, and starts it again.
async fn change_keys(rig: Rig, changes: &[Change]) -> Rig {
    for change in changes {
        request_change(rig.path(), change.clone()).unwrap();
    }
    let rig = rig.restart().await;
    rig.wait_loaded().await;
    let key = rig.identity.key_id();
    rig.wait_until("all desired states are signed with the key of today", async || {
        let heads = load_desired_heads(&mut rig.store.tables().await.unwrap())
            .await
            .unwrap();
        heads
            .iter()
            .all(|head| head.key_id == key && !head.signature.is_empty())
    })
    .await;
    rig
}

async fn hinted(rig: &Rig, agent: &Agent) -> Option<u64> {
    let answer = agent.poll(rig, None).await;
    answer
        .headers
        .get(SUCCESSION_HEADER)
        .map(|value| value.to_str().unwrap().parse().unwrap())
}

async fn ask_successions(rig: &Rig, agent: &Agent, after: u64) -> Result<Successions, String> {
    let request = agent
        .get(&format!("/agent/v1/successions/{after}"))
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = call(rig, request).await;
    if answer.status == StatusCode::OK {
        Ok(serde_json::from_slice(&answer.body).unwrap())
    } else {
        Err(outcome(&answer))
    }
}

/// As an agent follows.
async fn follow(rig: &Rig, agent: &mut Agent) -> Trusted {
    let joined = agent.joined.clone().unwrap();
    let from = Trusted {
        position: agent.position,
        signing_key: joined.signing_keys[0].clone(),
        authorities: joined.authorities.clone(),
    };
    let answer = ask_successions(rig, agent, from.position.sequence).await.unwrap();
    let today = from.walk(&joined.installation, &answer.successions, verifies).unwrap();
    agent.position = today.position;
    let joined = agent.joined.as_mut().unwrap();
    joined.signing_keys = vec![today.signing_key.clone()];
    joined.authorities = today.authorities.clone();
    agent.renew(rig).await;
    today
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_told_of_the_hubs_new_keys_until_they_have_followed() {
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    let mut agent = Agent::join(&rig, "east").await;
    let mut offline = Agent::join(&rig, "west").await;
    agent.wait_polled(&rig).await;
    offline.wait_polled(&rig).await;
    assert_eq!(hinted(&rig, &agent).await, None);
    let before = agent.desired(&rig).await;

    rig = change_keys(rig, &[Change::SigningKey]).await;
    agent.wait_polled(&rig).await;
    assert_eq!(hinted(&rig, &agent).await, Some(1));
    let today = follow(&rig, &mut agent).await;
    assert_eq!(today, *rig.identity.trusted());
    assert_eq!(hinted(&rig, &agent).await, None);
    let after = agent.desired(&rig).await;
    assert_eq!(after.statement.key_id, today.signing_key.id);
    assert_eq!(after.statement.generation, before.statement.generation + 1);

    rig = change_keys(rig, &[Change::Authority, Change::SigningKey]).await;
    // An access token from before is as good as ever.
    agent.wait_polled(&rig).await;
    assert_eq!(hinted(&rig, &agent).await, Some(2));
    follow(&rig, &mut agent).await;
    // Whoever was away for both goes the whole way.
    offline.renew(&rig).await;
    offline.wait_polled(&rig).await;
    assert_eq!(hinted(&rig, &offline).await, Some(2));
    assert_eq!(follow(&rig, &mut offline).await, *rig.identity.trusted());
    offline.desired(&rig).await;

    // Who joins now begins there.
    rig.cluster("south").await;
    let new = Agent::join(&rig, "south").await;
    assert_eq!(new.position, rig.identity.trusted().position);
    new.wait_polled(&rig).await;
    assert_eq!(hinted(&rig, &new).await, None);
    let rows = read_cluster_keys(rig.store.location()).await.unwrap();
    let link = rig.identity.trusted().position.link.unwrap().to_string();
    let told: Vec<_> = rows.iter().map(|row| (&*row.name, row.sequence, &*row.link)).collect();
    assert_eq!(told, [("east", 2, &*link), ("south", 2, &*link), ("west", 2, &*link)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_can_not_follow_is_shown() {
    let mut rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    let agent = Agent::join(&rig, "east").await;
    let mut ahead = Agent::join(&rig, "west").await;
    rig = change_keys(rig, &[Change::SigningKey]).await;
    rig = change_keys(rig, &[Change::Revoke]).await;
    agent.wait_polled(&rig).await;
    assert_eq!(ask_successions(&rig, &agent, 0).await.unwrap_err(), "403 KeysRevoked");
    let is = |reason: &'static str| {
        move |cluster: &serde_json::Value| condition(cluster, "Ready") == format!("False/{reason}")
    };
    let cluster = rig
        .wait_for("Cluster", ADMIN_NAMESPACE, "east", is("HubKeysRevoked"))
        .await;
    assert!(message(&cluster, "Ready").contains("farwater cluster join east"));

    // It has followed a succession that this hub has never made.
    ahead.position = Position {
        sequence: 7,
        link: Some(Digest::of("newer")),
    };
    ahead.renew(&rig).await;
    let cluster = rig
        .wait_for("Cluster", ADMIN_NAMESPACE, "west", is("HubKeysOlder"))
        .await;
    assert!(message(&cluster, "Ready").contains("restored from an older copy"));
    ahead.position = rig.identity.trusted().position;
    ahead.renew(&rig).await;
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "west", |c| {
        condition(c, "Ready") == "True/Connected"
    })
    .await;
}

/// The keys' files, to go back to.
fn copy(rig: &Rig) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(rig.path().join("keys"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn put_back(files: &[(PathBuf, Vec<u8>)]) {
    for (path, content) in files {
        fs::write(path, content).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_keys_stops_the_start() {
    let mut rig = Rig::start().await;
    let old = copy(&rig);
    rig = change_keys(rig, &[Change::SigningKey, Change::Authority]).await;
    let (new, path) = (copy(&rig), rig.path().to_owned());
    rig = rig
        .restart_after(async |location, seal_key| {
            put_back(&old);
            let data = DataDir::open(&path).unwrap();
            let identity = Identity::open(&data, None, Timestamp::now()).unwrap();
            let store = Store::open(OpenOptions::new(location.clone(), *seal_key))
                .await
                .unwrap();
            let error = identity.note_successions(&store).await.unwrap_err().to_string();
            assert!(
                error.contains("succession 1") && error.contains("Restore the newest copy"),
                "{error}"
            );
            store.close().await;
            put_back(&new);
        })
        .await;
    assert_eq!(rig.identity.trusted().position.sequence, 1);
}

/// A cluster whose agent says which process it is, and polls often.
async fn join_quickly(rig: &Rig, cluster: &str) -> Agent {
    rig.cluster(cluster).await;
    rig.edit("Cluster", ADMIN_NAMESPACE, cluster, |cluster| {
        cluster["spec"]["pollInterval"] = json!("1s")
    })
    .await;
    let mut agent = Agent::join(rig, cluster).await;
    agent.instance = "a".repeat(16);
    agent.renew(rig).await;
    agent.wait_polled(rig).await;
    agent
}

/// Asks for tokens until there is one.
async fn until_taken(rig: &Rig, agent: &mut Agent) {
    let started = tokio::time::Instant::now();
    loop {
        match &*agent.try_renew(rig).await {
            "OK" => return,
            "403 KeysEarly" => assert!(started.elapsed() < PATIENCE, "waited in vain for new keys to be taken"),
            other => panic!("{other}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn is_asked(rig: &Rig, agent: &Agent) -> bool {
    agent.poll(rig, None).await.headers.contains_key(RENEW_KEYS_HEADER)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_new_keys_count_from_their_first_use() {
    let (server, _repository) = repository().await;
    let mut rig = Rig::start().await;
    let mut old = join_quickly(&rig, "east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.create(
        "Secret",
        ADMIN_NAMESPACE,
        "database",
        json!({"data": {"password": BASE64.encode("one")}}),
    )
    .await;
    let uid = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    rig.edit("ServiceDeployment", ADMIN_NAMESPACE, "web", |s| {
        s["spec"]["secrets"] = json!([{"name": "database"}])
    })
    .await;
    let mac_of = |entry: &_| applied(entry).and_then(|deployment| deployment.secrets);
    let (_, entry) = old.wait_entry(&rig, &uid, |entry| mac_of(entry).is_some()).await;
    let mac = mac_of(&entry).unwrap();

    assert!(!is_asked(&rig, &old).await);
    let ask = |cluster: &mut serde_json::Value| cluster["metadata"]["annotations"][RENEW_KEYS] = json!("now");
    rig.edit("Cluster", ADMIN_NAMESPACE, "east", ask).await;
    rig.wait_until("new keys are asked for", async || is_asked(&rig, &old).await)
        .await;

    let mut new = old.with_new_keys();
    let handover = old.hand_over(&new);
    assert_eq!(new.try_renew(&rig).await, "401 IdentityUnknown", "the hub was not told");
    let forged = Handover {
        sealing_key: BASE64.encode([7; 32]),
        ..handover.handover.clone().into_value()
    };
    let forged = SignedHandover {
        handover: forged.into(),
        ..handover.clone()
    };
    assert_eq!(old.send_keys(&rig, &[forged]).await, "401 IdentityUnknown");
    assert_eq!(old.send_keys(&rig, &[]).await, "401 IdentityUnknown");
    for _ in 0..2 {
        assert_eq!(
            old.send_keys(&rig, std::slice::from_ref(&handover)).await,
            "OK",
            "an answer may be lost"
        );
    }
    // Until they are used the old ones are good, also over a restart.
    assert_eq!(old.try_renew(&rig).await, "OK");
    rig = rig.restart().await;
    rig.wait_loaded().await;
    assert_eq!(old.poll(&rig, None).await.status, StatusCode::OK);
    assert_eq!(
        new.try_renew(&rig).await,
        "403 KeysEarly",
        "the hub has not heard for long that there is one process"
    );
    until_taken(&rig, &mut new).await;

    assert_eq!(old.poll(&rig, None).await.refusal(), "401 IdentityUnknown");
    assert_eq!(old.try_renew(&rig).await, "401 IdentityUnknown");
    assert_eq!(new.poll(&rig, None).await.status, StatusCode::OK);
    assert!(!is_asked(&rig, &new).await, "it was met");
    assert_eq!(
        old.send_keys(&rig, std::slice::from_ref(&handover)).await,
        "OK",
        "they are in use"
    );
    let stolen = old.hand_over(&old.with_new_keys());
    assert_eq!(
        old.send_keys(&rig, &[stolen]).await,
        "401 IdentityUnknown",
        "an old key names nobody"
    );
    let answer = new.secrets(&rig, &uid, &mac).await;
    let sealed: SealedSecrets = serde_json::from_slice(&answer.body).unwrap();
    assert!(new.open(&sealed, &uid, &mac).is_some() && old.open(&sealed, &uid, &mac).is_none());

    rig = rig.restart().await;
    rig.wait_loaded().await;
    assert_eq!(new.try_renew(&rig).await, "OK");
    assert_eq!(old.try_renew(&rig).await, "401 IdentityUnknown");
    rig.wait_idle().await;
    assert!(!is_asked(&rig, &new).await, "the same request is not met twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_agent_is_found_out_before_its_new_keys_lock_the_other_out() {
    let rig = Rig::start().await;
    let first = join_quickly(&rig, "east").await;
    let mut copy = first.copy(&"b".repeat(16));
    copy.renew(&rig).await;
    let mut next = copy.with_new_keys();
    assert_eq!(copy.send_keys(&rig, &[copy.hand_over(&next)]).await, "OK");
    assert_eq!(next.try_renew(&rig).await, "403 KeysEarly");
    assert_eq!(
        first.poll(&rig, None).await.status,
        StatusCode::OK,
        "a request that was late"
    );
    assert_eq!(first.poll(&rig, None).await.refusal(), "403 Quarantined");
    assert_eq!(next.try_renew(&rig).await, "403 Quarantined");
    rig.wait_for("Cluster", ADMIN_NAMESPACE, "east", |c| {
        condition(c, "Ready") == "False/DuplicateIdentity"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_hub_learns_agents_keys_from_those_that_it_knew() {
    let mut rig = Rig::start().await;
    let first = join_quickly(&rig, "east").await;
    let backup = rig.path().join("backup");
    archive::backup(rig.store.location(), &backup, false).await.unwrap();
    let (mut second, mut third) = (first.with_new_keys(), first.with_new_keys());
    let handovers = [first.hand_over(&second), second.hand_over(&third)];
    assert_eq!(first.send_keys(&rig, &handovers[..1]).await, "OK");
    until_taken(&rig, &mut second).await;
    assert_eq!(second.send_keys(&rig, &handovers[1..]).await, "OK");
    until_taken(&rig, &mut third).await;

    rig = rig
        .restart_after(async |location, seal_key| {
            let allow = archive::Allow {
                replace: true,
                damage: false,
            };
            archive::restore(&backup, location, seal_key, allow).await.unwrap();
        })
        .await;
    rig.wait_loaded().await;
    assert_eq!(third.try_renew(&rig).await, "401 IdentityUnknown");
    assert_eq!(
        third.send_keys(&rig, &handovers[1..]).await,
        "401 IdentityUnknown",
        "a gap"
    );
    assert_eq!(third.send_keys(&rig, &handovers).await, "OK");
    until_taken(&rig, &mut third).await;
    third.wait_polled(&rig).await;
    assert_eq!(third.send_keys(&rig, &handovers).await, "OK");
}
