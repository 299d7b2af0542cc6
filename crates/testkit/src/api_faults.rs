//! A proxy between an agent and its cluster's API server, with TLS and HTTP/2. It behaves like a hostile or overloaded
//! API server.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use tokio::{net::TcpListener, task::AbortHandle};
use tokio_rustls::TlsAcceptor;
use tokio_util::{
    codec::{FramedRead, LinesCodec, LinesCodecError},
    io::StreamReader,
    sync::CancellationToken,
};

use crate::{Plane, authority::Authority, https};

/// Value of Retry-After for a refused request.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum time until a running watch loses its version.
const EXPIRES_WITHIN: Duration = Duration::from_secs(2);
/// Event that API servers send in that case.
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: a fault","reason":"Expired","code":410}}"#;
/// Allowed difference between the clocks of two processes on a busy machine. A request this much early does not count.
const TOLERANCE: Duration = Duration::from_millis(50);

/// Faults for requests. None by default.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Share of requests that are answered with 429 or 503, and Retry-After.
    pub refused: f64,
    /// Writes to paths that contain the text are answered with 429, and the duration as Retry-After.
    pub throttled: Option<(String, Duration)>,
    /// Number of writes to paths that contain the text whose connection is closed, with all requests on it. Every other
    /// one is executed first.
    pub lost: Option<(String, u64)>,
    /// Maximum delay of each request.
    pub latency: Duration,
    /// Share of watches that are refused because their version is gone.
    pub expired: f64,
    /// Share of running watches that get an event that their version is gone. Then the stream ends.
    pub expired_later: f64,
    /// Watches end after this time, in the middle of a line. Faults of single lines don't apply to them.
    pub cut: Option<Duration>,
    /// The next event of a watch and all later ones are held back. The watch stays open and silent, even after this
    /// fault ends.
    pub stall: bool,
    /// Watches leave out objects with this name.
    pub swallow: Option<String>,
    /// Reads of paths that contain the text are answered with the status.
    pub reads: Option<(String, u16)>,
    /// Page size of lists, whatever the client requests. An API server may return fewer objects than requested.
    pub page: Option<usize>,
}

/// Observed requests.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    pub requests: u64,
    pub writes: u64,
    /// First pages of lists, counting repeated requests.
    pub lists: u64,
    /// Further pages of lists.
    pub pages: u64,
    /// Lists of all namespaces that were let through. A watch begins with one.
    pub wide_lists: u64,
    pub watches: u64,
    pub refused: u64,
    /// Opened connections.
    pub connections: u64,
    /// Writes that lost their connection.
    pub lost: u64,
    pub expired: u64,
    pub expired_later: u64,
    pub cut: u64,
    /// Lines of watches that were held back, and lines that were left out.
    pub stalled: u64,
    pub swallowed: u64,
    /// Requests that were repeated before their Retry-After, with the difference.
    pub early: Vec<String>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, BoxError>;
/// Number of requests by verb and resource, as Kubernetes names them. For a non-resource request, the path.
pub type Asked = BTreeMap<(String, String), u64>;

struct State {
    faults: Faults,
    seen: Seen,
    asked: Asked,
    random: StdRng,
    /// Earliest time of the next attempt, by [`identity`].
    not_before: HashMap<(Method, String), Instant>,
}

/// A reverse proxy in front of a plane. Ends when dropped.
pub struct ApiFaults {
    kubeconfig: PathBuf,
    state: Arc<Mutex<State>>,
    task: AbortHandle,
}

