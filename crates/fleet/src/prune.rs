//! Whether objects that left a service's source may be deleted from its cluster.
//!
//! The delete set is the service's own inventory minus a complete render, never "everything with our label". An unusual
//! set waits for an approval that names exactly this set; creates and updates continue meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use farwater_api::{Digest, objects::ObjectRef, service_deployment::HeldPrune};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::{origin::Swap, words::counted};

/// More deletes than this, and than [`SHARE`] of the inventory, are held. A few objects of a small service come and go
/// in one commit; a broken generator loses many.
const FEW: usize = 5;
/// One in this many: 20 %.
const SHARE: usize = 5;
/// Objects that a held prune lists; the report of the objects has all of them.
const LISTED: usize = 10;
/// After a day the cluster may differ from what the approver saw.
pub const APPROVAL_LASTS: SignedDuration = SignedDuration::from_hours(24);

/// Number of objects with names that Kustomize generates, by kind, namespace and the name before the hash.
pub type Generated = BTreeMap<(String, String, String), usize>;

/// Length of the hash that Kustomize appends to the name of a generated ConfigMap or Secret (`hasher.Encode`).
const HASH: usize = 10;
const OF_HASH: &[u8] = b"bcdfghkmt2456789";

/// An object with a generated name, as [`Generated`] counts it.
pub fn generated(object: &ObjectRef) -> Option<(String, String, String)> {
    let is_generated = object.group.is_empty() && matches!(object.kind.as_str(), "ConfigMap" | "Secret");
    let (stem, hash) = object.name.rsplit_once('-').filter(|_| is_generated)?;
    (hash.len() == HASH && hash.bytes().all(|b| OF_HASH.contains(&b)))
        .then(|| (object.kind.clone(), object.namespace.clone(), stem.to_owned()))
}

/// An object that would be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub object: ObjectRef,
    pub uid: String,
    /// Later waves are deleted first.
    pub wave: i32,
    /// Its annotation asks for an approval.
    pub confirm: bool,
    /// It is of the set, and goes once other services that are being removed have nothing in it any more.
    pub waits: bool,
}

/// An approved prune that has begun. The rest of it needs no second approval, however the prune was interrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedPrune {
    /// Digest of the plan that was approved.
    pub plan: Digest,
    /// uids of its objects, except those that the source states again.
    pub uids: BTreeSet<String>,
}

impl ApprovedPrune {
    /// None where the plan follows from no approval.
    pub fn of(plan: &PrunePlan) -> Option<Self> {
        Some(Self {
            plan: plan.approved?,
            uids: uids(&plan.candidates),
        })
    }

    fn covers(&self, candidates: &[Candidate]) -> bool {
        are_among(candidates, &self.uids)
    }
}

/// A held set, and the plans that contained all of it. An approval of one of these plans is valid for the rest, because
/// the person saw each of its objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldSet {
    /// uids of its objects, without those that the source states again.
    pub uids: BTreeSet<String>,
    /// The newest last.
    pub plans: Vec<Digest>,
}

/// Most plans that are remembered for a held set.
const MAX_PLANS: usize = 16;
/// Most of these plans in the status, which must stay small.
const TOLD: usize = 3;
/// Most objects of a remembered set, at 36 bytes each in the inventory. A larger set has only its present plan.
const MAX_REMEMBERED: usize = 5000;

impl HeldSet {
    /// The set to remember after a decision. A set with a new object forgets the earlier plans.
    pub fn after(before: Option<Self>, plan: &PrunePlan) -> Option<Self> {
        match plan.verdict {
            // No decision is made while replacements are missing.
            Verdict::Nothing => return before,
            Verdict::Delete => return None,
            Verdict::Hold(_) if plan.candidates.len() > MAX_REMEMBERED => return None,
            Verdict::Hold(_) => {}
        }
        let held = before.filter(|held| are_among(&plan.candidates, &held.uids));
        let mut plans = held.map(|held| held.plans).unwrap_or_default();
        plans.retain(|digest| *digest != plan.digest);
        plans.push(plan.digest);
        plans.drain(..plans.len().saturating_sub(MAX_PLANS));
        Some(Self {
            uids: uids(&plan.candidates),
            plans,
        })
    }

    /// The newest earlier plans whose approval is valid for the set.
    pub fn earlier(&self) -> Vec<Digest> {
        let before = self.plans.len().saturating_sub(1);
        self.plans[before.saturating_sub(TOLD)..before].to_vec()
    }

    /// Whether an approval is of a plan that held all of these.
    fn is_approved(&self, candidates: &[Candidate], approved: Digest) -> bool {
        self.plans.contains(&approved) && are_among(candidates, &self.uids)
    }
}

