//! Sources: Git repositories fetched into bare mirrors and read without a checkout, charts of Helm repositories and artifacts of
//! registries, and the node's bundle cache.
//!
//! The network is spoken by the `git` program, started from an empty environment with everything switched off that
//! a repository or a machine could use to run code or to leak credentials ([`git`]). Objects are read by gix
//! ([`mirror`]). No file of a repository ever reaches a file system under its own name.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
pub mod artifacts;
pub mod cache;
pub mod fetch_error;
pub mod git;
pub mod helm;
pub mod links;
pub mod mirror;
pub mod oci;
pub mod range;
pub mod reference;
pub mod remote;
pub mod web;

pub use access::{Access, AccessError, SecretData};
pub use artifacts::{ArtifactError, Artifacts};
pub use cache::{BundleCache, CacheError};
pub use fetch_error::{FetchError, FetchReason};
pub use git::{Git, GitError, GitLimits, GitReason, Retry, Revision, Synced};
pub use helm::{FoundChart, WantedChart};
pub use links::{Links, Network};
pub use mirror::{Mirror, MirrorError, PackedBundle};
pub use range::Range;
pub use reference::{Named, Reference, ReferenceError};
pub use remote::{Credentials, Remote, RemoteError, Secret};
pub use web::{Site, Web};
