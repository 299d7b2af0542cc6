//! The delivery tables: revisions, bundles, assignments, desired states, agents and their reports.
//!
//! Functions on a connection. Writers pass the [`Tx`](crate::Tx) of [`Store::transact`](crate::Store::transact), so
//! that related rows are committed together; readers pass a connection of [`Store::reader`](crate::Store::reader). Rows
//! are plain data; only the callers know the meaning of their JSON.

/// Reads a struct from the columns of the same names.
macro_rules! from_row {
    ($row:ident, [$($column:ident),*]) => {
        impl<'r> sqlx::FromRow<'r, crate::engine::Row> for $row {
            fn from_row(row: &'r crate::engine::Row) -> Result<Self, sqlx::Error> {
                Ok(Self { $($column: sqlx::Row::try_get(row, stringify!($column))?),* })
            }
        }

        impl crate::rows::Part for $row {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($column)),*];

            fn read(row: &crate::engine::Row, first: usize) -> Result<Self, sqlx::Error> {
                let mut columns = first..;
                Ok(Self { $($column: sqlx::Row::try_get(row, columns.next().unwrap_or_default())?),* })
            }
        }
    };
}

mod agents;
mod assignments;
mod charts;
mod cluster_rows;
mod desired;
mod guards;
mod held_services;
mod history;
mod hook_runs;
mod keys;
mod origins;
mod parameters;
mod paths;
mod pipelines;
mod rollouts;
mod service_rows;
mod set_members;
mod set_versions;
mod sources;
mod threads;

pub use agents::{
    Agent, AgentUpdateRow, JoinToken, Quarantine, RedeemError, Report, change_agent, delete_expired, delete_quarantine,
    delete_report, delete_reports, load_agent, load_agent_of, load_agent_update, load_agent_updates, load_agents,
    load_heartbeats, load_quarantines, load_report, mark_restored, redeem_token, save_agent, save_agent_report,
    save_agent_update, save_heartbeats, save_join_token, save_quarantine, save_report, use_nonce,
};
pub use assignments::{
    Assignment, asks_for_the_same, assignments_named, assignments_of, assignments_of_cluster, assignments_of_namespace,
    assignments_of_source, assignments_unplaced, count_assignments, delete_assignment, is_source_used, load_assignment,
    names_of_services, save_assignment, save_service_secrets, services_gone, services_of_secret, services_under_grants,
    stamp, touched_assignments_of_cluster,
};
pub use charts::{
    ChartRow, LinkedSource, ServiceSource, charts_of_source, delete_chart, linked_source, linked_sources, load_chart,
    load_recipe, save_chart, save_recipe, save_service_sources, services_of_chart, sources_of_service, wanted_charts,
};
pub use cluster_rows::{ClusterRows, load_cluster_rows};
pub use desired::{
    Desired, DirtyMark, clear_mark, delete_cluster, is_desired, load_desired, load_desired_bundles, load_desired_heads,
    load_dirty, mark_all, mark_cluster, raise_all_epochs, save_desired,
};
pub use guards::{
    Released, count_prune_holds, delete_prune_hold, delete_released, load_prune_hold, released_of_cluster,
    save_prune_hold, save_released, settle_prune_holds,
};
pub use held_services::{
    HeldService, delete_held, held_by, held_of_set, held_services, held_until, load_held, save_held,
};
pub use history::{
    VersionRow, dependencies_of, dependents_of, load_history, load_history_bundles, load_newest_version, load_version,
    save_dependencies, save_version, trim_history,
};
pub use hook_runs::{HookRow, delete_hook, load_hooks, load_hooks_of_version, save_hook};
pub use keys::{
    AgentKeys, ClusterKeys, load_agent_keys, load_all_agent_keys, promote_keys, read_cluster_keys, save_agent_keys,
};
pub use origins::{
    ServiceOrigin, SourceOrigin, distrust_sources, load_served, load_service_origin, load_source_origin,
    save_service_origin, save_source_origin, trust_service_origin,
};
pub use parameters::{
    InputVersion, ParameterKey, ParameterRow, Resolved, backend_secrets_of_service, delete_parameters, load_document,
    load_parameters, mark_changed_keys, mark_parameters, parameters_of_cluster, retain_documents, save_document,
    save_parameters, secrets_of_backends, services_handed, troubled_by_backends, versions_of,
};
pub use paths::{
    ServicePath, is_untouched, paths_of_service, save_service_paths, services_concerned, touch_paths, touch_service,
    touch_source,
};
pub use pipelines::{delete_orphaned_pipelines, load_pipeline, save_pipeline};
pub use rollouts::{
    MemberRollout, MemberVersions, RestingMembers, RollingMember, awake_members, delete_rollout, hold_spec,
    load_rollout, page_of_told_members, rolling_members, rollout_of_service, save_evidence, save_generation, save_look,
    save_published, save_rest, save_rollout, save_specs, save_track, told_members, track_of_service,
};
pub use service_rows::{ServiceRows, load_service_rows};
pub use set_members::{
    MemberCounts, SetMember, brake_members, count_members, delete_member, delete_members, load_member, member_named,
    member_of_service, members_of_set, members_on, members_that_left, members_waiting_for, note_ready, page_of_members,
    page_of_step, save_member, sets_of_cluster, sets_of_services, troubled_members,
};
pub use set_versions::{
    load_set_pin, load_set_version, load_set_versions, save_set_pin, save_set_version, some_services_of_set,
    trim_set_versions,
};
pub use sources::{
    Bundle, Revision, Taken, bundle_of_content, bundle_of_digest, delete_revision, load_revision, load_revisions,
    move_revision, save_bundle, save_revision, withdraw_revision,
};
pub use threads::{
    Thread, delay_threads, delete_old_threads, delete_orphaned_threads, delete_thread, delete_threads, due_threads,
    give_up_threads, load_thread, next_due, save_thread, threads_below, waiting_threads,
};