/// uids of the objects that are deleted now. A namespace that waits for other services is not among them: objects may be
/// added to it meanwhile, so it needs an approval of its own when its turn comes.
fn uids(candidates: &[Candidate]) -> BTreeSet<String> {
    candidates
        .iter()
        .filter(|candidate| !candidate.waits)
        .map(|candidate| candidate.uid.clone())
        .collect()
}

fn are_among(candidates: &[Candidate], uids: &BTreeSet<String>) -> bool {
    candidates
        .iter()
        .filter(|candidate| !candidate.waits)
        .all(|candidate| uids.contains(&candidate.uid))
}

/// Why objects leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// They left the source.
    Sync,
    /// The service was deleted with policy Delete: an empty desired set and a large delete set are the purpose;
    /// protected kinds still wait for an approval.
    Removal,
}

/// The inputs of the guards.
#[derive(Clone, Copy, Debug)]
pub struct Guards<'a> {
    pub purpose: Purpose,
    /// Objects that the complete render holds.
    pub desired: usize,
    /// Objects of the inventory when the service was last in sync: the share is a share of these.
    pub inventory: usize,
    /// Objects of the source with generated names. A deleted object counts as replaced, not lost, if the source states
    /// another one with the same generated name.
    pub generated: &'a Generated,
    /// Objects of the render that are not applied. While a replacement is missing, what it replaces stays.
    pub unapplied: usize,
    /// Digest of the plan that was approved.
    pub approved: Option<Digest>,
    /// The approved prune that was last begun.
    pub begun: Option<&'a ApprovedPrune>,
    /// The set that was held last.
    pub was_held: Option<&'a HeldSet>,
    /// What holds a prune whatever it takes.
    pub held: &'a [HoldReason],
}

impl Guards<'_> {
    /// Whether an approval that stands is of them, or of what they are left of.
    fn is_approved(&self, candidates: &[Candidate], digest: Digest) -> bool {
        let Some(approved) = self.approved else { return false };
        approved == digest
            || self
                .begun
                .is_some_and(|begun| approved == begun.plan && begun.covers(candidates))
            || self.was_held.is_some_and(|held| held.is_approved(candidates, approved))
    }
}

/// Why a prune waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldReason {
    EmptyRender,
    TooMany {
        deletes: usize,
        /// Number of them that others of the same generated name replace.
        replaced: usize,
        inventory: usize,
    },
    /// Of a kind whose deletion always needs an approval.
    Protected(ObjectRef),
    /// An object whose annotation asks for an approval.
    Confirm(ObjectRef),
    Unapplied(usize),
    /// The source is not the one that the objects came from.
    Swapped(Swap),
    /// The hub holds all prunes, for this reason.
    Hub(String),
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyRender => f.write_str("the source holds no objects any more"),
            Self::TooMany {
                deletes,
                replaced: 0,
                inventory,
            } => {
                write!(f, "{deletes} of {} would be deleted", counted(*inventory, "object"))
            }
            Self::TooMany {
                deletes,
                replaced,
                inventory,
            } => {
                write!(
                    f,
                    "{deletes} of {} would be deleted, and {replaced} of them replaced by others of their kinds",
                    counted(*inventory, "object")
                )
            }
            Self::Protected(object) => write!(f, "{object} is of a protected kind"),
            Self::Confirm(object) => write!(f, "{object} has an annotation that asks for an approval"),
            Self::Swapped(swap) => swap.fmt(f),
            Self::Hub(reason) => f.write_str(reason),
            Self::Unapplied(1) => f.write_str("1 object of the source is not applied yet"),
            Self::Unapplied(n) => write!(f, "{n} objects of the source are not applied yet"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is nothing to delete.
    Nothing,
    Delete,
    Hold(Vec<HoldReason>),
}

/// A delete set with its verdict. Immutable: the digest names exactly these objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrunePlan {
    /// sha256 over the sorted lines `group/kind namespace/name uid`.
    pub digest: Digest,
    pub candidates: Vec<Candidate>,
    pub verdict: Verdict,
    /// The approval that it follows from: of this plan, or of one that held all of it and more.
    pub approved: Option<Digest>,
}

impl PrunePlan {
    /// The objects to delete now, if the verdict is to delete.
    pub fn going(&self) -> Vec<Candidate> {
        self.candidates
            .iter()
            .filter(|candidate| !candidate.waits)
            .cloned()
            .collect()
    }

