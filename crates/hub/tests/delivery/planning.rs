//! Requests for plans: to the service's own agent, while they are open, and without a trace.

use axum::body::Body;
use farwater_api::{
    ADMIN_NAMESPACE, Digest,
    plan::{MAX_LOCAL_ARCHIVE, PlanAnswer, PlanPhase, PlanProblem, PlanQuery},
    protocol::{PLAN_HEADER, PLANS_PATH, PlanRequest, PlanStatement},
    renderer::LocalFiles,
};
use farwater_bundle::archive;
use farwater_hub::{
    clusters::propose_plans::{ProposeError, propose},
    delivery::plans::look,
    services::versions::load_entries,
};
use farwater_store::Resource;
use http::{StatusCode, header};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, Answer, call, post},
    delivering::applied,
    rig::{Rig, WEB, key, repository},
};

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

async fn service(rig: &Rig) -> Resource {
    rig.store
        .get(&key("ServiceDeployment", ADMIN_NAMESPACE, "web"))
        .await
        .unwrap()
        .unwrap()
}

async fn ask(rig: &Rig, query: PlanQuery) -> Result<String, ProposeError> {
    propose(&rig.replica, &service(rig).await, query).await
}

fn reference(name: &str) -> PlanQuery {
    PlanQuery {
        reference: Some(name.to_owned()),
        local: None,
    }
}

async fn answer(rig: &Rig, id: &str, wanted: PlanPhase) -> PlanAnswer {
    let uid = service(rig).await.uid;
    let is_there = async || look(&rig.replica, id, &uid).unwrap().phase == wanted;
    rig.wait_until(&format!("the request is {wanted:?}"), is_there).await;
    look(&rig.replica, id, &uid).unwrap()
}

async fn is_told(rig: &Rig, agent: &Agent) -> bool {
    agent.poll(rig, None).await.headers.contains_key(PLAN_HEADER)
}

async fn take(rig: &Rig, agent: &Agent) -> Answer {
    call(rig, agent.get(PLANS_PATH).body(Body::empty()).unwrap()).await
}

