//! Agents: how they joined, their identity, and their last report.

use crate::{Connection, StoreError};

const SELECT_AGENT: &str = "SELECT cluster_uid, public_key, sealing_key, cluster_id, agent_version, kubernetes_version, \
                            joined, report_sequence, restored_epoch FROM agents";

/// The identity of one cluster's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    pub cluster_uid: String,
    /// Ed25519 key.
    pub public_key: Vec<u8>,
    /// X25519 key.
    pub sealing_key: Vec<u8>,
    /// uid of the cluster's kube-system namespace.
    pub cluster_id: String,
    pub agent_version: String,
    pub kubernetes_version: String,
    /// Seconds since 1970.
    pub joined: i64,
    pub report_sequence: i64,
    pub restored_epoch: i64,
}

from_row!(
    Agent,
    [
        cluster_uid,
        public_key,
        sealing_key,
        cluster_id,
        agent_version,
        kubernetes_version,
        joined,
        report_sequence,
        restored_epoch
    ]
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    pub cluster_uid: String,
    /// Seconds since 1970.
    pub expires: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedeemError {
    #[error("unknown")]
    Unknown,
    #[error("used")]
    Used,
    #[error("expired")]
    Expired,
}

/// The last report about one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub service_uid: String,
    pub cluster_uid: String,
    /// Seconds since 1970.
    pub received: i64,
    /// The report's JSON, zstd-compressed.
    pub body: Vec<u8>,
}

from_row!(Report, [service_uid, cluster_uid, received, body]);

pub async fn load_agent(connection: &mut Connection, cluster_uid: &str) -> Result<Option<Agent>, StoreError> {
    let sql = format!("{SELECT_AGENT} WHERE cluster_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid)
        .fetch_optional(connection)
        .await?)
}

pub async fn load_agents(connection: &mut Connection) -> Result<Vec<Agent>, StoreError> {
    Ok(sqlx::query_as(SELECT_AGENT).fetch_all(connection).await?)
}

/// The agent of the cluster whose `kube-system` namespace has this uid.
pub async fn load_agent_of(connection: &mut Connection, cluster_id: &str) -> Result<Option<Agent>, StoreError> {
    let sql = format!("{SELECT_AGENT} WHERE cluster_id = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(cluster_id)
        .fetch_optional(connection)
        .await?)
}

/// Sets a cluster's agent. An existing identity is replaced, and its reports start again.
pub async fn save_agent(connection: &mut Connection, agent: &Agent) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO agents (cluster_uid, public_key, sealing_key, cluster_id, agent_version, kubernetes_version, joined, \
         report_sequence, restored_epoch) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
         ON CONFLICT (cluster_uid) DO UPDATE SET public_key = excluded.public_key, sealing_key = excluded.sealing_key, \
         cluster_id = excluded.cluster_id, agent_version = excluded.agent_version, \
         kubernetes_version = excluded.kubernetes_version, joined = excluded.joined, \
         report_sequence = excluded.report_sequence",
    )
    .bind(&agent.cluster_uid)
    .bind(&agent.public_key)
    .bind(&agent.sealing_key)
    .bind(&agent.cluster_id)
    .bind(&agent.agent_version)
    .bind(&agent.kubernetes_version)
    .bind(agent.joined)
    .bind(agent.report_sequence)
    .bind(agent.restored_epoch)
    .execute(connection)
    .await?;
    Ok(())
}

/// Stores an agent's versions and the sequence of its reports.
pub async fn change_agent(
    connection: &mut Connection,
    cluster_uid: &str,
    agent_version: &str,
    kubernetes_version: &str,
    report_sequence: Option<u64>,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE agents SET agent_version = $2, kubernetes_version = $3, \
         report_sequence = COALESCE($4, report_sequence) WHERE cluster_uid = $1",
    )
    .bind(cluster_uid)
    .bind(agent_version)
    .bind(kubernetes_version)
    .bind(report_sequence.map(|sequence| sequence as i64))
    .execute(connection)
    .await?;
    Ok(())
}

