//! Requests of our own: to APIs that mint tokens, and for large files. As careful as git is run: only addresses that
//! may be asked, no redirects, no proxy but the one that is named, bounded answers.

use std::{error::Error as _, time::Duration};

use reqwest::{Client, Response, StatusCode, redirect};

use crate::{
    address::Address,
    credentials::Proxy,
    git::{GitReason, Problem},
    reach::{Reach, ReachError},
};

const AGENT: &str = concat!("farwater/", env!("CARGO_PKG_VERSION"));
const CONNECT: Duration = Duration::from_secs(10);

/// How requests leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door<'a> {
    pub reach: &'a Reach,
    /// PEM of the authorities that are trusted, in place of the system's.
    pub ca: Option<&'a str>,
    pub proxy: Option<&'a Proxy>,
    /// For a whole request.
    pub timeout: Duration,
}

impl From<ReachError> for Problem {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Unresolved(why) => Self::new(GitReason::Unreachable, why),
            ReachError::NotPublic(what) => Self::new(GitReason::NotPublic(what), ""),
        }
    }
}

impl Door<'_> {
    /// A client for requests to one host. Its name is resolved now, and not again.
    pub async fn client(&self, to: &Address) -> Result<Client, Problem> {
        // reqwest takes the cryptography that the process has chosen.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let refused = |error: reqwest::Error| Problem::new(GitReason::Failed, chain(&error));
        let asked = self.proxy.map_or(to, |proxy| &proxy.address);
        let addresses = self.reach.resolve(asked).await?;
        let mut builder = Client::builder()
            .user_agent(AGENT)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT)
            .timeout(self.timeout)
            .referer(false)
            .resolve_to_addrs(asked.host(), &addresses);
        if let Some(proxy) = self.proxy {
            let mut way = reqwest::Proxy::all(proxy.address.origin()).map_err(refused)?;
            if let Some((username, password)) = &proxy.login {
                way = way.basic_auth(username, password.reveal());
            }
            builder = builder.proxy(way);
        }
        // One list of authorities serves both connections, and whoever may choose a proxy must not vouch for the host behind it.
        if self.proxy.is_some_and(|proxy| proxy.ca.is_some()) {
            let why = "requests of the hub itself go through no proxy that has a ca.crt of its own";
            return Err(Problem::new(GitReason::ProxyRefused, why));
        }
        let authorities = |pem: &str| reqwest::Certificate::from_pem_bundle(pem.as_bytes()).map_err(refused);
        if let Some(pem) = self.ca {
            builder = builder.tls_certs_only(authorities(pem)?);
        }
        builder.build().map_err(refused)
    }
}

impl From<reqwest::Error> for Problem {
    fn from(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let text = chain(&error);
        let lower = text.to_lowercase();
        let reason = if error.is_timeout() {
            GitReason::Stalled
        } else if lower.contains("expired") || lower.contains("not valid yet") {
            GitReason::CertificateExpired
        } else if lower.contains("certificate") || lower.contains("unknownissuer") {
            GitReason::Untrusted
        } else if lower.contains("proxy") {
            GitReason::ProxyRefused
        } else {
            GitReason::Unreachable
        };
        Self::new(reason, text)
    }
}

/// What a status other than the expected one means.
pub(crate) fn refused(status: StatusCode) -> Problem {
    let reason = match status.as_u16() {
        300..=399 => GitReason::Redirected,
        401 => GitReason::Unauthorized,
        403 => GitReason::Forbidden,
        404 | 410 => GitReason::NotFound,
        429 => GitReason::Throttled,
        _ => GitReason::ServerError,
    };
    Problem::new(reason, format!("the answer was {status}"))
}

/// A whole answer of at most `limit` bytes.
pub(crate) async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > limit {
            return Err(Problem::new(GitReason::AnswerTooLarge { limit }, ""));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
