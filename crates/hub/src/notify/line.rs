//! A line to one host: addresses and tokens that are never shown, and the meaning of a reply.

use std::time::Duration;

use farwater_fleet::conditions::cut;
use farwater_sources::{Access, Ask, FetchError, FetchReason, Reply, Secret, SecretData, Sign, Site, Step, Web};
use http::{HeaderName, Method, header};
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::channel::{Letter, Sent, Words};

const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum bytes of a reply that are shown.
const MAX_EVIDENCE: usize = 200;
/// Maximum bytes of a message. Its parts are limited where they are made; no host accepts more.
const MAX_MESSAGE: usize = 32 << 10;

/// Why a provider can't be used: reason and message of the condition.
pub type Trouble = (&'static str, String);

/// A message was not accepted. Contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Fault {
    pub why: String,
    /// When the host wants the next attempt; None: it does not say.
    pub after: Option<Duration>,
    /// Whether the failure is about this message only, so that others may be sent.
    pub of_message: bool,
}

impl Fault {
    pub fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            after: None,
            of_message: false,
        }
    }

    pub fn of_message(why: impl Into<String>) -> Self {
        Self {
            of_message: true,
            ..Self::new(why)
        }
    }
}

pub struct Line {
    site: Site,
    url: Url,
    /// Host and port, which may be shown.
    host: String,
    secrets: Vec<Zeroizing<String>>,
}

impl Line {
    /// `token`: the token that requests carry. An address that is a secret is not shown in errors either.
    pub fn open(
        web: &Web,
        address: &str,
        token: Option<&Zeroizing<String>>,
        tls: Option<&SecretData>,
    ) -> Result<Self, Trouble> {
        let access = Access::with_token(token.map(|token| Secret::new(token.as_str())), tls);
        let access = access.map_err(|error| ("SecretInvalid", error.to_string()))?;
        Self::open_with(web, address, access, token.cloned().into_iter().collect())
    }

