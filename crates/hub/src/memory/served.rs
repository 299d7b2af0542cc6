//! Bundles and permissions that were served lately. A new process reads them from the disk and the store.

use std::sync::Arc;

use bytes::Bytes;
use farwater_api::Digest;
use farwater_store::{Store, StoreError, delivery::is_desired};
use http::HeaderValue;
use moka::future::Cache;

use super::clusters::ClusterState;

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
        Self {
            bundles: Cache::builder().max_capacity(MEMORY).weigher(weigh).build(),
            named: Cache::new(ANSWERS),
        }
    }
}

impl Served {
    /// Whether a cluster's desired state names a bundle. Only a positive answer is remembered, for exactly that state.
    pub async fn is_desired(&self, store: &Store, cluster: &ClusterState, digest: &Digest) -> Result<bool, StoreError> {
        let key = (Arc::clone(&cluster.uid), *digest);
        if let Some(etag) = &cluster.etag
            && self.named.get(&key).await.as_ref() == Some(etag)
        {
            return Ok(true);
        }
        let found = is_desired(&mut *store.tables().await?, &cluster.uid, digest).await?;
        if let (true, Some(etag)) = (found, &cluster.etag) {
            self.named.insert(key, etag.clone()).await;
        }
        Ok(found)
    }

    /// A small bundle that was served lately.
    pub async fn find(&self, digest: &Digest) -> Option<Bytes> {
        self.bundles.get(digest).await
    }

    /// Remembers a bundle if it is small.
    pub async fn keep(&self, digest: &Digest, bytes: &Bytes) {
        if bytes.len() <= SMALL {
            self.bundles.insert(*digest, bytes.clone()).await;
        }
    }
}
