//! One row per service: its cluster and source, its candidate, and its assignment.

use std::collections::HashSet;

use super::{
    charts::delete_service_sources,
    guards::delete_prune_hold,
    held_services::delete_held,
    history::{delete_dependencies, delete_history},
    origins::delete_service_origin,
    parameters::delete_parameters,
    paths::delete_service_paths,
};
use crate::{
    Connection, Kind, StoreError,
    rows::{chunks, parameters},
};
use farwater_api::{ADMIN_NAMESPACE, APPROVE_PRUNE, RETRY_HOOK, UNDO};
use serde_json::Value;
use sqlx::{FromRow as _, Row as _};

const SELECT: &str = "SELECT service_uid, namespace, name, cluster_uid, source_uid, generation, stamp, candidate, assigned, \
                      why FROM assignments";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub service_uid: String,
    pub namespace: String,
    pub name: String,
    /// Empty: the reference has no target.
    pub cluster_uid: String,
    /// Empty: the reference has no target.
    pub source_uid: String,
    /// The generation of the service that this row was made for.
    pub generation: i64,
    /// [`stamp`] of the service that this row was made for.
    pub stamp: String,
    /// JSON.
    pub candidate: Option<String>,
    /// JSON.
    pub assigned: Option<String>,
    /// JSON.
    pub why: String,
}

from_row!(
    Assignment,
    [
        service_uid,
        namespace,
        name,
        cluster_uid,
        source_uid,
        generation,
        stamp,
        candidate,
        assigned,
        why
    ]
);

/// The parts of a service's object that decide its entry: objects with the same stamp make the same entry.
pub fn stamp(service: &Value) -> String {
    let metadata = &service["metadata"];
    let annotation = |name: &str| metadata["annotations"][name].as_str().unwrap_or_default();
    let further = |name: &str, mark: &str| match annotation(name) {
        "" => String::new(),
        request => format!(" {mark}{request}"),
    };
    let (undo, retry) = (further(UNDO, ""), further(RETRY_HOOK, "retry="));
    let deleting = metadata["deletionTimestamp"].is_string();
    format!(
        "{} {deleting} {}{undo}{retry}",
        metadata["generation"],
        annotation(APPROVE_PRUNE)
    )
}

/// Whether two stamps name the same generation and deletion state, whatever approvals and requests they contain.
pub fn asks_for_the_same(one: &str, other: &str) -> bool {
    let asked = |stamp| str::split(stamp, ' ').take(2);
    asked(one).eq(asked(other))
}

/// Conditions with an index: the table grows with the number of services and must not be scanned for one of them.
const OF_SERVICE: &str = "service_uid = $1";
const OF_NAME: &str = "namespace = $1 AND name = $2";
const OF_NAMESPACE: &str = "namespace = $1";
const OF_CLUSTER: &str = "cluster_uid = $1";
const OF_SOURCE: &str = "source_uid = $1";
/// Services that use the source in addition to their own.
const OF_FURTHER_SOURCE: &str =
    "service_uid IN (SELECT service_uid FROM service_sources WHERE service_sources.source_uid = $1)";

fn query(condition: &'static str) -> String {
    format!("{SELECT} WHERE {condition} ORDER BY service_uid")
}

async fn select(
    connection: &mut Connection,
    condition: &'static str,
    values: &[&str],
) -> Result<Vec<Assignment>, StoreError> {
    let asked = sqlx::query_as(sqlx::AssertSqlSafe(query(condition)));
    Ok(values
        .iter()
        .fold(asked, |asked, value| asked.bind((*value).to_owned()))
        .fetch_all(connection)
        .await?)
}

pub async fn load_assignment(connection: &mut Connection, service_uid: &str) -> Result<Option<Assignment>, StoreError> {
    Ok(select(connection, OF_SERVICE, &[service_uid]).await?.pop())
}

/// Assignments of these services, in no particular order.
pub async fn assignments_of(
    connection: &mut Connection,
    service_uids: &[String],
) -> Result<Vec<Assignment>, StoreError> {
    let mut found = Vec::with_capacity(service_uids.len());
    for some in chunks(service_uids) {
        let sql = format!("{SELECT} WHERE service_uid IN (VALUES {})", parameters(some.len(), 1));
        let select = sqlx::query_as(sqlx::AssertSqlSafe(sql));
        let rows: Vec<Assignment> = some
            .iter()
            .fold(select, |select, uid| select.bind(uid.as_str()))
            .fetch_all(&mut *connection)
            .await?;
        found.extend(rows);
    }
    Ok(found)
}

