//! Webhooks: deliveries of each host, what is refused, and that nothing but the moment of a check depends on them.

use std::time::Duration;

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use farwater_api::ADMIN_NAMESPACE;
use farwater_hub::replica::Replica;
use farwater_testkit::{
    deliveries::{Host, Push, Sender},
    git::{GitServer, Repository},
};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::rig::{PATIENCE, Rig, condition, message, repository};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const ZERO: &str = "0000000000000000000000000000000000000000";

struct Answer {
    code: StatusCode,
    text: String,
}

async fn deliver(rig: &Rig, request: Request<Bytes>) -> Answer {
    let (parts, body) = rig.send(request.map(Body::from)).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        code: parts.status,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

fn token(value: &str) -> Value {
    json!({"data": {"token": STANDARD.encode(value)}})
}

/// A receiver with a Secret of its own; its path.
async fn receiver(rig: &Rig, name: &str, host: Host, value: &str, resources: Value) -> String {
    rig.create("Secret", ADMIN_NAMESPACE, name, token(value)).await;
    let spec = json!({"type": host.receiver_type(), "resources": resources, "secretRef": {"name": name}});
    rig.create("Receiver", ADMIN_NAMESPACE, name, json!({"spec": spec}))
        .await;
    path_of(rig, name).await
}

async fn path_of(rig: &Rig, name: &str) -> String {
    let made = rig
        .wait_for("Receiver", ADMIN_NAMESPACE, name, |r| {
            condition(r, "Ready") == "True/Served"
        })
        .await;
    made["status"]["webhookPath"].as_str().unwrap().to_owned()
}

/// A hub that follows a repository and would ask it again in ten minutes.
async fn following() -> (GitServer, Repository, Rig) {
    following_with(|_| {}).await
}

async fn following_with(tune: fn(&mut Replica)) -> (GitServer, Repository, Rig) {
    let (server, git) = repository().await;
    let rig = Rig::start_tuned(tune).await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        condition(s, "Ready") == "True/Fetched"
    })
    .await;
    (server, git, rig)
}

fn commit(git: &Repository) -> (String, String) {
    let before = git.branch("main").unwrap();
    let after = git.change("main", &[("README", Some(&before))]).unwrap();
    (before, after)
}

async fn wait_served(rig: &Rig, commit: &str) -> Value {
    let revision = format!("main@sha1:{commit}");
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| {
        s["status"]["revision"] == revision.as_str()
    })
    .await
}

