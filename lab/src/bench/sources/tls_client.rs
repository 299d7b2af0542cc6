//! A minimal client: it sends requests over persistent connections and only counts the answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{net::TcpStream, task::JoinSet};
use tokio_rustls::TlsConnector;

/// A server on this machine, with its certificate and credentials.
#[derive(Clone)]
pub struct Target {
    pub name: &'static str,
    port: u16,
    authorization: String,
    tls: TlsConnector,
}

/// Answers in a period of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answers {
    pub count: usize,
    pub bytes: usize,
}

impl Target {
    /// `authority`: PEM of the authority of its certificate.
    pub fn new(name: &'static str, port: u16, authority: &str, authorization: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).context("read an authority")?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        Ok(Self {
            port,
            name,
            authorization: format!("Bearer {authorization}"),
            tls,
        })
    }

    async fn connect(&self) -> Result<SendRequest<Empty<Bytes>>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::try_from("127.0.0.1")?, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn get(&self, sender: &mut SendRequest<Empty<Bytes>>, path: &str) -> Result<Bytes> {
        let request = Request::get(path).header(header::HOST, "127.0.0.1");
        let request = request
            .header(header::AUTHORIZATION, &self.authorization)
            .body(Empty::new())?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status == StatusCode::OK, "{} answers {path} with {status}", self.name);
        Ok(body)
    }

    /// Fetches one answer.
    pub async fn fetch(&self, path: &str) -> Result<Bytes> {
        self.get(&mut self.connect().await?, path).await
    }

    /// Requests these paths one after the other, over so many connections, for so long.
    pub async fn load(&self, paths: &Arc<Vec<String>>, connections: usize, lasts: Duration) -> Result<Answers> {
        let mut tasks = JoinSet::new();
        for first in 0..connections {
            let (target, paths) = (self.clone(), Arc::clone(paths));
            let mut sender = target.connect().await?;
            tasks.spawn(async move {
                let (begun, mut answers) = (Instant::now(), Answers::default());
                for path in paths.iter().cycle().skip(first * paths.len() / connections) {
                    if begun.elapsed() >= lasts {
                        break;
                    }
                    let body = target.get(&mut sender, path).await?;
                    answers.count += 1;
                    answers.bytes += body.len();
                }
                anyhow::Ok(answers)
            });
        }
        let mut all = Answers::default();
        while let Some(answers) = tasks.join_next().await {
            let answers = answers??;
            all.count += answers.count;
            all.bytes += answers.bytes;
        }
        Ok(all)
    }
}
