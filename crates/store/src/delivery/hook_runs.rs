//! Hooks and tests of the stored versions.

use crate::{Connection, StoreError};

/// The last run of one hook for one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookRow {
    pub service_uid: String,
    /// Number of the version.
    pub number: i64,
    pub hook: String,
    /// Digest.
    pub run: String,
    pub body: Vec<u8>,
}

from_row!(HookRow, [service_uid, number, hook, run, body]);

const SELECT: &str = "SELECT service_uid, number, hook, run, body FROM hook_runs WHERE service_uid = $1";

/// Hooks of all versions, newest first.
pub async fn load_hooks(connection: &mut Connection, service_uid: &str) -> Result<Vec<HookRow>, StoreError> {
    let sql = format!("{SELECT} ORDER BY number DESC, hook");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid)
        .fetch_all(connection)
        .await?)
}

pub async fn load_hooks_of_version(
    connection: &mut Connection,
    service_uid: &str,
    number: i64,
) -> Result<Vec<HookRow>, StoreError> {
    let sql = format!("{SELECT} AND number = $2 ORDER BY hook");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid)
        .bind(number)
        .fetch_all(connection)
        .await?)
}

pub async fn save_hook(connection: &mut Connection, row: &HookRow) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO hook_runs (service_uid, number, hook, run, body) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (service_uid, number, hook) DO UPDATE SET run = excluded.run, body = excluded.body",
    )
    .bind(&row.service_uid)
    .bind(row.number)
    .bind(&row.hook)
    .bind(&row.run)
    .bind(&row.body)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_hook(
    connection: &mut Connection,
    service_uid: &str,
    number: i64,
    hook: &str,
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM hook_runs WHERE service_uid = $1 AND number = $2 AND hook = $3")
        .bind(service_uid)
        .bind(number)
        .bind(hook)
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes the hooks of versions up to this one.
pub(super) async fn delete_hooks_up_to(
    connection: &mut Connection,
    service_uid: &str,
    last: i64,
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM hook_runs WHERE service_uid = $1 AND number <= $2")
        .bind(service_uid)
        .bind(last)
        .execute(connection)
        .await?;
    Ok(())
}
