//! What services are handed, by key, and what came of it: names, MACs and counts, never a value.

use std::collections::HashMap;

use farwater_api::parameters::ChangedKeys;

use super::desired::COUNT_MARK;
use crate::{
    Connection, Key, StoreError,
    rows::{chunks, parameters},
};

/// Kinds whose keys services may be handed.
pub(super) const SOURCES: [&str; 4] =
    ["servicecontexts.farwater.dev", "configmaps", "secrets", "clusters.farwater.dev"];

/// What came of a service's parameters when they were resolved last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterRow {
    pub service_uid: String,
    /// What of the service and its cluster they were resolved for.
    pub stamp: String,
    /// Empty where there is nothing to send.
    pub mac: String,
    /// What is wrong with them; empty where nothing is.
    pub problem: String,
    /// How often the MAC has become another one.
    pub turn: i64,
    /// Changes of what the service is handed that came since.
    pub marks: i64,
}

from_row!(ParameterRow, [service_uid, stamp, mac, problem, turn, marks]);

/// A key of an object that a service is handed; without a key any of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParameterKey {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub key: String,
}

from_row!(ParameterKey, [kind, namespace, name, key]);

/// Which state of an object was read. None: there was no such object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InputVersion {
    pub key: Key,
    pub version: Option<u64>,
}

pub async fn load_parameters(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Option<ParameterRow>, StoreError> {
    let sql = "SELECT service_uid, stamp, mac, problem, turn, marks FROM service_parameters WHERE service_uid = $1";
    Ok(sqlx::query_as(sql).bind(service_uid).fetch_optional(connection).await?)
}

/// By service uid.
pub async fn parameters_of_cluster(
    connection: &mut Connection,
    cluster_uid: &str,
) -> Result<HashMap<String, ParameterRow>, StoreError> {
    let sql = "SELECT service_uid, stamp, mac, problem, turn, marks FROM service_parameters WHERE service_uid IN \
               (SELECT service_uid FROM assignments WHERE cluster_uid = $1)";
    let rows: Vec<ParameterRow> = sqlx::query_as(sql).bind(cluster_uid).fetch_all(connection).await?;
    Ok(rows.into_iter().map(|row| (row.service_uid.clone(), row)).collect())
}

/// Writes what came of them and what they depend on. `row.marks` are those that were read before they were resolved: if more have
/// come since, they stay.
pub async fn save_parameters(
    connection: &mut Connection,
    row: &ParameterRow,
    keys: &[ParameterKey],
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO service_parameters (service_uid, stamp, mac, problem, turn, marks) VALUES ($1, $2, $3, $4, $5, 0) \
         ON CONFLICT (service_uid) DO UPDATE SET stamp = excluded.stamp, mac = excluded.mac, problem = excluded.problem, \
         turn = excluded.turn, \
         marks = CASE WHEN service_parameters.marks = $6 THEN 0 ELSE service_parameters.marks END",
    )
    .bind(&row.service_uid)
    .bind(&row.stamp)
    .bind(&row.mac)
    .bind(&row.problem)
    .bind(row.turn)
    .bind(row.marks)
    .execute(&mut *connection)
    .await?;
    let known: Vec<ParameterKey> = sqlx::query_as(
        "SELECT kind, namespace, name, key FROM parameter_keys WHERE service_uid = $1 ORDER BY kind, namespace, name, key",
    )
    .bind(&row.service_uid)
    .fetch_all(&mut *connection)
    .await?;
    if known != keys {
        delete_keys(connection, &row.service_uid).await?;
        insert_keys(connection, &row.service_uid, keys).await?;
    }
    Ok(())
}

