//! The canonical archive: there is one way to write a set of files, so equal content has an equal digest everywhere.
//!
//! A POSIX tar (ustar, with pax records where ustar has no room) of regular files and symlinks by repository path, in
//! byte order. It has no folders, times or owners, and of the mode only the executable bit.
//! `docs/adr/0003-canonical-archive.md` gives the reasons. The digest is the SHA-256 of the uncompressed bytes and does
//! not depend on the compression. The reader accepts exactly what the writer writes.

mod header;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io::{self, Read as _},
    ops::Range,
};

use farwater_api::Digest;

use crate::{
    closure::{Closure, Lost},
    limits::Limits,
    path::{PathError, RelPath},
    tree::{Mode, Tree, TreeError},
    walk::{self, Found, Lookup},
};

pub(crate) const BLOCK: usize = 512;
/// Most bytes of an entry besides its content: a pax header, its data (path and target), a header, padding.
const ENTRY_OVERHEAD: u64 = 6 * BLOCK as u64;
/// Highest accepted compression ratio. Manifests reach about 100; a file of zeros 30,000.
pub(crate) const MAX_RATIO: u64 = 1000;
/// Below this size in bytes the ratio is not checked.
const RATIO_FREE: u64 = 1 << 20;
/// Largest window that a decoder may allocate: 2^24 bytes. Ours needs 2^21.
pub(crate) const MAX_WINDOW_LOG: u32 = 24;
const ZSTD_LEVEL: i32 = 3;

/// Files and symlinks, in memory.
#[derive(Clone)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: BTreeMap<RelPath, Item>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    File { bytes: Range<usize>, executable: bool },
    Link { target: String },
}

/// Why files could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("{path}: {source}")]
    Read { path: RelPath, source: TreeError },
    #[error("{path} is {size} bytes, over the limit of {limit} for one file")]
    FileTooLarge { path: RelPath, size: u64, limit: u64 },
    #[error("the files are over {limit} bytes together; point the service at a smaller folder")]
    TooLarge { limit: u64 },
    #[error("{path} is a symlink whose target is not UTF-8")]
    Target { path: RelPath },
    #[error("the files compress more than {MAX_RATIO} to 1, which no manifests do")]
    Ratio,
    #[error("compress the archive")]
    Compress { source: io::Error },
}

/// Why bytes are not a valid archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the archive's digest is {found}, not {wanted}")]
    Digest { wanted: Digest, found: Digest },
    #[error("decompress the archive")]
    Decompress { source: io::Error },
    #[error("the archive is over {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the archive expands more than {MAX_RATIO} to 1")]
    Ratio,
    #[error("the archive has more than {limit} entries")]
    TooMany { limit: usize },
    #[error("not a canonical archive at byte {at}: {reason}")]
    Format { at: usize, reason: &'static str },
    #[error("entry of the archive: {0}")]
    Name(PathError),
    #[error("symlink {path} of the archive: {lost}")]
    Link { path: RelPath, lost: Lost },
}

/// Writes the files of a closure. The result is the uncompressed archive; its digest is its name.
pub fn pack<T: Tree>(tree: &T, closure: &Closure, limits: &Limits) -> Result<Vec<u8>, PackError> {
    let mut writer = Writer::default();
    let mut left = limits.total_bytes;
    for (path, file) in &closure.files {
        let bytes = tree
            .blob(&file.id, limits.file_bytes.min(left))
            .map_err(|source| match source {
                TreeError::TooLarge { size, .. } if size > limits.file_bytes => PackError::FileTooLarge {
                    path: path.clone(),
                    size,
                    limit: limits.file_bytes,
                },
                TreeError::TooLarge { .. } => PackError::TooLarge {
                    limit: limits.total_bytes,
                },
                source => PackError::Read {
                    path: path.clone(),
                    source,
                },
            })?;
        left = left.saturating_sub(bytes.len() as u64);
        if file.mode == Mode::Symlink {
            let target = String::from_utf8(bytes).map_err(|_| PackError::Target { path: path.clone() })?;
            writer.link(path, &target);
        } else {
            writer.file(path, &bytes, file.mode == Mode::Executable);
        }
    }
    Ok(writer.finish())
}

