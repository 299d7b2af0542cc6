//! What agents of every kept version said, and what one of a newer version might, said to this hub.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest,
    objects::{ObjectReport, Outcome, ServiceReport},
    protocol::{
        AgentReport, AgentUpdate, Assertion, DesiredState, Entry, JoinRequest, PROTOCOL, PROTOCOL_HEADER,
        SignedAssertion, StatusReport, Verbatim,
    },
};
use farwater_hub::delivery::{status, token::verify_signature};
use farwater_testkit::{
    git::{GitServer, Repository},
    wire::{self, Exchange, Trace, common_members, understand, with_unknown_members, with_unknown_words},
};
use http::{Request, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    agent::{Agent, Answer, call, invite, post},
    delivering::applied,
    rig::{Rig, condition, repository},
};

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// A hub that has what the recorded one had: the same cluster and services, by their uids.
struct Replay<'a> {
    trace: &'a Trace,
    rig: Rig,
    agent: Agent,
    join_token: String,
    /// Of the last report.
    sequence: u64,
    /// What was recorded, and what it is here: digests, and whose they are.
    swaps: Vec<(String, String)>,
    _git: (GitServer, Repository),
}

impl<'a> Replay<'a> {
    async fn start(trace: &'a Trace) -> Self {
        let joined = trace.first("join", 200).unwrap().answered();
        let cluster = &joined["cluster"];
        let (namespace, name) = (text(&cluster["namespace"]), text(&cluster["name"]));
        let git = repository().await;
        let rig = Rig::start().await;
        let object = json!({"spec": {"pollInterval": "30s"}, "labels": {"env": "test"}});
        rig.create_as(&text(&cluster["uid"]), "Cluster", &namespace, &name, object)
            .await;
        let mut services: BTreeMap<String, (Value, bool)> = BTreeMap::new();
        for entry in trace.entries() {
            let service = services.entry(text(&entry["service"]["uid"])).or_default();
            service.1 |= entry["action"]["secrets"].is_string();
            service.0 = entry["service"].clone();
        }
        let namespaces: BTreeSet<String> = services
            .values()
            .map(|(service, _)| text(&service["namespace"]))
            .collect();
        let grant = json!({"spec": {
            "clusterSelector": {}, "namespaces": namespaces, "verbs": ["deploy"], "serviceAccountName": "deployer",
        }});
        rig.create("ClusterGrant", "", "everybody", grant).await;
        for space in &namespaces {
            rig.repository(space, "infra", &git.0.url("infra.git")).await;
            rig.create(
                "Secret",
                space,
                "database",
                json!({"data": {"password": BASE64.encode("x")}}),
            )
            .await;
        }
        for (uid, (service, has_secrets)) in &services {
            let spec = json!({
                "clusterRef": {"name": name, "namespace": namespace}, "targetNamespace": "web", "path": "apps/web",
                "sourceRef": {"kind": "GitRepository", "name": "infra"}, "deletionPolicy": "Delete",
                "secrets": if *has_secrets { json!([{"name": "database"}]) } else { json!([]) },
            });
            let (space, name) = (text(&service["namespace"]), text(&service["name"]));
            rig.create_as(uid, "ServiceDeployment", &space, &name, json!({"spec": spec}))
                .await;
        }
        rig.wait_for("Cluster", &namespace, &name, |c| c["status"]["conditions"].is_array())
            .await;
        let join_token = invite(&rig, &name).await;
        let agent = Agent::recorded(trace);
        let mut replay = Self {
            trace,
            rig,
            agent,
            join_token,
            sequence: 0,
            swaps: Vec::new(),
            _git: git,
        };
        replay.join().await;
        for uid in services.keys() {
            replay
                .agent
                .wait_entry(&replay.rig, uid, |entry| applied(entry).is_some())
                .await;
        }
        replay.learn().await;
        replay
    }

    /// Joins and gets its access token with what was recorded.
    async fn join(&mut self) {
        for kind in ["join", "token"] {
            let exchange = self.trace.first(kind, 200).unwrap();
            let answer = self.play(exchange).await;
            let live: Value = serde_json::from_slice(&answer.body).unwrap();
            if kind == "join" {
                self.agent.joined = Some(serde_json::from_value(live).unwrap());
            } else {
                self.agent.access = text(&live["token"]);
            }
        }
    }

