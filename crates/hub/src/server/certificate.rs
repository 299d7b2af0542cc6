//! The certificate that the hub shows, and its renewal.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::time::sleep;

use crate::{
    Hub,
    identity::{Mounted, ServerNames, end_of},
};

/// How often the server's certificate is checked for renewal, and how often mounted files are read.
pub(super) const RENEWAL: Duration = Duration::from_secs(3600);

pub(super) const RELOAD: Duration = Duration::from_secs(3);

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

    pub(super) async fn reload(&self, hub: &Hub, mut mounted: Mounted) {
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

    pub(super) async fn renew(&self, hub: &Hub, names: &ServerNames) {
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
