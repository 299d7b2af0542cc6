//! Where values of secrets come from, behind one interface: [`Backend`].
//!
//! A reference names a backend of the hub's own configuration and a place in it. [`Backends`] reads one, within limits and only
//! where the configuration lets its namespace read; [`Keeper`] keeps what was read last, reads it again now and then, and
//! goes on with it while a backend is away.
//!
//! ```text
//!  reference ─► Keeper ──(known?)──► values, and since when they are old
//!                 │ now and then                       ▲
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
