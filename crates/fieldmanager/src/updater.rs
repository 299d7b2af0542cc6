//! Changes of the managers' sets by a write, and removals by an apply.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use crate::{
    compare::{Comparison, compare},
    managers::{Manager, Managers, Owned},
    merge::merge,
    path::Path,
    remove::remove,
    schema::Type,
    set::Set,
    typed::to_set,
    value,
};

/// A field of another manager that an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: Manager,
    pub path: Path,
}

/// One or more conflicts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Conflicts(pub Vec<Conflict>);

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [Conflict { manager, path }] = &self.0[..] {
            return write!(f, "Apply failed with 1 conflict: conflict with {manager}: {path}");
        }
        let mut by_manager: BTreeMap<&Manager, Vec<&Path>> = BTreeMap::new();
        for conflict in &self.0 {
            by_manager.entry(&conflict.manager).or_default().push(&conflict.path);
        }
        let lines = by_manager.into_iter().flat_map(|(manager, paths)| {
            let head = format!("conflicts with {manager}:");
            [head]
                .into_iter()
                .chain(paths.into_iter().map(|path| format!("- {path}")))
        });
        let lines: Vec<String> = lines.collect();
        write!(f, "Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

pub(crate) struct Updater<'a> {
    pub ty: &'a Type,
    pub api_version: &'a str,
    /// Fields that these writes can't change, with everything below them. A write gives them no owner.
    pub reset: &'a Set,
}

impl Updater<'_> {
    /// Drops entries of versions that aren't served, and adapts the sets to the schema.
    fn reconcile(&self, managers: &mut Managers) {
        managers.0.retain(|_, owned| owned.api_version == self.api_version);
        managers
            .0
            .values_mut()
            .for_each(|owned| owned.set.reconcile(self.ty.root()));
    }

    /// Removes the changed fields from all managers except `own`.
    fn disown(
        comparison: &Comparison,
        managers: &mut Managers,
        own: Option<&Manager>,
        force: bool,
    ) -> Result<(), Conflicts> {
        let others = || managers.0.iter().filter(|(manager, _)| Some(*manager) != own);
        let changed = comparison.modified.union(&comparison.added);
        if !force {
            let conflicts = others().flat_map(|(manager, owned)| {
                let paths = owned.set.intersection(&changed).paths();
                paths.into_iter().map(|path| Conflict {
                    manager: manager.clone(),
                    path,
                })
            });
            let conflicts: Vec<_> = conflicts.collect();
            if !conflicts.is_empty() {
                return Err(Conflicts(conflicts));
            }
        }
        let lost = changed.union(&comparison.removed);
        if !lost.is_empty() {
            for (_, owned) in managers.0.iter_mut().filter(|(manager, _)| Some(*manager) != own) {
                owned.set = owned.set.difference(&lost);
            }
        }
        managers.0.retain(|_, owned| !owned.set.is_empty());
        Ok(())
    }

    /// The fields that an update changes. Its manager becomes their only owner.
    pub fn update(&self, live: &Value, new: &Value, managers: &mut Managers) -> Set {
        self.reconcile(managers);
        let comparison = compare(live, new, self.ty).without(self.reset);
        // Forced, so there are no conflicts.
        let _ = Self::disown(&comparison, managers, None, true);
        comparison.modified.union(&comparison.added)
    }

    /// The object after an apply of `config`. None: it is unchanged.
    pub fn apply(
        &self,
        live: &Value,
        config: &Value,
        managers: &mut Managers,
        own: &Manager,
        force: bool,
    ) -> Result<Option<Value>, Conflicts> {
        self.reconcile(managers);
        let merged = merge(live, config, self.ty);
        let set = to_set(config, self.ty).recursive_difference(self.reset);
        let time = managers.0.get(own).and_then(|owned| owned.time);
        let owned = Owned {
            set,
            api_version: self.api_version.to_owned(),
            time,
        };
        let last = managers.0.insert(own.clone(), owned);
        let new = match last {
            Some(last) if !last.set.is_empty() => self.prune(&merged, managers, &last.set),
            _ => merged,
        };
        let comparison = compare(live, &new, self.ty).without(self.reset);
        Self::disown(&comparison, managers, Some(own), force)?;
        Ok((!value::equal(live, &new)).then_some(new))
    }

    /// Removes the fields that the manager applied last time and doesn't apply now, if they have no other owner.
    fn prune(&self, merged: &Value, managers: &Managers, last: &Set) -> Value {
        let named = |set: &Set| set.with_named_fields(self.ty.root());
        let mentioned = |value: &Value| named(&to_set(value, self.ty));
        let last = named(last);
        let all = mentioned(merged);
        let without_last = mentioned(&remove(merged, &last, self.ty));
        let owned = managers.0.values().fold(Set::new(), |all, owned| all.union(&owned.set));
        let kept = remove(merged, &all.difference(&without_last.union(&named(&owned))), self.ty);
        // A field that is only gone because its parent is gone was never owned by this manager.
        remove(merged, &all.difference(&mentioned(&kept)).intersection(&last), self.ty)
    }
}
