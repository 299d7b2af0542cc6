//! A minimal client for HTTP/1.1 over TLS. It generates load with little processor time of its own.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Connects to one server.
#[derive(Clone)]
pub struct Dial {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

/// One connection, with one request at a time.
pub struct Connection(SendRequest<Full<Bytes>>);

impl Dial {
    /// A client for the server at `https://HOST:PORT`. `authority`: PEM of the authority of its certificate.
    pub fn new(url: &str, authority: &str) -> Result<Self> {
        let Some(address) = url.strip_prefix("https://") else {
            bail!("{url} is not an https URL")
        };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).context("read an authority")?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).context("the server's name")?;
        Ok(Self {
            address: address.to_owned(),
            name,
            tls: TlsConnector::from(Arc::new(tls)),
        })
    }

    pub async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(&self.address)
            .await
            .with_context(|| format!("connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(self.name.clone(), stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection(sender))
    }
}

impl Connection {
    /// Sends a request that must succeed. Returns the bytes of the answer's body.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<u64> {
        let path = request.uri().path().to_owned();
        self.0.ready().await?;
        let mut answer = self.0.send_request(request.map(Full::new)).await?;
        let code = answer.status();
        let mut length = 0;
        while let Some(frame) = answer.frame().await {
            length += frame?.data_ref().map_or(0, |piece| piece.len() as u64);
        }
        ensure!(code.is_success(), "{path}: {code}");
        Ok(length)
    }
}
