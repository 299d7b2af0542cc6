//! A web server for tests: it serves the files of a folder, or the answers of another server on this machine. It has
//! HTTP or HTTPS, authentication, faults, and a list of all requests.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::{
    authority::{Authority, Pair},
    git::{Auth, Fault},
    ports,
};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

const CHUNK: usize = 32 << 10;

/// A received request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub method: String,
    /// Path with its query.
    pub path: String,
    pub authorization: Option<String>,
    /// Whether the client showed a requested certificate.
    pub is_certified: bool,
    pub status: u16,
}

/// Ends when dropped.
pub struct Origin {
    shared: Arc<Shared>,
    address: SocketAddr,
    is_tls: bool,
    tls: Option<TlsAcceptor>,
    task: Option<JoinHandle<()>>,
}

struct Shared {
    behind: Behind,
    state: Mutex<State>,
}

enum Behind {
    Folder(PathBuf),
    Server {
        port: u16,
        client: Box<Client<HttpConnector, Full<Bytes>>>,
    },
}

#[derive(Default)]
struct State {
    auth: Auth,
    /// Faults by a part of the path. The longest matching part decides.
    faults: HashMap<String, Fault>,
    seen: Vec<Seen>,
    /// Number of running requests by path.
    under_way: HashMap<String, usize>,
    most: Most,
    without_validators: bool,
}

/// Maximum numbers of concurrent requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most {
    pub of_all: usize,
    pub of_one_path: usize,
}

/// Counts a request as running until it is dropped.
struct UnderWay<'a> {
    shared: &'a Shared,
    path: String,
}

impl<'a> UnderWay<'a> {
    fn begin(shared: &'a Shared, path: &str) -> Self {
        let mut state = shared.state();
        let of_one = state.under_way.entry(path.to_owned()).or_default();
        *of_one += 1;
        let (of_one, of_all) = (*of_one, state.under_way.values().sum());
        state.most.of_all = state.most.of_all.max(of_all);
        state.most.of_one_path = state.most.of_one_path.max(of_one);
        Self {
            shared,
            path: path.to_owned(),
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.shared.state().under_way.get_mut(&self.path) {
            *count -= 1;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl Origin {
    /// Serves the files of a folder, with ETags from their content.
    pub async fn of_folder(folder: &Path, tls: Option<&Pair>) -> Result<Self> {
        Self::start(Behind::Folder(folder.to_owned()), tls).await
    }

    /// Serves the answers of a plain HTTP server on this machine.
    pub async fn before(port: u16, tls: Option<&Pair>) -> Result<Self> {
        let client = Box::new(Client::builder(TokioExecutor::new()).build_http());
        Self::start(Behind::Server { port, client }, tls).await
    }

    async fn start(behind: Behind, tls: Option<&Pair>) -> Result<Self> {
        let tls = tls.map(|pair| acceptor(pair, None)).transpose()?;
        let shared = Arc::new(Shared {
            behind,
            state: Mutex::default(),
        });
        let mut origin = Self {
            shared,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            is_tls: tls.is_some(),
            tls,
            task: None,
        };
        origin.resume().await?;
        Ok(origin)
    }

    /// Listens again on the same port.
    pub async fn resume(&mut self) -> Result<()> {
        let listener = ports::listen(self.address).await?;
        self.address = listener.local_addr()?;
        self.task = Some(tokio::spawn(accept(
            listener,
            Arc::clone(&self.shared),
            self.tls.clone(),
        )));
        Ok(())
    }

    /// Stops listening and closes every connection. The port stays reserved.
    pub async fn stop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Uses another certificate from now on.
    pub async fn set_certificate(&mut self, pair: &Pair) -> Result<()> {
        self.set_acceptor(acceptor(pair, None)?).await
    }

    /// Requests certificates of an authority from clients from now on, and accepts clients without one.
    pub async fn ask_for_certificates(&mut self, pair: &Pair, authority: &Authority) -> Result<()> {
        self.set_acceptor(acceptor(pair, Some(authority))?).await
    }

    async fn set_acceptor(&mut self, acceptor: TlsAcceptor) -> Result<()> {
        self.tls = Some(acceptor);
        self.stop().await;
        self.resume().await
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_tls { "https" } else { "http" }, self.address)
    }

    /// `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn set_auth(&self, auth: Auth) {
        self.shared.state().auth = auth;
    }

    /// Sets the fault of every request, until it is changed.
    pub fn set_fault(&self, fault: Fault) {
        self.set_fault_at("", fault);
    }

    /// Sets the fault of requests whose path contains this part.
    pub fn set_fault_at(&self, part: &str, fault: Fault) {
        self.shared.state().faults.insert(part.to_owned(), fault);
    }

    /// Answers like a server without ETag and Last-Modified.
    pub fn forget_validators(&self) {
        self.shared.state().without_validators = true;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.state().seen.clone()
    }

    /// Number of requests whose path contains this part.
    pub fn count(&self, part: &str) -> usize {
        self.shared
            .state()
            .seen
            .iter()
            .filter(|seen| seen.path.contains(part))
            .count()
    }

    pub fn most_at_once(&self) -> Most {
        self.shared.state().most
    }

    pub fn forget_seen(&self) {
        let mut state = self.shared.state();
        state.seen.clear();
        state.most = Most::default();
    }
}

/// `clients`: authority of the certificates that clients are asked for.
fn acceptor(pair: &Pair, clients: Option<&Authority>) -> Result<TlsAcceptor> {
    let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).context("read a certificate")?];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("read a key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = match clients {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(authority) => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).context("read an authority")?)?;
            let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
            builder.allow_unauthenticated().build()?
        }
    };
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tls: Option<TlsAcceptor>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        connections.spawn(async move {
            let service = |is_certified| {
                hyper::service::service_fn(move |request| answer(Arc::clone(&shared), is_certified, request))
            };
            let http = hyper::server::conn::http1::Builder::new();
            // Ignore a client that closes its connection.
            match tls {
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        let is_certified = stream.get_ref().1.peer_certificates().is_some();
                        let _ = http.serve_connection(TokioIo::new(stream), service(is_certified)).await;
                    }
                }
                None => {
                    let _ = http.serve_connection(TokioIo::new(stream), service(false)).await;
                }
            }
        });
    }
}

