//! Delivery, black-box: the agents' real router, the real controllers, a real store and a real Git server; only the agent is a
//! small one of the test's own, that says exactly what a test wants said.

#![allow(clippy::unwrap_used)]

mod agent;
mod backends;
mod connecting;
mod delivering;
mod identity;
mod keys;
mod parameters;
mod placing;
mod planning;
mod removing;
mod replaying;
mod reporting;
mod resuming;
mod rig;
mod rules;
mod secrets;
mod sources;
mod updating;
mod versions;
mod waiting;
