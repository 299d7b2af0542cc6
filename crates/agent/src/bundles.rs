//! Bundles by digest: looked up in the state directory, then the cluster, then the hub. Every read is verified.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use farwater_api::{Digest, protocol::Deployment};
use farwater_bundle::{Archive, ArchiveError, Limits};

use crate::{
    hub::{Caller, HubClient, HubError},
    kubernetes::Kubernetes,
    secrets::{self, Held},
    sync::lock,
};

const PURPOSE: &str = "bundle";
/// Most bytes of the folder of bundles. The oldest bundles that no service names are deleted first.
const MAX_FOLDER_BYTES: u64 = 1 << 30;
/// Most bundles that are stored in the cluster in addition to the state directory.
const MAX_CLUSTER_COPIES: usize = 40;

#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("bundle {digest} has {bytes} bytes, at most {limit} are accepted")]
    TooLarge { digest: Digest, bytes: u64, limit: u64 },
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("read bundle {digest}")]
    Content { digest: Digest, source: ArchiveError },
    #[error("store bundle {digest}")]
    Store { digest: Digest, source: std::io::Error },
    #[error("bundle {0} is not kept here any more")]
    NotKept(Digest),
}

/// Where a bundle from the hub is stored after it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shelf {
    /// Stored here and in the cluster.
    Kept,
    /// Read for a preview only, and not stored.
    Passing,
    /// Only stored bundles are read; none is downloaded.
    Nothing,
}

pub struct Bundles {
    folder: PathBuf,
    /// One download of a bundle at a time, however many services want it.
    downloads: Mutex<BTreeMap<Digest, Arc<tokio::sync::Mutex<()>>>>,
    cluster_copies: Mutex<BTreeSet<String>>,
}

