//! `servicedeployments/NAME/bundle`: the files that a service is made of, for rendering them elsewhere.

use axum::response::Response;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::renderer::{BUNDLE_KIND, BundleAnswer, LocalFiles, MAX_SHOWN_BUNDLE};
use farwater_store::delivery::{Assignment, load_assignment};
use serde_json::json;

use super::{
    call::{Call, store_failed},
    computed::our_api_version,
    respond,
};
use crate::{errors::chain, kinds::status::ApiError, services::rows::TypedRow as _, sources::git};

/// Answers with the bundle that is assigned to a service.
pub async fn show(call: &Call) -> Result<Response, ApiError> {
    let service = call.load(&call.info.name).await?;
    let replica = &call.hub.replica;
    let row = {
        let mut tables = replica.store.tables().await.map_err(store_failed)?;
        load_assignment(&mut tables, &service.uid).await.map_err(store_failed)?
    };
    let assigned = row.as_ref().map(Assignment::read_assigned).transpose();
    let problem = |problem: &str| ApiError::conflict(&call.kind.group, &call.kind.plural, &call.info.name, problem);
    let Some(assigned) = assigned.map_err(store_failed)?.flatten() else {
        return Err(problem(
            "no revision is assigned to the service yet; why says what it lacks",
        ));
    };

    let archive = git::load_bundle(replica, &assigned.bundle).await.map_err(|error| {
        tracing::error!(digest = %assigned.bundle, error = %chain(&error), "show a bundle");
        ApiError::unavailable(format!("bundle {} can't be read", assigned.bundle))
    })?;
    if archive.len() > MAX_SHOWN_BUNDLE {
        return Err(problem(&format!(
            "the service's files have {} bytes compressed, and at most {MAX_SHOWN_BUNDLE} are sent; take them from its source",
            archive.len()
        )));
    }

    let files = LocalFiles {
        digest: assigned.bundle,
        path: assigned.path,
        archive: BASE64.encode(&archive),
    };
    let shown = json!({
        "apiVersion": our_api_version(),
        "kind": BUNDLE_KIND,
        "metadata": {"namespace": service.key.namespace, "name": service.key.name},
        "status": BundleAnswer { revision: assigned.revision, files },
    });
    Ok(respond::json(200, &shown))
}
