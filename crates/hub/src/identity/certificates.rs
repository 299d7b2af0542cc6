//! The hub's certificate authority and the server certificate that it issues. ECDSA P-256.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::Arc,
};

use farwater_api::Digest;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::{crypto::aws_lc_rs::sign::any_supported_type, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use x509_parser::{extensions::GeneralName, prelude::X509Certificate};
use zeroize::Zeroizing;

use super::{
    IdentityError, Keys,
    files::{FileError, from_pem, read_private, replace, to_pem, write_private},
};

/// Agents and kubeconfigs pin it; an administrator can have a new one created.
const AUTHORITY_DAYS: i64 = 3653;
/// The longest that browsers accept from a server.
const SERVER_DAYS: i64 = 397;
/// A certificate is renewed when less than this is left.
const RENEW_DAYS: i64 = 132;

const AUTHORITY: (&str, &str) = ("ca.key", "ca.crt");
/// Files of the next authority until it is in use.
const NEXT_AUTHORITY: (&str, &str) = ("ca.next.key", "ca.next.crt");

const CERTIFICATE: &str = "CERTIFICATE";
const PRIVATE_KEY: &str = "PRIVATE KEY";

#[derive(Debug, Error)]
pub enum CertificateError {
    #[error("{action}")]
    Issue { action: &'static str, source: rcgen::Error },
    #[error("use the server's key")]
    Key { source: rustls::Error },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "load the server's certificate: {} {problem}. Remove {} and {} to have them issued again by the same authority",
        .certificate.display(), .certificate.display(), .key.display()
    )]
    Server {
        certificate: PathBuf,
        key: PathBuf,
        problem: &'static str,
    },
}

fn issue(action: &'static str) -> impl FnOnce(rcgen::Error) -> CertificateError {
    move |source| CertificateError::Issue { action, source }
}

/// The names and addresses that the server's certificate is valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerNames(BTreeSet<String>);

impl ServerNames {
    /// The given names, and those of this machine for itself.
    pub fn new(given: impl IntoIterator<Item = String>) -> Self {
        let own = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].map(|ip: IpAddr| ip.to_string());
        let names = given.into_iter().chain(own).chain(["localhost".to_owned()]);
        // One spelling per address and name, so that they compare equal to those of a certificate.
        Self(
            names
                .map(|name| {
                    name.parse::<IpAddr>()
                        .map_or(name.to_ascii_lowercase(), |ip| ip.to_string())
                })
                .collect(),
        )
    }
}

pub(super) struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn open(keys: &Keys, now: Timestamp) -> Result<Self, IdentityError> {
        Self::load(keys, AUTHORITY, now)
    }

    /// The next authority: the one that an earlier start has left, or a new one.
    pub(super) fn stage(keys: &Keys, now: Timestamp) -> Result<Self, IdentityError> {
        Self::load(keys, NEXT_AUTHORITY, now)
    }

    /// Puts the next authority in the place of the current one if it is `own`. After a crash in between, only the
    /// certificate remains to be moved.
    pub(super) fn finish(keys: &Keys, own: Digest) -> Result<(), IdentityError> {
        let (key, certificate) = (keys.path(NEXT_AUTHORITY.0), keys.path(NEXT_AUTHORITY.1));
        let staged = read_private(&certificate)?.and_then(|pem| from_pem(CERTIFICATE, &pem));
        if staged.is_none_or(|der| Digest::of(&*der) != own) {
            return Ok(());
        }
        if key.exists() {
            replace(&key, &keys.path(AUTHORITY.0))?;
        }
        Ok(replace(&certificate, &keys.path(AUTHORITY.1))?)
    }

    /// The key is written first: a crash between the two leaves a key whose certificate can be created again.
    fn load(keys: &Keys, names: (&str, &str), now: Timestamp) -> Result<Self, IdentityError> {
        if keys.established && !keys.exists(names.1) {
            return Err(IdentityError::Missing {
                path: keys.path(names.1),
            });
        }
        let make_key = || {
            Ok(KeyPair::generate()
                .map_err(issue("make the authority's key"))?
                .serialize_pem())
        };
        let key = keys.load(names.0, make_key, |text| {
            KeyPair::from_pem(text).map_err(|_| "is no PEM private key")
        })?;
        let pem = keys.load(names.1, || Ok(make_authority(&key, now)?), |text| Ok(text.to_owned()))?;
        let corrupt = |problem| IdentityError::Corrupt {
            path: keys.path(names.1),
            problem,
        };
        let der = from_pem(CERTIFICATE, &pem).ok_or_else(|| corrupt("is no PEM certificate"))?;
        let certificate = CertificateDer::from(der.to_vec());
        let parsed = parse(&certificate).ok_or_else(|| corrupt("is no certificate"))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(corrupt("is not the certificate of ca.key"));
        }
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|_| corrupt("is no authority's certificate"))?;
        Ok(Self {
            pem,
            certificate,
            issuer,
        })
    }

    /// Its digest, as agents pin it.
    pub(super) fn pin(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    /// The certificate of another authority, issued by this one: clients that trust this one then trust the other. As
    /// PEM.
    ///
    /// It lasts as long as the other authority, not as this one, so that agents that were away when this one ended can
    /// follow too.
    pub(super) fn vouch_for(&self, next: &Self, now: Timestamp) -> Result<String, CertificateError> {
        let mut params = authority_params(next.issuer.key(), now);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(next.issuer.key(), &self.issuer);
        let certificate = certificate.map_err(issue("vouch for the next authority"))?;
        Ok(to_pem(CERTIFICATE, certificate.der()))
    }

    /// Each authority has a name of its own.
    fn has_issued(&self, certificate: &CertificateDer<'_>) -> bool {
        let (Some(issued), Some(own)) = (parse(certificate), parse(&self.certificate)) else {
            return false;
        };
        issued.issuer().as_raw() == own.subject().as_raw()
    }

    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn der(&self) -> &[u8] {
        &self.certificate
    }

    /// With its chain. `between`: the certificates that lead from former authorities to this one.
    pub(super) fn server_certificate(
        &self,
        directory: &Path,
        between: Vec<CertificateDer<'static>>,
        names: &ServerNames,
        now: Timestamp,
    ) -> Result<Arc<CertifiedKey>, CertificateError> {
        let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
        let stored = match (read_private(&certificate)?, read_private(&key)?) {
            (Some(chain), Some(key_pem)) => {
                let problem = |problem| CertificateError::Server {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    problem,
                };
                read_server(&chain, &key_pem).map_err(problem)?
            }
            // Not written yet, or a crash happened between the two writes.
            _ => None,
        };
        if let Some((der, key_der)) = stored
            && is_good(&der, names, now)
            && self.has_issued(&der)
        {
            return self.certified(der, key_der, between);
        }
        let (der, key_der) = self.issue_server(names, now)?;
        write_private(&key, to_pem(PRIVATE_KEY, key_der.secret_der()).as_bytes())?;
        write_private(&certificate, to_pem(CERTIFICATE, &der).as_bytes())?;
        tracing::info!(names = ?names.0, "issued a server certificate");
        self.certified(der, key_der, between)
    }

    fn issue_server(
        &self,
        names: &ServerNames,
        now: Timestamp,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), CertificateError> {
        let action = "issue the server's certificate";
        let mut params = CertificateParams::new(names.0.iter().cloned().collect::<Vec<_>>()).map_err(issue(action))?;
        params.distinguished_name.push(DnType::CommonName, "farwater hub");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, SERVER_DAYS);
        let key = KeyPair::generate().map_err(issue("make the server's key"))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(issue(action))?;
        Ok((certificate.der().clone(), private_key(key.serialized_der())))
    }

    /// With the authority in the chain, because agents pin it before they have it.
    fn certified(
        &self,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
        between: Vec<CertificateDer<'static>>,
    ) -> Result<Arc<CertifiedKey>, CertificateError> {
        let key = any_supported_type(&key).map_err(|source| CertificateError::Key { source })?;
        let mut chain = vec![certificate];
        chain.extend(between);
        chain.push(self.certificate.clone());
        Ok(Arc::new(CertifiedKey::new(chain, key)))
    }
}

