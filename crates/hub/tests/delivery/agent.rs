//! A tiny agent: it says what it is told to say, and checks nothing that the hub is trusted with.

use std::collections::BTreeMap;

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest,
    objects::{Health, ObjectRef, ObjectReport, Outcome, ServiceReport, SyncState},
    protocol::{
        AcceptedStatement, Assertion, DesiredState, Entry, JoinAnswer, JoinRequest, ProtocolError, SealedSecrets,
        SignedAssertion, StatusReport, TokenAnswer, Verbatim,
    },
    succession::{Handover, KeysRequest, Position, SignedHandover},
};
use farwater_hub::{delivery::join, resources::Name};
use farwater_testkit::wire::Trace;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use rustls::crypto::{
    aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256,
    hpke::{EncapsulatedSecret, Hpke as _, HpkePrivateKey, HpkePublicKey},
};
use serde_json::Value;

use crate::{
    delivering::applied,
    rig::{PATIENCE, Rig},
};

pub struct Agent {
    /// PKCS#8.
    document: Vec<u8>,
    pub key: Ed25519KeyPair,
    sealing: (HpkePublicKey, HpkePrivateKey),
    pub cluster_id: String,
    pub joined: Option<JoinAnswer>,
    pub access: String,
    pub sequence: u64,
    /// Which process it says it is.
    pub instance: String,
    /// How far it says that it has followed the hub.
    pub position: Position,
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// `401 TokenUsed`
    #[track_caller]
    pub fn refusal(&self) -> String {
        let error: ProtocolError = serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{} {}", self.status, String::from_utf8_lossy(&self.body)));
        assert_eq!(
            error.hub_time.is_some(),
            self.status == StatusCode::UNAUTHORIZED,
            "401s carry the hub's time"
        );
        assert!(!error.message.is_empty());
        format!("{} {}", self.status.as_u16(), error.reason)
    }
}

/// `OK`, or a refusal.
pub fn outcome(answer: &Answer) -> String {
    if answer.status == StatusCode::OK {
        "OK".to_owned()
    } else {
        answer.refusal()
    }
}

pub async fn call(rig: &Rig, request: Request<Body>) -> Answer {
    let (parts, body) = rig.send(request).await.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes().to_vec(),
    }
}

pub fn post(path: &str, body: &impl serde::Serialize) -> Request<Body> {
    let json = serde_json::to_vec(body).unwrap();
    Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(json))
        .unwrap()
}

pub async fn invite(rig: &Rig, cluster: &str) -> String {
    let name = Name::new(farwater_api::ADMIN_NAMESPACE, cluster);
    join::create_invitation(&rig.replica, &name).await.unwrap().token
}