impl Drop for ApiFaults {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiFaults {
    /// Writes the proxy's kubeconfig, for an agent, into `folder`.
    pub async fn start(plane: &Plane, folder: &Path, seed: u64) -> Result<Self> {
        let client = plane.client().await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let kubeconfig = folder.join("faulty.kubeconfig");
        let authority = Authority::new("authority of a faulty API server")?;
        write_kubeconfig(&kubeconfig, listener.local_addr()?, &authority)?;
        let tls = TlsAcceptor::from(Arc::new(https::configuration(&authority)?));
        let random = StdRng::seed_from_u64(seed);
        let state = Arc::new(Mutex::new(State {
            faults: Faults::default(),
            seen: Seen::default(),
            asked: Asked::new(),
            random,
            not_before: HashMap::new(),
        }));
        let task = tokio::spawn(serve(listener, tls, client, state.clone())).abort_handle();
        Ok(Self {
            kubeconfig,
            state,
            task,
        })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn set(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    pub fn seen(&self) -> Seen {
        lock(&self.state).seen.clone()
    }

    pub fn asked(&self) -> Asked {
        lock(&self.state).asked.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The API server sees all requests as those of the plane's administrator.
fn write_kubeconfig(path: &Path, address: SocketAddr, authority: &Authority) -> Result<()> {
    let authority = BASE64.encode(authority.pem());
    let cluster = json!({"server": format!("https://{address}"), "certificate-authority-data": authority});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "faulty", "cluster": cluster}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}],
        "current-context": "faulty",
    });
    fs::write(path, config.to_string()).with_context(|| format!("write {}", path.display()))
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, client: kube::Client, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (client, state, tls) = (client.clone(), state.clone(), tls.clone());
        lock(&state).seen.connections += 1;
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let connection = CancellationToken::new();
            let lost = connection.clone();
            let service = service_fn(move |request| {
                let (client, state, connection) = (client.clone(), state.clone(), connection.clone());
                async move { Ok::<_, Infallible>(answer(&client, &state, &connection, request).await) }
            });
            let server = auto::Builder::new(TokioExecutor::new());
            let serving = server.serve_connection(TokioIo::new(stream), service);
            tokio::select! { _ = serving => {} () = lost.cancelled() => {} }
        });
    }
}

fn is_watch(path: &str) -> bool {
    path.contains("watch=1")
}

fn is_list(path: &str) -> bool {
    path.contains("limit=")
}

fn is_first_page(path: &str) -> bool {
    is_list(path) && !path.contains("&continue=")
}

/// The list with at most so many objects on a page.
fn shorten_page(path: &str, page: usize) -> String {
    let Some((before, rest)) = path.split_once("limit=") else {
        return path.to_owned();
    };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (asked, after) = rest.split_at(end);
    format!(
        "{before}limit={}{after}",
        asked.parse().map_or(page, |asked: usize| asked.min(page))
    )
}

/// Verb and resource of a request.
fn subject(method: &Method, path: &str) -> (String, String) {
    let verb = if is_watch(path) {
        "WATCH"
    } else if is_list(path) {
        "LIST"
    } else {
        method.as_str()
    };
    let path = path.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let resource = match parts.as_slice() {
        ["api", _, "namespaces", _, resource, ..]
        | ["apis", _, _, "namespaces", _, resource, ..]
        | ["api", _, resource, ..]
        | ["apis", _, _, resource, ..] => *resource,
        _ => path,
    };
    (verb.to_owned(), resource.to_owned())
}

/// What happens to a request.
enum Fate {
    Pass {
        latency: Duration,
        end: Option<End>,
    },
    Refuse {
        status: u16,
        latency: Duration,
        retry_after: Duration,
    },
    /// The connection is closed. `done`: the request is executed first.
    Lose {
        done: bool,
    },
    Expire,
}

/// How and when a watch ends.
enum End {
    Cut(Duration),
    Expired(Duration),
}

/// Identity of a request, to recognize its next attempt. A create is identified only by its body.
fn identity(method: &Method, path: &str, body: &[u8]) -> (Method, String) {
    let created = (*method == Method::POST)
        .then(|| serde_json::from_slice::<serde_json::Value>(body).ok())
        .flatten();
    let name = created.as_ref().and_then(|object| object["metadata"]["name"].as_str());
    (
        method.clone(),
        name.map_or_else(|| path.to_owned(), |name| format!("{path} {name}")),
    )
}

