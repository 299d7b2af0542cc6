//! Requests to the hub.

use std::{path::Path, sync::Mutex, time::Duration};

use bytes::Bytes;
use farwater_api::{
    Digest,
    protocol::{
        JoinAnswer, JoinRequest, MAX_DESIRED_BYTES, MAX_SECRET_BYTES, POLL_INTERVAL_HEADER, ProtocolError,
        REASON_BASE_UNKNOWN, REASON_CLOCK_SKEW, SealedSecrets, StatusAnswer, StatusReport, TokenAnswer,
    },
};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::{Instant, timeout};

use crate::{
    clock::Clock,
    identity::{Identity, KeyError},
};

/// Until the first byte of an answer, and between two parts of one: a hub that is slower is as good as away.
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers other than desired states and bundles are small.
const MAX_ANSWER: usize = 64 << 10;
/// Base64 takes a third more, and some fields stand beside it.
const MAX_SEALED: usize = MAX_SECRET_BYTES * 3 / 2;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("read hub URL {url:?}: want https://HOST[:PORT]")]
    Url { url: String },
    #[error("trust the hub's certificate authority")]
    Tls(#[source] rustls::Error),
    #[error("reach the hub for {what}")]
    Unreachable { what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{what}: the hub answered {status} {reason}: {message}")]
    Refused { what: &'static str, status: StatusCode, reason: String, message: String, retry_after: Option<Duration> },
    #[error("{what}: the hub's answer is over {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
    #[error("{what}: the hub's answer is not what the protocol says")]
    Malformed { what: &'static str, source: serde_json::Error },
    #[error("write bundle")]
    Write(#[source] std::io::Error),
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl HubError {
    /// How long the hub asked to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub fn is_reason(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason == wanted)
    }

    /// The whole chain in one line.
    pub fn text(&self) -> String {
        chain(self)
    }
}

/// An error with its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    crate::messages::shorten(&text)
}

/// The answer to a poll.
#[derive(Debug)]
pub struct Poll {
    /// When the hub wants the next one.
    pub interval: Option<Duration>,
    /// `None`: nothing new.
    pub body: Option<Bytes>,
}

struct AccessToken {
    text: String,
    /// Used until four fifths of its life are over.
    refresh_at: Instant,
}

/// A connection to the hub. Before the join it can only join.
pub struct HubClient {
    base: String,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    pub clock: Clock,
    token: Mutex<Option<AccessToken>>,
}

impl HubClient {
    pub fn new(url: &str, pin: Digest) -> Result<Self, HubError> {
        let base = url.trim_end_matches('/').to_owned();
        let valid = base.parse::<http::Uri>().is_ok_and(|uri| {
            uri.scheme_str() == Some("https") && uri.host().is_some() && matches!(uri.path(), "" | "/")
        });
        if !valid {
            return Err(HubError::Url { url: url.to_owned() });
        }
        let tls = crate::tls::client_config(pin).map_err(HubError::Tls)?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_all_versions().wrap_connector(tcp);
        let http = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .build(connector);
        Ok(Self { base, http, clock: Clock::default(), token: Mutex::new(None) })
    }

    pub async fn join(&self, request: &JoinRequest) -> Result<JoinAnswer, HubError> {
        let what = "join";
        let answer: JoinAnswer = self.post(what, "/agent/v1/join", None, request).await?;
        self.clock.correct(answer.hub_time);
        Ok(answer)
    }

    /// Asks for the desired state unless it is still the one with `etag`.
    pub async fn poll(&self, who: &Caller<'_>, etag: Option<&str>) -> Result<Poll, HubError> {
        let what = "poll";
        let response = self
            .authorized(who, what, |token| {
                let mut request =
                    self.request(Method::GET, "/agent/v1/desired", Some(token)).header(header::ACCEPT_ENCODING, "zstd");
                if let Some(etag) = etag {
                    request = request.header(header::IF_NONE_MATCH, etag);
                }
                request.body(Full::default())
            })
            .await?;
        let interval = response
            .headers()
            .get(POLL_INTERVAL_HEADER)
            .and_then(|v| v.to_str().ok()?.parse::<f64>().ok())
            .filter(|s| s.is_finite())
            // Between what a hub may ask for and what keeps the agent useful, whatever the header says.
            .map(|s| Duration::from_secs_f64(s.clamp(0.2, 3600.0)));
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(Poll { interval, body: None });
        }
        let compressed = response.headers().get(header::CONTENT_ENCODING).is_some_and(|coding| coding == "zstd");
        let mut body = read_body(what, response, MAX_DESIRED_BYTES).await?;
        if compressed {
            // The bound is of the allocation: what expands further is refused.
            body = zstd::bulk::decompress(&body, MAX_DESIRED_BYTES)
                .map_err(|_| HubError::TooLarge { what, limit: MAX_DESIRED_BYTES })?
                .into();
        }
        Ok(Poll { interval, body: Some(body) })
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
        serde_json::from_slice(&body).map_err(|source| HubError::Malformed { what, source })
    }

    /// Asks for a service's Secrets. They come sealed to this agent.
    pub async fn secrets(&self, who: &Caller<'_>, service: &str, mac: Digest) -> Result<SealedSecrets, HubError> {
        let what = "get Secrets";
        let target = format!("/agent/v1/secrets/{service}/{mac}");
        let response = self
            .authorized(who, what, |token| self.request(Method::GET, &target, Some(token)).body(Full::default()))
            .await?;
        let body = read_body(what, response, MAX_SEALED).await?;
        serde_json::from_slice(&body).map_err(|source| HubError::Malformed { what, source })
    }

    /// Downloads a bundle, as stored (zstd), into `path`. At most `limit` bytes.
    pub async fn download(&self, who: &Caller<'_>, bundle: Digest, path: &Path, limit: usize) -> Result<(), HubError> {
        use tokio::io::AsyncWriteExt as _;
        let what = "download bundle";
        let target = format!("/agent/v1/bundles/{bundle}");
        let response = self
            .authorized(who, what, |token| self.request(Method::GET, &target, Some(token)).body(Full::default()))
            .await?;
        // A bundle may hold Secrets.
        let mut options = tokio::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(path).await.map_err(HubError::Write)?;
        let mut body = response.into_body();
        let mut written = 0usize;
        loop {
            let frame = timeout(PATIENCE, body.frame()).await.map_err(|e| unreachable(what, e))?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|e| unreachable(what, e))?.into_data() else { continue };
            written += data.len();
            if written > limit {
                return Err(HubError::TooLarge { what, limit });
            }
            file.write_all(&data).await.map_err(HubError::Write)?;
        }
        file.sync_all().await.map_err(HubError::Write)
    }

    /// Whether the hub knows this agent: an access token was given or is still good.
    pub async fn authenticate(&self, who: &Caller<'_>) -> Result<(), HubError> {
        self.access_token(who).await.map(drop)
    }

    /// Sends a request with the access token; a refused one is replaced once.
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
                Err(HubError::Refused { status: StatusCode::UNAUTHORIZED, .. }) if !fresh => {
                    *lock(&self.token) = None;
                    fresh = true;
                }
                other => return other,
            }
        }
    }

    async fn access_token(&self, who: &Caller<'_>) -> Result<String, HubError> {
        if let Some(token) = lock(&self.token).as_ref().filter(|t| t.refresh_at > Instant::now()) {
            return Ok(token.text.clone());
        }
        let what = "get access token";
        let before = self.clock.now();
        let mut corrected = false;
        let answer: TokenAnswer = loop {
            let assertion = who.identity.assertion(self.clock.now(), who.kubernetes_version)?;
            match self.post(what, "/agent/v1/token", None, &assertion).await {
                // `send` has taken the hub's time from the refusal: one more try with the right clock.
                Err(e) if !corrected && e.is_reason(REASON_CLOCK_SKEW) && self.clock.now() != before => {
                    corrected = true;
                }
                other => break other?,
            }
        };
        self.clock.correct(answer.hub_time);
        let life = Duration::from_secs(answer.expires_in.clamp(10, 24 * 3600));
        *lock(&self.token) =
            Some(AccessToken { text: answer.token.clone(), refresh_at: Instant::now() + life * 4 / 5 });
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
        serde_json::from_slice(&body).map_err(|source| HubError::Malformed { what, source })
    }

    fn request(&self, method: Method, path: &str, token: Option<&str>) -> http::request::Builder {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::USER_AGENT, concat!("farwater-agent/", env!("CARGO_PKG_VERSION")));
        match token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    /// Sends, and turns every answer but 2xx and 304 into an error.
    async fn send(&self, what: &'static str, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, HubError> {
        let response = timeout(PATIENCE, self.http.request(request))
            .await
            .map_err(|e| unreachable(what, e))?
            .map_err(|e| unreachable(what, e))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(response);
        }
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|v| v.to_str().ok()?.parse::<u64>().ok())
            .map(|s| Duration::from_secs(s.min(3600)));
        let body = read_body(what, response, MAX_ANSWER).await.unwrap_or_default();
        let error = serde_json::from_slice::<ProtocolError>(&body).ok();
        if let Some(hub_time) = error.as_ref().and_then(|e| e.hub_time) {
            self.clock.correct(hub_time);
        }
        let (reason, message) = error.map_or_else(Default::default, |e| (e.reason, e.message));
        Err(HubError::Refused { what, status, reason, message, retry_after })
    }
}

/// Whose requests these are.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    pub identity: &'a Identity,
    pub kubernetes_version: &'a str,
}

impl HubError {
    /// 409: the hub doesn't know the report that the last one builds on.
    pub fn wants_everything(&self) -> bool {
        matches!(self, Self::Refused { status: StatusCode::CONFLICT, .. }) || self.is_reason(REASON_BASE_UNKNOWN)
    }

    /// The same request is refused each time: it is what it holds.
    pub fn blames_content(&self) -> bool {
        let blaming = [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNPROCESSABLE_ENTITY];
        matches!(self, Self::Refused { status, .. } if blaming.contains(status))
    }
}

fn unreachable(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HubError {
    HubError::Unreachable { what, source: source.into() }
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
