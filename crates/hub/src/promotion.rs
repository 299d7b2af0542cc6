//! Pipelines: commits on their way from stage to stage.

pub mod advance_promotions;
pub mod ask_gates;
pub mod gates;
pub mod propose_promotions;
