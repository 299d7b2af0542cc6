//! Verification of the hub: by the authorities that were named by digest or in a file, never by the system's.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use farwater_api::Digest;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};

use crate::{clock::Clock, sync::lock};

/// Most bytes of a file. All public authorities together have a quarter of this.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// How long ago a certificate may have expired while this machine's clock is unconfirmed. See ADR 9.
const EXPIRED_TOLERANCE: Duration = Duration::from_secs(48 * 3600);
/// Most certificates of a chain that may each not be valid yet.
const LONGEST_CHAIN: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(
        "trust the hub: no authority is named; give --ca-pin as printed by `farwater cluster join`, or --ca-file with its \
         certificate"
    )]
    Nobody,
    #[error("read certificate authorities from {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("read certificate authorities from {}: {problem}", path.display())]
    Content { path: PathBuf, problem: &'static str },
}

/// Digests of authorities. The hub may change them while connections are made.
#[derive(Clone, Debug, Default)]
pub struct Pins(Arc<RwLock<Vec<Digest>>>);

impl Pins {
    fn get(&self) -> Vec<Digest> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, pins: Vec<Digest>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pins;
    }
}

/// Authorities that may vouch for the hub: those with the pinned digests, and those of a file.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    pub pins: Pins,
    authorities: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Trusts only the authority with this digest.
    pub fn pinned(pin: Digest) -> Self {
        let trust = Self::default();
        trust.pins.set(vec![pin]);
        trust
    }

    pub fn named(pins: Vec<Digest>, file: Option<&Path>) -> Result<Self, TrustError> {
        let authorities = file.map(read_authorities).transpose()?.unwrap_or_default();
        if pins.is_empty() && authorities.is_empty() {
            return Err(TrustError::Nobody);
        }
        let trust = Self {
            pins: Pins::default(),
            authorities,
        };
        trust.pins.set(pins);
        Ok(trust)
    }

    /// Only the authorities of the file, for a proxy, which the hub's pin does not cover. None: there is no file.
    pub fn of_others(&self) -> Option<Self> {
        (!self.authorities.is_empty()).then(|| Self {
            pins: Pins::default(),
            authorities: self.authorities.clone(),
        })
    }
}

/// The certificates in a file.
pub fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let wrong = |problem| TrustError::Content {
        path: path.to_owned(),
        problem,
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|source| TrustError::Read {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong("it is longer than 1 MiB"));
    }
    parse_authorities(&bytes).map_err(wrong)
}

/// Parses the certificates in a text. Err: the text contains none, or the problem.
pub fn parse_authorities(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(all) if all.is_empty() => Err("it holds no PEM certificate"),
        Ok(all) => Ok(all),
        Err(_) => Err("it is damaged"),
    }
}

/// Verifies a chain against the named authorities: name, validity and signatures as usual.
#[derive(Debug)]
struct NamedAuthorities {
    trust: Trust,
    clock: Arc<Clock>,
    provider: Arc<CryptoProvider>,
    /// Verifiers of pinned authorities, which are known once a server has presented them.
    pinned: Mutex<Vec<(Digest, Arc<WebPkiServerVerifier>)>>,
    /// Verifier of the file's authorities.
    listed: Option<Arc<WebPkiServerVerifier>>,
}

impl NamedAuthorities {
    fn new(trust: Trust, clock: Arc<Clock>, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let listed = match &trust.authorities[..] {
            [] => None,
            authorities => Some(verifier_of(authorities, &provider)?),
        };
        Ok(Self {
            trust,
            clock,
            provider,
            pinned: Mutex::default(),
            listed,
        })
    }

