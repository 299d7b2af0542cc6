//! Verification of the API server, and the agent's client certificate.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use zeroize::Zeroizing;

use super::{
    files::{Rotating, read_at_most},
    kubeconfig::{Cluster, User},
};
use crate::tls::{TrustError, parse_authorities, read_authorities, verifier_of};

/// Most bytes of a file: far more than any chain of certificates has.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Authorities(#[from] TrustError),
    #[error("use the certificate authorities that are given for it")]
    Unusable(#[source] Error),
    #[error(
        "the kubeconfig names no certificate authority for it, and this system has none: give certificate-authority or \
         certificate-authority-data"
    )]
    NoAuthority,
    #[error("read {field} from {}", path.display())]
    File {
        field: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("read {field}: {problem}")]
    Content { field: &'static str, problem: &'static str },
    #[error("the kubeconfig's user has {given} and no {missing}: give both")]
    Half { given: &'static str, missing: &'static str },
    #[error("use the client certificate with its key")]
    Identity(#[source] Error),
}

pub fn client_config(cluster: &Cluster, user: &User) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?;
    let builder = match verifier(cluster, &provider)? {
        Some(verifier) => builder.dangerous().with_custom_certificate_verifier(verifier),
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    match identity(user)? {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(TlsError::Identity),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The name that the server's certificate must have. None: that of its address.
pub fn server_name(cluster: &Cluster) -> Result<Option<ServerName<'static>>, TlsError> {
    let wrong = |_| TlsError::Content {
        field: "tls-server-name",
        problem: "it is no name of a host",
    };
    cluster
        .tls_server_name
        .clone()
        .map(ServerName::try_from)
        .transpose()
        .map_err(wrong)
}

/// None: the connection does not use TLS.
fn verifier(
    cluster: &Cluster,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ServerCertVerifier>>, TlsError> {
    if cluster.insecure_skip_tls_verify {
        tracing::warn!("the API server's certificate is not verified: the kubeconfig has insecure-skip-tls-verify");
        return Ok(Some(Arc::new(Unverified(Arc::clone(provider)))));
    }
    if let Some(data) = &cluster.certificate_authority_data {
        let field = "certificate-authority-data";
        let authorities = parse_authorities(&decode(field, data)?);
        let authorities = authorities.map_err(|problem| TlsError::Content { field, problem })?;
        let verifier = verifier_of(&authorities, provider).map_err(TlsError::Unusable)?;
        return Ok(Some(verifier));
    }
    if let Some(path) = &cluster.certificate_authority {
        return Ok(Some(Arc::new(AuthorityFile(Rotating::new(path, read_verifier)?))));
    }
    if cluster.server.starts_with("http://") {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
    let verifier = builder.build().map_err(|_| TlsError::NoAuthority)?;
    Ok(Some(verifier))
}

fn read_verifier(path: &Path) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let authorities = read_authorities(path)?;
    verifier_of(&authorities, &Arc::new(aws_lc_rs::default_provider())).map_err(TlsError::Unusable)
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(user: &User) -> Result<Option<Identity>, TlsError> {
    const CERTIFICATE: &str = "client-certificate";
    const KEY: &str = "client-key";
    let key = user.client_key_data.as_ref().map(|key| key.expose());
    let certificate = data_or_file(
        CERTIFICATE,
        user.client_certificate_data.as_deref(),
        user.client_certificate.as_deref(),
    )?;
    let key = data_or_file(KEY, key, user.client_key.as_deref())?;
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (None, None) => return Ok(None),
        (Some(_), None) => {
            return Err(TlsError::Half {
                given: CERTIFICATE,
                missing: KEY,
            });
        }
        (None, Some(_)) => {
            return Err(TlsError::Half {
                given: KEY,
                missing: CERTIFICATE,
            });
        }
    };
    let chain = parse_authorities(&certificate);
    let chain = chain.map_err(|problem| TlsError::Content {
        field: CERTIFICATE,
        problem,
    })?;
    // The error of a key is not repeated, because it would quote the key.
    let key = PrivateKeyDer::from_pem_slice(&key);
    let key = key.map_err(|_| TlsError::Content {
        field: KEY,
        problem: "it holds no private key as PEM",
    })?;
    Ok(Some((chain, key)))
}

/// As in kubectl, data in the kubeconfig itself takes precedence over a file.
fn data_or_file(
    field: &'static str,
    data: Option<&str>,
    file: Option<&Path>,
) -> Result<Option<Zeroizing<Vec<u8>>>, TlsError> {
    match (data, file) {
        (Some(data), _) => decode(field, data).map(Some),
        (None, Some(path)) => match read_at_most(path, MAX_FILE_BYTES) {
            Ok(bytes) => Ok(Some(Zeroizing::new(bytes))),
            Err(source) => Err(TlsError::File {
                field,
                path: path.to_owned(),
                source,
            }),
        },
        (None, None) => Ok(None),
    }
}

fn decode(field: &'static str, data: &str) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    // Long lines may have been wrapped.
    let data: Zeroizing<String> = Zeroizing::new(data.split_ascii_whitespace().collect());
    let bytes = STANDARD.decode(data.as_bytes());
    bytes.map(Zeroizing::new).map_err(|_| TlsError::Content {
        field,
        problem: "it is no base64",
    })
}

/// Authorities in a file that may be replaced: a cluster can change its own while pods run.
#[derive(Debug)]
struct AuthorityFile(Rotating<Arc<WebPkiServerVerifier>, TlsError>);

impl ServerCertVerifier for AuthorityFile {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0
            .get()
            .verify_server_cert(end_entity, intermediates, server_name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.get().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.get().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.get().supported_verify_schemes()
    }
}

/// Accepts any server.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
