//! The store through its public functions, on real files.

#![allow(clippy::unwrap_used)]

mod resources;
mod setup;
mod transactions;
mod watches;
