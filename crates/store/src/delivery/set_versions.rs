//! The version of a set at each of its rollouts, for rollbacks.

use crate::{Connection, StoreError};

/// Number and JSON of each, the newest first.
pub async fn load_set_versions(connection: &mut Connection, set_uid: &str) -> Result<Vec<(i64, String)>, StoreError> {
    let sql = "SELECT number, version FROM set_versions WHERE set_uid = $1 ORDER BY number DESC";
    Ok(sqlx::query_as(sql).bind(set_uid).fetch_all(connection).await?)
}

pub async fn load_set_version(
    connection: &mut Connection,
    set_uid: &str,
    number: i64,
) -> Result<Option<String>, StoreError> {
    let select = sqlx::query_scalar("SELECT version FROM set_versions WHERE set_uid = $1 AND number = $2");
    Ok(select.bind(set_uid).bind(number).fetch_optional(connection).await?)
}

pub async fn save_set_version(
    connection: &mut Connection,
    set_uid: &str,
    (number, version): (i64, &str),
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO set_versions (set_uid, number, version) VALUES ($1, $2, $3) \
         ON CONFLICT (set_uid, number) DO UPDATE SET version = excluded.version",
    )
    .bind(set_uid)
    .bind(number)
    .bind(version)
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes the versions up to a number, except those still in use.
pub async fn trim_set_versions(
    connection: &mut Connection,
    set_uid: &str,
    (last, but): (i64, [i64; 2]),
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM set_versions WHERE set_uid = $1 AND number <= $2 AND number NOT IN ($3, $4)")
        .bind(set_uid)
        .bind(last)
        .bind(but[0])
        .bind(but[1])
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn delete_set_versions(connection: &mut Connection, set_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM set_versions WHERE set_uid = $1")
        .bind(set_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// The version that a set is pinned to. 0: none.
pub async fn load_set_pin(connection: &mut Connection, set_uid: &str) -> Result<i64, StoreError> {
    let select = sqlx::query_scalar("SELECT pin FROM rollouts WHERE set_uid = $1").bind(set_uid);
    Ok(select.fetch_optional(connection).await?.unwrap_or(0))
}

/// Pins a set that has a rollout; a set without one has no versions either.
pub async fn save_set_pin(connection: &mut Connection, set_uid: &str, pin: i64) -> Result<(), StoreError> {
    sqlx::query("UPDATE rollouts SET pin = $2 WHERE set_uid = $1")
        .bind(set_uid)
        .bind(pin)
        .execute(connection)
        .await?;
    Ok(())
}

/// Some services of a set, by cluster. Their assigned versions may suit the others.
pub async fn some_services_of_set(
    connection: &mut Connection,
    set_uid: &str,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    let sql =
        "SELECT service_uid FROM set_members WHERE set_uid = $1 AND service_uid <> '' ORDER BY cluster_uid LIMIT $2";
    Ok(sqlx::query_scalar(sql)
        .bind(set_uid)
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?)
}