async fn insert_keys(connection: &mut Connection, service_uid: &str, keys: &[ParameterKey]) -> Result<(), StoreError> {
    for some in chunks(keys) {
        let values = parameters(some.len(), 5);
        let sql = format!(
            "INSERT INTO parameter_keys (service_uid, kind, namespace, name, key) VALUES {values} ON CONFLICT DO NOTHING"
        );
        let mut insert = sqlx::query(sqlx::AssertSqlSafe(sql));
        for ParameterKey { kind, namespace, name, key } in some {
            insert = insert.bind(service_uid).bind(kind).bind(namespace).bind(name).bind(key);
        }
        insert.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn delete_keys(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM parameter_keys WHERE service_uid = $1").bind(service_uid).execute(connection).await?;
    Ok(())
}

/// Of a service that is gone, or that has none any more.
pub async fn delete_parameters(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    delete_keys(connection, service_uid).await?;
    sqlx::query("DELETE FROM service_parameters WHERE service_uid = $1").bind(service_uid).execute(connection).await?;
    Ok(())
}

/// Has one service's parameters resolved anew. Its cluster is marked by itself.
pub async fn mark_parameters(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE service_parameters SET marks = marks + 1 WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

/// Has the services resolved anew that are handed a key that has changed, and marks their clusters. For what is no resource of
/// ours, such as the secrets of another backend: `kind` is what their keys are noted under.
pub async fn mark_changed_keys(
    connection: &mut Connection,
    kind: &str,
    namespace: &str,
    name: &str,
    changed: &ChangedKeys,
) -> Result<(), StoreError> {
    Ok(mark(connection, kind, namespace, name, changed).await?)
}

const HANDED: &str = "SELECT service_uid FROM parameter_keys WHERE kind = $1 AND namespace = $2 AND name = $3";

pub(super) async fn mark(
    connection: &mut Connection,
    kind: &str,
    namespace: &str,
    name: &str,
    changed: &ChangedKeys,
) -> Result<(), sqlx::Error> {
    let keys: Vec<&str> = match changed {
        ChangedKeys::Any => return mark_some(connection, [kind, namespace, name], &[]).await,
        ChangedKeys::Some(keys) if keys.is_empty() => return Ok(()),
        // Who is handed all of them, too.
        ChangedKeys::Some(keys) => keys.iter().map(String::as_str).chain([""]).collect(),
    };
    for some in chunks(&keys) {
        mark_some(connection, [kind, namespace, name], some).await?;
    }
    Ok(())
}

/// Without keys whoever is handed something of the object.
async fn mark_some(connection: &mut Connection, object: [&str; 3], keys: &[&str]) -> Result<(), sqlx::Error> {
    let places: Vec<String> = (4..4 + keys.len()).map(|n| format!("${n}")).collect();
    let handed = match places.is_empty() {
        true => HANDED.to_owned(),
        false => format!("{HANDED} AND key IN ({})", places.join(", ")),
    };
    let update = format!("UPDATE service_parameters SET marks = marks + 1 WHERE service_uid IN ({handed})");
    let insert = format!(
        "INSERT INTO dirty (cluster_uid, marks) SELECT DISTINCT cluster_uid, 1 FROM assignments WHERE cluster_uid <> '' AND \
         service_uid IN ({handed}) {COUNT_MARK}"
    );
    for sql in [update, insert] {
        let mut statement = sqlx::query(sqlx::AssertSqlSafe(sql));
        for value in object.iter().chain(keys) {
            statement = statement.bind((*value).to_owned());
        }
        if statement.execute(&mut *connection).await?.rows_affected() == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Which state these objects have now.
pub async fn versions_of(
    connection: &mut Connection,
    keys: impl IntoIterator<Item = Key>,
) -> Result<Vec<InputVersion>, StoreError> {
    let mut versions = Vec::new();
    for key in keys {
        let sql = "SELECT version FROM resources WHERE kind = $1 AND namespace = $2 AND name = $3";
        let version: Option<i64> = sqlx::query_scalar(sql)
            .bind(key.kind.as_str())
            .bind(&key.namespace)
            .bind(&key.name)
            .fetch_optional(&mut *connection)
            .await?;
        versions.push(InputVersion { key, version: version.map(i64::unsigned_abs) });
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, Store};

    /// A change of one object reads no other's keys, whatever their number.
    #[tokio::test]
    async fn who_is_handed_a_key_is_found_by_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(OpenOptions::new(folder.path().join("hub.db"), [7; 32])).await.unwrap();
        let mut tables = store.tables().await.unwrap();
        for (sql, index) in [
            (HANDED.to_owned(), "(kind=? AND namespace=? AND name=?)"),
            (format!("{HANDED} AND key IN ('a', '')"), "(kind=? AND namespace=? AND name=? AND key=?)"),
        ] {
            let sql = format!("EXPLAIN QUERY PLAN {sql}");
            let plan: Vec<(i64, i64, i64, String)> =
                sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_all(&mut *tables).await.unwrap();
            assert!(plan[0].3.contains(index), "{plan:?}");
        }
    }
}
