//! Delivery, black-box: the agents' real router, the real controllers, a real store and a real Git server; only the agent is a
//! small one of the test's own, that says exactly what a test wants said.

#![allow(clippy::unwrap_used)]

mod agent;
mod backends;
mod bases;
mod charts;
mod connecting;
mod delivering;
mod digests;
mod identity;
mod impact;
mod keys;
mod namespaces;
mod notifying;
mod outages;
mod parameters;
mod placing;
mod planning;
mod private;
mod promoting;
mod removing;
mod replaying;
mod reporting;
mod resuming;
mod rig;
mod rolling;
mod rules;
mod secrets;
mod shop;
mod sources;
mod spreading;
mod stamping;
mod updating;
mod versions;
mod waiting;
mod webhooks;
mod windows;
