//! Requests to the hub.

mod connect;
mod error;
mod plans;

use error::unreachable;
use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use farwater_api::{
    Digest,
    protocol::{
        CONNECTION_HEADER, JoinAnswer, JoinRequest, MAX_DESIRED_BYTES, MAX_SECRET_BYTES, PLAN_HEADER,
        POLL_INTERVAL_HEADER, PROTOCOL, PROTOCOL_HEADER, ProtocolError, REASON_CLOCK_SKEW, RENEW_KEYS_HEADER,
        SUCCESSION_HEADER, SealedSecrets, Skew, StatusAnswer, StatusReport, TokenAnswer, parse_protocol,
    },
    succession::{KeysAnswer, KeysRequest, SignedSuccession, Successions},
};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::{Instant, timeout};

use crate::{
    clock::Clock,
    identity::{Identity, Keys, Presence},
    proxy::{Connector, Proxy},
    sync::lock,
    tls::{self, Pins, Trust},
};

pub use connect::Socket;
pub use error::{HubError, chain};

/// Limit for the first byte of an answer, and between two parts: a slower hub counts as away.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest answer other than desired states and bundles, which are larger.
const MAX_ANSWER: usize = 64 << 10;
/// Base64 adds a third, and there are some more fields.
const MAX_SEALED: usize = MAX_SECRET_BYTES * 3 / 2;

/// The answer to a poll.
#[derive(Debug)]
pub struct Poll {
    /// Interval until the next poll, as the hub wants it.
    pub interval: Option<Duration>,
    /// None: nothing new.
    pub body: Option<Bytes>,
    /// Number of the hub's last succession, if the hub believes that this agent has not followed it.
    pub succession: Option<u64>,
    /// The hub wants this agent to make new keys.
    pub renew_keys: bool,
    /// The hub invites to a connection, to be opened within this time.
    pub invited: Option<Duration>,
    /// A plan is requested.
    pub plan: bool,
}

struct AccessToken {
    text: String,
    /// Used until four fifths of its lifetime are over.
    refresh_at: Instant,
}

#[derive(Default)]
struct TokenSlot {
    current: Option<AccessToken>,
    /// Number of times that the token was forgotten. A token that was requested before the last time isn't used.
    forgotten: u64,
}

/// A client of the hub. Before the join it can only join.
pub struct HubClient {
    base: String,
    http: Client<HttpsConnector<Connector>, Full<Bytes>>,
    /// For requests that switch protocols, which HTTP/2 can't.
    switching: Client<HttpsConnector<Connector>, Full<Bytes>>,
    pub clock: Arc<Clock>,
    pins: Pins,
    token: Mutex<TokenSlot>,
    /// Held while a token is requested, so that an older answer can't replace a newer one.
    asking: tokio::sync::Mutex<()>,
    /// The hub's protocol version, as last announced. 0: unknown.
    protocol: AtomicU32,
}

