//! Objects of Flux and Argo CD as objects of Farwater: the hub accepts the output, and no field is dropped in silence.

#![allow(clippy::unwrap_used)]

mod argocd;
mod flux;
mod sources;
mod support;
