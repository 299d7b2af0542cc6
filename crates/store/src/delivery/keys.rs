//! Former and next keys of agents, and how far agents have followed the hub's key succession.

use super::agents::Agent;
use crate::{Connection, Location, OpenError, StoreError, visit::Visit};

const SELECT: &str =
    "SELECT cluster_uid, since, next_key, next_sealing_key, former_key, request, sequence, link FROM agent_keys";

/// The keys of one cluster besides those in [`Agent`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentKeys {
    pub cluster_uid: String,
    /// When the present keys were first used, in seconds since 1970.
    pub since: i64,
    /// Next keys, Ed25519 and X25519. Empty: none.
    pub next_key: Vec<u8>,
    pub next_sealing_key: Vec<u8>,
    /// Former key, Ed25519. Empty: none.
    pub former_key: Vec<u8>,
    /// Digest of the last fulfilled request for new keys.
    pub request: String,
    /// Number and digest of the last of the hub's successions that the agent has followed. Empty at 0.
    pub sequence: i64,
    pub link: String,
}

from_row!(
    AgentKeys,
    [
        cluster_uid,
        since,
        next_key,
        next_sealing_key,
        former_key,
        request,
        sequence,
        link
    ]
);

pub async fn load_agent_keys(connection: &mut Connection, cluster_uid: &str) -> Result<Option<AgentKeys>, StoreError> {
    let sql = format!("{SELECT} WHERE cluster_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid)
        .fetch_optional(connection)
        .await?)
}

pub async fn load_all_agent_keys(connection: &mut Connection) -> Result<Vec<AgentKeys>, StoreError> {
    Ok(sqlx::query_as(SELECT).fetch_all(connection).await?)
}

pub async fn save_agent_keys(connection: &mut Connection, row: &AgentKeys) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO agent_keys (cluster_uid, since, next_key, next_sealing_key, former_key, request, sequence, link) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
         ON CONFLICT (cluster_uid) DO UPDATE SET since = excluded.since, next_key = excluded.next_key, \
         next_sealing_key = excluded.next_sealing_key, former_key = excluded.former_key, request = excluded.request, \
         sequence = excluded.sequence, link = excluded.link",
    )
    .bind(&row.cluster_uid)
    .bind(row.since)
    .bind(&row.next_key)
    .bind(&row.next_sealing_key)
    .bind(&row.former_key)
    .bind(&row.request)
    .bind(row.sequence)
    .bind(&row.link)
    .execute(connection)
    .await?;
    Ok(())
}

/// Makes the agent's next keys its present ones, as `request` asked for. False: they are not its next keys, and nothing
/// changed.
pub async fn promote_keys(
    connection: &mut Connection,
    agent: &Agent,
    next_key: &[u8],
    request: Option<&str>,
    now: i64,
) -> Result<bool, StoreError> {
    let Some(row) = load_agent_keys(connection, &agent.cluster_uid).await? else {
        return Ok(false);
    };
    if row.next_key != next_key || next_key.is_empty() {
        return Ok(false);
    }
    let done =
        sqlx::query("UPDATE agents SET public_key = $2, sealing_key = $3 WHERE cluster_uid = $1 AND public_key = $4")
            .bind(&agent.cluster_uid)
            .bind(&row.next_key)
            .bind(&row.next_sealing_key)
            .bind(&agent.public_key)
            .execute(&mut *connection)
            .await?;
    if done.rows_affected() != 1 {
        return Ok(false);
    }
    let promoted = AgentKeys {
        since: now,
        next_key: Vec::new(),
        next_sealing_key: Vec::new(),
        former_key: agent.public_key.clone(),
        request: request.map_or_else(|| row.request.clone(), str::to_owned),
        ..row
    };
    save_agent_keys(connection, &promoted).await?;
    Ok(true)
}

/// One cluster's keys, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKeys {
    pub namespace: String,
    pub name: String,
    /// When its agent's keys were first used, in seconds since 1970.
    pub since: i64,
    /// Number and digest of the last of the hub's successions that it has followed. Empty at 0.
    pub sequence: i64,
    pub link: String,
}

from_row!(ClusterKeys, [namespace, name, since, sequence, link]);

/// The keys of all agents, from a database whose hub may run.
pub async fn read_cluster_keys(location: &Location) -> Result<Vec<ClusterKeys>, OpenError> {
    let mut visit = Visit::of_newest(location).await?;
    let rows = sqlx::query_as(
        "SELECT resources.namespace, resources.name, COALESCE(agent_keys.since, agents.joined) AS since, \
         COALESCE(agent_keys.sequence, 0) AS sequence, COALESCE(agent_keys.link, '') AS link \
         FROM agents JOIN resources ON resources.uid = agents.cluster_uid AND resources.kind = 'clusters.farwater.dev' \
         LEFT JOIN agent_keys ON agent_keys.cluster_uid = agents.cluster_uid \
         ORDER BY resources.namespace, resources.name",
    );
    let rows = rows.fetch_all(visit.connection()).await;
    let rows = rows.map_err(|error| StoreError::from(error).at(location))?;
    visit.end().await;
    Ok(rows)
}
