//! Agents without clusters that speak the real protocol: a fleet of hundreds on one machine.
//!
//! An [`Agent`] joins and a [`Poller`] polls, to create load. A [`Sim`] is a whole fleet. Its clusters treat a bundle
//! as a file in the bundle says. It keeps its own record of deliveries, independent of the hub.

mod agent;
mod sim;

pub use agent::{Agent, Poller, allow_files, bundles, digests};
pub use sim::{Arrival, BEHAVIOUR, Course, Sim};
