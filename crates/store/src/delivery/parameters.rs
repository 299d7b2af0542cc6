//! Inputs of services' parameters by key, and the results: names, MACs and counts, never a value.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap, HashSet},
};

use farwater_api::parameters::ChangedKeys;
use sqlx::{AssertSqlSafe, query};
use zeroize::Zeroizing;

use super::{
    desired::{COUNT_MARK, mark_cluster},
    rollouts::wake_handed_by,
};
use crate::{
    Connection, Key, Kind, Store, StoreError, Tx,
    engine::Row,
    rows::{chunks, list, parameters},
    seal_keys::DOCUMENTS,
};

/// Kinds whose keys may be parameters of services.
pub(super) const SOURCES: [&str; 4] = [
    "servicecontexts.farwater.dev",
    "configmaps",
    "secrets",
    "clusters.farwater.dev",
];

/// Result of the last resolution of a service's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterRow {
    pub service_uid: String,
    /// State of the service and its cluster for which they were resolved.
    pub stamp: String,
    /// MAC of the document. Empty: there is nothing to send.
    pub mac: String,
    /// What is wrong with them. Empty: nothing.
    pub problem: String,
    /// How often the MAC has changed.
    pub turn: i64,
    /// Changes of the inputs since the last resolution.
    pub marks: i64,
}

from_row!(ParameterRow, [service_uid, stamp, mac, problem, turn, marks]);

/// A key of an object that is an input of a service. An empty key: any key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParameterKey {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub key: String,
}

from_row!(ParameterKey, [kind, namespace, name, key]);

/// The version of an object that was read. None: the object did not exist.
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

/// Resolved parameters of one service, and their inputs.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// `marks` are those that were read before the resolution. If there are more by the time of the save, the later
    /// ones stay.
    pub row: ParameterRow,
    pub keys: BTreeSet<ParameterKey>,
}

/// Saves resolved parameters, in few statements and not for deleted services: a change may concern thousands, and other
/// writers wait for the transaction.
pub async fn save_parameters(connection: &mut Connection, resolved: &[Resolved]) -> Result<(), StoreError> {
    for some in chunks(resolved) {
        let alive: HashSet<String> = select_of(connection, "SELECT service_uid FROM assignments", some)
            .await?
            .into_iter()
            .map(|(uid,)| uid)
            .collect();
        let some: Vec<&Resolved> = some.iter().filter(|one| alive.contains(&one.row.service_uid)).collect();
        for some in chunks(&some) {
            save_rows(connection, some).await?;
            save_keys(connection, some).await?;
        }
    }
    Ok(())
}

/// Rows of these services.
async fn select_of<T, R>(connection: &mut Connection, select: &str, some: &[R]) -> Result<Vec<T>, StoreError>
where
    T: for<'r> sqlx::FromRow<'r, Row> + Send + Unpin,
    R: Borrow<Resolved>,
{
    let sql = format!("{select} WHERE service_uid IN {}", parameters(1, some.len()));
    let mut select = sqlx::query_as(AssertSqlSafe(sql));
    for one in some {
        select = select.bind(one.borrow().row.service_uid.clone());
    }
    Ok(select.fetch_all(connection).await?)
}

async fn save_rows(connection: &mut Connection, some: &[&Resolved]) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO service_parameters (service_uid, stamp, mac, problem, turn, marks) VALUES {} \
         ON CONFLICT (service_uid) DO UPDATE SET stamp = excluded.stamp, mac = excluded.mac, problem = excluded.problem, \
         turn = excluded.turn, \
         marks = CASE WHEN service_parameters.marks = excluded.marks THEN 0 ELSE service_parameters.marks END",
        parameters(some.len(), 6)
    );
    let mut insert = query(AssertSqlSafe(sql));
    for Resolved { row, .. } in some {
        insert = insert
            .bind(&row.service_uid)
            .bind(&row.stamp)
            .bind(&row.mac)
            .bind(&row.problem)
            .bind(row.turn);
        insert = insert.bind(row.marks);
    }
    insert.execute(&mut *connection).await?;
    let wake = query(AssertSqlSafe(wake_handed_by(&list(1, some.len()))));
    some.iter()
        .fold(wake, |wake, one| wake.bind(&one.row.service_uid))
        .execute(connection)
        .await?;
    Ok(())
}