impl Agent {
    pub fn new() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self {
            document: document.as_ref().to_vec(),
            key: Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap(),
            sealing: DH_KEM_X25519_HKDF_SHA256_AES_256.generate_key_pair().unwrap(),
            cluster_id: uuid::Uuid::new_v4().to_string(),
            joined: None,
            access: String::new(),
            sequence: 0,
            instance: String::new(),
            position: Position::default(),
        }
    }

    /// With the keys that were recorded.
    pub fn recorded(trace: &Trace) -> Self {
        let asked = trace.first("join", 200).unwrap().asked();
        let decode = |value: &Value| BASE64.decode(value.as_str().unwrap()).unwrap();
        let document = decode(&trace.identity["keys"]["signing"]);
        Self {
            key: Ed25519KeyPair::from_pkcs8(&document).unwrap(),
            document,
            sealing: (
                HpkePublicKey(decode(&asked["sealingKey"])),
                decode(&trace.identity["keys"]["sealing"]).into(),
            ),
            cluster_id: asked["clusterId"].as_str().unwrap().to_owned(),
            ..Self::new()
        }
    }

    /// Makes a Cluster's agent, with an access token.
    pub async fn join(rig: &Rig, cluster: &str) -> Self {
        rig.wait_for("Cluster", farwater_api::ADMIN_NAMESPACE, cluster, |c| {
            c["status"]["conditions"].is_array()
        })
        .await;
        let mut agent = Self::new();
        let token = invite(rig, cluster).await;
        let answer = call(rig, post("/agent/v1/join", &agent.join_request(&token))).await;
        assert_eq!(
            answer.status,
            StatusCode::OK,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        let joined: JoinAnswer = serde_json::from_slice(&answer.body).unwrap();
        agent.position = joined.position;
        agent.joined = Some(joined);
        agent.renew(rig).await;
        agent
    }

    pub fn join_request(&self, token: &str) -> JoinRequest {
        let sealing_key = BASE64.encode(&self.sealing.0.0);
        let proof = self.key.sign(&JoinRequest::proof_message(token, &sealing_key));
        JoinRequest {
            token: token.to_owned(),
            public_key: BASE64.encode(self.key.public_key().as_ref()),
            sealing_key,
            proof: BASE64.encode(proof.as_ref()),
            agent_version: "0.1.0".to_owned(),
            kubernetes_version: "v1.36.3".to_owned(),
            cluster_id: self.cluster_id.clone(),
        }
    }

    pub fn assertion(&self) -> Assertion {
        let joined = self.joined.as_ref().unwrap();
        let mut nonce = [0; 16];
        aws_lc_rs::rand::fill(&mut nonce).unwrap();
        Assertion {
            cluster_uid: joined.cluster.uid.clone(),
            installation: joined.installation.clone(),
            time: Timestamp::now().as_second(),
            system_time: None,
            nonce: hex::encode(nonce),
            agent_version: "0.1.0".to_owned(),
            kubernetes_version: "v1.36.3".to_owned(),
            instance: self.instance.clone(),
            host: self.instance.clone(),
            standby: false,
            position: self.position,
        }
    }

    fn public_key(&self) -> String {
        BASE64.encode(self.key.public_key().as_ref())
    }

    /// The same process with other keys.
    pub fn with_new_keys(&self) -> Self {
        let (cluster_id, instance) = (self.cluster_id.clone(), self.instance.clone());
        Self {
            cluster_id,
            instance,
            joined: self.joined.clone(),
            position: self.position,
            ..Self::new()
        }
    }

    /// Its keys name those of the other.
    pub fn hand_over(&self, next: &Self) -> SignedHandover {
        let joined = self.joined.as_ref().unwrap();
        let handover = Verbatim::from(Handover {
            installation: joined.installation.clone(),
            cluster_uid: joined.cluster.uid.clone(),
            from: self.public_key(),
            public_key: next.public_key(),
            sealing_key: BASE64.encode(&next.sealing.0.0),
        });
        let sign = |key: &Ed25519KeyPair, message: Vec<u8>| BASE64.encode(key.sign(&message).as_ref());
        let signature = sign(&self.key, handover.message());
        SignedHandover {
            signature,
            proof: sign(&next.key, handover.proof_message()),
            handover,
        }
    }

    /// Tells the hub of them.
    pub async fn send_keys(&self, rig: &Rig, handovers: &[SignedHandover]) -> String {
        let cluster_uid = self.joined.as_ref().unwrap().cluster.uid.clone();
        let request = KeysRequest {
            cluster_uid,
            handovers: handovers.to_vec(),
        };
        outcome(&call(rig, post("/agent/v1/keys", &request)).await)
    }

    /// Asks for a token.
    pub async fn try_renew(&mut self, rig: &Rig) -> String {
        let answer = call(rig, post("/agent/v1/token", &self.sign(&self.assertion()))).await;
        if answer.status == StatusCode::OK {
            self.access = serde_json::from_slice::<TokenAnswer>(&answer.body).unwrap().token;
        }
        outcome(&answer)
    }

    /// Another process with the same identity.
    pub fn copy(&self, instance: &str) -> Self {
        Self {
            cluster_id: self.cluster_id.clone(),
            joined: self.joined.clone(),
            instance: instance.to_owned(),
            document: self.document.clone(),
            key: Ed25519KeyPair::from_pkcs8(&self.document).unwrap(),
            ..Self::new()
        }
    }

    pub fn sign(&self, assertion: &Assertion) -> SignedAssertion {
        let assertion = BASE64.encode(serde_json::to_vec(assertion).unwrap());
        let signature = BASE64.encode(self.key.sign(&SignedAssertion::message(&assertion)).as_ref());
        SignedAssertion { assertion, signature }
    }

    pub async fn renew(&mut self, rig: &Rig) {
        let answer = call(rig, post("/agent/v1/token", &self.sign(&self.assertion()))).await;
        assert_eq!(
            answer.status,
            StatusCode::OK,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        self.access = serde_json::from_slice::<TokenAnswer>(&answer.body).unwrap().token;
    }

    pub fn get(&self, path: &str) -> http::request::Builder {
        Request::get(path).header(header::AUTHORIZATION, format!("Bearer {}", self.access))
    }

    pub async fn poll(&self, rig: &Rig, etag: Option<&str>) -> Answer {
        let mut request = self.get("/agent/v1/desired").header(header::ACCEPT_ENCODING, "zstd");
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        call(rig, request.body(Body::empty()).unwrap()).await
    }

    /// The current desired state; its signature, tag and address are right.
    pub async fn desired(&self, rig: &Rig) -> DesiredState {
        let answer = self.poll(rig, None).await;
        assert_eq!(
            answer.status,
            StatusCode::OK,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        let zstd = answer
            .headers
            .get(header::CONTENT_ENCODING)
            .is_some_and(|coding| coding == "zstd");
        let json = if zstd {
            zstd::decode_all(answer.body.as_slice()).unwrap()
        } else {
            answer.body.clone()
        };
        let state: DesiredState = serde_json::from_slice(&json).unwrap();
        let joined = self.joined.as_ref().unwrap();
        let key = joined
            .signing_keys
            .iter()
            .find(|key| key.id == state.statement.key_id)
            .unwrap();
        UnparsedPublicKey::new(&ED25519, BASE64.decode(&key.public_key).unwrap())
            .verify(&state.statement.message(), &BASE64.decode(&state.signature).unwrap())
            .unwrap();
        assert_eq!(state.statement.tag, farwater_api::protocol::tag(&state.entries));
        assert_eq!(state.statement.cluster_uid, joined.cluster.uid);
        assert_eq!(answer.headers[header::ETAG], state.statement.etag().as_str());
        state
    }

    /// One look: what there is to apply, where that is another entry than `last`.
    pub async fn news(&self, rig: &Rig, last: Option<&Entry>) -> Option<Entry> {
        if self.poll(rig, None).await.status != StatusCode::OK {
            return None;
        }
        let state = self.desired(rig).await;
        let entry = state.entries.iter().find(|entry| applied(entry).is_some())?;
        last.is_none_or(|last| last.digest() != entry.digest())
            .then(|| Entry::clone(entry))
    }

    /// Polls until a service's entry is as wanted.
    pub async fn wait_entry(&self, rig: &Rig, uid: &str, wanted: impl Fn(&Entry) -> bool) -> (DesiredState, Entry) {
        let started = tokio::time::Instant::now();
        loop {
            if self.poll(rig, None).await.status == StatusCode::OK {
                let state = self.desired(rig).await;
                if let Some(entry) = state
                    .entries
                    .iter()
                    .find(|entry| entry.service.uid == uid && wanted(entry))
                {
                    let entry = Entry::clone(entry);
                    return (state, entry);
                }
                assert!(
                    started.elapsed() < PATIENCE,
                    "waited in vain for {uid}: {:#?}",
                    state.entries
                );
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain for a desired state");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Polls until there is an answer.
    pub async fn wait_polled(&self, rig: &Rig) {
        let started = tokio::time::Instant::now();
        while self.poll(rig, None).await.status != StatusCode::OK {
            assert!(started.elapsed() < PATIENCE, "waited in vain for a desired state");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Polls until no service is listed.
    pub async fn wait_empty(&self, rig: &Rig) {
        let started = tokio::time::Instant::now();
        while !self.desired(rig).await.entries.is_empty() {
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain for an empty desired state"
            );
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub async fn bundle(&self, rig: &Rig, digest: &Digest) -> Answer {
        call(
            rig,
            self.get(&format!("/agent/v1/bundles/{digest}"))
                .body(Body::empty())
                .unwrap(),
        )
        .await
    }

    pub async fn secrets(&self, rig: &Rig, service: &str, mac: &Digest) -> Answer {
        call(
            rig,
            self.get(&format!("/agent/v1/secrets/{service}/{mac}"))
                .body(Body::empty())
                .unwrap(),
        )
        .await
    }

    pub async fn parameters(&self, rig: &Rig, service: &str, mac: &Digest) -> Answer {
        call(
            rig,
            self.get(&format!("/agent/v1/parameters/{service}/{mac}"))
                .body(Body::empty())
                .unwrap(),
        )
        .await
    }

    /// What was sealed to this agent for a service.
    pub fn open(&self, sealed: &SealedSecrets, service: &str, mac: &Digest) -> Option<Vec<u8>> {
        let joined = self.joined.as_ref().unwrap();
        self.open_as(
            sealed,
            &SealedSecrets::info(&joined.installation, &joined.cluster.uid, service, mac),
        )
    }

    /// The same of its parameters.
    pub fn open_parameters(&self, sealed: &SealedSecrets, service: &str, mac: &Digest) -> Option<Vec<u8>> {
        let joined = self.joined.as_ref().unwrap();
        let (installation, cluster) = (&joined.installation, &joined.cluster.uid);
        self.open_as(
            sealed,
            &SealedSecrets::info_of_parameters(installation, cluster, service, mac),
        )
    }

    fn open_as(&self, sealed: &SealedSecrets, info: &[u8]) -> Option<Vec<u8>> {
        let encapsulated = EncapsulatedSecret(BASE64.decode(&sealed.encapsulated).unwrap());
        let ciphertext = BASE64.decode(&sealed.ciphertext).unwrap();
        DH_KEM_X25519_HKDF_SHA256_AES_256
            .open(&encapsulated, info, &[], &ciphertext, &self.sealing.1)
            .ok()
    }

    pub fn report(&self, services: &[(&str, Option<ServiceReport>)]) -> StatusReport {
        StatusReport {
            sequence: self.sequence + 1,
            base: self.sequence,
            accepted: None,
            agent_version: "0.1.0".to_owned(),
            kubernetes_version: "v1.36.3".to_owned(),
            system_time: None,
            services: services
                .iter()
                .map(|(uid, report)| ((*uid).to_owned(), report.clone()))
                .collect::<BTreeMap<_, _>>(),
            agent: None,
        }
    }

    pub async fn send_report(&self, rig: &Rig, report: &StatusReport) -> Answer {
        let mut request = post("/agent/v1/status", report);
        request.headers_mut().insert(
            header::AUTHORIZATION,
            format!("Bearer {}", self.access).parse().unwrap(),
        );
        call(rig, request).await
    }

    /// Says something of one service.
    pub async fn say(&mut self, rig: &Rig, uid: &str, report: ServiceReport) {
        let report = self.report(&[(uid, Some(report))]);
        let answer = self.send_report(rig, &report).await;
        assert_eq!(
            answer.status,
            StatusCode::OK,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        self.sequence = report.sequence;
    }

    /// Proves that it has seen a state.
    pub async fn show(&mut self, rig: &Rig, accepted: AcceptedStatement) -> Answer {
        let mut report = self.report(&[]);
        report.accepted = Some(accepted);
        let answer = self.send_report(rig, &report).await;
        self.sequence = report.sequence;
        answer
    }
}

pub fn said(entry: &Entry, outcome: Outcome, objects: &[(&str, Health)]) -> ServiceReport {
    let object = |(name, health): &(&str, Health)| ObjectReport {
        object: ObjectRef {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            namespace: "web".to_owned(),
            name: (*name).to_owned(),
        },
        sync: SyncState::Synced,
        health: *health,
        message: String::new(),
        waits_for: None,
    };
    ServiceReport {
        entry: entry.digest(),
        outcome,
        message: String::new(),
        held_prune: None,
        deletion: None,
        hooks: Vec::new(),
        objects: objects.iter().map(object).collect(),
    }
}
