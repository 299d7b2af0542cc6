//! Services held by a change window, and the specs in effect until they are released.

use crate::{Connection, StoreError, Written};
use serde_json::Value;

/// A service whose newer version or spec is held, or whose newer spec was not decided about yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldService {
    pub service_uid: String,
    /// JSON of the spec in effect until the service's own may take effect. Empty: its own is in effect.
    pub spec: String,
    /// The change window that holds it, as `namespace/name`. Empty: the service is to be reconciled.
    pub change_window: String,
    /// When it may be open again, in seconds since 1970. 0: unknown.
    pub until: i64,
}

from_row!(HeldService, [service_uid, spec, change_window, until]);

const SELECT: &str = "SELECT h.service_uid, h.spec, h.change_window, h.until FROM held_services h";
const NAMES: &str =
    "SELECT a.namespace, a.name FROM held_services h JOIN assignments a ON a.service_uid = h.service_uid";

pub async fn load_held(connection: &mut Connection, service_uid: &str) -> Result<Option<HeldService>, StoreError> {
    let sql = format!("{SELECT} WHERE h.service_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid.to_owned())
        .fetch_optional(connection)
        .await?)
}

pub(super) async fn held_of_cluster(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<Vec<HeldService>, StoreError> {
    let sql = format!("{SELECT} JOIN assignments a ON a.service_uid = h.service_uid WHERE a.cluster_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid.to_owned())
        .fetch_all(connection)
        .await?)
}

/// (namespace, name) of all held services.
pub async fn held_services(connection: &mut Connection) -> Result<Vec<(String, String)>, StoreError> {
    Ok(sqlx::query_as(NAMES).fetch_all(connection).await?)
}

/// (namespace, name) of services that are held until `now` or earlier.
pub async fn held_until(connection: &mut Connection, now: i64) -> Result<Vec<(String, String)>, StoreError> {
    let sql = format!("{NAMES} WHERE h.until > 0 AND h.until <= $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(now)
        .fetch_all(connection)
        .await?)
}

/// (namespace, name) of services that one window holds.
pub async fn held_by(connection: &mut Connection, window: &str) -> Result<Vec<(String, String)>, StoreError> {
    let sql = format!("{NAMES} WHERE h.change_window = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(window.to_owned())
        .fetch_all(connection)
        .await?)
}

/// (namespace, name) of held members of a set.
pub async fn held_of_set(connection: &mut Connection, set_uid: &str) -> Result<Vec<(String, String)>, StoreError> {
    let sql = format!("{NAMES} JOIN set_members m ON m.service_uid = h.service_uid WHERE m.set_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .fetch_all(connection)
        .await?)
}

pub async fn save_held(connection: &mut Connection, row: &HeldService) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO held_services (service_uid, spec, change_window, until) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (service_uid) DO UPDATE SET \
         spec = excluded.spec, change_window = excluded.change_window, until = excluded.until",
    )
    .bind(&row.service_uid)
    .bind(&row.spec)
    .bind(&row.change_window)
    .bind(row.until)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_held(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM held_services WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Stores the spec from before an edit, if a change window may hold the new one: the old spec stays in effect until the
/// controller has decided about the new one. Of several edits the first counts. Sets hold their own members' specs.
pub(super) async fn keep_spec(connection: &mut Connection, change: &Written) -> Result<(), sqlx::Error> {
    const CONCERNS: &str = "SELECT CAST(1 AS BIGINT) FROM assignments WHERE service_uid = $1 AND generation <> $2 AND assigned IS NOT NULL \
                            AND EXISTS (SELECT 1 FROM resources WHERE kind = 'changewindows.farwater.dev') \
                            AND NOT EXISTS (SELECT 1 FROM set_members WHERE service_uid = $1)";
    let metadata = &change.object["metadata"];
    let (uid, generation) = (
        metadata["uid"].as_str().unwrap_or_default(),
        metadata["generation"].as_i64(),
    );
    let asked = sqlx::query_scalar::<_, i64>(CONCERNS)
        .bind(uid)
        .bind(generation.unwrap_or_default());
    if asked.fetch_optional(&mut *connection).await?.is_none() {
        return Ok(());
    }
    // An unreadable spec can't stay in effect.
    let Ok(Some(before)) = change.before() else {
        return Ok(());
    };
    if before["spec"] == change.object["spec"] || metadata["deletionTimestamp"].is_string() {
        return Ok(());
    }
    let spec: &Value = &before["spec"];
    sqlx::query(
        "INSERT INTO held_services (service_uid, spec, change_window, until) VALUES ($1, $2, '', 0) \
         ON CONFLICT (service_uid) DO UPDATE SET spec = excluded.spec WHERE held_services.spec = ''",
    )
    .bind(uid)
    .bind(spec.to_string())
    .execute(connection)
    .await?;
    Ok(())
}
