//! Raw manifests: the Kubernetes objects in a folder of a bundle, as `kubectl apply -R -f FOLDER` reads them.
//!
//! Files named `*.yaml`, `*.yml` and `*.json`, folder by folder in the order of their names; each may hold many
//! documents; `List`s are taken apart. As with kubectl a symlink to a file is read and a symlink to a folder is not
//! descended into. Scalars: [`crate::yaml`]. Stricter than kubectl: a key given twice, two objects with one
//! identity, `generateName` and an object without a name are errors.
//!
//! An error never makes the set smaller in silence: what could be read comes as [`Manifests::Partial`] together
//! with every error, and nothing may be deleted on the strength of it.

mod document;
mod json;

use std::{collections::HashMap, fmt};

use farwater_api::objects::ObjectRef;
use serde_json::Value;

use crate::{
    archive::Archive,
    closure::Lost,
    path::{PathError, RelPath},
};

/// Longest document: the API server's own limit for a request.
pub const MAX_DOCUMENT_BYTES: usize = 3 << 20;
/// Most objects of one service; a `helm template` of the largest public charts makes a few hundred.
pub const MAX_OBJECTS: usize = 10_000;
/// Errors reported for one service; the rest is counted.
pub const MAX_ERRORS: usize = 100;

/// Files that say that another renderer is meant.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
const CHART: &str = "Chart.yaml";

/// One object as it will be applied, and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The namespace is as written: empty where the service's target namespace, or none, applies.
    pub object: ObjectRef,
    pub value: Value,
    pub origin: Origin,
}

/// A place in the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub file: RelPath,
    /// From 1: where the object, or the error, begins.
    pub line: u32,
    /// From 1, counting the documents of the file that hold something.
    pub document: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} (document {})", self.file, self.line, self.document)
    }
}

/// What was read. Only a complete set may lead to a delete.
#[derive(Clone, Debug)]
pub enum Manifests {
    Complete(Vec<Manifest>),
    /// Some of it could not be read. `errors` is never empty.
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
    /// The folder as a whole.
    #[error("{folder}: {reason}")]
    Folder { folder: RelPath, reason: FolderReason },
    #[error("{origin}: {reason}")]
    Document { origin: Origin, reason: DocumentReason },
    #[error("{object} is written twice: {first} and {second}; keep one")]
    Duplicate { object: ObjectRef, first: Origin, second: Origin },
    #[error("and {0} more errors")]
    More(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderReason {
    #[error("the bundle has no such folder: {0}")]
    Lost(String),
    #[error("has a {0}; this version reads raw manifests only and does not run kustomize")]
    Kustomization(String),
    #[error("has a Chart.yaml; this version reads raw manifests only and does not run Helm")]
    Chart,
    #[error("holds over {MAX_OBJECTS} objects")]
    TooManyObjects,
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
    #[error("{0}; it looks like a template, and this version renders none")]
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

/// Reads the manifests of a folder. `target_namespace` only decides whether two objects are one: an object that
/// names no namespace goes there.
pub fn read(archive: &Archive, folder: &RelPath, target_namespace: &str) -> Manifests {
    let mut reader =
        Reader { target_namespace, objects: Vec::new(), errors: Vec::new(), more: 0, seen: HashMap::new() };
    match archive.folder(folder) {
        Err(lost) => reader.fail_folder(folder, FolderReason::Lost(lost.to_string())),
        Ok(real) => match other_renderer(archive, &real) {
            Some(reason) => reader.fail_folder(folder, reason),
            None => reader.read_folder(archive, &real),
        },
    }
    reader.finish()
}

fn other_renderer(archive: &Archive, folder: &RelPath) -> Option<FolderReason> {
    let has = |name: &str| folder.join_name(name.as_bytes()).is_ok_and(|file| archive.file(&file).is_ok());
    if let Some(name) = KUSTOMIZATIONS.into_iter().find(|name| has(name)) {
        return Some(FolderReason::Kustomization(name.to_owned()));
    }
    has(CHART).then_some(FolderReason::Chart)
}

fn is_manifest(path: &RelPath) -> bool {
    let name = path.file_name();
    !KUSTOMIZATIONS.contains(&name) && [".yaml", ".yml", ".json"].iter().any(|suffix| name.ends_with(suffix))
}

struct Reader<'a> {
    target_namespace: &'a str,
    objects: Vec<Manifest>,
    errors: Vec<ManifestError>,
    more: usize,
    /// Index of each object by identity.
    seen: HashMap<[String; 4], usize>,
}

impl Reader<'_> {
    fn read_folder(&mut self, archive: &Archive, folder: &RelPath) {
        for path in archive.walk(folder).into_iter().filter(|path| is_manifest(path)) {
            let origin = |line, document| Origin { file: path.clone(), line, document };
            match archive.file(path) {
                Ok(bytes) => {
                    for outcome in document::read_file(bytes, path.file_name().ends_with(".json")) {
                        match outcome {
                            Ok(found) => self.add(found.object, found.value, origin(found.line, found.document)),
                            Err(e) => self
                                .fail(ManifestError::Document { origin: origin(e.line, e.document), reason: e.reason }),
                        }
                    }
                }
                // A symlink to a folder whose name looks like a manifest's: kubectl leaves it alone.
                Err(Lost::Missing(real)) if archive.folder(&real).is_ok() => {}
                Err(lost) => {
                    let reason = DocumentReason::Symlink(lost.to_string());
                    self.fail(ManifestError::Document { origin: origin(1, 1), reason });
                }
            }
            if self.objects.len() > MAX_OBJECTS {
                self.objects.truncate(MAX_OBJECTS);
                return self.fail_folder(folder, FolderReason::TooManyObjects);
            }
        }
    }

    fn add(&mut self, object: ObjectRef, value: Value, origin: Origin) {
        let namespace = if object.namespace.is_empty() { self.target_namespace } else { &object.namespace };
        let id = [object.group.clone(), object.kind.clone(), namespace.to_owned(), object.name.clone()];
        match self.seen.get(&id) {
            Some(&first) => {
                let first = self.objects[first].origin.clone();
                self.fail(ManifestError::Duplicate { object, first, second: origin });
            }
            None => {
                self.seen.insert(id, self.objects.len());
                self.objects.push(Manifest { object, value, origin });
            }
        }
    }

    fn fail_folder(&mut self, folder: &RelPath, reason: FolderReason) {
        self.fail(ManifestError::Folder { folder: folder.clone(), reason });
    }

    fn fail(&mut self, error: ManifestError) {
        if self.errors.len() < MAX_ERRORS { self.errors.push(error) } else { self.more += 1 }
    }

    fn finish(mut self) -> Manifests {
        if self.errors.is_empty() {
            return Manifests::Complete(self.objects);
        }
        if self.more > 0 {
            self.errors.push(ManifestError::More(self.more));
        }
        Manifests::Partial { objects: self.objects, errors: self.errors }
    }
}

impl From<PathError> for FolderReason {
    fn from(error: PathError) -> Self {
        Self::Lost(error.to_string())
    }
}

#[cfg(test)]
mod tests;
