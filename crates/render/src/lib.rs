//! From the files of a bundle to Kubernetes objects.
//!
//! In this order: files named `*.liquid` become files; each renderer makes objects from its folder; the service's
//! patches change them. Raw manifests are read here. Helm, Kustomize, Liquid and patches run in a child process that
//! contains only the libraries of those projects ([`helper`]), plugins are programs in the agent's configuration
//! ([`plugin`]). The command line and the agent use the same code, so `farwater render` shows what a cluster gets.
//!
//! A failure is an error in addition to the objects, and never makes the set smaller silently.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod detect;
mod engine;
mod files;
pub mod helper;
mod limits;
mod message;
pub mod plugin;

pub use cache::{Cache, CacheLimits};
pub use detect::detect;
pub use engine::{Asker, Engine, Input, Nobody, Output, Release, RenderError, Unanswered};
pub use files::FilesError;
pub use helper::{Helper, HelperError, Program};
pub use limits::Limits;
pub use message::{Capabilities, Confinement, MessageError, Question, Reason};
pub use plugin::{Plugin, PluginError, PluginType, Plugins, PluginsError};
