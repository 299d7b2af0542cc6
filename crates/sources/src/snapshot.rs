//! A commit with what belongs to it besides its own objects: the trees of its submodules at their paths, and the large
//! files of its pointers.

use std::{cell::RefCell, collections::HashMap, path::PathBuf};

use farwater_bundle::{Closure, Entry, Limits, Mode, ObjectId, Tree, TreeError};
use serde::{Deserialize, Serialize};

use crate::{
    address::Address,
    git::URL_FILE,
    lfs::{LargeFile, LargeFiles, MAX_POINTER},
    mirror::{Mirror, MirrorError, MirrorObjects},
    modules::{self, MAX_DEPTH, MAX_MODULES},
};

/// What is read besides a commit's own objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reads {
    #[serde(default)]
    pub submodules: bool,
    #[serde(default)]
    pub lfs: bool,
}

impl Reads {
    /// Only the commit's own objects.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// Objects of a commit, for one thread. Place 0 is the source's own mirror.
pub struct Snapshot {
    source: PathBuf,
    commit: ObjectId,
    reads: Reads,
    opened: RefCell<Vec<Opened>>,
    /// Places of objects that are not in the source's own mirror.
    places: RefCell<HashMap<ObjectId, usize>>,
    /// Submodules by commit. None until one is found.
    modules: RefCell<Option<HashMap<ObjectId, Module>>>,
    large_files: LargeFiles,
    /// Large files by the id of their pointer.
    large: RefCell<HashMap<ObjectId, LargeFile>>,
}

struct Opened {
    objects: MirrorObjects,
    url: String,
}

#[derive(Clone)]
struct Module {
    address: Address,
    depth: usize,
    /// Its place and the root of its tree, once opened. Inner None: it was not fetched.
    opened: Option<Option<(usize, ObjectId)>>,
}

impl Snapshot {
    /// Opens a mirror at a commit. Returns also the root of its tree. Blocking, like all functions here.
    pub fn open(mirror: &Mirror, commit: ObjectId, reads: Reads) -> Result<(Self, ObjectId), MirrorError> {
        let root = mirror.root_tree(&commit)?;
        let own = Opened {
            objects: mirror.objects(),
            url: url_of(mirror)?,
        };
        let snapshot = Self {
            source: mirror.path().to_owned(),
            commit,
            reads,
            opened: RefCell::new(vec![own]),
            places: RefCell::default(),
            modules: RefCell::default(),
            large_files: LargeFiles::below(mirror.path()),
            large: RefCell::default(),
        };
        Ok((snapshot, root))
    }

    /// Finds the pointers to large files among the files of a closure that are of this commit. From then on a pointer
    /// is read as its large file. Returns the files that are missing on this node, by the URL of their repository.
    pub fn resolve_pointers(
        &self,
        closure: &Closure,
        limits: &Limits,
    ) -> Result<Vec<(String, Vec<LargeFile>)>, MirrorError> {
        if !self.reads.lfs {
            return Ok(Vec::new());
        }

        let (mut found, mut total) = (Vec::new(), 0u64);
        for (path, file) in &closure.files {
            if !matches!(file.mode, Mode::File | Mode::Executable) {
                continue;
            }
            let fail = |why: String| MirrorError::LargeFile {
                path: path.clone(),
                why,
            };
            let place = self.place(&file.id);
            let read = self.objects(place, |opened| match opened.objects.size(&file.id)? <= MAX_POINTER {
                true => opened
                    .objects
                    .blob(&file.id, MAX_POINTER)
                    .map(|bytes| Some((bytes, opened.url.clone()))),
                false => Ok(None),
            });
            let (bytes, url) = match read {
                Ok(Some(read)) => read,
                // A file of another source of the service.
                Ok(None) | Err(TreeError::Missing(_)) => continue,
                Err(error) => return Err(fail(error.to_string())),
            };
            let Some(large) = LargeFile::parse(&bytes) else {
                continue;
            };
            let large = large.map_err(&fail)?;
            total = total.saturating_add(large.size);
            if large.size > limits.file_bytes || total > limits.total_bytes {
                let (file, all) = (limits.file_bytes, limits.total_bytes);
                return Err(fail(format!(
                    "stands for {} bytes; one file may have {file}, all {all}",
                    large.size
                )));
            }
            self.large.borrow_mut().insert(file.id, large.clone());
            found.push((url, large));
        }

        Ok(self.large_files.missing(found))
    }

