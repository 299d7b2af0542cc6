//! The newest versions of each service, and the dependencies between services.

use std::collections::HashSet;

use farwater_api::Digest;

use super::{desired::parse_digest, hook_runs::delete_hooks_up_to};
use crate::{Connection, StoreError};

/// An assigned version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRow {
    pub service_uid: String,
    pub number: i64,
    /// Digest.
    pub bundle: String,
    /// JSON.
    pub version: String,
}

from_row!(VersionRow, [service_uid, number, bundle, version]);

const SELECT: &str = "SELECT service_uid, number, bundle, version FROM history WHERE service_uid = $1";

/// The versions of a service, newest first.
pub async fn load_history(connection: &mut Connection, service_uid: &str) -> Result<Vec<VersionRow>, StoreError> {
    let sql = format!("{SELECT} ORDER BY number DESC");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid)
        .fetch_all(connection)
        .await?)
}

pub async fn load_newest_version(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Option<VersionRow>, StoreError> {
    let sql = format!("{SELECT} ORDER BY number DESC LIMIT 1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid)
        .fetch_optional(connection)
        .await?)
}

/// The newest version of a service with this bundle.
pub async fn load_version(
    connection: &mut Connection,
    service_uid: &str,
    bundle: &Digest,
) -> Result<Option<VersionRow>, StoreError> {
    let sql = format!("{SELECT} AND bundle = $2 ORDER BY number DESC LIMIT 1");
    let asked = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid)
        .bind(bundle.to_string());
    Ok(asked.fetch_optional(connection).await?)
}

pub async fn save_version(connection: &mut Connection, row: &VersionRow) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO history (service_uid, number, bundle, version) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (service_uid, number) DO UPDATE SET bundle = excluded.bundle, version = excluded.version",
    )
    .bind(&row.service_uid)
    .bind(row.number)
    .bind(&row.bundle)
    .bind(&row.version)
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes all but the newest versions, which are numbered without gaps, and one more version that a rollback may need.
pub async fn trim_history(
    connection: &mut Connection,
    service_uid: &str,
    (newest, but): (i64, i64),
    keep: usize,
) -> Result<(), StoreError> {
    let last = newest.saturating_sub(i64::try_from(keep).unwrap_or(i64::MAX));
    sqlx::query("DELETE FROM history WHERE service_uid = $1 AND number <= $2 AND number <> $3")
        .bind(service_uid)
        .bind(last)
        .bind(but)
        .execute(&mut *connection)
        .await?;
    delete_hooks_up_to(connection, service_uid, last).await
}

pub(super) async fn delete_history(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM history WHERE service_uid = $1")
        .bind(service_uid)
        .execute(&mut *connection)
        .await?;
    delete_hooks_up_to(connection, service_uid, i64::MAX).await
}

/// Every bundle in any history. Walks the index from one bundle to the next, so that a bundle of many services is read
/// once.
pub async fn load_history_bundles(connection: &mut Connection) -> Result<HashSet<Digest>, StoreError> {
    let sql = "WITH RECURSIVE named (bundle) AS (SELECT min(bundle) FROM history UNION ALL \
               SELECT (SELECT min(bundle) FROM history WHERE history.bundle > named.bundle) FROM named \
               WHERE named.bundle IS NOT NULL) SELECT bundle FROM named WHERE bundle IS NOT NULL";
    let rows: Vec<String> = sqlx::query_scalar(sql).fetch_all(connection).await?;
    Ok(rows.iter().map(|text| parse_digest(text)).collect::<Result<_, _>>()?)
}

/// Sets the services of its namespace that a service depends on.
pub async fn save_dependencies(
    connection: &mut Connection,
    service_uid: &str,
    namespace: &str,
    names: &[String],
) -> Result<(), StoreError> {
    delete_dependencies(connection, service_uid).await?;
    for name in names {
        sqlx::query(
            "INSERT INTO service_dependencies (service_uid, namespace, dependency) VALUES ($1, $2, $3) \
             ON CONFLICT DO NOTHING",
        )
        .bind(service_uid)
        .bind(namespace)
        .bind(name)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

pub(super) async fn delete_dependencies(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM service_dependencies WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// The names of the services that a service depends on, as of its last reconciliation.
pub async fn dependencies_of(connection: &mut Connection, service_uid: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT dependency FROM service_dependencies WHERE service_uid = $1 ORDER BY dependency";
    Ok(sqlx::query_scalar(sql).bind(service_uid).fetch_all(connection).await?)
}

/// The names of the services that depend on one.
pub async fn dependents_of(
    connection: &mut Connection,
    namespace: &str,
    name: &str,
) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT assignments.name FROM service_dependencies JOIN assignments \
               ON assignments.service_uid = service_dependencies.service_uid \
               WHERE service_dependencies.namespace = $1 AND service_dependencies.dependency = $2 \
               ORDER BY assignments.name";
    Ok(sqlx::query_scalar(sql)
        .bind(namespace)
        .bind(name)
        .fetch_all(connection)
        .await?)
}
