//! The node's bundle cache: `<hex digest>.tar.zst` files in one folder.
//!
//! Files appear completely (temporary file, fsync, rename, fsync of the folder), are verified at each read, and are
//! evicted when the folder exceeds its size, least recently used first. A pinned bundle is never evicted: assigned
//! bundles, and those needed for a rollback, must be available while the Git host isn't.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use farwater_api::Digest;
use farwater_bundle::{ArchiveError, Limits, archive};

const SUFFIX: &str = ".tar.zst";
/// Folder in which damaged files are kept once, for analysis.
const QUARANTINE: &str = ".corrupt";
const TEMPORARY: &str = "tmp-";

#[derive(Clone, Debug)]
pub struct BundleCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    max_bytes: u64,
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Digest, File>,
    pinned: HashSet<Digest>,
    /// Bundles that were pinned since the last call of `pin_all` began.
    pinned_since: HashSet<Digest>,
    total: u64,
    /// Counts uses; the larger, the later.
    clock: u64,
}

#[derive(Debug)]
struct File {
    bytes: u64,
    used: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    #[error("{what} {} in the bundle cache", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The file was set aside; the bundle must be made or fetched again.
    #[error("bundle {digest} in the cache is damaged and was set aside")]
    Corrupt { digest: Digest, source: ArchiveError },
    #[error("these bytes are not bundle {digest}")]
    NotThis { digest: Digest, source: ArchiveError },
    #[error("the work was stopped")]
    Stopped,
}

impl BundleCache {
    /// Creates or scans the folder. Reads only names and sizes; contents are verified when they are read.
    pub fn open(folder: &Path, max_bytes: u64, limits: Limits) -> Result<Self, CacheError> {
        fs::create_dir_all(folder).map_err(io_error("make", folder))?;
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(io_error("list", folder))? {
            let entry = entry.map_err(io_error("list", folder))?;
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(TEMPORARY) || name.ends_with(QUARANTINE) {
                fs::remove_file(&path).map_err(io_error("remove", &path))?;
            } else if let Some(digest) = name
                .strip_suffix(SUFFIX)
                .and_then(|hex| format!("sha256:{hex}").parse().ok())
            {
                let metadata = entry.metadata().map_err(io_error("look at", &path))?;
                found.push((metadata.modified().ok(), digest, metadata.len()));
            }
        }
        // Uses are not stored; after a restart the age of the files replaces them.
        found.sort_unstable();
        let mut state = State::default();
        for (_, digest, bytes) in found {
            state.insert(digest, bytes);
        }
        Ok(Self(Arc::new(Inner {
            folder: folder.to_owned(),
            max_bytes,
            limits,
            state: Mutex::new(state),
        })))
    }

    /// Whether there is a file for this bundle.
    pub fn contains(&self, digest: &Digest) -> bool {
        self.state().files.contains_key(digest)
    }

    /// Bundles and their bytes on disk.
    pub fn usage(&self) -> (usize, u64) {
        let state = self.state();
        (state.files.len(), state.total)
    }

    /// Pins one more bundle.
    pub fn pin(&self, digest: Digest) {
        let mut state = self.state();
        state.pinned.insert(digest);
        state.pinned_since.insert(digest);
    }

    /// Replaces the pinned bundles by those that `find` returns: others may be evicted. Bundles that are pinned
    /// meanwhile stay pinned.
    pub async fn pin_all<E>(&self, find: impl Future<Output = Result<HashSet<Digest>, E>>) -> Result<(), E> {
        self.state().pinned_since.clear();
        let mut all = find.await?;
        let mut state = self.state();
        all.extend(state.pinned_since.drain());
        state.pinned = all;
        Ok(())
    }

    /// The compressed bundle, verified. None: it is not here.
    pub async fn get(&self, digest: &Digest) -> Result<Option<Vec<u8>>, CacheError> {
        let (inner, digest) = (self.0.clone(), *digest);
        blocking(move || inner.read(&digest)).await
    }

    /// Stores a compressed bundle. Bytes with another digest are refused.
    pub async fn put(&self, digest: &Digest, compressed: Vec<u8>) -> Result<(), CacheError> {
        let (inner, digest) = (self.0.clone(), *digest);
        blocking(move || inner.write(&digest, &compressed)).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(format!("{}{SUFFIX}", digest.to_hex()))
    }

    fn read(&self, digest: &Digest) -> Result<Option<Vec<u8>>, CacheError> {
        let path = self.path(digest);
        let compressed = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.state().remove(digest);
                return Ok(None);
            }
            Err(source) => return Err(io_error("read", &path)(source)),
        };
        if let Err(source) = archive::decompress(&compressed, digest, &self.limits) {
            self.state().remove(digest);
            let aside = path.with_extension(&QUARANTINE[1..]);
            fs::rename(&path, &aside).map_err(io_error("set aside", &path))?;
            return Err(CacheError::Corrupt {
                digest: *digest,
                source,
            });
        }
        self.state().touch(digest);
        Ok(Some(compressed))
    }

    fn write(&self, digest: &Digest, compressed: &[u8]) -> Result<(), CacheError> {
        archive::decompress(compressed, digest, &self.limits).map_err(|source| CacheError::NotThis {
            digest: *digest,
            source,
        })?;
        let path = self.path(digest);
        let mut file = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempfile_in(&self.folder)
            .map_err(io_error("make a file for", &path))?;
        file.write_all(compressed)
            .and_then(|()| file.as_file().sync_all())
            .map_err(io_error("write", &path))?;
        file.persist(&path)
            .map_err(|error| io_error("name", &path)(error.error))?;
        // Otherwise a power cut could lose the name while a row says that the file exists.
        fs::File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(io_error("sync", &self.folder))?;
        let evicted = {
            let mut state = self.state();
            state.insert(*digest, compressed.len() as u64);
            state.evict(self.max_bytes, digest)
        };
        for digest in evicted {
            let path = self.path(&digest);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("remove", &path)(error)),
                _ => tracing::debug!(%digest, "bundle evicted"),
            }
        }
        Ok(())
    }
}

