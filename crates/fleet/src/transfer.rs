//! Objects that move from one service of a cluster to another: they are handed over, neither deleted nor recreated.
//!
//! A service that states an object of another service claims it. When the owner's source no longer states it, the owner
//! leaves it in the cluster and offers it. The claimant then applies it, and in that one write the ownership marks
//! change.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ownership::ObjectKey,
    plan::waves::{group_of, is_definition, is_namespace},
};

/// How other services of the cluster are related to the objects of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Objects of other services that are offered to this service, with the owner's uid.
    pub offered: BTreeMap<ObjectKey, String>,
    /// Objects of this service that another one of the same tenant states, with its `namespace/name`.
    pub claimed: BTreeMap<ObjectKey, String>,
    /// Each other service of the cluster, by its `namespace/name`.
    pub others: Vec<(String, Arc<Holdings>)>,
}

/// Number of objects that a service states or has applied, by namespace and by API group.
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

    /// The same, with whether the service is being removed with its objects.
    pub fn leaving(self, is_leaving: bool) -> Self {
        Self { is_leaving, ..self }
    }

    /// Number of objects that would be deleted with a namespace or a definition.
    pub fn within(&self, holder: &ObjectKey) -> usize {
        let count = match (is_namespace(holder), is_definition(holder)) {
            (true, _) => self.namespaces.get(holder.name()),
            (_, true) => self.groups.get(group_of(holder)),
            _ => None,
        };
        count.copied().unwrap_or_default()
    }
}

/// Whether objects may move between two services (`namespace/name`). They may within one tenant, i.e. one namespace of
/// the hub.
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