impl HubClient {
    /// Uses the proxy that the environment names for this URL, if any.
    pub fn new(url: &str, trust: Trust) -> Result<Self, HubError> {
        let base = url.trim_end_matches('/').to_owned();
        let uri = base
            .parse::<http::Uri>()
            .ok()
            .filter(is_hub)
            .ok_or_else(|| HubError::Url { url: url.to_owned() })?;
        let clock = Arc::new(Clock::default());
        let proxy = Proxy::of_environment(&uri, |name| std::env::var(name).ok())?;
        let proxy = proxy
            .map(|proxy| proxy_tls(&proxy, &trust, &clock).map(|tls| (proxy, tls)))
            .transpose()?;
        if let Some((proxy, _)) = &proxy {
            tracing::info!(%proxy, "the hub is reached through a proxy");
        }
        let pins = trust.pins.clone();
        let tls = tls::client_config(trust, clock.clone()).map_err(HubError::Tls)?;
        let (way, builder) = (Connector::new(proxy), || {
            HttpsConnectorBuilder::new().with_tls_config(tls.clone())
        });
        let connector = builder().https_only().enable_all_versions().wrap_connector(way.clone());
        let http = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .build(connector);
        let connector = builder().https_only().enable_http1().wrap_connector(way);
        let switching = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector);
        let (token, asking, protocol) = (Mutex::default(), tokio::sync::Mutex::default(), AtomicU32::new(0));
        Ok(Self {
            base,
            http,
            switching,
            clock,
            pins,
            token,
            asking,
            protocol,
        })
    }

    /// The hub's protocol version, as last announced. 0: unknown.
    pub fn protocol(&self) -> u32 {
        self.protocol.load(Ordering::Relaxed)
    }

    /// Whether the versions of the hub and this agent fit, as far as the hub has announced its own.
    pub fn skew(&self) -> Skew {
        match self.protocol() {
            0 => Skew::default(),
            hub => Skew::between(PROTOCOL, hub),
        }
    }

    fn read<T: serde::de::DeserializeOwned>(&self, what: &'static str, body: &[u8]) -> Result<T, HubError> {
        serde_json::from_slice(body).map_err(|source| match self.skew().advice() {
            Some(advice) => HubError::NotTogether { what, advice, source },
            None => HubError::Malformed { what, source },
        })
    }

    pub async fn join(&self, request: &JoinRequest) -> Result<JoinAnswer, HubError> {
        let what = "join";
        let answer: JoinAnswer = self.post(what, "/agent/v1/join", None, request).await?;
        self.clock.correct(answer.hub_time);
        Ok(answer)
    }

    /// Gets the desired state, unless it is still the one with `etag`.
    pub async fn poll(&self, who: &Caller<'_>, etag: Option<&str>) -> Result<Poll, HubError> {
        let what = "poll";
        let response = self
            .authorized(who, what, |token| {
                let mut request = self
                    .request(Method::GET, "/agent/v1/desired", Some(token))
                    .header(header::ACCEPT_ENCODING, "zstd");
                if let Some(etag) = etag {
                    request = request.header(header::IF_NONE_MATCH, etag);
                }
                request.body(Full::default())
            })
            .await?;

        // Limited to a range that keeps the agent useful, whatever the headers say.
        let interval = read_seconds(&response, POLL_INTERVAL_HEADER, 0.2);
        let invited = read_seconds(&response, CONNECTION_HEADER, 0.0);
        let succession = response
            .headers()
            .get(SUCCESSION_HEADER)
            .and_then(|v| v.to_str().ok()?.parse().ok());
        let renew_keys = response.headers().contains_key(RENEW_KEYS_HEADER);
        let plan = response.headers().contains_key(PLAN_HEADER);

        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Poll {
                interval,
                body: None,
                succession,
                renew_keys,
                invited,
                plan,
            });
        }
        let compressed = response
            .headers()
            .get(header::CONTENT_ENCODING)
            .is_some_and(|coding| coding == "zstd");
        let mut body = read_body(what, response, MAX_DESIRED_BYTES).await?;
        if compressed {
            // Limits the allocation: a body that expands further is refused.
            body = zstd::bulk::decompress(&body, MAX_DESIRED_BYTES)
                .map_err(|_| HubError::TooLarge {
                    what,
                    limit: MAX_DESIRED_BYTES,
                })?
                .into();
        }
        Ok(Poll {
            interval,
            body: Some(body),
            succession,
            renew_keys,
            invited,
            plan,
        })
    }

    /// The hub's successions after a number.
    pub async fn successions(&self, who: &Caller<'_>, after: u64) -> Result<Vec<SignedSuccession>, HubError> {
        let what = "get the hub's successions";
        let target = format!("/agent/v1/successions/{after}");
        let response = self
            .authorized(who, what, |token| {
                self.request(Method::GET, &target, Some(token)).body(Full::default())
            })
            .await?;
        let body = read_body(what, response, MAX_ANSWER).await?;
        let answer: Successions = self.read(what, &body)?;
        Ok(answer.successions)
    }

    /// Announces new keys to the hub.
    pub async fn hand_over(&self, request: &KeysRequest) -> Result<(), HubError> {
        let answer: KeysAnswer = self
            .post("hand over to new keys", "/agent/v1/keys", None, request)
            .await?;
        self.clock.correct(answer.hub_time);
        Ok(())
    }

    /// Pins of authorities that the hub's certificate may have, besides those of a file.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Forgets the token, so that the next request gets a new one.
    pub fn forget_token(&self) {
        let mut slot = lock(&self.token);
        slot.current = None;
        slot.forgotten += 1;
    }

    pub async fn report(&self, who: &Caller<'_>, report: &StatusReport) -> Result<StatusAnswer, HubError> {
        let what = "report";
        let body = Bytes::from(serde_json::to_vec(report).map_err(|source| HubError::Malformed { what, source })?);
        let response = self
            .authorized(who, what, |token| {
                self.request(Method::POST, "/agent/v1/status", Some(token))
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(body.clone()))
            })
            .await?;
        let body = read_body(what, response, MAX_ANSWER).await?;
        self.read(what, &body)
    }

    /// Gets a service's Secrets, sealed to this agent.
    pub async fn secrets(&self, who: &Caller<'_>, service: &str, mac: Digest) -> Result<SealedSecrets, HubError> {
        self.sealed(who, "get Secrets", &format!("/agent/v1/secrets/{service}/{mac}"))
            .await
    }

    /// Gets a service's parameters, sealed to this agent.
    pub async fn parameters(&self, who: &Caller<'_>, service: &str, mac: Digest) -> Result<SealedSecrets, HubError> {
        self.sealed(who, "get parameters", &format!("/agent/v1/parameters/{service}/{mac}"))
            .await
    }

    async fn sealed(&self, who: &Caller<'_>, what: &'static str, target: &str) -> Result<SealedSecrets, HubError> {
        let response = self
            .authorized(who, what, |token| {
                self.request(Method::GET, target, Some(token)).body(Full::default())
            })
            .await?;
        let body = read_body(what, response, MAX_SEALED).await?;
        self.read(what, &body)
    }

    /// Downloads a bundle, as stored (zstd), into `path`. At most `limit` bytes.
    pub async fn download(&self, who: &Caller<'_>, bundle: Digest, path: &Path, limit: usize) -> Result<(), HubError> {
        use tokio::io::AsyncWriteExt as _;
        let what = "download bundle";
        let target = format!("/agent/v1/bundles/{bundle}");
        let response = self
            .authorized(who, what, |token| {
                self.request(Method::GET, &target, Some(token)).body(Full::default())
            })
            .await?;
        // A bundle may contain Secrets, so only the owner may read the file.
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(path).await.map_err(HubError::Write)?;
        let mut body = response.into_body();
        let mut written = 0usize;
        loop {
            let frame = timeout(PATIENCE, body.frame())
                .await
                .map_err(|e| unreachable(what, e))?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|e| unreachable(what, e))?.into_data() else {
                continue;
            };
            written += data.len();
            if written > limit {
                return Err(HubError::TooLarge { what, limit });
            }
            file.write_all(&data).await.map_err(HubError::Write)?;
        }
        // `sync_all` alone would hide an error of the last write.
        file.flush().await.map_err(HubError::Write)?;
        file.sync_all().await.map_err(HubError::Write)
    }

    /// Whether the hub knows this agent: it has an access token, or gets one.
    pub async fn authenticate(&self, who: &Caller<'_>) -> Result<(), HubError> {
        self.access_token(who).await.map(drop)
    }

    /// Sends a request with the access token. If it is refused, the token is replaced once.
    async fn authorized(
        &self,
        who: &Caller<'_>,
        what: &'static str,
        build: impl Fn(&str) -> http::Result<Request<Full<Bytes>>>,
    ) -> Result<Response<Incoming>, HubError> {
        let mut fresh = false;
        loop {
            let token = self.access_token(who).await?;
            let request = build(&token).map_err(|e| unreachable(what, e))?;
            match self.send(what, request).await {
                Err(HubError::Refused {
                    status: StatusCode::UNAUTHORIZED,
                    ..
                }) if !fresh => {
                    lock(&self.token).current.take_if(|held| held.text == token);
                    fresh = true;
                }
                other => return other,
            }
        }
    }

    async fn access_token(&self, who: &Caller<'_>) -> Result<String, HubError> {
        if let Some(token) = self.held_token() {
            return Ok(token);
        }
        let _turn = self.asking.lock().await;
        match self.held_token() {
            Some(token) => Ok(token),
            None => self.ask_in_turn(who, &who.identity.keys).await,
        }
    }

    fn held_token(&self) -> Option<String> {
        let slot = lock(&self.token);
        slot.current
            .as_ref()
            .filter(|token| token.refresh_at > Instant::now())
            .map(|token| token.text.clone())
    }

    /// Proves possession of these keys, and uses the returned token from then on.
    pub async fn ask_token(&self, who: &Caller<'_>, keys: &Keys) -> Result<String, HubError> {
        let _turn = self.asking.lock().await;
        self.ask_in_turn(who, keys).await
    }

    async fn ask_in_turn(&self, who: &Caller<'_>, keys: &Keys) -> Result<String, HubError> {
        let what = "get access token";
        let forgotten = lock(&self.token).forgotten;
        let mut corrected = false;
        let answer: TokenAnswer = loop {
            let assertion = who
                .identity
                .assertion(keys, self.clock.now(), who.kubernetes_version, who.presence)?;
            match self.post(what, "/agent/v1/token", None, &assertion).await {
                // `send` has read the hub's time from the refusal, so retry once with the corrected clock.
                Err(e) if !corrected && e.is_reason(REASON_CLOCK_SKEW) => corrected = true,
                other => break other?,
            }
        };
        self.clock.correct(answer.hub_time);
        let life = Duration::from_secs(answer.expires_in.clamp(10, 24 * 3600));
        let mut slot = lock(&self.token);
        if slot.forgotten == forgotten {
            slot.current = Some(AccessToken {
                text: answer.token.clone(),
                refresh_at: Instant::now() + life * 4 / 5,
            });
        }
        Ok(answer.token)
    }

    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        what: &'static str,
        path: &str,
        token: Option<&str>,
        body: &impl serde::Serialize,
    ) -> Result<T, HubError> {
        let body = serde_json::to_vec(body).map_err(|source| HubError::Malformed { what, source })?;
        let request = self
            .request(Method::POST, path, token)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| unreachable(what, e))?;
        let body = read_body(what, self.send(what, request).await?, MAX_ANSWER).await?;
        self.read(what, &body)
    }

    fn request(&self, method: Method, path: &str, token: Option<&str>) -> http::request::Builder {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(PROTOCOL_HEADER, PROTOCOL)
            .header(
                header::USER_AGENT,
                concat!("farwater-agent/", env!("CARGO_PKG_VERSION")),
            );
        match token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    /// Sends a request. Every answer except 2xx, 304 and 101 is an error.
    async fn send(&self, what: &'static str, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, HubError> {
        let path = request.uri().path().to_owned();
        let client = if request.headers().contains_key(header::UPGRADE) {
            &self.switching
        } else {
            &self.http
        };
        let response = timeout(PATIENCE, client.request(request))
            .await
            .map_err(|e| unreachable(what, e))?
            .map_err(|e| unreachable(what, e))?;

        let said = response
            .headers()
            .get(PROTOCOL_HEADER)
            .and_then(|value| parse_protocol(value.to_str().ok()?));
        if let Some(hub) = said {
            self.protocol.store(hub, Ordering::Relaxed);
        }
        let status = response.status();
        if status.is_success() || matches!(status, StatusCode::NOT_MODIFIED | StatusCode::SWITCHING_PROTOCOLS) {
            return Ok(response);
        }

        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
            .map(|s| Duration::from_secs(s.min(3600)));
        let body = read_body(what, response, MAX_ANSWER).await.unwrap_or_default();
        let error = serde_json::from_slice::<ProtocolError>(&body).ok();
        if status == StatusCode::NOT_FOUND {
            return Err(HubError::PathUnknown {
                what,
                path,
                hub: self.base.clone(),
            });
        }
        if let Some(hub_time) = error.as_ref().and_then(|e| e.hub_time) {
            self.clock.correct(hub_time);
        }
        let (reason, message) = error.map_or_else(Default::default, |e| (e.reason, e.message));
        Err(HubError::Refused {
            what,
            status,
            reason,
            message,
            retry_after,
        })
    }
}

