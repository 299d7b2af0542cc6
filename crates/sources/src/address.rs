//! Addresses of repositories, parsed before they are used: http, https, `ssh://` and ssh's short form `user@host:path`.
//!
//! Anything that a program or a comparison could interpret differently is refused: octal numbers as addresses, dots
//! that climb, disguised slashes, names and paths that look like options.

use std::{fmt, net::IpAddr};

use percent_encoding::percent_decode_str;

/// Most bytes of an address; the API's schema has the same limit.
pub const MAX_URL: usize = 2048;
/// Most bytes of a host name (RFC 1035, 2.3.4).
const MAX_HOST: usize = 253;
/// User for ssh if the address names none: the account name of every Git host.
const SSH_USER: &str = "git";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    Http,
    Https,
    Ssh,
    /// Only for credentials: Git doesn't support it.
    Oci,
}

impl Scheme {
    fn parse(text: &str) -> Option<Self> {
        let all = [Self::Http, Self::Https, Self::Ssh, Self::Oci];
        all.into_iter()
            .find(|scheme| scheme.as_str().eq_ignore_ascii_case(text))
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Ssh => "ssh",
            Self::Oci => "oci",
        }
    }

    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https | Self::Oci => 443,
            Self::Ssh => 22,
        }
    }
}

/// A parsed address of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// As written.
    text: String,
    pub scheme: Scheme,
    /// Only for ssh.
    user: Option<String>,
    /// A name or an address, in lower case, IPv6 without brackets.
    host: String,
    port: Option<u16>,
    /// As written, with the first slash except in ssh's short form.
    path: String,
    is_short: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("the URL must begin with http://, https:// or ssh://, or be ssh's short form user@host:path")]
    Scheme,
    #[error("the URL holds a user name or password; put them in the Secret that secretRef names")]
    Userinfo,
    #[error("the URL is not one: {0}")]
    Malformed(&'static str),
    #[error("the submodule's URL {0:?} leads above its host")]
    Above(String),
}

