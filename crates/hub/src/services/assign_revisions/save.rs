//! Saves a decision: all rows of a service in one transaction, with the mark of its cluster.

use std::time::SystemTime;

use farwater_api::ServiceDeployment;
use farwater_fleet::assignment::Candidate;
use farwater_store::{
    Connection, Resource, StoreError,
    delivery::{
        Assignment, Bundle, Revision, ServicePath, ServiceSource, dependencies_of, load_revision, mark_cluster,
        save_assignment, save_bundle, save_dependencies, save_recipe, save_service_paths, save_service_secrets,
        save_service_sources, sources_of_service,
    },
};
use farwater_telemetry::traces::Interval;

use super::{
    decide::{changes_entry, count_turn, new_version},
    stated::Stated,
};
use crate::{
    memory::timeline::Assigned,
    notify::events::{self, EventText},
    replica::Replica,
    resources::{Name, Stored as _},
    services::{dependencies, held_specs::HeldNext, versions},
    sets::rollouts::Looked,
};

/// The new content of a service, and the sources that it is built from.
#[derive(Debug, Default)]
pub struct Making {
    pub bundle: Option<(Bundle, Option<String>)>,
    pub wants: Vec<ServiceSource>,
    /// Paths whose commits concern the service. None: as before. They count only while the source is still at
    /// `looked_at`.
    pub paths: Option<Vec<ServicePath>>,
    pub looked_at: Option<Revision>,
    /// None: the service is no member of a set.
    pub member: Option<Looked>,
    /// The spec that a window holds, if any.
    pub held: Option<HeldNext>,
    /// The Event to write, and its subject.
    pub told: Option<(Resource, EventText)>,
}

impl Making {
    /// Whether the service's own spec and content wait, for the rollout of its set or for a window.
    fn is_held(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.held) || self.held.as_ref().is_some_and(HeldNext::is_held)
    }

    /// Whether the rows of rollout and windows stay as they are.
    fn is_known(&self) -> bool {
        self.member.as_ref().is_none_or(Looked::is_known) && self.held.as_ref().is_none_or(HeldNext::is_known)
    }

    /// Whether another spec counts from now on.
    fn releases_spec(&self) -> bool {
        self.member.as_ref().is_some_and(|member| member.released)
            || self.held.as_ref().is_some_and(HeldNext::is_released)
    }
}

/// How a decision differs from the rows before it.
struct Changes {
    is_row_new: bool,
    /// The spec differs, and with it the dependencies.
    is_restated: bool,
    /// The service needs other sources, or other paths of them.
    is_rewired: bool,
    /// This service may have been the last user of a source.
    leaves_source: bool,
    /// The new version, if the content differs.
    version: Option<Candidate>,
    /// The agent gets something new.
    is_released: bool,
    /// The cluster's desired state has to be computed.
    marks_cluster: bool,
    /// Uid of the set that has to count this member again.
    moved_in_set: Option<String>,
}

impl Changes {
    fn of(
        old: Option<&Assignment>,
        new: &Assignment,
        making: &Making,
        known_sources: &[ServiceSource],
    ) -> Result<Self, StoreError> {
        let version = new_version(old, new)?;
        let is_released = version.is_some()
            || making.releases_spec()
            || old.map_or(Ok(true), |old| changes_entry(old, new, making.is_held()))?;
        let is_restated = old.is_none_or(|old| old.stamp != new.stamp);

        // An edited spec makes the member one that its set decides again, even if nothing else changes.
        let member = making.member.as_ref();
        let is_news = |member: &&Looked| is_restated || !member.is_known();
        Ok(Self {
            is_row_new: old != Some(new),
            is_restated,
            is_rewired: known_sources != making.wants || making.paths.is_some(),
            leaves_source: known_sources.iter().any(|source| !making.wants.contains(source))
                || old.is_some_and(|old| old.source_uid != new.source_uid),
            marks_cluster: is_released || member.is_some_and(|member| member.is_unresolved),
            moved_in_set: member.filter(is_news).map(|member| member.set_uid.clone()),
            version,
            is_released,
        })
    }
}

/// Writes the row if it differs, and marks the cluster in the same transaction. Returns whether the service needs other
/// sources than before. None: nothing was written, because the member's turn has changed since it was read; the caller
/// requeues the service. `begun`: start of this reconcile.
pub async fn save_row(
    replica: &Replica,
    old: Option<Assignment>,
    mut new: Assignment,
    mut making: Making,
    stated: Stated,
    begun: SystemTime,
) -> Result<Option<bool>, StoreError> {
    if let Some(old) = &old {
        count_turn(old, &mut new, making.member.as_ref(), making.held.as_ref())?;
    }
    making.wants.sort();
    making.wants.dedup();

    let known = sources_of_service(&mut *replica.store.tables().await?, &new.service_uid).await?;
    let changes = Changes::of(old.as_ref(), &new, &making, &known)?;
    if !changes.is_row_new && !changes.is_rewired && making.is_known() {
        return Ok(Some(false));
    }

    let name = Name::new(&new.namespace, &new.name);
    if changes.is_released {
        // Before the commit: the agent may report on the assignment right after it.
        let (source_uid, interval) = (new.source_uid.clone(), Interval::since(begun));
        replica
            .memory
            .timeline
            .note_assignment(&new.service_uid, || Assigned { source_uid, interval });
    }
    let old_cluster = old.map(|old| old.cluster_uid);
    let Some((changes, freed)) = write_rows(replica, old_cluster, new, making, stated, changes).await? else {
        return Ok(None);
    };
    wake_others(replica, &name, &changes, freed).await?;
    Ok(Some(changes.is_rewired))
}

