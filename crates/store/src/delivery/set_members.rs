//! The clusters of each ServiceSet, and its ServiceDeployment on each of them.

use crate::{
    Connection, StoreError,
    rows::{chunks, parameters},
};

const SELECT: &str =
    "SELECT set_uid, cluster_uid, service_uid, service_name, problem, ready, left_at, braked FROM set_members";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetMember {
    pub set_uid: String,
    pub cluster_uid: String,
    /// uid of its ServiceDeployment. Empty: it has none.
    pub service_uid: String,
    pub service_name: String,
    /// Why the service can't be as it should. Empty: it is.
    pub problem: String,
    /// Whether it is healthy at its assigned version: 0 or 1.
    pub ready: i64,
    /// Since when the selector no longer matches the cluster, in seconds since 1970. 0: it matches.
    pub left_at: i64,
    /// Whether it was among too many that left at once: 0 or 1.
    pub braked: i64,
}

from_row!(
    SetMember,
    [
        set_uid,
        cluster_uid,
        service_uid,
        service_name,
        problem,
        ready,
        left_at,
        braked
    ]
);

impl SetMember {
    pub fn has_service(&self) -> bool {
        !self.service_uid.is_empty()
    }

    /// Whether the selector no longer matches its cluster.
    pub fn has_left(&self) -> bool {
        self.left_at != 0
    }
}

/// Numbers of a set's members by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounts {
    pub matched: i64,
    pub ready: i64,
    pub failed: i64,
    /// Members that have left and still have their service.
    pub leaving: i64,
    /// Leaving members that were among too many at once.
    pub braked: i64,
}

from_row!(MemberCounts, [matched, ready, failed, leaving, braked]);

/// Members by cluster.
pub async fn members_of_set(connection: &mut Connection, set_uid: &str) -> Result<Vec<SetMember>, StoreError> {
    let sql = format!("{SELECT} WHERE set_uid = $1 ORDER BY cluster_uid");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .fetch_all(connection)
        .await?)
}

/// Members whose clusters the selector no longer matches, by cluster.
pub async fn members_that_left(connection: &mut Connection, set_uid: &str) -> Result<Vec<SetMember>, StoreError> {
    let sql = format!("{SELECT} WHERE set_uid = $1 AND left_at > 0 ORDER BY cluster_uid");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .fetch_all(connection)
        .await?)
}

/// At most `limit` members after a cluster.
pub async fn page_of_members(
    connection: &mut Connection,
    set_uid: &str,
    after: &str,
    limit: u32,
) -> Result<Vec<SetMember>, StoreError> {
    let sql = format!("{SELECT} WHERE set_uid = $1 AND cluster_uid > $2 ORDER BY cluster_uid LIMIT $3");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .bind(after.to_owned());
    Ok(select.bind(i64::from(limit)).fetch_all(connection).await?)
}

/// At most `limit` members of a step, by service name, after a service name and its cluster.
pub async fn page_of_step(
    connection: &mut Connection,
    (set_uid, step): (&str, i64),
    (after, cluster_uid): (&str, &str),
    limit: u32,
) -> Result<Vec<SetMember>, StoreError> {
    let sql = format!(
        "{SELECT} WHERE set_uid = $1 AND step = $2 AND left_at = 0 AND (service_name, cluster_uid) > ($3, $4) \
         ORDER BY service_name, cluster_uid LIMIT $5"
    );
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .bind(step);
    let select = select
        .bind(after.to_owned())
        .bind(cluster_uid.to_owned())
        .bind(i64::from(limit));
    Ok(select.fetch_all(connection).await?)
}

/// Members on these clusters, in no particular order.
pub async fn members_on(
    connection: &mut Connection,
    set_uid: &str,
    cluster_uids: &[&str],
) -> Result<Vec<SetMember>, StoreError> {
    let mut found = Vec::with_capacity(cluster_uids.len());
    for some in chunks(cluster_uids) {
        let sql = format!(
            "{SELECT} WHERE (set_uid, cluster_uid) IN (VALUES {})",
            parameters(some.len(), 2)
        );
        let mut select = sqlx::query_as(sqlx::AssertSqlSafe(sql));
        for cluster_uid in some {
            select = select.bind(set_uid.to_owned()).bind((*cluster_uid).to_owned());
        }
        found.extend::<Vec<SetMember>>(select.fetch_all(&mut *connection).await?);
    }
    Ok(found)
}

pub async fn load_member(
    connection: &mut Connection,
    set_uid: &str,
    cluster_uid: &str,
) -> Result<Option<SetMember>, StoreError> {
    let sql = format!("{SELECT} WHERE set_uid = $1 AND cluster_uid = $2");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .bind(cluster_uid.to_owned());
    Ok(select.fetch_optional(connection).await?)
}

/// The member whose ServiceDeployment has this name.
pub async fn member_named(
    connection: &mut Connection,
    set_uid: &str,
    service_name: &str,
) -> Result<Option<SetMember>, StoreError> {
    let sql = format!("{SELECT} WHERE set_uid = $1 AND service_name = $2");
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .bind(service_name.to_owned());
    Ok(select.fetch_optional(connection).await?)
}