impl Address {
    /// Parses the address of a repository.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let address = Self::parse_any(text)?;
        if address.scheme == Scheme::Oci {
            return Err(AddressError::Scheme);
        }
        if address.path.trim_matches('/').is_empty() && address.scheme == Scheme::Ssh {
            return Err(AddressError::Malformed("it names no repository"));
        }
        Ok(address)
    }

    /// Parses the address of a repository or a registry.
    pub fn parse_any(text: &str) -> Result<Self, AddressError> {
        if text.len() > MAX_URL {
            return Err(AddressError::Malformed("longer than 2048 bytes"));
        }
        let plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}?#".contains(c);
        if !text.chars().all(plain) {
            let why = "it has a space, a query, a fragment or a character that must be encoded";
            return Err(AddressError::Malformed(why));
        }

        let (scheme, authority, path, is_short) = match text.split_once("://") {
            Some((scheme, rest)) => {
                let scheme = Scheme::parse(scheme).ok_or(AddressError::Scheme)?;
                let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
                (scheme, authority, path, false)
            }
            None => {
                let (authority, path) = split_short(text).ok_or(AddressError::Scheme)?;
                (Scheme::Ssh, authority, path, true)
            }
        };
        let (user, place) = match authority.rsplit_once('@') {
            Some(_) if scheme != Scheme::Ssh => return Err(AddressError::Userinfo),
            Some((user, place)) => (Some(parse_user(user)?), place),
            None => (None, authority),
        };

        let (host, port) = if is_short {
            (parse_host(place)?, None)
        } else {
            parse_place(place)?
        };
        check_path(path, scheme, is_short)?;
        Ok(Self {
            text: text.to_owned(),
            scheme,
            user,
            host,
            port,
            path: path.to_owned(),
            is_short,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host in lower case, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The host as an IP address. None: it is a name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    pub fn port(&self) -> u16 {
        self.port.unwrap_or(self.scheme.default_port())
    }

    /// The user for ssh.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(SSH_USER)
    }

    /// `scheme://host[:port]` without a default port. Credentials are bound to it.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme.as_str(), self.authority())
    }

    /// `host[:port]`, without a default port.
    pub fn authority(&self) -> String {
        let host = self.bracketed();
        match self.port.filter(|port| *port != self.scheme.default_port()) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }

    /// A text that is equal for all forms of one repository's address.
    pub fn identity(&self) -> String {
        let user = if self.scheme == Scheme::Ssh { self.user() } else { "" };
        let slash = if self.is_short || self.path.is_empty() { "/" } else { "" };
        let path = self.path.trim_end_matches('/').trim_end_matches(".git");
        format!(
            "{}://{user}@{}:{}{slash}{path}",
            self.scheme.as_str(),
            self.host,
            self.port()
        )
    }

    /// The path for ssh's remote side. Only addresses with a scheme are percent-encoded.
    pub fn ssh_path(&self) -> String {
        if self.is_short {
            return self.path.clone();
        }
        let path = percent_decode_str(&self.path).decode_utf8_lossy().into_owned();
        // As in Git, a home folder is not below the root.
        if path.starts_with("/~") {
            path[1..].to_owned()
        } else {
            path
        }
    }

    /// The address of a submodule's URL, relative to this one if it begins with `./` or `../`.
    pub fn join(&self, text: &str) -> Result<Self, AddressError> {
        if !text.starts_with("./") && !text.starts_with("../") {
            return Self::parse(text);
        }
        let mut names: Vec<&str> = self.names().collect();
        for name in text.trim_end_matches('/').split('/') {
            match name {
                "" | "." => {}
                ".." => {
                    names
                        .pop()
                        .ok_or_else(|| AddressError::Above(text.chars().take(80).collect()))?;
                }
                name => names.push(name),
            }
        }
        let path = names.join("/");
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        if self.is_short {
            let root = if self.path.starts_with('/') { "/" } else { "" };
            return Self::parse(&format!("{user}{}:{root}{path}", self.bracketed()));
        }
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        Self::parse(&format!(
            "{}://{user}{}{port}/{path}",
            self.scheme.as_str(),
            self.bracketed()
        ))
    }

    /// The path as written.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The segments of the path.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter(|name| !name.is_empty())
    }

    /// The host, an IPv6 address in brackets.
    pub(crate) fn bracketed(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits `user@host:path`: a colon before the first slash and outside brackets. Without a user it would be ambiguous.
fn split_short(text: &str) -> Option<(&str, &str)> {
    let from = text.find(']').unwrap_or(0);
    let colon = from + text[from..].find(':')?;
    let (authority, path) = (&text[..colon], &text[colon + 1..]);
    (authority.contains('@') && !authority.contains('/') && !path.is_empty()).then_some((authority, path))
}

fn parse_user(user: &str) -> Result<String, AddressError> {
    if user.contains(':') {
        return Err(AddressError::Userinfo);
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-+".contains(&b);
    let good = user
        .as_bytes()
        .first()
        .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    match good && user.bytes().all(plain) {
        true => Ok(user.to_owned()),
        false => Err(AddressError::Malformed("its user is no plain name")),
    }
}

fn parse_place(place: &str) -> Result<(String, Option<u16>), AddressError> {
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (place, None),
    };
    let port = match port {
        None => None,
        Some(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => Some(
            text.parse::<u16>()
                .ok()
                .filter(|port| *port != 0)
                .ok_or(AddressError::Malformed("its port is none"))?,
        ),
        Some(_) => return Err(AddressError::Malformed("its port is no number")),
    };
    Ok((parse_host(host)?, port))
}

fn parse_host(host: &str) -> Result<String, AddressError> {
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner
            .strip_suffix(']')
            .ok_or(AddressError::Malformed("a bracket is not closed"))?;
        let address: std::net::Ipv6Addr = inner
            .parse()
            .map_err(|_| AddressError::Malformed("the text in brackets is no IPv6 address"))?;
        return Ok(address.to_string());
    }
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && label.bytes().all(inner)
    };
    if host.is_empty() || host.len() > MAX_HOST || !host.split('.').all(label) {
        return Err(AddressError::Malformed(
            "it has no host, or one that is no name of the DNS",
        ));
    }
    // Programs read `0x7f.1` and `2130706433` as 127.0.0.1. A host that ends in a number must be an address in the
    // common form.
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    if is_number && host.parse::<std::net::Ipv4Addr>().is_err() {
        return Err(AddressError::Malformed(
            "its host is a number that is no IPv4 address of four decimal parts",
        ));
    }
    Ok(host.to_ascii_lowercase())
}

