//! Metrics, traces and logs of hub and agent. Small, because the agent links it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod exposition;
pub mod otlp;
pub mod process;
pub mod traces;
