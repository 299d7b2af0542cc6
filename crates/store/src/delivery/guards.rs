//! Memory of the guards of deletions: services with held prunes, and services that were removed without their agent's
//! confirmation.

use crate::{Connection, StoreError};

/// Since when a service's prune is held, in seconds since 1970. None: it is not held.
pub async fn load_prune_hold(connection: &mut Connection, service_uid: &str) -> Result<Option<i64>, StoreError> {
    let select = sqlx::query_scalar("SELECT since FROM prune_holds WHERE service_uid = $1").bind(service_uid);
    Ok(select.fetch_optional(connection).await?)
}

/// Records a held prune. An existing one keeps its time.
pub async fn save_prune_hold(connection: &mut Connection, service_uid: &str, since: i64) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO prune_holds (service_uid, since) VALUES ($1, $2) ON CONFLICT (service_uid) DO NOTHING")
        .bind(service_uid)
        .bind(since)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn delete_prune_hold(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM prune_holds WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Number of prunes that came to be held after a time.
pub async fn count_prune_holds(connection: &mut Connection, after: i64) -> Result<u64, StoreError> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM prune_holds WHERE since > $1")
        .bind(after)
        .fetch_one(connection)
        .await?;
    Ok(count.unsigned_abs())
}

/// Records that the present holds have been acted on, so that they no longer count.
pub async fn settle_prune_holds(connection: &mut Connection) -> Result<(), StoreError> {
    sqlx::query("UPDATE prune_holds SET since = 0 WHERE since <> 0")
        .execute(connection)
        .await?;
    Ok(())
}

/// A service whose resource is gone and whose agent has not yet released its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub service_uid: String,
    pub cluster_uid: String,
    pub namespace: String,
    pub name: String,
}

from_row!(Released, [service_uid, cluster_uid, namespace, name]);

pub async fn released_of_cluster(connection: &mut Connection, cluster_uid: &str) -> Result<Vec<Released>, StoreError> {
    let sql = "SELECT service_uid, cluster_uid, namespace, name FROM released_services WHERE cluster_uid = $1 \
               ORDER BY service_uid";
    Ok(sqlx::query_as(sql).bind(cluster_uid).fetch_all(connection).await?)
}

pub async fn save_released(connection: &mut Connection, row: &Released) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO released_services (service_uid, cluster_uid, namespace, name) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (service_uid) DO NOTHING",
    )
    .bind(&row.service_uid)
    .bind(&row.cluster_uid)
    .bind(&row.namespace)
    .bind(&row.name)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_released(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM released_services WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}
