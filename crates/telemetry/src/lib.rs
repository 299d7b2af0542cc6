//! What hub and agent tell of themselves. Small: the agent links it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod exposition;
pub mod otlp;
pub mod process;
pub mod traces;
