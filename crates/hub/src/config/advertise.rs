//! The address that agents and people reach the hub at.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Address at which the hub is reached: `https://HOST[:PORT]`, without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    pub(super) url: String,
    pub(super) host: String,
}

impl Advertise {
    pub(super) fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }

    /// The default: the address that the hub listens on. An unspecified address can't be dialled, so the loopback
    /// address replaces it.
    pub fn of_listener(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            ip if !ip.is_unspecified() => ip,
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        Self {
            url: format!("https://{}", SocketAddr::new(ip, address.port())),
            host: ip.to_string(),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Only the name or address, an IPv6 address without brackets: the certificate must be valid for it.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Display for Advertise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

pub(super) fn parse_advertise(text: &str) -> Result<Advertise, String> {
    let expected = "expected https://HOST[:PORT]";
    let uri: http::Uri = text.parse().map_err(|_| expected.to_owned())?;
    let authority = uri
        .authority()
        .filter(|authority| !authority.as_str().contains('@'))
        .ok_or(expected)?;
    if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(expected.to_owned());
    }
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    if host.is_empty() {
        return Err(expected.to_owned());
    }
    Ok(Advertise {
        url: format!("https://{authority}"),
        host,
    })
}

pub(super) fn parse_san(text: &str) -> Result<String, String> {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text.parse::<std::net::IpAddr>().is_ok() || (name.len() <= 253 && name.split('.').all(label)) {
        return Ok(text.to_owned());
    }
    Err("expected a DNS name or an IP address".to_owned())
}
