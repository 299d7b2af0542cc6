//! The agent's program against a real API server and a hub that a test speaks for: one file per capability.
#![allow(clippy::unwrap_used, reason = "tests")]

mod charts;
mod connected;
mod drift;
mod engine;
mod field_reports;
mod fights;
mod health;
mod hooks;
mod joining;
mod lost;
mod merging;
mod order;
mod overtaken;
mod reasons;
mod removing;
mod replacing;
mod restarts;
mod rules;
mod sealed;
mod services;
mod superseding;
mod support;
mod watches;
mod windows;