/// The set that a ServiceDeployment belongs to.
pub async fn member_of_service(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Option<SetMember>, StoreError> {
    let sql = format!("{SELECT} WHERE service_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid.to_owned())
        .fetch_optional(connection)
        .await?)
}

/// (service, set, step of its rollout) of those of these services that belong to a set.
pub async fn sets_of_services(
    connection: &mut Connection,
    service_uids: &[String],
) -> Result<Vec<(String, String, i64)>, StoreError> {
    let mut found = Vec::new();
    for some in chunks(service_uids) {
        let sql = format!(
            "SELECT service_uid, set_uid, step FROM set_members WHERE service_uid IN (VALUES {})",
            parameters(some.len(), 1)
        );
        let select = sqlx::query_as(sqlx::AssertSqlSafe(sql));
        let rows: Vec<(String, String, i64)> = some
            .iter()
            .fold(select, |select, uid| select.bind(uid.as_str()))
            .fetch_all(&mut *connection)
            .await?;
        found.extend(rows);
    }
    Ok(found)
}

/// (set, cluster) of the members without a service that would give it this name.
pub async fn members_waiting_for(
    connection: &mut Connection,
    service_name: &str,
) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT set_uid, cluster_uid FROM set_members WHERE service_name = $1 AND service_uid = ''";
    Ok(sqlx::query_as(sql).bind(service_name).fetch_all(connection).await?)
}

/// uids of all sets that contain a cluster, or recently did.
pub async fn sets_of_cluster(connection: &mut Connection, cluster_uid: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT set_uid FROM set_members WHERE cluster_uid = $1 ORDER BY set_uid";
    Ok(sqlx::query_scalar(sql).bind(cluster_uid).fetch_all(connection).await?)
}

pub async fn count_members(connection: &mut Connection, set_uid: &str) -> Result<MemberCounts, StoreError> {
    // An index alone answers each count, because a set may have many members.
    let sql = "SELECT CAST(there.number AS BIGINT) AS matched, CAST(there.ready - troubled.ready AS BIGINT) AS ready, \
               CAST(troubled.number AS BIGINT) AS failed, CAST(gone.number AS BIGINT) AS leaving, \
               CAST(gone.braked AS BIGINT) AS braked FROM \
               (SELECT COUNT(*) AS number, COALESCE(SUM(ready), 0) AS ready \
               FROM set_members WHERE set_uid = $1 AND left_at = 0) there, \
               (SELECT COUNT(*) AS number, COALESCE(SUM(ready), 0) AS ready \
               FROM set_members WHERE set_uid = $1 AND left_at = 0 AND problem <> '') troubled, \
               (SELECT COUNT(*) AS number, COALESCE(SUM(braked), 0) AS braked \
               FROM set_members WHERE set_uid = $1 AND left_at > 0 AND service_uid <> '') gone";
    Ok(sqlx::query_as(sql).bind(set_uid).fetch_one(connection).await?)
}

/// The first members with a problem.
pub async fn troubled_members(
    connection: &mut Connection,
    set_uid: &str,
    limit: u32,
) -> Result<Vec<SetMember>, StoreError> {
    let sql = format!(
        "{SELECT} WHERE set_uid = $1 AND problem <> '' AND left_at = 0 ORDER BY service_name, cluster_uid LIMIT $2"
    );
    let select = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .bind(i64::from(limit));
    Ok(select.fetch_all(connection).await?)
}

pub async fn save_member(connection: &mut Connection, row: &SetMember) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO set_members \
         (set_uid, cluster_uid, service_uid, service_name, problem, ready, left_at, braked) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) \
         ON CONFLICT (set_uid, cluster_uid) DO UPDATE SET service_uid = excluded.service_uid, \
         service_name = excluded.service_name, problem = excluded.problem, ready = excluded.ready, \
         left_at = excluded.left_at, braked = excluded.braked, rests = 0, changes = set_members.changes + 1",
    )
    .bind(&row.set_uid)
    .bind(&row.cluster_uid)
    .bind(&row.service_uid)
    .bind(&row.service_name)
    .bind(&row.problem)
    .bind(row.ready)
    .bind(row.left_at)
    .bind(row.braked)
    .execute(connection)
    .await?;
    Ok(())
}

/// Holds the members that have left until a person has approved it.
pub async fn brake_members(connection: &mut Connection, set_uid: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET braked = 1 WHERE set_uid = $1 AND left_at > 0 AND service_uid <> ''")
        .bind(set_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Records whether a ServiceDeployment is healthy.
pub async fn note_ready(connection: &mut Connection, service_uid: &str, ready: bool) -> Result<(), StoreError> {
    let sql =
        "UPDATE set_members SET ready = $2, rests = 0, changes = changes + 1 WHERE service_uid = $1 AND ready <> $2";
    sqlx::query(sql)
        .bind(service_uid)
        .bind(i64::from(ready))
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn delete_member(connection: &mut Connection, set_uid: &str, cluster_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM set_members WHERE set_uid = $1 AND cluster_uid = $2")
        .bind(set_uid)
        .bind(cluster_uid)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn delete_members(connection: &mut Connection, set_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM set_members WHERE set_uid = $1")
        .bind(set_uid)
        .execute(connection)
        .await?;
    Ok(())
}
