//! Objects of others as ours.

pub mod flux;
