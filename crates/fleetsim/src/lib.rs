//! Agents without clusters that speak the real protocol: a fleet of hundreds on one machine.
//!
//! An [`Agent`] joins and a [`Poller`] polls, for load. A [`Sim`] is a fleet whose clusters do with a bundle what a file of it says, and
//! which keeps an account of what reached whom, apart from the hub's own word.

mod agent;
mod sim;

pub use agent::{Agent, Poller, allow_files, bundles, digests};
pub use sim::{Arrival, BEHAVIOUR, Course, Sim};
