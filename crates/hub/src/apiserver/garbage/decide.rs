//! The garbage collector's decision about an object: a function of its owner references and of the owners found.
//!
//! The rules are those of `k8s.io/kubernetes/pkg/controller/garbagecollector` (`attemptToDeleteItem`).

use std::collections::BTreeSet;

use farwater_store::Key;
use serde_json::{Value, json};

use crate::kinds::{
    Registry, ResourceKind,
    managers::manage,
    meta,
    removal::{Cascade, FOREGROUND, Propagation, Removal, is_marked, plan_removal},
};

/// Where an owner reference points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lead {
    To(Key),
    /// The hub does not know this kind, so it can't know that the owner doesn't exist.
    UnknownKind,
    /// A cluster-scoped object can't name the namespace of its owner.
    NoNamespace,
}

/// An owner as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Solid,
    /// It is being deleted in the foreground.
    WaitsForDependents,
    /// No object has this name, or it has another uid.
    Absent,
}

/// Dependents of the object itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dependents {
    pub any: bool,
    /// One of them waits for its own dependents, possibly for this object.
    pub may_be_a_cycle: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Keep,
    /// It has another owner that stays: remove these references.
    Release(BTreeSet<String>),
    Collect(Propagation),
    /// Its owner waits for it, and it has dependents of its own. `unblock`: its owner stops waiting, so that a cycle of
    /// them does not wait forever.
    CollectInForeground {
        unblock: bool,
    },
}

pub fn references(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// The key of the owner that `dependent` names.
pub fn lead(registry: &Registry, reference: &Value, dependent: &Key) -> Lead {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    let Some(kind) = registry
        .kinds
        .iter()
        .find(|k| k.stored && k.kind == kind && k.api_version() == version)
    else {
        return Lead::UnknownKind;
    };
    if kind.namespaced && dependent.namespace.is_empty() {
        return Lead::NoNamespace;
    }
    let namespace = if kind.namespaced {
        dependent.namespace.clone()
    } else {
        String::new()
    };
    Lead::To(Key {
        kind: kind.store.clone(),
        namespace,
        name: text("name").to_owned(),
    })
}

/// The owner that a reference names, given the object with its key.
pub fn classify(reference: &Value, found: Option<&Value>) -> Owner {
    match found {
        Some(owner) if owner["metadata"]["uid"] == reference["uid"] => {
            if is_marked(owner) && meta::finalizers(owner).contains(&FOREGROUND) {
                Owner::WaitsForDependents
            } else {
                Owner::Solid
            }
        }
        _ => Owner::Absent,
    }
}

/// `owners`: the owners of the object's references, in the same order.
pub fn decide(object: &Value, owners: &[Owner], dependents: Dependents) -> Verdict {
    // An object that is being deleted needs no other decision.
    if is_marked(object) || owners.is_empty() {
        return Verdict::Keep;
    }
    if owners.contains(&Owner::Solid) {
        let gone = references(object)
            .iter()
            .zip(owners)
            .filter(|(_, owner)| **owner != Owner::Solid);
        let gone: BTreeSet<String> = gone
            .filter_map(|(reference, _)| reference["uid"].as_str().map(str::to_owned))
            .collect();
        return if gone.is_empty() {
            Verdict::Keep
        } else {
            Verdict::Release(gone)
        };
    }
    if owners.contains(&Owner::WaitsForDependents) && dependents.any {
        return Verdict::CollectInForeground {
            unblock: dependents.may_be_a_cycle,
        };
    }
    Verdict::Collect(Propagation::of_finalizers(object).unwrap_or(Propagation::Background))
}

/// The object without references to these owners.
pub fn released(object: &Value, owners: &BTreeSet<String>) -> Value {
    let mut object = object.clone();
    let names = |reference: &Value| reference["uid"].as_str().is_some_and(|uid| owners.contains(uid));
    meta::retain(&mut object["metadata"], "ownerReferences", |reference| {
        !names(reference)
    });
    object
}

fn unblocked(object: &Value) -> Value {
    let mut object = object.clone();
    for reference in object
        .pointer_mut("/metadata/ownerReferences")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if reference["blockOwnerDeletion"] == true {
            reference["blockOwnerDeletion"] = json!(false);
        }
    }
    object
}