/// Until all deliveries are acted upon, and nothing is asked because of them any more.
async fn until_asked(rig: &Rig) {
    rig.wait_until("all of them are acted upon", async || {
        rig.replica.queues.inboxes.waiting().is_empty()
    })
    .await;
    let source = rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.unwrap();
    let uid = source["metadata"]["uid"].as_str().unwrap();
    let is_asked = || {
        rig.replica.queues.sources.is_idle_for(Duration::ZERO)
            && rig.replica.memory.checks.announced.wait(uid).is_none()
    };
    rig.wait_until("the source is asked no more", async || is_asked()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_of_each_host_is_fetched_at_once() {
    let (server, git, rig) = following().await;
    let url = server.url("infra.git");
    let signing = "whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q=";
    for (n, (sender, host, value)) in [
        (Sender::new(Host::GitHub, TOKEN), Host::GitHub, TOKEN),
        (Sender::new(Host::GitHub, TOKEN).with_forms(), Host::GitHub, TOKEN),
        (Sender::new(Host::GitLab, TOKEN), Host::GitLab, TOKEN),
        (Sender::new(Host::GitLab, signing), Host::GitLab, signing),
        (Sender::new(Host::Gitea, TOKEN), Host::Gitea, TOKEN),
        (Sender::new(Host::Generic, TOKEN), Host::Generic, TOKEN),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("hook-{n}");
        let path = receiver(&rig, &name, host, value, json!([{"name": "infra"}])).await;
        let (before, after) = commit(&git);
        let push = Push {
            url: &url,
            branch: "main",
            before: &before,
            after: &after,
            size: 500,
        };
        let answer = deliver(&rig, sender.push(&path, push)).await;
        assert_eq!(answer.code, StatusCode::ACCEPTED, "{host:?}: {}", answer.text);
        wait_served(&rig, &after).await;
        let told = rig
            .wait_for("Receiver", ADMIN_NAMESPACE, &name, |r| {
                condition(r, "Delivered") == "True/Taken"
            })
            .await;
        assert!(told["status"]["lastDeliveryTime"].is_string() && told["status"]["lastRefusalTime"].is_null());
    }
    // One that is larger than what is kept of it says the same in its beginning.
    let path = path_of(&rig, "hook-0").await;
    let (before, after) = commit(&git);
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 1 << 20,
    };
    let answer = deliver(&rig, Sender::new(Host::GitHub, TOKEN).push(&path, push)).await;
    assert_eq!(answer.code, StatusCode::ACCEPTED, "{}", answer.text);
    wait_served(&rig, &after).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_signed_right_is_refused_in_the_same_words_wherever_it_is_sent() {
    let (server, git, rig) = following().await;
    let url = server.url("infra.git");
    let path = receiver(&rig, "hook", Host::GitHub, TOKEN, json!([{"name": "infra"}])).await;
    let (before, after) = commit(&git);
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 500,
    };
    let asked = server.counts();
    let stranger = Sender::new(Host::GitHub, "another token of some length");
    let unsigned = |path: &str| {
        let mut request = stranger.push(path, push);
        request.headers_mut().remove("x-hub-signature-256");
        request
    };
    let none = format!("/hook/{}", "0".repeat(64));
    for request in [
        |s: &Sender, p: &str, push| s.push(p, push),
        |s: &Sender, p: &str, _| s.request(p, "push", b"no json"),
    ] {
        let (known, unknown) = (
            deliver(&rig, request(&stranger, &path, push)).await,
            deliver(&rig, request(&stranger, &none, push)).await,
        );
        assert_eq!((known.code, &known.text), (unknown.code, &unknown.text));
        assert_eq!(known.code, StatusCode::FORBIDDEN);
    }
    let (known, unknown) = (
        deliver(&rig, unsigned(&path)).await,
        deliver(&rig, unsigned(&none)).await,
    );
    assert_eq!((known.code, &known.text), (unknown.code, &unknown.text));
    // The right token in another host's header.
    let other = deliver(&rig, Sender::new(Host::GitLab, TOKEN).push(&path, push)).await;
    assert_eq!(other.code, StatusCode::FORBIDDEN);
    // A body that was changed on its way.
    let mut forged = Sender::new(Host::GitHub, TOKEN).push(&path, push);
    *forged.body_mut() = Bytes::from(String::from_utf8_lossy(forged.body()).replace("main", "next"));
    assert_eq!(deliver(&rig, forged).await.code, StatusCode::FORBIDDEN);
    let refused = |r: &Value| condition(r, "Delivered").starts_with("False/Signature");
    let told = rig.wait_for("Receiver", ADMIN_NAMESPACE, "hook", refused).await;
    let said = message(&told, "Delivered");
    assert!(
        said.contains("was refused: its X-Hub-Signature-256") || said.contains("it has no X-Hub-Signature-256"),
        "{said}"
    );
    assert!(
        said.contains("Secret hook") && told["status"]["lastRefusalTime"].is_string(),
        "{told:#}"
    );
    assert_eq!(server.counts(), asked, "nobody was asked");
    assert!(!told.to_string().contains(TOKEN));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_signed_and_not_for_a_receiver_is_taken_and_told() {
    let (server, _git, rig) = following().await;
    let url = server.url("infra.git");
    let path = receiver(&rig, "hook", Host::GitHub, TOKEN, json!([{"name": "*"}])).await;
    let sender = Sender::new(Host::GitHub, TOKEN);
    let asked = server.counts();
    let check = async |request: Request<Bytes>, code: StatusCode, expected: &str| {
        let answer = deliver(&rig, request).await;
        assert_eq!(answer.code, code, "{}", answer.text);
        rig.wait_for("Receiver", ADMIN_NAMESPACE, "hook", |r| {
            condition(r, "Delivered") == expected
        })
        .await
    };
    check(
        sender.request(&path, "ping", b"{\"zen\": \"\"}"),
        StatusCode::OK,
        "True/EventIgnored",
    )
    .await;
    let push = Push {
        url: &url,
        branch: "topic",
        before: ZERO,
        after: ZERO,
        size: 10,
    };
    check(sender.push(&path, push), StatusCode::ACCEPTED, "True/Taken").await;
    let elsewhere = Push {
        url: "https://git.example.com/team/other.git",
        branch: "main",
        ..push
    };
    let told = check(
        sender.push(&path, elsewhere),
        StatusCode::ACCEPTED,
        "False/RepositoryUnknown",
    )
    .await;
    assert!(
        message(&told, "Delivered").contains("git.example.com/team/other"),
        "{told:#}"
    );
    check(
        sender.request(&path, "push", b"[1]"),
        StatusCode::BAD_REQUEST,
        "False/PayloadUnreadable",
    )
    .await;
    let giant = deliver(&rig, sender.request(&path, "push", &vec![b' '; 26 << 20])).await;
    assert_eq!(giant.code, StatusCode::PAYLOAD_TOO_LARGE);
    let nobodys = format!("/hook/{}", "0".repeat(64));
    assert_eq!(
        deliver(&rig, sender.request(&nobodys, "push", &vec![b' '; 26 << 20]))
            .await
            .text,
        giant.text
    );

    let main = Push { branch: "main", ..push };
    rig.edit("Receiver", ADMIN_NAMESPACE, "hook", |r| {
        r["spec"]["suspend"] = true.into()
    })
    .await;
    rig.wait_for("Receiver", ADMIN_NAMESPACE, "hook", |r| {
        condition(r, "Ready") == "Unknown/Suspended"
    })
    .await;
    assert_eq!(deliver(&rig, sender.push(&path, main)).await.code, StatusCode::OK);
    assert_eq!(server.counts(), asked, "nobody was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receivers_path_is_its_tokens() {
    let (server, git, rig) = following().await;
    let url = server.url("infra.git");
    let spec = json!({"type": "github", "resources": [{"name": "infra"}], "secretRef": {"name": "hook"}});
    rig.create("Receiver", ADMIN_NAMESPACE, "hook", json!({"spec": spec}))
        .await;
    let stalled = async |reason: &str| {
        let expected = format!("True/{reason}");
        rig.wait_for("Receiver", ADMIN_NAMESPACE, "hook", |r| {
            condition(r, "Stalled") == expected
        })
        .await
    };
    stalled("SecretNotFound").await;
    rig.create("Secret", ADMIN_NAMESPACE, "hook", token("short")).await;
    let told = stalled("TokenInvalid").await;
    assert!(message(&told, "Ready").contains("at least 16 are needed") && told["status"]["webhookPath"].is_null());
    rig.edit("Secret", ADMIN_NAMESPACE, "hook", |s| {
        s["data"] = json!({"key": "eA=="})
    })
    .await;
    stalled("TokenMissing").await;
    rig.edit("Secret", ADMIN_NAMESPACE, "hook", |s| {
        s["data"] = token(TOKEN)["data"].clone()
    })
    .await;
    let path = path_of(&rig, "hook").await;
    assert!(
        path.starts_with("/hook/") && path.len() == "/hook/".len() + 64,
        "{path}"
    );

    let (before, after) = commit(&git);
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 10,
    };
    let next = "fedcba9876543210fedcba9876543210";
    rig.edit("Secret", ADMIN_NAMESPACE, "hook", |s| {
        s["data"] = token(next)["data"].clone()
    })
    .await;
    let moved = |r: &Value| r["status"]["webhookPath"].as_str().is_some_and(|new| new != path);
    let told = rig.wait_for("Receiver", ADMIN_NAMESPACE, "hook", moved).await;
    let new = told["status"]["webhookPath"].as_str().unwrap().to_owned();
    assert_eq!(
        deliver(&rig, Sender::new(Host::GitHub, TOKEN).push(&path, push))
            .await
            .code,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        deliver(&rig, Sender::new(Host::GitHub, TOKEN).push(&new, push))
            .await
            .code,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        deliver(&rig, Sender::new(Host::GitHub, next).push(&new, push))
            .await
            .code,
        StatusCode::ACCEPTED
    );
    wait_served(&rig, &after).await;

    // The same after a restart, before which nobody is told that there is no such receiver.
    let rig = rig.restart().await;
    rig.wait_until("the receivers are loaded", async || {
        let answer = deliver(&rig, Sender::new(Host::GitHub, next).push(&new, push)).await;
        assert_ne!(answer.code, StatusCode::FORBIDDEN);
        answer.code == StatusCode::ACCEPTED
    })
    .await;
    rig.delete("Receiver", ADMIN_NAMESPACE, "hook").await;
    rig.wait_until("it is gone", async || {
        deliver(&rig, Sender::new(Host::GitHub, next).push(&new, push))
            .await
            .code
            == StatusCode::FORBIDDEN
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_deliveries_causes_at_most_two_checks_and_one_fetch() {
    // The bench `sources-deliveries` sends twenty thousand.
    const MANY: usize = 500;
    let (server, git, rig) = following().await;
    let url = server.url("infra.git");
    let path = receiver(&rig, "hook", Host::GitHub, TOKEN, json!([{"name": "infra"}])).await;
    let (before, after) = commit(&git);
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 500,
    };
    let request = Sender::new(Host::GitHub, TOKEN).push(&path, push);
    let asked = server.counts();
    let sent = futures::future::join_all((0..MANY).map(|_| deliver(&rig, request.clone())));
    assert!(sent.await.iter().all(|answer| answer.code == StatusCode::ACCEPTED));
    wait_served(&rig, &after).await;
    // Those that came while it was asked may have it asked once more.
    until_asked(&rig).await;
    let counts = server.counts();
    assert_eq!(counts.fetches - asked.fetches, 1, "{counts:?}");
    assert!(
        counts.ls_refs - asked.ls_refs <= 2,
        "{} questions",
        counts.ls_refs - asked.ls_refs
    );

    // Replayed in any order, with what was pushed before and after it: nothing is fetched, and it stays what it is.
    let old = Sender::new(Host::GitHub, TOKEN).push(
        &path,
        Push {
            before: ZERO,
            after: &before,
            ..push
        },
    );
    for n in 0..100 {
        let request = if n % 2 == 0 { old.clone() } else { request.clone() };
        assert_eq!(deliver(&rig, request).await.code, StatusCode::ACCEPTED);
    }
    until_asked(&rig).await;
    let replayed = server.counts();
    assert_eq!(replayed.fetches, counts.fetches);
    assert!(
        replayed.ls_refs - counts.ls_refs <= 2,
        "{} questions",
        replayed.ls_refs - counts.ls_refs
    );
    wait_served(&rig, &after).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_hold_up_nobody_and_end() {
    const SLOW: usize = 200;
    const BODY_TIME: Duration = Duration::from_secs(4);
    let (server, git, rig) = following_with(|replica| replica.receivers.body_time = BODY_TIME).await;
    let url = server.url("infra.git");
    let path = receiver(&rig, "hook", Host::GitHub, TOKEN, json!([{"name": "infra"}])).await;
    let address = rig.serve().await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: hub\r\nx-hub-signature-256: sha256=00\r\ncontent-length: 1000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let begun = tokio::time::Instant::now();
    let dripping = tokio::spawn(async move {
        loop {
            for stream in &mut slow {
                // Those that were answered are closed.
                let _ = stream.write_all(b"x").await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            if begun.elapsed() > BODY_TIME * 3 / 4 {
                return slow;
            }
        }
    });
    let (before, after) = commit(&git);
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 500,
    };
    assert_eq!(
        deliver(&rig, Sender::new(Host::GitHub, TOKEN).push(&path, push))
            .await
            .code,
        StatusCode::ACCEPTED
    );
    wait_served(&rig, &after).await;
    let mut answered = 0;
    for mut stream in dripping.await.unwrap() {
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer))
            .await
            .unwrap()
            .unwrap_or(0);
        answered += usize::from(String::from_utf8_lossy(&answer[..read]).starts_with("HTTP/1.1 408 "));
    }
    assert_eq!(answered, SLOW);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_asked_less_often_while_deliveries_are_proven_to_arrive() {
    let (server, git, rig) = following().await;
    let url = server.url("infra.git");
    let path = receiver(&rig, "hook", Host::GitHub, TOKEN, json!([{"name": "infra"}])).await;
    let sender = Sender::new(Host::GitHub, TOKEN);
    let (before, after) = commit(&git);
    let push = Push {
        url: &url,
        branch: "main",
        before: &before,
        after: &after,
        size: 500,
    };
    let said = |source: &Value| message(source, "Ready");
    let is_stretched =
        |source: &Value| said(source).ends_with("; webhooks announce pushes, so it is fetched only every 50m");
    deliver(&rig, sender.push(&path, push)).await;
    assert!(is_stretched(&wait_served(&rig, &after).await));
    assert_eq!(rig.replica.memory.checks.announced.proven(), 1);

    // A check that finds what nobody announced.
    let (_, quiet) = commit(&git);
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    assert_eq!(
        said(&wait_served(&rig, &quiet).await),
        format!("serves main@sha1:{quiet}")
    );
    assert_eq!(rig.replica.memory.checks.announced.proven(), 0);
    // Its delivery was only a little late.
    deliver(
        &rig,
        sender.push(
            &path,
            Push {
                before: &after,
                after: &quiet,
                ..push
            },
        ),
    )
    .await;
    rig.wait_until("that is seen", async || {
        rig.replica.memory.checks.announced.proven() == 1
    })
    .await;

    // A receiver that is gone announces nothing, and its sources are asked now.
    let asked = server.counts();
    rig.delete("Receiver", ADMIN_NAMESPACE, "hook").await;
    rig.wait_until("it is asked", async || server.counts().ls_refs > asked.ls_refs)
        .await;
    rig.wait_for("GitRepository", ADMIN_NAMESPACE, "infra", |s| !is_stretched(s))
        .await;
    assert_eq!(rig.replica.memory.checks.announced.proven(), 0);
}
