//! The contents of a Secret: credentials, authorities and a proxy.
//!
//! The keys are Flux's, so that its Secrets can be used unchanged.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use crate::{
    access::SecretData,
    address::{Address, AddressError, Scheme},
    program::Program,
    secret::Secret,
};

/// GitHub's API, which mints tokens.
const GITHUB_API: &str = "https://api.github.com";

#[derive(Clone, Debug)]
pub enum Credentials {
    Basic {
        username: String,
        password: Secret,
    },
    Bearer(Secret),
    /// Short-lived tokens from an API.
    App(App),
    /// Credentials from a program of the administrator.
    Program(Arc<Program>),
    Ssh(SshAccess),
}

/// An installation of a GitHub App, for which tokens are requested.
#[derive(Clone, Debug)]
pub struct App {
    pub(crate) id: String,
    pub(crate) installation: String,
    /// PEM of an RSA key.
    pub(crate) key: Secret,
    pub(crate) api: Address,
}

#[derive(Clone, Debug)]
pub struct SshAccess {
    /// A private key as written by `ssh-keygen` or OpenSSL.
    pub(crate) identity: Secret,
    /// Passphrase of the key.
    pub(crate) passphrase: Option<Secret>,
    /// Lines with known hosts' keys.
    pub(crate) known_hosts: String,
}

/// An HTTP proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub(crate) address: Address,
    pub(crate) login: Option<(String, Secret)>,
    /// Authority of the proxy itself, if it uses TLS; PEM.
    pub(crate) ca: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("the Secret has a {0} that is not UTF-8 text on one line")]
    SecretText(&'static str),
    #[error(
        "the Secret needs username and password, bearerToken, or the keys of a GitHub App; it has none (nor ca.crt)"
    )]
    SecretEmpty,
    #[error("the Secret has a username without a password, or the other way round")]
    SecretHalf,
    #[error("the Secret has several kinds of credentials for http; keep one of password, bearerToken and githubAppID")]
    SecretBoth,
    #[error("the Secret's ca.crt is not a PEM certificate")]
    Ca,
    #[error("credentials would cross the network in clear text: use https")]
    ClearText,
    #[error("a GitHub App needs githubAppID, githubAppInstallationID and githubAppPrivateKey; the Secret lacks {0}")]
    AppHalf(&'static str),
    #[error("the Secret's githubAppBaseURL is no https address of an API")]
    AppApi,
    #[error("ssh needs a Secret with identity and known_hosts: name it in spec.secretRef")]
    SshSecret,
    #[error(
        "the Secret lacks {0}, which ssh needs{remedy}",
        remedy = if *.0 == "known_hosts" { ": put in what ssh-keyscan prints for the host, after comparing it with what the host publishes" } else { "" }
    )]
    SshHalf(&'static str),
    #[error("the Secret's {0} is not UTF-8 text")]
    NoText(&'static str),
    #[error("the proxy's Secret needs an address of http or https, without a path and without credentials in it")]
    ProxyAddress,
    #[error("ssh doesn't go through an HTTP proxy: remove spec.proxySecretRef, or use https")]
    ProxySsh,
}

/// Reads a Secret for an address. Keys for other kinds of addresses are ignored, so that one Secret can serve both.
pub(crate) fn read_secret(
    scheme: Scheme,
    data: &SecretData,
) -> Result<(Option<Credentials>, Option<String>), RemoteError> {
    match scheme {
        Scheme::Ssh => Ok((Some(Credentials::Ssh(read_ssh(data)?)), None)),
        Scheme::Http | Scheme::Https | Scheme::Oci => read_http(data),
    }
}

fn read_http(data: &SecretData) -> Result<(Option<Credentials>, Option<String>), RemoteError> {
    let ca = read_ca(data)?;
    let is_of_ssh = data.contains_key("identity");
    // In a Secret for ssh this is the key's passphrase.
    let password = if is_of_ssh && !data.contains_key("username") {
        None
    } else {
        line(data, "password")?
    };
    let basic = (line(data, "username")?, password);
    let token = line(data, "bearerToken")?;
    let app = read_app(data)?;
    let credentials = match (basic, token, app) {
        ((None, None), None, None) if ca.is_none() => return Err(RemoteError::SecretEmpty),
        ((None, None), None, None) => None,
        ((Some(username), Some(password)), None, None) => Some(Credentials::Basic {
            username,
            password: Secret::new(password),
        }),
        ((None, None), Some(token), None) => Some(Credentials::Bearer(Secret::new(token))),
        ((None, None), None, Some(app)) => Some(Credentials::App(app)),
        ((Some(_), None) | (None, Some(_)), None, None) => return Err(RemoteError::SecretHalf),
        _ => return Err(RemoteError::SecretBoth),
    };
    Ok((credentials, ca))
}

fn read_ssh(data: &SecretData) -> Result<SshAccess, RemoteError> {
    let text = |key: &'static str| -> Result<Option<String>, RemoteError> {
        let Some(bytes) = data.get(key) else { return Ok(None) };
        let text = std::str::from_utf8(bytes).map_err(|_| RemoteError::NoText(key))?;
        Ok(Some(text.to_owned()).filter(|text| !text.trim().is_empty()))
    };
    let identity = text("identity")?.ok_or(RemoteError::SshHalf("identity"))?;
    let known_hosts = text("known_hosts")?.ok_or(RemoteError::SshHalf("known_hosts"))?;
    let passphrase = line(data, "password")?.map(Secret::new);
    Ok(SshAccess {
        identity: Secret::new(identity),
        passphrase,
        known_hosts,
    })
}

