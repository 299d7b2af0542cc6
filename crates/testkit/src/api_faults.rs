//! Stands between an agent and its cluster's API server and does what a hostile or overloaded one does.

use std::{
    collections::HashMap,
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::StreamExt as _;
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

use crate::Plane;

/// What a refused request is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Clocks of two processes and a busy machine: a request this much early is not.
const TOLERANCE: Duration = Duration::from_millis(50);

/// What is done to requests. Nothing by default.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The share of requests that is answered 429 or 503, with Retry-After.
    pub refused: f64,
    /// Each request waits up to this long.
    pub latency: Duration,
    /// The share of watches that is told that its version is gone.
    pub expired: f64,
    /// Watches end after this long, in the middle of a line.
    pub cut: Option<Duration>,
    /// Reads of paths that contain the first are answered with the second.
    pub reads: Option<(String, u16)>,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    pub requests: u64,
    pub writes: u64,
    pub lists: u64,
    pub watches: u64,
    pub refused: u64,
    pub expired: u64,
    pub cut: u64,
    /// Requests that came again before they were told to.
    pub early: u64,
}

type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

struct State {
    faults: Faults,
    seen: Seen,
    random: StdRng,
    /// When a request of this method and path may come again.
    not_before: HashMap<(Method, String), Instant>,
}

/// A reverse proxy in front of a plane. Dropped, it ends.
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
    /// Its kubeconfig, for an agent, is written into `folder`.
    pub async fn start(plane: &Plane, folder: &Path, seed: u64) -> Result<Self> {
        let client = plane.client().await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let kubeconfig = folder.join("faulty.kubeconfig");
        write_kubeconfig(&kubeconfig, listener.local_addr()?)?;
        let random = StdRng::seed_from_u64(seed);
        let state = State { faults: Faults::default(), seen: Seen::default(), random, not_before: HashMap::new() };
        let state = Arc::new(Mutex::new(state));
        let task = tokio::spawn(serve(listener, client, state.clone())).abort_handle();
        Ok(Self { kubeconfig, state, task })
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn set(&self, faults: Faults) {
        lock(&self.state).faults = faults;
    }

    pub fn seen(&self) -> Seen {
        lock(&self.state).seen
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plain HTTP on this machine: who asks is the plane's administrator to the API server.
fn write_kubeconfig(path: &Path, address: SocketAddr) -> Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "faulty", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}],
        "current-context": "faulty",
    });
    fs::write(path, config.to_string()).with_context(|| format!("write {}", path.display()))
}

async fn serve(listener: TcpListener, client: kube::Client, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (client, state) = (client.clone(), state.clone());
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let (client, state) = (client.clone(), state.clone());
                async move { Ok::<_, Infallible>(answer(&client, &state, request).await) }
            });
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// What becomes of one request.
enum Fate {
    Pass { latency: Duration, cut: Option<Duration> },
    Refuse { status: u16, latency: Duration },
    Expire,
}

fn decide(state: &mut State, method: &Method, path: &str) -> Fate {
    let is_watch = path.contains("watch=1");
    state.seen.requests += 1;
    if *method != Method::GET {
        state.seen.writes += 1;
    } else if is_watch {
        state.seen.watches += 1;
    } else if path.contains("limit=") {
        state.seen.lists += 1;
    }
    let key = (method.clone(), path.to_owned());
    if state.not_before.remove(&key).is_some_and(|earliest| Instant::now() + TOLERANCE < earliest) {
        state.seen.early += 1;
    }
    let faults = state.faults.clone();
    if let Some((part, status)) = &faults.reads
        && *method == Method::GET
        && path.contains(part.as_str())
    {
        state.seen.refused += 1;
        return Fate::Refuse { status: *status, latency: Duration::ZERO };
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
        return Fate::Refuse { status, latency };
    }
    let cut = faults.cut.filter(|_| is_watch);
    if cut.is_some() {
        state.seen.cut += 1;
    }
    Fate::Pass { latency, cut }
}

async fn answer(client: &kube::Client, state: &Mutex<State>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let fate = decide(&mut lock(state), request.method(), &path);
    match fate {
        Fate::Expire => refuse(410, "Expired"),
        Fate::Refuse { status, latency } => {
            tokio::time::sleep(latency).await;
            refuse(status, "Hostile")
        }
        Fate::Pass { latency, cut } => {
            tokio::time::sleep(latency).await;
            forward(client, &path, request, cut).await.unwrap_or_else(|_| refuse(502, "BadGateway"))
        }
    }
}

fn refuse(status: u16, reason: &str) -> Response<Body> {
    let said = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason, "message": "a fault",
    });
    let body = Full::new(Bytes::from(said.to_string())).map_err(|never| match never {});
    let mut response = Response::new(UnsyncBoxBody::new(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if matches!(status, 429 | 503) {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.as_secs().into());
    }
    response
}

async fn forward(
    client: &kube::Client,
    path: &str,
    request: Request<Incoming>,
    cut: Option<Duration>,
) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let mut upstream = Request::builder().method(parts.method).uri(path);
    for name in ["accept", "content-type", "impersonate-user"] {
        if let Some(value) = parts.headers.get(name) {
            upstream = upstream.header(name, value);
        }
    }
    let response = client.send(upstream.body(kube::client::Body::from(body.to_vec()))?).await?;
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.remove(header::CONNECTION);
    let Some(cut) = cut else {
        return Ok(Response::from_parts(parts, UnsyncBoxBody::new(body.map_err(Into::into))));
    };
    let end = tokio::time::sleep(cut);
    let frames = body.into_data_stream().map(|part| part.map(Frame::data).map_err(Into::into));
    let frames = frames.take_until(end).chain(futures::stream::once(async { Err("cut by a fault".into()) }));
    Ok(Response::from_parts(parts, UnsyncBoxBody::new(StreamBody::new(frames))))
}
