//! Why a service could not be rendered.

use farwater_bundle::{ArchiveError, ManifestError, PathError, RelPath};

use crate::{files::FilesError, helper::HelperError, plugin::PluginError};

/// Why some of a service's objects are unknown.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error(transparent)]
    Manifest(Box<ManifestError>),
    #[error("{folder}: {source}")]
    Renderer { folder: RelPath, source: HelperError },
    #[error("{folder}: plugin {name} {source}")]
    Plugin {
        folder: RelPath,
        name: String,
        source: PluginError,
    },
    #[error("{folder}: the agent knows no plugin {name:?}{}; plugins are named in its configuration", known(.names))]
    UnknownPlugin {
        folder: RelPath,
        name: String,
        names: Vec<String>,
    },
    #[error("templates: {0}")]
    Templates(HelperError),
    #[error("patches: {0}")]
    Patches(HelperError),
    #[error("{what} needs farwater-render, which is not installed beside this program")]
    NoHelper { what: &'static str },
    #[error("{0}")]
    Files(#[from] FilesError),
    #[error("the files with what templates made: {0}")]
    Archive(ArchiveError),
    #[error("{0}")]
    Path(#[from] PathError),
    #[error("{folder}: the renderer has options for {options}, and there is no {file}")]
    Options {
        folder: RelPath,
        options: &'static str,
        file: &'static str,
    },
    #[error(
        "{folder}: the renderer has options for raw manifests, and the folder is a chart's or a kustomization's; leave out raw, or set \
         type to Raw to have its files applied as they are"
    )]
    RawOptions { folder: RelPath },
    #[error("renderer path {path:?} does not lie within the service's path")]
    Outside { path: String },
    #[error(
        "{folder}: values file {file} does not lie within the service's path, so whether it is missing is not known: keep it there, \
         or leave out ignoreMissingValuesFiles"
    )]
    UnknownValues { folder: RelPath, file: RelPath },
}

pub(super) fn known(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!(", but {}", names.join(", "))
    }
}
