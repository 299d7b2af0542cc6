//! The rollout of each ServiceSet, and what each of its members wants and runs.

use sqlx::Connection as _;

use super::set_versions::delete_set_versions;
use crate::{
    Connection, StoreError,
    engine::Row,
    rows::{chunks, list, parameters},
};

/// The rollout's data of a member. Each column has one writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberRollout {
    pub set_uid: String,
    pub cluster_uid: String,
    pub service_uid: String,
    pub service_name: String,
    /// Whether it is healthy at its assigned version: 0 or 1.
    pub ready: i64,
    /// The generation of its service that the set wrote last.
    pub generation: i64,
    /// The change that it wants. Empty: it is to be reconciled, or the change can't be made.
    pub wanted: String,
    /// Revisions of its sources at that time.
    pub looked_at: String,
    /// JSON: why it is held apart from the rollout. Empty: it is not.
    pub stands: String,
    /// JSON: its track in the rollout.
    pub track: String,
    /// JSON: the spec in effect while a newer one waits for its turn. Empty: the service's own.
    pub held_spec: String,
    /// JSON: the spec before that, for going back. Empty: the same one.
    pub back_spec: String,
    /// JSON: the published entry, and the change that it is made of.
    pub published: String,
    /// Seconds since 1970.
    pub published_at: i64,
    /// JSON: its agent's evidence on an entry.
    pub evidence: String,
    /// Step of the rollout. 0: canary. -1: unknown.
    pub step: i64,
    /// The version of its set that it was reconciled for. 0: the present revisions of its sources.
    pub pin: i64,
    /// The version that its set is pinned to now.
    pub set_pin: i64,
    /// JSON: MACs of the document in effect, and of those that it may go back to. Empty: its newest one is in effect.
    pub documents: String,
    /// MAC of the document that it was reconciled with, if that depends on other objects. Otherwise empty.
    pub looked_mac: String,
}

impl MemberRollout {
    /// Whether it was reconciled for the version that its set is pinned to now.
    pub fn is_of_pin(&self) -> bool {
        self.pin == self.set_pin
    }
}

from_row!(
    MemberRollout,
    [
        set_uid,
        cluster_uid,
        service_uid,
        service_name,
        ready,
        generation,
        wanted,
        looked_at,
        stands,
        track,
        held_spec,
        back_spec,
        published,
        published_at,
        evidence,
        step,
        pin,
        set_pin,
        documents,
        looked_mac
    ]
);

const SELECT: &str = "SELECT set_uid, cluster_uid, service_uid, service_name, ready, generation, wanted, looked_at, \
                      stands, track, held_spec, back_spec, published, published_at, evidence, step, pin, \
                      COALESCE((SELECT pin FROM rollouts WHERE rollouts.set_uid = set_members.set_uid), 0) AS set_pin, \
                      documents, looked_mac FROM set_members";

/// A member, and whether its inputs may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollingMember {
    pub row: MemberRollout,
    /// The generation of its service at its last reconciliation. None: it was never reconciled.
    pub seen: Option<i64>,
    /// It must be reconciled to know whether changes of its sources concern it.
    pub touched: bool,
    /// Its parameters changed after its last reconciliation.
    pub parameters_changed: bool,
    /// How it rests, by the last decision on its set. 0: it does not rest.
    pub rests: i64,
    /// Number of writes to what a decision reads of it.
    pub changes: i64,
}

/// Number of members of a step that rest in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestingMembers {
    pub rests: i64,
    pub step: i64,
    pub number: i64,
}

from_row!(RestingMembers, [rests, step, number]);

/// The members of a set that don't rest or are on one of these clusters, by cluster, and the numbers of the others.
pub async fn awake_members(
    connection: &mut Connection,
    set_uid: &str,
    cluster_uids: &[&str],
) -> Result<(Vec<RollingMember>, Vec<RestingMembers>), StoreError> {
    // Both as of one moment.
    let mut snapshot = connection.begin().await?;
    let sql = format!("{SELECT_ROLLING} AND m.rests = 0");
    let mut rows = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .fetch_all(&mut *snapshot)
        .await?;
    for some in chunks(cluster_uids) {
        let sql = format!(
            "{SELECT_ROLLING} AND m.rests > 0 AND m.cluster_uid IN ({})",
            list(2, some.len())
        );
        let select = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(set_uid.to_owned());
        let select = some.iter().fold(select, |select, uid| select.bind((*uid).to_owned()));
        rows.extend(select.fetch_all(&mut *snapshot).await?);
    }
    let sql = "SELECT rests, step, CAST(COUNT(*) AS BIGINT) AS number FROM set_members \
               WHERE set_uid = $1 AND left_at = 0 AND rests > 0 GROUP BY rests, step";
    let mut resting: Vec<RestingMembers> = sqlx::query_as(sql)
        .bind(set_uid.to_owned())
        .fetch_all(&mut *snapshot)
        .await?;
    drop(snapshot);
    let mut members = read_rolling(rows)?;
    members.sort_by(|one, other| one.row.cluster_uid.cmp(&other.row.cluster_uid));
    for member in members.iter().filter(|member| member.rests > 0) {
        let counts = |counted: &&mut RestingMembers| (counted.rests, counted.step) == (member.rests, member.row.step);
        if let Some(counted) = resting.iter_mut().find(counts) {
            counted.number -= 1;
        }
    }
    Ok((members, resting))
}

