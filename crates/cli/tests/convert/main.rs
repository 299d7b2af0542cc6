//! Objects of Flux and Argo CD as objects of Farwater. The hub accepts the output, and no field is dropped without a
//! message.

#![allow(clippy::unwrap_used)]

mod argocd;
mod flux;
mod sources;
mod support;
