//! The decisions: pure functions of plain data.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod why;
