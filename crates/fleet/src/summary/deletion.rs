//! The last deletion of a service's objects, as its status shows it.

use farwater_api::{
    Digest,
    deletion::{Deletion, LastDeletion},
    protocol::Action,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Inputs;

/// The deletion with the name of its approver. The approval is removed later, so the name is kept with the deletion.
/// None: the reported time is no time.
pub(super) fn sign_deletion(inputs: &Inputs<'_>, deletion: Deletion) -> Option<LastDeletion> {
    let time = Time(Timestamp::from_second(deletion.time).ok()?);
    let known = inputs.previous.last_deletion.as_ref();
    let known = known.filter(|known| known.digest == deletion.digest && known.time == time);
    let approved = match inputs.action {
        Action::Apply(deployment) => deployment.approved_prune,
        Action::Remove { approved_prune, .. } => *approved_prune,
        Action::Hold { .. } | Action::Unreadable(_) => None,
    };
    let is_its = |plan: Digest| plan == deletion.digest || Some(plan) == deletion.approved_plan;
    let approver = inputs
        .previous
        .approved_by
        .as_ref()
        .filter(|_| approved.is_some_and(is_its));
    let approved_by = known
        .and_then(|known| known.approved_by.clone())
        .or_else(|| approver.cloned());
    let Deletion {
        digest,
        time: _,
        count,
        objects,
        lost,
        approved_plan,
        undone,
    } = deletion;
    Some(LastDeletion {
        digest,
        time,
        count,
        objects,
        lost,
        approved_plan,
        approved_by,
        undone,
    })
}

/// Drops one example. False: none is left.
pub(super) fn shorten_deletion(deletion: &mut LastDeletion) -> bool {
    deletion.objects.pop().is_some()
        || deletion
            .undone
            .as_mut()
            .is_some_and(|undone| undone.failures.pop().is_some())
}
