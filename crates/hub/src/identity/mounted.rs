//! A server certificate that another authority issues and renews: cert-manager's Secret as a volume, or any files.
//!
//! Agents pin an authority, so the one that issued the certificate must be known and stays the same while the hub runs.
//! A new certificate of another authority is refused, because it would lock out every agent.

use std::{
    fs::File,
    io::{self, Read as _},
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use farwater_api::Digest;
use jiff::Timestamp;
use rustls::{
    RootCertStore,
    client::{verify_server_cert_signed_by_trust_anchor, verify_server_name},
    crypto::aws_lc_rs::{default_provider, sign::any_supported_type},
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use super::{
    certificates::{certificate_end, parse},
    files::to_pem,
};

/// Maximum bytes of a file: all public authorities together are a quarter of this.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The file that cert-manager's Secrets have beside `tls.crt`.
const BESIDE: &str = "ca.crt";
/// The public authorities, in our image and on Debian.
const PUBLIC: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The files of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedFiles {
    /// The server's certificate, then those between it and the authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities, one of which has issued it. None: one in `ca.crt` beside it, the root in its chain, or a public
    /// one.
    pub authority: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub enum MountedError {
    #[error("read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("read {}: {problem}", .path.display())]
    Content { path: PathBuf, problem: &'static str },
    #[error("use the key {} for the certificate {}", .key.display(), .certificate.display())]
    Key {
        certificate: PathBuf,
        key: PathBuf,
        source: rustls::Error,
    },
    #[error(
        "serve with {}: it was issued by none of {}; name its authority with --tls-ca, as agents pin that",
        .certificate.display(), .looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    NoAuthority { certificate: PathBuf, looked: Vec<PathBuf> },
    #[error(
        "serve with {}: it was not issued by the authority that agents know ({pin}). Have it issued by that one again; \
         or announce the other one with `farwater admin keys announce`, and restart the hub with it once agents know it",
        .certificate.display()
    )]
    OtherAuthority { certificate: PathBuf, pin: Digest },
}

/// A certificate from files, and its content.
pub struct Mounted {
    files: MountedFiles,
    authority: CertificateDer<'static>,
    /// sha256 of the content that is served.
    served: [u8; 32],
    /// sha256 of the content that was seen last. Changed files are used once they are the same in two reads.
    seen: [u8; 32],
}

struct Content {
    certificate: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl Content {
    fn read(files: &MountedFiles) -> Result<Self, MountedError> {
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: Zeroizing::new(read(&files.key)?),
        })
    }

    fn digest(&self) -> [u8; 32] {
        let parts = Sha256::new().chain_update((self.certificate.len() as u64).to_be_bytes());
        parts
            .chain_update(&self.certificate)
            .chain_update(&*self.key)
            .finalize()
            .into()
    }

    /// The chain and its key, checked to belong together.
    fn parse(&self, files: &MountedFiles) -> Result<CertifiedKey, MountedError> {
        let chain = parse_certificates(&files.certificate, &self.certificate)?;
        let no_key = || MountedError::Content {
            path: files.key.clone(),
            problem: "it holds no PEM private key",
        };
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| no_key())?;
        let unusable = |source| {
            let (certificate, key) = (files.certificate.clone(), files.key.clone());
            MountedError::Key {
                certificate,
                key,
                source,
            }
        };
        let certified = CertifiedKey::new(chain, any_supported_type(&key).map_err(unusable)?);
        certified.keys_match().map_err(unusable)?;
        Ok(certified)
    }
}

impl Mounted {
    /// Reads the files and finds the authority that issued the certificate.
    pub fn open(files: MountedFiles, now: Timestamp) -> Result<(Self, Arc<CertifiedKey>), MountedError> {
        let content = Content::read(&files)?;
        let certified = content.parse(&files)?;
        let authority = find_authority(&files, &certified.cert, now)?;
        let served = content.digest();
        let mounted = Self {
            files,
            authority,
            served,
            seen: served,
        };
        let certified = mounted.with_authority(certified);
        Ok((mounted, certified))
    }

    /// Returns the new content of the files; None: unchanged. After an error, the served certificate stays.
    pub fn reload(&mut self, now: Timestamp) -> Result<Option<Arc<CertifiedKey>>, MountedError> {
        let content = Content::read(&self.files)?;
        let digest = content.digest();
        let rests = std::mem::replace(&mut self.seen, digest) == digest;
        if digest == self.served || !rests {
            return Ok(None);
        }
        let certified = content.parse(&self.files)?;
        if !is_issued_by(&self.authority, &certified.cert, now) {
            let (certificate, pin) = (self.files.certificate.clone(), Digest::of(&self.authority));
            return Err(MountedError::OtherAuthority { certificate, pin });
        }
        self.served = digest;
        Ok(Some(self.with_authority(certified)))
    }

