//! What the tasks of this repository share, those of xtask and those of lab.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod deny;
pub mod lab;
pub mod machine;
pub mod page;
pub mod repository;
pub mod step;
