//! The store through its public functions, on real files and real PostgreSQL databases.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod setup;

mod archives;
mod charts;
mod commits;
mod faults;
mod garbage;
mod history;
mod kill9;
mod members;
mod order;
mod parameters;
mod paths;
mod replicas;
mod resources;
mod seal_keys;
mod secrets;
mod server;
mod services;
mod tallies;
mod transactions;
mod watches;