async fn answer(
    shared: Arc<Shared>,
    is_certified: bool,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    let header = request.headers().get(header::AUTHORIZATION);
    let authorization = header.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (auth, fault) = {
        let state = shared.state();
        let found = state.faults.iter().filter(|(part, _)| path.contains(part.as_str()));
        let fault = found.max_by_key(|(part, _)| part.len()).map(|(_, fault)| fault.clone());
        (state.auth.clone(), fault.unwrap_or_default())
    };
    let mut seen = Seen {
        method: request.method().to_string(),
        path,
        authorization,
        is_certified,
        status: 0,
    };
    // Record the request before its answer, because some requests never get one.
    let number = {
        let mut state = shared.state();
        state.seen.push(seen.clone());
        state.seen.len() - 1
    };
    let response = {
        let _under_way = UnderWay::begin(&shared, &seen.path);
        respond(&shared, request, &auth, seen.authorization.as_deref(), fault).await
    };
    seen.status = response.status().as_u16();
    if let Some(place) = shared.state().seen.get_mut(number) {
        *place = seen;
    }
    Ok(response)
}

async fn respond(
    shared: &Shared,
    request: Request<Incoming>,
    auth: &Auth,
    authorization: Option<&str>,
    fault: Fault,
) -> Response<Body> {
    let wanted = match auth {
        Auth::Anonymous => None,
        Auth::Basic { username, password } => {
            Some(format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
        }
        Auth::Bearer(token) => Some(format!("Bearer {token}")),
    };
    if wanted.is_some_and(|wanted| authorization != Some(wanted.as_str())) {
        let mut response = plain(StatusCode::UNAUTHORIZED, "who are you?");
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"test\""),
        );
        return response;
    }
    match fault {
        Fault::Delay(pause) => tokio::time::sleep(pause).await,
        Fault::Stall => std::future::pending().await,
        Fault::Status(status) => {
            return plain(
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                "fault",
            );
        }
        Fault::Redirect(to) => {
            let mut response = plain(StatusCode::TEMPORARY_REDIRECT, "");
            if let Ok(to) = to.parse() {
                response.headers_mut().insert(header::LOCATION, to);
            }
            return response;
        }
        Fault::None | Fault::StallPack | Fault::Slow { .. } | Fault::Cut(_) => {}
    }
    let response = match &shared.behind {
        Behind::Folder(folder) => serve(folder, &request, shared.state().without_validators),
        Behind::Server { port, client } => forward(client, *port, request).await,
    };
    let response = response.unwrap_or_else(|error| plain(StatusCode::BAD_GATEWAY, &format!("{error:#}")));
    match fault {
        Fault::Slow { .. } | Fault::Cut(_) => {
            let (mut parts, body) = response.into_parts();
            // A shortened answer must look as if more data followed.
            parts.headers.remove(header::TRANSFER_ENCODING);
            let bytes = body
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            Response::from_parts(parts, StreamBody::new(pieces(bytes, fault)).boxed_unsync())
        }
        _ => response,
    }
}

