//! `GET /agent/v1/bundles/<digest>`: bundles by digest, only those that the requesting cluster's desired state names,
//! or a request for a plan that its agent has.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Path, State},
    response::Response,
};
use farwater_api::Digest;
use farwater_store::{StoreError, delivery::is_desired};
use http::{HeaderMap, HeaderValue, header};
use moka::future::Cache;

use super::{Delivery, answer::Refusal, clusters::ClusterState, token::authenticate};
use crate::controllers::{chain, git};

/// Bytes of a small bundle: most bundles are a few manifests. Larger ones are read from the disk, which costs little
/// compared with sending them.
const SMALL: usize = 64 << 10;
/// Bytes of small bundles in memory: those of some thousand services, enough for a change of many clusters.
const MEMORY: u64 = 32 << 20;
/// Number of remembered permissions, some 200 bytes each.
const ANSWERS: u64 = 20_000;

/// Bundles and permissions that were served lately. A change of many clusters reads and verifies each bundle once.
/// Repeated requests under one desired state are looked up once.
pub struct Served {
    /// They were verified when they were read.
    bundles: Cache<Digest, Bytes>,
    /// The desired state that names a bundle, by cluster.
    named: Cache<(Arc<str>, Digest), HeaderValue>,
}

impl Default for Served {
    fn default() -> Self {
        let weigh = |_: &Digest, bytes: &Bytes| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Self { bundles: Cache::builder().max_capacity(MEMORY).weigher(weigh).build(), named: Cache::new(ANSWERS) }
    }
}

impl Served {
    /// Whether a cluster's desired state names a bundle. Only a positive answer is remembered, for exactly that state.
    async fn is_desired(
        &self,
        delivery: &Delivery,
        cluster: &ClusterState,
        digest: &Digest,
    ) -> Result<bool, StoreError> {
        let key = (Arc::clone(&cluster.uid), *digest);
        if let Some(etag) = &cluster.etag
            && self.named.get(&key).await.as_ref() == Some(etag)
        {
            return Ok(true);
        }
        let found = is_desired(&mut *delivery.store.tables().await?, &cluster.uid, digest).await?;
        if let (true, Some(etag)) = (found, &cluster.etag) {
            self.named.insert(key, etag.clone()).await;
        }
        Ok(found)
    }

    async fn load(&self, delivery: &Arc<Delivery>, digest: &Digest) -> Result<Bytes, git::LoadError> {
        if let Some(bytes) = self.bundles.get(digest).await {
            return Ok(bytes);
        }
        let bytes = Bytes::from(git::load_bundle(delivery, digest).await?);
        if bytes.len() <= SMALL {
            self.bundles.insert(*digest, bytes.clone()).await;
        }
        Ok(bytes)
    }
}

pub async fn get_bundle(
    State(delivery): State<Arc<Delivery>>,
    Path(digest): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let digest: Digest = digest.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let planned = delivery.plans.bundle(&cluster.uid, &digest);
    if planned.is_none() && !delivery.served.is_desired(&delivery, &cluster, &digest).await? {
        return Err(Refusal::NotDesired { digest: digest.to_string() });
    }
    if let Some(Some(archive)) = planned {
        return Ok(send(Body::from(archive)));
    }
    let bytes = delivery.served.load(&delivery, &digest).await.map_err(|error| {
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
