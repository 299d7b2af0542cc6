//! The certificates of a server, trusted or not, to find what is wrong with them.

use std::sync::Arc;

use farwater_api::Digest;
use farwater_hub::identity::certificate_end;
use http::Uri;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The certificates that a server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// End of its own certificate, in seconds since 1970.
    pub server_end: Option<i64>,
    /// The last certificate of the chain: for a hub's own certificate, its authority.
    pub authority: Option<Authority>,
    /// Digests of all but the server's own certificate, including former authorities.
    pub pins: Vec<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Digest as agents pin it.
    pub pin: Digest,
    pub end: Option<i64>,
}

/// Makes a TLS handshake with a server, without any request.
pub async fn look(server: &str) -> std::io::Result<Shown> {
    let wrong = |problem: &str| std::io::Error::other(format!("{server} {problem}"));
    let uri: Uri = server.parse().map_err(|_| wrong("is no URL"))?;
    let host = uri
        .host()
        .ok_or_else(|| wrong("names no host"))?
        .trim_matches(['[', ']'])
        .to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    let name = ServerName::try_from(host).map_err(|_| wrong("has a host that no certificate can name"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Looker(provider)))
        .with_no_client_auth();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let authorities = chain.get(1..).unwrap_or_default();
    let pins = authorities
        .iter()
        .map(|certificate| Digest::of(certificate.as_ref()))
        .collect();
    let authority = authorities.last().map(|certificate| Authority {
        pin: Digest::of(certificate.as_ref()),
        end: certificate_end(certificate),
    });
    Ok(Shown {
        server_end: chain.first().and_then(|certificate| certificate_end(certificate)),
        authority,
        pins,
    })
}

/// Accepts any certificate: nothing is sent to the server, and nothing from it is trusted.
#[derive(Debug)]
struct Looker(Arc<CryptoProvider>);

impl ServerCertVerifier for Looker {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
