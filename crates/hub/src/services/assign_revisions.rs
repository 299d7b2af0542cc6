//! assign_revisions: services of a source that moved → assignments.
//!
//! A reconcile observes the service, decides, saves, and follows up. One pure function, `fleet::assignment::decide`, says
//! whether a candidate becomes the assignment. A missing or broken part is a reason to keep the old one; the service's
//! status has that reason.

mod decide;
mod follow_up;
mod observe;
mod remove;
mod save;
mod stated;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use farwater_api::{AGENT_FINALIZER, ServiceDeployment};
use farwater_fleet::assignment::Why;
use farwater_store::{
    Resource, StoreError,
    delivery::{
        Assignment, assignments_named, delete_assignment, delete_report, dependencies_of, load_service_rows,
        mark_cluster,
    },
};
use jiff::Timestamp;

use super::{candidates, dependencies, rows::TypedRow as _};
use crate::{
    guards::approvals::{self, APPROVAL, OVERRIDE},
    memory::seen::News,
    queue::Next,
    replica::Replica,
    resources::{self, Name},
};
use decide::{Outcome, decide_row};
use follow_up::FollowUp;
use observe::{Observed, find_cluster};
use remove::remove_service;
use save::{Making, save_row};
use stated::Stated;

const LONGEST_REST: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A fault of this machine, not of the repository: retried, and not reported in the service's status.
    #[error("gather the files of {service}")]
    Bundle {
        service: Name,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

pub async fn assign_revision(replica: Arc<Replica>, name: Name) -> Result<Next, AssignError> {
    let begun = SystemTime::now();
    let Some((resource, service)) = load_service(&replica, &name).await? else {
        return Ok(Next::OnChange);
    };
    let expiry = match check_annotations(&replica, &name, &resource).await? {
        // The expired annotation was removed just now; that write requeues the service.
        approvals::Standing::Expired => return Ok(Next::OnChange),
        standing => standing.left(),
    };

    let next = if service.metadata.deletion_timestamp.is_some() {
        let row = load_service_rows(&mut *replica.store.tables().await?, &resource.uid)
            .await?
            .assignment;
        let cluster = find_cluster(&replica, &name, &service.spec.cluster_ref, row.as_ref()).await?;
        remove_service(&replica, &name, &resource, service, row, cluster).await?
    } else {
        assign(&replica, &name, resource, service, begun).await?
    };
    Ok(sooner(next, expiry))
}

async fn assign(
    replica: &Arc<Replica>,
    name: &Name,
    resource: Resource,
    service: ServiceDeployment,
    begun: SystemTime,
) -> Result<Next, AssignError> {
    // Set the finalizer before anything is assigned: the resource must stay until its agent has confirmed the removal.
    resources::hold::<ServiceDeployment>(&replica.store, name, &resource, AGENT_FINALIZER).await?;
    let observed = Observed::load(replica, name, resource, service).await?;

    let outcome = decide_row(&observed, Timestamp::now())?;

    let stated = Stated::of(&observed.service).in_set(observed.goes_back());
    let again = stated.next_look(&outcome.next)?;
    let follow_up = FollowUp::plan(&observed, &outcome);
    let (row, next, making) = to_save(observed, outcome)?;
    let Some(is_rewired) = save_row(replica, row, next, making, stated, begun).await? else {
        replica.decide_again(name);
        return Ok(Next::OnChange);
    };

    follow_up.carry_out(replica, name, is_rewired).await?;
    Ok(again)
}

/// Returns the service after it forgot the rows of others of its name. None: it does not exist.
async fn load_service(replica: &Replica, name: &Name) -> Result<Option<(Resource, ServiceDeployment)>, StoreError> {
    let found = resources::load::<ServiceDeployment>(&replica.store, name).await?;
    forget_old_rows(replica, name, found.as_ref().map(|(resource, _)| resource.uid.as_str())).await?;

    let Some((resource, service)) = found else {
        replica.memory.checks.requests.forget(name);
        return Ok(None);
    };
    // Record this object as seen, so that our own writes do not requeue the service. Any other change still does.
    if replica.memory.seen.note_object(&resource.object["metadata"]) > News::Nothing {
        // The write that brought this news has marked the cluster. `route_changes` will find nothing new in its
        // event, so wake `compute_desired` here.
        replica.wake_after_mark();
    }
    Ok(Some((resource, service)))
}

/// Returns the state of the service's approval and override: `Expired` if one of them is, else the time until the first
/// of them expires.
async fn check_annotations(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
) -> Result<approvals::Standing, StoreError> {
    let mut first: Option<Duration> = None;
    for annotation in [&APPROVAL, &OVERRIDE] {
        match annotation.check::<ServiceDeployment>(replica, name, resource).await? {
            approvals::Standing::Expired => return Ok(approvals::Standing::Expired),
            standing => first = first.into_iter().chain(standing.left()).min(),
        }
    }
    Ok(first.map_or(approvals::Standing::None, approvals::Standing::Open))
}

/// The row before, the next one, and the rows beside it.
fn to_save(observed: Observed, outcome: Outcome) -> Result<(Option<Assignment>, Assignment, Making), StoreError> {
    let Observed {
        resource,
        service,
        row,
        ingredients,
        resolved,
        look,
        held,
        ..
    } = observed;
    let Outcome {
        next,
        why,
        closed,
        told,
    } = outcome;

    // Keep the sources of the assigned version too, even if the candidate needs others: its bundle may have to be
    // rebuilt.
    let assigned = next.read_assigned()?;
    let mut wants = resolved.wants;
    wants.extend(assigned.iter().flat_map(candidates::wants_of));

    let is_pinned = service.spec.pin.is_some();
    let making = Making {
        bundle: resolved.bundle,
        wants,
        paths: resolved.paths,
        looked_at: ingredients.first().and_then(|one| one.found.as_ref()?.revision.clone()),
        member: look
            .map(|look| look.end(&why, is_pinned, &resource.object))
            .transpose()?,
        held: Some(held.end(closed.as_ref(), matches!(why, Why::Frozen(_)))),
        told: told.map(|told| (resource, told)),
    };
    Ok((row, next, making))
}

fn sooner(next: Next, wait: Option<Duration>) -> Next {
    match (next, wait) {
        (next, None) => next,
        (Next::OnChange, Some(wait)) => Next::After(wait.min(LONGEST_REST)),
        (Next::After(next), Some(wait)) => Next::After(next.min(wait).min(LONGEST_REST)),
    }
}

/// Deletes the rows of services that are gone without their finalizer, or were recreated under the same name.
async fn forget_old_rows(replica: &Replica, name: &Name, current: Option<&str>) -> Result<(), StoreError> {
    let rows = assignments_named(&mut *replica.store.tables().await?, &name.namespace, &name.name).await?;
    let old: Vec<_> = rows
        .into_iter()
        .filter(|row| Some(row.service_uid.as_str()) != current)
        .collect();
    if old.is_empty() {
        return Ok(());
    }
    let mut freed = Vec::new();
    let forget = replica.store.transact(move |tx| {
        Box::pin(async move {
            for row in old {
                freed.extend(dependencies_of(tx, &row.service_uid).await?);
                delete_assignment(tx, &row.service_uid).await?;
                delete_report(tx, &row.service_uid).await?;
                if !row.cluster_uid.is_empty() {
                    mark_cluster(tx, &row.cluster_uid).await?;
                }
            }
            Ok(freed)
        })
    });
    dependencies::wake(replica, &name.namespace, forget.await?);
    dependencies::wake_dependents(replica, name).await?;
    replica.wake_after_mark();
    Ok(())
}
