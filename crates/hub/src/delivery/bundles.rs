//! `GET /agent/v1/bundles/<digest>`: by digest, and only what the asking cluster's desired state names, or a request for a
//! plan that its agent has.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    response::Response,
};
use farwater_api::Digest;
use farwater_store::delivery::is_desired;
use http::{HeaderMap, HeaderValue, header};

use super::{Delivery, answer::Refusal, token::authenticate};
use crate::controllers::{chain, git};

pub async fn get_bundle(
    State(delivery): State<Arc<Delivery>>,
    Path(digest): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let digest: Digest = digest.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let planned = delivery.plans.bundle(&cluster.uid, &digest);
    if planned.is_none() && !is_desired(&mut *delivery.store.tables().await?, &cluster.uid, &digest).await? {
        return Err(Refusal::NotDesired { digest: digest.to_string() });
    }
    if let Some(Some(archive)) = planned {
        return Ok(send(Body::from(archive)));
    }
    let bytes = git::load_bundle(&delivery, &digest).await.map_err(|error| {
        tracing::error!(%digest, error = %chain(&error), "serve a bundle");
        Refusal::Unavailable(format!("bundle {digest} can't be read"))
    })?;
    delivery.counters.bundles.inc();
    Ok(send(Body::from(bytes)))
}

fn send(bundle: Body) -> Response {
    let mut response = Response::new(bundle);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
    response
}
