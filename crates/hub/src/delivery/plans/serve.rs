//! The endpoints of agents for requests for plans, and for plans.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    plan::{MAX_PLAN_BYTES, ServicePlan},
    protocol::{PlanRequest, PlanStatement, Verbatim},
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::tell_agent;
use crate::delivery::{
    Delivery,
    answer::{Refusal, read_json},
    token::authenticate,
};

/// `GET /agent/v1/plans`
pub async fn get_plan(State(delivery): State<Arc<Delivery>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let taken = delivery.plans.take(&cluster.uid);
    tell_agent(&delivery, &cluster.uid);
    let Some((id, entry)) = taken else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let identity = &delivery.identity;
    let statement = Verbatim::from(PlanStatement {
        installation: identity.installation().to_owned(),
        cluster_uid: cluster.uid.to_string(),
        id,
        entry: entry.digest(),
        key_id: identity.key_id().to_owned(),
    });
    let signature = BASE64.encode(identity.sign(&statement.message_for(PlanStatement::PREFIX)));
    Ok(Json(PlanRequest { statement, signature, entry }).into_response())
}

/// Maximum bytes of a body: the plan, and the fields around it.
pub const MAX_REPORT_BYTES: usize = MAX_PLAN_BYTES + (64 << 10);

/// As the agent wrote it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Report {
    Plan(Value),
    Problem(String),
}

/// `POST /agent/v1/plans/<id>`
pub async fn post_plan(
    State(delivery): State<Arc<Delivery>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let report = match read_json(body)? {
        Report::Plan(plan) => {
            ServicePlan::deserialize(&plan)
                .map_err(|error| Refusal::Invalid(format!("the plan is not readable: {error}")))?;
            Ok(plan)
        }
        Report::Problem(problem) => Err(problem),
    };
    if delivery.plans.finish(&cluster.uid, &id, report) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Refusal::PlanUnwanted)
    }
}
