//! Trust in the hub: its certificate authority is known by digest, not by the system's roots.

use std::sync::{Arc, OnceLock};

use farwater_api::Digest;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Finds the pinned authority in the presented chain, then verifies the chain against it and nothing else: name,
/// validity and signatures as usual.
#[derive(Debug)]
struct PinnedAuthority {
    pin: Digest,
    provider: Arc<CryptoProvider>,
    verifier: OnceLock<Arc<WebPkiServerVerifier>>,
}

impl PinnedAuthority {
    fn verifier(&self, chain: &[CertificateDer<'_>]) -> Result<&Arc<WebPkiServerVerifier>, Error> {
        if let Some(verifier) = self.verifier.get() {
            return Ok(verifier);
        }
        let authority = chain.iter().find(|cert| Digest::of(cert.as_ref()) == self.pin).ok_or_else(|| {
            Error::General(format!("the server presents no certificate authority with the pinned digest {}", self.pin))
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone())
            .build()
            .map_err(|e| Error::General(e.to_string()))?;
        Ok(self.verifier.get_or_init(|| verifier))
    }
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if Digest::of(end_entity.as_ref()) == self.pin {
            // The pin names an authority. A leaf that is its own root would skip the checks of a chain.
            return Err(CertificateError::UnknownIssuer.into());
        }
        self.verifier(intermediates)?.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A client configuration that trusts only servers under the authority with this digest.
pub fn client_config(pin: Digest) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = PinnedAuthority { pin, provider: provider.clone(), verifier: OnceLock::new() };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}