fn read_app(data: &SecretData) -> Result<Option<App>, RemoteError> {
    const KEYS: [&str; 3] = ["githubAppID", "githubAppInstallationID", "githubAppPrivateKey"];
    if KEYS.iter().all(|key| !data.contains_key(*key)) {
        return Ok(None);
    }
    let number = |key: &'static str| {
        let text = line(data, key)?.ok_or(RemoteError::AppHalf(key))?;
        // GitHub accepts client ids as issuers too.
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
        if plain {
            Ok(text)
        } else {
            Err(RemoteError::SecretText(key))
        }
    };
    let (id, installation) = (number(KEYS[0])?, number(KEYS[1])?);
    let key = data.get(KEYS[2]).ok_or(RemoteError::AppHalf(KEYS[2]))?;
    let key = std::str::from_utf8(key).map_err(|_| RemoteError::NoText(KEYS[2]))?;
    let api = line(data, "githubAppBaseURL")?.unwrap_or_else(|| GITHUB_API.to_owned());
    let api = Address::parse(api.trim_end_matches('/')).map_err(|_| RemoteError::AppApi)?;
    if api.scheme != Scheme::Https && !(api.scheme == Scheme::Http && is_loopback(&api)) {
        return Err(RemoteError::AppApi);
    }
    Ok(Some(App {
        id,
        installation,
        key: Secret::new(key),
        api,
    }))
}

/// Reads the Secret that `spec.proxySecretRef` names.
pub(crate) fn read_proxy(data: &SecretData) -> Result<Proxy, RemoteError> {
    let address = line(data, "address")?.ok_or(RemoteError::ProxyAddress)?;
    let address = Address::parse(address.trim_end_matches('/')).map_err(|_| RemoteError::ProxyAddress)?;
    if address.scheme == Scheme::Ssh || address.names().next().is_some() {
        return Err(RemoteError::ProxyAddress);
    }
    let login = match (line(data, "username")?, line(data, "password")?) {
        (None, None) => None,
        (Some(username), Some(password)) => Some((username, Secret::new(password))),
        _ => return Err(RemoteError::SecretHalf),
    };
    Ok(Proxy {
        address,
        login,
        ca: read_ca(data)?,
    })
}

fn read_ca(data: &SecretData) -> Result<Option<String>, RemoteError> {
    let Some(bytes) = data.get("ca.crt").or_else(|| data.get("caFile")) else {
        return Ok(None);
    };
    let pem = std::str::from_utf8(bytes)
        .ok()
        .filter(|pem| pem.contains("-----BEGIN CERTIFICATE-----"));
    pem.map(|pem| Some(pem.to_owned())).ok_or(RemoteError::Ca)
}

/// A value of one line. `echo token | base64` appends a line break, which is removed; one inside would start another
/// header.
fn line(data: &SecretData, key: &'static str) -> Result<Option<String>, RemoteError> {
    let Some(bytes) = data.get(key) else { return Ok(None) };
    let text = std::str::from_utf8(bytes).map_err(|_| RemoteError::SecretText(key))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.chars().any(char::is_control) {
        return Err(RemoteError::SecretText(key));
    }
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

pub(crate) fn is_loopback(address: &Address) -> bool {
    address.host() == "localhost" || address.ip().is_some_and(|ip| ip.is_loopback())
}

/// The value of an `Authorization` header.
pub(crate) fn basic(username: &str, password: &Secret) -> Zeroizing<String> {
    let pair = Zeroizing::new(format!("{username}:{}", password.reveal()));
    Zeroizing::new(format!("Basic {}", *Zeroizing::new(STANDARD.encode(pair.as_bytes()))))
}

impl Proxy {
    /// The proxy's URL with its login, for curl.
    pub(crate) fn url(&self) -> Zeroizing<String> {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let login = self.login.as_ref().map(|(user, password)| {
            let password = Zeroizing::new(encode(password.reveal()));
            Zeroizing::new(format!("{}:{}@", encode(user), *password))
        });
        let login = login.unwrap_or_default();
        let address = &self.address;
        // Without a port curl uses 1080.
        let (scheme, host, port) = (address.scheme.as_str(), address.bracketed(), address.port());
        Zeroizing::new(format!("{scheme}://{}{host}:{port}", *login))
    }

    /// Texts that must not be shown.
    pub(crate) fn secrets(&self) -> Vec<Zeroizing<String>> {
        let Some((username, password)) = &self.login else {
            return Vec::new();
        };
        let encoded = utf8_percent_encode(password.reveal(), NON_ALPHANUMERIC).to_string();
        let header = basic(username, password);
        let value = header.split_once(' ').map_or("", |(_, value)| value).to_owned();
        [password.reveal().to_owned(), encoded, value]
            .into_iter()
            .map(Zeroizing::new)
            .collect()
    }
}