/// The members with services, by cluster, without `held_spec`.
pub async fn rolling_members(connection: &mut Connection, set_uid: &str) -> Result<Vec<RollingMember>, StoreError> {
    let sql = format!("{SELECT_ROLLING} ORDER BY m.cluster_uid");
    read_rolling(
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(set_uid.to_owned())
            .fetch_all(connection)
            .await?,
    )
}

/// The versions of a member, as JSON of candidates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberVersions {
    /// None: nothing is assigned yet.
    pub assigned: Option<String>,
    /// None: the same as `assigned`, or nothing.
    pub candidate: Option<String>,
}

/// Members on these clusters, in no particular order.
pub async fn told_members(
    connection: &mut Connection,
    set_uid: &str,
    cluster_uids: &[&str],
) -> Result<(Vec<RollingMember>, Vec<MemberVersions>), StoreError> {
    let mut rows = Vec::with_capacity(cluster_uids.len());
    for some in chunks(cluster_uids) {
        let sql = format!(
            "{} AND (m.set_uid, m.cluster_uid) IN (VALUES {})",
            with_versions().replace("m.set_uid = $1 AND ", ""),
            parameters(some.len(), 2)
        );
        let mut select = sqlx::query(sqlx::AssertSqlSafe(sql));
        for cluster_uid in some {
            select = select.bind(set_uid.to_owned()).bind((*cluster_uid).to_owned());
        }
        rows.extend(select.fetch_all(&mut *connection).await?);
    }
    read_told(rows)
}

/// At most `limit` members after a cluster.
pub async fn page_of_told_members(
    connection: &mut Connection,
    set_uid: &str,
    (after, limit): (&str, u32),
) -> Result<(Vec<RollingMember>, Vec<MemberVersions>), StoreError> {
    let sql = format!(
        "{} AND m.cluster_uid > $2 ORDER BY m.cluster_uid LIMIT $3",
        with_versions()
    );
    let select = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(set_uid.to_owned())
        .bind(after.to_owned());
    read_told(select.bind(i64::from(limit)).fetch_all(connection).await?)
}

fn with_versions() -> String {
    // Don't read equal values twice: these are the longest columns.
    let columns = ", a.assigned, CASE WHEN a.candidate = a.assigned THEN NULL ELSE a.candidate END AS candidate FROM set_members m";
    SELECT_ROLLING.replace(" FROM set_members m", columns)
}

fn read_told(rows: Vec<Row>) -> Result<(Vec<RollingMember>, Vec<MemberVersions>), StoreError> {
    use sqlx::Row as _;
    let mut versions = Vec::with_capacity(rows.len());
    for row in &rows {
        versions.push(MemberVersions {
            assigned: row.try_get("assigned")?,
            candidate: row.try_get("candidate")?,
        });
    }
    Ok((read_rolling(rows)?, versions))
}

const SELECT_ROLLING: &str = "SELECT m.set_uid, m.cluster_uid, m.service_uid, m.service_name, m.ready, m.generation, m.wanted, m.looked_at, m.stands, \
        m.track, CASE WHEN m.held_spec = '' THEN '' ELSE '{}' END AS held_spec, '' AS back_spec, m.published, m.published_at, m.evidence, \
        m.step, m.pin, COALESCE((SELECT pin FROM rollouts WHERE set_uid = $1), 0) AS set_pin, a.generation AS seen, \
        CAST(CASE WHEN COALESCE((SELECT MIN(path) FROM service_paths WHERE service_paths.service_uid = m.service_uid), '') = '' THEN 1 ELSE 0 END AS BIGINT) AS touched, \
        '' AS documents, m.looked_mac, CAST(CASE WHEN m.looked_mac <> '' AND (p.mac IS NULL OR p.marks <> 0 OR p.mac <> m.looked_mac) THEN 1 ELSE 0 END AS BIGINT) AS parameters_changed, m.rests, m.changes \
        FROM set_members m LEFT JOIN assignments a ON a.service_uid = m.service_uid \
        LEFT JOIN service_parameters p ON p.service_uid = m.service_uid \
        WHERE m.set_uid = $1 AND m.left_at = 0 AND m.service_uid <> ''";

fn read_rolling(rows: Vec<Row>) -> Result<Vec<RollingMember>, StoreError> {
    use sqlx::{FromRow as _, Row as _};
    let mut members = Vec::with_capacity(rows.len());
    for row in &rows {
        members.push(RollingMember {
            row: MemberRollout::from_row(row)?,
            seen: row.try_get("seen")?,
            touched: row.try_get::<i64, _>("touched")? == 1,
            parameters_changed: row.try_get::<i64, _>("parameters_changed")? == 1,
            rests: row.try_get("rests")?,
            changes: row.try_get("changes")?,
        });
    }
    Ok(members)
}