    /// `secrets`: the parts of `access` that errors must not show.
    pub fn open_with(
        web: &Web,
        address: &str,
        access: Access,
        mut secrets: Vec<Zeroizing<String>>,
    ) -> Result<Self, Trouble> {
        let wrong = || ("AddressInvalid", "its address is no http or https address".to_owned());
        let url = Url::parse(address.trim()).map_err(|_| wrong())?;
        let host = url.host_str().map(str::to_owned).ok_or_else(wrong)?;
        let host = url.port().map_or(host.clone(), |port| format!("{host}:{port}"));
        let site = web
            .guarded_site(&url, access)
            .map_err(|error| ("AddressInvalid", describe_failure(&host, &error)))?;
        // The part after the host may be a credential.
        secrets.extend(Some(Zeroizing::new(url.path().to_owned())).filter(|path| path.len() > 8));
        secrets.extend(url.query().map(|query| Zeroizing::new(query.to_owned())));
        Ok(Self {
            site,
            url,
            host,
            secrets,
        })
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Sends JSON with the token, if there is one.
    pub async fn post(&self, url: Url, headers: &[(HeaderName, String)], body: Vec<u8>) -> Result<Reply, Fault> {
        if body.len() > MAX_MESSAGE {
            return Err(Fault::of_message(format!("the message is over {MAX_MESSAGE} bytes")));
        }
        let ask = Ask::post(url, body).header(header::CONTENT_TYPE, "application/json");
        self.ask(
            headers
                .iter()
                .fold(ask, |ask, (name, value)| ask.header(name.clone(), value)),
        )
        .await
    }

    /// For hosts whose messages can't be edited: sends only how something begins, stops and ends.
    pub async fn post_once(&self, letter: &Letter<'_>, message: fn(&Words) -> Value) -> Result<Sent, Fault> {
        if !letter.is_turn(false) {
            return Ok(Sent::Skipped);
        }
        let body = message(&letter.content.words()).to_string().into_bytes();
        self.post(self.url.clone(), &[], body).await?;
        Ok(Sent::Taken { remote: String::new() })
    }

    pub async fn get(&self, url: Url) -> Result<Reply, Fault> {
        self.ask(Ask {
            method: Method::GET,
            ..Ask::get(url)
        })
        .await
    }

    async fn ask(&self, ask: Ask) -> Result<Reply, Fault> {
        let ask = ask.header(header::ACCEPT, "application/json").sign(Sign::Login);
        let reply = self.site.deliver(Step::new("send a message to", TIMEOUT), ask).await;
        let reply = reply.map_err(|error| Fault::new(self.redact(&describe_failure(&self.host, &error))))?;
        match reply.status.as_u16() {
            200..=299 => Ok(reply),
            status => Err(self.refusal(status, &reply)),
        }
    }

    fn refusal(&self, status: u16, reply: &Reply) -> Fault {
        let means = match status {
            301 | 302 | 303 | 307 | 308 => "redirects, which notifications don't follow: use the final address",
            400 | 413 | 415 | 422 => "does not take the message",
            401 => "refuses the credentials: correct the Secret that spec.secretRef names",
            403 => "does not let these credentials do that",
            404 => "has nothing at this address, or nothing that these credentials may see",
            410 => "says that there is nothing at this address any more",
            429 => "asks to come later",
            500.. => "failed",
            _ => "answered with something else",
        };
        let said = self.evidence(reply);
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let of_message = matches!(status, 400 | 413 | 415 | 422);
        Fault {
            why: format!("{} {means} (HTTP {status}{said})", self.host),
            after: reply.retry_after,
            of_message,
        }
    }

    /// The failure that a host has reported for a message.
    pub fn fault(&self, what: &str, of_message: bool) -> Fault {
        // Cut and quote only after redacting, because both could hide a secret from the redaction.
        let said = cut(&self.redact(what), MAX_EVIDENCE);
        Fault {
            of_message,
            ..Fault::new(format!("{} says {said:?}", self.host))
        }
    }

    /// Name of the error if the reply is JSON; otherwise its first line.
    fn evidence(&self, reply: &Reply) -> String {
        let text = match serde_json::from_slice::<Value>(&reply.body) {
            Ok(value) => ["message", "error"]
                .iter()
                .find_map(|field| value[*field].as_str().map(str::to_owned))
                .unwrap_or_default(),
            Err(_) => String::from_utf8_lossy(&reply.body)
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned(),
        };
        let text: String = text.chars().filter(|one| !one.is_control()).collect();
        cut(&self.redact(&text), MAX_EVIDENCE)
    }

    fn redact(&self, text: &str) -> String {
        self.secrets
            .iter()
            .filter(|secret| !secret.is_empty())
            .fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

/// A failure on the way, without the address, which may be a secret.
fn describe_failure(host: &str, error: &FetchError) -> String {
    describe_reason(host, &error.reason, &error.evidence)
}

pub fn describe_reason(host: &str, reason: &FetchReason, evidence: &str) -> String {
    let evidence = if evidence.is_empty() {
        String::new()
    } else {
        format!(" ({evidence})")
    };
    let (reason, remedy) = match reason {
        FetchReason::LinkRefused => (
            "messages are not sent to addresses that are not public".to_owned(),
            "; if they may go there, an administrator allows its network with the hub's option --allow-private-links",
        ),
        FetchReason::Untrusted => (
            reason.to_string(),
            "; put the certificate authority as ca.crt into the Secret that spec.certSecretRef names",
        ),
        FetchReason::ClearText => (reason.to_string(), "; use https"),
        _ => (reason.to_string(), ""),
    };
    format!("{host}: {reason}{evidence}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_says_is_told_without_what_it_was_sent_wherever_it_is_cut() {
        let token = Zeroizing::new("hunter2\\of".to_owned());
        let line = Line::open(&Web::default(), "https://h/hooks/hunter3", Some(&token), None).unwrap();
        assert_eq!(line.fault("no hunter2\\of", false).why, r#"h says "no ***""#);
        let long = format!("{} hunter2\\of /hooks/hunter3", "x".repeat(MAX_EVIDENCE - 5));
        let reply = Reply {
            status: http::StatusCode::FORBIDDEN,
            retry_after: None,
            body: long.clone().into_bytes(),
        };
        for fault in [line.fault(&long, true), line.refusal(403, &reply)] {
            assert!(
                !fault.why.contains("hunt") && fault.why.len() < 2 * MAX_EVIDENCE,
                "{fault}"
            );
        }
    }
}
