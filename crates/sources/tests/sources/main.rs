//! Sources against real servers: Git, Helm repositories, registries.
#![allow(clippy::unwrap_used, reason = "tests")]

mod credentials;
mod git;
mod helm;
mod oci;
mod parts;
mod patterns;
mod push;
mod signatures;
mod ssh;

use farwater_sources::{Links, Web};

/// A client for servers on this machine, which all of these are.
fn near() -> Web {
    Web::new(Links::new(["127.0.0.0/8".parse().unwrap()]))
}