async fn tell(rig: &Rig, agent: &Agent, id: &str, report: Value) -> Answer {
    let mut request = post(&format!("{PLANS_PATH}/{id}"), &report);
    let token = format!("Bearer {}", agent.access);
    request
        .headers_mut()
        .insert(header::AUTHORIZATION, token.parse().unwrap());
    call(rig, request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_plan_reaches_its_own_agent_alone_and_moves_nothing() {
    let (server, git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.cluster("west").await;
    let (east, west) = (Agent::join(&rig, "east").await, Agent::join(&rig, "west").await);
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    let (state, old) = east.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;
    west.wait_polled(&rig).await;
    rig.wait_idle().await;
    let main = git.branch("main").unwrap();
    git.set_ref("refs/heads/feature", &main).unwrap();
    let commit = git
        .change(
            "feature",
            &[("apps/web/web.yaml", Some(&WEB.replace("name: web", "name: other")))],
        )
        .unwrap();
    let before = (
        load_entries(&rig.replica, &web).await.unwrap().len(),
        service(&rig).await.version,
    );

    let id = ask(&rig, reference("feature")).await.unwrap();
    let waiting = answer(&rig, &id, PlanPhase::Waiting).await;
    assert_eq!(
        (waiting.cluster.as_str(), waiting.revision),
        ("east", format!("feature@sha1:{commit}"))
    );
    assert!(
        waiting.message.contains("the agent of cluster east has not asked"),
        "{}",
        waiting.message
    );
    assert!(is_told(&rig, &east).await && !is_told(&rig, &west).await);

    assert_eq!(take(&rig, &west).await.status, StatusCode::NO_CONTENT);
    let taken = take(&rig, &east).await;
    assert_eq!(taken.status, StatusCode::OK);
    let request: PlanRequest = serde_json::from_slice(&taken.body).unwrap();
    let joined = east.joined.as_ref().unwrap();
    let signing = joined
        .signing_keys
        .iter()
        .find(|key| key.id == request.statement.key_id)
        .unwrap();
    let signature = BASE64.decode(&request.signature).unwrap();
    UnparsedPublicKey::new(&ED25519, BASE64.decode(&signing.public_key).unwrap())
        .verify(&request.statement.message_for(PlanStatement::PREFIX), &signature)
        .unwrap();
    assert_eq!(
        (&request.statement.id, request.statement.entry),
        (&id, request.entry.digest())
    );
    assert_eq!(request.statement.cluster_uid, joined.cluster.uid);
    let (planned, desired) = (applied(&request.entry).unwrap(), applied(&old).unwrap());
    assert_ne!(planned.bundle, desired.bundle);
    assert_eq!(
        (&planned.path, &planned.ceiling, planned.prune),
        (&desired.path, &desired.ceiling, desired.prune)
    );
    assert!(!is_told(&rig, &east).await, "it has been taken");
    assert_eq!(take(&rig, &east).await.status, StatusCode::NO_CONTENT);

    // The bundle is to be had by this agent, as long as the request is open.
    assert_eq!(east.bundle(&rig, &planned.bundle).await.status, StatusCode::OK);
    assert_eq!(west.bundle(&rig, &planned.bundle).await.refusal(), "403 NotDesired");
    let plan = json!({"unchanged": 3, "ofTheFuture": {"x": 1}});
    assert_eq!(
        tell(&rig, &west, &id, json!({"plan": plan})).await.refusal(),
        "410 NotDesired"
    );
    assert_eq!(
        tell(&rig, &east, &id, json!({"plan": {"changes": 7}})).await.refusal(),
        "400 Invalid"
    );
    assert_eq!(
        tell(&rig, &east, &id, json!({"plan": plan})).await.status,
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        tell(&rig, &east, &id, json!({"plan": plan})).await.refusal(),
        "410 NotDesired"
    );
    // As the agent wrote it, also what this hub does not know.
    assert_eq!(answer(&rig, &id, PlanPhase::Done).await.plan, Some(plan));
    assert_eq!(east.bundle(&rig, &planned.bundle).await.refusal(), "403 NotDesired");
    assert!(look(&rig.replica, &id, "another").is_none());

    // Neither the source nor the service has moved.
    rig.wait_idle().await;
    let after = (
        load_entries(&rig.replica, &web).await.unwrap().len(),
        service(&rig).await.version,
    );
    assert_eq!(after, before);
    assert_eq!(east.desired(&rig).await, state);
    rig.ask(ADMIN_NAMESPACE, "infra").await;
    let source = rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.unwrap();
    assert_eq!(source["status"]["revision"], format!("main@sha1:{main}"));
    assert_eq!(east.desired(&rig).await, state);

    let id = ask(&rig, PlanQuery::default()).await.unwrap();
    answer(&rig, &id, PlanPhase::Waiting).await;
    let request: PlanRequest = serde_json::from_slice(&take(&rig, &east).await.body).unwrap();
    assert_eq!(*request.entry, old, "what is desired is what the agent was given");
    assert_eq!(
        tell(&rig, &east, &id, json!({"problem": "the disk is full"}))
            .await
            .status,
        StatusCode::NO_CONTENT
    );
    let failed = answer(&rig, &id, PlanPhase::Failed).await;
    assert_eq!(
        (failed.reason, failed.message.as_str()),
        (Some(PlanProblem::AgentFailed), "the disk is full")
    );
}

fn local(bytes: &[u8]) -> LocalFiles {
    let archive = BASE64.encode(archive::compress(bytes).unwrap());
    LocalFiles {
        digest: Digest::of(bytes),
        path: "apps/web".to_owned(),
        archive,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_somebodys_own_are_checked_kept_for_the_request_and_not_longer() {
    let (server, _git) = repository().await;
    let rig = Rig::start().await;
    rig.cluster("east").await;
    rig.repository(ADMIN_NAMESPACE, "infra", &server.url("infra.git")).await;
    let web = rig.service(ADMIN_NAMESPACE, "web", "east", "apps/web").await;
    rig.wait_for("ServiceDeployment", ADMIN_NAMESPACE, "web", |service| {
        service["status"]["conditions"].is_array()
    })
    .await;
    let with = |local: LocalFiles| PlanQuery {
        reference: None,
        local: Some(local),
    };
    let empty = vec![0; 1024];
    let refused = ask(&rig, with(local(&empty))).await.unwrap_err().to_string();
    assert_eq!(refused, "no agent has joined cluster east yet");
    let east = Agent::join(&rig, "east").await;
    east.wait_entry(&rig, &web, |entry| applied(entry).is_some()).await;

    for (files, problem) in [
        (
            LocalFiles {
                archive: "?".to_owned(),
                ..local(&empty)
            },
            "is not base64",
        ),
        (
            LocalFiles {
                path: "../up".to_owned(),
                ..local(&empty)
            },
            "local.path",
        ),
        (
            LocalFiles {
                archive: BASE64.encode(vec![0; MAX_LOCAL_ARCHIVE + 1]),
                ..local(&empty)
            },
            "at most",
        ),
    ] {
        let error = ask(&rig, with(files)).await.unwrap_err();
        assert!(
            matches!(&error, ProposeError::Invalid(text) if text.contains(problem)),
            "{error}"
        );
    }
    let both = PlanQuery {
        reference: Some("main".to_owned()),
        local: Some(local(&empty)),
    };
    assert!(matches!(ask(&rig, both).await, Err(ProposeError::Invalid(_))));
    for (files, problem) in [
        (
            LocalFiles {
                digest: Digest::of("other"),
                ..local(&empty)
            },
            "digest",
        ),
        (local(b"no archive"), "not a canonical archive"),
    ] {
        let id = ask(&rig, with(files)).await.unwrap();
        let failed = answer(&rig, &id, PlanPhase::Failed).await;
        assert_eq!(failed.reason, Some(PlanProblem::Refused));
        assert!(failed.message.contains(problem), "{}", failed.message);
    }

    let id = ask(&rig, with(local(&empty))).await.unwrap();
    answer(&rig, &id, PlanPhase::Waiting).await;
    let request: PlanRequest = serde_json::from_slice(&take(&rig, &east).await.body).unwrap();
    let bundle = applied(&request.entry).unwrap().bundle;
    assert_eq!(bundle, Digest::of(&empty));
    assert_eq!(
        zstd::decode_all(east.bundle(&rig, &bundle).await.body.as_slice()).unwrap(),
        empty
    );
    tell(&rig, &east, &id, json!({"plan": {}})).await;
    answer(&rig, &id, PlanPhase::Done).await;
    assert_eq!(east.bundle(&rig, &bundle).await.refusal(), "403 NotDesired");
    assert!(rig.get("GitRepository", ADMIN_NAMESPACE, "infra").await.is_some());
    let cached = rig.path().join("cache/bundles").join(bundle.to_hex());
    assert!(!cached.exists());

    let missing = ask(&rig, reference("nosuch")).await.unwrap();
    let missing = answer(&rig, &missing, PlanPhase::Failed).await;
    assert_eq!(missing.reason, Some(PlanProblem::RefMissing), "{}", missing.message);
    assert!(matches!(
        ask(&rig, reference("--upload-pack=x")).await,
        Err(ProposeError::Invalid(_))
    ));
}