/// The effect of a verdict on the object.
pub fn carry_out(verdict: &Verdict, object: &Value, kind: &ResourceKind, now: jiff::Timestamp) -> Removal {
    let remove = |object: &Value, policy| plan_removal(object, kind, Cascade::from(policy), now);
    let managed = |new| manage(&kind.store, "", Some(object), new, now);
    match verdict {
        Verdict::Keep => Removal::Wait,
        Verdict::Release(owners) => Removal::Mark(managed(released(object, owners))),
        Verdict::Collect(policy) => remove(object, *policy),
        Verdict::CollectInForeground { unblock: false } => remove(object, Propagation::Foreground),
        Verdict::CollectInForeground { unblock: true } => remove(&managed(unblocked(object)), Propagation::Foreground),
    }
}

#[cfg(test)]
mod tests {
    use farwater_store::Kind;

    use super::*;
    use crate::kinds::REGISTRY;

    fn owned(uids: &[&str]) -> Value {
        let references: Vec<Value> = uids
            .iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid}))
            .collect();
        json!({"metadata": {"name": "a", "ownerReferences": references}})
    }

    #[test]
    fn an_object_is_collected_when_none_of_its_owners_stays() {
        use Owner::{Absent, Solid, WaitsForDependents};
        let none = Dependents::default();
        let some = Dependents {
            any: true,
            may_be_a_cycle: false,
        };
        let background = Verdict::Collect(Propagation::Background);
        for (owners, dependents, expected) in [
            (&[][..], none, Verdict::Keep),
            (&[Solid], none, Verdict::Keep),
            (&[Absent], none, background.clone()),
            (&[Absent, Absent], some, background.clone()),
            (&[WaitsForDependents], none, background.clone()),
            (
                &[WaitsForDependents, Absent],
                some,
                Verdict::CollectInForeground { unblock: false },
            ),
            (&[Absent, Solid], none, Verdict::Release(["u0".to_owned()].into())),
            (
                &[Solid, WaitsForDependents],
                some,
                Verdict::Release(["u1".to_owned()].into()),
            ),
        ] {
            let uids: Vec<String> = (0..owners.len()).map(|n| format!("u{n}")).collect();
            let object = owned(&uids.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(decide(&object, owners, dependents), expected, "{owners:?}");
        }
        let mut marked = owned(&["a"]);
        marked["metadata"]["deletionTimestamp"] = json!("t");
        assert_eq!(decide(&marked, &[Absent], none), Verdict::Keep);
        let mut orphaning = owned(&["a"]);
        orphaning["metadata"]["finalizers"] = json!(["x/y", "orphan"]);
        assert_eq!(
            decide(&orphaning, &[Absent], none),
            Verdict::Collect(Propagation::Orphan)
        );
    }

    #[test]
    fn an_owner_is_its_kind_its_name_and_its_uid() {
        let at = |namespace: &str| Key {
            kind: Kind::new("secrets", ""),
            namespace: namespace.into(),
            name: "d".into(),
        };
        let reference =
            |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "name": "n", "uid": "u"});
        let key = |kind: Kind, namespace: &str| {
            Lead::To(Key {
                kind,
                namespace: namespace.into(),
                name: "n".into(),
            })
        };
        for (reference, namespace, expected) in [
            (
                reference("v1", "ConfigMap"),
                "ns",
                key(Kind::new("configmaps", ""), "ns"),
            ),
            (reference("v1", "ConfigMap"), "", Lead::NoNamespace),
            (reference("v1", "Namespace"), "ns", key(Kind::new("namespaces", ""), "")),
            (reference("v1", "Pod"), "ns", Lead::UnknownKind),
            (reference("farwater.dev/v1", "Cluster"), "ns", Lead::UnknownKind),
        ] {
            assert_eq!(lead(&REGISTRY, &reference, &at(namespace)), expected);
        }
        let reference = reference("v1", "ConfigMap");
        let owner = |uid: &str| json!({"metadata": {"uid": uid}});
        assert_eq!(classify(&reference, None), Owner::Absent);
        assert_eq!(classify(&reference, Some(&owner("v"))), Owner::Absent);
        assert_eq!(classify(&reference, Some(&owner("u"))), Owner::Solid);
        let mut waiting = owner("u");
        waiting["metadata"]["finalizers"] = json!([FOREGROUND]);
        assert_eq!(classify(&reference, Some(&waiting)), Owner::Solid);
        waiting["metadata"]["deletionTimestamp"] = json!("t");
        assert_eq!(classify(&reference, Some(&waiting)), Owner::WaitsForDependents);
    }

    #[test]
    fn what_is_released_keeps_its_other_owners() {
        let both = owned(&["a", "b"]);
        assert_eq!(released(&both, &["a".to_owned()].into()), owned(&["b"]));
        let alone = released(&both, &["a".to_owned(), "b".to_owned()].into());
        assert_eq!(alone, json!({"metadata": {"name": "a"}}));
    }
}
