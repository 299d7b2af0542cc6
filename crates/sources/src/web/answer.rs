//! Answers of a server: the body up to a limit, and errors with their evidence.

use std::{error::Error as _, io::Write as _};

use bytes::Bytes;
use farwater_api::Digest;
use farwater_bundle::path::escape;
use http::{HeaderMap, HeaderName, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};
use url::Url;

use super::{Site, Step};
use crate::{
    fetch_error::{FetchError, FetchReason},
    links::Refused,
};

/// The head of an answer; the body is not read yet.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub(super) body: Incoming,
    pub(super) url: Url,
    pub(super) step: Step,
}

impl Answer {
    pub(crate) fn fail(&self, reason: FetchReason, evidence: impl Into<String>) -> FetchError {
        FetchError::new(self.step.what, &self.url, reason, evidence)
    }

    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// An error for any status except 200.
    pub(crate) fn success(self, site: &Site) -> Result<Self, FetchError> {
        match self.status {
            StatusCode::OK => Ok(self),
            _ => Err(self.refusal(site.access.has_login())),
        }
    }

    /// The error for a status that was not expected.
    pub(crate) fn refusal(&self, is_signed: bool) -> FetchError {
        let reason = match self.status.as_u16() {
            401 if is_signed => FetchReason::Unauthorized,
            401 => FetchReason::CredentialsMissing,
            403 => FetchReason::Forbidden,
            404 | 410 => FetchReason::NotFound,
            429 => FetchReason::Throttled,
            301 | 302 | 303 | 307 | 308 => FetchReason::Redirected,
            500.. => FetchReason::ServerError,
            _ => FetchReason::Unexpected,
        };
        self.fail(reason, format!("HTTP {}", self.status.as_u16()))
    }

    /// The body, of at most `limit` bytes.
    pub(crate) async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::new();
        while let Some(data) = self.next().await? {
            if bytes.len() + data.len() > limit {
                return Err(self.fail(FetchReason::TooLarge { limit: limit as u64 }, String::new()));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    }

    /// Writes the body, of at most `limit` bytes, to a file and returns its digest. One piece at a time is in memory.
    pub(crate) async fn save(mut self, file: &mut std::fs::File, limit: u64) -> Result<Digest, FetchError> {
        let (mut hash, mut total) = (Sha256::new(), 0_u64);
        while let Some(data) = self.next().await? {
            total += data.len() as u64;
            if total > limit {
                return Err(self.fail(FetchReason::TooLarge { limit }, String::new()));
            }
            hash.update(&data);
            // A piece has some KiB, which the page cache takes at once.
            file.write_all(&data)
                .map_err(|error| self.fail(FetchReason::Disk, error.to_string()))?;
        }
        Ok(Digest::from_bytes(hash.finalize().into()))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let frame = self.step.bound(&self.url, self.body.frame()).await?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(self.fail(FetchReason::BrokenOff, escape(error.to_string().as_bytes())));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

fn inner_of<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e (dyn std::error::Error + 'static)> {
    let inner = error.downcast_ref::<std::io::Error>()?.get_ref()?;
    Some(inner)
}

/// Why a connection failed.
pub(super) fn classify(error: &hyper_util::client::legacy::Error) -> (FetchReason, String) {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    let mut last = error.to_string();
    while let Some(error) = cause {
        last = error.to_string();
        // TLS errors are wrapped in errors of another kind, possibly twice.
        let mut inner = inner_of(error);
        while let Some(deeper) = inner.and_then(inner_of) {
            inner = Some(deeper);
        }
        if let Some(refused) = inner.and_then(|inner| inner.downcast_ref::<Refused>()) {
            return (FetchReason::LinkRefused, refused.to_string());
        }
        let tls = error.downcast_ref::<rustls::Error>();
        let tls = tls.or_else(|| inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()));
        if let Some(tls) = tls {
            use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
            let reason = match tls {
                rustls::Error::InvalidCertificate(
                    Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. },
                ) => FetchReason::CertificateExpired,
                rustls::Error::InvalidCertificate(_) => FetchReason::Untrusted,
                _ => FetchReason::Unreachable,
            };
            return (reason, tls.to_string());
        }
        cause = error.source();
    }

    // The types of these errors are private.
    let reason = match &last {
        last if last.starts_with("tunnel error") => FetchReason::ProxyRefused,
        last if last.starts_with("failed to lookup address") => FetchReason::HostUnknown,
        _ => FetchReason::Unreachable,
    };
    (reason, last)
}

pub(super) const MAX_EVIDENCE: usize = 200;

/// Most bytes of a host's reply to a message.
pub(super) const MAX_REPLY: usize = 64 << 10;
