//! One file per command.

pub mod admin;
pub mod cluster;
pub mod completion;
pub mod convert;
pub mod deploy;
pub mod doctor;
pub mod explain;
pub mod get;
pub mod history;
pub mod hooks;
pub mod hub;
pub mod impact;
pub mod install;
pub mod login;
pub mod objects;
pub mod plan;
pub mod render;
pub mod resume;
pub mod rollback;
pub mod rollout;
pub mod suspend;
pub mod tree;
pub mod undo;
pub mod version;
pub mod wait;
pub mod why;
