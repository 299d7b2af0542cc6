//! The agent's load on a cluster, and its speed: M6 to M9 of the design.

pub mod apply;
pub mod at_rest;
pub mod commit_to_applied;
pub mod drift;
mod maps;
