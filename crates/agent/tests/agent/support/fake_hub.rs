//! The hub's side of the agent protocol, with real TLS, tokens and signatures.

pub mod connections;
mod documents;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::signature::{self, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use farwater_api::{
    Digest, HealthRuleSpec,
    change_window::Windows,
    health_rule::{HealthRules, NamedRule},
    objects::ServiceReport,
    parameters::Parameters,
    protocol::{
        Action, Assertion, CONNECTION_HEADER, CONNECTION_PATH, ClusterIdentity, DesiredState, Entry, JoinAnswer,
        JoinRequest, POLL_INTERVAL_HEADER, ProtocolError, REASON_BASE_UNKNOWN, REASON_CLOCK_SKEW,
        REASON_IDENTITY_UNKNOWN, REASON_TOKEN_USED, SUCCESSION_HEADER, Secrets, SignedAssertion, SigningKey, Statement,
        StatusAnswer, StatusReport, TokenAnswer, Verbatim, tag,
    },
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use connections::Connections;
use documents::Documents;

use super::turn;

pub const TOKEN: &str = "one-time-token";
const INSTALLATION: &str = "installation-1";
const CLUSTER: &str = "cluster-uid-1";

#[derive(Clone)]
pub struct FakeHub {
    address: SocketAddr,
    ca: Arc<(String, Digest)>,
    state: Arc<Mutex<State>>,
    pub connections: Connections,
    /// Makes names in shared planes unique to this hub.
    mark: Arc<str>,
}

struct State {
    key: Ed25519KeyPair,
    joined: Option<JoinRequest>,
    token_used: bool,
    epoch: u64,
    generation: u64,
    entries: BTreeMap<String, Entry>,
    /// HealthRules, by name.
    rules: BTreeMap<String, HealthRuleSpec>,
    windows: Option<Windows>,
    bundles: BTreeMap<Digest, Vec<u8>>,
    documents: Documents,
    reports: BTreeMap<String, ServiceReport>,
    /// Every report, in the order of arrival.
    history: Vec<(String, ServiceReport)>,
    sequence: u64,
    accepted: Option<u64>,
    polls: u64,
    tokens: u64,
    /// The hub believes that the agent has not followed its last succession.
    doubts: bool,
    unchanged: u64,
    downloads: u64,
    away: bool,
    turned_away: u64,
    /// The hub is older and doesn't know the agents' paths.
    older: bool,
    clock: i64,
    /// Served instead of the true state.
    forged: Option<DesiredState>,
    /// Downloads wait while this is set.
    slow_bundles: bool,
    /// Seconds between polls that the hub asks for.
    interval: f64,
}

impl FakeHub {
    /// Starts the hub in its own thread, so that tests with different runtimes can share it.
    pub fn start() -> Self {
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let mut authority = rcgen::CertificateParams::new(vec![]).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority
            .distinguished_name
            .push(rcgen::DnType::CommonName, "test authority");
        let authority_cert = authority.self_signed(&authority_key).unwrap();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        let ca = (authority_cert.pem(), Digest::of(authority_cert.der().as_ref()));
        let chain = vec![leaf.der().clone(), authority_cert.der().clone()];
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                chain,
                rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let hub = Self {
            address: listener.local_addr().unwrap(),
            ca: Arc::new(ca),
            state: Arc::new(Mutex::new(State::new())),
            connections: Connections::default(),
            mark: turn::mark().into(),
        };
        let served = hub.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(served.serve(listener, TlsAcceptor::from(Arc::new(tls))));
        });
        hub
    }

    async fn serve(self, listener: std::net::TcpListener, tls: TlsAcceptor) {
        let listener = TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (hub, tls) = (self.clone(), tls.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let hub = hub.clone();
                    async move { Ok::<_, std::convert::Infallible>(hub.answer(request).await) }
                });
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    /// The name of a namespace, or of another cluster-scoped object, that no other test uses.
    pub fn place(&self, name: &str) -> String {
        format!("{name}-{}", self.mark)
    }

