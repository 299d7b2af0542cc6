//! ServiceSets: the sets of managed namespaces, the services of a set, and how a change spreads through them.

pub mod make_sets;
pub mod plan_sets;
pub mod rollouts;
pub mod set_versions;
pub mod stamp_services;
