//! The endpoints of agents for requests for plans, and for plans.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    plan::{MAX_PLAN_BYTES, PlanAnswer, PlanProblem, ServicePlan},
    protocol::{PlanRequest, PlanStatement, Verbatim},
};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use crate::delivery::{
    answer::{Refusal, read_json},
    token::authenticate,
};
use crate::{
    memory::plans::{AskError, Asked, LIFE, Proposed},
    replica::Replica,
};

/// Begins a request. `prepare` runs apart from the caller and finds out what has to be planned.
pub fn ask(
    replica: &Arc<Replica>,
    asked: &Asked<'_>,
    prepare: impl Future<Output = Result<Proposed, (PlanProblem, String)>> + Send + 'static,
) -> Result<String, AskError> {
    let id = replica.memory.plans.open(asked)?;
    let (replica, cluster_uid, opened) = (Arc::clone(replica), Arc::clone(&asked.cluster.uid), id.clone());
    tokio::spawn(async move {
        let begun = Instant::now();
        match tokio::time::timeout(LIFE, prepare).await {
            Ok(Ok(proposed)) => {
                replica.memory.plans.propose(&opened, proposed);
                tell_agent(&replica, &cluster_uid);
            }
            Ok(Err((problem, message))) => replica.memory.plans.fail(&opened, problem, &message),
            Err(_) => replica.memory.plans.fail(
                &opened,
                PlanProblem::Unavailable,
                "the inputs of the plan were not found in time",
            ),
        }
        tokio::time::sleep(LIFE.saturating_sub(begun.elapsed())).await;
        replica.memory.plans.close(&opened);
        tell_agent(&replica, &cluster_uid);
    });
    Ok(id)
}

/// Progress of a request; None: there is no such request.
pub fn look(replica: &Replica, id: &str, service_uid: &str) -> Option<PlanAnswer> {
    replica
        .memory
        .plans
        .look(id, service_uid, |uid| replica.memory.clusters.get(uid))
}

/// The answer to the next poll names waiting requests; a connected agent gets a hint to poll.
fn tell_agent(replica: &Replica, cluster_uid: &str) {
    if let Some(cluster) = replica.memory.clusters.get(cluster_uid) {
        cluster.set_plan(replica.memory.plans.waiting(cluster_uid));
    }
}

/// `GET /agent/v1/plans`
pub async fn get_plan(State(replica): State<Arc<Replica>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let taken = replica.memory.plans.take(&cluster.uid);
    tell_agent(&replica, &cluster.uid);
    let Some((id, entry)) = taken else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let identity = &replica.identity;
    let statement = Verbatim::from(PlanStatement {
        installation: identity.installation().to_owned(),
        cluster_uid: cluster.uid.to_string(),
        id,
        entry: entry.digest(),
        key_id: identity.key_id().to_owned(),
    });
    let signature = BASE64.encode(identity.sign(&statement.message_for(PlanStatement::PREFIX)));
    Ok(Json(PlanRequest {
        statement,
        signature,
        entry,
    })
    .into_response())
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
    State(replica): State<Arc<Replica>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let report = match read_json(body)? {
        Report::Plan(plan) => {
            ServicePlan::deserialize(&plan)
                .map_err(|error| Refusal::Invalid(format!("the plan is not readable: {error}")))?;
            Ok(plan)
        }
        Report::Problem(problem) => Err(problem),
    };
    if replica.memory.plans.finish(&cluster.uid, &id, report) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Refusal::PlanUnwanted)
    }
}
