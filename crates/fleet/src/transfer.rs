//! Objects that move from one service of a cluster to another: handed over, neither deleted nor made again.
//!
//! Whoever states an object that another service owns has a claim on it. An owner whose source states it no more leaves it where
//! it is and offers it; who has the claim applies it, and with that the marks of ownership change hands in one write.

use std::collections::BTreeMap;

use crate::ownership::ObjectKey;

/// What other services of the cluster have to do with the objects of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Objects of others that are left to this service: the owner's uid.
    pub offered: BTreeMap<ObjectKey, String>,
    /// Objects of this service that another one of the same tenant states: its `namespace/name`.
    pub claimed: BTreeMap<ObjectKey, String>,
}

/// Whether objects may go from one service to another: of one tenant, whose services live in one namespace of the hub. Both are
/// named `namespace/name`.
pub fn may_transfer(from: &str, to: &str) -> bool {
    match (from.split_once('/'), to.split_once('/')) {
        (Some((from, _)), Some((to, _))) => from == to,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_services_of_one_tenant_take_over_from_one_another() {
        assert!(may_transfer("team/web", "team/api"));
        assert!(!may_transfer("team/web", "other/web"));
        assert!(!may_transfer("web", "web"));
    }
}
