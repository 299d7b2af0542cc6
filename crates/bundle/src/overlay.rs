//! Several trees as one: a service's source with others mounted in it, and charts with their dependencies.
//!
//! Nothing is copied: a graft only creates the folders on its path, and everything else keeps its id. So the content id
//! of the result covers all of its parts.

use crate::{
    path::RelPath,
    tree::{Entry, MemoryTree, Mode, ObjectId, Tree, TreeError},
};

/// Trees that are read as one. An object is the same in each of them.
#[derive(Default)]
pub struct Overlay {
    trees: Vec<Box<dyn Tree>>,
    /// Folders that contain a graft.
    made: MemoryTree,
}

/// Why a folder can't be mounted at a path.
#[derive(Debug, thiserror::Error)]
pub enum GraftError {
    #[error("{path} is there already, from another source")]
    Taken { path: RelPath },
    #[error("{path} is no folder, so nothing can lie below it")]
    NotAFolder { path: RelPath },
    #[error("{path}: {source}")]
    Tree { path: RelPath, source: TreeError },
}

impl Overlay {
    pub fn add(&mut self, tree: impl Tree + 'static) {
        self.trees.push(Box::new(tree));
    }

    /// The tree `root` with a folder mounted at `path`, which must be free; folders on the way are created.
    pub fn graft(&mut self, root: &ObjectId, path: &RelPath, folder: &ObjectId) -> Result<ObjectId, GraftError> {
        let names: Vec<&str> = path.names().collect();
        self.graft_below(Some(root), &RelPath::root(), &names, folder)
    }

    fn graft_below(
        &mut self,
        tree: Option<&ObjectId>,
        at: &RelPath,
        names: &[&str],
        folder: &ObjectId,
    ) -> Result<ObjectId, GraftError> {
        let fail = |source| GraftError::Tree {
            path: at.clone(),
            source,
        };
        let mut entries = tree
            .map(|id| self.entries(id))
            .transpose()
            .map_err(fail)?
            .unwrap_or_default();
        let Some((name, rest)) = names.split_first() else {
            return Err(GraftError::Taken { path: at.clone() });
        };
        // Valid, because the names are from a parsed path.
        let path = at.join_name(name.as_bytes()).unwrap_or_else(|_| at.clone());
        let known = entries.iter().position(|entry| entry.name == name.as_bytes());
        let id = match (known.and_then(|n| entries.get(n)), rest) {
            (Some(_), []) => return Err(GraftError::Taken { path }),
            (Some(entry), _) if entry.mode != Mode::Tree => return Err(GraftError::NotAFolder { path }),
            (None, []) => *folder,
            (entry, rest) => {
                let below = entry.map(|entry| entry.id);
                self.graft_below(below.as_ref(), &path, rest, folder)?
            }
        };
        let entry = Entry {
            name: name.as_bytes().to_vec(),
            mode: Mode::Tree,
            id,
        };
        match known.and_then(|n| entries.get_mut(n)) {
            Some(place) => *place = entry,
            None => entries.push(entry),
        }
        // Trees may have other orders.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(self.made.add_tree(entries))
    }

    /// The entry at a path without symlinks on its way. None also for the root.
    pub fn entry(&self, root: &ObjectId, path: &RelPath) -> Result<Option<Entry>, TreeError> {
        let mut found: Option<Entry> = None;
        for name in path.names() {
            let id = match &found {
                None => *root,
                Some(entry) if entry.mode == Mode::Tree => entry.id,
                Some(_) => return Ok(None),
            };
            match self
                .entries(&id)?
                .into_iter()
                .find(|entry| entry.name == name.as_bytes())
            {
                Some(entry) => found = Some(entry),
                None => return Ok(None),
            }
        }
        Ok(found)
    }

    /// The folder at a path without symlinks on its way.
    pub fn folder(&self, root: &ObjectId, path: &RelPath) -> Result<Option<ObjectId>, TreeError> {
        if path.is_root() {
            return Ok(Some(*root));
        }
        Ok(self
            .entry(root, path)?
            .filter(|entry| entry.mode == Mode::Tree)
            .map(|entry| entry.id))
    }
}

impl Overlay {
    /// Asks each tree until one has the object.
    fn ask<T>(&self, id: &ObjectId, ask: impl Fn(&dyn Tree) -> Result<T, TreeError>) -> Result<T, TreeError> {
        let trees = self.trees.iter().map(AsRef::as_ref);
        for tree in std::iter::once::<&dyn Tree>(&self.made).chain(trees) {
            match ask(tree) {
                Err(TreeError::Missing(_)) => {}
                answer => return answer,
            }
        }
        Err(TreeError::Missing(*id))
    }
}

impl Tree for Overlay {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        self.ask(id, |tree| tree.entries(id))
    }

    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError> {
        self.ask(id, |tree| tree.blob(id, limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{closure, closure_of, limits::Limits};

    fn path(text: &str) -> RelPath {
        text.parse().unwrap()
    }

    #[test]
    fn a_graft_changes_its_own_folders_and_no_others() {
        let (mut main, mut other) = (MemoryTree::default(), MemoryTree::default());
        let root = main.add_files([("apps/web/a.yaml", "a"), ("apps/db/b.yaml", "b")]);
        let values = other.add_files([("values.yaml", "v")]);
        let mut overlay = Overlay::default();
        overlay.add(main);
        overlay.add(other);
        let made = overlay.graft(&root, &path("apps/web/from/values"), &values).unwrap();
        let closure_at =
            |root: &ObjectId, folder: &str| closure(&overlay, root, &path(folder), &Limits::default()).unwrap();
        let files: Vec<_> = closure_at(&made, "")
            .files
            .into_keys()
            .map(|path| path.to_string())
            .collect();
        assert_eq!(
            files,
            ["apps/db/b.yaml", "apps/web/a.yaml", "apps/web/from/values/values.yaml"]
        );
        assert_eq!(
            closure_at(&made, "apps/db").content_id,
            closure_at(&root, "apps/db").content_id
        );
        assert_ne!(
            closure_at(&made, "apps/web").content_id,
            closure_at(&root, "apps/web").content_id
        );
        let both = closure_of(
            &overlay,
            &made,
            &[path("apps/db"), path("apps/web/from")],
            &Limits::default(),
        )
        .unwrap();
        assert_eq!(both.files.len(), 2);
    }

    #[test]
    fn nothing_lies_where_something_lies_already_or_below_a_file() {
        let mut main = MemoryTree::default();
        let root = main.add_files([("a/file", "x"), ("link", "-> a")]);
        let mut overlay = Overlay::default();
        overlay.add(main);
        for (at, expected) in [
            ("a", "a is there already, from another source"),
            ("a/file", "a/file is there already, from another source"),
            ("a/file/b", "a/file is no folder, so nothing can lie below it"),
            ("link/b", "link is no folder, so nothing can lie below it"),
            ("", ". is there already, from another source"),
        ] {
            let folder = root;
            assert_eq!(
                overlay.graft(&root, &path(at), &folder).unwrap_err().to_string(),
                expected
            );
        }
        assert!(overlay.entry(&root, &path("a/file/b")).unwrap().is_none());
        assert!(overlay.entries(&MemoryTree::default().add_blob(b"not here")).is_err());
    }
}
