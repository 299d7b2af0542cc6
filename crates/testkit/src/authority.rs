//! External certificate authorities, such as a company's or cert-manager's.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

pub struct Authority {
    pair: Pair,
    issuer: Issuer<'static, KeyPair>,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Authority {
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let pair = Pair {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        };
        Ok(Self {
            pair,
            issuer: Issuer::new(params, key),
        })
    }

    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    pub fn pem(&self) -> &str {
        &self.pair.certificate
    }

    /// A certificate for a server or client. It began an hour ago and is valid for some more hours.
    pub fn issue(&self, names: &[&str], hours: u32) -> Result<Pair> {
        self.issue_between(names, HOUR, HOUR * hours)
    }

    /// A certificate that expired an hour ago.
    pub fn issue_expired(&self, names: &[&str]) -> Result<Pair> {
        self.issue_between(names, HOUR * 2, Duration::ZERO)
    }

    /// A certificate that began `ago` and ends in `ahead`. Without `ahead` it expired an hour ago.
    fn issue_between(&self, names: &[&str], ago: Duration, ahead: Duration) -> Result<Pair> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let now = rcgen::date_time_ymd(1970, 1, 1) + SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let end = if ahead.is_zero() { now - HOUR } else { now + ahead };
        (params.not_before, params.not_after) = (now - ago, end);
        Ok(Pair {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}