/// A stored certificate and its key. None: they don't belong together, because a crash happened between the two writes.
fn read_server(
    certificate: &str,
    key: &str,
) -> Result<Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>, &'static str> {
    let der = from_pem(CERTIFICATE, certificate).ok_or("is no PEM certificate")?;
    let key_der = from_pem(PRIVATE_KEY, key).ok_or("has no readable PEM key beside it")?;
    let pair = KeyPair::from_pem(key).map_err(|_| "has no readable key beside it")?;
    let certificate = CertificateDer::from(der.to_vec());
    let parsed = parse(&certificate).ok_or("is no certificate")?;
    if parsed.public_key().subject_public_key.data.as_ref() != pair.public_key_raw() {
        tracing::warn!("the server's certificate does not belong to its key; both are issued again");
        return Ok(None);
    }
    Ok(Some((certificate, private_key(&key_der))))
}

fn make_authority(key: &KeyPair, now: Timestamp) -> Result<String, CertificateError> {
    let certificate = authority_params(key, now)
        .self_signed(key)
        .map_err(issue("make the authority's certificate"))?;
    Ok(to_pem(CERTIFICATE, certificate.der()))
}

/// Under a name that no other authority has; otherwise programs that build chains by names would try the wrong one. The
/// chain's length is not limited, because each later authority makes it longer.
fn authority_params(key: &KeyPair, now: Timestamp) -> CertificateParams {
    let mut name = Digest::of(key.public_key_raw()).to_hex();
    name.truncate(8);
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("farwater hub authority {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now, AUTHORITY_DAYS);
    params
}

/// Whether a certificate lasts long enough and is valid for all these names.
fn is_good(certificate: &CertificateDer<'_>, names: &ServerNames, now: Timestamp) -> bool {
    let Some(parsed) = parse(certificate) else { return false };
    let left = parsed.validity().not_after.timestamp() - now.as_second();
    let early = now.as_second() < parsed.validity().not_before.timestamp();
    !early && left >= RENEW_DAYS * 86_400 && names.0.is_subset(&names_of(&parsed))
}

fn names_of(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return BTreeSet::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_ascii_lowercase()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes)
                    .ok()
                    .map(|bytes| IpAddr::from(bytes).to_string()),
                _ => <[u8; 16]>::try_from(*bytes)
                    .ok()
                    .map(|bytes| IpAddr::from(bytes).to_string()),
            },
            _ => None,
        })
        .collect()
}

/// When a certificate, as DER, ends: in seconds since 1970.
pub fn certificate_end(der: &[u8]) -> Option<i64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

pub(super) fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    x509_parser::parse_x509_certificate(certificate)
        .ok()
        .map(|(_, parsed)| parsed)
}

fn private_key(der: &[u8]) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(Zeroizing::new(der.to_vec()).to_vec().into())
}

/// From yesterday, for clients whose clock is behind, for this many days.
fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i64) {
    let day = |days: i64| {
        let time = now.saturating_add(SignedDuration::from_hours(24 * days)).unwrap_or(now);
        let date = time.to_zoned(TimeZone::UTC).date();
        rcgen::date_time_ymd(
            date.year().into(),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}
