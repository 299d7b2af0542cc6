//! `GET /agent/v1/bundles/<digest>`: bundles by digest, only those that the requesting cluster's desired state names,
//! or a request for a plan that its agent has.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    response::Response,
};
use farwater_api::Digest;
use http::{HeaderMap, HeaderValue, header};

use super::{answer::Refusal, token::authenticate};
use crate::{errors::chain, replica::Replica, sources::git};

async fn load(replica: &Arc<Replica>, digest: &Digest) -> Result<Bytes, git::LoadError> {
    if let Some(bytes) = replica.memory.served.find(digest).await {
        return Ok(bytes);
    }
    let bytes = Bytes::from(git::load_bundle(replica, digest).await?);
    replica.memory.served.keep(digest, &bytes).await;
    Ok(bytes)
}

pub async fn get_bundle(
    State(replica): State<Arc<Replica>>,
    Path(digest): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let cluster = authenticate(&replica, &headers)?;
    let digest: Digest = digest.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let planned = replica.memory.plans.bundle(&cluster.uid, &digest);
    if planned.is_none()
        && !replica
            .memory
            .served
            .is_desired(&replica.store, &cluster, &digest)
            .await?
    {
        return Err(Refusal::NotDesired {
            digest: digest.to_string(),
        });
    }
    if let Some(Some(archive)) = planned {
        return Ok(send(Body::from(archive)));
    }
    let bytes = load(&replica, &digest).await.map_err(|error| {
        tracing::error!(%digest, error = %chain(&error), "serve a bundle");
        Refusal::Unavailable(format!("bundle {digest} can't be read"))
    })?;
    replica.memory.counters.bundles.inc();
    Ok(send(Body::from(bytes)))
}

fn send(bundle: Body) -> Response {
    let mut response = Response::new(bundle);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
    response
}
