//! The closure of a path: the files that a folder needs to be rendered, wherever in the repository they are.
//!
//! A folder's own tree id covers neither `../../base` of an overlay, nor a symlink's target, nor a chart's
//! `file://../lib`. References out of the folder are followed here, using only trees and blobs. A commit that touches
//! nothing of the closure does not change its content id.
//!
//! A reference *out of the repository* is always an error. A missing target and an unreadable kustomization are errors
//! where the walk was led on purpose (`spec.path` and references from there). Elsewhere in a folder that is included
//! whole, they are left to the renderer of that file: nothing is missing from the bundle because of them, and the
//! content id changes with the file.

mod error;
mod objects;
mod reference;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use farwater_api::Digest;
use sha2::{Digest as _, Sha256};

use crate::{
    bases::Base,
    limits::Limits,
    manifests::IGNORE_FILE,
    path::RelPath,
    tree::{Entry, Mode, ObjectId, Tree},
    walk::{self, Found, Lookup, Resolved},
};
use error::tree_error;
use objects::Objects;

pub use crate::walk::Lost;
pub use error::{ClosureError, ClosureReason};

/// Part of every content id. Change it when the same inputs must give a different archive.
const FORMAT: &str = "farwater-content-v1\n";

/// Suffix of templates. Each becomes the file without the suffix before anything is rendered.
pub const TEMPLATE_SUFFIX: &str = ".liquid";

/// The files of a bundle, and the id of their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closure {
    /// Covers every path, mode and byte of the closure, and nothing else.
    pub content_id: Digest,
    /// Files and symlinks by repository path.
    pub files: BTreeMap<RelPath, FileEntry>,
    /// Folders of charts that the walk was led to on purpose.
    pub charts: BTreeSet<RelPath>,
    /// Remote bases of kustomizations that the walk was led to, if they are not mounted.
    pub bases: BTreeSet<Base>,
    /// Charts that such kustomizations inflate and that are not where kustomize looks for them.
    pub inflated: BTreeSet<InflatedChart>,
    /// Where a tree must differ so that its closure differs: see [`concerns`](crate::changes::concerns).
    pub roots: BTreeSet<RelPath>,
}

/// A chart that a kustomization pulls from a repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InflatedChart {
    /// Path of the kustomization.
    pub file: RelPath,
    pub name: String,
    pub repository: String,
    /// A version or a range.
    pub version: String,
    /// Where kustomize looks for it.
    pub place: RelPath,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub mode: Mode,
    pub id: ObjectId,
}

/// The remote bases that a kustomization names, each with its text. Empty if the kustomization is unreadable.
pub fn bases_of(kustomization: &str) -> Vec<(String, Base)> {
    let named = reference::read("kustomization.yaml", kustomization).unwrap_or_default();
    let remote = named
        .references
        .into_iter()
        .filter(|one| one.may_be_base && reference::looks_remote(&one.text));
    remote
        .filter_map(|one| Base::parse(&one.text).map(|base| (one.text, base)))
        .collect()
}

/// The closure of `path` in the tree `root`.
pub fn closure<T: Tree>(
    tree: &T,
    root: &ObjectId,
    path: &RelPath,
    limits: &Limits,
) -> Result<Closure, Box<ClosureError>> {
    closure_of(tree, root, std::slice::from_ref(path), limits)
}

/// The closure of several folders together.
pub fn closure_of<T: Tree>(
    tree: &T,
    root: &ObjectId,
    paths: &[RelPath],
    limits: &Limits,
) -> Result<Closure, Box<ClosureError>> {
    let mut walk = Walk::new(tree, *root, limits);
    paths.iter().try_for_each(|path| walk.start(path))?;
    while let Some(task) = walk.queue.pop_front() {
        walk.run(task)?;
    }
    Ok(walk.finish())
}

/// A found file whose references are still to be followed.
enum Task {
    Symlink(RelPath),
    /// A kustomization or chart. `wanted`: the walk was led to its folder on purpose.
    Build {
        file: RelPath,
        wanted: bool,
    },
}

struct Walk<'t, T> {
    objects: Objects<'t, T>,
    limits: &'t Limits,
    files: BTreeMap<RelPath, FileEntry>,
    /// Folders that are included whole, with their tree ids.
    folders: BTreeMap<RelPath, ObjectId>,
    builds: BTreeSet<(RelPath, bool)>,
    charts: BTreeSet<RelPath>,
    bases: BTreeSet<Base>,
    inflated: BTreeSet<InflatedChart>,
    symlinks: BTreeSet<RelPath>,
    visited: usize,
    queue: VecDeque<Task>,
}