fn decide(state: &mut State, method: &Method, path: &str, body: &[u8]) -> Fate {
    let is_watch = is_watch(path);
    state.seen.requests += 1;
    *state.asked.entry(subject(method, path)).or_default() += 1;
    if *method != Method::GET {
        state.seen.writes += 1;
    } else if is_watch {
        state.seen.watches += 1;
    } else if is_first_page(path) {
        state.seen.lists += 1;
    } else if is_list(path) {
        state.seen.pages += 1;
    }
    let key = identity(method, path, body);
    let early = state
        .not_before
        .remove(&key)
        .map(|earliest| earliest.saturating_duration_since(Instant::now()));
    if let Some(early) = early.filter(|early| *early > TOLERANCE) {
        state.seen.early.push(format!("{method} {}: {early:?}", key.1));
    }
    let faults = state.faults.clone();
    if let Some((part, status)) = &faults.reads
        && *method == Method::GET
        && path.contains(part.as_str())
    {
        state.seen.refused += 1;
        return Fate::Refuse {
            status: *status,
            latency: Duration::ZERO,
            retry_after: RETRY_AFTER,
        };
    }
    if let Some((part, retry_after)) = &faults.throttled
        && *method != Method::GET
        && path.contains(part.as_str())
    {
        state.seen.refused += 1;
        state.not_before.insert(key, Instant::now() + *retry_after);
        return Fate::Refuse {
            status: 429,
            latency: Duration::ZERO,
            retry_after: *retry_after,
        };
    }
    if let Some((part, left)) = &mut state.faults.lost
        && *left > 0
        && *method != Method::GET
        && path.contains(part.as_str())
    {
        *left -= 1;
        state.seen.lost += 1;
        return Fate::Lose {
            done: state.seen.lost.is_multiple_of(2),
        };
    }
    let latency = faults.latency.mul_f64(state.random.random_range(0.0..=1.0));
    if is_watch && state.random.random_bool(faults.expired) {
        state.seen.expired += 1;
        return Fate::Expire;
    }
    if state.random.random_bool(faults.refused) {
        state.seen.refused += 1;
        let status = if state.random.random_bool(0.5) { 429 } else { 503 };
        state.not_before.insert(key, Instant::now() + latency + RETRY_AFTER);
        return Fate::Refuse {
            status,
            latency,
            retry_after: RETRY_AFTER,
        };
    }
    let end = if is_watch && state.random.random_bool(faults.expired_later) {
        Some(End::Expired(
            EXPIRES_WITHIN.mul_f64(state.random.random_range(0.0..=1.0)),
        ))
    } else {
        faults.cut.filter(|_| is_watch).map(End::Cut)
    };
    if matches!(end, Some(End::Cut(_))) {
        state.seen.cut += 1;
    }
    if is_first_page(path) && !path.contains("/namespaces/") {
        state.seen.wide_lists += 1;
    }
    Fate::Pass { latency, end }
}

/// What happens to one line of a watch.
enum LineFate {
    Pass,
    Hold,
    LeaveOut,
}

fn decide_line(state: &mut State, line: &str) -> LineFate {
    if state.faults.stall {
        state.seen.stalled += 1;
        return LineFate::Hold;
    }
    if state.faults.swallow.as_deref().is_some_and(|name| is_about(line, name)) {
        state.seen.swallowed += 1;
        return LineFate::LeaveOut;
    }
    LineFate::Pass
}

fn is_about(event: &str, name: &str) -> bool {
    let event: serde_json::Value = serde_json::from_str(event).unwrap_or_default();
    event["object"]["metadata"]["name"] == name
}

async fn answer(
    client: &kube::Client,
    state: &Arc<Mutex<State>>,
    connection: &CancellationToken,
    request: Request<Incoming>,
) -> Response<Body> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return refuse(400, "BadRequest", None);
    };
    let request = Request::from_parts(parts, body.to_bytes());
    let fate = decide(&mut lock(state), request.method(), &path, request.body());
    match fate {
        Fate::Expire => refuse(410, "Expired", None),
        Fate::Refuse {
            status,
            latency,
            retry_after,
        } => {
            tokio::time::sleep(latency).await;
            refuse(status, "Hostile", Some(retry_after))
        }
        Fate::Lose { done } => {
            if done {
                let _ = forward(client, state, &path, request, None).await;
            }
            connection.cancel();
            std::future::pending().await
        }
        Fate::Pass { latency, end } => {
            tokio::time::sleep(latency).await;
            let page = lock(state).faults.page;
            let path = page.map_or_else(|| path.clone(), |page| shorten_page(&path, page));
            forward(client, state, &path, request, end)
                .await
                .unwrap_or_else(|_| refuse(502, "BadGateway", None))
        }
    }
}

fn refuse(status: u16, reason: &str, retry_after: Option<Duration>) -> Response<Body> {
    let said = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason, "message": "a fault",
    });
    let body = Full::new(Bytes::from(said.to_string())).map_err(|never| match never {});
    let mut response = Response::new(UnsyncBoxBody::new(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(time) = retry_after.filter(|_| matches!(status, 429 | 503)) {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, time.as_secs().into());
    }
    response
}

