//! Objects of Flux and Argo CD as ours: the hub takes what comes of them, and nothing is dropped in silence.

#![allow(clippy::unwrap_used)]

mod argocd;
mod flux;
mod sources;
mod support;
