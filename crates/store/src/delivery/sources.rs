//! The served revision of each source, and the archive of each content.

use std::collections::BTreeMap;

use farwater_api::Digest;
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

use super::{
    charts::delete_charts,
    desired::parse_digest,
    origins::delete_source_origin,
    paths::{touch_paths, touch_source},
};
use crate::{Connection, StoreError};

/// How a revision was read and checked before it was served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Taken {
    pub submodules: bool,
    pub lfs: bool,
    /// The address of the Git repository that it was fetched from. None for other sources, whose origin has it, and for
    /// revisions that were fetched before addresses were stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How it was verified: mode and keys, in the verifier's words. None: no verification was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<String>,
    /// Name of the artifact on disk, if that is not its manifest's digest, because one manifest may give several. None:
    /// the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Digest>,
    /// Texts that a pipeline has promoted with it, by their names in `configuration`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
}

/// The served revision of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    pub source_uid: String,
    /// The branch or tag that was followed.
    pub reference: String,
    pub commit: String,
    /// Seconds since 1970.
    pub fetched: i64,
    pub taken: Taken,
}

pub(super) type RevisionRow = (String, String, String, i64, Option<String>);

pub(super) fn revision((source_uid, reference, commit, fetched, terms): RevisionRow) -> Result<Revision, StoreError> {
    let problem = |error: serde_json::Error| StoreError::Row {
        what: format!("the terms of the revision of source {source_uid}"),
        problem: error.to_string(),
    };
    let taken = terms
        .map(|text| serde_json::from_str(&text))
        .transpose()
        .map_err(problem)?
        .unwrap_or_default();
    Ok(Revision {
        source_uid,
        reference,
        commit,
        fetched,
        taken,
    })
}

/// A bundle, and how to rebuild it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    pub content_id: Digest,
    pub digest: Digest,
    /// Size of the uncompressed archive.
    pub bytes: u64,
    pub source_uid: String,
    pub commit: String,
    pub path: String,
}

const REVISION: &str = "SELECT revisions.source_uid, reference, commit_id, fetched, terms FROM revisions \
                        LEFT JOIN revision_terms ON revision_terms.source_uid = revisions.source_uid";

pub async fn load_revision(connection: &mut Connection, source_uid: &str) -> Result<Option<Revision>, StoreError> {
    let query = AssertSqlSafe(format!("{REVISION} WHERE revisions.source_uid = $1"));
    let row: Option<RevisionRow> = sqlx::query_as(query)
        .bind(source_uid)
        .fetch_optional(connection)
        .await?;
    row.map(revision).transpose()
}

pub async fn load_revisions(connection: &mut Connection) -> Result<Vec<Revision>, StoreError> {
    let rows: Vec<RevisionRow> = sqlx::query_as(REVISION).fetch_all(connection).await?;
    rows.into_iter().map(revision).collect()
}

/// Saves a revision that may differ from the one before in any path.
pub async fn save_revision(connection: &mut Connection, revision: &Revision) -> Result<(), StoreError> {
    touch_source(connection, &revision.source_uid).await?;
    write_revision(connection, revision).await
}

/// Saves a revision that differs from the one before only in these paths. Returns (namespace, name) of the services
/// concerned.
pub async fn move_revision(
    connection: &mut Connection,
    revision: &Revision,
    changed: &[String],
) -> Result<Vec<(String, String)>, StoreError> {
    write_revision(connection, revision).await?;
    touch_paths(connection, &revision.source_uid, changed).await
}

async fn write_revision(connection: &mut Connection, revision: &Revision) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO revisions (source_uid, reference, commit_id, fetched) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (source_uid) DO UPDATE SET reference = excluded.reference, commit_id = excluded.commit_id, \
         fetched = excluded.fetched",
    )
    .bind(&revision.source_uid)
    .bind(&revision.reference)
    .bind(&revision.commit)
    .bind(revision.fetched)
    .execute(&mut *connection)
    .await?;
    delete_terms(connection, &revision.source_uid).await?;
    if revision.taken == Taken::default() {
        return Ok(());
    }
    sqlx::query("INSERT INTO revision_terms (source_uid, terms) VALUES ($1, $2)")
        .bind(&revision.source_uid)
        .bind(serde_json::to_string(&revision.taken).map_err(StoreError::abort)?)
        .execute(connection)
        .await?;
    Ok(())
}

/// Makes the source serve nothing until it is fetched again. Its identity is kept.
pub async fn withdraw_revision(connection: &mut Connection, source_uid: &str) -> Result<(), StoreError> {
    touch_source(connection, source_uid).await?;
    delete_terms(connection, source_uid).await?;
    sqlx::query("DELETE FROM revisions WHERE source_uid = $1")
        .bind(source_uid)
        .execute(connection)
        .await?;
    Ok(())
}

async fn delete_terms(connection: &mut Connection, source_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM revision_terms WHERE source_uid = $1")
        .bind(source_uid)
        .execute(connection)
        .await?;
    Ok(())
}

pub async fn delete_revision(connection: &mut Connection, source_uid: &str) -> Result<(), StoreError> {
    withdraw_revision(connection, source_uid).await?;
    delete_charts(connection, source_uid).await?;
    delete_source_origin(connection, source_uid).await
}

type BundleRow = (String, String, i64, String, String, String);

fn bundle(row: BundleRow) -> Result<Bundle, sqlx::Error> {
    let (content_id, digest, bytes, source_uid, commit, path) = row;
    let bytes = bytes.unsigned_abs();
    Ok(Bundle {
        content_id: parse_digest(&content_id)?,
        digest: parse_digest(&digest)?,
        bytes,
        source_uid,
        commit,
        path,
    })
}

pub async fn bundle_of_content(connection: &mut Connection, content_id: &Digest) -> Result<Option<Bundle>, StoreError> {
    let row: Option<BundleRow> = sqlx::query_as(
        "SELECT content_id, digest, bytes, source_uid, commit_id, path FROM bundles WHERE content_id = $1",
    )
    .bind(content_id.to_string())
    .fetch_optional(connection)
    .await?;
    Ok(row.map(bundle).transpose()?)
}

/// Every known way to rebuild a bundle: one of its sources may be gone while another still exists.
pub async fn bundle_of_digest(connection: &mut Connection, digest: &Digest) -> Result<Vec<Bundle>, StoreError> {
    let rows: Vec<BundleRow> =
        sqlx::query_as("SELECT content_id, digest, bytes, source_uid, commit_id, path FROM bundles WHERE digest = $1")
            .bind(digest.to_string())
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(bundle).collect::<Result<_, _>>()?)
}

/// Saves a bundle. Its digest never changes; its origin follows the newest source.
pub async fn save_bundle(connection: &mut Connection, bundle: &Bundle) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO bundles (content_id, digest, bytes, source_uid, commit_id, path) VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (content_id) DO UPDATE SET source_uid = excluded.source_uid, commit_id = excluded.commit_id, \
         path = excluded.path",
    )
    .bind(bundle.content_id.to_string())
    .bind(bundle.digest.to_string())
    .bind(bundle.bytes as i64)
    .bind(&bundle.source_uid)
    .bind(&bundle.commit)
    .bind(&bundle.path)
    .execute(connection)
    .await?;
    Ok(())
}
