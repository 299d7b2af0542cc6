//! From the files of a bundle to Kubernetes objects.
//!
//! The order: files named `*.liquid` become files; then each renderer makes objects of its folder; then the patches of the service
//! change them. Raw manifests are read here. Helm, Kustomize, Liquid and patches are done by a child that has the libraries of
//! their own projects and nothing else ([`helper`]), plugins by programs that the agent was configured with ([`plugin`]). The
//! command line and the agent use the same code, so `farwater render` shows what a cluster gets.
//!
//! Whatever goes wrong is an error beside the objects, and never fewer objects in silence.
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