impl<'t, T: Tree> Walk<'t, T> {
    fn new(tree: &'t T, root: ObjectId, limits: &'t Limits) -> Self {
        Self {
            objects: Objects {
                tree,
                root,
                cache: HashMap::new(),
                noted: BTreeSet::new(),
            },
            limits,
            files: BTreeMap::new(),
            folders: BTreeMap::new(),
            builds: BTreeSet::new(),
            charts: BTreeSet::new(),
            bases: BTreeSet::new(),
            inflated: BTreeSet::new(),
            symlinks: BTreeSet::new(),
            visited: 0,
            queue: VecDeque::new(),
        }
    }

    fn start(&mut self, path: &RelPath) -> Result<(), Box<ClosureError>> {
        let fail = |reason| ClosureError {
            file: path.to_string(),
            line: None,
            reason,
        };
        match self.follow(&RelPath::root(), path.as_str(), path)? {
            Ok(found) if found.folder => {
                self.include(&found)?;
                self.include_ignore_files(&found.path)
            }
            Ok(_) => Err(fail(ClosureReason::NotAFolder).into()),
            Err(Lost::Missing(_) | Lost::NotAFolder(_)) => Err(fail(ClosureReason::NoSuchPath).into()),
            Err(lost) => Err(fail(ClosureReason::Reference {
                reference: path.to_string(),
                lost,
            })
            .into()),
        }
    }