pub async fn assignments_of_cluster(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<Vec<Assignment>, StoreError> {
    select(connection, OF_CLUSTER, &[cluster_uid]).await
}

/// The same, and the uids of services whose inputs may have changed since, as of one moment.
pub async fn touched_assignments_of_cluster(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<(Vec<Assignment>, HashSet<String>), StoreError> {
    // Services without paths, or with the empty path.
    const TOUCHED: &str = "COALESCE((SELECT MIN(path) FROM service_paths \
                           WHERE service_paths.service_uid = assignments.service_uid), '') = ''";
    let columns = SELECT.replace(
        " FROM",
        &format!(", CAST(CASE WHEN {TOUCHED} THEN 1 ELSE 0 END AS BIGINT) AS touched FROM"),
    );
    let sql = format!("{columns} WHERE {OF_CLUSTER} ORDER BY service_uid");
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid.to_owned())
        .fetch_all(connection)
        .await?;
    let (mut found, mut touched) = (Vec::with_capacity(rows.len()), HashSet::new());
    for row in &rows {
        let assignment = Assignment::from_row(row)?;
        if row.try_get::<i64, _>("touched")? == 1 {
            touched.insert(assignment.service_uid.clone());
        }
        found.push(assignment);
    }
    Ok((found, touched))
}

/// (service uid, namespace, name) of those of these services that belong to a cluster.
pub async fn names_of_services(
    connection: &mut Connection,
    cluster_uid: &str,
    service_uids: &[&str],
) -> Result<Vec<(String, String, String)>, StoreError> {
    let mut found = Vec::new();
    for some in chunks(service_uids) {
        let sql = format!(
            "SELECT service_uid, namespace, name FROM assignments WHERE (service_uid, cluster_uid) IN (VALUES {})",
            parameters(some.len(), 2)
        );
        let mut select = sqlx::query_as(sqlx::AssertSqlSafe(sql));
        for service_uid in some {
            select = select.bind(*service_uid).bind(cluster_uid);
        }
        found.extend::<Vec<_>>(select.fetch_all(&mut *connection).await?);
    }
    Ok(found)
}

/// Assignments of all services that need a source for any purpose.
pub async fn assignments_of_source(
    connection: &mut Connection,
    source_uid: &str,
) -> Result<Vec<Assignment>, StoreError> {
    let mut rows = select(connection, OF_SOURCE, &[source_uid]).await?;
    let further = select(connection, OF_FURTHER_SOURCE, &[source_uid]).await?;
    rows.extend(further.into_iter().filter(|row| row.source_uid != source_uid));
    Ok(rows)
}

pub async fn assignments_of_namespace(
    connection: &mut Connection,
    namespace: &str,
) -> Result<Vec<Assignment>, StoreError> {
    select(connection, OF_NAMESPACE, &[namespace]).await
}

/// Services whose cluster or source was not found.
pub async fn assignments_unplaced(connection: &mut Connection) -> Result<Vec<Assignment>, StoreError> {
    select(connection, "(cluster_uid = $1 OR source_uid = $1)", &[""]).await
}

/// Rows with a service's name. There may be two while a recreated service follows a deleted one.
pub async fn assignments_named(
    connection: &mut Connection,
    namespace: &str,
    name: &str,
) -> Result<Vec<Assignment>, StoreError> {
    select(connection, OF_NAME, &[namespace, name]).await
}

/// (namespace, name) of every service that needs a grant: those outside the administrators' namespace.
pub async fn services_under_grants(connection: &mut Connection) -> Result<Vec<(String, String)>, StoreError> {
    Ok(
        sqlx::query_as("SELECT namespace, name FROM assignments WHERE namespace <> $1")
            .bind(ADMIN_NAMESPACE)
            .fetch_all(connection)
            .await?,
    )
}

/// (namespace, name) of every row whose service no longer exists.
pub async fn services_gone(connection: &mut Connection, kind: &Kind) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT namespace, name FROM assignments WHERE NOT EXISTS (SELECT 1 FROM resources WHERE resources.kind = $1 \
               AND resources.namespace = assignments.namespace AND resources.name = assignments.name)";
    Ok(sqlx::query_as(sql).bind(kind.as_str()).fetch_all(connection).await?)
}

