//! The promotions of each Pipeline. A writer replaces a state only if it is the one that its decision was made from.

use crate::{Connection, StoreError};

/// The state as JSON. None: nothing was decided yet.
pub async fn load_pipeline(connection: &mut Connection, pipeline_uid: &str) -> Result<Option<String>, StoreError> {
    let select = sqlx::query_scalar("SELECT state FROM pipelines WHERE pipeline_uid = $1").bind(pipeline_uid);
    Ok(select.fetch_optional(connection).await?)
}

/// Saves a state. False: another state was written since `before` was read.
pub async fn save_pipeline(
    connection: &mut Connection,
    pipeline_uid: &str,
    (before, state): (Option<&str>, &str),
) -> Result<bool, StoreError> {
    let write = match before {
        Some(before) => sqlx::query("UPDATE pipelines SET state = $2 WHERE pipeline_uid = $1 AND state = $3")
            .bind(pipeline_uid)
            .bind(state)
            .bind(before),
        None => sqlx::query(
            "INSERT INTO pipelines (pipeline_uid, state) VALUES ($1, $2) ON CONFLICT (pipeline_uid) DO NOTHING",
        )
        .bind(pipeline_uid)
        .bind(state),
    };
    Ok(write.execute(connection).await?.rows_affected() == 1)
}

/// Deletes the states of pipelines that are gone. `kind`: kind of pipelines.
pub async fn delete_orphaned_pipelines(connection: &mut Connection, kind: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM pipelines WHERE pipeline_uid NOT IN (SELECT uid FROM resources WHERE kind = $1)")
        .bind(kind)
        .execute(connection)
        .await?;
    Ok(())
}