impl State {
    fn insert(&mut self, digest: Digest, bytes: u64) {
        self.remove(&digest);
        self.clock += 1;
        self.total += bytes;
        self.files.insert(
            digest,
            File {
                bytes,
                used: self.clock,
            },
        );
    }

    fn remove(&mut self, digest: &Digest) {
        if let Some(file) = self.files.remove(digest) {
            self.total -= file.bytes;
        }
    }

    fn touch(&mut self, digest: &Digest) {
        self.clock += 1;
        if let Some(file) = self.files.get_mut(digest) {
            file.used = self.clock;
        }
    }

    /// Evicts the least recently used until everything fits, and returns them. The newest one stays, pinned or not.
    fn evict(&mut self, max_bytes: u64, newest: &Digest) -> Vec<Digest> {
        if self.total <= max_bytes {
            return Vec::new();
        }
        let free = |digest: &Digest| digest != newest && !self.pinned.contains(digest);
        let mut candidates: Vec<_> = self
            .files
            .iter()
            .filter(|(digest, _)| free(digest))
            .map(|(digest, file)| (file.used, *digest))
            .collect();
        candidates.sort_unstable();
        let mut evicted = Vec::new();
        for (_, digest) in candidates {
            if self.total <= max_bytes {
                break;
            }
            self.remove(&digest);
            evicted.push(digest);
        }
        if self.total > max_bytes {
            tracing::warn!(
                bytes = self.total,
                max_bytes,
                "pinned bundles alone are over the cache's size"
            );
        }
        evicted
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError::Io { what, path, source }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CacheError> + Send + 'static,
) -> Result<T, CacheError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(CacheError::Stopped),
        },
    }
}

#[cfg(test)]
mod tests {
    use farwater_bundle::{MemoryTree, RelPath, closure};

    use super::*;

    fn bundle(content: &str) -> (Digest, Vec<u8>) {
        let mut tree = MemoryTree::default();
        let root = tree.add_files([("a.yaml", content)]);
        let limits = Limits::default();
        let bytes = archive::pack(
            &tree,
            &closure(&tree, &root, &RelPath::root(), &limits).unwrap(),
            &limits,
        )
        .unwrap();
        (Digest::of(&bytes), archive::compress(&bytes).unwrap())
    }

    fn open(folder: &Path, max_bytes: u64) -> BundleCache {
        BundleCache::open(folder, max_bytes, Limits::default()).unwrap()
    }

    #[tokio::test]
    async fn what_is_put_is_got_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (digest, bytes) = bundle("x");
        let cache = open(dir.path(), 1 << 20);
        assert_eq!(cache.get(&digest).await.unwrap(), None);
        cache.put(&digest, bytes.clone()).await.unwrap();
        fs::write(dir.path().join("tmp-left"), "half").unwrap();
        fs::write(dir.path().join("notes.txt"), "ours to leave alone").unwrap();
        let cache = open(dir.path(), 1 << 20);
        assert_eq!(cache.get(&digest).await.unwrap(), Some(bytes.clone()));
        assert_eq!(cache.usage(), (1, bytes.len() as u64));
        assert!(!dir.path().join("tmp-left").exists() && dir.path().join("notes.txt").exists());
    }

    #[tokio::test]
    async fn a_damaged_file_is_set_aside_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (digest, bytes) = bundle("x");
        let cache = open(dir.path(), 1 << 20);
        cache.put(&digest, bytes.clone()).await.unwrap();
        fs::write(
            dir.path().join(format!("{}.tar.zst", digest.to_hex())),
            &bytes[..bytes.len() / 2],
        )
        .unwrap();
        assert!(matches!(cache.get(&digest).await, Err(CacheError::Corrupt { .. })));
        assert!(!cache.contains(&digest));
        assert_eq!(cache.get(&digest).await.unwrap(), None);
        cache.put(&digest, bytes.clone()).await.unwrap();
        assert_eq!(cache.get(&digest).await.unwrap(), Some(bytes));
    }

    #[tokio::test]
    async fn foreign_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path(), 1 << 20);
        assert!(matches!(
            cache.put(&bundle("x").0, bundle("y").1).await,
            Err(CacheError::NotThis { .. })
        ));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn the_least_recently_used_goes_and_the_pinned_stays() {
        let dir = tempfile::tempdir().unwrap();
        let bundles: Vec<_> = ["1", "2", "3", "4"].map(bundle).into();
        let cache = open(dir.path(), bundles[..3].iter().map(|(_, b)| b.len() as u64).sum());
        for (digest, bytes) in &bundles[..3] {
            cache.put(digest, bytes.clone()).await.unwrap();
        }
        cache.pin(bundles[2].0);
        let found = async {
            cache.pin(bundles[1].0);
            Ok::<_, CacheError>(HashSet::from([bundles[3].0]))
        };
        cache.pin_all(found).await.unwrap();
        cache.get(&bundles[0].0).await.unwrap();
        cache.put(&bundles[3].0, bundles[3].1.clone()).await.unwrap();
        let here: Vec<_> = bundles.iter().map(|(digest, _)| cache.contains(digest)).collect();
        assert_eq!(here, [true, true, false, true]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
