//! Objects that left the source or leave with their service: which of them are deleted, kept or forgotten.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    reasons::{Forget, Keep},
    waves,
};
use crate::{
    ownership::{ObjectKey, proven_owner},
    plan::{Inventory, InventoryEntry, Live, LiveObject, PlanInput, options::Guard},
    prune::{Candidate, Purpose},
    transfer::Transfers,
    words::counted,
};

#[derive(Default)]
pub(super) struct Leaving {
    pub(super) doomed: Vec<Candidate>,
    pub(super) going: Vec<Candidate>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) kept: Vec<(ObjectKey, Keep)>,
    pub(super) forgotten: Vec<(ObjectKey, Forget)>,
}

/// Sorts objects that left the source. `is_held`: something holds all prunes, also one that was begun.
pub(super) fn judge_leaving(input: &PlanInput<'_>, is_held: bool) -> Leaving {
    let stays: BTreeSet<&ObjectKey> = input.resolved.stated_keys().collect();
    let leaving = input.inventory.entries.keys().filter(|key| !stays.contains(key));
    let keep = if !input.resolved.complete {
        Some(Keep::IncompleteRender)
    } else if !input.prune && input.hold_prune.is_none() {
        Some(Keep::PruneOff)
    } else {
        None
    };
    let staying = Staying {
        keep,
        stated: stays.clone(),
        transfers: input.transfers,
    };
    let mut leaving = sort_leaving(
        input.service_uid,
        input.inventory,
        input.live,
        leaving,
        Purpose::Sync,
        &staying,
    );
    if is_held {
        leaving.candidates.append(&mut leaving.doomed);
    }
    leaving
}

/// What keeps leaving objects from being deleted.
pub(super) struct Staying<'a> {
    /// Why no object is deleted at all. None: objects may be.
    pub(super) keep: Option<Keep>,
    /// Objects that the service states.
    pub(super) stated: BTreeSet<&'a ObjectKey>,
    pub(super) transfers: &'a Transfers,
}

/// Sorts objects that leave: an object is deleted only if it has our uid and our proof, and no other service states it.
pub(super) fn sort_leaving<'a>(
    service_uid: &str,
    inventory: &Inventory,
    live: &BTreeMap<ObjectKey, Live>,
    keys: impl Iterator<Item = &'a ObjectKey>,
    purpose: Purpose,
    staying: &Staying<'_>,
) -> Leaving {
    let mut out = Leaving::default();
    for key in keys {
        let Some(entry) = inventory.entries.get(key) else {
            continue;
        };
        match live.get(key) {
            Some(Live::Present(object)) => out.sort_present(service_uid, (key, entry), object, purpose, staying),
            Some(Live::Absent) => out.forgotten.push((key.clone(), Forget::Gone)),
            Some(Live::Unknown(message) | Live::Forbidden(message)) => {
                out.kept.push((key.clone(), Keep::Lookup(message.clone())));
            }
            None => out.kept.push((key.clone(), Keep::Lookup("not looked up".into()))),
        }
    }

    keep_holders(&mut out, staying);
    out
}

impl Leaving {
    /// Sorts an object that is in the cluster: a list of rules, the first that fits decides.
    fn sort_present(
        &mut self,
        service_uid: &str,
        (key, entry): (&ObjectKey, &InventoryEntry),
        object: &LiveObject,
        purpose: Purpose,
        staying: &Staying<'_>,
    ) {
        let guard = object.protection.guard(purpose);
        let candidate = Candidate {
            object: entry.object.clone(),
            uid: object.uid.clone(),
            wave: object.wave,
            confirm: *guard == Guard::Confirm,
            waits: false,
        };
        let ours = object.owner.as_deref().and_then(|a| proven_owner(a, key)) == Some(service_uid);
        if entry.uid.as_ref().is_some_and(|uid| *uid != object.uid) {
            self.forgotten.push((key.clone(), Forget::Replaced));
        } else if !ours {
            self.forgotten.push((key.clone(), Forget::NotOurs));
        } else if object.deleting {
            self.kept.push((key.clone(), Keep::Deleting));
            self.going.push(candidate);
        } else if let Guard::Keep(annotation) = guard {
            self.kept.push((key.clone(), Keep::Protected(annotation.clone())));
        } else if let Some(keep) = &staying.keep {
            self.kept.push((key.clone(), keep.clone()));
        } else if let Some(service) = staying.transfers.claimed.get(key).filter(|_| !entry.doomed) {
            self.kept.push((key.clone(), Keep::Claimed(service.clone())));
        } else {
            if entry.doomed {
                &mut self.doomed
            } else {
                &mut self.candidates
            }
            .push(candidate);
        }
    }
}

/// The `default` ServiceAccount is created with its namespace and recreated when deleted. It is deleted with its
/// namespace, even if its annotations protect it.
fn is_of_namespace(key: &ObjectKey) -> bool {
    key.group().is_empty() && key.kind() == "ServiceAccount" && key.name() == "default"
}

/// Keeps a namespace or a definition while an object in it is protected or stated by a service, because deleting it
/// deletes all it holds.
fn keep_holders(leaving: &mut Leaving, staying: &Staying<'_>) {
    let protected: Vec<ObjectKey> = leaving
        .kept
        .iter()
        .filter(|(key, keep)| matches!(keep, Keep::Protected(_)) && !is_of_namespace(key))
        .map(|(key, _)| key.clone())
        .collect();
    let keep = |key: &ObjectKey| {
        let held = protected.iter().find(|held| waves::holds(key, held));
        held.map(|held| Keep::Holds(held.clone()))
            .or_else(|| find_stated(key, staying))
    };
    for (list, is_decided) in [(&mut leaving.doomed, true), (&mut leaving.candidates, false)] {
        list.retain_mut(|candidate| {
            let key = ObjectKey::from(&candidate.object);
            let kept = keep(&key);
            // People see it in the set, although it is deleted later.
            candidate.waits = !is_decided && matches!(kept, Some(Keep::HoldsLeaving(_)));
            let is_of_set = kept.is_none() || candidate.waits;
            leaving.kept.extend(kept.map(|keep| (key, keep)));
            is_of_set
        });
    }
}

/// The reason to keep a namespace or a definition: stated objects would be deleted with it.
fn find_stated(holder: &ObjectKey, staying: &Staying<'_>) -> Option<Keep> {
    /// Most objects, or services, that are named.
    const NAMED: usize = 3;
    let own: Vec<&&ObjectKey> = staying.stated.iter().filter(|key| waves::holds(holder, key)).collect();
    let mut told: Vec<String> = own.iter().take(NAMED).map(ToString::to_string).collect();
    if own.len() > NAMED {
        told.push(format!("{} of this service", counted(own.len() - NAMED, "more object")));
    }
    let others = |is_leaving: bool| {
        let others = staying
            .transfers
            .others
            .iter()
            .filter(move |(_, holdings)| holdings.is_leaving == is_leaving);
        let holding = others.map(|(service, holdings)| (service, holdings.within(holder)));
        let told = holding.filter(|(_, count)| *count > 0).map(|(service, count)| {
            let noun = if count == 1 { "object" } else { "objects" };
            format!("{count} {noun} of service {service}")
        });
        told.take(NAMED).collect::<Vec<_>>()
    };
    told.extend(others(false));
    if !told.is_empty() {
        return Some(Keep::HoldsStated(told.join(", ")));
    }
    let leaving = others(true);
    (!leaving.is_empty()).then(|| Keep::HoldsLeaving(leaving.join(", ")))
}
