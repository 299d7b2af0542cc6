//! Clusters and their agents: which are heard, which need another version, keys or a plan.

pub mod advance_agents;
pub mod exchange_seal_key;
pub mod propose_plans;
pub mod track_clusters;
