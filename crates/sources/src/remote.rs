//! Where a repository is, and what proves that we may read it.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

/// Longest URL; the API's schema says the same.
const MAX_URL: usize = 2048;

/// Text that must not be printed, logged or serialized; wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[derive(Clone, Debug)]
pub enum Credentials {
    Basic { username: String, password: Secret },
    Bearer(Secret),
}

/// A repository as it is fetched: the parsed URL, credentials bound to it, and whom to trust.
#[derive(Clone, Debug)]
pub struct Remote {
    url: String,
    origin: String,
    credentials: Option<Credentials>,
    ca: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    #[error("the URL must begin with http:// or https://")]
    Scheme,
    #[error("the URL holds a user name or password; put them in the Secret that secretRef names")]
    Userinfo,
    #[error("the URL is not one: {0}")]
    Malformed(&'static str),
    #[error("the Secret has a {0} that is not UTF-8 text on one line")]
    SecretText(&'static str),
    #[error("the Secret needs username and password, or bearerToken; it has neither (nor ca.crt)")]
    SecretEmpty,
    #[error("the Secret has a username without a password, or the other way round")]
    SecretHalf,
    #[error("the Secret has both a bearerToken and a password; keep one")]
    SecretBoth,
    #[error("the Secret's ca.crt is not a PEM certificate")]
    Ca,
    #[error("credentials would cross the network in clear text: use https")]
    ClearText,
}

impl Remote {
    /// `secret` is the data of the Secret that the repository names, decoded.
    pub fn new(url: &str, secret: Option<&BTreeMap<String, Vec<u8>>>) -> Result<Self, RemoteError> {
        let origin = parse_url(url)?;
        let (credentials, ca) = match secret {
            Some(data) => read_secret(data)?,
            None => (None, None),
        };
        let remote = Self { url: url.to_owned(), origin, credentials, ca };
        if remote.credentials.is_some() && !url.starts_with("https://") && !remote.is_loopback() {
            return Err(RemoteError::ClearText);
        }
        Ok(remote)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// `scheme://host:port`: what the credentials are bound to.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn ca(&self) -> Option<&str> {
        self.ca.as_deref()
    }

    /// The value of the `Authorization` header.
    pub(crate) fn authorization(&self) -> Option<Zeroizing<String>> {
        Some(Zeroizing::new(match self.credentials.as_ref()? {
            Credentials::Basic { username, password } => {
                let pair = Zeroizing::new(format!("{username}:{}", password.reveal()));
                format!("Basic {}", *Zeroizing::new(STANDARD.encode(pair.as_bytes())))
            }
            Credentials::Bearer(token) => format!("Bearer {}", token.reveal()),
        }))
    }

    /// The text without anything secret of this remote in it.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let secrets = match &self.credentials {
            Some(Credentials::Basic { password, .. }) => vec![password.reveal().to_owned()],
            Some(Credentials::Bearer(token)) => vec![token.reveal().to_owned()],
            None => Vec::new(),
        };
        let header = self.authorization();
        let encoded = header.as_ref().and_then(|h| h.split_once(' ')).map(|(_, v)| v.to_owned());
        for secret in secrets.into_iter().chain(encoded).filter(|s| !s.is_empty()) {
            text = text.replace(&secret, "***");
        }
        text
    }

    fn is_loopback(&self) -> bool {
        let host = self.origin.split_once("://").map_or("", |(_, host)| host);
        ["localhost", "127.0.0.1", "[::1]"].iter().any(|l| host == *l || host.starts_with(&format!("{l}:")))
    }
}

/// Checks a URL and gives its origin. What is accepted is a subset of RFC 3986 without a user, query or fragment.
fn parse_url(url: &str) -> Result<String, RemoteError> {
    let (scheme, rest) = url.split_once("://").ok_or(RemoteError::Scheme)?;
    if scheme != "http" && scheme != "https" {
        return Err(RemoteError::Scheme);
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return Err(RemoteError::Userinfo);
    }
    if url.len() > MAX_URL {
        return Err(RemoteError::Malformed("longer than 2048 bytes"));
    }
    let plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}?#".contains(c);
    if !url.chars().all(plain) {
        return Err(RemoteError::Malformed("it has a space, a query, a fragment or a character that must be encoded"));
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if host.is_empty() || port.is_some_and(|p| p.parse::<u16>().is_err()) {
        return Err(RemoteError::Malformed("no host, or a port that is no number"));
    }
    Ok(format!("{scheme}://{authority}"))
}

