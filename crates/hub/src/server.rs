//! Connections: TLS, HTTP/1.1 and HTTP/2, limits against slow and many clients, and an orderly shutdown.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use axum::{Router, body::Body, extract::ConnectInfo};
use bytes::Bytes;
use farwater_api::protocol::CONNECTION_PATH;
use hyper::body::{Frame, SizeHint};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use jiff::Timestamp;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{interval, interval_at, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::{ServiceExt as _, service_fn};

use crate::{
    ApiThreads, Hub,
    config::Patience,
    identity::{Mounted, ServerNames, end_of},
    metrics::Counted,
    refusals::Refusals,
    unread,
};

/// Time limit for a request's head, and idle time of an HTTP/1 connection: hyper uses one timer for both. It is longer
/// than an agent's longest usual pause, so that polls find their connection open.
const HEAD: Duration = Duration::from_secs(90);
/// Maximum bytes of a request's head; a bearer token and a long selector fit many times.
const HEAD_BYTES: usize = 32 << 10;
const HEADERS: usize = 100;
/// Maximum open requests per HTTP/2 connection: kubectl and k9s have some dozens of watches.
const STREAMS: u32 = 256;
/// Idle time of an HTTP/2 connection, as for HTTP/1.
const REST: Duration = HEAD;
const LOOK_FOR_REST: Duration = Duration::from_secs(5);
/// A connection is closed for others only if it has had this long to send a request.
const LEAST_REST: Duration = Duration::from_millis(500);
/// A connection that was chosen to close is cut off after this time, even during a request.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LOOK_FOR_PLACE: Duration = Duration::from_millis(200);
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);
/// How often the server's certificate is checked for renewal, and how often mounted files are read.
const RENEWAL: Duration = Duration::from_secs(3600);
const RELOAD: Duration = Duration::from_secs(3);

/// The way in which the server's certificate is renewed.
pub enum Renewal {
    /// The hub renews it, for these names.
    Own(ServerNames),
    Mounted(Box<Mounted>),
}

/// The server's certificate, which can be replaced while the hub runs.
pub struct Certificate(ArcSwap<CertifiedKey>);

impl Certificate {
    pub fn new(key: Arc<CertifiedKey>) -> Arc<Self> {
        Arc::new(Self(ArcSwap::new(key)))
    }

    /// When it ends, in seconds since 1970.
    pub fn end(&self) -> Option<i64> {
        end_of(&self.0.load())
    }

    /// Serves a new certificate before the old one ends, for as long as the hub runs. Connections continue.
    pub async fn keep_fresh(self: Arc<Self>, hub: Arc<Hub>, renewal: Renewal) {
        match renewal {
            Renewal::Own(names) => self.renew(&hub, &names).await,
            Renewal::Mounted(mounted) => self.reload(&hub, *mounted).await,
        }
    }

    async fn reload(&self, hub: &Hub, mut mounted: Mounted) {
        let mut told = String::new();
        loop {
            sleep(RELOAD).await;
            match mounted.reload(Timestamp::now()) {
                Ok(None) if told.is_empty() => {}
                // The files have the served content, or a new one that has not been checked yet.
                Ok(None) if mounted.is_pending() => {}
                Ok(key) => {
                    if let Some(key) = key {
                        let ends = end_of(&key).and_then(|end| Timestamp::from_second(end).ok());
                        let ends = ends.map(|end| end.to_string());
                        tracing::info!(ends, "the server's certificate was renewed from its files");
                        self.0.store(key);
                    }
                    told.clear();
                    hub.metrics.tls_reload_failing.set(0);
                }
                Err(error) => {
                    let text = crate::errors::chain(&error).to_string();
                    if text != told {
                        tracing::error!(
                            error = text,
                            "the server's new certificate can't be used; the old one stays"
                        );
                        told = text;
                    }
                    hub.metrics.tls_reload_failing.set(1);
                }
            }
        }
    }

    async fn renew(&self, hub: &Hub, names: &ServerNames) {
        loop {
            sleep(RENEWAL).await;
            match hub.identity.server_certificate(names, Timestamp::now()) {
                Ok(key) => self.0.store(key),
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the server's certificate can't be renewed"
                    );
                }
            }
        }
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificate(..)")
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// TLS 1.2 and 1.3, with tickets that resume a session, because agents connect once per poll.
pub fn tls_config(certificate: Arc<Certificate>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    Ok(config)
}

