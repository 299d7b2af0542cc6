//! `servicedeployments/NAME/plan`: requests a plan, and returns its progress.
//!
//! A request is answered at once and then polled until it is done, because that may take until an agent's next poll.

use axum::response::Response;
use farwater_api::plan::{PLAN_KIND, PlanAnswer, PlanPhase, PlanQuery};
use farwater_store::Resource;
use serde_json::json;

use super::{
    call::{Call, store_failed},
    computed::{our_api_version, read_spec},
    options::WriteOptions,
    respond,
};
use crate::{
    clusters::propose_plans::{self, ProposeError},
    delivery::plans,
    kinds::status::ApiError,
    memory::plans::AskError,
};

/// `create`
pub async fn ask(call: &Call, bytes: &[u8]) -> Result<Response, ApiError> {
    if WriteOptions::parse(&call.query, "CreateOptions")?.dry_run {
        return Err(ApiError::unsupported_parameter(
            "dryRun",
            "a plan changes nothing as it is",
        ));
    }
    let query: PlanQuery = read_spec(call, bytes, PLAN_KIND)?.unwrap_or_default();
    let service = call.load(&call.info.name).await?;
    let id = propose_plans::propose(&call.hub.replica, &service, query)
        .await
        .map_err(|error| match error {
            ProposeError::Store(error) => store_failed(error),
            ProposeError::Ask(AskError::Random) => ApiError::internal(error),
            ProposeError::Ask(error) => ApiError::new(429, "TooManyRequests", error.to_string()),
            ProposeError::Invalid(problem) => ApiError::bad_request(problem),
            ProposeError::NotYet(problem) => {
                ApiError::conflict(&call.kind.group, &call.kind.plural, &call.info.name, &problem)
            }
        })?;
    let answer = plans::look(&call.hub.replica, &id, &service.uid);
    let answer = answer.unwrap_or_else(|| begun(id));
    show(201, &service, &answer)
}

fn begun(id: String) -> PlanAnswer {
    PlanAnswer {
        id,
        phase: PlanPhase::Preparing,
        reason: None,
        message: String::new(),
        cluster: String::new(),
        revision: String::new(),
        plan: None,
    }
}

/// `get`, with the id that `create` returned.
pub async fn look(call: &Call) -> Result<Response, ApiError> {
    let id = call.query.get("id").unwrap_or_default();
    let service = call.load(&call.info.name).await?;
    let answer = plans::look(&call.hub.replica, id, &service.uid);
    // The error is about a missing object, not about this path.
    let answer = answer.ok_or_else(|| {
        ApiError::expired("there is no such request for a plan: it has ended, or the hub was restarted; ask again")
    })?;
    show(200, &service, &answer)
}

fn show(code: u16, service: &Resource, answer: &PlanAnswer) -> Result<Response, ApiError> {
    let shown = json!({
        "apiVersion": our_api_version(),
        "kind": PLAN_KIND,
        "metadata": {"namespace": service.key.namespace, "name": service.key.name},
        "status": answer,
    });
    Ok(respond::json(code, &shown))
}