    /// Which digests here stand for those that were recorded.
    async fn learn(&mut self) {
        let live = self.agent.desired(&self.rig).await;
        for entry in self.trace.entries() {
            let Some(here) = live
                .entries
                .iter()
                .find(|here| here.service.uid == entry["service"]["uid"])
            else {
                continue;
            };
            self.swaps
                .push((Digest::of_json(&entry).to_string(), here.digest().to_string()));
            let deployment = applied(here).unwrap();
            for (member, digest) in [("bundle", Some(deployment.bundle)), ("secrets", deployment.secrets)] {
                if let (Some(recorded), Some(digest)) = (entry["action"][member].as_str(), digest) {
                    self.swaps.push((recorded.to_owned(), digest.to_string()));
                }
            }
        }
    }

    fn swap(&self, text: &str) -> String {
        self.swaps
            .iter()
            .fold(text.to_owned(), |text, (recorded, here)| text.replace(recorded, here))
    }

    fn joined(&self) -> (String, String) {
        let cluster = &self.agent.joined.as_ref().unwrap().cluster;
        (cluster.namespace.clone(), cluster.name.clone())
    }

    /// The recorded request with what can't be the same here: times, what is used once, digests and signatures.
    fn renew(&self, exchange: &Exchange) -> Value {
        let mut body: Value = serde_json::from_str(&self.swap(&exchange.asked().to_string())).unwrap();
        match exchange.kind() {
            "join" => {
                body["token"] = self.join_token.as_str().into();
                let message = JoinRequest::proof_message(&self.join_token, &text(&body["sealingKey"]));
                body["proof"] = BASE64.encode(self.agent.key.sign(&message)).into();
            }
            // One that was refused is as old as it is.
            "token" if exchange.answer.status == 200 => {
                let assertion = BASE64.decode(text(&body["assertion"])).unwrap();
                body = self.sign(serde_json::from_slice(&assertion).unwrap());
            }
            "status" if exchange.answer.status == 200 => {
                if body["base"] != 0 {
                    body["base"] = self.sequence.into();
                }
                body["sequence"] = body["sequence"].as_u64().unwrap().max(self.sequence + 1).into();
            }
            _ => {}
        }
        body
    }

    /// An assertion of now, with everything else that it holds.
    fn sign(&self, mut assertion: Value) -> Value {
        let mut nonce = [0; 16];
        aws_lc_rs::rand::fill(&mut nonce).unwrap();
        let now = Timestamp::now().as_second();
        assertion["installation"] = self.rig.identity.installation().into();
        (assertion["time"], assertion["systemTime"]) = (now.into(), now.into());
        assertion["nonce"] = hex::encode(nonce).into();
        let text = BASE64.encode(assertion.to_string());
        let signature = BASE64.encode(self.agent.key.sign(&SignedAssertion::message(&text)));
        json!({"assertion": text, "signature": signature})
    }

    /// Says again what was said; the answer has the recorded status and reason, and all members that it had.
    async fn play(&mut self, exchange: &Exchange) -> Answer {
        let body = if exchange.request.body.is_some() {
            self.renew(exchange)
        } else {
            Value::Null
        };
        let answer = self.ask(exchange, &body).await;
        let what = format!("{} of {}", exchange.name, self.trace.version);
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status.as_u16(), exchange.answer.status, "{what}: {said}");
        assert_eq!(answer.headers[PROTOCOL_HEADER], PROTOCOL.to_string().as_str(), "{what}");
        if exchange.is("status", 200) {
            self.sequence = body["sequence"].as_u64().unwrap();
        }
        let recorded = exchange.answered();
        let live: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if exchange.kind() != "token" {
            assert_eq!(live["reason"], recorded["reason"], "{what}: {said}");
        }
        if exchange.kind() != "desired" {
            assert_has_all(&live, &[recorded], &what);
        }
        answer
    }

    async fn ask(&self, exchange: &Exchange, body: &Value) -> Answer {
        let recorded = &exchange.request;
        let mut request = Request::builder()
            .method(recorded.method.as_str())
            .uri(self.swap(&recorded.path));
        for (name, value) in &recorded.headers {
            let value = match name.as_str() {
                "authorization" if value == wire::ACCESS_TOKEN => format!("Bearer {}", self.agent.access),
                "if-none-match" if exchange.answer.status == 304 => {
                    self.agent.desired(&self.rig).await.statement.etag()
                }
                "if-none-match" => continue,
                _ => value.clone(),
            };
            request = request.header(name, value);
        }
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        call(&self.rig, request.body(Body::from(bytes)).unwrap()).await
    }

    /// What was said in a report is what the hub shows.
    async fn check_report(&self, said: &StatusReport) {
        for (uid, report) in &said.services {
            let Some(report) = report else { continue };
            let shown: Vec<ObjectReport> = status::load_objects(&self.rig.replica, uid).await.unwrap();
            assert_eq!(shown, report.objects);
            let live = self.agent.desired(&self.rig).await;
            // What it says of another entry is no news.
            let is_now = |entry: &&Verbatim<Entry>| entry.service.uid == *uid && entry.digest() == report.entry;
            let Some(service) = live.entries.iter().find(is_now) else {
                continue;
            };
            let (namespace, name) = (&service.service.namespace, &service.service.name);
            let wanted = |service: &Value| match report.outcome {
                Outcome::Applying => condition(service, "Ready") == "False/Progressing",
                Outcome::Failed => condition(service, "Ready") == "False/ApplyFailed",
                Outcome::Applied if report.held_prune.is_some() => {
                    condition(service, "PruneHeld") == "True/ApprovalNeeded"
                }
                Outcome::Applied => service["status"]["objects"]["total"] == report.objects.len(),
                Outcome::Unknown => condition(service, "Ready") == "Unknown/ReportUnknown",
                Outcome::Superseded | Outcome::Removed => true,
            };
            self.rig.wait_for("ServiceDeployment", namespace, name, wanted).await;
        }
        if let Some(image) = said.agent.as_ref().and_then(|agent| agent.image.as_deref()) {
            let (namespace, name) = self.joined();
            self.rig
                .wait_for("Cluster", &namespace, &name, |c| c["status"]["agentImage"] == image)
                .await;
        }
    }
}

