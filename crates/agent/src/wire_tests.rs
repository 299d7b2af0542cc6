//! This agent reads what hubs of every kept version answered, and what one of a newer version might answer.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use farwater_api::{
    Digest, canonical_json,
    protocol::{
        Action, AgentSettings, DesiredState, Entry, JoinAnswer, JoinRequest, POLL_INTERVAL_HEADER, PROTOCOL_HEADER,
        ProtocolError, REASON_NOT_DESIRED, SealedSecrets, Secrets, SignedAssertion, SigningKey, Skew, Statement,
        StatusAnswer, StatusReport, TokenAnswer,
    },
};
use farwater_bundle::{Archive, Limits};
use farwater_testkit::wire::{
    self, Answer, Exchange, Trace, common_members, understand, with_unknown_members, with_unknown_words,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::wire::{Caller, HubClient, HubError, Identity, JoinToken, Presence, Trust, join_request};

const KUBERNETES: &str = "v1.36.3";

struct Asked {
    path: String,
    headers: Vec<String>,
    body: Value,
}

#[derive(Default)]
struct Script {
    token: Option<Answer>,
    answer: Option<Answer>,
    asked: Option<Asked>,
}

/// Answers over TLS with what was recorded: a token request always, and any other one with the current answer.
#[derive(Clone)]
struct Recorded {
    url: String,
    pin: Digest,
    script: Arc<Mutex<Script>>,
}

impl Recorded {
    async fn start(trace: &Trace) -> Self {
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = authority.self_signed(&authority_key).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf
            .signed_by(&key, &rcgen::Issuer::new(authority, authority_key))
            .unwrap();
        let chain = vec![leaf.der().clone(), certificate.der().clone()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                chain,
                rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let token = Some(trace.first("token", 200).unwrap().answer.clone());
        let server = Self {
            url: format!("https://{}", listener.local_addr().unwrap()),
            pin: Digest::of(certificate.der().as_ref()),
            script: Arc::new(Mutex::new(Script {
                token,
                ..Script::default()
            })),
        };
        tokio::spawn(server.clone().serve(listener, TlsAcceptor::from(Arc::new(tls))));
        server
    }

    async fn serve(self, listener: TcpListener, tls: TlsAcceptor) {
        while let Ok((stream, _)) = listener.accept().await {
            let (server, tls) = (self.clone(), tls.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let server = server.clone();
                    async move { Ok::<_, Infallible>(server.answer(request).await) }
                });
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let path = parts.uri.path().to_owned();
        let mut script = self.script.lock().unwrap();
        let is_token = path == "/agent/v1/token";
        let asked = Asked {
            path,
            headers: parts.headers.keys().map(|name| name.as_str().to_owned()).collect(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let answer = match (is_token, &script.token) {
            (true, Some(token)) => token.clone(),
            _ => script.answer.clone().expect("an answer"),
        };
        script.asked = Some(asked);
        respond(&answer)
    }

    /// A client for one exchange, whose recorded answer is given next.
    fn client(&self, exchange: &Exchange) -> HubClient {
        let mut script = self.script.lock().unwrap();
        script.answer = Some(exchange.answer.clone());
        if exchange.kind() == "token" {
            script.token = None;
        } else if script.token.is_none() {
            panic!("tokens are played first");
        }
        HubClient::new(&self.url, Trust::pinned(self.pin)).unwrap()
    }

    fn answer_tokens(&self, answer: &Answer) {
        self.script.lock().unwrap().token = Some(answer.clone());
    }

    fn asked(&self) -> Asked {
        self.script.lock().unwrap().asked.take().expect("a request")
    }
}

/// The answer in the form in which it was sent.
fn respond(answer: &Answer) -> Response<Full<Bytes>> {
    let mut bytes = answer.body.as_ref().map(wire::Body::bytes).unwrap_or_default();
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        if name == "content-encoding" {
            assert_eq!(value, "zstd");
            bytes = zstd::bulk::compress(&bytes, 3).unwrap();
        }
        response = response.header(name, value);
    }
    response.body(Full::new(bytes.into())).unwrap()
}

/// Checks that this agent sends every member that an older one sent.
#[track_caller]
fn assert_says_all(said: &Value, recorded: Value, what: &str) {
    let missing: Vec<String> = common_members(&[recorded])
        .difference(&common_members(std::slice::from_ref(said)))
        .cloned()
        .collect();
    assert!(
        missing.is_empty(),
        "{what}: the agent does not say {missing:?} any more, which that hub may need"
    );
}

fn assertion(signed: &Value) -> Value {
    let text = signed["assertion"].as_str().unwrap();
    serde_json::from_slice(&STANDARD.decode(text).unwrap()).unwrap()
}

/// The hub of one recorded version, and an agent that joined it.
struct Replay<'a> {
    trace: &'a Trace,
    server: Recorded,
    identity: Identity,
    accepted: Option<Statement>,
}

impl<'a> Replay<'a> {
    async fn start(trace: &'a Trace) -> Self {
        // An upgraded agent finds the state directory of the older version.
        let identity = serde_json::from_value(trace.identity.clone()).unwrap();
        Self {
            trace,
            server: Recorded::start(trace).await,
            identity,
            accepted: None,
        }
    }

    async fn play(&mut self, exchange: &Exchange) {
        let client = self.server.client(exchange);
        let what = format!("{} of {}", exchange.name, self.trace.version);
        let presence = Presence::of("here", false).unwrap();
        let who = Caller {
            identity: &self.identity,
            kubernetes_version: KUBERNETES,
            presence: &presence,
        };
        let parts: Vec<&str> = exchange.request.path.split('/').collect();
        let outcome = match (exchange.kind(), &parts[..]) {
            ("join", _) => self.join(&client, exchange).await,
            ("token", _) => client.authenticate(&who).await,
            ("bundles", [.., digest]) => self.download(&client, &who, digest).await,
            ("secrets", [.., service, mac]) => {
                let mac = mac.parse().unwrap();
                client
                    .secrets(&who, service, mac)
                    .await
                    .map(|sealed| self.open(&sealed, service, mac))
            }
            ("status", _) => {
                let report: StatusReport = serde_json::from_value(exchange.asked()).unwrap();
                let answer = client.report(&who, &report).await;
                answer.map(|answer| assert_eq!(answer.sequence, report.sequence, "{what}"))
            }
            _ => {
                let etag = exchange.request.headers.get("if-none-match");
                client.poll(&who, etag.map(String::as_str)).await.map(|poll| {
                    assert!(poll.interval.is_some(), "{what}: {POLL_INTERVAL_HEADER} is not read");
                    self.polled(poll.body, exchange, &what);
                })
            }
        };
        let asked = self.server.asked();
        if exchange.kind() == "token" {
            self.server
                .answer_tokens(&self.trace.first("token", 200).unwrap().answer);
        }
        match exchange.answer.status {
            200 | 304 => outcome.unwrap_or_else(|error| panic!("{what}: {}", error.text())),
            _ => check_refusal(&outcome.expect_err(&what), exchange, &what),
        }
        assert_eq!(
            client.skew(),
            Skew::between(farwater_api::protocol::PROTOCOL, self.trace.protocol),
            "{what}"
        );
        self.check_asked(&asked, exchange, &what);
    }

    /// Checks that the older hub would understand this agent's request.
    fn check_asked(&self, asked: &Asked, exchange: &Exchange, what: &str) {
        if !exchange.request.path.starts_with("/agent/v1/") {
            return;
        }
        assert_eq!(asked.path, exchange.request.path, "{what}");
        for name in exchange.request.headers.keys() {
            assert!(
                asked.headers.contains(name),
                "{what}: the agent does not send {name} any more"
            );
        }
        match exchange.kind() {
            "token" => {
                assert_says_all(&asked.body, exchange.asked(), what);
                assert_says_all(&assertion(&asked.body), assertion(&exchange.asked()), what);
            }
            _ => assert_says_all(&asked.body, exchange.asked(), what),
        }
    }

    async fn join(&self, client: &HubClient, exchange: &Exchange) -> Result<(), HubError> {
        let recorded: JoinRequest = serde_json::from_value(exchange.asked()).unwrap();
        let token: JoinToken = recorded.token.parse().unwrap();
        let request = join_request(&token, &self.identity.keys, KUBERNETES, &recorded.cluster_id).unwrap();
        let answer = client.join(&request).await?;
        let keys = self.identity.keys.clone();
        let joined = Identity::new(
            &self.identity.hub,
            self.identity.ca_pin,
            &recorded.cluster_id,
            keys,
            answer,
        );
        let as_json = |identity: &Identity| serde_json::to_value(identity).unwrap();
        assert_eq!(
            as_json(&joined),
            as_json(&self.identity),
            "it remembers what the older version did"
        );
        Ok(())
    }

    /// Checks that the state is verified by the recorded hub's key, and that all of it is read.
    fn polled(&mut self, body: Option<Bytes>, exchange: &Exchange, what: &str) {
        let Some(body) = body else {
            assert_eq!(exchange.answer.status, 304);
            return;
        };
        let state: DesiredState = serde_json::from_slice(&body).unwrap();
        self.identity
            .verify(&state, self.accepted.as_ref())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(exchange.answer.headers["etag"], state.statement.etag(), "{what}");
        check_read(&exchange.answered(), what);
        for entry in &state.entries {
            if let Action::Unreadable(unreadable) = &entry.action {
                panic!("{what}: {}", unreadable.explain(crate::VERSION));
            }
        }
        self.accepted = Some(Statement::clone(&state.statement));
    }

    async fn download(&self, client: &HubClient, who: &Caller<'_>, digest: &str) -> Result<(), HubError> {
        let digest: Digest = digest.parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        client.download(who, digest, &path, 1 << 20).await?;
        let named = self
            .trace
            .entries()
            .find(|entry| entry["action"]["bundle"] == digest.to_string())
            .unwrap();
        let limits = Limits {
            total_bytes: named["action"]["bundleBytes"].as_u64().unwrap(),
            ..Limits::default()
        };
        Archive::open(&std::fs::read(&path).unwrap(), &digest, &limits).unwrap();
        Ok(())
    }

    fn open(&self, sealed: &SealedSecrets, service: &str, mac: Digest) {
        let info = SealedSecrets::info(&self.identity.installation, &self.identity.cluster.uid, service, &mac);
        let opened = self
            .identity
            .keys
            .open(sealed, &info)
            .unwrap()
            .expect("sealed to the recorded key");
        let secrets: Value = serde_json::from_slice(&opened.plain).unwrap();
        assert!(!understand::<Secrets>(&secrets).unwrap().0.is_empty());
        let names: Vec<String> = secrets
            .as_object()
            .unwrap()
            .keys()
            .map(|name| format!("/{name}/data"))
            .collect();
        let maps: Vec<&str> = names.iter().map(String::as_str).chain([""]).collect();
        for (at, newer) in with_unknown_members(&secrets, &maps) {
            let read: Secrets = serde_json::from_value(newer).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(serde_json::to_value(read).unwrap(), secrets, "{at}");
        }
    }
}

fn check_refusal(error: &HubError, exchange: &Exchange, what: &str) {
    let recorded: ProtocolError = understand(&exchange.answered()).unwrap_or_else(|error| panic!("{what}: {error:#}"));
    match exchange.answer.status {
        404 => assert!(matches!(error, HubError::PathUnknown { .. }), "{what}: {error}"),
        409 => assert!(error.wants_everything(), "{what}: {error}"),
        status => {
            assert!(error.is_reason(&recorded.reason), "{what}: {error}");
            assert_eq!(
                error.blames_content(),
                status == StatusCode::BAD_REQUEST,
                "{what}: {error}"
            );
        }
    }
    if exchange.kind() == "bundles" {
        assert!(error.is_reason(REASON_NOT_DESIRED));
    }
}

/// Checks that all members of a desired state are read. An error names the one that is not.
fn check_read(state: &Value, what: &str) {
    let read =
        |part: &str, found: anyhow::Result<()>| found.unwrap_or_else(|error| panic!("{what}, {part}: {error:#}"));
    read("statement", understand::<Statement>(&state["statement"]).map(drop));
    for entry in state["entries"].as_array().unwrap() {
        read("entry", understand::<Entry>(entry).map(drop));
    }
    if let Some(settings) = state.get("agent") {
        read("agent", understand::<AgentSettings>(settings).map(drop));
    }
}

#[tokio::test]
async fn hubs_of_every_kept_version_are_understood() {
    for trace in wire::kept().unwrap() {
        let mut replay = Replay::start(&trace).await;
        for exchange in &trace.exchanges {
            replay.play(exchange).await;
        }
        assert!(
            replay.accepted.is_some_and(|statement| statement.generation > 1),
            "{}",
            trace.version
        );
        // The stored state of the older version is valid for this one.
        check_read(&trace.state, &format!("the stored state of {}", trace.version));
        let stored: DesiredState = serde_json::from_value(trace.state.clone()).unwrap();
        assert_eq!(replay.identity.verify(&stored, None), Ok(()), "{}", trace.version);
    }
}

#[test]
fn everything_that_hubs_of_kept_versions_answer_is_read() {
    fn read<T: DeserializeOwned + Serialize>(exchange: &Exchange, version: &str) {
        let answer = exchange.answered();
        let what = format!("{} of {version}", exchange.name);
        understand::<T>(&answer).unwrap_or_else(|error| panic!("{what}: {error:#}"));
        // The same answer with members that a newer hub might add.
        for (at, newer) in with_unknown_members(&answer, &[]) {
            let read: T = serde_json::from_value(newer).unwrap_or_else(|error| panic!("{what}, {at}: {error}"));
            assert_eq!(serde_json::to_value(read).unwrap(), answer, "{what}, {at}");
        }
    }
    for trace in wire::kept().unwrap() {
        let mut statuses = 0;
        for exchange in &trace.exchanges {
            match (exchange.kind(), exchange.answer.status) {
                ("join", 200) => read::<JoinAnswer>(exchange, &trace.version),
                ("token", 200) => read::<TokenAnswer>(exchange, &trace.version),
                ("secrets", 200) => read::<SealedSecrets>(exchange, &trace.version),
                ("status", 200) => {
                    statuses += 1;
                    read::<StatusAnswer>(exchange, &trace.version);
                }
                (_, 400..) => read::<ProtocolError>(exchange, &trace.version),
                _ => {}
            }
            assert!(
                exchange.answer.headers.contains_key(PROTOCOL_HEADER),
                "{} of {}",
                exchange.name,
                trace.version
            );
        }
        assert!(statuses > 1, "{}", trace.version);
    }
}

/// A hub of a newer version, which signs its states.
struct NewerHub {
    key: Ed25519KeyPair,
    identity: Identity,
}

impl NewerHub {
    fn of(trace: &Trace) -> Self {
        let key = Ed25519KeyPair::generate().unwrap();
        let mut identity: Identity = serde_json::from_value(trace.identity.clone()).unwrap();
        for known in &mut identity.signing_keys {
            *known = SigningKey {
                public_key: STANDARD.encode(key.public_key().as_ref()),
                ..known.clone()
            };
        }
        Self { key, identity }
    }

    /// Signs as the protocol requires: digests of the JSON as it is, with unknown members.
    fn sign(&self, state: &mut Value) {
        let entries = state["entries"].as_array().unwrap();
        let line = |entry: &Value| {
            format!(
                "{} {}\n",
                entry["service"]["uid"].as_str().unwrap(),
                Digest::of_json(entry)
            )
        };
        let mut lines: Vec<String> = entries.iter().map(line).collect();
        lines.sort_unstable();
        state["statement"]["tag"] = Digest::of(lines.concat()).to_string().into();
        if let Some(settings) = state.get("agent") {
            state["statement"]["agent"] = Digest::of_json(settings).to_string().into();
        }
        let message = [
            b"farwater-desired-v1\n".as_slice(),
            &canonical_json(&state["statement"]),
        ]
        .concat();
        state["signature"] = STANDARD.encode(self.key.sign(&message).as_ref()).into();
    }

    fn send(&self, mut state: Value, at: &str) -> DesiredState {
        self.sign(&mut state);
        let read: DesiredState = serde_json::from_value(state).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(self.identity.verify(&read, None), Ok(()), "{at}");
        // The state is kept as it came, because a later version understands more of it.
        let kept: DesiredState = serde_json::from_value(serde_json::to_value(&read).unwrap()).unwrap();
        assert_eq!(self.identity.verify(&kept, None), Ok(()), "{at}");
        read
    }
}

#[test]
fn what_a_newer_hub_adds_is_ignored_and_what_it_asks_for_is_held() {
    let traces = wire::kept().unwrap();
    let trace = traces.last().unwrap();
    let hub = NewerHub::of(trace);
    for state in trace.desired() {
        let plain = hub.send(state.clone(), "as it was");
        for (at, newer) in with_unknown_members(&state, &[]) {
            let read = hub.send(newer, &at);
            assert_eq!(read.entries.len(), plain.entries.len());
            for (entry, before) in read.entries.iter().zip(&plain.entries) {
                assert_eq!(Entry::clone(entry), Entry::clone(before), "{at}");
            }
            let settings = |state: &DesiredState| state.agent.clone().map(|settings| settings.into_value());
            assert_eq!(settings(&read), settings(&plain), "{at}");
        }
        for (at, newer) in with_unknown_words(&state) {
            let read = hub.send(newer, &at);
            let differs: Vec<_> = read
                .entries
                .iter()
                .zip(&plain.entries)
                .filter(|(entry, before)| entry != before)
                .collect();
            assert_eq!(differs.len(), 1, "{at}");
            let Action::Unreadable(held) = &differs[0].0.action else {
                panic!("{at}: {:?}", differs[0].0)
            };
            assert!(held.explain("0.1.0").contains("upgrade the agent"), "{at}");
        }
    }
    let mut identity = trace.identity.clone();
    identity[wire::UNKNOWN_MEMBER] = json!(true);
    assert!(
        serde_json::from_value::<Identity>(identity).is_ok(),
        "an agent that went back finds its identity"
    );
    assert!(serde_json::from_value::<SignedAssertion>(json!({})).is_err());
}