pub async fn rollout_of_service(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Option<MemberRollout>, StoreError> {
    let sql = format!("{SELECT} WHERE service_uid = $1");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(service_uid.to_owned())
        .fetch_optional(connection)
        .await?)
}

/// The track of a service. None: it is no member of a set.
pub async fn track_of_service(connection: &mut Connection, service_uid: &str) -> Result<Option<String>, StoreError> {
    let select =
        sqlx::query_scalar("SELECT track FROM set_members WHERE service_uid = $1").bind(service_uid.to_owned());
    Ok(select.fetch_optional(connection).await?)
}

/// Members of all sets on a cluster.
pub(super) async fn rollouts_of_cluster(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<Vec<MemberRollout>, StoreError> {
    let sql = format!("{SELECT} WHERE cluster_uid = $1 AND service_uid <> ''");
    Ok(sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(cluster_uid.to_owned())
        .fetch_all(connection)
        .await?)
}

/// Saves the reconciliation of a service: the change it wants, and why it is held.
pub async fn save_look(connection: &mut Connection, row: &MemberRollout) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE set_members SET wanted = $2, looked_at = $3, stands = $4, pin = $5, documents = $6, looked_mac = $7, \
         rests = 0, changes = changes + 1 WHERE service_uid = $1",
    )
    .bind(&row.service_uid)
    .bind(&row.wanted)
    .bind(&row.looked_at)
    .bind(&row.stands)
    .bind(row.pin)
    .bind(&row.documents)
    .bind(&row.looked_mac)
    .execute(connection)
    .await?;
    Ok(())
}

/// Sets the spec in effect until the service's own may take effect.
pub async fn hold_spec(connection: &mut Connection, service_uid: &str, spec: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET held_spec = $2 WHERE service_uid = $1")
        .bind(service_uid)
        .bind(spec)
        .execute(connection)
        .await?;
    Ok(())
}

/// Sets the spec in effect from now on, and the one before.
pub async fn save_specs(
    connection: &mut Connection,
    service_uid: &str,
    (held, back): (&str, &str),
) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET held_spec = $2, back_spec = $3 WHERE service_uid = $1")
        .bind(service_uid)
        .bind(held)
        .bind(back)
        .execute(connection)
        .await?;
    Ok(())
}

/// Records the generation of its service that the set wrote.
pub async fn save_generation(
    connection: &mut Connection,
    service_uid: &str,
    generation: i64,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET generation = $2, rests = 0, changes = changes + 1 WHERE service_uid = $1")
        .bind(service_uid)
        .bind(generation)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn save_published(
    connection: &mut Connection,
    service_uid: &str,
    published: &str,
    now: i64,
) -> Result<(), StoreError> {
    let sql = "UPDATE set_members SET published = $2, published_at = $3, rests = 0, changes = changes + 1 \
               WHERE service_uid = $1";
    sqlx::query(sql)
        .bind(service_uid)
        .bind(published)
        .bind(now)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn save_evidence(connection: &mut Connection, service_uid: &str, evidence: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET evidence = $2, rests = 0, changes = changes + 1 WHERE service_uid = $1")
        .bind(service_uid)
        .bind(evidence)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn save_track(
    connection: &mut Connection,
    service_uid: &str,
    (track, step): (&str, i64),
) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET track = $2, step = $3, rests = 0 WHERE service_uid = $1")
        .bind(service_uid)
        .bind(track)
        .bind(step)
        .execute(connection)
        .await?;
    Ok(())
}

/// Saves how a member rests, unless it was written after the decision had read it.
pub async fn save_rest(
    connection: &mut Connection,
    service_uid: &str,
    (rests, changes): (i64, i64),
) -> Result<(), StoreError> {
    sqlx::query("UPDATE set_members SET rests = $2 WHERE service_uid = $1 AND changes = $3")
        .bind(service_uid)
        .bind(rests)
        .bind(changes)
        .execute(connection)
        .await?;
    Ok(())
}

/// SQL: wakes the members among these services that were reconciled with parameters, because their parameters have
/// changed.
pub(super) fn wake_handed_by(services: &str) -> String {
    format!(
        "UPDATE set_members SET rests = 0, changes = changes + 1 WHERE looked_mac <> '' AND service_uid IN ({services})"
    )
}

/// The state as JSON. None: the set has none yet.
pub async fn load_rollout(connection: &mut Connection, set_uid: &str) -> Result<Option<String>, StoreError> {
    let select = sqlx::query_scalar("SELECT state FROM rollouts WHERE set_uid = $1").bind(set_uid);
    Ok(select.fetch_optional(connection).await?)
}

pub async fn save_rollout(connection: &mut Connection, set_uid: &str, state: &str) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO rollouts (set_uid, state) VALUES ($1, $2) \
         ON CONFLICT (set_uid) DO UPDATE SET state = excluded.state",
    )
    .bind(set_uid)
    .bind(state)
    .execute(connection)
    .await?;
    Ok(())
}

pub async fn delete_rollout(connection: &mut Connection, set_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM rollouts WHERE set_uid = $1")
        .bind(set_uid)
        .execute(&mut *connection)
        .await?;
    delete_set_versions(connection, set_uid).await
}
