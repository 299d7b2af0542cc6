//! The Kubernetes objects of hub and agent. `farwater install` and `farwater cluster join` apply them, and the Helm
//! charts create the same ones.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent;
mod hub;
mod objects;
pub mod rules;
mod tenant;

pub use agent::{Agent, Limits, Mounts};
pub use hub::{Database, Exposure, Hub, Tls};
pub use tenant::Tenant;

/// Names of objects that other programs look up.
pub mod names {
    pub use crate::{agent::names as agent, hub::names as hub};
}

/// Label with the version of the release that an object belongs to.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
