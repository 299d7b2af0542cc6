//! Key-value secrets of HashiCorp Vault, read over its HTTP API:
//! <https://developer.hashicorp.com/vault/api-docs/secret/kv>.
//!
//! The client follows no redirect, because it would send the token to the redirect's target.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use crate::{
    backend::{Backend, BackendError, MAX_VALUES_BYTES, Reference, SecretBytes, Values},
    config::{self, Auth},
};

/// Maximum size of an answer, in bytes: the values, and Vault's other fields.
const MAX_ANSWER: usize = 2 * MAX_VALUES_BYTES;
/// Maximum size of a file with a token or a secret id, in bytes.
const MAX_CREDENTIAL: u64 = 64 << 10;
const CONNECT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);

pub(crate) struct Vault {
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Has no slash at its end.
    address: String,
    namespace: Option<HeaderValue>,
    mounts: BTreeMap<String, u8>,
    auth: Auth,
    /// Token of the last sign-in. None: the hub has not signed in yet.
    token: Mutex<Option<Token>>,
}

#[derive(Clone)]
struct Token {
    text: Zeroizing<String>,
    /// When the hub gets a new token, before Vault revokes this one.
    until: Instant,
}

impl Vault {
    pub(crate) fn new(config: &config::Vault) -> Result<Self, String> {
        let address = config.address.trim_end_matches('/').to_owned();
        check_address(&address)?;
        let mut mounts = BTreeMap::new();
        for (mount, version) in &config.mounts {
            if !matches!(version, 1 | 2) {
                return Err(format!(
                    "mount {mount} has version {version}; a key-value engine has version 1 or 2"
                ));
            }
            mounts.insert(mount.trim_matches('/').to_owned(), *version);
        }
        if mounts.is_empty() || mounts.contains_key("") {
            return Err("mounts names no key-value engine".to_owned());
        }
        let namespace = config.namespace.as_deref().map(HeaderValue::from_str).transpose();
        let namespace = namespace.map_err(|_| "namespace has characters that a header can't have".to_owned())?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        let tls = tls(config.ca_file.as_deref())?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(Self {
            http,
            address,
            namespace,
            mounts,
            auth: config.auth.clone(),
            token: Mutex::new(None),
        })
    }

    /// The path of a secret in Vault's API, and the version of its engine.
    fn locate(&self, reference: &Reference) -> Result<(String, u8), BackendError> {
        let path = reference.path.trim_matches('/');
        let mounts = self.mounts.iter().filter_map(|(mount, version)| {
            let rest = path.strip_prefix(mount.as_str())?.strip_prefix('/')?;
            Some((mount, *version, rest))
        });
        let found = mounts.max_by_key(|(mount, ..)| mount.len());
        let (mount, version, rest) = found
            .ok_or_else(|| BackendError::lasting(format!("{path} is below no mount of the hub's configuration")))?;
        if rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(BackendError::lasting(format!("{path} is no path of a secret")));
        }
        let (mount, rest) = (escape(mount), escape(rest));
        Ok(match version {
            1 => (format!("/v1/{mount}/{rest}"), 1),
            _ => (format!("/v1/{mount}/data/{rest}"), 2),
        })
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Option<Duration>, Zeroizing<Vec<u8>>), BackendError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.address));
        request = request.header("x-vault-request", "true");
        if let Some(namespace) = &self.namespace {
            request = request.header("x-vault-namespace", namespace);
        }
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(token).map_err(|_| {
                BackendError::lasting("the hub's token for Vault has characters that a header can't have")
            })?;
            value.set_sensitive(true);
            request = request.header("x-vault-token", value);
        }
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request
            .body(Full::new(body))
            .map_err(|_| BackendError::lasting(format!("{path} is no valid request path")))?;
        let failed = |error: &dyn std::error::Error| {
            BackendError::passing(format!("Vault can't be reached: {}", innermost(error)))
        };
        let answer = self.http.request(request).await.map_err(|error| failed(&error))?;
        let (parts, body) = answer.into_parts();
        let retry_after = parts
            .headers
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|error| failed(&*error))?.to_bytes();
        Ok((
            parts.status,
            retry_after.map(Duration::from_secs),
            Zeroizing::new(body.to_vec()),
        ))
    }

    async fn token(&self) -> Result<Zeroizing<String>, BackendError> {
        if let Auth::Token { file } = &self.auth {
            return read_credential(file).await;
        }
        let mut token = self.token.lock().await;
        if let Some(token) = token.as_ref().filter(|token| token.until > Instant::now()) {
            return Ok(token.text.clone());
        }
        let fresh = self.sign_in().await?;
        let text = fresh.text.clone();
        *token = Some(fresh);
        Ok(text)
    }

    /// Drops a token that Vault no longer accepts. False: the hub can't get another one.
    async fn drop_token(&self, refused: &str) -> bool {
        if matches!(self.auth, Auth::Token { .. }) {
            return false;
        }
        let mut token = self.token.lock().await;
        if token.as_ref().is_some_and(|token| *token.text == refused) {
            *token = None;
        }
        true
    }

    async fn sign_in(&self) -> Result<Token, BackendError> {
        let (mount, body) = match &self.auth {
            Auth::Token { file } => {
                let text = read_credential(file).await?;
                return Ok(Token {
                    text,
                    until: Instant::now(),
                });
            }
            Auth::AppRole {
                mount,
                role_id,
                secret_id_file,
            } => {
                let secret = read_credential(secret_id_file).await?;
                (mount, json!({"role_id": role_id, "secret_id": secret.as_str()}))
            }
            Auth::Kubernetes {
                mount,
                role,
                token_file,
            } => {
                let token = read_credential(token_file).await?;
                (mount, json!({"role": role, "jwt": token.as_str()}))
            }
        };
        #[derive(Deserialize)]
        struct Answer {
            auth: Signed,
        }
        #[derive(Deserialize)]
        struct Signed {
            client_token: String,
            #[serde(default)]
            lease_duration: u64,
        }
        let path = format!("/v1/auth/{}/login", escape(mount.trim_matches('/')));
        let (status, retry_after, answer) = self.ask(Method::POST, &path, None, Some(&body)).await?;
        if !status.is_success() {
            let problem = || format!("Vault refuses the hub's sign-in at auth/{mount} ({status})");
            return Err(match is_unknown_secret(status, &answer) {
                true => BackendError::lasting(problem()),
                false => refusal(status, retry_after, problem),
            });
        }
        let answer: Answer = serde_json::from_slice(&answer).map_err(|_| {
            BackendError::passing(format!("Vault's answer to the sign-in at auth/{mount} has no token"))
        })?;
        // Two thirds of the token's lifetime. A token without an end is replaced every hour.
        let lease = match answer.auth.lease_duration {
            0 => Duration::from_secs(3600),
            seconds => Duration::from_secs(seconds.min(86_400)) * 2 / 3,
        };
        Ok(Token {
            text: Zeroizing::new(answer.auth.client_token),
            until: Instant::now() + lease,
        })
    }
}

