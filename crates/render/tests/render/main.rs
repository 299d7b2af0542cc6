//! The real helper compared with the real helm and kustomize.

#![allow(clippy::unwrap_used)]

mod engine;
mod helm;
mod kustomize;
mod plugins;
mod post_renderers;
mod programs;
#[path = "../support/mod.rs"]
mod support;
mod templates;