/// A listener and the router that answers on it.
pub struct Server {
    pub listener: TcpListener,
    /// None: plain HTTP.
    pub tls: Option<TlsAcceptor>,
    pub router: Router,
    pub max_connections: usize,
    pub patience: Patience,
    pub count: Box<dyn Fn() -> Counted + Send + Sync>,
    pub refusals: Arc<Refusals>,
    /// Moves a connection to other threads at its first request that yields to others. None: all stay.
    pub yielding: Option<Yielding>,
}

/// The requests that yield to others, by path, and the threads that serve them.
#[derive(Clone)]
pub struct Yielding {
    pub gives_way: fn(&str) -> bool,
    pub threads: Arc<ApiThreads>,
}

impl Server {
    /// Serves until `shutdown`; then waits up to `drain` for open requests and closes the rest.
    pub async fn serve(self, shutdown: CancellationToken, drain: Duration) {
        let places = Arc::new(Places::new(self.max_connections, self.refusals));
        let mut connections = JoinSet::new();
        loop {
            // Beyond the limit clients wait in the kernel's queue, which takes no memory of the hub.
            let accepted = async {
                let taken = places.take().await;
                (taken, self.listener.accept().await)
            };

            let (taken, accepted) = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = accepted => accepted,
                Some(_) = connections.join_next() => continue,
            };

            match accepted {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        peer,
                        router: self.router.clone(),
                        tls: self.tls.clone(),
                        patience: self.patience,
                        shutdown: shutdown.clone(),
                        places: Arc::clone(&places),
                        place: Place {
                            yielding: self.yielding.clone(),
                            yields: CancellationToken::new(),
                        },
                    };
                    let counted = (self.count)();
                    connections.spawn(async move {
                        connection.serve(stream).await;
                        drop((taken, counted));
                    });
                }
                // Mostly for lack of file descriptors: retrying at once would only use the processor.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }

        drop(self.listener);
        if timeout(drain, async { while connections.join_next().await.is_some() {} })
            .await
            .is_err()
        {
            tracing::warn!(
                connections = connections.len(),
                "closing connections whose requests didn't end in time"
            );
            connections.shutdown().await;
        }
    }
}

/// Added to the answer to an authenticated client, whose connection stays open when others need a place.
#[derive(Clone, Copy)]
pub struct Known;

/// The open connections. One place is kept free, so that each new client can connect. If none is free, the
/// unauthenticated connection that has been idle longest is closed. If there is none, the next agent that polls is
/// answered and loses its connection: it does not need it for some seconds, and then opens another one.
///
/// There is no limit per address: the clusters of a company, or all clients behind a load balancer, may share one.
struct Places {
    free: Arc<Semaphore>,
    is_wanted: AtomicBool,
    open: Mutex<HashMap<u64, Arc<Standing>>>,
    next: AtomicU64,
    refusals: Arc<Refusals>,
}

/// One connection, as the others see it.
struct Standing {
    peer: IpAddr,
    /// Number of running requests, until their answers are sent.
    requests: AtomicUsize,
    /// When a request began or ended last, or the connection was opened.
    moved: Mutex<Instant>,
    is_known: AtomicBool,
    /// Whether it was chosen to close.
    is_leaving: AtomicBool,
    /// Notified to close it when its current requests end.
    leaves: Notify,
}

impl Standing {
    fn begin(self: &Arc<Self>) -> Request {
        self.touch();
        self.requests.fetch_add(1, Ordering::AcqRel);
        Request(Arc::clone(self))
    }

