//! The hub: the API server, controllers, delivery to agents, and the page, in one process.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apiserver;
pub mod config;
pub mod identity;
