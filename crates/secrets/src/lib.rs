//! Backends of secrets, behind one interface: [`Backend`].
//!
//! A reference names a backend of the hub's configuration and a place in it. [`Backends`] reads a reference within
//! limits, if the configuration lets its namespace read it. [`Keeper`] keeps the last values, refreshes them, and uses
//! them while a backend is unavailable.
//!
//! ```text
//!  reference ─► Keeper ──(known?)──► values, and since when they are stale
//!                 │ refreshes                          ▲
//!                 ▼                                    │
//!              Backends ─► allow, limits, gate ─► files · environment · Vault · program
//! ```
//!
//! No error, log line or `Debug` text holds a value.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backend;
mod backends;
pub mod config;
mod environment;
mod files;
mod gate;
mod keeper;
mod program;
mod vault;

pub use backend::{Backend, BackendError, MAX_VALUES, MAX_VALUES_BYTES, Outlook, Reference, SecretBytes, Values};
pub use backends::{Backends, ReadError};
pub use config::{Config, ConfigError};
pub use keeper::{Changed, Condition, Keeper, Kept, Known, Shelf, ShelfError, Stale};
