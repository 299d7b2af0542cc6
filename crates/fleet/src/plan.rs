//! The sync plan: the steps that bring a cluster to what a service's source states, and the reasons for what is left
//! out.
//!
//! [`resolve`] turns rendered manifests into the exact objects to send. The edge looks them up in the cluster. [`plan`]
//! compares both with the inventory. The executor decides nothing.

pub mod around;
pub mod differences;
pub mod fields;
pub mod hooks;
mod ignored;
mod judge;
mod leaving;
pub mod namespaces;
pub mod options;
mod reasons;
mod resolve;
pub mod veil;
pub mod waves;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use farwater_api::{Digest, FIELD_MANAGER, objects::ObjectRef};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::ownership::ObjectKey;
use crate::{
    origin::Origin,
    prune::{self, ApprovedPrune, Candidate, Generated, Guards, HeldSet, HoldReason, PrunePlan, Purpose},
    transfer::Transfers,
};
use judge::{Judgement, judge};
use leaving::{Staying, judge_leaving, sort_leaving};
use options::Protection;
pub use reasons::{Forget, Keep, Left, Refusal, Skip, SkipReason, Wait, Writer};
pub use resolve::{
    Again, Resolved, ResolvedObject, Scopes, Terms, check_ceiling, is_aggregated, resolve, settle, stage_of,
};

/// Rendered manifests of one folder of a bundle.
#[derive(Clone, Debug)]
pub struct Render {
    pub objects: Vec<RenderedObject>,
    /// Files that could not be read. Empty: the render is complete. Only a complete render may lead to deletes.
    pub errors: Vec<String>,
}

/// One manifest as the source states it.
#[derive(Clone, Debug)]
pub struct RenderedObject {
    pub manifest: Value,
    /// File and document number, for messages.
    pub origin: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    Cluster,
    Namespaced,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl From<&ObjectRef> for GroupVersionKind {
    fn from(object: &ObjectRef) -> Self {
        Self {
            group: object.group.clone(),
            version: object.version.clone(),
            kind: object.kind.clone(),
        }
    }
}

/// What the agent remembers of an object that it applied or was about to apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryEntry {
    #[serde(flatten)]
    pub object: ObjectRef,
    /// None until the object was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Hash of the last applied manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Digest>,
    /// Hash of the fields that we owned afterwards, see [`owned_fields`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Digest>,
    /// The object existed before and no service of ours owned it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// Its deletion has passed the guards. Written before the first delete, so that an attempt that was killed half-way
    /// is finished instead of being judged again on what is left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doomed: bool,
    /// A Job that was observed complete and that its time to live may delete: it counts as done, also when it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
    /// A Job that has failed, or that others deleted before it was complete: where it is missing it has not gone by its time to live.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// See [`differences::overruled`]. Kept because nothing tells it again while the object stays as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overruled: Vec<String>,
}

/// A service's inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    pub entries: BTreeMap<ObjectKey, InventoryEntry>,
    /// Number of objects when the service was last in sync with nothing left to prune: the guards' shares are shares of
    /// this. An interrupted attempt grows the inventory, which must not widen the guards. 0 before the first time.
    pub baseline: usize,
    /// Origin of the objects when the service was last in sync.
    pub origin: Option<Origin>,
    /// The approved prune that was last begun.
    pub approved: Option<ApprovedPrune>,
    /// What waits for an approval.
    pub held: Option<HeldSet>,
}

impl Inventory {
    /// Records that the source states the object again: an earlier approved prune no longer includes it.
    pub fn state_again(&mut self, key: &ObjectKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.doomed = false;
        let Some(uid) = &entry.uid else { return };
        for uids in self
            .approved
            .iter_mut()
            .map(|it| &mut it.uids)
            .chain(self.held.iter_mut().map(|it| &mut it.uids))
        {
            uids.remove(uid);
        }
    }

    /// Returns begun deletions to the guards to be judged again. Returns whether there were any.
    pub fn spare_doomed(&mut self) -> bool {
        let mut spared = false;
        for entry in self.entries.values_mut() {
            spared |= std::mem::take(&mut entry.doomed);
        }
        spared
    }

    /// Adds entries that were created elsewhere; existing ones stay.
    pub fn take_in(&mut self, entries: Vec<InventoryEntry>) {
        for entry in entries {
            self.entries.entry(ObjectKey::from(&entry.object)).or_insert(entry);
        }
    }
}

/// What the cluster holds under an object's name. A failed lookup never counts as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Live {
    Unknown(String),
    /// The service account may not read it.
    Forbidden(String),
    Absent,
    Present(LiveObject),
}