#[async_trait]
impl Backend for Vault {
    async fn read(&self, reference: &Reference) -> Result<Values, BackendError> {
        let (path, version) = self.locate(reference)?;
        let token = self.token().await?;
        let mut answer = self.ask(Method::GET, &path, Some(&token), None).await?;
        // Vault may have revoked the token early, so retry once with a new one.
        if answer.0 == StatusCode::FORBIDDEN && self.drop_token(&token).await {
            let token = self.token().await?;
            answer = self.ask(Method::GET, &path, Some(&token), None).await?;
        }
        let (status, retry_after, body) = answer;
        let place = &reference.path;
        if !status.is_success() {
            return Err(refusal(status, retry_after, || match status {
                StatusCode::NOT_FOUND => format!("Vault has nothing at {place}"),
                StatusCode::FORBIDDEN => format!("Vault does not let the hub read {place}"),
                _ => format!("Vault refuses to read {place} ({status})"),
            }));
        }
        let values = parse(&body, version);
        values.ok_or_else(|| BackendError::lasting(format!("Vault's answer for {place} is not a map of values")))
    }
}

/// A text becomes a value as it is; any other JSON becomes its text form.
fn parse(body: &[u8], version: u8) -> Option<Values> {
    #[derive(Deserialize)]
    struct Answer<T> {
        data: T,
    }
    let data: BTreeMap<String, Value> = match version {
        1 => serde_json::from_slice::<Answer<_>>(body).ok()?.data,
        _ => {
            serde_json::from_slice::<Answer<Answer<Option<_>>>>(body)
                .ok()?
                .data
                .data?
        }
    };
    let value = |value| match value {
        Value::String(text) => SecretBytes::new(text),
        other => SecretBytes::new(other.to_string()),
    };
    Some(data.into_iter().map(|(name, found)| (name, value(found))).collect())
}

/// `problem`: the message if a retry would get the same answer.
fn refusal(status: StatusCode, retry_after: Option<Duration>, problem: impl FnOnce() -> String) -> BackendError {
    match status.as_u16() {
        300..400 => BackendError::lasting(
            "Vault answers with a redirect, which is not followed: give the active server's address",
        ),
        // Vault is sealed, starting or overloaded, or a standby lags.
        412 | 429 | 472 | 473 | 500.. => {
            BackendError::passing(format!("Vault is not ready ({status})")).after(retry_after)
        }
        _ => BackendError::lasting(problem()),
    }
}

/// Vault 1.14.0 answers with 500 if AppRole does not know the secret id. `handleLoginRequest` (`request_handling.go`)
/// drops AppRole's `ErrInvalidCredentials`, which `response_util.go` maps to 400, and keeps only its text.
fn is_unknown_secret(status: StatusCode, body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<String>,
    }
    status == StatusCode::INTERNAL_SERVER_ERROR
        && serde_json::from_slice::<Answer>(body).is_ok_and(|answer| answer.errors == ["invalid secret id"])
}

