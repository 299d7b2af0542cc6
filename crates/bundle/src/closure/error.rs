//! Why a closure is incomplete, and the file that is to blame.

use crate::{
    path::{PathError, PathReason, RelPath},
    tree::TreeError,
    walk::Lost,
    yaml::YamlReason,
};

/// Why a path has no closure. Reads "apps/web/kustomization.yaml:3: …".
#[derive(Debug, thiserror::Error)]
#[error("{file}{}: {reason}", line.map(|l| format!(":{l}")).unwrap_or_default())]
pub struct ClosureError {
    /// Repository path, in printable form.
    pub file: String,
    pub line: Option<u32>,
    pub reason: ClosureReason,
}

impl ClosureError {
    /// Whether a reference leads out of the given tree. In a larger tree it may have a target.
    pub fn leads_out(&self) -> bool {
        match &self.reason {
            ClosureReason::Reference {
                lost: Lost::Path(error),
                ..
            }
            | ClosureReason::Symlink {
                lost: Lost::Path(error),
                ..
            } => error.reason == PathReason::Escapes,
            _ => false,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClosureReason {
    #[error("the source has no such folder")]
    NoSuchPath,
    #[error("is a file; the path of a service is a folder")]
    NotAFolder,
    #[error("names {reference:?}: {lost}")]
    Reference { reference: String, lost: Lost },
    #[error("is a symlink to {target:?}: {lost}")]
    Symlink { target: String, lost: Lost },
    #[error("is a symlink; make it a file: otherwise its excluded files would be read")]
    IgnoreSymlink,
    #[error("{0}")]
    Name(PathError),
    #[error(
        "is a submodule that was not fetched; set spec.recurseSubmodules of its source, and list it in .gitmodules"
    )]
    Submodule,
    #[error("more than {limit} files and folders are needed; point the service at a smaller folder")]
    TooManyFiles { limit: usize },
    #[error("{0}")]
    Yaml(YamlReason),
    #[error("is not UTF-8 text")]
    NotText,
    #[error("{0}")]
    Tree(#[source] TreeError),
}

pub(super) fn tree_error(file: &RelPath, error: TreeError) -> Box<ClosureError> {
    Box::new(ClosureError {
        file: file.to_string(),
        line: None,
        reason: ClosureReason::Tree(error),
    })
}
