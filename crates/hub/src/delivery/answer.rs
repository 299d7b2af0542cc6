//! Refusals, as agents read them.

use axum::{
    Json,
    body::Bytes,
    extract::rejection::BytesRejection,
    response::{IntoResponse, Response},
};
use farwater_api::protocol::{
    self, ProtocolError, REASON_BASE_UNKNOWN, REASON_CLOCK_SKEW, REASON_IDENTITY_UNKNOWN, REASON_INVALID,
    REASON_KEYS_EARLY, REASON_KEYS_REVOKED, REASON_NOT_DESIRED, REASON_PATH_UNKNOWN, REASON_QUARANTINED,
    REASON_TOKEN_EXPIRED, REASON_TOKEN_UNKNOWN, REASON_TOKEN_USED, REASON_UNAVAILABLE,
};
use farwater_store::StoreError;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::de::DeserializeOwned;

use crate::errors::chain;

/// Bytes of an unknown path that are repeated in the refusal.
const MAX_SHOWN_PATH: usize = 128;

/// Why an agent's request was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("this join token is not one of this hub's; make one with: farwater cluster join NAME")]
    JoinTokenUnknown,
    #[error("this join token was used already; make another with: farwater cluster join NAME")]
    JoinTokenUsed,
    #[error("this join token has expired; make another with: farwater cluster join NAME")]
    JoinTokenExpired,
    #[error("the proof does not show possession of the public key")]
    ProofWrong,
    #[error(
        "this Kubernetes cluster has joined as {namespace}/{name} already; delete that Cluster first, or join it as that one"
    )]
    JoinedElsewhere { namespace: String, name: String },
    #[error("no agent with this identity: it was replaced, or its Cluster was deleted; join again")]
    IdentityUnknown,
    #[error(
        "these keys were replaced by newer ones of the same agent: it was restored from an older copy, or another one uses its \
         identity; join again"
    )]
    KeysReplaced,
    #[error("this agent uses retired keys of the hub; join it again: farwater cluster join {name}")]
    KeysRevoked { name: String },
    #[error("the hub accepts new keys once it knows that no other process uses this identity; retry in {seconds} s")]
    KeysEarly { seconds: u64 },
    #[error(
        "two agents use this cluster's identity ({hosts}): the hub answers neither, and workloads keep running; stop the \
         agent that should not run, then join the other one again: farwater cluster join NAME"
    )]
    Quarantined { hosts: String },
    #[error(
        "the assertion's time is {seconds} s away from the hub's; at most {} s are allowed",
        super::token::MAX_SKEW_SECONDS
    )]
    ClockSkew { seconds: i64 },
    #[error("the assertion was used already")]
    AssertionUsed,
    #[error("the access token is missing or not one of this hub's")]
    AccessTokenUnknown,
    #[error("the access token has expired")]
    AccessTokenExpired,
    #[error("this cluster's desired state doesn't name bundle {digest}")]
    NotDesired { digest: String },
    #[error("this cluster's desired state doesn't name these Secrets of service {service}; poll again")]
    SecretsNotDesired { service: String },
    #[error("this cluster's desired state doesn't name these parameters of service {service}; poll again")]
    ParametersNotDesired { service: String },
    #[error("the hub's last report is {last}, not {base}; send everything, with base 0")]
    BaseUnknown { last: u64, base: u64 },
    #[error("no request for this plan is open")]
    PlanUnwanted,
    #[error("the request is longer than this address takes")]
    TooLarge,
    #[error(
        "this hub ({}) does not know {path}; it is older than the agent: upgrade the hub before its agents",
        env!("CARGO_PKG_VERSION")
    )]
    PathUnknown { path: String },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}; try again")]
    Unavailable(String),
}

impl Refusal {
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::JoinTokenUnknown => (StatusCode::UNAUTHORIZED, REASON_TOKEN_UNKNOWN),
            Self::JoinTokenUsed => (StatusCode::UNAUTHORIZED, REASON_TOKEN_USED),
            Self::JoinTokenExpired => (StatusCode::UNAUTHORIZED, REASON_TOKEN_EXPIRED),
            Self::ProofWrong | Self::JoinedElsewhere { .. } => (StatusCode::FORBIDDEN, REASON_INVALID),
            Self::IdentityUnknown | Self::KeysReplaced => (StatusCode::UNAUTHORIZED, REASON_IDENTITY_UNKNOWN),
            Self::KeysRevoked { .. } => (StatusCode::FORBIDDEN, REASON_KEYS_REVOKED),
            Self::KeysEarly { .. } => (StatusCode::FORBIDDEN, REASON_KEYS_EARLY),
            Self::Quarantined { .. } => (StatusCode::FORBIDDEN, REASON_QUARANTINED),
            Self::ClockSkew { .. } => (StatusCode::UNAUTHORIZED, REASON_CLOCK_SKEW),
            Self::AssertionUsed => (StatusCode::UNAUTHORIZED, REASON_TOKEN_USED),
            Self::AccessTokenUnknown => (StatusCode::UNAUTHORIZED, REASON_TOKEN_UNKNOWN),
            Self::AccessTokenExpired => (StatusCode::UNAUTHORIZED, REASON_TOKEN_EXPIRED),
            Self::NotDesired { .. } | Self::SecretsNotDesired { .. } | Self::ParametersNotDesired { .. } => {
                (StatusCode::FORBIDDEN, REASON_NOT_DESIRED)
            }
            Self::BaseUnknown { .. } => (StatusCode::CONFLICT, REASON_BASE_UNKNOWN),
            Self::PlanUnwanted => (StatusCode::GONE, REASON_NOT_DESIRED),
            Self::PathUnknown { .. } => (StatusCode::NOT_FOUND, REASON_PATH_UNKNOWN),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, REASON_INVALID),
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, REASON_INVALID),
            Self::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, REASON_UNAVAILABLE),
        }
    }
}

/// The cause goes into the hub's log. The agent learns that there is no answer now, which is not an empty answer.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::Closed) {
            return Self::Unavailable("the hub is stopping".to_owned());
        }
        tracing::error!(error = %chain(&error), "answer an agent");
        Self::Unavailable("the hub's database does not answer".to_owned())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, reason) = self.code();
        let hub_time = (status == StatusCode::UNAUTHORIZED).then(|| Timestamp::now().as_second());
        let body = ProtocolError {
            reason: reason.to_owned(),
            message: self.to_string(),
            hub_time,
        };
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Answers any unknown path of agents. Repeating the path reveals no secret, because paths come from the program.
pub async fn unknown_path(uri: http::Uri) -> Refusal {
    Refusal::PathUnknown {
        path: uri.path().chars().take(MAX_SHOWN_PATH).collect(),
    }
}

/// Parses a request's JSON. The error is worded for agents, not by axum.
pub fn read_json<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refusal> {
    let bytes = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::TooLarge,
        _ => Refusal::Invalid(rejection.body_text()),
    })?;
    serde_json::from_slice(&bytes).map_err(|error| Refusal::Invalid(format!("the request is not readable: {error}")))
}

/// The header that tells an agent when to poll again.
pub fn poll_interval(seconds: u64) -> (http::HeaderName, HeaderValue) {
    (
        http::HeaderName::from_static(protocol::POLL_INTERVAL_HEADER),
        HeaderValue::from(seconds),
    )
}
