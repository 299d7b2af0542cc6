//! Requests to an OTLP endpoint, with the HTTP and TLS libraries of the programs.
//!
//! Threads of the SDK make batches. The program's runtime sends the requests, so that all requests use one client.

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

/// Maximum time of a request. Batches wait meanwhile, and the SDK drops the oldest.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes. Answers are short.
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
    /// Whether the last request failed. Only the first failure is logged.
    is_failing: Arc<AtomicBool>,
}

impl Sender {
    /// `certificate`: PEM file of the authorities for the endpoint. None: the system's.
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
                // A system without authorities can only send without TLS.
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
                    "the OTLP endpoint does not accept logs and traces; batches that wait too long are dropped"
                )
            }
            None if was_failing => tracing::info!("the OTLP endpoint accepts logs and traces again"),
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
        // Create timers in the runtime too, because threads of the SDK have none.
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