use crate::{ChangeHook, Connection, Operation, Reader, Store, StoreError, Written};
use farwater_api::{ADMIN_NAMESPACE, parameters::ChangedKeys};
use futures::future::BoxFuture;

impl Store {
    /// A read-only connection to these tables.
    pub async fn tables(&self) -> Result<Reader, StoreError> {
        self.connection().await
    }
}

/// Marks the clusters whose desired state depends on a written resource, in the transaction that writes it.
///
/// A service that is new, or that moves to another cluster, marks the cluster when its assignment is written. If an
/// object's keys are parameters of services, only services that use a changed key are marked.
pub struct MarkClusters;

impl ChangeHook for MarkClusters {
    fn mark_changes<'a>(
        &'a self,
        connection: &'a mut Connection,
        changes: &'a [Written],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
        Box::pin(async move {
            for change in changes {
                let is_news = mark_dependents(connection, change).await?;
                mark_handed(connection, change).await?;
                if is_news
                    && change.operation == Operation::Updated
                    && change.key.kind.as_str() == "servicedeployments.farwater.dev"
                {
                    held_services::keep_spec(connection, change).await?;
                }
            }
            Ok(())
        })
    }
}

/// Marks the services that use a changed key.
async fn mark_handed(connection: &mut Connection, change: &Written) -> Result<(), sqlx::Error> {
    let kind = change.key.kind.as_str();
    if !parameters::SOURCES.contains(&kind) {
        return Ok(());
    }
    let changed = match (change.operation, change.before()) {
        (Operation::Updated, Ok(Some(before))) => farwater_api::parameters::changed_keys(kind, &before, &change.object),
        // Without comparable objects every key counts as changed.
        _ => ChangedKeys::Any,
    };
    parameters::mark(connection, kind, &change.key.namespace, &change.key.name, &changed).await
}

/// Marks dependent clusters. Returns whether there were any.
async fn mark_dependents(connection: &mut Connection, change: &Written) -> Result<bool, sqlx::Error> {
    let uid = change.object["metadata"]["uid"].as_str().unwrap_or_default();
    let (select, values) = match change.key.kind.as_str() {
        "servicedeployments.farwater.dev" => {
            let stamp = match change.operation {
                Operation::Deleted => String::new(),
                _ => stamp(&change.object),
            };
            let select = "SELECT cluster_uid, 1 FROM assignments \
                          WHERE service_uid = $1 AND stamp <> $2 AND cluster_uid <> ''";
            (select, [uid.to_owned(), stamp])
        }
        "clusters.farwater.dev" => ("SELECT $1, 1 WHERE $1 <> $2", [uid.to_owned(), String::new()]),
        // The grant's selector may have matched any cluster before. Services of the administrators need no grant.
        "clustergrants.farwater.dev" => {
            let select = "SELECT DISTINCT cluster_uid, 1 FROM assignments WHERE namespace <> $1 AND cluster_uid <> $2";
            (select, [ADMIN_NAMESPACE.to_owned(), String::new()])
        }
        "secrets" => {
            let select = "SELECT DISTINCT cluster_uid, 1 FROM assignments WHERE cluster_uid <> '' AND service_uid IN \
                          (SELECT service_uid FROM service_secrets WHERE namespace = $1 AND secret = $2)";
            (select, [change.key.namespace.clone(), change.key.name.clone()])
        }
        _ => return Ok(false),
    };

    let insert = format!(
        "INSERT INTO dirty (cluster_uid, marks) {select} {}",
        desired::COUNT_MARK
    );
    let [first, second] = values;
    let marked = sqlx::query(sqlx::AssertSqlSafe(insert))
        .bind(first)
        .bind(second)
        .execute(connection)
        .await?;
    Ok(marked.rows_affected() > 0)
}
