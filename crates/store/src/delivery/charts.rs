//! What services need besides one Git repository: further sources, charts, and recipes to rebuild their bundles.

use farwater_api::Digest;

use super::Assignment;
use crate::{Connection, StoreError};

/// A source that a service needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceSource {
    pub source_uid: String,
    /// Name of the chart, for a chart repository. Otherwise empty.
    pub chart: String,
    /// A version or a range.
    pub wanted: String,
    /// URL of a repository without a resource. Otherwise empty.
    pub url: String,
}

/// A repository that services use by its URL, without a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedSource {
    pub source_uid: String,
    pub namespace: String,
    pub url: String,
}

from_row!(LinkedSource, [source_uid, namespace, url]);

/// A chart that a service needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChartRow {
    pub source_uid: String,
    pub chart: String,
    pub wanted: String,
    /// Empty: none was found yet.
    pub version: String,
    pub digest: String,
    pub entry: String,
    /// Why nothing newer is served. Empty: there is no problem.
    pub problem: String,
    /// Seconds since 1970.
    pub fetched: i64,
}

from_row!(
    ChartRow,
    [source_uid, chart, wanted, version, digest, entry, problem, fetched]
);

/// Sets the sources of a service. A service with only one source has no row.
pub async fn save_service_sources(
    connection: &mut Connection,
    row: &Assignment,
    sources: &[ServiceSource],
) -> Result<(), StoreError> {
    delete_service_sources(connection, &row.service_uid).await?;
    for source in sources {
        let namespace = if source.url.is_empty() { "" } else { &row.namespace };
        sqlx::query(
            "INSERT INTO service_sources (service_uid, source_uid, chart, wanted, namespace, url) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
        )
        .bind(&row.service_uid)
        .bind(&source.source_uid)
        .bind(&source.chart)
        .bind(&source.wanted)
        .bind(namespace)
        .bind(&source.url)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

pub(super) async fn delete_service_sources(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM service_sources WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Sorted by the type's order, because databases sort by language.
pub async fn sources_of_service(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Vec<ServiceSource>, StoreError> {
    let rows: Vec<(String, String, String, String)> =
        sqlx::query_as("SELECT source_uid, chart, wanted, url FROM service_sources WHERE service_uid = $1")
            .bind(service_uid)
            .fetch_all(connection)
            .await?;
    let source = |(source_uid, chart, wanted, url)| ServiceSource {
        source_uid,
        chart,
        wanted,
        url,
    };
    let mut sources: Vec<_> = rows.into_iter().map(source).collect();
    sources.sort();
    Ok(sources)
}

/// (chart, version or range) of all charts that services need from a repository.
pub async fn wanted_charts(connection: &mut Connection, source_uid: &str) -> Result<Vec<(String, String)>, StoreError> {
    Ok(sqlx::query_as(
        "SELECT DISTINCT chart, wanted FROM service_sources WHERE source_uid = $1 AND chart <> '' ORDER BY chart, wanted",
    )
    .bind(source_uid)
    .fetch_all(connection)
    .await?)
}

/// (namespace, name) of the services that need a chart.
pub async fn services_of_chart(
    connection: &mut Connection,
    source_uid: &str,
    (chart, wanted): (&str, &str),
) -> Result<Vec<(String, String)>, StoreError> {
    Ok(sqlx::query_as(
        "SELECT namespace, name FROM assignments WHERE service_uid IN (SELECT service_uid FROM service_sources \
         WHERE source_uid = $1 AND chart = $2 AND wanted = $3)",
    )
    .bind(source_uid)
    .bind(chart)
    .bind(wanted)
    .fetch_all(connection)
    .await?)
}

/// The repositories without a resource that any service needs.
pub async fn linked_sources(connection: &mut Connection) -> Result<Vec<LinkedSource>, StoreError> {
    Ok(
        sqlx::query_as("SELECT DISTINCT source_uid, namespace, url FROM service_sources WHERE url <> ''")
            .fetch_all(connection)
            .await?,
    )
}

/// A repository without a resource, by uid.
pub async fn linked_source(connection: &mut Connection, source_uid: &str) -> Result<Option<LinkedSource>, StoreError> {
    Ok(sqlx::query_as(
        "SELECT source_uid, namespace, url FROM service_sources WHERE source_uid = $1 AND url <> '' LIMIT 1",
    )
    .bind(source_uid)
    .fetch_optional(connection)
    .await?)
}

pub async fn load_chart(
    connection: &mut Connection,
    source_uid: &str,
    (chart, wanted): (&str, &str),
) -> Result<Option<ChartRow>, StoreError> {
    Ok(sqlx::query_as(
        "SELECT source_uid, chart, wanted, version, digest, entry, problem, fetched FROM charts \
         WHERE source_uid = $1 AND chart = $2 AND wanted = $3",
    )
    .bind(source_uid)
    .bind(chart)
    .bind(wanted)
    .fetch_optional(connection)
    .await?)
}

pub async fn charts_of_source(connection: &mut Connection, source_uid: &str) -> Result<Vec<ChartRow>, StoreError> {
    Ok(sqlx::query_as(
        "SELECT source_uid, chart, wanted, version, digest, entry, problem, fetched FROM charts \
         WHERE source_uid = $1 ORDER BY chart, wanted",
    )
    .bind(source_uid)
    .fetch_all(connection)
    .await?)
}

pub async fn save_chart(connection: &mut Connection, row: &ChartRow) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO charts (source_uid, chart, wanted, version, digest, entry, problem, fetched) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (source_uid, chart, wanted) DO UPDATE SET \
         version = excluded.version, digest = excluded.digest, entry = excluded.entry, problem = excluded.problem, \
         fetched = excluded.fetched",
    )
    .bind(&row.source_uid)
    .bind(&row.chart)
    .bind(&row.wanted)
    .bind(&row.version)
    .bind(&row.digest)
    .bind(&row.entry)
    .bind(&row.problem)
    .bind(row.fetched)
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes a chart that no service needs.
pub async fn delete_chart(
    connection: &mut Connection,
    source_uid: &str,
    (chart, wanted): (&str, &str),
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM charts WHERE source_uid = $1 AND chart = $2 AND wanted = $3")
        .bind(source_uid)
        .bind(chart)
        .bind(wanted)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn delete_charts(connection: &mut Connection, source_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM charts WHERE source_uid = $1")
        .bind(source_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// The recipe to rebuild the bundle of a content. None: it is one folder at one commit.
pub async fn load_recipe(connection: &mut Connection, content_id: &Digest) -> Result<Option<String>, StoreError> {
    Ok(
        sqlx::query_scalar("SELECT recipe FROM bundle_recipes WHERE content_id = $1")
            .bind(content_id.to_string())
            .fetch_optional(connection)
            .await?,
    )
}

pub async fn save_recipe(connection: &mut Connection, content_id: &Digest, recipe: &str) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO bundle_recipes (content_id, recipe) VALUES ($1, $2) \
         ON CONFLICT (content_id) DO UPDATE SET recipe = excluded.recipe",
    )
    .bind(content_id.to_string())
    .bind(recipe)
    .execute(connection)
    .await?;
    Ok(())
}
