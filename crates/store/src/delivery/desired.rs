//! The desired state of each cluster, and the marks of those that may be stale.

use std::collections::HashSet;

use super::origins::distrust_sources;
use crate::{Connection, StoreError, read};
use farwater_api::Digest;

/// End of an insertion of marks: marking a cluster again increases its count.
pub(super) const COUNT_MARK: &str = "ON CONFLICT (cluster_uid) DO UPDATE SET marks = dirty.marks + 1";

/// The current signed state of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    pub cluster_uid: String,
    pub epoch: u64,
    pub generation: u64,
    pub tag: Digest,
    pub key_id: String,
    /// Base64, as sent.
    pub signature: String,
    /// JSON of entries and agent settings, zstd-compressed. Empty if only the head was loaded.
    pub body: Vec<u8>,
    /// The bundles that the entries name. Written, never loaded.
    pub bundles: Vec<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyMark {
    pub cluster_uid: String,
    pub marks: i64,
}

from_row!(DirtyMark, [cluster_uid, marks]);

type Row = (String, i64, i64, String, String, String, Vec<u8>);

pub(super) fn parse_digest(text: &str) -> Result<Digest, sqlx::Error> {
    text.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

fn desired(row: Row) -> Result<Desired, sqlx::Error> {
    let (cluster_uid, epoch, generation, tag, key_id, signature, body) = row;
    Ok(Desired {
        cluster_uid,
        epoch: epoch.unsigned_abs(),
        generation: generation.unsigned_abs(),
        tag: parse_digest(&tag)?,
        key_id,
        signature,
        body,
        bundles: Vec::new(),
    })
}

pub async fn load_desired(connection: &mut Connection, cluster_uid: &str) -> Result<Option<Desired>, StoreError> {
    let row: Option<Row> = sqlx::query_as(
        "SELECT cluster_uid, epoch, generation, tag, key_id, signature, body FROM desired WHERE cluster_uid = $1",
    )
    .bind(cluster_uid)
    .fetch_optional(connection)
    .await?;
    Ok(row.map(desired).transpose()?)
}

/// All desired states without their bodies: what a replica holds in memory.
pub async fn load_desired_heads(connection: &mut Connection) -> Result<Vec<Desired>, StoreError> {
    type Head = (String, i64, i64, String, String, String);
    let rows: Vec<Head> = sqlx::query_as("SELECT cluster_uid, epoch, generation, tag, key_id, signature FROM desired")
        .fetch_all(connection)
        .await?;
    let with_no_body = |(uid, epoch, generation, tag, key_id, signature)| {
        desired((uid, epoch, generation, tag, key_id, signature, Vec::new()))
    };
    Ok(rows.into_iter().map(with_no_body).collect::<Result<_, _>>()?)
}

pub async fn save_desired(connection: &mut Connection, row: &Desired) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO desired (cluster_uid, epoch, generation, tag, key_id, signature, body) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) \
         ON CONFLICT (cluster_uid) DO UPDATE SET epoch = excluded.epoch, generation = excluded.generation, \
         tag = excluded.tag, key_id = excluded.key_id, signature = excluded.signature, body = excluded.body",
    )
    .bind(&row.cluster_uid)
    .bind(row.epoch as i64)
    .bind(row.generation as i64)
    .bind(row.tag.to_string())
    .bind(&row.key_id)
    .bind(&row.signature)
    .bind(&row.body)
    .execute(&mut *connection)
    .await?;
    save_bundles(connection, row).await
}

