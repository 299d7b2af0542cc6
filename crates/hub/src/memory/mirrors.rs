//! Mirrors and bundles on this node's disk.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use farwater_api::Digest;
use farwater_bundle::Limits;
use farwater_sources::{BundleCache, Git, GitLimits, Links, ProgramRule, Web};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum number of services whose files are gathered at the same time: packing an archive keeps a core busy.
const PACKED_AT_ONCE: usize = 4;

/// Maximum number of Git repositories that are fetched at the same time: each is a child process and a connection.
const GIT_AT_ONCE: usize = 16;

/// Maximum bytes of bundles on this node that no row names any more: rollbacks and other clusters may need them.
const CACHE_BYTES: u64 = 4 << 30;

const MIRRORS: &str = "mirrors";

/// Home folder of the git program.
const GIT_HOME: &str = "git-home";

const BUNDLES: &str = "cache/bundles";

/// An administrator's settings for sources.
#[derive(Clone, Debug, Default)]
pub struct SourceSettings {
    /// Networks that links may lead to besides public ones.
    pub links: Links,
    /// Programs that return credentials.
    pub programs: Vec<ProgramRule>,
}

/// Mirrors and bundles on this node's disk.
pub struct Mirrors {
    directory: PathBuf,
    pub git: Git,
    pub programs: Vec<ProgramRule>,
    cache: BundleCache,
    limits: Limits,
    /// One archive of a digest is made at a time, however many agents request it.
    making: Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>,
    /// Places for services whose files are gathered; never closed.
    packing: Semaphore,
    /// Places for Git; never closed.
    fetching: Semaphore,
    web: Web,
}

impl Mirrors {
    pub fn open(data: &Path, settings: SourceSettings) -> io::Result<Self> {
        let web = Web::new(settings.links);
        let directory = data.join(MIRRORS);
        std::fs::create_dir_all(&directory)?;
        let limits = Limits::default();
        let cache = BundleCache::open(&data.join(BUNDLES), CACHE_BYTES, limits).map_err(io::Error::other)?;
        Ok(Self {
            directory,
            git: Git::new(GitLimits::default(), web.clone(), &data.join(GIT_HOME))?,
            programs: settings.programs,
            cache,
            limits,
            making: Mutex::default(),
            packing: Semaphore::new(PACKED_AT_ONCE),
            fetching: Semaphore::new(GIT_AT_ONCE),
            web,
        })
    }

    pub fn web(&self) -> &Web {
        &self.web
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bundles that a desired state or a history names are pinned in it.
    pub fn cache(&self) -> &BundleCache {
        &self.cache
    }

    pub async fn packing_place(&self) -> Option<SemaphorePermit<'_>> {
        self.packing.acquire().await.ok()
    }

    pub async fn git_place(&self) -> Option<SemaphorePermit<'_>> {
        self.fetching.acquire().await.ok()
    }

    /// Uids are made by the hub but read from rows, so make sure that none names another folder.
    pub fn path(&self, uid: &str) -> io::Result<PathBuf> {
        let safe = !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if safe {
            Ok(self.directory.join(uid))
        } else {
            Err(io::Error::other("a source's uid is no UUID"))
        }
    }

    /// Uids of the sources that have a mirror.
    pub async fn list(&self) -> Vec<String> {
        let mut uids = Vec::new();
        let Ok(mut entries) = tokio::fs::read_dir(&self.directory).await else {
            return uids;
        };
        while let Ok(Some(entry)) = entries.next_entry().await {
            uids.extend(entry.file_name().into_string().ok());
        }
        uids
    }

    pub async fn remove(&self, uid: &str) -> io::Result<()> {
        match tokio::fs::remove_dir_all(self.path(uid)?).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub fn lock(&self, digest: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        making.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = making.get(digest).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        making.insert(*digest, Arc::downgrade(&lock));
        lock
    }
}
