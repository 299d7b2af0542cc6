//! Identity of each source's repository, origin of each service's objects, and what must be fetched again after a
//! restore.

use std::collections::HashMap;

use sqlx::Row as _;

use super::sources::{Revision, revision};
use crate::{Connection, StoreError, engine::Row, rows::Part};

/// The known identity of a source's repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOrigin {
    pub source_uid: String,
    /// First commit of the served revision's history. Empty: unknown.
    pub root: String,
    pub commit_id: String,
    /// The database was restored, and the source was not fetched since.
    pub unasked: bool,
}

/// The origin of a service's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceOrigin {
    pub service_uid: String,
    /// JSON. Empty: the service was never in sync.
    pub origin: String,
    /// The database was restored, and the source's present revision is not assigned yet.
    pub unasked: bool,
}

pub async fn load_source_origin(
    connection: &mut Connection,
    source_uid: &str,
) -> Result<Option<SourceOrigin>, StoreError> {
    let row: Option<(String, String, i64)> =
        sqlx::query_as("SELECT root, commit_id, unasked FROM origins WHERE source_uid = $1")
            .bind(source_uid)
            .fetch_optional(connection)
            .await?;
    let source_uid = source_uid.to_owned();
    Ok(row.map(|(root, commit_id, unasked)| SourceOrigin {
        source_uid,
        root,
        commit_id,
        unasked: unasked != 0,
    }))
}

/// The served revision of a source and its origin, as of one moment, because they are written together.
pub async fn load_served(
    connection: &mut Connection,
    source_uid: &str,
) -> Result<(Option<SourceOrigin>, Option<Revision>), StoreError> {
    const SELECT: &str = "SELECT o.root, o.commit_id, o.unasked, r.reference, r.commit_id, r.fetched, t.terms \
                          FROM (SELECT CAST($1 AS TEXT) AS uid) s \
                          LEFT JOIN origins o ON o.source_uid = s.uid LEFT JOIN revisions r ON r.source_uid = s.uid \
                          LEFT JOIN revision_terms t ON t.source_uid = r.source_uid";
    type Origin = (Option<String>, Option<String>, Option<i64>);
    type Served = (Option<String>, Option<String>, Option<i64>, Option<String>);
    let row = sqlx::query(SELECT)
        .bind(source_uid.to_owned())
        .fetch_one(connection)
        .await?;
    let (root, commit_id, unasked): Origin = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (reference, commit, fetched, terms): Served =
        (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?, row.try_get(6)?);
    let source_uid = || source_uid.to_owned();
    let origin = root
        .zip(commit_id)
        .zip(unasked)
        .map(|((root, commit_id), unasked)| SourceOrigin {
            source_uid: source_uid(),
            root,
            commit_id,
            unasked: unasked != 0,
        });
    let served = reference.zip(commit).zip(fetched);
    let served = served.map(|((reference, commit), fetched)| (source_uid(), reference, commit, fetched, terms));
    Ok((origin, served.map(revision).transpose()?))
}

pub async fn save_source_origin(connection: &mut Connection, row: &SourceOrigin) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO origins (source_uid, root, commit_id, unasked) VALUES ($1, $2, $3, $4) ON CONFLICT (source_uid) \
         DO UPDATE SET root = excluded.root, commit_id = excluded.commit_id, unasked = excluded.unasked",
    )
    .bind(&row.source_uid)
    .bind(&row.root)
    .bind(&row.commit_id)
    .bind(i64::from(row.unasked))
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn delete_source_origin(connection: &mut Connection, source_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM origins WHERE source_uid = $1")
        .bind(source_uid)
        .execute(connection)
        .await?;
    Ok(())
}

fn service_origin((service_uid, origin, unasked): (String, String, i64)) -> ServiceOrigin {
    ServiceOrigin {
        service_uid,
        origin,
        unasked: unasked != 0,
    }
}

impl Part for ServiceOrigin {
    const COLUMNS: &'static [&'static str] = &["service_uid", "origin", "unasked"];

    fn read(row: &Row, first: usize) -> Result<Self, sqlx::Error> {
        Ok(service_origin((
            row.try_get(first)?,
            row.try_get(first + 1)?,
            row.try_get(first + 2)?,
        )))
    }
}

pub async fn load_service_origin(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Option<ServiceOrigin>, StoreError> {
    let row = sqlx::query_as("SELECT service_uid, origin, unasked FROM service_origins WHERE service_uid = $1")
        .bind(service_uid)
        .fetch_optional(connection)
        .await?;
    Ok(row.map(service_origin))
}

/// The origins of all services of a cluster, by service uid.
pub(super) async fn service_origins_of_cluster(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<HashMap<String, ServiceOrigin>, StoreError> {
    let rows: Vec<_> = sqlx::query_as(
        "SELECT service_origins.service_uid, origin, unasked FROM assignments JOIN service_origins \
         ON service_origins.service_uid = assignments.service_uid WHERE assignments.cluster_uid = $1",
    )
    .bind(cluster_uid)
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(service_origin)
        .map(|row| (row.service_uid.clone(), row))
        .collect())
}

/// Stores an origin (JSON). It may come from a report before the restore, so `unasked` is kept.
pub async fn save_service_origin(
    connection: &mut Connection,
    service_uid: &str,
    origin: &str,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO service_origins (service_uid, origin, unasked) VALUES ($1, $2, 0) ON CONFLICT (service_uid) \
         DO UPDATE SET origin = excluded.origin",
    )
    .bind(service_uid)
    .bind(origin)
    .execute(connection)
    .await?;
    Ok(())
}

/// Records that the source's revision from after the restore is assigned.
pub async fn trust_service_origin(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE service_origins SET unasked = 0 WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn delete_service_origin(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM service_origins WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Marks the sources of one cluster's services, or all sources, as unasked: a restored database may not show their
/// present revisions. They are fetched again, and until then nothing is deleted because of them.
pub async fn distrust_sources(connection: &mut Connection, cluster_uid: Option<&str>) -> Result<(), StoreError> {
    let statements = [
        "INSERT INTO origins (source_uid, root, commit_id, unasked) SELECT DISTINCT source_uid, '', '', 1 FROM assignments \
         WHERE ($1 = '' OR cluster_uid = $1) AND source_uid <> '' ON CONFLICT (source_uid) DO UPDATE SET unasked = 1",
        "INSERT INTO origins (source_uid, root, commit_id, unasked) SELECT DISTINCT service_sources.source_uid, '', '', 1 \
         FROM service_sources JOIN assignments ON assignments.service_uid = service_sources.service_uid \
         WHERE ($1 = '' OR assignments.cluster_uid = $1) ON CONFLICT (source_uid) DO UPDATE SET unasked = 1",
        "INSERT INTO service_origins (service_uid, origin, unasked) SELECT service_uid, '', 1 FROM assignments \
         WHERE ($1 = '' OR cluster_uid = $1) ON CONFLICT (service_uid) DO UPDATE SET unasked = 1",
    ];
    for statement in statements {
        sqlx::query(statement)
            .bind(cluster_uid.unwrap_or_default())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}