/// Marks an agent as restored at an epoch. 0 removes the mark.
pub async fn mark_restored(connection: &mut Connection, cluster_uid: &str, epoch: u64) -> Result<(), StoreError> {
    sqlx::query("UPDATE agents SET restored_epoch = $2 WHERE cluster_uid = $1")
        .bind(cluster_uid)
        .bind(epoch as i64)
        .execute(connection)
        .await?;
    Ok(())
}

/// The settings assigned to a cluster's agent, and its answer. Texts are JSON. Empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentUpdateRow {
    pub cluster_uid: String,
    /// Settings in its desired state.
    pub settings: String,
    /// Settings to go back to.
    pub previous: String,
    /// Seconds since 1970.
    pub assigned: i64,
    /// Digest of the settings that it last went back from.
    pub failed: String,
    pub reason: String,
    /// Its last report about itself.
    pub report: String,
}

from_row!(
    AgentUpdateRow,
    [cluster_uid, settings, previous, assigned, failed, reason, report]
);

const SELECT_UPDATE: &str =
    "SELECT cluster_uid, settings, previous, assigned, failed, reason, report FROM agent_updates";

pub async fn load_agent_update(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<Option<AgentUpdateRow>, StoreError> {
    let sql = format!("{SELECT_UPDATE} WHERE cluster_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid)
        .fetch_optional(connection)
        .await?)
}

pub async fn load_agent_updates(connection: &mut Connection) -> Result<Vec<AgentUpdateRow>, StoreError> {
    Ok(sqlx::query_as(SELECT_UPDATE).fetch_all(connection).await?)
}

/// Sets an agent's settings; its report is kept.
pub async fn save_agent_update(connection: &mut Connection, row: &AgentUpdateRow) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO agent_updates (cluster_uid, settings, previous, assigned, failed, reason, report) \
         VALUES ($1, $2, $3, $4, $5, $6, '') \
         ON CONFLICT (cluster_uid) DO UPDATE SET settings = excluded.settings, previous = excluded.previous, \
         assigned = excluded.assigned, failed = excluded.failed, reason = excluded.reason",
    )
    .bind(&row.cluster_uid)
    .bind(&row.settings)
    .bind(&row.previous)
    .bind(row.assigned)
    .bind(&row.failed)
    .bind(&row.reason)
    .execute(connection)
    .await?;
    Ok(())
}

/// Sets an agent's report about itself. Returns whether it changed.
pub async fn save_agent_report(
    connection: &mut Connection,
    cluster_uid: &str,
    report: &str,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "INSERT INTO agent_updates (cluster_uid, settings, previous, assigned, failed, reason, report) \
         VALUES ($1, '', '', 0, '', '', $2) \
         ON CONFLICT (cluster_uid) DO UPDATE SET report = excluded.report \
         WHERE agent_updates.report <> excluded.report",
    )
    .bind(cluster_uid)
    .bind(report)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// A cluster whose identity two agents use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    pub cluster_uid: String,
    /// Seconds since 1970.
    pub since: i64,
    /// The hosts of the two agents, as they reported them.
    pub hosts: String,
}

from_row!(Quarantine, [cluster_uid, since, hosts]);

pub async fn load_quarantines(connection: &mut Connection) -> Result<Vec<Quarantine>, StoreError> {
    Ok(sqlx::query_as("SELECT cluster_uid, since, hosts FROM quarantines")
        .fetch_all(connection)
        .await?)
}

/// Stores a quarantine. An existing one is kept.
pub async fn save_quarantine(connection: &mut Connection, row: &Quarantine) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO quarantines (cluster_uid, since, hosts) VALUES ($1, $2, $3) ON CONFLICT (cluster_uid) DO NOTHING",
    )
    .bind(&row.cluster_uid)
    .bind(row.since)
    .bind(&row.hosts)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_quarantine(connection: &mut Connection, cluster_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM quarantines WHERE cluster_uid = $1")
        .bind(cluster_uid)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn save_join_token(connection: &mut Connection, token: &JoinToken) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO join_tokens (hash, cluster_uid, expires) VALUES ($1, $2, $3)")
        .bind(token.hash.as_slice())
        .bind(&token.cluster_uid)
        .bind(token.expires)
        .execute(connection)
        .await?;
    Ok(())
}

