//! The decisions of Farwater, as functions of plain data: no sockets, files, clocks or runtime.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod health;
pub mod ownership;
pub mod plan;
pub mod prune;
