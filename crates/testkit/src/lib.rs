//! Real servers for tests, the demo and the campaigns: Kubernetes control planes, Git, and our own programs.
//!
//! Nothing here is linked into the product. Every started process ends with the process that started it, even if that
//! one is killed (see [`watchdog`]).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod api_faults;
pub mod app_api;
pub mod authority;
pub mod chat;
pub mod code_host;
pub mod deliveries;
pub mod dial;
pub mod fake;
pub mod faketime;
pub mod farwater;
pub mod gatekeeper;
pub mod git;
pub mod helm;
pub mod hook;
pub mod https;
pub mod hub_pod;
pub mod images;
pub mod informer;
pub mod kube;
pub mod ledger;
pub mod lfs;
pub mod nginx;
pub mod node;
pub mod origin;
pub mod packages;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod recorder;
pub mod registry;
pub mod site;
pub mod smtp;
pub mod squid;
pub mod ssh;
pub mod terminal;
pub mod tools;
pub mod vault;
pub mod wait;
pub mod watchdog;
pub mod webhook;
pub mod wire;

pub use farwater::{Agent, Hub, Launch};
pub use helm::Helm;
pub use kube::{Plane, PlaneOptions, shared};
pub use node::Node;
pub use origin::Origin;
pub use postgres::Postgres;
pub use process::Process;
pub use prometheus::Prometheus;
pub use registry::Registry;
pub use site::Site;
pub use terminal::Terminal;
pub use tools::Tools;
pub use vault::Vault;
pub use wait::{wait_for, wait_for_all};
pub use watchdog::temporary_folder;
