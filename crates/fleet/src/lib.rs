//! The decisions: access, placement, assignment, plans, prunes, health, and why a service is not healthy. Pure: no
//! sockets, files, clocks or runtime; time and limits are arguments.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod access;
pub mod agents;
pub mod approvals;
pub mod assignment;
pub mod conditions;
pub mod deletion;
pub mod dependencies;
pub mod digest_inputs;
pub mod duration;
pub mod freeze;
pub mod health;
pub mod held_spec;
pub mod history;
pub mod hooks;
pub mod incomplete;
pub mod junit;
pub mod namespaces;
pub mod notify;
pub mod origin;
pub mod ownership;
pub mod parameters;
pub mod placement;
pub mod plan;
pub mod preparation;
pub mod promotion;
pub mod proposals;
pub mod prune;
pub mod revive;
pub mod rollout;
pub mod stamping;
pub mod states;
pub mod summary;
pub mod takeover;
pub mod test_jobs;
pub mod transfer;
pub mod webhooks;
pub mod why;
pub mod windows;
pub mod words;
