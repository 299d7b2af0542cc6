//! Endpoints for the agent's node: whether the agent lives, whether its hub knows it, and its metrics. They accept no
//! input and reveal nothing else.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use farwater_telemetry::exposition;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use crate::metrics::Metrics;

/// A node opens a new connection for each request and closes it.
const CONNECTIONS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 16 << 10;

#[derive(Clone, Debug)]
pub struct Health {
    /// Set once the hub has recognized the agent: a new version that never gets there does not replace the old one.
    ready: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Health {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            ready: Arc::default(),
            metrics,
        }
    }

    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let told = |status, text: &'static str| {
            let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
            *response.status_mut() = status;
            response
        };
        match request.uri().path() {
            _ if request.method() != Method::GET => told(StatusCode::METHOD_NOT_ALLOWED, "GET only\n"),
            // The agent runs on one thread, so an answer shows that nothing blocks it.
            "/livez" => told(StatusCode::OK, "ok\n"),
            "/readyz" if self.is_ready() => told(StatusCode::OK, "ok\n"),
            "/readyz" => told(
                StatusCode::SERVICE_UNAVAILABLE,
                "the hub has not answered this agent yet\n",
            ),
            "/metrics" => {
                let mut response = Response::new(Full::new(Bytes::from(self.metrics.text())));
                let kind = HeaderValue::from_static(exposition::CONTENT_TYPE);
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                response
            }
            _ => told(StatusCode::NOT_FOUND, "not found\n"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for questions about the agent's health")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Listens until dropped.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ListenError { address, source })
}

pub async fn serve(listener: TcpListener, health: Health) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let health = health.clone();
                tokio::spawn(async move {
                    serve_connection(stream, health).await;
                    drop(place);
                });
            }
            // Usually there are no file descriptors: retrying at once would only use the processor.
            Err(error) => {
                tracing::debug!(%error, "a question about the agent's health could not be accepted");
                tokio::time::sleep(PATIENCE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, health: Health) {
    let service = service_fn(move |request: Request<Incoming>| {
        std::future::ready(Ok::<_, std::convert::Infallible>(health.answer(&request)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A slow or silent client must not occupy a place for long.
    let _ = timeout(PATIENCE, connection).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(address: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("{line} HTTP/1.1\r\nhost: agent\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn the_agent_lives_before_it_is_ready() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let health = Health::new(Metrics::start());
        let serving = tokio::spawn(serve(listener, health.clone()));
        assert_eq!(ask(address, "GET /livez").await, "HTTP/1.1 200 OK");
        assert_eq!(ask(address, "GET /readyz").await, "HTTP/1.1 503 Service Unavailable");
        health.set_ready();
        assert_eq!(ask(address, "GET /readyz").await, "HTTP/1.1 200 OK");
        assert_eq!(ask(address, "GET /metrics").await, "HTTP/1.1 200 OK");
        assert_eq!(ask(address, "GET /").await, "HTTP/1.1 404 Not Found");
        assert_eq!(ask(address, "POST /livez").await, "HTTP/1.1 405 Method Not Allowed");
        serving.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_hung_up_on() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, Health::new(Metrics::start())));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(ask(address, "GET /livez").await, "HTTP/1.1 200 OK");
        serving.abort();
    }
}