    /// An API group that no other test uses.
    pub fn group(&self, name: &str) -> String {
        format!("{name}.{}.example.com", self.mark)
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn ca_pin(&self) -> String {
        self.ca.1.to_string()
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    pub fn add_bundle(&self, digest: Digest, compressed: Vec<u8>) {
        self.with(|s| s.bundles.insert(digest, compressed));
    }

    /// Returns the MAC with which an entry names the Secrets.
    pub fn add_secrets(&self, secrets: &Secrets) -> Digest {
        self.with(|s| s.documents.add_secrets(secrets))
    }

    pub fn add_parameters(&self, parameters: &Parameters) -> Digest {
        self.with(|s| s.documents.add_parameters(parameters))
    }

    pub fn set(&self, entry: Entry) -> Entry {
        self.with(|s| {
            s.entries.insert(entry.service.uid.clone(), entry.clone());
            s.generation += 1;
        });
        entry
    }

    pub fn unlist(&self, uid: &str) {
        self.with(|s| {
            s.entries.remove(uid);
            s.generation += 1;
        });
    }

    pub fn set_rule(&self, name: &str, rule: HealthRuleSpec) {
        self.with(|s| {
            s.rules.insert(name.to_owned(), rule);
            s.generation += 1;
        });
    }

    pub fn set_windows(&self, windows: Option<Windows>) {
        self.with(|s| {
            s.windows = windows;
            s.generation += 1;
        });
    }

    pub fn remove_rule(&self, name: &str) {
        self.with(|s| {
            s.rules.remove(name);
            s.generation += 1;
        });
    }

    pub fn report(&self, uid: &str) -> Option<ServiceReport> {
        self.with(|s| s.reports.get(uid).cloned())
    }

    pub fn history(&self, uid: &str) -> Vec<ServiceReport> {
        self.with(|s| {
            s.history
                .iter()
                .filter(|(u, _)| u == uid)
                .map(|(_, r)| r.clone())
                .collect()
        })
    }

    pub fn polls(&self) -> u64 {
        self.with(|s| s.polls)
    }

    pub fn tokens(&self) -> u64 {
        self.with(|s| s.tokens)
    }

    pub fn doubt(&self, doubts: bool) {
        self.with(|s| s.doubts = doubts);
    }

    pub fn unchanged(&self) -> u64 {
        self.with(|s| s.unchanged)
    }

    pub fn downloads(&self) -> u64 {
        self.with(|s| s.downloads)
    }

    pub fn accepted_generation(&self) -> Option<u64> {
        self.with(|s| s.accepted)
    }

    /// Number of requests that came while the hub was away.
    pub fn turned_away(&self) -> u64 {
        self.with(|s| s.turned_away)
    }

    pub fn go_away(&self, away: bool) {
        self.with(|s| s.away = away);
    }

    pub fn be_older(&self, older: bool) {
        self.with(|s| s.older = older);
    }

    pub fn hold_bundles(&self, hold: bool) {
        self.with(|s| s.slow_bundles = hold);
    }

    pub fn set_clock(&self, seconds: i64) {
        self.with(|s| s.clock = seconds);
    }

    pub fn forget_reports(&self) {
        self.with(|s| s.sequence = 0);
    }

    pub fn poll_every(&self, seconds: f64) {
        self.with(|s| s.interval = seconds);
    }

    pub fn generation(&self) -> u64 {
        self.with(|s| s.generation)
    }

    /// The state that would be served now, for a test to change.
    pub fn desired(&self) -> DesiredState {
        self.with(|s| s.desired())
    }

    pub fn sign(&self, statement: Statement, entries: Vec<Verbatim<Entry>>) -> DesiredState {
        self.with(|s| s.sign(statement, entries))
    }

    pub fn forge(&self, state: Option<DesiredState>) {
        self.with(|s| s.forged = state);
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        // A killed agent may have sent half of a request.
        let Ok(body) = body.collect().await else {
            return refuse(StatusCode::BAD_REQUEST, "Invalid", None);
        };
        let body = body.to_bytes();
        if self.with(|s| s.away) {
            self.with(|s| s.turned_away += 1);
            return refuse(StatusCode::SERVICE_UNAVAILABLE, "Unavailable", None);
        }
        let path = parts.uri.path().to_owned();
        if self.with(|s| s.older) {
            return refuse(StatusCode::NOT_FOUND, "PathUnknown", None);
        }
        if path.starts_with("/agent/v1/bundles/") {
            while self.with(|s| s.slow_bundles) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        let authorization = parts
            .headers
            .get("authorization")
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        let etag = parts.headers.get("if-none-match").and_then(|v| v.to_str().ok());
        self.with(|s| match path.as_str() {
            "/agent/v1/join" => s.join(serde_json::from_slice(&body).unwrap(), &self.ca.0),
            "/agent/v1/token" => s.token(&serde_json::from_slice(&body).unwrap()),
            _ if authorization != "Bearer access" => refuse(StatusCode::UNAUTHORIZED, "TokenExpired", Some(s.now())),
            CONNECTION_PATH => self.connections.open(&parts.headers, upgrade),
            "/agent/v1/desired" => {
                let mut response = s.poll(etag);
                if self.connections.invites() {
                    response
                        .headers_mut()
                        .insert(CONNECTION_HEADER, "0.05".parse().unwrap());
                }
                response
            }
            "/agent/v1/status" => s.status(serde_json::from_slice(&body).unwrap()),
            _ if path.starts_with("/agent/v1/bundles/") => s.bundle(path.rsplit('/').next().unwrap_or_default()),
            _ => s.document(path.trim_start_matches("/agent/v1/")),
        })
    }
}

impl State {
    fn new() -> Self {
        Self {
            key: Ed25519KeyPair::generate().unwrap(),
            joined: None,
            token_used: false,
            epoch: 1,
            generation: 1,
            entries: BTreeMap::new(),
            rules: BTreeMap::new(),
            windows: None,
            bundles: BTreeMap::new(),
            documents: Documents::default(),
            reports: BTreeMap::new(),
            history: Vec::new(),
            sequence: 0,
            accepted: None,
            polls: 0,
            tokens: 0,
            doubts: false,
            unchanged: 0,
            downloads: 0,
            away: false,
            turned_away: 0,
            older: false,
            clock: 0,
            forged: None,
            slow_bundles: false,
            interval: 0.3,
        }
    }

    fn now(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        i64::try_from(now).unwrap() + self.clock
    }

    fn key_id(&self) -> String {
        Digest::of(self.key.public_key().as_ref()).to_hex()[..16].to_owned()
    }

    fn join(&mut self, request: JoinRequest, ca: &str) -> Response<Full<Bytes>> {
        if request.token != TOKEN || self.token_used {
            return refuse(StatusCode::FORBIDDEN, REASON_TOKEN_USED, None);
        }
        let message = JoinRequest::proof_message(&request.token, &request.sealing_key);
        let key = STANDARD.decode(&request.public_key).unwrap();
        let proof = STANDARD.decode(&request.proof).unwrap();
        UnparsedPublicKey::new(&signature::ED25519, key)
            .verify(&message, &proof)
            .expect("the proof is right");
        assert_eq!(STANDARD.decode(&request.sealing_key).unwrap().len(), 32);
        self.token_used = true;
        self.joined = Some(request);
        let answer = JoinAnswer {
            cluster: ClusterIdentity {
                uid: CLUSTER.into(),
                namespace: "team".into(),
                name: "east".into(),
            },
            installation: INSTALLATION.into(),
            signing_keys: vec![SigningKey {
                id: self.key_id(),
                public_key: STANDARD.encode(self.key.public_key().as_ref()),
            }],
            authorities: Vec::new(),
            position: Default::default(),
            ca: ca.to_owned(),
            hub_time: self.now(),
        };
        json(StatusCode::OK, &answer)
    }

    fn token(&mut self, signed: &SignedAssertion) -> Response<Full<Bytes>> {
        let Some(joined) = &self.joined else {
            return refuse(StatusCode::UNAUTHORIZED, REASON_IDENTITY_UNKNOWN, Some(self.now()));
        };
        let key = STANDARD.decode(&joined.public_key).unwrap();
        let signature = STANDARD.decode(&signed.signature).unwrap();
        let message = SignedAssertion::message(&signed.assertion);
        UnparsedPublicKey::new(&signature::ED25519, key)
            .verify(&message, &signature)
            .expect("signed by the agent");
        let assertion: Assertion = serde_json::from_slice(&STANDARD.decode(&signed.assertion).unwrap()).unwrap();
        assert_eq!(
            (assertion.cluster_uid.as_str(), assertion.installation.as_str()),
            (CLUSTER, INSTALLATION)
        );
        if (assertion.time - self.now()).abs() > 120 {
            return refuse(StatusCode::UNAUTHORIZED, REASON_CLOCK_SKEW, Some(self.now()));
        }
        self.tokens += 1;
        json(
            StatusCode::OK,
            &TokenAnswer {
                token: "access".into(),
                expires_in: 600,
                hub_time: self.now(),
            },
        )
    }

    fn desired(&self) -> DesiredState {
        let entries: Vec<Verbatim<Entry>> = self.entries.values().cloned().map(Verbatim::from).collect();
        let rules = self.rules.iter().map(|(name, rule)| NamedRule {
            name: name.clone(),
            rule: rule.clone(),
        });
        let health = (!self.rules.is_empty()).then(|| Verbatim::from(HealthRules { rules: rules.collect() }));
        let windows = self.windows.clone().map(Verbatim::from);
        let statement = Statement {
            installation: INSTALLATION.into(),
            cluster_uid: CLUSTER.into(),
            epoch: self.epoch,
            generation: self.generation,
            tag: tag(&entries),
            agent: None,
            health: health.as_ref().map(Verbatim::digest),
            windows: windows.as_ref().map(Verbatim::digest),
            key_id: self.key_id(),
        };
        DesiredState {
            health,
            windows,
            ..self.sign(statement, entries)
        }
    }

    fn sign(&self, statement: Statement, entries: Vec<Verbatim<Entry>>) -> DesiredState {
        let signature = STANDARD.encode(self.key.sign(&statement.message()).as_ref());
        DesiredState {
            statement: statement.into(),
            signature,
            entries,
            agent: None,
            health: None,
            windows: None,
        }
    }

    fn poll(&mut self, etag: Option<&str>) -> Response<Full<Bytes>> {
        self.polls += 1;
        let desired = self.forged.clone().unwrap_or_else(|| self.desired());
        let mut response = if etag == Some(desired.statement.etag().as_str()) {
            self.unchanged += 1;
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            let mut response = json(StatusCode::OK, &desired);
            let compressed = zstd::bulk::compress(&serde_json::to_vec(&desired).unwrap(), 3).unwrap();
            *response.body_mut() = Full::new(compressed.into());
            response
                .headers_mut()
                .insert("content-encoding", "zstd".parse().unwrap());
            response
        };
        if self.doubts {
            response.headers_mut().insert(SUCCESSION_HEADER, "0".parse().unwrap());
        }
        response
            .headers_mut()
            .insert(POLL_INTERVAL_HEADER, self.interval.to_string().parse().unwrap());
        response
    }

    fn bundle(&mut self, digest: &str) -> Response<Full<Bytes>> {
        let digest: Digest = digest.parse().unwrap();
        let wanted = self
            .entries
            .values()
            .any(|e| matches!(&e.action, Action::Apply(d) if d.bundle == digest));
        match self.bundles.get(&digest).filter(|_| wanted) {
            Some(bytes) => {
                self.downloads += 1;
                Response::new(Full::new(bytes.clone().into()))
            }
            None => refuse(StatusCode::FORBIDDEN, "NotDesired", None),
        }
    }

    fn document(&self, path: &str) -> Response<Full<Bytes>> {
        let key = self
            .joined
            .as_ref()
            .map(|joined| joined.sealing_key.as_str())
            .unwrap_or_default();
        match self.documents.seal(path, &self.entries, key) {
            Some(sealed) => json(StatusCode::OK, &sealed),
            None => refuse(StatusCode::FORBIDDEN, "NotDesired", None),
        }
    }

    fn status(&mut self, report: StatusReport) -> Response<Full<Bytes>> {
        if report.base != 0 && report.base != self.sequence {
            return refuse(StatusCode::CONFLICT, REASON_BASE_UNKNOWN, None);
        }
        if report.base == 0 {
            self.reports.clear();
        }
        for (uid, service) in report.services {
            match service {
                Some(service) => {
                    self.history.push((uid.clone(), service.clone()));
                    self.reports.insert(uid, service);
                }
                None => {
                    self.reports.remove(&uid);
                }
            }
        }
        self.sequence = report.sequence;
        self.accepted = report.accepted.map(|a| a.statement.generation);
        json(
            StatusCode::OK,
            &StatusAnswer {
                sequence: report.sequence,
            },
        )
    }
}

fn json(status: StatusCode, body: &impl serde::Serialize) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(serde_json::to_vec(body).unwrap().into()));
    *response.status_mut() = status;
    response
}

pub(super) fn refuse(status: StatusCode, reason: &str, hub_time: Option<i64>) -> Response<Full<Bytes>> {
    json(
        status,
        &ProtocolError {
            reason: reason.into(),
            message: "refused by the fake hub".into(),
            hub_time,
        },
    )
}