    /// Includes the ignore files of the folders above a folder. [`changed_paths`](crate::changed_paths) knows which of
    /// their changes matter without recording where they were looked for.
    fn include_ignore_files(&mut self, folder: &RelPath) -> Result<(), Box<ClosureError>> {
        for above in std::iter::successors(folder.parent(), RelPath::parent) {
            let Ok(file) = above.join_name(IGNORE_FILE.as_bytes()) else {
                continue;
            };
            let entry = self.objects.entry(&file).map_err(|e| tree_error(&file, e))?;
            match entry {
                Some(entry) if matches!(entry.mode, Mode::File | Mode::Executable) => self.add_entry(file, &entry)?,
                // It would be unknown which changes of its target matter.
                Some(entry) if entry.mode == Mode::Symlink => {
                    let reason = ClosureReason::IgnoreSymlink;
                    return Err(ClosureError {
                        file: file.to_string(),
                        line: None,
                        reason,
                    }
                    .into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&mut self, task: Task) -> Result<(), Box<ClosureError>> {
        match task {
            Task::Symlink(link) => self.follow_symlink(&link),
            Task::Build { file, wanted } => {
                let folder = file.parent().unwrap_or_default();
                if wanted && file.file_name() == "Chart.yaml" {
                    self.charts.insert(folder.clone());
                }
                let named = match self.read_references(&file)? {
                    Ok(named) => named,
                    Err(error) if wanted => return Err(error),
                    Err(_) => return Ok(()),
                };
                named
                    .references
                    .into_iter()
                    .try_for_each(|r| self.follow_reference(&file, &folder, r, wanted))?;
                named
                    .charts
                    .into_iter()
                    .filter(|_| wanted)
                    .try_for_each(|chart| self.follow_chart(&file, &folder, chart))
            }
        }
    }

    fn follow_symlink(&mut self, link: &RelPath) -> Result<(), Box<ClosureError>> {
        let folder = link.parent().unwrap_or_default();
        match self.follow(&folder, link.file_name(), link)? {
            Ok(found) => self.include(&found),
            Err(lost) => {
                let target = match self.objects.find(link) {
                    Ok(Some(Found::Link(target))) => crate::path::escape(&target),
                    _ => String::new(),
                };
                let reason = ClosureReason::Symlink { target, lost };
                Err(Box::new(ClosureError {
                    file: link.to_string(),
                    line: None,
                    reason,
                }))
            }
        }
    }

    /// The outer error is from the object database, the inner one from the file.
    fn read_references(
        &mut self,
        file: &RelPath,
    ) -> Result<Result<reference::Named, Box<ClosureError>>, Box<ClosureError>> {
        let fail = |line, reason| {
            Box::new(ClosureError {
                file: file.to_string(),
                line,
                reason,
            })
        };
        let Some(entry) = self.files.get(file) else {
            return Ok(Ok(reference::Named::default()));
        };
        // A symlinked kustomization is read at its target, but kustomize resolves its references beside the link.
        let id = match entry.mode {
            Mode::Symlink => {
                let folder = file.parent().unwrap_or_default();
                match self.follow(&folder, file.file_name(), file)? {
                    Ok(found) => match self.objects.entry(&found.path).map_err(|e| tree_error(file, e))? {
                        Some(entry) => entry.id,
                        None => return Ok(Ok(reference::Named::default())),
                    },
                    Err(_) => return Ok(Ok(reference::Named::default())),
                }
            }
            _ => entry.id,
        };
        let bytes = match self.objects.tree.blob(&id, self.limits.file_bytes) {
            Ok(bytes) => bytes,
            Err(error) => return Err(tree_error(file, error)),
        };
        let Ok(text) = String::from_utf8(bytes) else {
            return Ok(Err(fail(None, ClosureReason::NotText)));
        };
        Ok(reference::read(file.file_name(), &text).map_err(|e| fail(Some(e.line), ClosureReason::Yaml(e.reason))))
    }

    fn follow_reference(
        &mut self,
        file: &RelPath,
        folder: &RelPath,
        reference: reference::Reference,
        wanted: bool,
    ) -> Result<(), Box<ClosureError>> {
        let reference::Reference {
            line,
            text,
            may_be_remote,
            may_be_base,
            optional,
        } = reference;
        // kustomize joins by text first, so `link/../x` is `x`, whatever `link` is.
        let result = match folder.join_clean(&text) {
            Ok(path) => self.follow(&RelPath::root(), path.as_str(), file)?,
            Err(error) => Err(Lost::Path(error)),
        };

        let mut lost = match result {
            Ok(found) => return self.include(&found),
            Err(lost) => lost,
        };
        // The target may be made by a template.
        if matches!(lost, Lost::Missing(_))
            && let Ok(template) = folder.join_clean(&format!("{text}{TEMPLATE_SUFFIX}"))
            && let Ok(found) = self.follow(&RelPath::root(), template.as_str(), file)?
            && !found.folder
        {
            return self.include(&found);
        }
        if may_be_remote && reference::looks_remote(&text) {
            let Some(base) = Base::parse(&text).filter(|_| may_be_base) else {
                return Ok(());
            };
            match self.follow_base(base, file, wanted)? {
                Some(missing) => lost = missing,
                None => return Ok(()),
            }
        }
        if lost.escapes() || matches!(lost, Lost::Loop) || (wanted && !optional) {
            let reason = ClosureReason::Reference {
                reference: crate::path::escape(text.as_bytes()),
                lost,
            };
            return Err(Box::new(ClosureError {
                file: file.to_string(),
                line: Some(line),
                reason,
            }));
        }
        Ok(())
    }

    fn follow_chart(
        &mut self,
        file: &RelPath,
        folder: &RelPath,
        chart: reference::Inflated,
    ) -> Result<(), Box<ClosureError>> {
        // The renderer reports a path out of the repository.
        let Ok(place) = folder.join_clean(&chart.place) else {
            return Ok(());
        };
        match self.follow(&RelPath::root(), place.as_str(), file)? {
            Ok(found) => self.include(&found)?,
            Err(_) if !chart.repository.is_empty() => {
                let reference::Inflated {
                    name,
                    repository,
                    version,
                    ..
                } = chart;
                self.inflated.insert(InflatedChart {
                    file: file.clone(),
                    name,
                    repository,
                    version,
                    place,
                });
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Follows a remote base. Some: it does not exist although its repository is mounted.
    fn follow_base(&mut self, base: Base, from: &RelPath, wanted: bool) -> Result<Option<Lost>, Box<ClosureError>> {
        let Some(place) = base.place() else { return Ok(None) };
        if self
            .objects
            .folder_id(&base.mount())
            .map_err(|e| tree_error(from, e))?
            .is_none()
        {
            // The caller fetches the base and computes the closure again.
            if wanted {
                self.bases.insert(base);
            }
            return Ok(None);
        }
        match self.follow(&RelPath::root(), place.as_str(), from)? {
            Ok(found) => self.include(&found).map(|()| None),
            Err(lost) => Ok(Some(lost)),
        }
    }

    fn follow(
        &mut self,
        base: &RelPath,
        text: &str,
        from: &RelPath,
    ) -> Result<Result<Resolved, Lost>, Box<ClosureError>> {
        walk::follow(&mut self.objects, base, text.as_bytes()).map_err(|e| tree_error(from, e))
    }

    /// Adds what was found, and the symlinks on the way to it.
    fn include(&mut self, found: &Resolved) -> Result<(), Box<ClosureError>> {
        for link in &found.links {
            if let Some(entry) = self.objects.entry(link).map_err(|e| tree_error(link, e))? {
                // Only passed through, so its other contents aren't needed.
                self.add_entry(link.clone(), &entry)?;
            }
        }
        if !found.folder {
            if let Some(entry) = self
                .objects
                .entry(&found.path)
                .map_err(|e| tree_error(&found.path, e))?
            {
                self.add_file(found.path.clone(), &entry)?;
            }
            return Ok(());
        }
        if let Some(id) = self
            .objects
            .folder_id(&found.path)
            .map_err(|e| tree_error(&found.path, e))?
        {
            if !self.folders.contains_key(&found.path) {
                self.add_folder(&found.path, &id)?;
                self.folders.insert(found.path.clone(), id);
            }
            self.want_builds(&found.path);
        }
        Ok(())
    }

    fn add_folder(&mut self, path: &RelPath, id: &ObjectId) -> Result<(), Box<ClosureError>> {
        let mut pending = vec![(path.clone(), *id)];
        while let Some((folder, id)) = pending.pop() {
            for entry in self.objects.entries(&id).map_err(|e| tree_error(&folder, e))? {
                let path = folder.join_name(&entry.name).map_err(|e| {
                    let (file, line) = (folder.to_string(), None);
                    ClosureError {
                        file,
                        line,
                        reason: ClosureReason::Name(e),
                    }
                })?;
                self.visit(&path)?;
                match entry.mode {
                    Mode::Tree => pending.push((path, entry.id)),
                    _ => self.add_file(path, &entry)?,
                }
            }
        }
        Ok(())
    }

    /// Counts a visited path. Folders count too, because a tree of trees without any file can be arbitrarily large.
    fn visit(&mut self, path: &RelPath) -> Result<(), Box<ClosureError>> {
        self.visited += 1;
        if self.visited > self.limits.files.saturating_mul(4) || self.files.len() >= self.limits.files {
            let reason = ClosureReason::TooManyFiles {
                limit: self.limits.files,
            };
            return Err(Box::new(ClosureError {
                file: path.to_string(),
                line: None,
                reason,
            }));
        }
        Ok(())
    }

    fn add_file(&mut self, path: RelPath, entry: &Entry) -> Result<(), Box<ClosureError>> {
        self.add_entry(path.clone(), entry)?;
        if entry.mode == Mode::Symlink && self.symlinks.insert(path.clone()) {
            self.queue.push_back(Task::Symlink(path.clone()));
        }
        if reference::is_build_file(path.file_name()) {
            self.queue_build(path, false);
        }
        Ok(())
    }

    fn add_entry(&mut self, path: RelPath, entry: &Entry) -> Result<(), Box<ClosureError>> {
        if self.files.contains_key(&path) {
            return Ok(());
        }
        self.visit(&path)?;
        if entry.mode == Mode::Commit {
            let (file, line) = (path.to_string(), None);
            return Err(Box::new(ClosureError {
                file,
                line,
                reason: ClosureReason::Submodule,
            }));
        }
        self.files.insert(
            path,
            FileEntry {
                mode: entry.mode,
                id: entry.id,
            },
        );
        Ok(())
    }

    fn want_builds(&mut self, folder: &RelPath) {
        for name in reference::BUILD_FILES {
            if let Ok(file) = folder.join_name(name.as_bytes())
                && self.files.contains_key(&file)
            {
                self.queue_build(file, true);
            }
        }
    }

    fn queue_build(&mut self, file: RelPath, wanted: bool) {
        if self.builds.insert((file.clone(), wanted)) {
            self.queue.push_back(Task::Build { file, wanted });
        }
    }

    fn finish(self) -> Closure {
        let inside = |path: &RelPath, or_same: bool| {
            self.folders
                .keys()
                .any(|folder| path.is_within(folder) && (or_same || path != folder))
        };
        let folders = self
            .folders
            .iter()
            .filter(|(path, _)| !inside(path, false))
            .map(|(p, id)| (p, Mode::Tree, id));
        let files = self
            .files
            .iter()
            .filter(|(path, _)| !inside(path, true))
            .map(|(p, f)| (p, f.mode, &f.id));
        let mut parts: Vec<_> = folders.chain(files).collect();
        parts.sort_unstable();
        let noted = self.objects.noted.iter().filter(|path| !inside(path, true));
        let roots = parts.iter().map(|(path, ..)| *path).chain(noted).cloned().collect();
        let mut hash = Sha256::new();
        hash.update(FORMAT);
        for (path, mode, id) in parts {
            // No path contains a NUL, so the lines are unambiguous.
            hash.update(format!("{} {id} {}\0", mode.octal(), path.as_str()));
        }
        Closure {
            content_id: Digest::from_bytes(hash.finalize().into()),
            files: self.files,
            charts: self.charts,
            bases: self.bases,
            inflated: self.inflated,
            roots,
        }
    }
}

#[cfg(test)]
mod tests;