impl Bundles {
    pub fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            downloads: Mutex::default(),
            cluster_copies: Mutex::default(),
        }
    }

    /// Lists the bundles that the cluster holds.
    pub async fn load_cluster_copies(&self, kubernetes: &Kubernetes) {
        match secrets::names(kubernetes, PURPOSE).await {
            Ok(names) => *lock(&self.cluster_copies) = names.into_iter().collect(),
            Err(error) => tracing::warn!(%error, "can't list the bundles in the cluster"),
        }
    }

    pub async fn open(
        &self,
        deployment: &Deployment,
        shelf: Shelf,
        hub: &HubClient,
        caller: &Caller<'_>,
        kubernetes: &Kubernetes,
    ) -> Result<Archive, BundleError> {
        let digest = deployment.bundle;
        let mut limits = Limits::default();
        if deployment.bundle_bytes > limits.total_bytes {
            let (bytes, limit) = (deployment.bundle_bytes, limits.total_bytes);
            return Err(BundleError::TooLarge { digest, bytes, limit });
        }
        limits.total_bytes = deployment.bundle_bytes;
        let single = lock(&self.downloads).entry(digest).or_default().clone();
        let guard = single.lock().await;
        let result = self.open_single(digest, (limits, shelf), hub, caller, kubernetes).await;
        drop(guard);
        let mut downloads = lock(&self.downloads);
        if Arc::strong_count(&single) <= 2 {
            downloads.remove(&digest);
        }
        result
    }

    async fn open_single(
        &self,
        digest: Digest,
        (limits, shelf): (Limits, Shelf),
        hub: &HubClient,
        caller: &Caller<'_>,
        kubernetes: &Kubernetes,
    ) -> Result<Archive, BundleError> {
        let path = self.path(digest);
        if let Ok(compressed) = std::fs::read(&path) {
            match Archive::open(&compressed, &digest, &limits) {
                Ok(archive) => {
                    touch(&path);
                    return Ok(archive);
                }
                Err(error) => {
                    tracing::warn!(%digest, %error, "stored bundle is damaged; fetching it again");
                    let _ = std::fs::remove_file(&path);
                }
            }
        }

        let name = secret_name(digest);
        if lock(&self.cluster_copies).contains(&name)
            && let Ok(Some(compressed)) = secrets::load(kubernetes, &name).await
            && let Ok(archive) = Archive::open(&compressed, &digest, &limits)
        {
            self.store(digest, &compressed)?;
            return Ok(archive);
        }
        if shelf == Shelf::Nothing {
            return Err(BundleError::NotKept(digest));
        }

        let temporary = path.with_extension("part");
        // zstd never grows its input by more than this.
        let most = limits.total_bytes + (limits.total_bytes >> 8) + 1024;
        hub.download(caller, digest, &temporary, usize::try_from(most).unwrap_or(usize::MAX))
            .await?;
        let compressed = std::fs::read(&temporary).map_err(|source| BundleError::Store { digest, source })?;
        let opened = Archive::open(&compressed, &digest, &limits);
        let archive = opened.map_err(|source| {
            let _ = std::fs::remove_file(&temporary);
            BundleError::Content { digest, source }
        })?;

        if shelf == Shelf::Passing {
            let _ = std::fs::remove_file(&temporary);
            return Ok(archive);
        }
        std::fs::rename(&temporary, &path).map_err(|source| BundleError::Store { digest, source })?;
        self.copy_to_cluster(&name, &compressed, kubernetes).await;
        Ok(archive)
    }

    async fn copy_to_cluster(&self, name: &str, compressed: &[u8], kubernetes: &Kubernetes) {
        let room = lock(&self.cluster_copies).len() < MAX_CLUSTER_COPIES;
        if !room || compressed.len() > secrets::MAX_BYTES || lock(&self.cluster_copies).contains(name) {
            return;
        }
        match secrets::save(kubernetes, PURPOSE, name, compressed, Held::NotYet).await {
            Ok(()) => {
                lock(&self.cluster_copies).insert(name.to_owned());
            }
            Err(error) => tracing::warn!(%error, "can't keep a bundle in the cluster"),
        }
    }

    /// Deletes bundles that no service names: all of them from the cluster, and the oldest over the limit from the
    /// folder.
    pub async fn collect(&self, named: &BTreeSet<Digest>, kubernetes: &Kubernetes) {
        let keep: BTreeSet<String> = named.iter().map(|d| secret_name(*d)).collect();
        let gone: Vec<String> = lock(&self.cluster_copies).difference(&keep).cloned().collect();
        for name in gone {
            match secrets::remove(kubernetes, &name).await {
                Ok(()) => {
                    lock(&self.cluster_copies).remove(&name);
                }
                Err(error) => tracing::warn!(%error, name, "can't remove an old bundle from the cluster"),
            }
        }
        if let Err(error) = self.trim_folder(named) {
            tracing::warn!(%error, "can't remove old bundles");
        }
    }

    fn trim_folder(&self, named: &BTreeSet<Digest>) -> std::io::Result<()> {
        let keep: BTreeSet<PathBuf> = named.iter().map(|d| self.path(*d)).collect();
        let mut files = Vec::new();
        let mut total = 0;
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            total += metadata.len();
            files.push((
                metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                metadata.len(),
                entry.path(),
            ));
        }
        files.sort();
        for (_, bytes, path) in files {
            if total <= MAX_FOLDER_BYTES {
                break;
            }
            if !keep.contains(&path) {
                std::fs::remove_file(&path)?;
                total -= bytes;
            }
        }
        Ok(())
    }

    fn store(&self, digest: Digest, compressed: &[u8]) -> Result<(), BundleError> {
        let path = self.path(digest);
        crate::identity::write_private(&path, compressed).map_err(|source| BundleError::Store { digest, source })
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.folder.join(format!("{}.tar.zst", digest.to_hex()))
    }
}

fn secret_name(digest: Digest) -> String {
    format!("farwater-bundle-{}", &digest.to_hex()[..40])
}

/// Marks a bundle as used; bundles are deleted in this order.
fn touch(path: &std::path::Path) {
    if let Ok(file) = std::fs::File::options().append(true).open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}
