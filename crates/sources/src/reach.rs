//! Which addresses the hub asks for its tenants.
//!
//! Whoever may write a source, or a file that names another host, could otherwise have the hub ask what only the hub reaches: its
//! own loopback services, the cloud's metadata, a company's network. Names are resolved here, once for each look at a remote, and what they
//! resolved to is what the programs are told to connect to: a name that means something else a moment later (DNS
//! rebinding) changes nothing.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;

use crate::address::Address;

/// A resolver that says nothing for longer is as good as none.
const PATIENCE: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// What isn't public and is asked all the same. Empty unless an administrator says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach(Vec<Allowed>);

/// `all`, a network or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    All,
    Network(IpNet),
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let network = address.or_else(|_| text.parse::<IpNet>());
        network.map(Self::Network).map_err(|_| "expected an address, a network like 10.1.0.0/16, or all".to_owned())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReachError {
    /// What the resolver said.
    Unresolved(String),
    /// All that the name stands for is not public.
    NotPublic(NotPublic),
}

/// An address that the hub doesn't ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotPublic {
    pub host: String,
    pub address: IpAddr,
}

impl fmt::Display for NotPublic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, address } = self;
        match *host == address.to_string() {
            true => write!(f, "{address} is not a public address"),
            false => write!(f, "{host} is {address}, which is not a public address"),
        }
    }
}

impl Reach {
    pub fn new(allowed: Vec<Allowed>) -> Self {
        Self(allowed)
    }

    /// Asks whatever it is told to.
    pub fn everything() -> Self {
        Self(vec![Allowed::All])
    }

    fn is_allowed(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address)
            || self.0.iter().any(|allowed| match allowed {
                Allowed::All => true,
                Allowed::Network(network) => network.contains(&address),
            })
    }

    /// The addresses of a host that may be asked, at its port.
    pub(crate) async fn resolve(&self, remote: &Address) -> Result<Vec<SocketAddr>, ReachError> {
        let host = remote.host();
        let found: Vec<SocketAddr> = match remote.ip() {
            Some(ip) => vec![SocketAddr::new(ip, remote.port())],
            None => {
                let looked_up = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, remote.port()))).await;
                let unresolved = |why: String| ReachError::Unresolved(format!("{host}: {why}"));
                match looked_up {
                    Ok(Ok(found)) => found.take(MAX_ADDRESSES).collect(),
                    Ok(Err(error)) => return Err(unresolved(error.to_string())),
                    Err(_) => return Err(unresolved(format!("no answer of the resolver within {PATIENCE:?}"))),
                }
            }
        };
        let first = found.first().map(SocketAddr::ip);
        let mut allowed: Vec<_> = found.into_iter().filter(|found| self.is_allowed(found.ip())).collect();
        allowed.dedup();
        match (allowed.is_empty(), first) {
            (false, _) => Ok(allowed),
            (true, Some(address)) => Err(ReachError::NotPublic(NotPublic { host: host.to_owned(), address })),
            (true, None) => Err(ReachError::Unresolved(format!("{host}: it has no address"))),
        }
    }
}

/// Whether an address is one of the Internet (IANA's registries of special purpose addresses). Forms that carry an IPv4 address
/// are what that one is.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        // Of carriers, of IETF protocols, of benchmarks, and what once led to 6to4 relays.
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a == 198 && (b == 18 || b == 19))
        || (a, b, c) == (192, 88, 99);
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match parts {
        // NAT64, and 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inner(high, low),
        [0x2002, high, low, ..] => inner(high, low),
        // Of IETF protocols (Teredo among them), of documentation.
        [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        // Global unicast is one eighth of all; the rest is loopback, link-local, unique-local, multicast or nobody's.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.0.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "192.0.3.1", "2606:4700::1", "64:ff9b::101:101", "2a00::1"]
        {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_allowed_is_named() {
        let reach = |texts: &[&str]| Reach::new(texts.iter().map(|text| text.parse().unwrap()).collect());
        let check = |texts: &[&str], address: &str, expected: bool| {
            assert_eq!(reach(texts).is_allowed(address.parse().unwrap()), expected, "{texts:?} {address}");
        };
        check(&[], "8.8.8.8", true);
        check(&[], "10.0.0.1", false);
        check(&["10.0.0.0/8"], "10.0.0.1", true);
        check(&["10.0.0.0/8"], "::ffff:10.0.0.1", true);
        check(&["10.0.0.0/8"], "192.168.0.1", false);
        check(&["127.0.0.1", "::1"], "::1", true);
        check(&["127.0.0.1"], "127.0.0.2", false);
        check(&["all"], "169.254.169.254", true);
        for text in ["", "ALL", "10.0.0.0/33", "localhost", "10.0.0.0/8,all"] {
            assert!(text.parse::<Allowed>().is_err(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn names_are_judged_by_what_they_stand_for() {
        let resolve = async |reach: Reach, url: &str| reach.resolve(&Address::parse(url).unwrap()).await;
        let refused = resolve(Reach::default(), "https://localhost/a").await.unwrap_err();
        let ReachError::NotPublic(refused) = refused else { panic!("{refused:?}") };
        assert!(refused.to_string().starts_with("localhost is "), "{refused}");
        let refused = resolve(Reach::default(), "https://127.0.0.1/a").await.unwrap_err();
        let ReachError::NotPublic(refused) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.to_string(), "127.0.0.1 is not a public address");
        let allowed = resolve(Reach::everything(), "https://localhost:8443/a").await.unwrap();
        assert!(allowed.iter().all(|address| address.ip().is_loopback() && address.port() == 8443));
        let unknown = resolve(Reach::default(), "https://nothing.invalid/a").await.unwrap_err();
        assert!(matches!(unknown, ReachError::Unresolved(_)), "{unknown:?}");
    }
}
