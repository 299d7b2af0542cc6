//! Code that the tasks of xtask and lab share.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod deny;
pub mod lab;
pub mod machine;
pub mod page;
pub mod repository;
pub mod step;