async fn save_keys(connection: &mut Connection, some: &[&Resolved]) -> Result<(), StoreError> {
    let select = "SELECT service_uid, kind, namespace, name, key FROM parameter_keys";
    let mut known: HashMap<String, BTreeSet<ParameterKey>> = HashMap::new();
    for (uid, kind, namespace, name, key) in select_of::<(String, _, _, _, _), _>(connection, select, some).await? {
        known.entry(uid).or_default().insert(ParameterKey {
            kind,
            namespace,
            name,
            key,
        });
    }

    let mut rows = Vec::new();
    for Resolved {
        row: ParameterRow { service_uid, .. },
        keys,
    } in some
    {
        let known = known.remove(service_uid).unwrap_or_default();
        if known == *keys {
            continue;
        }
        if !known.is_empty() {
            delete_keys(connection, service_uid).await?;
        }
        rows.extend(keys.iter().map(|key| (service_uid, key)));
    }
    for some in chunks(&rows) {
        let sql = format!(
            "INSERT INTO parameter_keys (service_uid, kind, namespace, name, key) VALUES {} ON CONFLICT DO NOTHING",
            parameters(some.len(), 5)
        );
        let mut insert = query(AssertSqlSafe(sql));
        for (
            service_uid,
            ParameterKey {
                kind,
                namespace,
                name,
                key,
            },
        ) in some
        {
            insert = insert
                .bind(*service_uid)
                .bind(kind)
                .bind(namespace)
                .bind(name)
                .bind(key);
        }
        insert.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn delete_keys(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    query("DELETE FROM parameter_keys WHERE service_uid = $1")
        .bind(service_uid)
        .execute(connection)
        .await?;
    Ok(())
}

fn document_id(service_uid: &str, mac: &str) -> String {
    format!("{DOCUMENTS}{service_uid}/{mac}")
}

/// Stores a service's sealed document: when its agent asks for it, the values may exist nowhere else.
pub async fn save_document(tx: &mut Tx, service_uid: &str, mac: &str, document: &[u8]) -> Result<(), StoreError> {
    tx.save_kept(&document_id(service_uid, mac), 0, document).await
}

pub async fn load_document(
    store: &Store,
    service_uid: &str,
    mac: &str,
) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
    Ok(store
        .load_kept(&document_id(service_uid, mac))
        .await?
        .map(|(_, document)| document))
}

/// Deletes a service's documents except these.
pub async fn retain_documents(
    connection: &mut Connection,
    service_uid: &str,
    macs: &BTreeSet<String>,
) -> Result<(), StoreError> {
    let others = if macs.is_empty() {
        String::new()
    } else {
        format!(" AND id NOT IN ({})", list(3, macs.len()))
    };
    // The character after a slash is a zero.
    let sql = format!("DELETE FROM kept_values WHERE id > $1 AND id < $2{others}");
    let mut delete = query(AssertSqlSafe(sql));
    delete = delete
        .bind(document_id(service_uid, ""))
        .bind(format!("{DOCUMENTS}{service_uid}0"));
    for mac in macs {
        delete = delete.bind(document_id(service_uid, mac));
    }
    delete.execute(connection).await?;
    Ok(())
}

/// Deletes the parameters of a service that is gone or has none any more.
pub async fn delete_parameters(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    delete_keys(connection, service_uid).await?;
    retain_documents(connection, service_uid, &BTreeSet::new()).await?;
    query("DELETE FROM service_parameters WHERE service_uid = $1")
        .bind(service_uid)
        .execute(&mut *connection)
        .await?;
    wake_handed(connection, service_uid).await
}

/// Marks one service's parameters to be resolved again, with its cluster's desired state.
pub async fn mark_parameters(
    connection: &mut Connection,
    service_uid: &str,
    cluster_uid: &str,
) -> Result<(), StoreError> {
    query("UPDATE service_parameters SET marks = marks + 1 WHERE service_uid = $1")
        .bind(service_uid)
        .execute(&mut *connection)
        .await?;
    wake_handed(connection, service_uid).await?;
    mark_cluster(connection, cluster_uid).await
}

async fn wake_handed(connection: &mut Connection, service_uid: &str) -> Result<(), StoreError> {
    query(AssertSqlSafe(wake_handed_by("$1")))
        .bind(service_uid.to_owned())
        .execute(connection)
        .await?;
    Ok(())
}

/// Marks the services that use a changed key, and their clusters. For inputs that are no resources, such as the secrets
/// of another backend; `kind` is their kind in the index.
pub async fn mark_changed_keys(
    connection: &mut Connection,
    kind: &str,
    namespace: &str,
    name: &str,
    changed: &ChangedKeys,
) -> Result<(), StoreError> {
    Ok(mark(connection, kind, namespace, name, changed).await?)
}

/// Prefix of a backend's name in the index kind of its secrets.
const OF_BACKENDS: &str = "secretbackend:%";

/// Kind, namespace and name of the backends' secrets that any service uses.
pub async fn secrets_of_backends(connection: &mut Connection) -> Result<Vec<(String, String, String)>, StoreError> {
    let sql = "SELECT DISTINCT kind, namespace, name FROM parameter_keys WHERE kind LIKE $1";
    Ok(sqlx::query_as(sql).bind(OF_BACKENDS).fetch_all(connection).await?)
}

/// Uid and cluster of the services with unresolved parameters that use a key of a backend.
pub async fn troubled_by_backends(connection: &mut Connection) -> Result<Vec<(String, String)>, StoreError> {
    let sql = "SELECT service_uid, cluster_uid FROM assignments WHERE cluster_uid <> '' AND service_uid IN \
               (SELECT service_uid FROM service_parameters WHERE problem <> '') AND service_uid IN \
               (SELECT service_uid FROM parameter_keys WHERE kind LIKE $1)";
    Ok(sqlx::query_as(sql).bind(OF_BACKENDS).fetch_all(connection).await?)
}

/// The same for one service.
pub async fn backend_secrets_of_service(
    connection: &mut Connection,
    service_uid: &str,
) -> Result<Vec<(String, String, String)>, StoreError> {
    let sql = "SELECT DISTINCT kind, namespace, name FROM parameter_keys WHERE service_uid = $1 AND kind LIKE $2 ORDER BY 1, 2, 3";
    Ok(sqlx::query_as(sql)
        .bind(service_uid)
        .bind(OF_BACKENDS)
        .fetch_all(connection)
        .await?)
}

/// Namespaces and names of the services that use any key of an object.
pub async fn services_handed(
    connection: &mut Connection,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<Vec<(String, String)>, StoreError> {
    let sql = format!("SELECT namespace, name FROM assignments WHERE service_uid IN ({HANDED})");
    Ok(sqlx::query_as(AssertSqlSafe(sql))
        .bind(kind)
        .bind(namespace)
        .bind(name)
        .fetch_all(connection)
        .await?)
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
        // PostgreSQL has no texts with NUL, and this must not fail the write.
        ChangedKeys::Some(keys) if keys.iter().any(|key| key.contains('\0')) => {
            return mark_some(connection, [kind, namespace, name], &[]).await;
        }
        // Includes services that use all keys.
        ChangedKeys::Some(keys) => keys.iter().map(String::as_str).chain([""]).collect(),
    };
    for some in chunks(&keys) {
        mark_some(connection, [kind, namespace, name], some).await?;
    }
    Ok(())
}

/// Without keys: marks every service that uses any key of the object.
async fn mark_some(connection: &mut Connection, object: [&str; 3], keys: &[&str]) -> Result<(), sqlx::Error> {
    let handed = match keys.is_empty() {
        true => HANDED.to_owned(),
        false => format!("{HANDED} AND key IN ({})", list(4, keys.len())),
    };
    let update = format!("UPDATE service_parameters SET marks = marks + 1 WHERE service_uid IN ({handed})");
    let insert = format!(
        "INSERT INTO dirty (cluster_uid, marks) SELECT DISTINCT cluster_uid, 1 FROM assignments WHERE cluster_uid <> '' AND \
         service_uid IN ({handed}) {COUNT_MARK}"
    );
    let wake = wake_handed_by(&handed);
    for (nth, sql) in [update, wake, insert].into_iter().enumerate() {
        let mut statement = query(AssertSqlSafe(sql));
        for value in object.iter().chain(keys) {
            statement = statement.bind((*value).to_owned());
        }
        if statement.execute(&mut *connection).await?.rows_affected() == 0 && nth == 0 {
            return Ok(());
        }
    }
    Ok(())
}

/// Present versions of these objects. Each is read once.
pub async fn versions_of(connection: &mut Connection, keys: &[Key]) -> Result<Vec<InputVersion>, StoreError> {
    let mut found: HashMap<Key, u64> = HashMap::new();
    for some in chunks(keys) {
        let sql = format!(
            "SELECT kind, namespace, name, version FROM resources WHERE (kind, namespace, name) IN (VALUES {})",
            parameters(some.len(), 3)
        );
        let mut select = sqlx::query_as(AssertSqlSafe(sql));
        for Key { kind, namespace, name } in some {
            select = select.bind(kind.as_str()).bind(namespace).bind(name);
        }
        let rows: Vec<(String, String, String, i64)> = select.fetch_all(&mut *connection).await?;
        let row = |(kind, namespace, name, version): (String, _, _, i64)| {
            (
                Key {
                    kind: Kind::from(&*kind),
                    namespace,
                    name,
                },
                version.unsigned_abs(),
            )
        };
        found.extend(rows.into_iter().map(row));
    }
    Ok(keys
        .iter()
        .map(|key| InputVersion {
            key: key.clone(),
            version: found.get(key).copied(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    /// A change of one object reads no keys of other objects, whatever their number.
    #[tokio::test]
    async fn who_is_handed_a_key_is_found_by_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(OpenOptions::new(folder.path().join("hub.db"), [7; 32]))
            .await
            .unwrap();
        let mut tables = store.tables().await.unwrap();
        for (sql, index) in [
            (HANDED.to_owned(), "(kind=? AND namespace=? AND name=?)"),
            (
                format!("{HANDED} AND key IN ('a', '')"),
                "(kind=? AND namespace=? AND name=? AND key=?)",
            ),
        ] {
            let sql = format!("EXPLAIN QUERY PLAN {sql}");
            let plan: Vec<(i64, i64, i64, String)> = sqlx::query_as(AssertSqlSafe(sql))
                .fetch_all(&mut *tables)
                .await
                .unwrap();
            assert!(plan[0].3.contains(index), "{plan:?}");
        }
    }
}
