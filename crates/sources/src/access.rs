//! Credentials and trusted authorities for a host, from the Secrets that a source names.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use crate::remote::Secret;

/// A Secret's data, decoded.
pub type SecretData = BTreeMap<String, Vec<u8>>;

const DOCKER_CONFIG: &str = ".dockerconfigjson";
/// Most bytes of a docker configuration; Secrets in Kubernetes have at most 1 MiB.
const MAX_DOCKER_CONFIG: usize = 1 << 20;

/// Credentials that allow reading.
#[derive(Clone, Debug)]
pub enum Login {
    Basic {
        username: String,
        password: Secret,
    },
    /// Sent as it is.
    Bearer(Secret),
    /// A registry's identity token, which its token service exchanges for other tokens.
    Identity(Secret),
}

/// Credentials and trust for one host.
#[derive(Clone, Default)]
pub struct Access {
    pub(crate) login: Option<Login>,
    /// Authorities in PEM, in addition to the machine's own.
    pub(crate) ca: Option<String>,
    pub(crate) identity: Option<Identity>,
}

/// Client certificate for servers that ask for one, PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub certificate: String,
    pub key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { login, ca, identity } = self;
        f.debug_struct("Access")
            .field("login", login)
            .field("ca", &ca.is_some())
            .field("identity", &identity.is_some())
            .finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("the Secret has a {0} that is not UTF-8 text on one line")]
    Text(&'static str),
    #[error("the Secret has a username without a password, or the other way round")]
    Half,
    #[error("the Secret has credentials of two kinds; keep one")]
    Both,
    #[error("the Secret needs username and password, bearerToken or .dockerconfigjson; it has none of them")]
    Empty,
    #[error("the Secret's .dockerconfigjson is not one")]
    Docker,
    #[error("the Secret's .dockerconfigjson has no credentials for {0}")]
    NoSuchHost(String),
    #[error("the Secret's ca.crt is not a PEM certificate")]
    Ca,
    #[error("the Secret has a tls.crt without a tls.key, or one that is not PEM")]
    Pair,
    #[error("the Secret that certSecretRef names needs ca.crt, or tls.crt and tls.key; it has none of them")]
    TlsEmpty,
}

impl Access {
    /// `host`: with its port, and for a registry with the path, as in docker's configuration.
    pub fn read(host: &str, secret: Option<&SecretData>, tls: Option<&SecretData>) -> Result<Self, AccessError> {
        let mut access = Self::default();
        if let Some(data) = secret {
            access.login = read_login(host, data)?;
            access.ca = read_ca(data)?;
            if access.login.is_none() && access.ca.is_none() {
                return Err(AccessError::Empty);
            }
        }
        if let Some(data) = tls {
            let ca = read_ca(data)?;
            access.identity = read_pair(data)?;
            if ca.is_none() && access.identity.is_none() {
                return Err(AccessError::TlsEmpty);
            }
            access.ca = ca.or(access.ca);
        }
        Ok(access)
    }

    /// A token that is sent as it is, or none. `tls`: an authority, and a client certificate.
    pub fn with_token(token: Option<Secret>, tls: Option<&SecretData>) -> Result<Self, AccessError> {
        Ok(Self {
            login: token.map(Login::Bearer),
            ..Self::read("", None, tls)?
        })
    }

    /// No login, and an authority in addition to the machine's own.
    pub(crate) fn trusting(ca: Option<&str>) -> Self {
        Self {
            ca: ca.map(str::to_owned),
            ..Self::default()
        }
    }

