//! The API as clients see it: the real kubectl uses it, the real kube-apiserver judges it.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say where")]

mod access;
mod approvals;
mod attacks;
mod judge;
mod k9s;
mod kubectl;
mod namespaces;
mod notifications;
mod parameters;
mod pipelines;
mod receivers;
mod refusals;
mod rendering;
mod rules;
mod server_side;
mod sets;
mod support;
mod watches;
mod windows;