/// The part of a live object's metadata that decisions need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveObject {
    pub uid: String,
    pub resource_version: String,
    /// The owner annotation, unverified.
    pub owner: Option<String>,
    pub service_label: Option<String>,
    /// See [`owned_fields`].
    pub fields: Option<Digest>,
    pub deleting: bool,
    /// Details of a deletion in progress. None: it is not being deleted.
    pub ending: Option<Box<Ending>>,
    /// A client-side tool applied it, or we wrote it other than by an apply. Its fields must be moved to our apply
    /// manager first; otherwise fields that leave the source would never be removed.
    pub moves: bool,
    /// From its current annotations, because people protect live objects.
    pub protection: Box<Protection>,
    /// The wave that its annotations name. 0: they name none, or none that can be read.
    pub wave: i32,
    /// A Job that its controller has called complete.
    pub completed: bool,
}

/// A deletion in progress, and what it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The `deletionTimestamp`.
    pub since: String,
    pub finalizers: Vec<String>,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "since {}", self.since)?;
        match self.finalizers.as_slice() {
            [] => Ok(()),
            [one] => write!(f, "; waits for finalizer {one}"),
            more => write!(f, "; waits for finalizers {}", more.join(", ")),
        }
    }
}

/// Objects that others keep changing back, and the writer if known. They are left alone for a while.
pub type Cooling = BTreeMap<ObjectKey, Option<Box<Writer>>>;

/// All inputs of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    pub service_uid: &'a str,
    pub prune: bool,
    pub approved_prune: Option<Digest>,
    pub resolved: &'a Resolved,
    pub inventory: &'a Inventory,
    /// Lookups of every resolved object and every object of the inventory.
    pub live: &'a BTreeMap<ObjectKey, Live>,
    /// Services on this cluster: uid → `namespace/name`.
    pub services: &'a BTreeMap<String, String>,
    pub cooling: &'a Cooling,
    /// Whether the target namespace exists. None: unknown.
    pub target_namespace_exists: Option<bool>,
    /// Why the hub holds every prune. None: it does not.
    pub hold_prune: Option<&'a str>,
    /// Where the source's objects come from.
    pub origin: Option<&'a Origin>,
    pub transfers: &'a Transfers,
}

/// Reasons that hold a prune whatever it deletes: the hub's, and another origin than that of the objects.
pub fn hold_reasons(inventory: &Inventory, origin: Option<&Origin>, hold_prune: Option<&str>) -> Vec<HoldReason> {
    let swap = match (&inventory.origin, origin) {
        (Some(before), Some(now)) => before.swapped_for(now),
        _ => None,
    };
    let swap = swap.map(HoldReason::Swapped);
    // The hub detects the same swap and states it in the same words.
    let said = swap.as_ref().map(ToString::to_string);
    let hub = hold_prune.filter(|reason| said.as_deref() != Some(*reason));
    hub.map(|reason| HoldReason::Hub(reason.to_owned()))
        .into_iter()
        .chain(swap)
        .collect()
}

/// The steps to take, in order. Immutable and printable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The target namespace, if it is missing and not in the source. It is created and never pruned.
    pub create_namespace: Option<String>,
    /// The stages of all waves, in order. New objects of a wave wait until all earlier ones are healthy, see
    /// [`waves::holder`].
    pub waves: Vec<Wave>,
    /// Already as desired: not sent again.
    pub unchanged: Vec<ObjectKey>,
    /// Changed or deleted by others: reported, not corrected.
    pub drifted: Vec<ObjectKey>,
    pub skipped: Vec<Skip>,
    /// Deletes that passed the guards in an earlier attempt.
    pub doomed: Vec<Candidate>,
    /// Being deleted already: objects that are deleted after them wait.
    pub going: Vec<Candidate>,
    /// Deletes that this plan adds, judged as if every change succeeded.
    pub prune: PrunePlan,
    /// Objects of the inventory that are neither desired nor deleted now, with the reason.
    pub kept: Vec<(ObjectKey, Keep)>,
    /// Entries of the inventory whose objects are gone or no longer ours.
    pub forgotten: Vec<(ObjectKey, Forget)>,
}

/// One stage of a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    pub number: i32,
    pub stage: Stage,
    pub changes: Vec<Change>,
}

/// Stages of a wave. Each is applied, and its definitions are usable, before the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Namespaces,
    Definitions,
    /// Objects that workloads refer to: accounts, roles, configuration, quotas, storage.
    Foundations,
    /// Objects that run pods.
    Workloads,
    /// Services, routes, autoscalers and all custom resources, whose controller is often a workload of the stage
    /// before.
    Rest,
    /// Webhooks and aggregated APIs. Their backends must run before they intercept requests.
    Interceptors,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub object: ObjectKey,
    pub cause: Cause,
    /// A client-side tool applied it before: migrate its field manager first.
    pub migrate: bool,
    /// Objects of this plan that must be applied before this one.
    pub needs: Vec<ObjectKey>,
    /// uid of the live object, which is proven to be ours: it may be deleted and recreated if it can't be changed.
    pub recreate: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Create,
    /// It was applied with this manifest and is gone: others deleted it.
    Restore,
    /// The manifest differs from the last applied one.
    Update,
    /// The live object differs from what was last applied.
    Drift,
    /// It exists and no service of ours owns it.
    Adopt,
    /// Like [`Self::Adopt`], but only if applying changes nothing.
    AdoptUnchanged,
}

