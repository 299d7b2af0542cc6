//! The decisions: what is assigned, where it may go, and what its state is called. Pure: no sockets, files, clocks or
//! runtime; time and limits are arguments.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod assignment;
pub mod conditions;
pub mod duration;
pub mod placement;
pub mod summary;