    pub fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// The text with secrets removed.
    pub(crate) fn redact(&self, text: &str) -> String {
        let secrets: Vec<String> = match &self.login {
            Some(Login::Basic { username, password }) => {
                let password = password.reveal();
                vec![password.to_owned(), STANDARD.encode(format!("{username}:{password}"))]
            }
            Some(Login::Bearer(token) | Login::Identity(token)) => vec![token.reveal().to_owned()],
            None => Vec::new(),
        };
        secrets
            .iter()
            .filter(|secret| !secret.is_empty())
            .fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

impl Login {
    /// The value of the `Authorization` header. None for an identity token, which is only for a token service.
    pub(crate) fn header(&self) -> Option<Zeroizing<String>> {
        match self {
            Self::Basic { username, password } => {
                let pair = Zeroizing::new(format!("{username}:{}", password.reveal()));
                Some(Zeroizing::new(format!(
                    "Basic {}",
                    *Zeroizing::new(STANDARD.encode(pair.as_bytes()))
                )))
            }
            Self::Bearer(token) => Some(Zeroizing::new(format!("Bearer {}", token.reveal()))),
            Self::Identity(_) => None,
        }
    }
}

fn text(data: &SecretData, key: &'static str) -> Result<Option<String>, AccessError> {
    let Some(bytes) = data.get(key) else { return Ok(None) };
    let text = std::str::from_utf8(bytes).map_err(|_| AccessError::Text(key))?;
    // `echo token | base64` appends a line break, which is removed; one inside would start another header.
    let text = text.trim_end_matches(['\r', '\n']);
    if text.chars().any(char::is_control) {
        return Err(AccessError::Text(key));
    }
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

fn read_login(host: &str, data: &SecretData) -> Result<Option<Login>, AccessError> {
    let basic = match (text(data, "username")?, text(data, "password")?) {
        (None, None) => None,
        (Some(username), Some(password)) => Some(Login::Basic {
            username,
            password: Secret::new(password),
        }),
        _ => return Err(AccessError::Half),
    };
    let bearer = text(data, "bearerToken")?.map(|token| Login::Bearer(Secret::new(token)));
    let docker = data
        .get(DOCKER_CONFIG)
        .map(|bytes| read_docker_config(host, bytes))
        .transpose()?;
    let mut all = [basic, bearer, docker].into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(_), Some(_)) => Err(AccessError::Both),
        (login, _) => Ok(login),
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

/// As docker and `kubectl create secret docker-registry` write them.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
struct DockerAuth {
    #[serde(default, deserialize_with = "read_secret")]
    auth: Option<Zeroizing<String>>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default, deserialize_with = "read_secret")]
    password: Option<Zeroizing<String>>,
    #[serde(default, deserialize_with = "read_secret")]
    identitytoken: Option<Zeroizing<String>>,
    #[serde(default, deserialize_with = "read_secret")]
    registrytoken: Option<Zeroizing<String>>,
}

/// Reads a text that is wiped when dropped.
pub(crate) fn read_secret<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Zeroizing<String>>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(Zeroizing::new))
}

fn read_docker_config(place: &str, bytes: &[u8]) -> Result<Login, AccessError> {
    if bytes.len() > MAX_DOCKER_CONFIG {
        return Err(AccessError::Docker);
    }
    let config: DockerConfig = serde_json::from_slice(bytes).map_err(|_| AccessError::Docker)?;

    // The longest matching name counts, because a host may have other credentials for a path.
    let named = config.auths.into_iter().map(|(name, auth)| (docker_name(&name), auth));
    let place = docker_name(place);
    let fits = |name: &str| place == name || place.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    let found = named
        .filter(|(name, _)| !name.is_empty() && fits(name))
        .max_by_key(|(name, _)| name.len());
    let host = || place.split('/').next().unwrap_or_default().to_owned();
    let (_, auth) = found.ok_or_else(|| AccessError::NoSuchHost(host()))?;

    let given = |text: &Option<Zeroizing<String>>| {
        text.as_ref()
            .filter(|text| !text.is_empty())
            .map(|text| Secret::new(text.as_str()))
    };
    if let Some(token) = given(&auth.identitytoken) {
        return Ok(Login::Identity(token));
    }
    if let Some(token) = given(&auth.registrytoken) {
        return Ok(Login::Bearer(token));
    }
    if let (Some(username), Some(password)) = (&auth.username, given(&auth.password)) {
        return Ok(Login::Basic {
            username: username.clone(),
            password,
        });
    }

    let pair = auth
        .auth
        .as_ref()
        .and_then(|auth| STANDARD.decode(auth.trim()).ok())
        .map(Zeroizing::new);
    let pair = pair
        .as_ref()
        .and_then(|pair| std::str::from_utf8(pair).ok()?.split_once(':'));
    match pair {
        Some((username, password)) if !password.is_empty() => Ok(Login::Basic {
            username: username.to_owned(),
            password: Secret::new(password),
        }),
        Some(_) => Err(AccessError::NoSuchHost(host())),
        None => Err(AccessError::Docker),
    }
}

/// Docker itself calls `docker.io` `https://index.docker.io/v1/`.
fn docker_name(name: &str) -> String {
    let name = name
        .trim_start_matches("https://")
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let name = name.trim_end_matches("/v1").trim_end_matches("/v2");
    let (host, path) = name.split_once('/').map_or((name, ""), |(host, path)| (host, path));
    let host = match host.to_ascii_lowercase().as_str() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        host => host.to_owned(),
    };
    if path.is_empty() {
        host
    } else {
        format!("{host}/{path}")
    }
}

/// Flux's older name for the key is accepted too.
fn read_ca(data: &SecretData) -> Result<Option<String>, AccessError> {
    let Some(bytes) = data.get("ca.crt").or_else(|| data.get("caFile")) else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes.clone()).ok();
    text.filter(|pem| pem.contains("-----BEGIN CERTIFICATE-----"))
        .ok_or(AccessError::Ca)
        .map(Some)
}