    /// The verifiers of pinned authorities known so far. Authorities that are no longer pinned are removed.
    fn pinned(&self, chain: &[CertificateDer<'_>], pins: &[Digest]) -> Result<Vec<Arc<WebPkiServerVerifier>>, Error> {
        let mut known = lock(&self.pinned);
        known.retain(|(digest, _)| pins.contains(digest));
        for authority in chain {
            let digest = Digest::of(authority);
            if pins.contains(&digest) && !known.iter().any(|(known, _)| *known == digest) {
                known.push((digest, verifier_of(std::slice::from_ref(authority), &self.provider)?));
            }
        }
        Ok(known.iter().map(|(_, verifier)| Arc::clone(verifier)).collect())
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
    ) -> Result<ServerCertVerified, Error> {
        let with = |verifier: &WebPkiServerVerifier| {
            let verify = |time| verifier.verify_server_cert(end_entity, chain, name, ocsp, time);
            verify_in_time(verify, self.clock.now(), self.clock.is_confirmed())
        };
        let pins = self.trust.pins.get();
        let mut result = Err(missing(&pins, chain));
        for verifier in self.pinned(chain, &pins)?.iter().chain(&self.listed) {
            result = with(verifier);
            if result.is_ok() {
                break;
            }
        }
        result
    }
}

fn missing(pins: &[Digest], chain: &[CertificateDer<'_>]) -> Error {
    let Some(pin) = pins.first().copied() else {
        return CertificateError::UnknownIssuer.into();
    };
    let presented = chain.last().map(|last| Digest::of(last.as_ref()));
    let missing = OtherError(Arc::new(PinMissing { pin, presented }));
    Error::InvalidCertificate(CertificateError::Other(missing))
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the authority with the pinned digest {pin} is not in its chain, which {}; compare --ca-pin with the digest that \
     `farwater cluster join` prints. If a proxy or load balancer with its own certificate is in between, name its \
     authority with --ca-file. If the hub's authority was replaced and the old one retired while this agent was away, \
     join the agent again",
    .presented.map_or_else(|| "holds none".to_owned(), |presented| format!("ends with {presented}"))
)]
struct PinMissing {
    pin: Digest,
    presented: Option<Digest>,
}

/// Explains a problem of a certificate to people.
pub fn explain(problem: &CertificateError) -> String {
    match problem {
        CertificateError::Other(other) => other.to_string(),
        CertificateError::UnknownIssuer => "no authority that --ca-pin or --ca-file names has issued it".to_owned(),
        other => other.to_string(),
    }
}

pub fn verifier_of(
    authorities: &[CertificateDer<'_>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let mut roots = RootCertStore::empty();
    // An unreadable authority vouches for nothing; the others do.
    for authority in authorities {
        if let Err(error) = roots.add(authority.clone().into_owned()) {
            if authorities.len() == 1 {
                return Err(error);
            }
            tracing::warn!(%error, "an authority's certificate can't be read and is left out");
        }
    }
    WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .map_err(|e| Error::General(e.to_string()))
}

/// Verifies at `now`. A certificate that is not valid yet is accepted from its start, because it shows that the clock
/// is behind. One that has just expired is accepted only while the clock is unconfirmed.
fn verify_in_time<T>(verify: impl Fn(UnixTime) -> Result<T, Error>, now: i64, is_confirmed: bool) -> Result<T, Error> {
    let mut time = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now).unwrap_or(0)));
    let mut result = verify(time);
    for _ in 0..LONGEST_CHAIN {
        time = match &result {
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => *not_before,
            _ => break,
        };
        result = verify(time);
    }
    match &result {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }))
            if !is_confirmed && time.as_secs().saturating_sub(not_after.as_secs()) <= EXPIRED_TOLERANCE.as_secs() =>
        {
            verify(*not_after)
        }
        _ => result,
    }
}

impl ServerCertVerifier for NamedAuthorities {
    /// Uses our own clock, because rustls only knows the machine's.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_pinned = self.trust.pins.get().contains(&Digest::of(end_entity.as_ref()));
        if is_pinned || self.trust.authorities.contains(end_entity) {
            // Only authorities are named. A leaf that is its own root would bypass the checks of a chain.
            return Err(CertificateError::UnknownIssuer.into());
        }
        self.verify(end_entity, intermediates, server_name, ocsp)
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

/// A client configuration that trusts only servers under the named authorities.
pub fn client_config(trust: Trust, clock: Arc<Clock>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = NamedAuthorities::new(trust, clock, provider.clone())?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
