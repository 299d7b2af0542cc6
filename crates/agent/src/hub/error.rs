//! Errors of requests to the hub, and what to do after them.

use std::time::Duration;

use farwater_api::protocol::REASON_BASE_UNKNOWN;
use http::StatusCode;

use crate::{
    identity::KeyError,
    proxy::{ProxyError, SettingError},
    tls::{self, TrustError},
};

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("read hub URL {url:?}: want https://HOST[:PORT]")]
    Url { url: String },
    #[error("trust the hub's certificate authority")]
    Tls(#[source] rustls::Error),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Proxy(#[from] SettingError),
    #[error("reach the hub for {what}: its certificate is not trusted: {problem}")]
    Certificate { what: &'static str, problem: String },
    #[error(
        "{what}: {path} is not known at {hub} (404): it is no hub, or one that is older than this agent ({version}); check \
         --hub, and upgrade the hub before its agents",
        version = crate::VERSION
    )]
    PathUnknown {
        what: &'static str,
        path: String,
        hub: String,
    },
    #[error("reach the hub for {what}")]
    Unreachable {
        what: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{what}: the hub answered {status} {reason}: {message}")]
    Refused {
        what: &'static str,
        status: StatusCode,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
    },
    #[error("{what}: the hub's answer is not what the protocol says, and {advice}")]
    NotTogether {
        what: &'static str,
        advice: &'static str,
        source: serde_json::Error,
    },
    #[error("{what}: the hub's answer is over {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
    #[error("{what}: the hub's answer is not what the protocol says")]
    Malformed {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("{what}: the answer is {status} without the switch to a WebSocket; proxies in between must pass that on")]
    NotSwitched { what: &'static str, status: StatusCode },
    #[error("write bundle")]
    Write(#[source] std::io::Error),
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl HubError {
    /// The pause that the hub asked for. None: it asked for none.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub fn is_reason(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { reason, .. } if reason == wanted)
    }

    /// The error with its causes in one line.
    pub fn text(&self) -> String {
        chain(self)
    }
}

impl HubError {
    /// 409: the hub doesn't know the report that the last one builds on.
    pub fn wants_everything(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: StatusCode::CONFLICT,
                ..
            }
        ) || self.is_reason(REASON_BASE_UNKNOWN)
    }

    /// Whether the same request is refused each time because of its content.
    pub fn blames_content(&self) -> bool {
        let blaming = [
            StatusCode::BAD_REQUEST,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::UNPROCESSABLE_ENTITY,
        ];
        matches!(self, Self::Refused { status, .. } if blaming.contains(status))
    }
}

/// An error with its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    crate::messages::shorten(&text)
}

pub(super) fn unreachable(what: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HubError {
    let source = source.into();
    match certificate_error(source.as_ref()) {
        Some(problem) => HubError::Certificate { what, problem },
        None => HubError::Unreachable { what, source },
    }
}

/// The problem with the hub's certificate, if the hub could not be reached because of it.
fn certificate_error(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if error.is::<ProxyError>() {
        // The proxy's own certificate is not the hub's problem.
        return None;
    }
    if let Some(rustls::Error::InvalidCertificate(problem)) = error.downcast_ref() {
        return Some(tls::explain(problem));
    }
    // An io::Error's source is the cause of the error it wraps, so look at the wrapped error first.
    let held = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let held = held.and_then(|held| certificate_error(held));
    held.or_else(|| certificate_error(error.source()?))
}