    /// Whether any pointer is read as a large file.
    pub fn has_large_files(&self) -> bool {
        !self.large.borrow().is_empty()
    }

    fn place(&self, id: &ObjectId) -> usize {
        self.places.borrow().get(id).copied().unwrap_or(0)
    }

    fn objects<T>(&self, place: usize, read: impl FnOnce(&Opened) -> T) -> T {
        let opened = self.opened.borrow();
        // Places only refer to opened repositories.
        read(&opened[place.min(opened.len() - 1)])
    }

    /// The place and the tree of a submodule. None: it was not fetched.
    fn mount(&self, commit: &ObjectId) -> Result<Option<(usize, ObjectId)>, TreeError> {
        self.read_modules()?;
        let known = self
            .modules
            .borrow()
            .as_ref()
            .and_then(|modules| modules.get(commit).cloned());
        let Some(Module { address, depth, opened }) = known else {
            return Ok(None);
        };
        if let Some(opened) = opened {
            return Ok(opened);
        }
        let mounted = self.open_module(commit, &address, depth)?;
        if let Some(module) = self
            .modules
            .borrow_mut()
            .as_mut()
            .and_then(|modules| modules.get_mut(commit))
        {
            module.opened = Some(mounted);
        }
        Ok(mounted)
    }

    fn read_modules(&self) -> Result<(), TreeError> {
        if self.modules.borrow().is_some() {
            return Ok(());
        }
        *self.modules.borrow_mut() = Some(HashMap::new());
        let own = Mirror::open(&self.source).map_err(|error| unreadable(&self.commit, error))?;
        let url = url_of(&own).map_err(|error| unreadable(&self.commit, error))?;
        let base = Address::parse(&url).map_err(|error| unreadable(&self.commit, error))?;
        self.add_modules(&own, &base, &self.commit, 1)
    }

    fn add_modules(&self, of: &Mirror, base: &Address, commit: &ObjectId, depth: usize) -> Result<(), TreeError> {
        let found = modules::read(of, base, commit).map_err(|error| unreadable(commit, error))?;
        if let Some(known) = self.modules.borrow_mut().as_mut() {
            for module in found.into_iter().take(MAX_MODULES.saturating_sub(known.len())) {
                known.entry(module.commit).or_insert(Module {
                    address: module.address,
                    depth,
                    opened: None,
                });
            }
        }
        Ok(())
    }

    fn open_module(
        &self,
        commit: &ObjectId,
        address: &Address,
        depth: usize,
    ) -> Result<Option<(usize, ObjectId)>, TreeError> {
        let path = modules::mirror_of(&self.source, address);
        let Ok(mirror) = Mirror::open(&path) else {
            return Ok(None);
        };
        let Ok(root) = mirror.root_tree(commit) else {
            return Ok(None);
        };
        let place = {
            let mut opened = self.opened.borrow_mut();
            opened.push(Opened {
                objects: mirror.objects(),
                url: address.as_str().to_owned(),
            });
            opened.len() - 1
        };
        if depth < MAX_DEPTH {
            self.add_modules(&mirror, address, commit, depth + 1)?;
        }
        Ok(Some((place, root)))
    }
}

fn unreadable(id: &ObjectId, error: impl std::error::Error + Send + Sync + 'static) -> TreeError {
    TreeError::Unreadable {
        id: *id,
        source: error.into(),
    }
}

/// The URL that a mirror's objects came from.
fn url_of(mirror: &Mirror) -> Result<String, MirrorError> {
    let path = mirror.path().join(URL_FILE);
    std::fs::read_to_string(&path).map_err(|error| MirrorError::Open {
        path,
        source: error.into(),
    })
}

impl Tree for Snapshot {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        let place = self.place(id);
        let mut entries = self.objects(place, |opened| opened.objects.entries(id))?;
        for entry in &mut entries {
            if place != 0 {
                self.places.borrow_mut().insert(entry.id, place);
            }
            if entry.mode == Mode::Commit
                && self.reads.submodules
                && let Some((place, root)) = self.mount(&entry.id)?
            {
                self.places.borrow_mut().insert(root, place);
                (entry.mode, entry.id) = (Mode::Tree, root);
            }
        }
        Ok(entries)
    }

    fn blob(&self, id: &ObjectId, limit: u64) -> Result<Vec<u8>, TreeError> {
        match self.large.borrow().get(id) {
            Some(large) => self.large_files.read(id, large, limit),
            None => self.objects(self.place(id), |opened| opened.objects.blob(id, limit)),
        }
    }
}
