//! Objects of a tree, read once each.

use std::collections::{BTreeSet, HashMap};

use crate::{
    path::RelPath,
    tree::{Entry, Mode, ObjectId, Tree, TreeError},
    walk::{Found, Lookup},
};

/// The object database by path, with the trees read so far.
pub(super) struct Objects<'t, T> {
    pub(super) tree: &'t T,
    pub(super) root: ObjectId,
    pub(super) cache: HashMap<ObjectId, Vec<Entry>>,
    pub(super) noted: BTreeSet<RelPath>,
}

impl<T: Tree> Objects<'_, T> {
    pub(super) fn entries(&mut self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        self.load(id).map(<[Entry]>::to_vec)
    }

    fn load(&mut self, id: &ObjectId) -> Result<&[Entry], TreeError> {
        if !self.cache.contains_key(id) {
            self.cache.insert(*id, self.tree.entries(id)?);
        }
        Ok(self.cache.get(id).map(Vec::as_slice).unwrap_or_default())
    }

    /// The entry at a path without symlinks among its folders.
    pub(super) fn entry(&mut self, path: &RelPath) -> Result<Option<Entry>, TreeError> {
        let mut id = self.root;
        let mut entry = None;
        for name in path.names() {
            if entry.as_ref().is_some_and(|e: &Entry| e.mode != Mode::Tree) {
                return Ok(None);
            }
            match self.load(&id)?.iter().find(|e| e.name == name.as_bytes()) {
                Some(found) => {
                    id = found.id;
                    entry = Some(found.clone());
                }
                None => return Ok(None),
            }
        }
        Ok(entry)
    }

    pub(super) fn folder_id(&mut self, path: &RelPath) -> Result<Option<ObjectId>, TreeError> {
        if path.is_root() {
            return Ok(Some(self.root));
        }
        Ok(self.entry(path)?.filter(|e| e.mode == Mode::Tree).map(|e| e.id))
    }
}

impl<T: Tree> Lookup for Objects<'_, T> {
    type Error = TreeError;

    fn find(&mut self, path: &RelPath) -> Result<Option<Found>, TreeError> {
        let Some(entry) = self.entry(path)? else {
            return Ok(None);
        };
        Ok(Some(match entry.mode {
            Mode::Tree => Found::Folder,
            Mode::Symlink => Found::Link(self.tree.blob(&entry.id, crate::path::MAX_PATH_BYTES as u64)?),
            Mode::File | Mode::Executable | Mode::Commit => Found::File,
        }))
    }

    fn note(&mut self, path: &RelPath) {
        self.noted.insert(path.clone());
    }
}