async fn read_credential(file: &Path) -> Result<Zeroizing<String>, BackendError> {
    let read = || -> std::io::Result<Zeroizing<String>> {
        if fs::metadata(file)?.len() > MAX_CREDENTIAL {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        Ok(Zeroizing::new(
            Zeroizing::new(fs::read_to_string(file)?).trim().to_owned(),
        ))
    };
    read().map_err(|error| BackendError::passing(format!("{} can't be read: {}", file.display(), error.kind())))
}

fn check_address(address: &str) -> Result<(), String> {
    let uri: Uri = address
        .parse()
        .map_err(|_| format!("address {address:?} is not a URL"))?;
    let host = uri.host().unwrap_or_default();
    let is_bare = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'))
        && uri.query().is_none();
    if !is_bare || uri.path() != "/" {
        return Err(format!("address {address:?} is not https://HOST[:PORT]"));
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match uri.scheme_str() {
        Some("https") => Ok(()),
        Some("http") if is_here => Ok(()),
        _ => Err(format!(
            "address {address:?} has no TLS, so others could read the values: use https"
        )),
    }
}

fn tls(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let unusable = |problem: String| format!("caFile {}: {problem}", path.display());
            let pem = fs::read(path).map_err(|error| unusable(error.kind().to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|_| unusable("it is not PEM".to_owned()))?;
                roots
                    .add(certificate)
                    .map_err(|_| unusable("a certificate in it is damaged".to_owned()))?;
            }
            if roots.is_empty() {
                return Err(unusable("it has no certificate".to_owned()));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider().into();
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Escapes the characters that a path can't have.
fn escape(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/');
    path.bytes()
        .map(|byte| {
            if is_plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// The cause that a library wraps in its own errors.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(address: &str) -> Result<Vault, String> {
        Vault::new(&config::Vault {
            address: address.to_owned(),
            ca_file: None,
            namespace: None,
            mounts: BTreeMap::from([("kv".to_owned(), 2), ("kv/old".to_owned(), 1)]),
            auth: Auth::Token { file: "/token".into() },
        })
    }

    #[test]
    fn values_never_travel_in_the_clear() {
        for address in [
            "https://vault.example.com",
            "https://[::1]:8200/",
            "http://127.0.0.1:8200",
            "http://localhost:1",
        ] {
            assert!(vault(address).is_ok(), "{address}");
        }
        for address in [
            "http://vault.example.com",
            "vault",
            "https://user@vault",
            "https://vault/path",
            "ftp://127.0.0.1",
        ] {
            assert!(vault(address).is_err(), "{address}");
        }
    }

    #[test]
    fn a_path_is_found_below_its_longest_mount() {
        let vault = vault("https://vault").unwrap();
        let check = |path: &str, expected: Result<&str, &str>| {
            let found = vault.locate(&Reference {
                path: path.into(),
                ..Reference::default()
            });
            let found = found.map(|(path, _)| path).map_err(|error| error.to_string());
            match expected {
                Ok(path) => assert_eq!(found.as_deref(), Ok(path)),
                Err(problem) => assert!(found.unwrap_err().contains(problem)),
            }
        };
        check("kv/team a/web", Ok("/v1/kv/data/team%20a/web"));
        check("kv/old/web?x", Ok("/v1/kv/old/web%3Fx"));
        check("kv/../sys/seal", Err("no path of a secret"));
        check("kv//x", Err("no path of a secret"));
        check("sys/seal", Err("below no mount"));
        check("kv", Err("below no mount"));
    }

    #[test]
    fn an_unknown_secret_id_is_told_from_a_vault_in_trouble() {
        let check = |status: u16, body: &[u8]| is_unknown_secret(StatusCode::from_u16(status).unwrap(), body);
        assert!(check(500, br#"{"errors":["invalid secret id"]}"#));
        assert!(!check(503, br#"{"errors":["invalid secret id"]}"#));
        assert!(!check(500, br#"{"errors":["internal error"]}"#));
        assert!(!check(500, b"invalid secret id"));
    }

    #[test]
    fn answers_of_both_versions_are_read() {
        let names = |values: Values| -> Vec<(String, Vec<u8>)> {
            values
                .into_iter()
                .map(|(name, value)| (name, value.expose().to_vec()))
                .collect()
        };
        let one = parse(br#"{"data": {"a": "x", "n": 5, "o": {"k": [1]}}}"#, 1).unwrap();
        let expected = [("a", &b"x"[..]), ("n", b"5"), ("o", b"{\"k\":[1]}")]
            .map(|(name, value)| (name.to_owned(), value.to_vec()));
        assert_eq!(names(one), expected);
        let two = parse(br#"{"data": {"data": {"a": "x"}, "metadata": {"version": 1}}}"#, 2).unwrap();
        assert_eq!(names(two), [("a".to_owned(), b"x".to_vec())]);
        assert!(parse(br#"{"data": {"data": null}}"#, 2).is_none());
        assert!(parse(b"hunter2", 2).is_none());
    }
}