/// Writes an archive. The caller passes each path once and in order.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn file(&mut self, path: &RelPath, bytes: &[u8], executable: bool) {
        header::write(
            &mut self.0,
            path,
            header::Kind::File {
                size: bytes.len() as u64,
                executable,
            },
        );
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }

    pub(crate) fn link(&mut self, path: &RelPath, target: &str) {
        header::write(&mut self.0, path, header::Kind::Link { target });
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

pub fn compress(archive: &[u8]) -> Result<Vec<u8>, PackError> {
    let compressed = zstd::bulk::compress(archive, ZSTD_LEVEL).map_err(|source| PackError::Compress { source })?;
    // Readers would refuse it, so don't write it.
    if exceeds_ratio(archive.len() as u64, compressed.len() as u64) {
        return Err(PackError::Ratio);
    }
    Ok(compressed)
}

/// Decompresses and verifies. Nothing is parsed before the digest of the whole archive is verified.
pub fn decompress(compressed: &[u8], digest: &Digest, limits: &Limits) -> Result<Vec<u8>, ArchiveError> {
    let fail = |source| ArchiveError::Decompress { source };
    let limit = archive_limit(limits);
    let mut decoder = zstd::stream::read::Decoder::with_buffer(compressed).map_err(fail)?;
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(fail)?;
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        let n = decoder.read(&mut chunk).map_err(fail)?;
        if n == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk[..n]);
        if bytes.len() as u64 > limit {
            return Err(ArchiveError::TooLarge { limit });
        }
        if exceeds_ratio(bytes.len() as u64, compressed.len() as u64) {
            return Err(ArchiveError::Ratio);
        }
    }
    let found = Digest::of(&bytes);
    if found != *digest {
        return Err(ArchiveError::Digest { wanted: *digest, found });
    }
    Ok(bytes)
}

pub(crate) fn archive_limit(limits: &Limits) -> u64 {
    limits.total_bytes + limits.files as u64 * ENTRY_OVERHEAD + 2 * BLOCK as u64
}

pub(crate) fn exceeds_ratio(bytes: u64, compressed: u64) -> bool {
    bytes > RATIO_FREE && bytes / MAX_RATIO > compressed
}

impl Archive {
    /// Decompresses, verifies and reads.
    pub fn open(compressed: &[u8], digest: &Digest, limits: &Limits) -> Result<Self, ArchiveError> {
        Self::read(decompress(compressed, digest, limits)?, limits)
    }

    /// Reads an uncompressed archive. The caller must have verified its digest.
    pub fn read(bytes: Vec<u8>, limits: &Limits) -> Result<Self, ArchiveError> {
        if bytes.len() as u64 > archive_limit(limits) {
            return Err(ArchiveError::TooLarge {
                limit: archive_limit(limits),
            });
        }
        let mut entries = BTreeMap::new();
        let mut at = 0;
        loop {
            let fail = |reason| ArchiveError::Format { at, reason };
            let rest = bytes.get(at..).unwrap_or_default();
            if rest.len() == 2 * BLOCK && rest.iter().all(|b| *b == 0) {
                break;
            }
            let (path, item, next) = header::read(&bytes, at).map_err(|e| match e {
                header::HeaderError::Format(reason) => fail(reason),
                header::HeaderError::Name(error) => ArchiveError::Name(error),
            })?;
            if entries.last_key_value().is_some_and(|(last, _)| *last >= path) {
                return Err(fail("entries are not in order"));
            }
            if let Item::File { bytes, .. } = &item
                && bytes.len() as u64 > limits.file_bytes
            {
                return Err(ArchiveError::TooLarge {
                    limit: limits.file_bytes,
                });
            }
            entries.insert(path, item);
            if entries.len() > limits.files {
                return Err(ArchiveError::TooMany { limit: limits.files });
            }
            at = next;
        }

        let mut archive = Self { bytes, entries };
        archive.check_shape()?;
        Ok(archive)
    }

    /// Checks that no path is both a file and a folder, and that every symlink leads to something inside.
    fn check_shape(&mut self) -> Result<(), ArchiveError> {
        for path in self.entries.keys() {
            let mut above = path.parent();
            while let Some(folder) = above.filter(|f| !f.is_root()) {
                if self.entries.contains_key(&folder) {
                    return Err(ArchiveError::Format {
                        at: 0,
                        reason: "a path is a file and a folder",
                    });
                }
                above = folder.parent();
            }
        }
        for (path, item) in &self.entries {
            if matches!(item, Item::Link { .. }) {
                self.resolve(path).map_err(|lost| ArchiveError::Link {
                    path: path.clone(),
                    lost,
                })?;
            }
        }
        Ok(())
    }

