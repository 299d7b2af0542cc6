//! Connections: TLS, HTTP/1.1 and HTTP/2, limits against slow and many clients, and an orderly shutdown.

mod certificate;
mod places;
mod standing;

use std::{convert::Infallible, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use axum::{BoxError, Router, body::Body, extract::ConnectInfo};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tower::{ServiceExt as _, service_fn};

use crate::{ApiThreads, config::Patience, metrics::Counted, refusals::Refusals, unread};
pub use certificate::{Certificate, Renewal, tls_config};
use places::Places;
pub use standing::Closer;
use standing::{Answer, Standing};

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
                        place: ServingThreads {
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
pub struct KnownClient;

struct Connection {
    peer: SocketAddr,
    router: Router,
    tls: Option<TlsAcceptor>,
    patience: Patience,
    shutdown: CancellationToken,
    places: Arc<Places>,
    place: ServingThreads,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let ServingThreads { yielding, yields } = self.place.clone();
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
        let stay = self.places.enter(self.peer.ip());
        let standing = Arc::clone(&stay.standing);
        let life = Life {
            peer: self.peer,
            http2,
            first_request: self.patience.first_request,
            shutdown: self.shutdown,
            asked: Arc::default(),
            leaves: Arc::default(),
            standing: Arc::clone(&standing),
        };

        let builder = builder(self.place.clone());
        let service = {
            let (router, asked, leaves) = (self.router, Arc::clone(&life.asked), Arc::clone(&life.leaves));
            let peer = ConnectInfo(self.peer);
            service_fn(move |mut request: http::Request<Incoming>| {
                asked.notify_one();
                self.place.note(request.uri().path());
                if self.places.is_given_up(request.uri().path()) {
                    leaves.notify_one();
                }
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(Closer(Arc::clone(&standing)));
                answer(router.clone(), request, standing.begin(), http2)
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
        let connection = std::pin::pin!(connection);
        life.run_until_end(connection, |connection| connection.graceful_shutdown())
            .await;
    }
}

/// Answers a request, which is running until its answer's body is sent.
async fn answer(
    router: Router,
    request: http::Request<Incoming>,
    under_way: standing::Request,
    http2: bool,
) -> Result<http::Response<Answer>, Infallible> {
    // A client that sends `Expect: 100-continue` has not sent its body yet. Over HTTP/2 clients send it without waiting.
    let sends = http2 || !request.headers().contains_key(http::header::EXPECT);
    let (parts, body) = request.into_parts();
    let (body, rest) = unread::split(body);
    let response = router
        .oneshot(http::Request::from_parts(parts, Body::new(body)))
        .await?;
    if sends {
        rest.drain().await;
    }
    under_way.0.note_response(&response);
    Ok(response.map(|body| Answer {
        body,
        _under_way: under_way,
    }))
}

/// The events that end a connection.
struct Life {
    peer: SocketAddr,
    http2: bool,
    /// Time limit for the first request.
    first_request: Duration,
    shutdown: CancellationToken,
    /// Notified by each request.
    asked: Arc<Notify>,
    /// Notified by a request whose connection is given up.
    leaves: Arc<Notify>,
    standing: Arc<Standing>,
}

impl Life {
    /// Runs a connection until it ends. `finish`: lets the running requests end, and accepts no more.
    async fn run_until_end<C>(self, mut connection: Pin<&mut C>, finish: impl Fn(Pin<&mut C>))
    where
        C: Future<Output = Result<(), BoxError>>,
    {
        let mut is_first = true;
        let mut is_ending = false;
        let mut looks = interval(LOOK_FOR_REST);
        let mut first_request = std::pin::pin!(sleep(self.first_request));
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
                () = self.asked.notified(), if is_first => is_first = false,
                () = first_request.as_mut(), if is_first => return,
                () = end.as_mut(), if is_ending => return,
                () = self.shutdown.cancelled(), if !is_ending => is_ending = true,
                () = self.leaves.notified(), if !is_ending => is_ending = true,
                () = self.standing.leaves.notified(), if !is_ending => {
                    is_ending = true;
                    end.as_mut().reset(tokio::time::Instant::now() + LAST_WORDS);
                }
                _ = looks.tick(), if self.http2 && !is_ending => {
                    is_ending = self.standing.rests_since().is_some_and(|since| since.elapsed() >= REST);
                }
            }
            if is_ending {
                finish(connection.as_mut());
            }
        }
    }
}

/// The threads that serve a connection. Shared with the requests of an HTTP/2 connection, because the first request
/// that yields to others is already running when the connection moves.
#[derive(Clone)]
struct ServingThreads {
    yielding: Option<Yielding>,
    /// Cancelled by the first request that yields to others.
    yields: CancellationToken,
}

impl ServingThreads {
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

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ServingThreads {
    fn execute(&self, work: F) {
        match &self.yielding {
            Some(yielding) if self.yields.is_cancelled() => drop(yielding.threads.spawn(work)),
            _ => drop(tokio::spawn(work)),
        }
    }
}

fn builder(place: ServingThreads) -> auto::Builder<ServingThreads> {
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

    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;

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
        let router = Router::new().fallback(|| async { (axum::Extension(KnownClient), "answer") });
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
            axum::routing::get(|| async { (axum::Extension(KnownClient), "answer") }),
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
            place: ServingThreads {
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
