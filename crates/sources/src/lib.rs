//! Sources: Git repositories fetched into bare mirrors and read without a checkout, and the node's bundle cache.
//!
//! The network is spoken by the `git` program, started from an empty environment with everything switched off that
//! a repository or a machine could use to run code or to leak credentials ([`git`]). Objects are read by gix
//! ([`mirror`]). No file of a repository ever reaches a file system under its own name.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
pub mod cache;
pub mod credentials;
pub mod git;
mod http;
pub mod lfs;
mod mint;
pub mod mirror;
pub mod modules;
pub mod program;
pub mod range;
pub mod reach;
pub mod reference;
pub mod remote;
mod secret;
mod session;
pub mod snapshot;
mod ssh;
pub mod verify;

pub use address::{Address, AddressError, UrlPrefix};
pub use cache::{BundleCache, CacheError};
pub use credentials::SecretData;
pub use git::{Git, GitError, GitLimits, GitReason, GitSettings, Retry, Revision, Synced};
pub use lfs::LargeFile;
pub use mirror::{Mirror, MirrorError, PackedBundle};
pub use modules::{MAX_DEPTH, MAX_MODULES, ModulesError, Submodule};
pub use program::{Program, ProgramRule};
pub use range::Range;
pub use reach::{Allowed, Reach};
pub use reference::{Named, Reference, ReferenceError};
pub use remote::{Credentials, Remote, RemoteError};
pub use secret::Secret;
pub use snapshot::{Gathered, Reads};
pub use verify::{Keys, KeysError, VerifyMode};