    /// Whether the files have another content than what is served.
    pub fn is_pending(&self) -> bool {
        self.seen != self.served
    }

    /// Digest of the authority, as agents pin it.
    pub fn pin(&self) -> Digest {
        Digest::of(&self.authority)
    }

    pub fn authority_pem(&self) -> String {
        to_pem("CERTIFICATE", &self.authority)
    }

    /// With the authority in the chain, because agents pin it before they have it.
    fn with_authority(&self, mut certified: CertifiedKey) -> Arc<CertifiedKey> {
        if !certified.cert.contains(&self.authority) {
            certified.cert.push(self.authority.clone());
        }
        Arc::new(certified)
    }
}

/// The pins of the certificates in a file.
pub fn pins_of_file(path: &Path) -> Result<Vec<Digest>, MountedError> {
    let all = parse_certificates(path, &read(path)?)?;
    match all
        .iter()
        .all(|certificate| parse(certificate).is_some_and(|parsed| parsed.is_ca()))
    {
        true => Ok(all.iter().map(Digest::of).collect()),
        false => Err(MountedError::Content {
            path: path.to_owned(),
            problem: "a certificate in it is no authority's",
        }),
    }
}

/// Whether the served certificate is valid for a name or address.
pub fn is_valid_for(certified: &CertifiedKey, host: &str) -> bool {
    let name = match host.parse::<IpAddr>() {
        Ok(address) => ServerName::from(address),
        Err(_) => match ServerName::try_from(host) {
            Ok(name) => name,
            Err(_) => return false,
        },
    };
    certified
        .cert
        .first()
        .and_then(|leaf| ParsedCertificate::try_from(leaf).ok())
        .is_some_and(|leaf| verify_server_name(&leaf, &name).is_ok())
}

/// When the served certificate ends, in seconds since 1970.
pub fn end_of(certified: &CertifiedKey) -> Option<i64> {
    certificate_end(certified.cert.first()?)
}

/// The first authority that has issued the chain: one of the named ones, or one in the usual places.
fn find_authority(
    files: &MountedFiles,
    chain: &[CertificateDer<'static>],
    now: Timestamp,
) -> Result<CertificateDer<'static>, MountedError> {
    let issuer = |candidates: &[CertificateDer<'static>]| {
        candidates
            .iter()
            .find(|candidate| is_issued_by(candidate, chain, now))
            .cloned()
    };
    let looked = match &files.authority {
        Some(named) => vec![named.clone()],
        None => {
            let beside = files.certificate.with_file_name(BESIDE);
            [beside, files.certificate.clone(), PUBLIC.into()]
                .into_iter()
                .filter(|path| path.exists())
                .collect()
        }
    };
    for path in &looked {
        let mut candidates = parse_certificates(path, &read(path)?)?;
        if *path == files.certificate {
            // A renewal may use another intermediate authority, so only the root counts.
            candidates.retain(is_root);
        }
        if let Some(found) = issuer(&candidates) {
            return Ok(found);
        }
    }
    Err(MountedError::NoAuthority {
        certificate: files.certificate.clone(),
        looked,
    })
}

fn is_root(certificate: &CertificateDer<'_>) -> bool {
    parse(certificate).is_some_and(|parsed| parsed.issuer() == parsed.subject())
}

/// Whether a chain leads to this authority. It must be the certificate of an authority, and not the server's own.
fn is_issued_by(authority: &CertificateDer<'_>, chain: &[CertificateDer<'_>], now: Timestamp) -> bool {
    let [leaf, between @ ..] = chain else { return false };
    let is_authority = parse(authority).is_some_and(|parsed| parsed.is_ca());
    let (Some(parsed), true) = (parse(leaf), is_authority && leaf != authority) else {
        return false;
    };
    // Clients decide whether the chain is valid today; this checks it at a time when it is.
    let validity = parsed.validity();
    let time = now
        .as_second()
        .clamp(validity.not_before.timestamp(), validity.not_after.timestamp());
    let time = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(time).unwrap_or(0)));
    let mut roots = RootCertStore::empty();
    let (Ok(()), Ok(leaf)) = (
        roots.add(authority.clone().into_owned()),
        ParsedCertificate::try_from(leaf),
    ) else {
        return false;
    };
    let algorithms = default_provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, between, time, algorithms).is_ok()
}

fn parse_certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, MountedError> {
    let wrong = |problem| MountedError::Content {
        path: path.to_owned(),
        problem,
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match all {
        Ok(all) if !all.is_empty() && all.iter().all(|certificate| parse(certificate).is_some()) => Ok(all),
        Ok(all) if all.is_empty() => Err(wrong("it holds no PEM certificate")),
        _ => Err(wrong("a certificate in it is damaged")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, MountedError> {
    let failed = |source| MountedError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(MountedError::Content {
            path: path.to_owned(),
            problem: "it is longer than 1 MiB",
        });
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "mounted_tests.rs"]
mod tests;
