//! A proxy between an agent and its hub that records their messages, for the traces under `tests/wire`.

use std::{
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::{
    Hub,
    authority::Authority,
    wait_for,
    wire::{ACCESS_TOKEN, Answer, Body, Exchange, Request},
};

/// Headers that have a meaning for hub and agent, besides `farwater-…`.
const HEADERS: [&str; 8] = [
    "accept-encoding",
    "authorization",
    "content-encoding",
    "content-type",
    "etag",
    "if-none-match",
    "retry-after",
    "user-agent",
];
/// Maximum time until a recording contains an expected message.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Log {
    exchanges: Vec<Exchange>,
    /// Index and name of each example that is kept.
    kept: Vec<(usize, String)>,
    /// The agent's `authorization` header.
    access: Option<HeaderValue>,
}

/// A reverse proxy with a certificate of its own authority.
#[derive(Clone)]
pub struct Recorder {
    address: SocketAddr,
    hub: SocketAddr,
    authority: String,
    upstream: TlsConnector,
    log: Arc<Mutex<Log>>,
}

impl Recorder {
    pub async fn start(hub: &Hub) -> Result<Self> {
        let authority = Authority::new("recording authority")?;
        let pair = authority.issue(&["127.0.0.1"], 24)?;
        let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).context("read a certificate")?];
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("read a key")?;
        let mut tls = rustls::ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut roots = rustls::RootCertStore::empty();
        let ca = fs::read(hub.dir().join("keys/ca.crt")).context("read the hub's authority")?;
        roots.add(CertificateDer::from_pem_slice(&ca).context("read the hub's authority")?)?;
        let client = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let recorder = Self {
            address: listener.local_addr()?,
            hub: (Ipv4Addr::LOCALHOST, hub.port()).into(),
            authority: authority.pem().to_owned(),
            upstream: TlsConnector::from(Arc::new(client)),
            log: Arc::default(),
        };
        tokio::spawn(recorder.clone().serve(listener, TlsAcceptor::from(Arc::new(tls))));
        Ok(recorder)
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// PEM of the authority that a recorded agent must trust.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, listener: TcpListener, tls: TlsAcceptor) {
        while let Ok((stream, _)) = listener.accept().await {
            let (recorder, tls) = (self.clone(), tls.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let service = service_fn(move |request| {
                    let recorder = recorder.clone();
                    async move { Ok::<_, Infallible>(recorder.pass_on(request).await) }
                });
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn pass_on(&self, request: http::Request<Incoming>) -> http::Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let answered = async {
            let body = body.collect().await?.to_bytes();
            anyhow::Ok(self.forward(http::Request::from_parts(parts, body)).await?.0)
        };
        answered.await.unwrap_or_else(|_| {
            let mut answer = http::Response::new(Full::default());
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            answer
        })
    }

    /// Sends a request to the hub and records both messages. Returns their index, too.
    async fn forward(&self, request: http::Request<Bytes>) -> Result<(http::Response<Full<Bytes>>, usize)> {
        let stream = TcpStream::connect(self.hub).await?;
        let stream = self.upstream.connect(ServerName::from(self.hub.ip()), stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let asked = self.take_request(&request);
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut upstream = http::Request::builder()
            .method(parts.method)
            .uri(path)
            .header(header::HOST, self.hub.to_string());
        for (name, value) in parts.headers.iter().filter(|(name, _)| *name != header::HOST) {
            upstream = upstream.header(name, value);
        }
        let (parts, body) = sender.send_request(upstream.body(Full::new(body))?).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        let answer = Answer {
            status: parts.status.as_u16(),
            headers: meant(&parts.headers),
            body: Body::of(&decode(&parts.headers, &body)?),
        };
        let place = {
            let mut log = self.log();
            log.exchanges.push(Exchange {
                name: String::new(),
                request: asked,
                answer,
            });
            log.exchanges.len() - 1
        };
        let mut answer = http::Response::new(Full::new(body));
        *answer.status_mut() = parts.status;
        for (name, value) in parts
            .headers
            .iter()
            .filter(|(name, _)| **name != header::TRANSFER_ENCODING)
        {
            answer.headers_mut().append(name, value.clone());
        }
        Ok((answer, place))
    }

    fn take_request(&self, request: &http::Request<Bytes>) -> Request {
        let mut headers = meant(request.headers());
        if let Some(value) = request.headers().get(header::AUTHORIZATION)
            && !value.as_bytes().ends_with(b" nonsense")
        {
            self.log().access = Some(value.clone());
            headers.insert("authorization".to_owned(), ACCESS_TOKEN.to_owned());
        }
        Request {
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            headers,
            body: Body::of(request.body()),
        }
    }

    /// Sends a recorded request to the hub in place of the agent, and keeps it with this name.
    pub async fn ask(
        &self,
        name: &str,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Exchange> {
        let access = self.log().access.clone().context("no agent was heard")?;
        self.ask_as(access, name, method, path, body).await
    }

    /// Sends a recorded request with an access token that was never issued.
    pub async fn ask_as_nobody(&self, name: &str, path: &str) -> Result<Exchange> {
        self.ask_as(HeaderValue::from_static("Bearer nonsense"), name, "GET", path, None)
            .await
    }

    async fn ask_as(
        &self,
        access: HeaderValue,
        name: &str,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> Result<Exchange> {
        let mut request = http::Request::builder().method(method).uri(path);
        if path != "/agent/v1/join" && path != "/agent/v1/token" {
            request = request.header(header::AUTHORIZATION, access);
        }
        request = request.header(
            farwater_api::protocol::PROTOCOL_HEADER,
            farwater_api::protocol::PROTOCOL,
        );
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let bytes = body.map(ToString::to_string).unwrap_or_default();
        let (_, place) = self.forward(request.body(bytes.into())?).await?;
        let mut log = self.log();
        log.kept.push((place, name.to_owned()));
        Ok(log.exchanges[place].clone())
    }

    /// Waits for an example and keeps it with this name: the first one that is not kept yet.
    pub async fn keep(&self, name: &str, is_example: impl Fn(&Exchange) -> bool) -> Result<Exchange> {
        let find = || {
            let mut log = self.log();
            let is_free = |n: &usize| !log.kept.iter().any(|(kept, _)| kept == n);
            let found = (0..log.exchanges.len())
                .filter(is_free)
                .find(|n| is_example(&log.exchanges[*n]))?;
            log.kept.push((found, name.to_owned()));
            Some(log.exchanges[found].clone())
        };
        wait_for(&format!("an example of: {name}"), PATIENCE, || async { Ok(find()) }).await
    }

    /// The kept examples, in the order of their messages.
    pub fn kept(&self) -> Vec<Exchange> {
        let log = self.log();
        let mut kept = log.kept.clone();
        kept.sort();
        kept.into_iter()
            .map(|(n, name)| Exchange {
                name,
                ..log.exchanges[n].clone()
            })
            .collect()
    }
}

fn meant(headers: &HeaderMap) -> std::collections::BTreeMap<String, String> {
    let is_meant = |name: &str| HEADERS.contains(&name) || name.starts_with("farwater-");
    let meant = headers.iter().filter(|(name, _)| is_meant(name.as_str()));
    meant
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
        .collect()
}

fn decode(headers: &HeaderMap, body: &Bytes) -> Result<Vec<u8>> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(coding) if coding == "zstd" => Ok(zstd::decode_all(body.as_ref())?),
        _ => Ok(body.to_vec()),
    }
}