/// Saves only changed bundles, because few of many services change at a time.
async fn save_bundles(connection: &mut Connection, row: &Desired) -> Result<(), StoreError> {
    let known: Vec<String> = sqlx::query_scalar("SELECT digest FROM desired_bundles WHERE cluster_uid = $1")
        .bind(&row.cluster_uid)
        .fetch_all(&mut *connection)
        .await?;
    let known: HashSet<String> = known.into_iter().collect();
    let named: HashSet<String> = row.bundles.iter().map(Digest::to_string).collect();
    let changes = [
        (
            "DELETE FROM desired_bundles WHERE cluster_uid = $1 AND digest = $2",
            known.difference(&named),
        ),
        (
            "INSERT INTO desired_bundles (cluster_uid, digest) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            named.difference(&known),
        ),
    ];
    for (sql, digests) in changes {
        for digest in digests {
            sqlx::query(sql)
                .bind(&row.cluster_uid)
                .bind(digest)
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(())
}

/// Whether a cluster's desired state names a bundle.
pub async fn is_desired(connection: &mut Connection, cluster_uid: &str, digest: &Digest) -> Result<bool, StoreError> {
    let row: Option<(i64,)> = sqlx::query_as("SELECT 1 FROM desired_bundles WHERE cluster_uid = $1 AND digest = $2")
        .bind(cluster_uid)
        .bind(digest.to_string())
        .fetch_optional(connection)
        .await?;
    Ok(row.is_some())
}

/// Every bundle that some cluster's desired state names.
pub async fn load_desired_bundles(connection: &mut Connection) -> Result<HashSet<Digest>, StoreError> {
    let rows: Vec<(String,)> = sqlx::query_as("SELECT DISTINCT digest FROM desired_bundles")
        .fetch_all(connection)
        .await?;
    Ok(rows
        .iter()
        .map(|(digest,)| parse_digest(digest))
        .collect::<Result<_, _>>()?)
}

/// Deletes the rows of a cluster whose resource is gone: its desired state, identity, tokens and reports. Nothing of
/// this changes the cluster; its agent is refused from now on and keeps what it has applied.
pub async fn delete_cluster(connection: &mut Connection, cluster_uid: &str) -> Result<(), StoreError> {
    for table in [
        "desired",
        "desired_bundles",
        "dirty",
        "agents",
        "agent_updates",
        "agent_keys",
        "quarantines",
        "join_tokens",
        "nonces",
        "reports",
        "heartbeats",
        "released_services",
    ] {
        let sql = format!("DELETE FROM {table} WHERE cluster_uid = $1");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(cluster_uid)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

pub async fn mark_cluster(connection: &mut Connection, cluster_uid: &str) -> Result<(), StoreError> {
    let sql = format!("INSERT INTO dirty (cluster_uid, marks) VALUES ($1, 1) {COUNT_MARK}");
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Marks every cluster that has services, a desired state or an agent.
pub async fn mark_all(connection: &mut Connection) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO dirty (cluster_uid, marks) SELECT cluster_uid, 1 FROM \
         (SELECT cluster_uid FROM assignments WHERE cluster_uid <> '' UNION SELECT cluster_uid FROM desired \
          UNION SELECT cluster_uid FROM agents) AS known \
         WHERE true {COUNT_MARK}"
    );
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

pub async fn load_dirty(connection: &mut Connection, limit: u32) -> Result<Vec<DirtyMark>, StoreError> {
    Ok(
        sqlx::query_as("SELECT cluster_uid, marks FROM dirty ORDER BY cluster_uid LIMIT $1")
            .bind(i64::from(limit))
            .fetch_all(connection)
            .await?,
    )
}

/// Removes a mark, unless the cluster was marked again since it was read.
pub async fn clear_mark(connection: &mut Connection, mark: &DirtyMark) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM dirty WHERE cluster_uid = $1 AND marks = $2")
        .bind(&mark.cluster_uid)
        .bind(mark.marks)
        .execute(connection)
        .await?;
    Ok(())
}

/// Continues every cluster's state in an epoch above all that agents may have seen, at least `least`, so that no agent
/// deletes anything until a person has confirmed that this is right. Returns the epoch. Signed states are signed again
/// when they are computed; until then agents get no answer.
pub async fn raise_all_epochs(connection: &mut Connection, least: u64) -> Result<u64, StoreError> {
    let highest: Option<i64> = sqlx::query_scalar(
        "SELECT max(epoch) FROM (SELECT epoch FROM desired UNION ALL SELECT restored_epoch FROM agents) AS known",
    )
    .fetch_one(&mut *connection)
    .await?;
    let installed = read::load_meta(connection, "epoch")
        .await?
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let epoch = least.max(highest.unwrap_or(0).unsigned_abs() + 1).max(installed + 1);
    sqlx::query("UPDATE desired SET epoch = $1, signature = ''")
        .bind(epoch as i64)
        .execute(&mut *connection)
        .await?;
    sqlx::query("UPDATE agents SET restored_epoch = $1")
        .bind(epoch as i64)
        .execute(&mut *connection)
        .await?;
    read::save_meta(connection, "epoch", &epoch.to_string()).await?;
    distrust_sources(connection, None).await?;
    mark_all(connection).await?;
    Ok(epoch)
}
