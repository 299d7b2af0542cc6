//! Where the hub connects to on behalf of others: never to its own machine or to link-local addresses, where clouds
//! serve credentials, unless an administrator allows it.
//!
//! An address in a source's spec may be in a private network. A link is an address in an index, a chart or a redirect,
//! and its author may have no rights: a host in the public internet never leads the hub into private networks.

use std::{
    collections::HashMap,
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::Name;

/// Limit for a resolver's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Networks that links may lead to although they are not public.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    allowed: Arc<[Network]>,
    /// Whether private networks are allowed, for links of a host that is in one itself.
    into_private: bool,
}

impl Links {
    pub fn new(allowed: impl IntoIterator<Item = Network>) -> Self {
        Self {
            allowed: allowed.into_iter().collect(),
            into_private: false,
        }
    }

    /// Whether a link may lead to an address.
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address)
            || (self.into_private && zone_of(address) == Zone::Private)
            || self.allowed.iter().any(|network| network.contains(address))
    }

    /// Where addresses in a source's spec may lead: also into private networks.
    pub(crate) fn of_stated(&self) -> Self {
        Self {
            into_private: true,
            ..self.clone()
        }
    }

    /// Where links of a host may lead. If a host has several addresses, the most distant one counts, including
    /// addresses of earlier connections: otherwise the owner of a name could add a nearer address. A host that can't be
    /// resolved counts as public.
    pub(crate) async fn of_host(&self, host: &str, reached: &Reached) -> Self {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let zone = match host.parse::<IpAddr>() {
            Ok(address) => zone_of(address),
            Err(_) => match tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, 0))).await {
                Ok(Ok(found)) => found.map(|address| zone_of(address.ip())).min().unwrap_or(Zone::Public),
                _ => Zone::Public,
            },
        };
        Self {
            into_private: zone != Zone::Public && !reached.is_public(),
            ..self.clone()
        }
    }
}

/// The distance of each host at all earlier connections, by name.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Mutex<HashMap<String, Reached>>);

impl Hosts {
    /// Above this number, names that are no longer in use are dropped.
    const MANY: usize = 10_000;

    pub fn reached(&self, host: &str) -> Reached {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::MANY {
            known.retain(|_, reached| Arc::strong_count(&reached.0) > 1);
        }
        known.entry(host.to_ascii_lowercase()).or_default().clone()
    }
}

/// The distance of a host at all earlier connections.
#[derive(Clone, Debug)]
pub(crate) struct Reached(Arc<AtomicU8>);

impl Default for Reached {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Zone::Local as u8)))
    }
}

impl Reached {
    pub fn note(&self, address: IpAddr) {
        self.0.fetch_min(zone_of(address) as u8, Ordering::AcqRel);
    }

    fn is_public(&self) -> bool {
        self.0.load(Ordering::Acquire) == Zone::Public as u8
    }
}

/// The distance of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Zone {
    /// Also unassigned addresses.
    Public,
    Private,
    /// This machine, and link-local neighbours.
    Local,
}

/// Cloud services that give credentials to each machine that asks, at addresses that are not link-local: AWS, Azure,
/// Alibaba.
const METADATA: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
];

fn zone_of(address: IpAddr) -> Zone {
    if METADATA.contains(&address.to_canonical()) {
        return Zone::Local;
    }
    let (local, private) = match address.to_canonical() {
        IpAddr::V4(address) => {
            let [a, b, ..] = address.octets();
            let shared = a == 100 && (64..128).contains(&b);
            (
                address.is_loopback() || address.is_link_local(),
                address.is_private() || shared,
            )
        }
        IpAddr::V6(address) => (
            address.is_loopback() || address.is_unicast_link_local(),
            address.is_unique_local(),
        ),
    };
    match (local, private) {
        (true, _) => Zone::Local,
        (_, true) => Zone::Private,
        _ => Zone::Public,
    }
}

/// An address with a prefix length: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network; write it as 10.0.0.0/8 or fd00::/8")]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = || NetworkError(text.chars().take(80).collect());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| error()))?;
        if bits > most {
            Err(error())
        } else {
            Ok(Self { address, bits })
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    /// `bits`: at most 32 or 128.
    pub const fn new(address: IpAddr, bits: u8) -> Self {
        Self { address, bits }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let same = |ours: u128, theirs: u128, most: u8| {
            let shift = most - self.bits;
            u32::from(shift) >= 128 || ours >> shift == theirs >> shift
        };
        match (self.address, address) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => same(u32::from(ours).into(), u32::from(theirs).into(), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same(ours.into(), theirs.into(), 128),
            _ => false,
        }
    }
}

/// By IANA's registries of special-purpose addresses: false for addresses that are not globally reachable, or that
/// embed one that isn't.
pub fn is_public(address: IpAddr) -> bool {
    if METADATA.contains(&address.to_canonical()) {
        return false;
    }
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(a == 0
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    let embedded = |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        // NAT64, 6to4 and Teredo lead to the embedded address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x64, 0xff9b, ..] => false,
        [0x2002, high, low, ..] => embedded(high, low),
        [0x2001, 0, ..] => false,
        [0x2001, 0xdb8, ..] | [0x3fff, ..] => false,
        // Only this range is assigned for global use.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Why a host has no usable address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error("{host}: {why}")]
    Unresolved { host: String, why: String },
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The addresses of a host at its port, if all of them are allowed: one that was left out might be used after the next
/// lookup.
pub(crate) async fn resolve(links: &Links, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
    let unresolved = |why: String| ResolveError::Unresolved {
        host: host.to_owned(),
        why,
    };
    let mut found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => match tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, port))).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => return Err(unresolved(error.to_string())),
            Err(_) => return Err(unresolved(format!("no answer of the resolver within {PATIENCE:?}"))),
        },
    };
    found.dedup();
    match found.iter().find(|address| !links.allows(address.ip())) {
        Some(address) => Err(Refused {
            host: host.to_owned(),
            address: address.ip(),
        }
        .into()),
        None if found.is_empty() => Err(unresolved("it has no address".to_owned())),
        None => Ok(found),
    }
}