    fn note(&self, response: &http::Response<Body>) {
        if response.extensions().get::<Known>().is_some() {
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// Since when it has been idle; None: a request is running.
    fn rests_since(&self) -> Option<Instant> {
        (self.requests.load(Ordering::Acquire) == 0).then(|| self.last_moved())
    }

    fn close(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.leaves.notify_one();
    }

    /// When a request began or ended last.
    fn last_moved(&self) -> Instant {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// In each request's extensions: closes the request's connection.
#[derive(Clone)]
pub struct Closer(Arc<Standing>);

impl Closer {
    /// Running requests have [`LAST_WORDS`] to end.
    pub fn close(&self) {
        self.0.close();
    }
}

/// A running request, until its answer is sent.
struct Request(Arc<Standing>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An answer's body. The request counts as running until its end.
struct Answer {
    body: Body,
    _under_way: Request,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Places {
    fn new(count: usize, refusals: Arc<Refusals>) -> Self {
        Self {
            free: Arc::new(Semaphore::new(count)),
            is_wanted: AtomicBool::new(false),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            refusals,
        }
    }

    /// Waits for a free place. Never returns None.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(taken) = Arc::clone(&self.free).try_acquire_owned() {
            self.is_wanted.store(false, Ordering::Relaxed);
            return Some(taken);
        }
        self.is_wanted.store(!self.end_longest_rest(), Ordering::Relaxed);
        // If the chosen connection doesn't close, or none could be chosen, another one may be idle soon.
        let mut looks = interval_at(tokio::time::Instant::now() + LOOK_FOR_PLACE, LOOK_FOR_PLACE);
        let acquire = Arc::clone(&self.free).acquire_owned();
        tokio::pin!(acquire);
        loop {
            tokio::select! {
                taken = &mut acquire => return taken.ok(),
                _ = looks.tick() => drop(self.end_longest_rest()),
            }
        }
    }

    /// Closes the unauthenticated connection that has been idle longest. False: there is none.
    fn end_longest_rest(&self) -> bool {
        let open = self.open();
        let unknown = open
            .values()
            .filter(|standing| !standing.is_known.load(Ordering::Relaxed));
        // This includes connections that are sending an answer: answers to unauthenticated clients are short, unless
        // the client doesn't read.
        let waiting = unknown.filter(|standing| !standing.is_leaving.load(Ordering::Relaxed));
        let rested = waiting.map(|standing| (standing.last_moved(), standing));
        let longest = rested
            .filter(|(since, _)| since.elapsed() >= LEAST_REST)
            .min_by_key(|(since, _)| *since);
        let Some((_, standing)) = longest else { return false };
        standing.close();
        self.refusals.note(standing.peer);
        true
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Standing>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, which has a place until the returned value is dropped.
    fn enter(self: &Arc<Self>, peer: IpAddr) -> Stay {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let standing = Arc::new(Standing {
            peer,
            requests: AtomicUsize::new(0),
            moved: Mutex::new(Instant::now()),
            is_known: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            leaves: Notify::new(),
        });
        self.open().insert(number, Arc::clone(&standing));
        Stay {
            places: Arc::clone(self),
            number,
            standing,
        }
    }

    /// Whether the connection of a request for this path should be closed to make room.
    fn is_given_up(&self, path: &str) -> bool {
        let is_poll = path.starts_with("/agent/") && path != CONNECTION_PATH;
        is_poll && self.is_wanted.swap(false, Ordering::Relaxed)
    }
}

struct Stay {
    places: Arc<Places>,
    number: u64,
    standing: Arc<Standing>,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.places.open().remove(&self.number);
    }
}

struct Connection {
    peer: SocketAddr,
    router: Router,
    tls: Option<TlsAcceptor>,
    patience: Patience,
    shutdown: CancellationToken,
    places: Arc<Places>,
    place: Place,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let Place { yielding, yields } = self.place.clone();
        let mut serving = Box::pin(self.serve_stream(stream));
        let Some(yielding) = yielding else { return serving.await };
        tokio::select! {
            () = &mut serving => return,
            () = yields.cancelled() => {}
        }
        // The whole connection moves: the running request, the encryption and sending of its answer, and later
        // requests. The panic hook has reported a panic there, which ends only this connection.
        let _ = AbortOnDropHandle::new(yielding.threads.spawn(serving)).await;
    }

    async fn serve_stream(self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self.serve_http(stream, false).await;
        };
        let handshake = timeout(self.patience.handshake, tls.accept(stream));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = self.shutdown.cancelled() => return,
        };
        match accepted {
            Ok(Ok(stream)) => {
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                self.serve_http(stream, http2).await;
            }
            // Scanners and clients that don't trust the hub yet: no matter for an operator.
            Ok(Err(error)) => tracing::debug!(peer = %self.peer, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(peer = %self.peer, "TLS handshake took too long"),
        }
    }

    async fn serve_http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, http2: bool) {
        let (asked, leaves) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let stay = self.places.enter(self.peer.ip());
        let standing = Arc::clone(&stay.standing);
        let builder = builder(self.place.clone());

        let service = {
            let (router, asked, leaves) = (self.router, Arc::clone(&asked), Arc::clone(&leaves));
            let peer = ConnectInfo(self.peer);
            service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
                asked.notify_one();
                self.place.note(request.uri().path());
                if self.places.is_given_up(request.uri().path()) {
                    leaves.notify_one();
                }
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(Closer(Arc::clone(&standing)));
                let (router, standing) = (router.clone(), Arc::clone(&standing));
                let under_way = standing.begin();
                async move {
                    // A client that sends `Expect: 100-continue` has not sent its body yet. Over HTTP/2 clients send it
                    // without waiting.
                    let sends = http2 || !request.headers().contains_key(http::header::EXPECT);
                    let (parts, body) = request.into_parts();
                    let (body, rest) = unread::split(body);
                    let response = router
                        .oneshot(http::Request::from_parts(parts, Body::new(body)))
                        .await?;
                    if sends {
                        rest.drain().await;
                    }
                    standing.note(&response);
                    // The request is running until its body is sent.
                    Ok::<_, Infallible>(response.map(|body| Answer {
                        body,
                        _under_way: under_way,
                    }))
                }
            })
        };