/// Number of assignments. Reads the whole table.
pub async fn count_assignments(connection: &mut Connection) -> Result<u64, StoreError> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM assignments")
        .fetch_one(connection)
        .await?;
    Ok(count.unsigned_abs())
}

/// Whether a service's assignment may need what a source holds.
pub async fn is_source_used(connection: &mut Connection, source_uid: &str) -> Result<bool, StoreError> {
    for sql in [
        "SELECT 1 FROM assignments WHERE source_uid = $1 LIMIT 1",
        "SELECT 1 FROM service_sources WHERE source_uid = $1 LIMIT 1",
    ] {
        let row: Option<(i64,)> = sqlx::query_as(sql)
            .bind(source_uid)
            .fetch_optional(&mut *connection)
            .await?;
        if row.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub async fn save_assignment(connection: &mut Connection, row: &Assignment) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO assignments \
         (service_uid, namespace, name, cluster_uid, source_uid, generation, stamp, candidate, assigned, why) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
         ON CONFLICT (service_uid) DO UPDATE SET cluster_uid = excluded.cluster_uid, source_uid = excluded.source_uid, \
         generation = excluded.generation, stamp = excluded.stamp, candidate = excluded.candidate, assigned = excluded.assigned, \
         why = excluded.why",
    )
    .bind(&row.service_uid)
    .bind(&row.namespace)
    .bind(&row.name)
    .bind(&row.cluster_uid)
    .bind(&row.source_uid)
    .bind(row.generation)
    .bind(&row.stamp)
    .bind(&row.candidate)
    .bind(&row.assigned)
    .bind(&row.why)
    .execute(connection)
    .await?;
    Ok(())
}

/// Sets the Secrets of its namespace that a service names.
pub async fn save_service_secrets(
    connection: &mut Connection,
    row: &Assignment,
    secrets: &[String],
) -> Result<(), StoreError> {
    delete_service_secrets(connection, &row.service_uid).await?;
    for secret in secrets {
        sqlx::query(
            "INSERT INTO service_secrets (service_uid, namespace, secret) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(&row.service_uid)
        .bind(&row.namespace)
        .bind(secret)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// (namespace, name) of every service that names a Secret.
pub async fn services_of_secret(
    connection: &mut Connection,
    namespace: &str,
    secret: &str,
) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT namespace, name FROM assignments WHERE service_uid IN \
               (SELECT service_uid FROM service_secrets WHERE namespace = $1 AND secret = $2)";
    Ok(sqlx::query_as(sql)
        .bind(namespace)
        .bind(secret)
        .fetch_all(connection)
        .await?)
}

async fn delete_service_secrets(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM service_secrets WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes the row, with everything else that is stored for the service.
pub async fn delete_assignment(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    delete_service_secrets(connection, service_uid).await?;
    delete_service_sources(connection, service_uid).await?;
    delete_service_paths(connection, service_uid).await?;
    delete_dependencies(connection, service_uid).await?;
    delete_history(connection, service_uid).await?;
    delete_service_origin(connection, service_uid).await?;
    delete_prune_hold(connection, service_uid).await?;
    delete_parameters(connection, service_uid).await?;
    delete_held(connection, service_uid).await?;
    sqlx::query("DELETE FROM assignments WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, Store};

    /// SQLite shows the index of a query without any rows; PostgreSQL's choice depends on the number of rows.
    #[tokio::test]
    async fn what_is_asked_about_one_service_reads_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(OpenOptions::new(folder.path().join("hub.db"), [7; 32]))
            .await
            .unwrap();
        let mut tables = store.tables().await.unwrap();
        let questions = [
            (OF_SERVICE, "(service_uid=?)"),
            (OF_NAME, "(namespace=? AND name=?)"),
            (OF_NAMESPACE, "(namespace=?)"),
            (OF_CLUSTER, "(cluster_uid=?)"),
            (OF_SOURCE, "(source_uid=?)"),
            (OF_FURTHER_SOURCE, "(service_uid=?)"),
        ];
        for (condition, index) in questions {
            let sql = format!("EXPLAIN QUERY PLAN {}", query(condition));
            let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(sqlx::AssertSqlSafe(sql))
                .fetch_all(&mut *tables)
                .await
                .unwrap();
            assert!(plan[0].3.contains(index), "{condition}: {plan:?}");
        }
    }
}
