//! A commit with what belongs to it beside its own objects: the trees of its submodules at their places, and the large
//! files that its pointers stand for.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use farwater_api::Digest;
use farwater_bundle::{Closure, Entry, Limits, Mode, ObjectId, RelPath, Tree, TreeError, closure};
use serde::{Deserialize, Serialize};

use crate::{
    address::Address,
    git::URL_FILE,
    lfs::{LargeFile, LargeFiles, MAX_POINTER},
    mirror::{Mirror, MirrorError, MirrorObjects},
    modules::{self, MAX_DEPTH, MAX_MODULES},
};

/// What is read beside a commit's own objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reads {
    #[serde(default)]
    pub submodules: bool,
    #[serde(default)]
    pub lfs: bool,
}

impl Reads {
    /// Every way to read a commit.
    pub const ALL: [Self; 4] = [
        Self { submodules: false, lfs: false },
        Self { submodules: true, lfs: false },
        Self { submodules: false, lfs: true },
        Self { submodules: true, lfs: true },
    ];

    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// A closure, and where its objects are.
#[derive(Clone, Debug)]
pub struct Gathered {
    pub closure: Closure,
    commit: ObjectId,
    reads: Reads,
    /// Mirrors of submodules, and the objects of the closure that are in one of them.
    mirrors: Vec<PathBuf>,
    places: HashMap<ObjectId, usize>,
    /// By the object that is the pointer, with the URL of its repository.
    large: BTreeMap<ObjectId, (String, LargeFile)>,
}

impl Gathered {
    /// Changes with everything that the archive is made from, and with nothing else.
    pub fn content_id(&self) -> Digest {
        self.closure.content_id
    }

    pub(crate) fn large_files(&self) -> Vec<(String, LargeFile)> {
        self.large.values().cloned().collect()
    }
}

/// Objects of a commit, for one thread. Place 0 is the source's own mirror.
pub(crate) struct Snapshot {
    source: PathBuf,
    commit: ObjectId,
    reads: Reads,
    opened: RefCell<Vec<Opened>>,
    /// Where objects are that are not in the source's own mirror.
    places: RefCell<HashMap<ObjectId, usize>>,
    /// By their commits; `None` until a submodule is met.
    modules: RefCell<Option<HashMap<ObjectId, Module>>>,
    large_files: LargeFiles,
    large: BTreeMap<ObjectId, LargeFile>,
}

struct Opened {
    objects: MirrorObjects,
    path: PathBuf,
    url: String,
}

#[derive(Clone)]
struct Module {
    address: Address,
    depth: usize,
    /// Its place and the root of its tree, once it was opened; the inner `None`: it is not here.
    opened: Option<Option<(usize, ObjectId)>>,
}

impl Snapshot {
    pub fn of(mirror: &Mirror, commit: ObjectId, reads: Reads) -> Result<Self, MirrorError> {
        let own = Opened { objects: mirror.objects(), path: mirror.path().to_owned(), url: url_of(mirror)? };
        Ok(Self {
            source: mirror.path().to_owned(),
            commit,
            reads,
            opened: RefCell::new(vec![own]),
            places: RefCell::default(),
            modules: RefCell::default(),
            large_files: mirror.large_files(),
            large: BTreeMap::new(),
        })
    }

    /// The same objects as when the closure was gathered, for its archive.
    pub fn again(mirror: &Mirror, gathered: &Gathered) -> Result<Self, MirrorError> {
        let mut snapshot = Self::of(mirror, gathered.commit, gathered.reads)?;
        for path in &gathered.mirrors {
            let module = Mirror::open(path)?;
            let opened = Opened { objects: module.objects(), path: path.clone(), url: String::new() };
            snapshot.opened.get_mut().push(opened);
        }
        snapshot.places = RefCell::new(gathered.places.clone());
        snapshot.large = gathered.large.iter().map(|(id, (_, file))| (*id, file.clone())).collect();
        Ok(snapshot)
    }

