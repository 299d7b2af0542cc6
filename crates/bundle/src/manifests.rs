//! Raw manifests: the Kubernetes objects in a folder of a bundle, as `kubectl apply -R -f FOLDER` reads them.
//!
//! Reads files named `*.yaml`, `*.yml` and `*.json`, folder by folder in the order of their names, without those that
//! the renderer's options or a `.sourceignore` leave out. A file may hold many documents, and `List`s are taken apart.
//! As with kubectl, a symlink to a file is read and a symlink to a folder is not descended into. [`crate::yaml`] reads
//! the scalars. In contrast to kubectl, a key given twice, two objects with one identity, `generateName`, an object
//! without a name and a kustomization in a folder below are errors.
//!
//! An error never makes the set smaller silently: what could be read is returned as [`Manifests::Partial`] with every
//! error, and nothing may be deleted because of it.

mod choice;
mod document;
mod json;

use std::{collections::HashMap, fmt};

use farwater_api::{objects::ObjectRef, path_pattern::PatternProblem, renderer::RawOptions};
use serde_json::Value;

pub use self::choice::IGNORE_FILE;
use self::choice::{Choice, explain_nothing, is_manifest};
use crate::{
    archive::Archive,
    closure::Lost,
    path::{PathError, RelPath},
};

/// Most bytes of a document: the API server's own limit for a request.
pub const MAX_DOCUMENT_BYTES: usize = 3 << 20;
/// Most objects of one service; a `helm template` of the largest public charts makes a few hundred.
pub const MAX_OBJECTS: usize = 10_000;
/// Most errors reported for one service; of the others only the number is given.
pub const MAX_ERRORS: usize = 100;

/// Files of kustomize, which are no manifests.
pub const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// One object as it will be applied, and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The namespace is as written. Empty: the service's target namespace, or none, applies.
    pub object: ObjectRef,
    pub value: Value,
    pub origin: Origin,
}

/// A place in the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub file: RelPath,
    /// Line where the object or error begins, from 1. 0: the file was rendered.
    pub line: u32,
    /// Number of the document among the nonempty ones of the file, from 1.
    pub document: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{} (document {})", self.file, self.document),
            line => write!(f, "{}:{line} (document {})", self.file, self.document),
        }
    }
}

/// The result of reading. Only a complete set may lead to deletes.
#[derive(Clone, Debug)]
pub enum Manifests {
    Complete(Vec<Manifest>),
    /// Parts could not be read. `errors` is never empty.
    Partial {
        objects: Vec<Manifest>,
        errors: Vec<ManifestError>,
    },
}

impl Manifests {
    pub fn objects(&self) -> &[Manifest] {
        match self {
            Self::Complete(objects) | Self::Partial { objects, .. } => objects,
        }
    }

