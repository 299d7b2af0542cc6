//! stamp_services: ServiceSets and the clusters that they select → ServiceDeployments.
//!
//! Rows say which services a set owns. A row and its service are written in one transaction. A cluster that can't be
//! read, or for which the template has no value, keeps its service. A cluster that the selector no longer matches loses
//! it, unless many do at once.

mod leave;
mod stamper;
mod status;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use farwater_api::{SET_FINALIZER, ServiceSet};
use farwater_fleet::{conditions::Verdict, freeze::WINDOW, rollout::Policy, stamping::Template};
use farwater_store::{Resource, StoreError, delivery::held_of_set};

use super::{rollouts, set_versions};
use crate::{
    guards::approvals::{self, OVERRIDE},
    memory::sets::Scope,
    queue::Next,
    replica::Replica,
    resources::{self, Name},
    services::{SourceUrls, load_grants_for},
};

pub use leave::find_brake;
use leave::{let_go, remove_set};
pub use stamper::{ClusterPages, Stamper, Step};
use status::{Tally, judge, write_status};

const NOT_LOADED: Duration = Duration::from_millis(200);

/// Rollouts count in whole seconds.
const SOON: Duration = Duration::from_millis(500);

const LONGEST_REST: Duration = Duration::from_secs(60);

pub async fn stamp_services(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    // Before clusters are loaded, an unknown cluster may well exist.
    if !replica.memory.clusters.is_loaded() {
        return Ok(Next::After(NOT_LOADED));
    }
    let scope = replica.memory.sets.take(&name);
    let stamped = stamp_set(&replica, &name, &scope).await;
    if stamped.is_err() {
        replica.memory.sets.put_back(&name, scope);
    }
    stamped
}

async fn stamp_set(replica: &Replica, name: &Name, scope: &Scope) -> Result<Next, StoreError> {
    let sets = &replica.memory.sets;
    let Some((resource, set)) = resources::load::<ServiceSet>(&replica.store, name).await? else {
        sets.forget(name);
        return Ok(Next::OnChange);
    };
    if set.metadata.deletion_timestamp.is_some() {
        return remove_set(replica, name, &resource, &set).await;
    }

    sets.know(name, &resource.uid, &set.spec.cluster_selector);
    let overridden = OVERRIDE.check::<ServiceSet>(replica, name, &resource).await?;
    match overridden {
        approvals::Standing::None => {}
        // The expired annotation was removed just now; that write requeues the set.
        approvals::Standing::Expired => return Ok(Next::OnChange),
        approvals::Standing::Open(_) => requeue_held(replica, &resource.uid).await?,
    }

    resources::hold::<ServiceSet>(&replica.store, name, &resource, SET_FINALIZER).await?;
    let kept = set_versions::apply_pin(&mut *replica.store.tables().await?, &resource.uid, set.clone()).await?;
    let set = match kept {
        Ok(kept) => kept,
        Err(problem) => {
            let why = ("VersionMissing", format!("spec.pin.version: {problem}"));
            return stall(replica, name, (&resource, &set), why).await;
        }
    };

    // The pinned version may have another template.
    let is_turned = set_versions::follow_pin(replica, &resource.uid, &set).await?;
    let scope = if is_turned { &Scope::All } else { scope };
    if let Err(why) = stamp_clusters(replica, name, (&resource, &set), scope).await? {
        return stall(replica, name, (&resource, &set), ("SpecInvalid", why)).await;
    }

    let has_left = let_go(replica, name, &resource, &set).await?;
    let begun = Instant::now();
    let advance = rollouts::advance(replica, name, (&resource, &set), scope).await?;
    sets.rest_after(name, begun.elapsed());
    if advance.is_none() && Policy::of(&set.spec.rollout).is_ok() {
        // The set was changed meanwhile. That change requeues it, and a status of the old spec would be stale.
        return Ok(Next::OnChange);
    }

    let tally = Tally::load(replica, &resource.uid).await?;
    let verdicts = judge(replica, &set, &tally, advance.as_ref());
    let next_look = advance.as_ref().and_then(|advance| advance.next_look);
    write_status(replica, name, (&resource, &set), (tally, verdicts, advance)).await?;

    let waits = [
        has_left.then(|| Duration::from_secs(WINDOW.as_secs().unsigned_abs() + 1)),
        // Requeue early enough for clocks that are set and clusters that fall silent.
        next_look.map(|time| until(replica, time).clamp(SOON, LONGEST_REST)),
        overridden.left(),
    ];
    Ok(waits.into_iter().flatten().min().map_or(Next::OnChange, Next::After))
}

/// Creates and changes the services of a set, or says what is wrong with its template.
async fn stamp_clusters(
    replica: &Replica,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    scope: &Scope,
) -> Result<Result<(), String>, StoreError> {
    let template = match Template::read(&name.name, &set.spec) {
        Ok(template) => template,
        // A hub that accepted other expressions wrote this spec.
        Err(problems) => {
            let told = problems
                .iter()
                .map(|problem| format!("spec.{}: {}", problem.field, problem.why));
            return Ok(Err(told.collect::<Vec<_>>().join("; ")));
        }
    };
    let mut stamper = Stamper {
        replica,
        name,
        set_uid: &resource.uid,
        set,
        template,
        grants: load_grants_for(&replica.store, &name.namespace).await?,
        urls: SourceUrls::default(),
    };
    stamper.stamp_scope(scope).await.map(Ok)
}

/// Requeues the services of a set that wait for a change window.
async fn requeue_held(replica: &Replica, set_uid: &str) -> Result<(), StoreError> {
    let held = held_of_set(&mut *replica.store.tables().await?, set_uid).await?;
    replica.wake_after_hold(held.into_iter().map(Name::from));
    Ok(())
}

/// Writes why the services of a set can't be known. Nothing is created and nothing is deleted.
async fn stall(
    replica: &Replica,
    name: &Name,
    (resource, set): (&Resource, &ServiceSet),
    (reason, message): (&'static str, String),
) -> Result<Next, StoreError> {
    let verdicts = Verdict::stalled(reason, message);
    let tally = Tally::load(replica, &resource.uid).await?;
    write_status(replica, name, (resource, set), (tally, verdicts, None)).await?;
    Ok(Next::OnChange)
}

/// The time from now until `time`, in seconds since 1970. Zero: it is over.
fn until(replica: &Replica, time: i64) -> Duration {
    let left = time.saturating_sub(replica.clock.now().as_second());
    Duration::from_secs(left.max(0).unsigned_abs())
}

pub fn cluster_name(replica: &Replica, uid: &str) -> Option<String> {
    replica
        .memory
        .clusters
        .get(uid)
        .map(|state| format!("{}/{}", state.namespace, state.name))
}