fn read_secret(data: &BTreeMap<String, Vec<u8>>) -> Result<(Option<Credentials>, Option<String>), RemoteError> {
    let text = |key: &'static str| -> Result<Option<String>, RemoteError> {
        let Some(bytes) = data.get(key) else { return Ok(None) };
        let text = std::str::from_utf8(bytes).map_err(|_| RemoteError::SecretText(key))?;
        // `echo token | base64` leaves a line break at the end; inside it would be another header.
        let text = text.trim_end_matches(['\r', '\n']);
        if text.chars().any(char::is_control) {
            return Err(RemoteError::SecretText(key));
        }
        Ok(Some(text.to_owned()).filter(|t| !t.is_empty()))
    };
    let ca = match data.get("ca.crt") {
        None => None,
        Some(bytes) => Some(
            String::from_utf8(bytes.clone())
                .ok()
                .filter(|pem| pem.contains("-----BEGIN CERTIFICATE-----"))
                .ok_or(RemoteError::Ca)?,
        ),
    };
    let credentials = match (text("username")?, text("password")?, text("bearerToken")?) {
        (None, None, None) if ca.is_none() => return Err(RemoteError::SecretEmpty),
        (None, None, None) => None,
        (Some(username), Some(password), None) => {
            Some(Credentials::Basic { username, password: Secret::new(password) })
        }
        (None, None, Some(token)) => Some(Credentials::Bearer(Secret::new(token))),
        (_, _, Some(_)) => return Err(RemoteError::SecretBoth),
        _ => return Err(RemoteError::SecretHalf),
    };
    Ok((credentials, ca))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(data: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        data.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect()
    }

    #[test]
    fn only_plain_http_urls_are_taken() {
        for url in ["https://example.com/a.git", "http://127.0.0.1:8080/x", "https://[::1]:8443/a", "https://h/a/b/c"] {
            assert!(Remote::new(url, None).is_ok(), "{url}");
        }
        for url in [
            "ssh://h/a",
            "git@h:a",
            "file:///etc",
            "ext::sh -c id",
            "--upload-pack=id",
            "https://user:pw@h/a",
            "https://h/a b",
            "https://h/a\nb",
            "https://h/a?x=1",
            "https://:80/",
            "https://h:99999/",
            "https:///a",
        ] {
            assert!(Remote::new(url, None).is_err(), "{url}");
        }
    }

    #[test]
    fn secrets_hold_one_kind_of_credentials() {
        let read = |data: &[(&str, &str)]| Remote::new("https://h/a", Some(&secret(data)));
        let basic = read(&[("username", "u"), ("password", "p\n")]).unwrap();
        assert_eq!(*basic.authorization().unwrap(), "Basic dTpw");
        assert_eq!(*read(&[("bearerToken", "t")]).unwrap().authorization().unwrap(), "Bearer t");
        assert_eq!(read(&[]).unwrap_err(), RemoteError::SecretEmpty);
        assert_eq!(read(&[("username", "u")]).unwrap_err(), RemoteError::SecretHalf);
        assert_eq!(read(&[("bearerToken", "t"), ("username", "u")]).unwrap_err(), RemoteError::SecretBoth);
        assert_eq!(read(&[("bearerToken", "a\nX: b")]).unwrap_err(), RemoteError::SecretText("bearerToken"));
        assert_eq!(read(&[("ca.crt", "x")]).unwrap_err(), RemoteError::Ca);
    }

    #[test]
    fn credentials_need_https_and_are_never_printed() {
        let data = secret(&[("username", "u"), ("password", "hunter2")]);
        assert_eq!(Remote::new("http://example.com/a", Some(&data)).unwrap_err(), RemoteError::ClearText);
        let remote = Remote::new("https://example.com/a", Some(&data)).unwrap();
        assert!(!format!("{remote:?}").contains("hunter2"));
        assert_eq!(remote.redact("x hunter2 y dTpodW50ZXIy"), "x *** y ***");
    }
}
