//! Sources: Git repositories fetched into bare mirrors and read without a checkout, charts of Helm repositories and
//! artifacts of registries, and the node's bundle cache.
//!
//! The `git` program does the networking. It starts with an empty environment, and everything that a repository or a
//! machine could use to run code or to leak credentials is switched off ([`git`]). gix reads objects ([`mirror`]). No
//! file of a repository ever reaches a file system under its own name.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
pub mod address;
pub mod artifacts;
pub mod cache;
pub mod credentials;
pub mod edit;
pub mod fetch_error;
pub mod git;
mod heavy;
pub mod helm;
pub mod lfs;
pub mod links;
mod mint;
mod minted;
pub mod mirror;
pub mod modules;
pub mod oci;
pub mod program;
pub mod range;
pub mod reference;
pub mod remote;
mod secret;
mod session;
pub mod single;
pub mod snapshot;
mod ssh;
pub mod verify;
pub mod web;

pub use access::{Access, AccessError, SecretData};
pub use address::{Address, AddressError, Scheme, UrlPrefix};
pub use artifacts::{ArtifactError, Artifacts};
pub use cache::{BundleCache, CacheError};
pub use edit::{Edit, FileError};
pub use fetch_error::{FetchError, FetchReason, Retry};
pub use git::{Git, GitError, GitLimits, GitReason, Push, PushedBranch, Revision, Synced};
pub use helm::{FoundChart, WantedChart};
pub use lfs::{LargeFile, LargeFiles};
pub use links::{Links, Network};
pub use mirror::{Mirror, MirrorError, PackedBundle};
pub use modules::{MAX_DEPTH, MAX_MODULES, ModulesError, Submodule};
pub use program::{Program, ProgramRule};
pub use range::Range;
pub use reference::{Named, Reference, ReferenceError};
pub use remote::{Credentials, Remote, RemoteError};
pub use secret::Secret;
pub use snapshot::{Reads, Snapshot};
pub use verify::{Keys, KeysError, VerifyMode};
pub use web::{Ask, Reply, Sign, Site, Step, Web};
