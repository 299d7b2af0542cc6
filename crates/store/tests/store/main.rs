//! The store through its public functions, on real files.

#![allow(clippy::unwrap_used)]

mod faults;
mod garbage;
mod kill9;
mod resources;
mod secrets;
mod setup;
mod transactions;
mod watches;
