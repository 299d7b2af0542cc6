//! The hub: the API server, controllers, delivery to agents, and the page, in one process.
//!
//! ```text
//!            TLS    limits, ids, log           access          acts
//!  client ─ server ─ routes ─┬─ /api /apis ──── auth ──── apiserver ─┐
//!                            ├─ /agent/v1 ──── (its own) ─ delivery ─┼─ store
//!                            ├─ /hook ──────── signature ─ receivers ┤
//!                            ├─ /healthz … /metrics, /ui             │
//!                            └─              controllers ────────────┘
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answers;
mod api_threads;
pub mod apiserver;
pub mod auth;
mod bodies;
mod bootstrap;
pub mod clusters;
pub mod config;
pub mod controllers;
pub mod delivery;
mod endpoint;
mod errors;
pub mod external_secrets;
pub mod guards;
mod health;
pub mod identity;
pub mod kinds;
mod logging;
pub mod memory;
mod metrics;
pub mod notify;
pub mod promotion;
pub mod queue;
pub mod receivers;
mod refusals;
pub mod replica;
pub mod resources;
mod room;
mod routes;
pub mod secret_backends;
mod server;
pub mod services;
pub mod sets;
pub mod sources;
mod start;
mod status;
pub mod turns;
mod unread;
mod wakes;
mod web;

use std::sync::Arc;

use farwater_store::Store;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use api_threads::{ApiThreads, STACK};
pub use auth::Access;
pub use config::{Advertise, Config, HubArgs};
pub use identity::{DataDir, Identity};
pub use metrics::Metrics;
pub use routes::served_paths;
pub use start::{HubError, Running, run, start};
pub use turns::{ListTurns, Shares, Turns};

pub use crate::replica::Replica;
use answers::Answers;
use bodies::Bodies;

/// The state that the parts of a running hub share.
pub struct Hub {
    pub config: Config,
    pub data: DataDir,
    pub store: Store,
    pub identity: Arc<Identity>,
    pub access: Access,
    pub metrics: Metrics,
    pub replica: Arc<Replica>,
    /// Turns of requests to the API.
    pub turns: Turns,
    /// Turns of administrators' requests when all others are taken.
    pub reserved_turns: Turns,
    /// Limits the requests to the API that one user has under way.
    pub user_shares: Shares,
    /// Room for the bodies of requests to the API.
    pub bodies: Bodies,
    /// The same for administrators.
    pub reserved_bodies: Bodies,
    /// Turns of lists that requests to the API read.
    pub list_turns: ListTurns,
    /// A permit for each watch that may be served.
    pub watches: Arc<Semaphore>,
    /// Limits the watches of one user.
    pub watch_shares: Shares,
    /// Room for answers and events that clients have not read yet.
    pub(crate) answers: Answers,
    /// Refused requests and closed connections, by client.
    pub(crate) refusals: Arc<refusals::Refusals>,
    /// Address at which agents and people reach this hub.
    pub advertise: Advertise,
    /// Cancelled when the hub stops, which ends watches and controllers.
    pub shutdown: CancellationToken,
}
