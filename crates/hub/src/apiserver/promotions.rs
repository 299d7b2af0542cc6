//! `pipelines/NAME/approve`: a person's approval of exactly what would be deployed.

use axum::response::Response;
use farwater_api::pipeline::{APPROVAL_KIND, ApprovalRequest};
use serde_json::json;

use super::{
    call::{Call, store_failed},
    computed::{our_api_version, read_spec},
    options::WriteOptions,
    respond,
};
use crate::{
    kinds::status::ApiError,
    promotion::advance_promotions::{self, Refusal},
    resources::Name,
};

pub async fn approve(call: &Call, bytes: &[u8]) -> Result<Response, ApiError> {
    if WriteOptions::parse(&call.query, "CreateOptions")?.dry_run {
        return Err(ApiError::unsupported_parameter(
            "dryRun",
            "a word is either given or not",
        ));
    }
    let request: Option<ApprovalRequest> = read_spec(call, bytes, APPROVAL_KIND)?;
    let request =
        request.ok_or_else(|| ApiError::bad_request("spec: say which stage, and the digest of its candidate"))?;
    let name = Name::new(&call.info.namespace, &call.info.name);
    let by = (call.user.name.as_str(), call.user.groups.as_slice());
    let approved = advance_promotions::approve(&call.hub.replica, &name, &request, by).await;
    let commit = approved.map_err(|refusal| match refusal {
        Refusal::Store(error) => store_failed(error),
        Refusal::Missing => call.not_found(&name.name),
        Refusal::NoStage(why) => ApiError::bad_request(why),
        Refusal::NotAsked(why) => call.forbidden(&name.name, &why),
        Refusal::Conflict(why) => ApiError::conflict(&call.kind.group, &call.kind.plural, &name.name, &why),
    })?;
    let answer = json!({
        "apiVersion": our_api_version(),
        "kind": APPROVAL_KIND,
        "metadata": {"namespace": name.namespace, "name": name.name},
        "spec": request,
        "status": {"by": call.user.name, "commit": commit},
    });
    Ok(respond::json(201, &answer))
}
