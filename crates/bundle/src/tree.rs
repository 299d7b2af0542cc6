//! Git trees as data: the operations of an object database that closures need, and an implementation in memory.

use std::{collections::HashMap, fmt, rc::Rc, str::FromStr, sync::Arc};

use sha2::{Digest as _, Sha256};

/// The id of a Git object: 20 bytes in SHA-1 repositories, 32 in SHA-256 ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    bytes: [u8; 32],
    len: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object id {0:?} is not 40 or 64 hex digits")]
pub struct ParseObjectIdError(String);

impl ObjectId {
    /// From 20 or 32 raw bytes.
    pub fn from_bytes(raw: &[u8]) -> Result<Self, ParseObjectIdError> {
        if raw.len() != 20 && raw.len() != 32 {
            return Err(ParseObjectIdError(hex::encode(&raw[..raw.len().min(40)])));
        }
        let mut bytes = [0; 32];
        bytes[..raw.len()].copy_from_slice(raw);
        Ok(Self {
            bytes,
            len: raw.len() as u8,
        })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The object format's name, as in `sha1:<hex>`.
    pub fn algorithm(&self) -> &'static str {
        if self.len == 20 { "sha1" } else { "sha256" }
    }

    /// The first 12 hex digits, for people.
    pub fn short(&self) -> String {
        hex::encode(&self.bytes[..6])
    }
}

impl FromStr for ObjectId {
    type Err = ParseObjectIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseObjectIdError(text.chars().take(80).collect());
        if text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(error());
        }
        Self::from_bytes(&hex::decode(text).map_err(|_| error())?).map_err(|_| error())
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.as_bytes()))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The type of a tree's entry. The octal value is Git's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// `040000`
    Tree,
    /// `100644`, and the historic `100664`
    File,
    /// `100755`
    Executable,
    /// `120000`
    Symlink,
    /// `160000`: a submodule
    Commit,
}

impl Mode {
    pub const fn octal(self) -> &'static str {
        match self {
            Self::Tree => "040000",
            Self::File => "100644",
            Self::Executable => "100755",
            Self::Symlink => "120000",
            Self::Commit => "160000",
        }
    }
}

/// One entry of a tree. The name may contain any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub mode: Mode,
    pub id: ObjectId,
}

/// An object database failed, or lacks an object that a tree names.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("object {0} is missing from the mirror")]
    Missing(ObjectId),
    #[error("object {id} is {size} bytes, over the limit of {limit}")]
    TooLarge { id: ObjectId, size: u64, limit: u64 },
    #[error("object {id} can't be read")]
    Unreadable {
        id: ObjectId,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Reads trees and blobs as stored: no filters, no line ending rules.
pub trait Tree {
    /// The entries of a tree, in any order.
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError>;
    /// The bytes of a blob of at most `limit` bytes; a larger one is refused before it is read.
    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError>;
}

impl<T: Tree + ?Sized> Tree for Rc<T> {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        (**self).entries(id)
    }

    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError> {
        (**self).blob(id, limit)
    }
}

/// An object database in memory. Ids are computed like Git's SHA-256 ones, so equal content has equal ids.
#[derive(Clone, Debug, Default)]
pub struct MemoryTree {
    trees: HashMap<ObjectId, Vec<Entry>>,
    blobs: HashMap<ObjectId, Arc<[u8]>>,
}

impl MemoryTree {
    /// Size of all blobs.
    pub fn bytes(&self) -> u64 {
        self.blobs.values().map(|blob| blob.len() as u64).sum()
    }

    pub fn add_blob(&mut self, bytes: &[u8]) -> ObjectId {
        let id = object_id("blob", bytes);
        self.blobs.entry(id).or_insert_with(|| bytes.into());
        id
    }

    /// Adds a tree with exactly these entries, even hostile ones.
    pub fn add_tree(&mut self, entries: Vec<Entry>) -> ObjectId {
        let mut body = Vec::new();
        for entry in &entries {
            body.extend_from_slice(entry.mode.octal().trim_start_matches('0').as_bytes());
            body.push(b' ');
            body.extend_from_slice(&entry.name);
            body.push(0);
            body.extend_from_slice(entry.id.as_bytes());
        }
        let id = object_id("tree", &body);
        self.trees.insert(id, entries);
        id
    }

    /// Adds files by path and returns the root tree. A value that starts with `-> ` is a symlink's target.
    pub fn add_files<'a>(&mut self, files: impl IntoIterator<Item = (&'a str, &'a str)>) -> ObjectId {
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_unstable();
        self.add_folder(&files)
    }

    fn add_folder(&mut self, files: &[(&str, &str)]) -> ObjectId {
        let mut entries = Vec::new();
        for &(path, content) in files {
            if let Some((folder, _)) = path.split_once('/') {
                let prefix = format!("{folder}/");
                let inside: Vec<_> = files
                    .iter()
                    .filter_map(|(p, c)| Some((p.strip_prefix(&prefix)?, *c)))
                    .collect();
                if !entries.iter().any(|e: &Entry| e.name == folder.as_bytes()) {
                    let id = self.add_folder(&inside);
                    entries.push(Entry {
                        name: folder.into(),
                        mode: Mode::Tree,
                        id,
                    });
                }
            } else {
                let (mode, bytes) = match content.strip_prefix("-> ") {
                    Some(target) => (Mode::Symlink, target),
                    None => (Mode::File, content),
                };
                let id = self.add_blob(bytes.as_bytes());
                entries.push(Entry {
                    name: path.into(),
                    mode,
                    id,
                });
            }
        }
        self.add_tree(entries)
    }
}

fn object_id(kind: &str, body: &[u8]) -> ObjectId {
    let mut hash = Sha256::new();
    hash.update(format!("{kind} {}\0", body.len()));
    hash.update(body);
    let bytes: [u8; 32] = hash.finalize().into();
    ObjectId { bytes, len: 32 }
}

impl Tree for MemoryTree {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        self.trees.get(id).cloned().ok_or(TreeError::Missing(*id))
    }

    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError> {
        let bytes = self.blobs.get(id).ok_or(TreeError::Missing(*id))?;
        if bytes.len() as u64 > limit {
            return Err(TreeError::TooLarge {
                id: *id,
                size: bytes.len() as u64,
                limit,
            });
        }
        Ok(bytes.to_vec())
    }
}