fn serve(folder: &Path, request: &Request<Incoming>, without_validators: bool) -> Result<Response<Body>> {
    let path = request.uri().path().trim_start_matches('/');
    let file = folder.join(path);
    if path.split('/').any(|part| part == "..") || !file.is_file() {
        return Ok(plain(StatusCode::NOT_FOUND, "no such file"));
    }
    let content = std::fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let etag = format!("\"{}\"", hex::encode(Sha256::digest(&content)));
    let known = request
        .headers()
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    if !without_validators && known == Some(etag.as_str()) {
        return Ok(plain(StatusCode::NOT_MODIFIED, ""));
    }
    let mut response = Response::new(full(content));
    if !without_validators {
        response.headers_mut().insert(header::ETAG, etag.parse()?);
    }
    Ok(response)
}

async fn forward(
    client: &Client<HttpConnector, Full<Bytes>>,
    port: u16,
    request: Request<Incoming>,
) -> Result<Response<Body>> {
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = format!("http://127.0.0.1:{port}{path}").parse()?;
    // Keep the Host header, because servers build their own addresses with it.
    let body = body.collect().await.context("read the request")?.to_bytes();
    let is_head = parts.method == Method::HEAD;
    let response = client
        .request(Request::from_parts(parts, Full::new(body)))
        .await
        .context("ask the server behind")?;
    let (parts, body) = response.into_parts();
    if is_head {
        return Ok(Response::from_parts(parts, full(Vec::new())));
    }
    Ok(Response::from_parts(
        parts,
        body.map_err(std::io::Error::other).boxed_unsync(),
    ))
}

fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed_unsync()
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(full(text.to_owned()));
    *response.status_mut() = status;
    response
}

fn pieces(content: Bytes, fault: Fault) -> impl Stream<Item = std::io::Result<Frame<Bytes>>> + Send {
    stream::unfold((content, 0_usize), move |(mut content, sent)| {
        let fault = fault.clone();
        async move {
            if content.is_empty() {
                return None;
            }
            let (size, pause) = match fault {
                Fault::Slow { bytes, pause } => (bytes, pause),
                Fault::Cut(at) if sent >= at => return Some((Err(std::io::Error::other("cut")), (content, sent))),
                Fault::Cut(at) => ((at - sent).min(CHUNK), Duration::ZERO),
                _ => (CHUNK, Duration::ZERO),
            };
            let piece = content.split_to(size.clamp(1, content.len()));
            tokio::time::sleep(pause).await;
            let sent = sent + piece.len();
            Some((Ok(Frame::data(piece)), (content, sent)))
        }
    })
    .boxed()
}
