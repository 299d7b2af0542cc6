//! A small HTTPS server for tests. It plays the servers that an API server calls: webhooks and kubelets.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{net::TcpListener, task::AbortHandle};
use tokio_rustls::TlsAcceptor;

use crate::authority::Authority;

/// Ends when dropped.
pub struct Https {
    address: SocketAddr,
    authority: Authority,
    task: AbortHandle,
}

impl Drop for Https {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Https {
    /// Answers each request with the result of `answer` for its body.
    pub async fn start(answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> Result<Self> {
        let authority = Authority::new("authority of a test's server")?;
        let tls = TlsAcceptor::from(Arc::new(configuration(&authority)?));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(listener, tls, Arc::new(answer))).abort_handle();
        Ok(Self {
            address,
            authority,
            task,
        })
    }

    pub fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// PEM of the authority of its certificate.
    pub fn authority(&self) -> &str {
        self.authority.pem()
    }
}

pub fn configuration(authority: &Authority) -> Result<rustls::ServerConfig> {
    let pair = authority.issue(&["127.0.0.1"], 24)?;
    let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).context("read a certificate")?];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).context("read a key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    answer: Arc<impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static>,
) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, answer) = (tls.clone(), Arc::clone(&answer));
        connections.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = Arc::clone(&answer);
                async move {
                    let body = request.into_body().collect().await?.to_bytes();
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(answer(&body)))))
                }
            });
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
