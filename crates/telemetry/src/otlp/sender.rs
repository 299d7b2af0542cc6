//! Requests to an OTLP endpoint, over the programs' own HTTP and TLS.
//!
//! Batches are made on threads of the SDK; requests are sent by the program's runtime, so that there is one way out.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_http::{HttpClient, HttpError};
use rustls::{ClientConfig, RootCertStore, pki_types::CertificateDer, pki_types::pem::PemObject as _};
use tokio::{runtime::Handle, time::timeout};

/// Beyond it an endpoint is as good as away; batches wait meanwhile, and the oldest go.
const PATIENCE: Duration = Duration::from_secs(10);
/// An endpoint has little to say.
const MAX_ANSWER: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    #[error("read the authorities of the OTLP endpoint from {}", path.display())]
    Certificate {
        path: PathBuf,
        source: rustls::pki_types::pem::Error,
    },
    #[error("trust the authorities of the OTLP endpoint")]
    Trust(#[from] rustls::Error),
    #[error("send over OTLP: there is no runtime")]
    Runtime(#[from] tokio::runtime::TryCurrentError),
}

#[derive(Clone, Debug)]
pub struct Sender {
    runtime: Handle,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Whether the last request failed: told once, not each time.
    is_failing: Arc<AtomicBool>,
}

impl Sender {
    /// `certificate`: authorities of the endpoint as PEM; the system's if absent.
    pub fn new(certificate: Option<&Path>) -> Result<Self, SenderError> {
        let mut roots = RootCertStore::empty();
        match certificate {
            Some(path) => {
                let wrong = |source| SenderError::Certificate {
                    path: path.to_owned(),
                    source,
                };
                for certificate in CertificateDer::pem_file_iter(path).map_err(wrong)? {
                    roots.add(certificate.map_err(wrong)?)?;
                }
            }
            None => {
                // A system without any is one that sends in the clear, or not at all.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(PATIENCE));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .build(connector);
        Ok(Self {
            runtime: Handle::try_current()?,
            client,
            is_failing: Arc::default(),
        })
    }

    fn note(&self, outcome: &Result<Response<Bytes>, HttpError>) {
        let problem = match outcome {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_failing => {
                tracing::warn!(
                    problem,
                    "the OTLP endpoint takes nothing; what waits too long is dropped"
                )
            }
            None if was_failing => tracing::info!("the OTLP endpoint takes logs and traces again"),
            _ => {}
        }
    }
}

async fn send(
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        // Timers are made in the runtime, too: a thread of the SDK has none.
        let sending = self
            .runtime
            .spawn(async move { timeout(PATIENCE, send(client, request)).await });
        let outcome = match sending.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(format!("no answer within {} s", PATIENCE.as_secs()).into()),
            Err(ended) => Err(ended.into()),
        };
        self.note(&outcome);
        outcome
    }
}