/// Uses a token up and returns its cluster. Call it in the transaction that saves the agent, so that of two agents with
/// one token only one joins.
pub async fn redeem_token(
    connection: &mut Connection,
    hash: &[u8; 32],
    now: i64,
) -> Result<Result<String, RedeemError>, StoreError> {
    let row: Option<(String, i64, Option<i64>)> =
        sqlx::query_as("SELECT cluster_uid, expires, used FROM join_tokens WHERE hash = $1")
            .bind(hash.as_slice())
            .fetch_optional(&mut *connection)
            .await?;
    let Some((cluster_uid, expires, used)) = row else {
        return Ok(Err(RedeemError::Unknown));
    };
    if used.is_some() {
        return Ok(Err(RedeemError::Used));
    }
    if expires <= now {
        return Ok(Err(RedeemError::Expired));
    }
    sqlx::query("UPDATE join_tokens SET used = $2 WHERE hash = $1")
        .bind(hash.as_slice())
        .bind(now)
        .execute(connection)
        .await?;
    Ok(Ok(cluster_uid))
}

/// Records a nonce. False: it was used before.
pub async fn use_nonce(
    connection: &mut Connection,
    cluster_uid: &str,
    nonce: &str,
    expires: i64,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "INSERT INTO nonces (cluster_uid, nonce, expires) VALUES ($1, $2, $3) ON CONFLICT (cluster_uid, nonce) DO NOTHING",
    )
    .bind(cluster_uid)
    .bind(nonce)
    .bind(expires)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Removes nonces that no assertion can use any more, and join tokens one day after they expired. Until then a late
/// agent gets the error that its token is expired or used, not that it is unknown.
pub async fn delete_expired(connection: &mut Connection, now: i64) -> Result<(), StoreError> {
    const DAY: i64 = 24 * 3600;
    sqlx::query("DELETE FROM nonces WHERE expires < $1")
        .bind(now)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM join_tokens WHERE expires < $1")
        .bind(now - DAY)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn load_report(connection: &mut Connection, service_uid: &str) -> Result<Option<Report>, StoreError> {
    Ok(
        sqlx::query_as("SELECT service_uid, cluster_uid, received, body FROM reports WHERE service_uid = $1")
            .bind(service_uid)
            .fetch_optional(connection)
            .await?,
    )
}

pub async fn save_report(connection: &mut Connection, report: &Report) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO reports (service_uid, cluster_uid, received, body) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (service_uid) DO UPDATE SET cluster_uid = excluded.cluster_uid, received = excluded.received, \
         body = excluded.body",
    )
    .bind(&report.service_uid)
    .bind(&report.cluster_uid)
    .bind(report.received)
    .bind(&report.body)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_report(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM reports WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn delete_reports(connection: &mut Connection, cluster_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM reports WHERE cluster_uid = $1")
        .bind(cluster_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// (cluster uid, seconds since 1970).
pub async fn load_heartbeats(connection: &mut Connection) -> Result<Vec<(String, i64)>, StoreError> {
    Ok(sqlx::query_as("SELECT cluster_uid, heard FROM heartbeats")
        .fetch_all(connection)
        .await?)
}

pub async fn save_heartbeats(connection: &mut Connection, rows: &[(String, i64)]) -> Result<(), StoreError> {
    for (cluster_uid, heard) in rows {
        sqlx::query(
            "INSERT INTO heartbeats (cluster_uid, heard) VALUES ($1, $2) \
             ON CONFLICT (cluster_uid) DO UPDATE SET heard = excluded.heard",
        )
        .bind(cluster_uid)
        .bind(heard)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