/// The agent that makes requests.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub identity: &'a Identity,
    pub kubernetes_version: &'a str,
    pub presence: &'a Presence,
}

/// Whether the URL is `https://HOST[:PORT]`, and nothing else.
fn is_hub(uri: &http::Uri) -> bool {
    let bare = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    bare && uri.scheme_str() == Some("https") && matches!(uri.path(), "" | "/") && uri.query().is_none()
}

/// TLS settings for the proxy. A proxy with TLS can only be verified by the authorities of a file.
fn proxy_tls(proxy: &Proxy, trust: &Trust, clock: &Arc<Clock>) -> Result<rustls::ClientConfig, HubError> {
    let others = match trust.of_others() {
        None if proxy.is_encrypted() => {
            return Err(proxy
                .unsupported("for a proxy with https:// --ca-file must name its authority")
                .into());
        }
        others => others.unwrap_or_default(),
    };
    tls::client_config(others, clock.clone()).map_err(HubError::Tls)
}

fn read_seconds(response: &Response<Incoming>, name: &str, least: f64) -> Option<Duration> {
    let seconds: f64 = response.headers().get(name)?.to_str().ok()?.parse().ok()?;
    seconds
        .is_finite()
        .then(|| Duration::from_secs_f64(seconds.clamp(least, 3600.0)))
}

async fn read_body(what: &'static str, response: Response<Incoming>, limit: usize) -> Result<Bytes, HubError> {
    let body = Limited::new(response.into_body(), limit).collect();
    match timeout(PATIENCE * 4, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<http_body_util::LengthLimitError>() => Err(HubError::TooLarge { what, limit }),
        Ok(Err(source)) => Err(HubError::Unreachable { what, source }),
        Err(elapsed) => Err(unreachable(what, elapsed)),
    }
}