    /// The digest, which is its name.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// A copy without some entries, and with these files. A replaced file keeps its executable bit.
    pub fn replace(
        &self,
        without: &BTreeSet<RelPath>,
        files: &BTreeMap<RelPath, Vec<u8>>,
        limits: &Limits,
    ) -> Result<Self, ArchiveError> {
        let mut writer = Writer::default();
        let kept = self.entries.keys().filter(|path| !without.contains(path));
        let paths: BTreeSet<&RelPath> = kept.chain(files.keys()).collect();
        for path in paths {
            match (files.get(path), self.entries.get(path)) {
                (Some(bytes), _) => writer.file(path, bytes, self.is_executable(path)),
                (None, Some(Item::File { bytes, executable })) => {
                    writer.file(path, &self.bytes[bytes.clone()], *executable);
                }
                (None, Some(Item::Link { target })) => writer.link(path, target),
                (None, None) => {}
            }
        }
        Self::read(writer.finish(), limits)
    }

    /// The regular files, in order. Symlinks are not among them.
    pub fn files(&self) -> impl Iterator<Item = (&RelPath, &[u8])> {
        self.entries.iter().filter_map(|(path, item)| match item {
            Item::File { bytes, .. } => Some((path, &self.bytes[bytes.clone()])),
            Item::Link { .. } => None,
        })
    }

    /// The symlinks, in order, with their targets as written.
    pub fn links(&self) -> impl Iterator<Item = (&RelPath, &str)> {
        self.entries.iter().filter_map(|(path, item)| match item {
            Item::Link { target } => Some((path, target.as_str())),
            Item::File { .. } => None,
        })
    }

    pub fn is_executable(&self, path: &RelPath) -> bool {
        matches!(self.entries.get(path), Some(Item::File { executable: true, .. }))
    }

    /// The bytes of a file, symlinks followed.
    pub fn file(&self, path: &RelPath) -> Result<&[u8], Lost> {
        let resolved = self.resolve(path)?;
        match self.entries.get(&resolved.path) {
            Some(Item::File { bytes, .. }) => Ok(&self.bytes[bytes.clone()]),
            _ => Err(Lost::Missing(resolved.path)),
        }
    }

    /// The real folder that a path leads to.
    pub fn folder(&self, path: &RelPath) -> Result<RelPath, Lost> {
        let resolved = self.resolve(path)?;
        if resolved.folder {
            Ok(resolved.path)
        } else {
            Err(Lost::NotAFolder(resolved.path))
        }
    }

    /// Files and symlinks below a real folder, in the order of a walk: by name, folder by folder.
    pub fn walk(&self, folder: &RelPath) -> Vec<&RelPath> {
        let mut paths: Vec<_> = self.entries.keys().filter(|p| p.is_within(folder)).collect();
        paths.sort_by(|a, b| a.names().cmp(b.names()));
        paths
    }

    fn resolve(&self, path: &RelPath) -> Result<walk::Resolved, Lost> {
        match walk::follow(&mut &*self, &RelPath::root(), path.as_str().as_bytes()) {
            Ok(resolved) => resolved,
            Err(never) => match never {},
        }
    }

    fn is_folder(&self, path: &RelPath) -> bool {
        let below = format!("{}/", path.as_str());
        self.entries
            .range::<RelPath, _>((std::ops::Bound::Excluded(path), std::ops::Bound::Unbounded))
            .take_while(|(p, _)| p.as_str().starts_with(path.as_str()))
            .any(|(p, _)| p.as_str().starts_with(&below))
    }
}

impl Lookup for &Archive {
    type Error = Infallible;

    fn find(&mut self, path: &RelPath) -> Result<Option<Found>, Infallible> {
        Ok(match self.entries.get(path) {
            Some(Item::File { .. }) => Some(Found::File),
            Some(Item::Link { target }) => Some(Found::Link(target.clone().into_bytes())),
            None => self.is_folder(path).then_some(Found::Folder),
        })
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.entries.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
