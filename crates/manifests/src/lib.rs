//! What puts hub and agent into a cluster, as data: `farwater install` and `farwater cluster join` apply these objects, and the
//! Helm charts give the same.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent;
mod hub;
mod objects;
pub mod rules;
mod tenant;

pub use agent::{Agent, Limits, Mounts};
pub use hub::{Database, Exposure, Hub, Tls};
pub use tenant::Tenant;

/// Names that other programs look for.
pub mod names {
    pub use crate::{agent::names as agent, hub::names as hub};
}

/// The release that an object belongs to, of its labels.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
