//! Errors of requests to the API server, and what to do after them.

use std::time::Duration;

use http::{Response, StatusCode, header};
use http_body_util::LengthLimitError;
use serde_json::Value;

use super::{
    LONGEST_PAUSE, a_little_more, credentials::CredentialsError, kubeconfig::KubeconfigError, pod::PodError,
    tls::TlsError,
};
use crate::{
    hub::chain,
    messages::{
        explain_status, field_conflicts, fields_of, is_immutable, is_of_other_version, is_unmergeable, shorten,
    },
    proxy::SettingError,
};

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("read kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    #[error("read the pod's service account; outside of a cluster --kubeconfig is needed")]
    InCluster(#[from] PodError),
    #[error(
        "reach the API server: `server` of the current context's cluster is no address; want https://HOST[:PORT][/PATH]"
    )]
    Address,
    #[error("reach the API server")]
    Proxy(#[from] SettingError),
    #[error("set up TLS to the API server")]
    Tls(#[from] TlsError),
    #[error("log in to the API server")]
    Credentials(#[from] CredentialsError),
}

/// A failed request. The text may be reported, because it holds no values of fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    #[error("{message}")]
    Status {
        code: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
        fault: Fault,
    },
    /// The connection failed before or during the answer. The request may have been carried out.
    #[error("the API server can't be reached: {0}")]
    Lost(String),
    #[error("the API server gave no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The request or the answer is invalid.
    #[error("{0}")]
    Unusable(String),
}

/// The kind of a refusal, for decisions that depend on more than its code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    Other,
    /// Other field managers own fields with other values. Lists the fields and managers; empty if only we own them
    /// ourselves.
    FieldConflicts(String),
    /// Earlier applies or writes count as of a version of the kind that lacks a field, see [`crate::live::versions`].
    OtherVersion,
    /// Only fields that can't be changed while the object exists.
    Immutable,
    /// The merge of manifest and live object is invalid, or the manifest can't be merged at all. Holds the fields that
    /// the API server names. Another way of writing may work.
    Unmergeable(Vec<String>),
}

impl ApiError {
    pub fn fault(&self) -> &Fault {
        match self {
            Self::Status { fault, .. } => fault,
            Self::Lost(_) | Self::Silent(_) | Self::Unusable(_) => &Fault::Other,
        }
    }

    pub fn code(&self) -> u16 {
        match self {
            Self::Status { code, .. } => *code,
            Self::Lost(_) | Self::Silent(_) | Self::Unusable(_) => 0,
        }
    }

    /// Pause before a retry, never less than the API server asked for. None: don't retry in this attempt.
    pub fn pause(&self, tried: u32) -> Option<Duration> {
        let usual = Duration::from_millis(200) * tried;
        let wait = match self {
            Self::Status {
                code: 429 | 503,
                retry_after,
                ..
            } => retry_after.unwrap_or(usual),
            Self::Status {
                code: 500..=599,
                retry_after: Some(asked),
                ..
            } => *asked,
            Self::Lost(_) => usual,
            _ => return None,
        };
        (wait <= LONGEST_PAUSE).then(|| a_little_more(wait))
    }

    /// Whether the error says nothing about the request: the same may succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Status { code, retry_after, .. } => {
                matches!(code, 408 | 429 | 502..=504) || (*code >= 500 && retry_after.is_some())
            }
            Self::Lost(_) | Self::Silent(_) => true,
            Self::Unusable(_) => false,
        }
    }

    /// The pause that the API server asked for. None: it asked for none.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Lost(_) | Self::Silent(_) | Self::Unusable(_) => None,
        }
    }

    /// Whether the object may break the schema of its kind.
    pub fn is_about_schema(&self) -> bool {
        match self {
            Self::Status { code: 400 | 422, .. } => true,
            // For applies that break the schema, API servers give no reason.
            Self::Status { code: 500, reason, .. } => reason.is_empty(),
            _ => false,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// Whether the same request may succeed without any change by a person.
    pub fn is_transient(&self) -> bool {
        matches!(self.code(), 0 | 408 | 409 | 429 | 500..=599)
    }
}

/// Whether a refusal may quote a Secret's value.
pub(super) fn is_about_secret(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.contains("/secrets/") || path.ends_with("/secrets")
}

/// Why an answer could not be read to its end.
pub(super) fn broken_off(error: &(dyn std::error::Error + 'static), largest: usize) -> ApiError {
    if error.is::<LengthLimitError>() {
        return ApiError::Unusable(format!("the API server's answer has over {} MiB", largest >> 20));
    }
    ApiError::Lost(shorten(&chain(error)))
}

pub(super) fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    let seconds: u64 = response
        .headers()
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds.min(300)))
}

pub(super) fn refusal(status: StatusCode, retry_after: Option<Duration>, body: &[u8], about_secret: bool) -> ApiError {
    let code = status.as_u16();
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if value["kind"] == "Status" => ApiError::Status {
            code,
            reason: value["reason"].as_str().unwrap_or_default().to_owned(),
            message: explain_status(&value, about_secret),
            retry_after,
            fault: match field_conflicts(&value) {
                Some(conflicts) => Fault::FieldConflicts(conflicts),
                None if is_immutable(&value) => Fault::Immutable,
                None if is_of_other_version(&value) => Fault::OtherVersion,
                None if is_unmergeable(&value) => Fault::Unmergeable(fields_of(&value)),
                None => Fault::Other,
            },
        },
        _ => {
            let message = format!("the API server answered {status}");
            ApiError::Status {
                code,
                reason: String::new(),
                message,
                retry_after,
                fault: Fault::Other,
            }
        }
    }
}

pub(super) fn not_json(error: &serde_json::Error) -> ApiError {
    ApiError::Unusable(format!("the API server's answer is not JSON: {error}"))
}