impl Cause {
    /// Whether it restores what was applied before, and so waits for no wave.
    pub fn is_repair(self) -> bool {
        matches!(self, Self::Restore | Self::Drift)
    }

    pub fn is_adoption(self) -> bool {
        matches!(self, Self::Adopt | Self::AdoptUnchanged)
    }
}

/// Hash of the fields that the agent owns in `managedFields`. None: it owns none. When another manager writes one of
/// our values, it takes over that field, so an equal hash means that every value we applied is still in place. Fields
/// that the object's own annotation ignores don't count.
pub fn owned_fields(metadata: &Value) -> Option<Digest> {
    let entry = metadata["managedFields"].as_array()?.iter().find(|entry| {
        entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
    })?;
    let ignored = options::live_pointers(metadata);
    if ignored.is_empty() {
        return Some(Digest::of_json(&entry["fieldsV1"]));
    }
    Some(Digest::of_json(&differences::without_fields(
        &entry["fieldsV1"],
        &ignored,
    )))
}

/// Compares the source with the cluster. Deterministic: the same input gives the same plan.
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut waves: BTreeMap<(i32, Stage), Vec<Change>> = BTreeMap::new();
    let (mut unchanged, mut drifted) = (Vec::new(), Vec::new());
    let mut skipped = input.resolved.skipped.clone();
    for object in &input.resolved.objects {
        match judge(input, object) {
            Judgement::Change(change) => waves.entry((object.wave, object.stage)).or_default().push(change),
            Judgement::Unchanged => unchanged.push(object.key()),
            Judgement::Drifted => drifted.push(object.key()),
            Judgement::Skip(reason) => skipped.push(Skip {
                object: object.object.clone(),
                wave: object.wave,
                reason,
            }),
        }
    }

    let held = hold_reasons(input.inventory, input.origin, input.hold_prune);
    let leaving = judge_leaving(input, !held.is_empty());
    let guards = Guards {
        generated: &input.resolved.generated(),
        purpose: Purpose::Sync,
        desired: input.resolved.stated(),
        inventory: baseline(input.inventory),
        unapplied: skipped.iter().filter(|s| s.reason.is_unapplied()).count(),
        approved: input.approved_prune,
        begun: input.inventory.approved.as_ref(),
        was_held: input.inventory.held.as_ref(),
        held: &held,
    };
    Plan {
        create_namespace: namespace_to_create(input),
        waves: waves
            .into_iter()
            .map(|((number, stage), changes)| Wave { number, stage, changes })
            .collect(),
        unchanged,
        drifted,
        skipped,
        doomed: leaving.doomed,
        going: leaving.going,
        prune: prune::decide(leaving.candidates, &guards),
        kept: leaving.kept,
        forgotten: leaving.forgotten,
    }
}

/// The plan of a service that was deleted with policy Delete: every object of its inventory goes.
pub fn plan_removal(
    service_uid: &str,
    inventory: &Inventory,
    live: &BTreeMap<ObjectKey, Live>,
    approved_prune: Option<Digest>,
    transfers: &Transfers,
) -> Plan {
    let staying = Staying {
        keep: None,
        stated: BTreeSet::new(),
        transfers,
    };
    let leaving = sort_leaving(
        service_uid,
        inventory,
        live,
        inventory.entries.keys(),
        Purpose::Removal,
        &staying,
    );
    let guards = Guards {
        generated: &Generated::new(),
        purpose: Purpose::Removal,
        desired: 0,
        inventory: baseline(inventory),
        unapplied: 0,
        approved: approved_prune,
        begun: inventory.approved.as_ref(),
        was_held: inventory.held.as_ref(),
        held: &[],
    };
    Plan {
        create_namespace: None,
        waves: Vec::new(),
        unchanged: Vec::new(),
        drifted: Vec::new(),
        skipped: Vec::new(),
        doomed: leaving.doomed,
        going: leaving.going,
        prune: prune::decide(leaving.candidates, &guards),
        kept: leaving.kept,
        forgotten: leaving.forgotten,
    }
}

/// The number that the guards count against. Before the first complete sync this is the size of the inventory.
pub fn baseline(inventory: &Inventory) -> usize {
    if inventory.baseline == 0 {
        inventory.entries.len()
    } else {
        inventory.baseline
    }
}

fn namespace_to_create(input: &PlanInput<'_>) -> Option<String> {
    let target = &input.resolved.target_namespace;
    let stated = input
        .resolved
        .stated_keys()
        .any(|k| k.group().is_empty() && k.kind() == "Namespace" && k.name() == *target);
    let used = input.resolved.objects.iter().any(|o| o.object.namespace == *target);
    (used && !stated && input.target_namespace_exists == Some(false)).then(|| target.clone())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
