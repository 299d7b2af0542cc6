//! Sources against real servers: Git, Helm repositories, registries.
#![allow(clippy::unwrap_used, reason = "tests")]

mod credentials;
mod git;
mod helm;
mod oci;
mod parts;
mod push;
mod signatures;
mod ssh;
