//! Bundles: which files a folder of a repository needs, the canonical archive of them, and the manifests inside.
//!
//! Pure: no files, sockets or clocks. All input is untrusted, so names, sizes, depths and counts are bounded, and an
//! error names the file, the line and the reason.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod archive;
pub mod bases;
pub mod changes;
pub mod charts;
pub mod closure;
pub mod limits;
pub mod manifests;
#[cfg(feature = "members")]
pub mod members;
pub mod overlay;
pub mod path;
pub mod tree;
mod walk;
pub mod yaml;

pub use archive::{Archive, ArchiveError, PackError};
pub use bases::{BASES, Base};
pub use changes::changed_paths;
pub use closure::{
    Closure, ClosureError, ClosureReason, FileEntry, InflatedChart, TEMPLATE_SUFFIX, bases_of, closure, closure_of,
};
pub use limits::Limits;
pub use manifests::{Collector, IGNORE_FILE, Manifest, ManifestError, Manifests};
#[cfg(feature = "members")]
pub use members::{Members, MembersError, Shape};
pub use overlay::{GraftError, Overlay};
pub use path::{PathError, PathReason, RelPath};
pub use tree::{Entry, MemoryTree, Mode, ObjectId, Tree, TreeError};