/// Returns the names of services that this one no longer depends on. None: a release was taken back since it was read.
async fn write_rows(
    replica: &Replica,
    old_cluster: Option<String>,
    new: Assignment,
    making: Making,
    stated: Stated,
    changes: Changes,
) -> Result<Option<(Changes, Vec<String>)>, StoreError> {
    let key = ServiceDeployment::key(&Name::new(&new.namespace, &new.name));
    let rollout = making.member.as_ref().map_or(0, |member| member.rollout);
    let clusters = [old_cluster, Some(new.cluster_uid.clone())];
    let saved = replica.store.transact(move |tx| {
        Box::pin(async move {
            // A release that was taken back meanwhile is none.
            if let Some(member) = making.member.as_ref().filter(|_| changes.is_released)
                && !member.is_current(tx).await?
            {
                return Ok(None);
            }
            save_content(tx, making.bundle).await?;
            save_assignment(tx, &new).await?;
            if let Some(member) = making.member {
                member.save(tx, &key).await?;
            }
            if let Some(held) = making.held {
                held.save(tx, &key).await?;
            }
            if let Some((about, told)) = &making.told {
                events::write_event(tx, about, told).await?;
            }

            if changes.is_rewired {
                save_service_sources(tx, &new, &making.wants).await?;
            }
            if let Some(paths) = making.paths {
                save_paths(tx, &new.service_uid, paths, making.looked_at.as_ref()).await?;
            }
            save_service_secrets(tx, &new, &stated.secrets).await?;
            let freed = match changes.is_restated {
                true => replace_dependencies(tx, &new, &stated.depends_on).await?,
                false => Vec::new(),
            };
            if let Some(version) = &changes.version {
                versions::note_assignment(tx, &new.service_uid, version, stated.of_version(rollout)).await?;
            }
            if changes.marks_cluster {
                for uid in clusters.iter().flatten().filter(|uid| !uid.is_empty()) {
                    mark_cluster(tx, uid).await?;
                }
            }
            Ok(Some((changes, freed)))
        })
    });
    saved.await
}

/// Returns the names of services that this one no longer depends on.
async fn replace_dependencies(
    tx: &mut Connection,
    row: &Assignment,
    depends_on: &[String],
) -> Result<Vec<String>, StoreError> {
    let mut freed = dependencies_of(tx, &row.service_uid).await?;
    save_dependencies(tx, &row.service_uid, &row.namespace, depends_on).await?;
    freed.retain(|name| !depends_on.contains(name));
    Ok(freed)
}

async fn save_content(tx: &mut Connection, bundle: Option<(Bundle, Option<String>)>) -> Result<(), StoreError> {
    let Some((bundle, recipe)) = bundle else { return Ok(()) };
    save_bundle(tx, &bundle).await?;
    match recipe {
        Some(recipe) => save_recipe(tx, &bundle.content_id, &recipe).await,
        None => Ok(()),
    }
}

/// Wakes the controllers that depend on the rows of a service, after the commit.
async fn wake_others(replica: &Replica, name: &Name, changes: &Changes, freed: Vec<String>) -> Result<(), StoreError> {
    dependencies::wake(replica, &name.namespace, freed);
    if let Some(version) = &changes.version {
        replica.access.mirrors.cache().pin(version.bundle);
    }
    if changes.leaves_source {
        replica.wake_after_release();
    }
    if let Some(set_uid) = &changes.moved_in_set {
        replica.memory.sets.note_member(set_uid);
    }
    dependencies::wake_dependents(replica, name).await?;
    if changes.marks_cluster {
        replica.wake_after_mark();
    }
    Ok(())
}

/// If the source moved after it was read, that commit was compared with the old paths, not with these. Then any path
/// counts as changed.
async fn save_paths(
    tx: &mut Connection,
    service_uid: &str,
    mut paths: Vec<ServicePath>,
    looked_at: Option<&Revision>,
) -> Result<(), StoreError> {
    if let Some(path) = paths.iter().find(|path| !path.is_all())
        && load_revision(tx, &path.source_uid).await?.as_ref() != looked_at
    {
        paths = vec![ServicePath::all(&path.source_uid)];
    }
    save_service_paths(tx, service_uid, &paths).await
}
