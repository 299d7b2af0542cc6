//! What a delete does to an object, its finalizers and its dependents.

use farwater_store::{Change, Resource};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    ResourceKind,
    meta::{self, timestamp},
};

/// Finalizers that the garbage collector removes once dependents no longer name their owner, or are gone.
pub const ORPHAN: &str = "orphan";

pub const FOREGROUND: &str = "foregroundDeletion";

/// The effect of a delete on an object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are collected after it.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay, without their reference to the object.
    Orphan,
}

impl Propagation {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Background" => Some(Self::Background),
            "Foreground" => Some(Self::Foreground),
            "Orphan" => Some(Self::Orphan),
            _ => None,
        }
    }

    /// The policy of an earlier request, or of the creator of the object.
    pub fn of_finalizers(object: &Value) -> Option<Self> {
        meta::finalizers(object)
            .into_iter()
            .find_map(|finalizer| match finalizer {
                ORPHAN => Some(Self::Orphan),
                FOREGROUND => Some(Self::Foreground),
                _ => None,
            })
    }
}

/// The parts of a request about dependents: it may name a policy in one of two ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cascade {
    pub policy: Option<Propagation>,
    /// Deprecated since Kubernetes 1.7, and still sent.
    pub orphan_dependents: Option<bool>,
}

impl From<Propagation> for Cascade {
    fn from(policy: Propagation) -> Self {
        Self {
            policy: Some(policy),
            orphan_dependents: None,
        }
    }
}

impl Cascade {
    /// The finalizers of an object that is deleted like this. The collector's finalizers are added or removed, in the
    /// order of Kubernetes' `deletionFinalizersForGarbageCollection`.
    pub fn finalizers(self, object: &Value, kind: &ResourceKind) -> Vec<String> {
        let had = meta::finalizers(object);
        let (orphan, foreground) = if kind.kind == "Namespace" {
            let decided = self
                .orphan_dependents
                .map(|orphan| (orphan, !orphan))
                .or_else(|| self.policy.map(own_finalizers));
            decided.unwrap_or_else(|| (had.contains(&ORPHAN), had.contains(&FOREGROUND)))
        } else if kind.kind == "Event" {
            (false, false)
        } else {
            let policy = match self.orphan_dependents {
                Some(true) => Some(Propagation::Orphan),
                Some(false) => Some(Propagation::Background),
                None => self.policy.or_else(|| Propagation::of_finalizers(object)),
            };
            policy.map(own_finalizers).unwrap_or_default()
        };
        let others = had.iter().filter(|name| !matches!(**name, ORPHAN | FOREGROUND));
        let added = [orphan.then_some(&ORPHAN), foreground.then_some(&FOREGROUND)];
        let mut wanted: Vec<String> = others
            .chain(added.into_iter().flatten())
            .map(|name| (*name).to_owned())
            .collect();
        if wanted.len() == had.len() && had.iter().all(|name| wanted.iter().any(|other| other == name)) {
            wanted = had.into_iter().map(str::to_owned).collect();
        }
        wanted
    }
}

/// Whether a policy sets `orphan`, and whether it sets `foregroundDeletion`.
fn own_finalizers(policy: Propagation) -> (bool, bool) {
    (policy == Propagation::Orphan, policy == Propagation::Foreground)
}

/// The effect of a delete on an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// It has no finalizers, so it is removed.
    Remove,
    /// It stays, marked, until its finalizers are gone.
    Mark(Value),
    /// It is marked already.
    Wait,
}

pub fn is_marked(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some()
}

/// Whether an object has finalizers, so that a delete only marks it.
pub fn is_held(object: &Value, kind: &ResourceKind) -> bool {
    let of_spec = || {
        object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty())
    };
    !meta::finalizers(object).is_empty() || (kind.kind == "Namespace" && of_spec())
}