        // The negotiated protocol: guessing it from the first bytes could wait forever.
        let builder = if http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        };
        let connection =
            builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let mut is_first = true;
        let mut is_ending = false;
        let mut looks = interval(LOOK_FOR_REST);
        let mut first_request = std::pin::pin!(sleep(self.patience.first_request));
        // For a connection that was chosen to close, if its client doesn't read the answer.
        let mut end = std::pin::pin!(sleep(Duration::MAX));

        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = %self.peer, error = &*error, "a connection broke");
                    }
                    return;
                }
                () = asked.notified(), if is_first => is_first = false,
                () = first_request.as_mut(), if is_first => return,
                () = end.as_mut(), if is_ending => return,
                () = self.shutdown.cancelled(), if !is_ending => is_ending = true,
                () = leaves.notified(), if !is_ending => is_ending = true,
                () = stay.standing.leaves.notified(), if !is_ending => {
                    is_ending = true;
                    end.as_mut().reset(tokio::time::Instant::now() + LAST_WORDS);
                }
                _ = looks.tick(), if http2 && !is_ending => {
                    is_ending = stay.standing.rests_since().is_some_and(|since| since.elapsed() >= REST);
                }
            }

            if is_ending {
                // After the running requests.
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The threads that serve a connection. Shared with the requests of an HTTP/2 connection, because the first request
/// that yields to others is already running when the connection moves.
#[derive(Clone)]
struct Place {
    yielding: Option<Yielding>,
    /// Cancelled by the first request that yields to others.
    yields: CancellationToken,
}

impl Place {
    fn note(&self, path: &str) {
        if self
            .yielding
            .as_ref()
            .is_some_and(|yielding| (yielding.gives_way)(path))
        {
            self.yields.cancel();
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Place {
    fn execute(&self, work: F) {
        match &self.yielding {
            Some(yielding) if self.yields.is_cancelled() => drop(yielding.threads.spawn(work)),
            _ => drop(tokio::spawn(work)),
        }
    }
}

fn builder(place: Place) -> auto::Builder<Place> {
    let mut builder = auto::Builder::new(place);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES as u32)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    builder
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use prometheus_client::metrics::gauge::Gauge;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{answers::Answers, auth::User};

    async fn name_of_thread() -> String {
        // The first answer waits, so that the connection moves during a request.
        sleep(Duration::from_millis(10)).await;
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    async fn ask(client: &mut TcpStream, path: &str) -> String {
        client
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: hub\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = vec![0; 4096];
        let read = client.read(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer[..read].to_vec()).unwrap();
        answer.rsplit("\r\n").next().unwrap().to_owned()
    }

    /// Without TLS.
    fn server(listener: TcpListener, router: Router, max_connections: usize) -> Server {
        Server {
            listener,
            tls: None,
            router,
            max_connections,
            patience: Patience::default(),
            count: Box::new(|| Counted::new(Gauge::default())),
            refusals: Arc::default(),
            yielding: None,
        }
    }

    async fn is_open(client: &mut TcpStream) -> bool {
        match timeout(Duration::from_millis(200), client.read_u8()).await {
            Ok(ended) => ended.is_ok(),
            Err(_) => true,
        }
    }

    #[tokio::test]
    async fn a_connection_is_served_by_the_threads_that_give_way_once_it_asked_for_what_does() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let threads = Arc::new(ApiThreads::start().unwrap());
        let yielding = Some(Yielding {
            gives_way: |path| path.starts_with("/api"),
            threads,
        });
        let server = Server {
            yielding,
            ..server(listener, Router::new().fallback(name_of_thread), 8)
        };
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(server.serve(shutdown.clone(), Duration::from_secs(5)));

        let (mut agent, mut client) = (
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
        );
        assert_ne!(ask(&mut client, "/agent/v1/desired").await, "api");
        assert_eq!(ask(&mut client, "/api/v1/configmaps").await, "api");
        assert_eq!(ask(&mut client, "/version").await, "api", "it stays there");
        assert_ne!(ask(&mut agent, "/agent/v1/desired").await, "api");
        shutdown.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn who_polls_gives_its_place_up_to_who_waits_for_one_and_nobody_else_does() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(|| async { (axum::Extension(Known), "answer") });
        let server = server(listener, router, 3);
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(server.serve(shutdown.clone(), Duration::from_secs(5)));
        let connect = async || TcpStream::connect(address).await.unwrap();

        let (mut one, mut other) = (connect().await, connect().await);
        assert_eq!(ask(&mut one, "/agent/v1/desired").await, "answer");
        assert_eq!(ask(&mut other, "/agent/v1/desired").await, "answer");
        let mut person = connect().await;
        assert_eq!(ask(&mut person, "/api/v1/configmaps").await, "answer");
        // All places are taken now. The first agent that polls loses its connection; a client with another request does
        // not.
        assert_eq!(ask(&mut person, "/api/v1/configmaps").await, "answer");
        assert_eq!(ask(&mut one, "/agent/v1/desired").await, "answer");
        assert_eq!(ask(&mut other, "/agent/v1/desired").await, "answer");
        assert!(!is_open(&mut one).await);
        assert!(is_open(&mut other).await && is_open(&mut person).await);
        let mut late = connect().await;
        assert_eq!(ask(&mut late, "/api/v1/configmaps").await, "answer");
        shutdown.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn the_unauthenticated_connection_that_rested_longest_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let known = Router::new().route(
            "/known",
            axum::routing::get(|| async { (axum::Extension(Known), "answer") }),
        );
        let server = server(listener, known.fallback(|| async { "answer" }), 3);
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(server.serve(shutdown.clone(), Duration::from_secs(5)));
        let connect = async || TcpStream::connect(address).await.unwrap();
        let mut known = connect().await;
        assert_eq!(ask(&mut known, "/known").await, "answer");
        let mut stranger = connect().await;
        assert_eq!(ask(&mut stranger, "/healthz").await, "answer");
        for _ in 0..3 {
            let mut next = connect().await;
            assert_eq!(ask(&mut next, "/healthz").await, "answer");
            // It has been idle for longer.
            assert!(
                timeout(Duration::from_secs(30), stranger.read_u8())
                    .await
                    .unwrap()
                    .is_err()
            );
            stranger = next;
        }
        assert_eq!(ask(&mut known, "/known").await, "answer");
        shutdown.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_leaves_a_long_answer_unread_is_closed() {
        const LONG: usize = 32 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Answers::default());
        let answer = |request: axum::extract::Request| async move {
            let connection = request.extensions().get::<Closer>().cloned();
            let response = axum::response::Response::new(Body::from(vec![b'a'; LONG]));
            answers
                .of(&User::service_account("team-a", "ada", "1"))
                .hold(response, true, connection)
                .await
        };
        let shutdown = CancellationToken::new();
        let server = server(listener, Router::new().fallback(answer), 3);
        let serving = tokio::spawn(server.serve(shutdown.clone(), Duration::from_secs(5)));
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = ask(&mut client, "/").await;
        assert!(head.starts_with('a'), "it has begun to read: {head}");

        tokio::time::pause();
        sleep(Duration::from_secs(60 * 60)).await;
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest).await;
        assert!(rest.len() < LONG, "the rest was never sent");
        shutdown.cancel();
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn over_http2_a_body_that_a_refusal_left_unread_is_taken_before_the_answer() {
        const PIECES: usize = 32;
        let (client, hub) = tokio::io::duplex(64 << 10);
        let connection = Connection {
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            router: Router::new().fallback(|| async { http::StatusCode::UNAUTHORIZED }),
            tls: None,
            patience: Patience::default(),
            shutdown: CancellationToken::new(),
            places: Arc::new(Places::new(3, Arc::default())),
            place: Place {
                yielding: None,
                yields: CancellationToken::new(),
            },
        };
        tokio::spawn(connection.serve_http(hub, true));
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, TokioIo::new(client))
            .await
            .unwrap();
        tokio::spawn(connection);
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let pieces = futures::stream::iter(0..PIECES).map(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; 64 << 10]))
        });
        let request = http::Request::post("https://hub/api")
            .body(Body::from_stream(pieces))
            .unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 401);
        assert_eq!(taken.load(Ordering::Relaxed), PIECES);
    }
}