/// Every member that was always there still is: an older agent may need it.
#[track_caller]
fn assert_has_all(live: &Value, recorded: &[Value], what: &str) {
    let missing: Vec<String> = common_members(recorded)
        .difference(&common_members(std::slice::from_ref(live)))
        .cloned()
        .collect();
    assert!(missing.is_empty(), "{what}: the hub does not say {missing:?} any more");
}

/// What agents read of desired states: statements, and the actions of each type.
fn check_desired(trace: &Trace, live: &DesiredState) {
    let what = format!("the desired state of {}", trace.version);
    let live = serde_json::to_value(live).unwrap();
    let statements: Vec<Value> = trace.desired().map(|state| state["statement"].clone()).collect();
    assert_has_all(&live["statement"], &statements, &what);
    for entry in live["entries"].as_array().unwrap() {
        let alike: Vec<Value> = trace
            .entries()
            .filter(|other| other["action"]["type"] == entry["action"]["type"])
            .collect();
        assert_has_all(entry, &alike, &what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_every_kept_version_are_served_as_they_were() {
    for trace in wire::kept().unwrap() {
        let mut replay = Replay::start(&trace).await;
        for exchange in &trace.exchanges {
            if exchange.is("join", 200) {
                continue;
            }
            let answer = replay.play(exchange).await;
            if exchange.is("desired", 200) {
                check_desired(&trace, &replay.agent.desired(&replay.rig).await);
            } else if exchange.is("status", 200) {
                let said = serde_json::from_str(&replay.swap(&exchange.asked().to_string())).unwrap();
                replay.check_report(&said).await;
            } else if exchange.is("secrets", 200) {
                let mut parts = exchange.request.path.rsplit('/');
                let mac = replay.swap(parts.next().unwrap()).parse().unwrap();
                let sealed = serde_json::from_slice(&answer.body).unwrap();
                assert!(
                    replay.agent.open(&sealed, parts.next().unwrap(), &mac).is_some(),
                    "sealed to another key"
                );
            }
        }
        let (namespace, name) = replay.joined();
        let cluster = replay.rig.wait_for("Cluster", &namespace, &name, |c| {
            condition(c, "Ready") == "True/Connected"
        });
        let cluster = cluster.await;
        assert_eq!(cluster["status"]["agentVersion"], trace.version.as_str());
        assert_eq!(condition(&cluster, "VersionSkew"), "absent", "{cluster:#}");
    }
}

/// A renamed member would be a new one that an older agent doesn't say, and one that is said and not read.
#[test]
fn everything_that_agents_of_kept_versions_say_is_read() {
    for trace in wire::kept().unwrap() {
        for exchange in trace.exchanges.iter().filter(|exchange| exchange.answer.status < 300) {
            let (asked, what) = (exchange.asked(), format!("{} of {}", exchange.name, trace.version));
            let read = match exchange.kind() {
                "join" => understand::<JoinRequest>(&asked).map(|request| {
                    let key = BASE64.decode(&request.public_key).unwrap();
                    let message = JoinRequest::proof_message(&request.token, &request.sealing_key);
                    verify_signature(&key, &message, &request.proof).expect("the proof is what it was");
                }),
                "token" => understand::<SignedAssertion>(&asked).and_then(|signed| {
                    let key = text(&trace.first("join", 200)?.asked()["publicKey"]);
                    let message = SignedAssertion::message(&signed.assertion);
                    verify_signature(&BASE64.decode(key)?, &message, &signed.signature).expect("signed as it was");
                    understand::<Assertion>(&serde_json::from_slice(&BASE64.decode(signed.assertion)?)?).map(drop)
                }),
                "status" => understand::<StatusReport>(&asked).and_then(|_| {
                    for report in asked["services"]
                        .as_object()
                        .unwrap()
                        .values()
                        .filter(|report| !report.is_null())
                    {
                        understand::<ServiceReport>(report)?;
                    }
                    let agent = asked.get("agent").map(understand::<AgentReport>).transpose()?;
                    let unknown = agent.is_some_and(|agent| agent.update == AgentUpdate::Unknown);
                    assert!(!unknown, "{what}: {asked:#}");
                    Ok(())
                }),
                _ => Ok(()),
            };
            read.unwrap_or_else(|error| panic!("{what}: {error:#}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_agent_says_is_read_as_far_as_it_is_known() {
    let traces = wire::kept().unwrap();
    let trace = traces.last().unwrap();
    let mut replay = Replay::start(trace).await;
    let join = trace.first("join", 200).unwrap();
    replay.join_token = invite(&replay.rig, &replay.joined().1).await;
    let (_, all) = with_unknown_members(&replay.renew(join), &[]).pop().unwrap();
    assert_eq!(replay.ask(join, &all).await.status, StatusCode::OK);
    let token = trace.first("token", 200).unwrap();
    let assertion = BASE64.decode(text(&token.asked()["assertion"])).unwrap();
    for (at, assertion) in with_unknown_members(&serde_json::from_slice(&assertion).unwrap(), &[]) {
        let (_, signed) = with_unknown_members(&replay.sign(assertion), &[]).pop().unwrap();
        let answer = replay.ask(token, &signed).await;
        assert_eq!(answer.status, StatusCode::OK, "{at}");
        replay.agent.access = text(&serde_json::from_slice::<Value>(&answer.body).unwrap()["token"]);
    }
    for exchange in trace.exchanges.iter().filter(|exchange| exchange.is("status", 200)) {
        let report = replay.renew(exchange);
        let unknown = with_unknown_members(&report, &["/services"]);
        for (at, mut said) in unknown.into_iter().chain(with_unknown_words(&report)) {
            replay.sequence += 1;
            (said["base"], said["sequence"]) = (0.into(), replay.sequence.into());
            let answer = replay.ask(exchange, &said).await;
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!(answer.status, StatusCode::OK, "{}: {at}: {body}", exchange.name);
        }
        // An outcome that nobody knows is neither success nor a removal.
        let mut said = report;
        for service in said["services"]
            .as_object_mut()
            .unwrap()
            .values_mut()
            .filter(|service| service.is_object())
        {
            service["outcome"] = wire::UNKNOWN_WORD.into();
        }
        replay.sequence += 1;
        (said["base"], said["sequence"]) = (0.into(), replay.sequence.into());
        assert_eq!(replay.ask(exchange, &said).await.status, StatusCode::OK);
        replay.check_report(&serde_json::from_value(said).unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_that_do_not_go_together_are_shown_on_the_cluster() {
    let rig = Rig::start().await;
    rig.cluster("east").await;
    let agent = Agent::join(&rig, "east").await;
    agent.wait_polled(&rig).await;
    let shown = async |protocol: u32, wanted: &str| {
        let request = agent.get("/agent/v1/desired").header(PROTOCOL_HEADER, protocol);
        let answer = call(&rig, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::OK, "it is served all the same");
        let holds = |c: &Value| condition(c, "VersionSkew") == wanted && condition(c, "Ready") == "True/Connected";
        let cluster = rig
            .wait_for("Cluster", farwater_api::ADMIN_NAMESPACE, "east", holds)
            .await;
        crate::rig::message(&cluster, "Ready")
    };
    assert_eq!(shown(PROTOCOL, "absent").await, "the agent polls");
    let message = shown(PROTOCOL + 1, "True/AgentAhead").await;
    assert!(message.contains("upgrade the hub"), "{message}");
    shown(PROTOCOL + 3, "True/AgentTooNew").await;
    assert_eq!(shown(PROTOCOL, "absent").await, "the agent polls");
    // Refusals say it too.
    let refused = call(&rig, post("/agent/v1/join", &"what")).await;
    assert_eq!(refused.headers[PROTOCOL_HEADER], PROTOCOL.to_string().as_str());
    let unknown = call(&rig, Request::get("/agent/v9/desired").body(Body::empty()).unwrap()).await;
    assert_eq!(unknown.refusal(), "404 PathUnknown");
    assert_eq!(
        unknown.headers.get(PROTOCOL_HEADER),
        refused.headers.get(PROTOCOL_HEADER)
    );
}
