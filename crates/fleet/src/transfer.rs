//! Objects that move from one service of a cluster to another: handed over, neither deleted nor made again.
//!
//! Whoever states an object that another service owns has a claim on it. An owner whose source states it no more leaves it where
//! it is and offers it; who has the claim applies it, and with that the marks of ownership change hands in one write.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ownership::ObjectKey,
    plan::waves::{group_of, is_definition, is_namespace},
};

/// What other services of the cluster have to do with the objects of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Objects of others that are left to this service: the owner's uid.
    pub offered: BTreeMap<ObjectKey, String>,
    /// Objects of this service that another one of the same tenant states: its `namespace/name`.
    pub claimed: BTreeMap<ObjectKey, String>,
    /// Each other service of the cluster, by its `namespace/name`.
    pub others: Vec<(String, Arc<Holdings>)>,
}

/// How many objects a service states, or has applied, in each namespace and of each API group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Whether the service is being removed with its objects.
    pub is_leaving: bool,
    namespaces: BTreeMap<String, usize>,
    groups: BTreeMap<String, usize>,
}

impl Holdings {
    pub fn of<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> Self {
        let mut holdings = Self::default();
        for key in keys {
            *holdings.namespaces.entry(key.namespace().to_owned()).or_default() += 1;
            if !is_definition(key) {
                *holdings.groups.entry(key.group().to_owned()).or_default() += 1;
            }
        }
        holdings
    }

    /// The same of a service that is being removed with its objects, or isn't.
    pub fn leaving(self, is_leaving: bool) -> Self {
        Self { is_leaving, ..self }
    }

    /// How many would be deleted with a namespace or a definition.
    pub fn within(&self, holder: &ObjectKey) -> usize {
        let count = match (is_namespace(holder), is_definition(holder)) {
            (true, _) => self.namespaces.get(holder.name()),
            (_, true) => self.groups.get(group_of(holder)),
            _ => None,
        };
        count.copied().unwrap_or_default()
    }
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