    pub fn errors(&self) -> &[ManifestError] {
        match self {
            Self::Complete(_) => &[],
            Self::Partial { errors, .. } => errors,
        }
    }

    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Complete(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// An error of the folder as a whole.
    #[error("{folder}: {reason}")]
    Folder { folder: RelPath, reason: FolderReason },
    #[error("{origin}: {reason}")]
    Document { origin: Origin, reason: DocumentReason },
    #[error("{object} is written twice: {first} and {second}; keep one")]
    Duplicate {
        object: ObjectRef,
        first: Origin,
        second: Origin,
    },
    #[error("and {0} more errors")]
    More(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderReason {
    #[error("the bundle has no such folder: {0}")]
    Lost(String),
    #[error("holds over {MAX_OBJECTS} objects")]
    TooManyObjects,
    #[error("{0}. If no objects are meant, set raw.allowEmpty of the renderer")]
    Nothing(String),
    #[error(
        "holds a {0}, so it is not read as raw manifests. Add a renderer with the path of this folder, or leave this folder out with \
         raw.exclude or {IGNORE_FILE}; if its files are to be applied as they are, leave out {0} alone"
    )]
    Kustomization(String),
    #[error("pattern {pattern:?} {problem}")]
    Pattern { pattern: String, problem: PatternProblem },
    #[error("{0} is over 65536 bytes long: use fewer lines")]
    IgnoreTooLarge(RelPath),
    #[error("{0} is not UTF-8 text")]
    IgnoreNotText(RelPath),
    #[error("{file} can't be read: {lost}")]
    IgnoreLost { file: RelPath, lost: Lost },
    #[error("has too many patterns for so many files: use fewer or shorter ones in include, exclude and {IGNORE_FILE}")]
    TooManyPatterns,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentReason {
    #[error("is not UTF-8 text")]
    NotText,
    #[error("is a Git LFS pointer, not the file itself; keep manifests out of LFS")]
    LfsPointer,
    #[error("is a symlink that can't be read: {0}")]
    Symlink(String),
    #[error("{0}")]
    Yaml(crate::yaml::YamlReason),
    #[error("holds the conflict markers of an unfinished merge")]
    Conflict,
    #[error("{0}; it looks like a template: Helm's belong in a chart, Liquid's in a file whose name ends in .liquid")]
    Template(crate::yaml::YamlReason),
    #[error("not valid JSON: {0}")]
    Json(String),
    #[error("text after a document separator: {0:?}")]
    Separator(String),
    #[error("is {0} bytes long; the Kubernetes API takes at most {MAX_DOCUMENT_BYTES}: split it")]
    TooLarge(usize),
    #[error("is {0}, not an object")]
    NotAnObject(&'static str),
    #[error("has no {0}: an object needs apiVersion, kind and metadata.name; files that hold none belong elsewhere")]
    Missing(&'static str),
    #[error("has a {0} that is not a string; quote it")]
    NotAString(&'static str),
    #[error("has {field} {value:?}, which Kubernetes can't take as one")]
    Malformed { field: &'static str, value: String },
    #[error("has metadata.generateName: each apply would make another object; give it a metadata.name")]
    GenerateName,
    #[error("lists nested too deep")]
    NestedLists,
}

/// Reads all manifests of a folder, which may have none. `target_namespace` is the namespace of objects that name none,
/// for finding duplicates.
pub fn read(archive: &Archive, folder: &RelPath, target_namespace: &str) -> Manifests {
    let mut collector = Collector::new(target_namespace);
    collector.add_folder(
        archive,
        folder,
        &[],
        &RawOptions {
            allow_empty: true,
            ..RawOptions::ALL
        },
    );
    collector.finish()
}

/// Collects manifests from several sources, and finds duplicates.
pub struct Collector<'a> {
    target_namespace: &'a str,
    objects: Vec<Manifest>,
    errors: Vec<ManifestError>,
    more: usize,
    /// Index of each object by identity.
    seen: HashMap<[String; 4], usize>,
}

impl<'a> Collector<'a> {
    pub fn new(target_namespace: &'a str) -> Self {
        Self {
            target_namespace,
            objects: Vec::new(),
            errors: Vec::new(),
            more: 0,
            seen: HashMap::new(),
        }
    }

    /// Adds the manifests of a folder that the options select, except those in the folders `except`, which other
    /// renderers read. If no renderer reads any file of the folder that is an error, unless the options allow it. A
    /// file without a document counts as read.
    pub fn add_folder(&mut self, archive: &Archive, folder: &RelPath, except: &[RelPath], options: &RawOptions) {
        match archive.folder(folder) {
            Err(lost) => self.fail_folder(folder, FolderReason::Lost(lost.to_string())),
            Ok(real) => self.add_real_folder(archive, &real, except, options),
        }
    }

    fn add_real_folder(&mut self, archive: &Archive, folder: &RelPath, except: &[RelPath], options: &RawOptions) {
        let all = archive.walk(folder);
        let paths: Vec<&RelPath> = all
            .iter()
            .copied()
            .filter(|path| !except.iter().any(|folder| path.is_within(folder)))
            .collect();
        let mut choice = match Choice::new(archive, folder, &paths, options) {
            Ok(choice) => choice,
            Err(reason) => return self.fail_folder(folder, reason),
        };
        let kustomized = choice.kustomized(&paths);
        let is_apart = |path: &RelPath| kustomized.iter().any(|(apart, _)| path.is_within(apart));
        let taken: Vec<&RelPath> = paths
            .iter()
            .copied()
            .filter(|path| is_manifest(path) && !is_apart(path) && choice.takes(path))
            .collect();
        // A folder that other renderers read too may have no manifests left.
        if taken.is_empty() && kustomized.is_empty() && paths.len() == all.len() && !options.allow_empty {
            return self.fail_folder(folder, FolderReason::Nothing(explain_nothing(folder, &paths)));
        }

        for (apart, file) in kustomized {
            self.fail_folder(&apart, FolderReason::Kustomization(file));
        }
        for path in taken {
            match archive.file(path) {
                Ok(bytes) => self.add_text(path, bytes),
                // A symlink to a folder whose name looks like a manifest: kubectl ignores it.
                Err(Lost::Missing(real)) if archive.folder(&real).is_ok() => {}
                Err(lost) => {
                    let reason = DocumentReason::Symlink(lost.to_string());
                    self.fail(ManifestError::Document {
                        origin: Origin {
                            file: path.clone(),
                            line: 1,
                            document: 1,
                        },
                        reason,
                    });
                }
            }
            if self.is_full(folder) {
                return;
            }
        }
    }

    /// Adds a file's documents: YAML, or JSON if its name says so.
    pub fn add_text(&mut self, file: &RelPath, bytes: &[u8]) {
        for outcome in document::read_file(bytes, file.file_name().ends_with(".json")) {
            self.take(file, outcome);
        }
    }

    /// Adds the output of a renderer: an object or a list. An object that exists identically is left out, because a
    /// chart that is used twice returns its definitions twice.
    pub fn add_rendered(&mut self, origin: &Origin, value: Value) {
        for outcome in document::take_value(value, (origin.line, origin.document)) {
            let again = outcome
                .as_ref()
                .is_ok_and(|found| self.has(&found.object, &found.value));
            if !again {
                self.take(&origin.file, outcome);
            }
        }
        self.is_full(&origin.file);
    }

    fn take(&mut self, file: &RelPath, outcome: Result<document::FoundObject, document::FileError>) {
        let origin = |line, document| Origin {
            file: file.clone(),
            line,
            document,
        };
        match outcome {
            Ok(found) => self.add(found.object, found.value, origin(found.line, found.document)),
            Err(e) => self.fail(ManifestError::Document {
                origin: origin(e.line, e.document),
                reason: e.reason,
            }),
        }
    }

    fn is_full(&mut self, folder: &RelPath) -> bool {
        let full = self.objects.len() > MAX_OBJECTS;
        if full {
            self.objects.truncate(MAX_OBJECTS);
            // Objects that are left out may still exist, so this is an error.
            self.fail_folder(folder, FolderReason::TooManyObjects);
        }
        full
    }

    fn has(&self, object: &ObjectRef, value: &Value) -> bool {
        self.seen
            .get(&self.id(object))
            .is_some_and(|&first| self.objects[first].value == *value)
    }

    fn id(&self, object: &ObjectRef) -> [String; 4] {
        let namespace = if object.namespace.is_empty() {
            self.target_namespace
        } else {
            &object.namespace
        };
        [
            object.group.clone(),
            object.kind.clone(),
            namespace.to_owned(),
            object.name.clone(),
        ]
    }

    fn add(&mut self, object: ObjectRef, value: Value, origin: Origin) {
        let id = self.id(&object);
        match self.seen.get(&id) {
            Some(&first) => {
                let first = self.objects[first].origin.clone();
                self.fail(ManifestError::Duplicate {
                    object,
                    first,
                    second: origin,
                });
            }
            None => {
                self.seen.insert(id, self.objects.len());
                self.objects.push(Manifest { object, value, origin });
            }
        }
    }

    fn fail_folder(&mut self, folder: &RelPath, reason: FolderReason) {
        self.fail(ManifestError::Folder {
            folder: folder.clone(),
            reason,
        });
    }

    fn fail(&mut self, error: ManifestError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error)
        } else {
            self.more += 1
        }
    }

    pub fn finish(mut self) -> Manifests {
        if self.errors.is_empty() {
            return Manifests::Complete(self.objects);
        }
        if self.more > 0 {
            self.errors.push(ManifestError::More(self.more));
        }
        Manifests::Partial {
            objects: self.objects,
            errors: self.errors,
        }
    }
}

impl From<PathError> for FolderReason {
    fn from(error: PathError) -> Self {
        Self::Lost(error.to_string())
    }
}

#[cfg(test)]
mod tests;