/// Two programs could see different paths in segments that climb and in disguised separators.
fn check_path(path: &str, scheme: Scheme, is_short: bool) -> Result<(), AddressError> {
    let decoded = if is_short {
        path.as_bytes().to_vec()
    } else {
        percent_decode_str(path).collect()
    };
    if decoded.iter().any(u8::is_ascii_control) || decoded.contains(&b'\\') {
        return Err(AddressError::Malformed(
            "its path has an encoded control character or backslash",
        ));
    }
    if decoded.iter().filter(|b| **b == b'/').count() != path.bytes().filter(|b| *b == b'/').count() {
        return Err(AddressError::Malformed("its path has an encoded slash"));
    }
    if decoded.split(|b| *b == b'/').any(|name| name == b"." || name == b"..") {
        return Err(AddressError::Malformed("its path has a segment of dots"));
    }
    if scheme == Scheme::Ssh {
        let first = decoded.iter().find(|b| **b != b'/');
        if (is_short && decoded.starts_with(b"-")) || std::str::from_utf8(&decoded).is_err() || first.is_none() {
            return Err(AddressError::Malformed("its path can't be handed to ssh"));
        }
    }
    Ok(())
}

/// A prefix of the addresses that credentials are for: a whole host, or a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPrefix(Address);

impl UrlPrefix {
    /// An address of http, https, ssh (in both forms) or oci, with or without a path.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let text = text.trim_end_matches('/');
        // A prefix in ssh's short form without a path has nothing after the colon.
        let text = text
            .strip_suffix(':')
            .map_or_else(|| text.to_owned(), |host| format!("ssh://{host}"));
        let with_path = if text.starts_with("ssh://") && !text["ssh://".len()..].contains('/') {
            format!("{text}/~")
        } else {
            text
        };
        let mut address = Address::parse_any(&with_path)?;
        if with_path.ends_with("/~") {
            address.path = String::new();
        }
        Ok(Self(address))
    }

    /// Whether an address is below the prefix: same scheme, host and port, the same ssh user if the prefix names one,
    /// and a path that begins with all segments of the prefix.
    pub fn covers(&self, url: &str) -> bool {
        let Ok(address) = Address::parse_any(url) else {
            return false;
        };
        let own = &self.0;
        let is_same_host = address.scheme == own.scheme && address.host == own.host && address.port() == own.port();
        if !is_same_host || own.user.as_ref().is_some_and(|user| user != address.user()) {
            return false;
        }
        let (prefix, names): (Vec<_>, Vec<_>) = (own.names().collect(), address.names().collect());
        let Some((last, before)) = prefix.split_last() else {
            return true;
        };
        let Some(name) = names.get(before.len()) else {
            return false;
        };
        // `…/web` also covers `…/web.git`.
        let is_last = names.len() == prefix.len();
        names[..before.len()] == *before && (name == last || (is_last && name.strip_suffix(".git") == Some(last)))
    }

    /// Sort key: of several matching prefixes, the longest counts.
    pub fn length(&self) -> (usize, usize, bool) {
        (self.0.names().count(), self.0.path.len(), self.0.user.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart() {
        let check = |text: &str, origin: &str, user: &str, path: &str| {
            let address = Address::parse(text).unwrap();
            assert_eq!(
                (address.origin().as_str(), address.user(), address.path.as_str()),
                (origin, user, path)
            );
            assert_eq!(address.to_string(), text);
        };
        check(
            "https://Git.Example.com/a.git",
            "https://git.example.com",
            "git",
            "/a.git",
        );
        check("https://h:443/a", "https://h", "git", "/a");
        check("http://127.0.0.1:8080/x", "http://127.0.0.1:8080", "git", "/x");
        check("https://[::1]:8443/a", "https://[::1]:8443", "git", "/a");
        check("ssh://deploy@h:2222/a/b.git", "ssh://h:2222", "deploy", "/a/b.git");
        check("git@h:a/b.git", "ssh://h", "git", "a/b.git");
        check("deploy@[::1]:/srv/a", "ssh://[::1]", "deploy", "/srv/a");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for url in [
            "file:///etc",
            "ext::sh",
            "h:a",
            "--upload-pack=id",
            "/srv/a",
            "./a",
            "https://user:pw@h/a",
            "https://user@h/a",
            "ssh://git:pw@h/a",
            "ssh://-oProxyCommand=id/a",
            "ssh://-o@h/a",
            "-oProxyCommand=id:a",
            "git@h:-upload-pack",
            "ssh://h",
            "ssh://h/",
            "https://h/a b",
            "https://h/a\nb",
            "https://h/a?x=1",
            "https://:80/",
            "https://h:99999/",
            "https://h:0/",
            "https://h:/",
            "https:///a",
            "https://h./a",
            "https://h..x/a",
            "https://2130706433/a",
            "https://0x7f000001/a",
            "https://127.1/a",
            "https://0177.0.0.1/a",
            "https://127.0.0.0x1/a",
            "https://[::1/a",
            "https://[127.0.0.1]/a",
            "https://h/a/../b",
            "https://h/a/%2e%2E/b",
            "https://h/a%2fb",
            "https://h/a%5cb",
            "https://h/a%0ab",
            "git@h:a/../b",
            "ssh://h/%ff",
            "oci://h/a",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
        assert_eq!(Address::parse("https://u:p@h/a"), Err(AddressError::Userinfo));
        assert_eq!(Address::parse("git://h/a"), Err(AddressError::Scheme));
    }

    #[test]
    fn ssh_is_asked_for_the_decoded_path() {
        let path = |text: &str| Address::parse(text).unwrap().ssh_path();
        assert_eq!(path("ssh://h/a%20b"), "/a b");
        assert_eq!(path("ssh://h/~me/a"), "~me/a");
        assert_eq!(path("git@h:~me/a%20b"), "~me/a%20b");
    }

    #[test]
    fn submodules_are_found_beside_their_parent() {
        let check = |parent: &str, text: &str, expected: &str| {
            let joined = Address::parse(parent).unwrap().join(text);
            assert_eq!(
                joined.map(|a| a.to_string()).unwrap_or_else(|e| e.to_string()),
                expected,
                "{parent} {text}"
            );
        };
        check("https://h/a/b.git", "../c.git", "https://h/a/c.git");
        check("https://h/a/b.git", "./c.git", "https://h/a/b.git/c.git");
        check("https://h:8443/a/b", "../../c/d", "https://h:8443/c/d");
        check("git@h:a/b.git", "../c.git", "git@h:a/c.git");
        check("git@h:a/b.git", "../../c.git", "git@h:c.git");
        check("git@h:/srv/b.git", "../c.git", "git@h:/srv/c.git");
        check("ssh://git@h:2222/a/b", "../c", "ssh://git@h:2222/a/c");
        check("https://h/a", "https://other/c", "https://other/c");
        check(
            "https://h/a",
            "../../c",
            r#"the submodule's URL "../../c" leads above its host"#,
        );
        check("https://h/a", "file:///etc", &AddressError::Scheme.to_string());
    }

    #[test]
    fn one_repository_has_one_identity() {
        let id = |text: &str| Address::parse(text).unwrap().identity();
        assert_eq!(id("https://H/a.git"), id("https://h:443/a/"));
        assert_eq!(id("git@h:a"), id("ssh://h:22/a.git"));
        assert_ne!(id("https://h/a"), id("http://h/a"));
        assert_ne!(id("https://h/a"), id("https://h/b"));
    }

    #[test]
    fn a_prefix_covers_whole_segments_of_its_host() {
        let check = |prefix: &str, url: &str, expected: bool| {
            assert_eq!(
                UrlPrefix::parse(prefix).unwrap().covers(url),
                expected,
                "{prefix} {url}"
            );
        };
        check("https://h/team", "https://h/team/a.git", true);
        check("https://h/team/", "https://H:443/team/a/b", true);
        check("https://h/team", "https://h/team", true);
        check("https://h/team/a", "https://h/team/a.git", true);
        check("https://h/team/a", "https://h/team/a.git/b", false);
        check("https://h/team", "https://h/teams/a", false);
        check("https://h", "https://h/anything", true);
        check("https://h", "https://h.evil/anything", false);
        check("https://h", "https://h:8443/anything", false);
        check("https://h", "http://h/anything", false);
        check("https://h", "ssh://h/anything", false);
        check("https://h/team/a/b", "https://h/team", false);
        check("git@h:", "git@h:a/b", true);
        check("git@h:", "deploy@h:a/b", false);
        check("ssh://h", "deploy@h:a/b", true);
        check("ssh://git@h/team", "git@h:team/a", true);
        check("oci://registry/team", "oci://registry/team/chart", true);
        check("https://h", "no url", false);
        assert!(UrlPrefix::parse("https://u:p@h").is_err());
        assert!(UrlPrefix::parse("h").is_err());
        let length = |text: &str| UrlPrefix::parse(text).unwrap().length();
        assert!(length("https://h/a/b") > length("https://h/a") && length("https://h/a") > length("https://h"));
    }
}
