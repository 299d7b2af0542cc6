//! Sources: Git repositories fetched into bare mirrors and read without a checkout, and the node's bundle cache.
//!
//! The network is spoken by the `git` program, started from an empty environment with everything switched off that
//! a repository or a machine could use to run code or to leak credentials ([`git`]). Objects are read by gix
//! ([`mirror`]). No file of a repository ever reaches a file system under its own name.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cache;
pub mod git;
pub mod mirror;
pub mod range;
pub mod reference;
pub mod remote;

pub use cache::{BundleCache, CacheError};
pub use git::{Git, GitError, GitLimits, GitReason, Retry, Revision, Synced};
pub use mirror::{Mirror, MirrorError, PackedBundle};
pub use range::Range;
pub use reference::{Named, Reference, ReferenceError};
pub use remote::{Credentials, Remote, RemoteError, Secret};
