//! `gitrepositories/NAME/impact`: what another revision of a repository would change.

use axum::response::Response;
use farwater_api::{
    GitRepository,
    impact::{IMPACT_KIND, ImpactQuery},
};
use farwater_sources::Named;
use serde_json::json;

use super::{
    call::{Call, store_failed},
    computed::{our_api_version, read_spec},
    options::WriteOptions,
    respond,
};
use crate::{
    kinds::status::ApiError,
    resources::{self, Name},
    services::measure_impact::{self, ImpactError},
};

/// `create`: answered when both revisions were compared.
pub async fn measure(call: &Call, bytes: &[u8]) -> Result<Response, ApiError> {
    if WriteOptions::parse(&call.query, "CreateOptions")?.dry_run {
        return Err(ApiError::unsupported_parameter("dryRun", "nothing is changed as it is"));
    }
    let query: Option<ImpactQuery> = read_spec(call, bytes, IMPACT_KIND)?;
    let query = query.ok_or_else(|| ApiError::bad_request("spec.ref: say which branch, tag or commit"))?;
    let named = Named::parse(&query.reference).map_err(|error| ApiError::bad_request(format!("spec.ref: {error}")))?;

    let repository = call.load(&call.info.name).await?;
    let parsed: GitRepository = resources::parse(&repository).map_err(store_failed)?;
    let name = Name::new(&call.info.namespace, &call.info.name);

    let measured = measure_impact::measure(&call.hub.replica, &name, (&repository.uid, &parsed.spec), &named).await;
    let impact = measured.map_err(|error| match error {
        ImpactError::Store(error) => store_failed(error),
        ImpactError::Source(failure) if failure.reason == "ReferenceNotFound" => ApiError {
            message: failure.message,
            ..call.not_found(&query.reference)
        },
        ImpactError::Source(failure) if failure.lasting => ApiError::bad_request(failure.message),
        ImpactError::Source(failure) => ApiError::unavailable(failure.message),
        ImpactError::Machine(problem) => ApiError::unavailable(problem),
    })?;

    let shown = json!({
        "apiVersion": our_api_version(),
        "kind": IMPACT_KIND,
        "metadata": {"namespace": repository.key.namespace, "name": repository.key.name},
        "status": impact,
    });
    Ok(respond::json(201, &shown))
}