async fn forward(
    client: &kube::Client,
    state: &Arc<Mutex<State>>,
    path: &str,
    request: Request<Bytes>,
    end: Option<End>,
) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let mut upstream = Request::builder().method(parts.method).uri(path);
    for name in ["accept", "content-type", "impersonate-user"] {
        if let Some(value) = parts.headers.get(name) {
            upstream = upstream.header(name, value);
        }
    }
    let response = client
        .send(upstream.body(kube::client::Body::from(body.to_vec()))?)
        .await?;
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.remove(header::CONNECTION);
    let is_stream = is_watch(path) && parts.status.is_success();
    let body: Body = match end {
        Some(End::Cut(time)) => cut_after(time, body),
        Some(End::Expired(time)) if is_stream => expire_after(time, body, state.clone()),
        None if is_stream => UnsyncBoxBody::new(StreamBody::new(line_by_line(body, state.clone()))),
        _ => UnsyncBoxBody::new(body.map_err(Into::into)),
    };
    Ok(Response::from_parts(parts, body))
}

fn cut_after(time: Duration, body: kube::client::Body) -> Body {
    let end = tokio::time::sleep(time);
    let frames = body
        .into_data_stream()
        .map(|part| part.map(Frame::data).map_err(Into::into));
    let frames = frames
        .take_until(end)
        .chain(futures::stream::once(async { Err("cut by a fault".into()) }));
    UnsyncBoxBody::new(StreamBody::new(frames))
}

fn expire_after(time: Duration, body: kube::client::Body, state: Arc<Mutex<State>>) -> Body {
    let counted = state.clone();
    let last = futures::stream::once(async move {
        lock(&counted).seen.expired_later += 1;
        Ok(Frame::data(Bytes::from(format!("{EXPIRED}\n"))))
    });
    let frames = line_by_line(body, state)
        .take_until(tokio::time::sleep(time))
        .chain(last);
    UnsyncBoxBody::new(StreamBody::new(frames))
}

/// A watch. Each of its lines gets the faults of that moment.
fn line_by_line(
    body: kube::client::Body,
    state: Arc<Mutex<State>>,
) -> impl Stream<Item = Result<Frame<Bytes>, BoxError>> + Send + 'static {
    let bytes = body.into_data_stream().map(|part| part.map_err(std::io::Error::other));
    let lines = FramedRead::new(StreamReader::new(bytes), LinesCodec::new());
    lines.filter_map(move |line| {
        let state = state.clone();
        async move { let_through(&state, line).await }
    })
}

async fn let_through(
    state: &Mutex<State>,
    line: Result<String, LinesCodecError>,
) -> Option<Result<Frame<Bytes>, BoxError>> {
    let line = match line {
        Ok(line) => line,
        Err(error) => return Some(Err(error.into())),
    };
    let fate = decide_line(&mut lock(state), &line);
    match fate {
        LineFate::Pass => Some(Ok(Frame::data(Bytes::from(line + "\n")))),
        LineFate::Hold => std::future::pending().await,
        LineFate::LeaveOut => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_are_about() {
        let check = |method: Method, path: &str, verb: &str, resource: &str| {
            assert_eq!(subject(&method, path), (verb.to_owned(), resource.to_owned()), "{path}");
        };
        check(Method::GET, "/api/v1/namespaces/web", "GET", "namespaces");
        check(Method::GET, "/api/v1/namespaces/web/configmaps/a", "GET", "configmaps");
        check(
            Method::GET,
            "/api/v1/configmaps?limit=500&labelSelector=a",
            "LIST",
            "configmaps",
        );
        check(
            Method::GET,
            "/apis/apps/v1/deployments?watch=1&resourceVersion=7",
            "WATCH",
            "deployments",
        );
        let lease = "/apis/coordination.k8s.io/v1/namespaces/farwater-system/leases/farwater-agent";
        check(Method::PUT, lease, "PUT", "leases");
        check(Method::GET, "/version", "GET", "/version");
    }

    #[test]
    fn a_watch_that_lost_its_version_says_so_as_an_api_server_does() {
        let event: serde_json::Value = serde_json::from_str(EXPIRED).unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
        assert_eq!(event["object"]["reason"], "Expired");
    }

    #[test]
    fn a_page_gets_shorter_and_never_longer() {
        let list = |limit: usize| format!("/api/v1/configmaps?limit={limit}&labelSelector=a&continue=x");
        assert_eq!(shorten_page(&list(500), 50), list(50));
        assert_eq!(shorten_page(&list(20), 50), list(20));
        assert_eq!(
            shorten_page("/api/v1/configmaps?watch=1", 50),
            "/api/v1/configmaps?watch=1"
        );
    }

    #[test]
    fn an_event_is_about_the_object_that_it_names() {
        let event = r#"{"type":"MODIFIED","object":{"metadata":{"name":"a"}}}"#;
        assert!(is_about(event, "a") && !is_about(event, "b") && !is_about("half a li", "a"));
    }
}
