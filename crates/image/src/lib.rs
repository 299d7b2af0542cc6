//! OCI images made of files, without a container engine. The same files give the same bytes on every machine: entries lie in
//! the order of their paths, and no times, users' names or machines are in them.
//!
//! ```text
//!  programs ─┐
//!  libraries ┼─► Root ─► Image ─► a layout (folder), or one tar file
//!  folders ──┘
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod closure;
mod oci;
mod root;

pub use closure::{ClosureError, Libraries, add_program};
pub use oci::{Image, Start, USER};
pub use root::{Node, Root};