/// A name resolved to an address that the hub may not connect to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{host} is at {address}, which is not public")]
pub(crate) struct Refused {
    pub host: String,
    pub address: IpAddr,
}

/// Resolves names to addresses that these links allow.
#[derive(Clone, Debug)]
pub(crate) struct Resolver(pub Links);

impl tower::Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let links = self.0.clone();
        Box::pin(async move {
            let found = resolve(&links, name.as_str(), 0).await;
            found.map(Vec::into_iter).map_err(|error| match error {
                ResolveError::Refused(refused) => io::Error::other(refused),
                error => io::Error::other(error),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_reachable_from_everywhere_is_not_public() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in [
            "1.1.1.1",
            "100.128.0.1",
            "172.32.0.1",
            "2606:4700::1",
            "64:ff9b::101:101",
            "2002:101:101::",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[tokio::test]
    async fn names_are_judged_by_what_they_stand_for() {
        let nothing = Links::default();
        let refused = resolve(&nothing, "localhost", 443).await.unwrap_err();
        assert!(refused.to_string().starts_with("localhost is at "), "{refused}");
        let refused = resolve(&nothing, "127.0.0.1", 443).await.unwrap_err();
        assert!(matches!(refused, ResolveError::Refused(_)), "{refused}");
        let local = Links::new(["127.0.0.0/8", "::1"].map(|text| text.parse().unwrap()));
        let found = resolve(&local, "localhost", 8443).await.unwrap();
        assert!(
            found
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 8443)
        );
        let unknown = resolve(&local, "nothing.invalid", 443).await.unwrap_err();
        assert!(matches!(unknown, ResolveError::Unresolved { .. }), "{unknown}");
    }

    #[tokio::test]
    async fn links_of_a_private_host_lead_into_private_networks_and_not_to_this_machine() {
        let links = Links::new(["169.254.9.0/24".parse().unwrap()]);
        let check = async |host: &str, expected: [bool; 5]| {
            let of_host = links.of_host(host, &Reached::default()).await;
            let found = ["1.1.1.1", "10.1.2.3", "127.0.0.1", "169.254.169.254", "169.254.9.1"]
                .map(|address| of_host.allows(address.parse().unwrap()));
            assert_eq!(found, expected, "{host}");
        };
        for public in ["1.1.1.1", "[2606:4700::1]", "nothing.invalid", "192.0.2.1", "0.0.0.0"] {
            check(public, [true, false, false, false, true]).await;
        }
        for private in ["10.9.9.9", "192.168.1.1", "100.64.0.1", "[fd00::1]", "::ffff:10.0.0.1"] {
            check(private, [true, true, false, false, true]).await;
        }
        for local in ["127.0.0.1", "localhost", "[::1]", "169.254.1.1", "[fe80::1]"] {
            check(local, [true, true, false, false, true]).await;
        }
        // A name that was public at an earlier connection, and is local at the next lookup.
        let reached = Reached::default();
        reached.note("10.1.1.1".parse().unwrap());
        assert!(
            links
                .of_host("localhost", &reached)
                .await
                .allows("10.1.2.3".parse().unwrap())
        );
        reached.note("1.1.1.1".parse().unwrap());
        reached.note("127.0.0.1".parse().unwrap());
        assert!(
            !links
                .of_host("localhost", &reached)
                .await
                .allows("10.1.2.3".parse().unwrap())
        );
    }

    #[test]
    fn what_is_stated_may_lie_in_a_private_network_and_not_on_this_machine() {
        let stated = Links::new(["127.0.0.2".parse().unwrap()]).of_stated();
        for (address, expected) in [
            ("1.1.1.1", true),
            ("10.1.2.3", true),
            ("100.64.0.1", true),
            ("fd00::1", true),
            ("127.0.0.2", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("169.254.169.254", false),
            ("168.63.129.16", false),
            ("fd00:ec2::254", false),
            ("100.100.100.200", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
        ] {
            assert_eq!(stated.allows(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn networks_are_allowed_by_their_first_bits() {
        let links = Links::new(["10.0.0.0/8", "192.168.1.7", "fd00::/8"].map(|text| text.parse().unwrap()));
        for (address, expected) in [
            ("10.255.0.1", true),
            ("11.0.0.1", true),
            ("172.16.0.1", false),
            ("192.168.1.7", true),
            ("192.168.1.8", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("::ffff:10.0.0.1", true),
        ] {
            assert_eq!(links.allows(address.parse().unwrap()), expected, "{address}");
        }
        let all = Links::new(["0.0.0.0/0".parse().unwrap()]);
        assert!(all.allows("127.0.0.1".parse().unwrap()) && !all.allows("::1".parse().unwrap()));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "x/8", "::/129", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }
}