    /// What status shows while the set is held.
    pub fn held(&self) -> Option<HeldPrune> {
        let Verdict::Hold(reasons) = &self.verdict else {
            return None;
        };
        let told: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        Some(HeldPrune {
            digest: self.digest,
            reason: told.join("; "),
            count: u32::try_from(self.candidates.len()).unwrap_or(u32::MAX),
            objects: self.candidates.iter().take(LISTED).map(|c| c.object.clone()).collect(),
            contents: Vec::new(),
            until_applied: reasons.iter().all(|reason| matches!(reason, HoldReason::Unapplied(_))),
            earlier: Vec::new(),
        })
    }
}

/// Kinds whose deletion also deletes other objects or data.
pub fn holds_others(object: &ObjectRef) -> bool {
    matches!(
        (object.group.as_str(), object.kind.as_str()),
        ("", "Namespace" | "PersistentVolume" | "PersistentVolumeClaim")
            | ("apps", "StatefulSet")
            | ("apiextensions.k8s.io", "CustomResourceDefinition")
    )
}

/// Kinds whose deletion always needs an approval: those that hold others, and those whose loss changes rights or rules
/// of the whole cluster. A Secret is not one, because its tombstone restores it completely.
pub fn is_protected(object: &ObjectRef) -> bool {
    let is_of_all = matches!(
        (object.group.as_str(), object.kind.as_str()),
        ("rbac.authorization.k8s.io", "ClusterRole" | "ClusterRoleBinding")
            | (
                "admissionregistration.k8s.io",
                "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration"
            )
    );
    is_of_all || holds_others(object)
}

/// Kinds that own pods. Such an object counts as gone only when its pods have ended; otherwise objects that the pods
/// need would be deleted first.
pub fn owns_pods(object: &ObjectRef) -> bool {
    matches!(
        (object.group.as_str(), object.kind.as_str()),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
            | ("batch", "Job" | "CronJob")
            | ("", "ReplicationController")
    )
}

/// The digest that an approval of this set names.
pub fn digest_of(candidates: &[Candidate]) -> Digest {
    let mut lines: Vec<String> = candidates
        .iter()
        .map(|c| {
            let o = &c.object;
            format!("{}/{} {}/{} {}\n", o.group, o.kind, o.namespace, o.name, c.uid)
        })
        .collect();
    lines.sort_unstable();
    Digest::of(lines.concat())
}

/// Decides on a delete set. All of it is deleted or all of it waits: deleting a part would change the set that people
/// see.
pub fn decide(mut candidates: Vec<Candidate>, guards: &Guards<'_>) -> PrunePlan {
    candidates.sort_by(|a, b| a.object.cmp(&b.object).then_with(|| a.uid.cmp(&b.uid)));
    let digest = digest_of(&candidates);
    let approved = guards.approved.filter(|_| guards.is_approved(&candidates, digest));
    let verdict = if candidates.iter().all(|candidate| candidate.waits) {
        Verdict::Nothing
    } else if approved.is_some() {
        Verdict::Delete
    } else {
        match hold_reasons(&candidates, guards) {
            reasons if reasons.is_empty() => Verdict::Delete,
            reasons => Verdict::Hold(reasons),
        }
    };
    PrunePlan {
        digest,
        candidates,
        verdict,
        approved,
    }
}

/// Number of objects that no other object with the same generated name replaces.
fn count_lost(candidates: &[Candidate], stated: &Generated) -> usize {
    let mut left = stated.clone();
    let is_replaced = |candidate: &&Candidate| {
        let others = generated(&candidate.object).and_then(|name| left.get_mut(&name));
        others.filter(|count| **count > 0).map(|count| *count -= 1).is_some()
    };
    candidates.len() - candidates.iter().filter(is_replaced).count()
}

fn hold_reasons(candidates: &[Candidate], guards: &Guards<'_>) -> Vec<HoldReason> {
    let mut reasons = guards.held.to_vec();
    if guards.purpose == Purpose::Sync {
        let (deletes, inventory) = (candidates.len(), guards.inventory);
        let lost = count_lost(candidates, guards.generated);
        if guards.desired == 0 {
            reasons.push(HoldReason::EmptyRender);
        } else if lost * 2 > inventory || (lost > FEW && lost * SHARE > inventory) {
            reasons.push(HoldReason::TooMany {
                deletes,
                replaced: deletes - lost,
                inventory,
            });
        }
        if guards.unapplied > 0 {
            reasons.push(HoldReason::Unapplied(guards.unapplied));
        }
    }
    if let Some(protected) = candidates.iter().find(|c| is_protected(&c.object)) {
        reasons.push(HoldReason::Protected(protected.object.clone()));
    }
    if let Some(asking) = candidates.iter().find(|c| c.confirm) {
        reasons.push(HoldReason::Confirm(asking.object.clone()));
    }
    reasons
}

#[cfg(test)]
#[path = "prune_tests.rs"]
mod tests;
