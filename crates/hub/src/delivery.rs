//! Delivery: the endpoints of agents, and the memory from which agents are answered.
//!
//! ```text
//! route_changes ─► fetch_sources ─► assign_revisions ─► compute_desired ─► (etag in memory) ◄─ poll
//!                                        ▲                                                     │
//!                                        └──────────── summarize_reports ◄──── reports ◄─ status
//! ```

mod answer;
pub mod bundles;
mod connection;
pub mod desired;
pub mod join;
pub mod keys;
pub mod parameters;
pub mod plans;
pub mod secrets;
pub mod status;
pub mod token;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    response::{IntoResponse as _, Response},
};
use farwater_api::protocol::{MAX_STATUS_BYTES, PROTOCOL, PROTOCOL_HEADER};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::{bodies::BodyError, endpoint::Endpoint, replica::Replica};
use answer::Refusal;

/// Maximum length of a join request or an assertion, in bytes.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Maximum length of the body of any agent's request, in bytes.
pub const MAX_AGENT_BODY: usize = if MAX_STATUS_BYTES > plans::MAX_REPORT_BYTES {
    MAX_STATUS_BYTES
} else {
    plans::MAX_REPORT_BYTES
};

/// A cluster that is not loaded may still exist, so agents have to wait until loading is done.
fn check_loaded(replica: &Replica) -> Result<(), Refusal> {
    if replica.memory.clusters.is_loaded() {
        Ok(())
    } else {
        Err(Refusal::Unavailable("the hub is starting".to_owned()))
    }
}

/// The endpoints of agents: `/agent/v1/…`, as `farwater_api::protocol` describes them.
pub fn router<S: Clone + Send + Sync + 'static>(replica: Arc<Replica>) -> Router<S> {
    Endpoint::router(endpoints())
        .with_state(replica)
        .layer(middleware::map_response(name_protocol))
}

/// Every answer names the hub's protocol, refusals too: an agent that can't read the rest then knows why.
async fn name_protocol(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(HeaderName::from_static(PROTOCOL_HEADER), HeaderValue::from(PROTOCOL));
    response
}

/// The answer to an agent's request whose body could not be read.
pub fn refuse_body(error: BodyError, headers: &HeaderMap) -> Response {
    match error {
        // An agent whose token expired may send a long report: the report is fine, and the agent needs a new token.
        BodyError::TooLarge(MAX_REQUEST_BYTES) if headers.contains_key(header::AUTHORIZATION) => {
            Refusal::AccessTokenUnknown
        }
        BodyError::TooLarge(_) => Refusal::TooLarge,
        // The agent sends it again.
        BodyError::Slow(_) | BodyError::Broken => Refusal::Unavailable(error.to_string()),
        BodyError::NoRoom => Refusal::Unavailable("too many bodies are being read".to_owned()),
    }
    .into_response()
}

pub(crate) fn endpoints() -> Vec<Endpoint<Arc<Replica>>> {
    let small = || DefaultBodyLimit::max(MAX_REQUEST_BYTES);
    let status = DefaultBodyLimit::max(MAX_STATUS_BYTES);
    let plan = DefaultBodyLimit::max(plans::MAX_REPORT_BYTES);
    vec![
        Endpoint::post("/agent/v1/join", join::post_join).map(|handler| handler.layer(small())),
        Endpoint::post("/agent/v1/token", token::post_token).map(|handler| handler.layer(small())),
        Endpoint::get("/agent/v1/desired", desired::get_desired),
        Endpoint::get("/agent/v1/connection", connection::get_connection),
        Endpoint::get("/agent/v1/bundles/{digest}", bundles::get_bundle),
        Endpoint::get("/agent/v1/secrets/{service}/{mac}", secrets::get_secrets),
        Endpoint::get("/agent/v1/parameters/{service}/{mac}", parameters::get_parameters),
        Endpoint::get("/agent/v1/plans", plans::get_plan),
        Endpoint::post("/agent/v1/plans/{id}", plans::post_plan).map(|handler| handler.layer(plan)),
        Endpoint::post("/agent/v1/status", status::post_status).map(|handler| handler.layer(status)),
        Endpoint::get("/agent/v1/successions/{sequence}", keys::get_successions),
        Endpoint::post("/agent/v1/keys", keys::post_keys).map(|handler| handler.layer(small())),
        Endpoint::any("/agent/{*path}", answer::unknown_path),
    ]
}
