//! Cache of renders, by the digest of all inputs.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{self, Read as _, Write as _},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use farwater_api::Digest;
use farwater_bundle::RelPath;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most bytes of all entries, compressed.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    pub memory: usize,
    pub disk: u64,
}

/// A service's objects compress to about 2 KB: memory for a thousand services, disk for many times that.
impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            memory: 2 << 20,
            disk: 64 << 20,
        }
    }
}

/// A render without errors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub objects: Vec<Kept>,
    pub warnings: Vec<String>,
}

/// An object and its origin, as in a [`farwater_bundle::manifests::Origin`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub file: RelPath,
    pub line: u32,
    pub document: u32,
    pub value: Value,
}

/// Most bytes of an entry when read: the objects of one service in JSON.
const MAX_ENTRY: u64 = 64 << 20;
const ZSTD_LEVEL: i32 = 3;
const SUFFIX: &str = "rendered.zst";

/// A cache in memory and on disk. In both, the least recently used entry is dropped first.
#[derive(Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    limits: CacheLimits,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    entries: BTreeMap<Digest, Vec<u8>>,
    /// The last used entry is at the end.
    order: VecDeque<Digest>,
    bytes: usize,
}

impl Cache {
    /// Caches in memory, and in an existing folder if one is given.
    pub fn new(folder: Option<PathBuf>, limits: CacheLimits) -> Self {
        Self {
            folder,
            limits,
            held: Mutex::default(),
        }
    }

    pub(crate) fn get(&self, key: &Digest) -> Option<Entry> {
        let held = self.lock().get(key);
        if let Some(bytes) = held {
            return open(&bytes, key);
        }
        let path = self.path(key)?;
        let bytes = fs::read(&path).ok()?;
        let Some(entry) = open(&bytes, key) else {
            // Damaged: render again.
            let _ = fs::remove_file(&path);
            return None;
        };
        // Marks it as used, so that it is dropped last.
        if let Ok(file) = fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        self.lock().put(*key, bytes, self.limits.memory);
        Some(entry)
    }

    /// `secret`: the entry contains secret values, which must not be written to disk.
    pub(crate) fn put(&self, key: &Digest, entry: &Entry, secret: bool) {
        let Some(bytes) = seal(entry, key) else { return };
        if !secret
            && let Some(path) = self.path(key)
            && let Err(error) = self.write(&path, &bytes)
        {
            tracing::warn!(%error, "can't cache the rendered objects");
        }
        self.lock().put(*key, bytes, self.limits.memory);
    }

    fn write(&self, path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if bytes.len() as u64 > self.limits.disk {
            return Ok(());
        }
        self.trim(self.limits.disk - bytes.len() as u64)?;
        // Readable only for its owner.
        let mut file = tempfile::Builder::new().prefix(".rendered-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the oldest entries until at most `most` bytes are left.
    fn trim(&self, most: u64) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let (mut files, mut total) = (Vec::new(), 0);
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            total += metadata.len();
            files.push((
                metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                metadata.len(),
                entry.path(),
            ));
        }
        if total <= most {
            return Ok(());
        }
        files.sort();
        for (_, bytes, path) in files {
            if total <= most {
                break;
            }
            fs::remove_file(&path)?;
            total -= bytes;
        }
        Ok(())
    }

    fn path(&self, key: &Digest) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.{SUFFIX}", key.to_hex())))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn get(&mut self, key: &Digest) -> Option<Vec<u8>> {
        let bytes = self.entries.get(key)?.clone();
        self.order.retain(|other| other != key);
        self.order.push_back(*key);
        Some(bytes)
    }

    fn put(&mut self, key: Digest, bytes: Vec<u8>, most: usize) {
        if bytes.len() > most {
            return;
        }
        self.order.retain(|other| *other != key);
        self.order.push_back(key);
        self.bytes += bytes.len();
        if let Some(before) = self.entries.insert(key, bytes) {
            self.bytes -= before.len();
        }
        while self.bytes > most {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |bytes| bytes.len());
        }
    }
}

/// Includes the key, so that a file is not taken for that of another key.
fn seal(entry: &Entry, key: &Digest) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(&(key, Digest::of(&serde_json::to_vec(entry).ok()?), entry)).ok()?;
    zstd::bulk::compress(&json, ZSTD_LEVEL).ok()
}

fn open(bytes: &[u8], key: &Digest) -> Option<Entry> {
    let mut json = Vec::new();
    zstd::stream::read::Decoder::with_buffer(bytes)
        .ok()?
        .take(MAX_ENTRY)
        .read_to_end(&mut json)
        .ok()?;
    let (named, digest, entry): (Digest, Digest, Entry) = serde_json::from_slice(&json).ok()?;
    (named == *key && Digest::of(&serde_json::to_vec(&entry).ok()?) == digest).then_some(entry)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(text: &str) -> Entry {
        let value = json!({"data": text, "n": 1.5});
        let object = Kept {
            file: RelPath::parse("a.yaml").unwrap(),
            line: 0,
            document: 1,
            value,
        };
        Entry {
            objects: vec![object],
            warnings: Vec::new(),
        }
    }

    /// Incompressible text.
    fn noise(seed: usize) -> String {
        (0..40).map(|n| Digest::of(format!("{seed} {n}")).to_hex()).collect()
    }

    #[test]
    fn what_was_put_in_is_found_again_also_by_the_next_process() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Cache::new(Some(dir.path().to_owned()), CacheLimits::default());
        let key = Digest::of("inputs");
        assert_eq!(open().get(&key), None);
        open().put(&key, &entry("x"), false);
        assert_eq!(open().get(&key), Some(entry("x")));
        assert_eq!(open().get(&Digest::of("other")), None);
    }

    #[test]
    fn what_is_damaged_is_made_again_and_secrets_are_on_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(Some(dir.path().to_owned()), CacheLimits::default());
        let (key, secret) = (Digest::of("a"), Digest::of("b"));
        cache.put(&secret, &entry("s3cret"), true);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(cache.get(&secret), Some(entry("s3cret")));
        cache.put(&key, &entry("x"), false);
        let path = cache.path(&key).unwrap();
        let fresh = || Cache::new(Some(dir.path().to_owned()), CacheLimits::default());
        fs::copy(&path, fresh().path(&Digest::of("c")).unwrap()).unwrap();
        assert_eq!(fresh().get(&Digest::of("c")), None);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(fresh().get(&key), None);
        assert!(!path.exists());
    }

    #[test]
    fn what_was_not_used_for_the_longest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let size = seal(&entry(&noise(0)), &Digest::of("0")).unwrap().len();
        let limits = CacheLimits {
            memory: size * 3 + size / 2,
            disk: (size * 3 + size / 2) as u64,
        };
        let cache = Cache::new(Some(dir.path().to_owned()), limits);
        let key = |n: usize| Digest::of(n.to_string());
        for n in 0..3 {
            cache.put(&key(n), &entry(&noise(n)), false);
        }
        assert!(cache.get(&key(0)).is_some());
        cache.put(&key(3), &entry(&noise(3)), true);
        let held = |n| cache.lock().entries.contains_key(&key(n));
        assert_eq!([held(0), held(1), held(2), held(3)], [true, false, true, true]);
        assert!(cache.lock().bytes <= limits.memory);
        for n in 4..9 {
            cache.put(&key(n), &entry(&noise(n)), false);
        }
        let total: u64 = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(total <= limits.disk, "{total}");
        let huge: String = (0..20).map(noise).collect();
        cache.put(&key(99), &entry(&huge), false);
        assert_eq!(cache.get(&key(99)), None);
    }
}