/// Pure: what a delete of this object means now.
pub fn plan_removal(object: &Value, kind: &ResourceKind, cascade: Cascade, now: Timestamp) -> Removal {
    let namespace = kind.kind == "Namespace";
    if namespace && is_marked(object) && is_held(&json!({"metadata": {}, "spec": object["spec"]}), kind) {
        return Removal::Wait;
    }

    let finalizers = cascade.finalizers(object, kind);
    // A namespace always terminates first, because its contents are deleted with it.
    if finalizers.is_empty() && (!namespace || is_marked(object)) {
        return Removal::Remove;
    }

    let mut marked = object.clone();
    let metadata = &mut marked["metadata"];
    if finalizers.is_empty() {
        metadata.as_object_mut().map(|m| m.remove("finalizers"));
    } else {
        metadata["finalizers"] = json!(finalizers);
    }
    if !is_marked(object) {
        metadata["deletionTimestamp"] = timestamp(now);
        if let Some(generation) = metadata["generation"].as_i64() {
            metadata["generation"] = json!(generation + 1);
        }
    }
    if !namespace {
        metadata["deletionGracePeriodSeconds"] = json!(0);
    } else {
        marked["status"]["phase"] = json!("Terminating");
    }

    if marked == *object {
        Removal::Wait
    } else {
        Removal::Mark(marked)
    }
}

/// The write of a removal; None: there is nothing to write.
pub fn change_of(removal: Removal, resource: &Resource) -> Option<Change> {
    let (uid, version) = (resource.uid.clone(), resource.version);
    match removal {
        Removal::Wait => None,
        Removal::Remove => Some(Change::Delete { uid, version }),
        Removal::Mark(object) => Some(Change::Replace { uid, version, object }),
    }
}

/// The write of an object's next state. It removes the object if that was only waiting for the last finalizer.
pub fn settled(resource: &Resource, object: Value, kind: &ResourceKind) -> Change {
    let (uid, version) = (resource.uid.clone(), resource.version);
    if is_marked(&object) && !is_held(&object, kind) {
        Change::Delete { uid, version }
    } else {
        Change::Replace { uid, version, object }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::REGISTRY;

    fn kind(group: &str, plural: &str) -> &'static ResourceKind {
        REGISTRY
            .kinds
            .iter()
            .find(|kind| kind.group == group && kind.plural == plural)
            .unwrap()
    }

    fn plan(object: &Value, kind: &ResourceKind, cascade: impl Into<Cascade>) -> Removal {
        plan_removal(object, kind, cascade.into(), "2026-01-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn finalizers_hold_an_object() {
        let kind = kind("farwater.dev", "clusters");
        let free = json!({"metadata": {"name": "a"}});
        assert_eq!(plan(&free, kind, Cascade::default()), Removal::Remove);
        let held = json!({"metadata": {"name": "a", "generation": 1, "finalizers": ["a/b"]}});
        let Removal::Mark(marked) = plan(&held, kind, Cascade::default()) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
        assert_eq!(marked["metadata"]["generation"], 2);
        assert_eq!(plan(&marked, kind, Cascade::default()), Removal::Wait);
    }

    #[test]
    fn a_namespace_terminates_before_it_goes() {
        let kind = kind("", "namespaces");
        let namespace =
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let Removal::Mark(marked) = plan(&namespace, kind, Cascade::default()) else {
            panic!("not marked")
        };
        assert_eq!(marked["status"]["phase"], "Terminating");
        assert_eq!(plan(&marked, kind, Propagation::Foreground), Removal::Wait);
    }

    #[test]
    fn a_policy_is_a_finalizer_until_the_collector_has_done_its_part() {
        let old_way = |orphan| Cascade {
            policy: None,
            orphan_dependents: Some(orphan),
        };
        for (had, cascade, expected) in [
            (&[][..], Propagation::Background.into(), &[][..]),
            (&[], Propagation::Foreground.into(), &[FOREGROUND]),
            (&[], Propagation::Orphan.into(), &[ORPHAN]),
            (&[], old_way(true), &[ORPHAN]),
            (&[], old_way(false), &[]),
            (&[ORPHAN], Cascade::default(), &[ORPHAN]),
            (&[ORPHAN, "a/b"], Propagation::Foreground.into(), &["a/b", FOREGROUND]),
            (&[FOREGROUND, "a/b"], Cascade::default(), &[FOREGROUND, "a/b"]),
            (&[FOREGROUND], Propagation::Background.into(), &[]),
        ] {
            let object = json!({"metadata": {"finalizers": had}});
            assert_eq!(
                cascade.finalizers(&object, kind("", "configmaps")),
                expected,
                "{had:?} {cascade:?}"
            );
        }
        let event = json!({"metadata": {}});
        assert_eq!(
            plan(&event, kind("", "events"), Propagation::Foreground),
            Removal::Remove
        );
        let namespace = kind("", "namespaces");
        assert_eq!(old_way(false).finalizers(&event, namespace), [FOREGROUND]);
    }
}