fn read_pair(data: &SecretData) -> Result<Option<Identity>, AccessError> {
    let field = |ours: &str, theirs: &str| {
        data.get(ours)
            .or_else(|| data.get(theirs))
            .filter(|bytes| !bytes.is_empty())
    };
    match (field("tls.crt", "certFile"), field("tls.key", "keyFile")) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            let certificate = String::from_utf8(certificate.clone()).map_err(|_| AccessError::Pair)?;
            Ok(Some(Identity {
                certificate,
                key: Zeroizing::new(key.clone()),
            }))
        }
        _ => Err(AccessError::Pair),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> SecretData {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect()
    }

    fn header(host: &str, pairs: &[(&str, &str)]) -> Result<String, AccessError> {
        let access = Access::read(host, Some(&data(pairs)), None)?;
        Ok(access
            .login
            .and_then(|login| login.header())
            .map_or("none".to_owned(), |header| header.to_string()))
    }

    #[test]
    fn a_secret_holds_one_kind_of_credentials() {
        assert_eq!(
            header("h", &[("username", "u"), ("password", "p\n")]).unwrap(),
            "Basic dTpw"
        );
        assert_eq!(header("h", &[("bearerToken", "t")]).unwrap(), "Bearer t");
        assert_eq!(header("h", &[("username", "u")]).unwrap_err(), AccessError::Half);
        assert_eq!(
            header("h", &[("bearerToken", "t"), ("username", "u"), ("password", "p")]).unwrap_err(),
            AccessError::Both
        );
        assert_eq!(
            header("h", &[("bearerToken", "t\nX: y")]).unwrap_err(),
            AccessError::Text("bearerToken")
        );
        assert_eq!(header("h", &[("other", "x")]).unwrap_err(), AccessError::Empty);
        assert_eq!(header("h", &[("ca.crt", "x")]).unwrap_err(), AccessError::Ca);
    }

    #[test]
    fn dockers_configuration_names_hosts_and_paths() {
        let config = r#"{"auths": {
            "https://registry.example.com": {"auth": "dTpw"},
            "registry.example.com/team-a": {"username": "a", "password": "b"},
            "https://index.docker.io/v1/": {"username": "hub", "password": "x"},
            "tokens.example.com:5000": {"identitytoken": "i"},
            "empty.example.com": {},
            "bad.example.com": {"auth": "!"}
        }}"#;
        let find = |host: &str| header(host, &[(DOCKER_CONFIG, config)]);
        assert_eq!(find("registry.example.com/other/app").unwrap(), "Basic dTpw");
        assert_eq!(find("registry.example.com/team-a/app").unwrap(), "Basic YTpi");
        assert_eq!(find("registry.example.com/team-ab").unwrap(), "Basic dTpw");
        assert_eq!(find("docker.io/library/x").unwrap(), "Basic aHViOng=");
        assert_eq!(find("tokens.example.com:5000/x").unwrap(), "none");
        assert_eq!(
            find("tokens.example.com/x").unwrap_err(),
            AccessError::NoSuchHost("tokens.example.com".into())
        );
        assert_eq!(find("empty.example.com/x").unwrap_err(), AccessError::Docker);
        assert_eq!(find("bad.example.com/x").unwrap_err(), AccessError::Docker);
        assert_eq!(header("h", &[(DOCKER_CONFIG, "{")]).unwrap_err(), AccessError::Docker);
    }

    #[test]
    fn certificates_come_from_either_secret() {
        let pem = "-----BEGIN CERTIFICATE-----\n";
        let read = |secret: &[(&str, &str)], tls: &[(&str, &str)]| {
            let (secret, tls) = (data(secret), data(tls));
            Access::read("h", (!secret.is_empty()).then_some(&secret), Some(&tls))
                .map(|access| (access.ca.is_some(), access.identity.is_some()))
        };
        assert_eq!(read(&[], &[("ca.crt", pem)]), Ok((true, false)));
        assert_eq!(
            read(&[("ca.crt", pem)], &[("tls.crt", pem), ("tls.key", "k")]),
            Ok((true, true))
        );
        assert_eq!(read(&[], &[("tls.crt", pem)]), Err(AccessError::Pair));
        assert_eq!(read(&[], &[("x", "y")]), Err(AccessError::TlsEmpty));
    }

    #[test]
    fn nothing_secret_is_printed() {
        let access = Access::read("h", Some(&data(&[("username", "u"), ("password", "hunter2")])), None).unwrap();
        assert!(!format!("{access:?}").contains("hunter2"));
        assert_eq!(access.redact("a hunter2 b dTpodW50ZXIy"), "a *** b ***");
    }
}