    /// The closure of a folder.
    pub fn gather(self, path: &RelPath, limits: &Limits) -> Result<Gathered, MirrorError> {
        let commit = self.commit;
        let root = self.objects(0, |own| own.root_tree(&commit))?;
        let mut found = closure(&self, &root, path, limits).map_err(MirrorError::Closure)?;
        let mut large = BTreeMap::new();
        if self.reads.lfs {
            large = self.find_large_files(&found, limits)?;
            found.content_id = Digest::of(format!("large files\n{}\n", found.content_id).as_bytes());
        }
        let all = self.places.into_inner();
        let places = found.files.values().filter_map(|file| Some((file.id, *all.get(&file.id)?))).collect();
        let mirrors = self.opened.into_inner().into_iter().skip(1).map(|opened| opened.path).collect();
        Ok(Gathered { closure: found, commit, reads: self.reads, mirrors, places, large })
    }

    fn find_large_files(
        &self,
        closure: &Closure,
        limits: &Limits,
    ) -> Result<BTreeMap<ObjectId, (String, LargeFile)>, MirrorError> {
        let (mut found, mut total) = (BTreeMap::new(), 0u64);
        for (path, file) in &closure.files {
            if !matches!(file.mode, Mode::File | Mode::Executable) {
                continue;
            }
            let fail = |why: String| MirrorError::LargeFile { path: path.clone(), why };
            let place = self.place(&file.id);
            let read = self.objects(place, |objects| match objects.size(&file.id)? <= MAX_POINTER {
                true => objects.blob(&file.id, MAX_POINTER).map(Some),
                false => Ok(None),
            });
            let bytes = read.map_err(|error| fail(error.to_string()))?;
            let Some(large) = bytes.and_then(|bytes| LargeFile::parse(&bytes)) else { continue };
            let large = large.map_err(&fail)?;
            total = total.saturating_add(large.size);
            if large.size > limits.file_bytes || total > limits.total_bytes {
                let (file, all) = (limits.file_bytes, limits.total_bytes);
                return Err(fail(format!("stands for {} bytes; one file may have {file}, all {all}", large.size)));
            }
            let url = self.opened.borrow().get(place).map(|opened| opened.url.clone()).unwrap_or_default();
            found.insert(file.id, (url, large));
        }
        Ok(found)
    }

    fn place(&self, id: &ObjectId) -> usize {
        self.places.borrow().get(id).copied().unwrap_or(0)
    }

    fn objects<T>(&self, place: usize, read: impl FnOnce(&MirrorObjects) -> T) -> T {
        let opened = self.opened.borrow();
        // Places are handed out with what is opened.
        read(&opened[place.min(opened.len() - 1)].objects)
    }

    /// The place and the tree of a submodule; `None` if it was not fetched.
    fn mount(&self, commit: &ObjectId) -> Result<Option<(usize, ObjectId)>, TreeError> {
        self.read_modules()?;
        let known = self.modules.borrow().as_ref().and_then(|modules| modules.get(commit).cloned());
        let Some(Module { address, depth, opened }) = known else { return Ok(None) };
        if let Some(opened) = opened {
            return Ok(opened);
        }
        let mounted = self.open_module(commit, &address, depth)?;
        if let Some(module) = self.modules.borrow_mut().as_mut().and_then(|modules| modules.get_mut(commit)) {
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
                known.entry(module.commit).or_insert(Module { address: module.address, depth, opened: None });
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
        let Ok(mirror) = Mirror::open(&path) else { return Ok(None) };
        let Ok(root) = mirror.root_tree(commit) else { return Ok(None) };
        let place = {
            let mut opened = self.opened.borrow_mut();
            opened.push(Opened { objects: mirror.objects(), path, url: address.as_str().to_owned() });
            opened.len() - 1
        };
        if depth < MAX_DEPTH {
            self.add_modules(&mirror, address, commit, depth + 1)?;
        }
        Ok(Some((place, root)))
    }
}

fn unreadable(id: &ObjectId, error: impl std::error::Error + Send + Sync + 'static) -> TreeError {
    TreeError::Unreadable { id: *id, source: error.into() }
}

/// Where a mirror's objects came from.
fn url_of(mirror: &Mirror) -> Result<String, MirrorError> {
    let path = mirror.path().join(URL_FILE);
    std::fs::read_to_string(&path).map_err(|error| MirrorError::Open { path, source: error.into() })
}

impl Tree for Snapshot {
    fn entries(&self, id: &ObjectId) -> Result<Vec<Entry>, TreeError> {
        let place = self.place(id);
        let mut entries = self.objects(place, |objects| objects.entries(id))?;
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
        match self.large.get(id) {
            Some(large) => self.large_files.read(id, large, limit),
            None => self.objects(self.place(id), |objects| objects.blob(id, limit)),
        }
    }
}
