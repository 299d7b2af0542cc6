//! Reading rows: one, a page, the log. On any connection, so that readers and the writing transaction share it.

use std::fmt::Write as _;

use futures::TryStreamExt as _;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection, sqlite::SqliteRow};

use crate::{
    Key, Kind, LabelRequirement, ListQuery, Page, Resource, Selector, StoreError, WatchEvent,
    ring::Committed,
    row::{StoredParts, assemble, decode_labels, decode_operation},
    seal::Sealer,
};

pub(crate) async fn load_counter(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    sqlx::query_scalar("SELECT value FROM counter WHERE id = 1").fetch_one(connection).await
}

pub(crate) async fn load_row(connection: &mut SqliteConnection, key: &Key) -> Result<Option<StoredParts>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT uid, version, sealed, labels, body, status FROM resources \
         WHERE kind = $1 AND namespace = $2 AND name = $3",
    )
    .bind(key.kind.as_str())
    .bind(&key.namespace)
    .bind(&key.name)
    .fetch_optional(connection)
    .await?;
    row.map(|row| stored_parts(&row)).transpose()
}

fn stored_parts(row: &SqliteRow) -> Result<StoredParts, sqlx::Error> {
    Ok(StoredParts {
        uid: row.try_get("uid")?,
        version: row.try_get("version")?,
        sealed: row.try_get("sealed")?,
        labels: row.try_get("labels")?,
        body: row.try_get("body")?,
        status: row.try_get("status")?,
    })
}

pub(crate) async fn get(
    connection: &mut SqliteConnection,
    key: &Key,
    sealer: &Sealer,
) -> Result<Option<Resource>, StoreError> {
    let Some(row) = load_row(connection, key).await? else { return Ok(None) };
    Ok(Some(row.open(key, sealer)?.resource(key.clone())?))
}

/// Call it in a transaction: the counter and all rows must be of one moment.
pub(crate) async fn list(
    connection: &mut SqliteConnection,
    query: &ListQuery,
    sealer: &Sealer,
) -> Result<Page, StoreError> {
    let version = load_counter(connection).await?;
    let labels = match sealer.seals(&query.kind) {
        // Their labels are sealed too.
        true => Vec::new(),
        false => conditions(&query.labels),
    };
    let sql = list_sql(query, &labels);
    let (namespace, name) = query.after.clone().unwrap_or_default();
    let mut statement = sqlx::query(AssertSqlSafe(sql)).bind(query.kind.as_str()).bind(namespace).bind(name);
    statement = statement.bind(&query.namespace).bind(&query.name);
    for condition in &labels {
        statement = statement.bind(condition.key);
        for value in condition.values {
            statement = statement.bind(value);
        }
    }
    // Row by row: only what is answered is in memory.
    let mut rows = statement.fetch(connection);
    let mut items: Vec<Resource> = Vec::new();
    while let Some(row) = rows.try_next().await? {
        let key = Key { kind: query.kind.clone(), namespace: row.try_get("namespace")?, name: row.try_get("name")? };
        let stored = stored_parts(&row)?;
        // SQL narrows where it can; this decides.
        if !query.labels.0.is_empty() && !query.labels.matches(&stored.labels(&key, sealer)?) {
            continue;
        }
        if query.limit > 0 && items.len() == query.limit {
            let next = items.last().map(|last| (last.key.namespace.clone(), last.key.name.clone()));
            return Ok(Page { items, version, next });
        }
        items.push(stored.open(&key, sealer)?.resource(key)?);
    }
    Ok(Page { items, version, next: None })
}

/// One requirement of a selector as SQL; key and values are bound, never written into the text.
struct Condition<'a> {
    operator: Operator,
    key: &'a str,
    values: &'a [String],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    NotExists,
}

/// The requirements that SQL can narrow down. Keys outside Kubernetes' alphabet could mean a path to `->>`; many values
/// would exceed the engine's number of parameters.
fn conditions<'a>(selector: &'a Selector) -> Vec<Condition<'a>> {
    let usable = |key: &str| {
        key.starts_with(|c: char| c.is_ascii_alphanumeric())
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
    };
    let condition = |requirement: &'a LabelRequirement| {
        let (operator, key, values): (_, &String, &[String]) = match requirement {
            LabelRequirement::In(key, values) => (Operator::In, key, values),
            LabelRequirement::NotIn(key, values) => (Operator::NotIn, key, values),
            LabelRequirement::Exists(key) => (Operator::Exists, key, &[]),
            LabelRequirement::NotExists(key) => (Operator::NotExists, key, &[]),
        };
        let empty_set = values.is_empty() && matches!(operator, Operator::In | Operator::NotIn);
        (usable(key) && values.len() <= 100 && !empty_set).then_some(Condition { operator, key, values })
    };
    selector.0.iter().filter_map(condition).take(20).collect()
}

/// Keyset paging by the primary key. `->>` reads one label in SQLite (3.38) as in PostgreSQL.
fn list_sql(query: &ListQuery, conditions: &[Condition<'_>]) -> String {
    let mut sql = "SELECT namespace, name, uid, version, sealed, labels, body, status FROM resources \
                   WHERE kind = $1 AND (namespace, name) > ($2, $3)"
        .to_owned();
    sql.push_str(if query.namespace.is_some() { " AND namespace = $4" } else { " AND $4 IS NULL" });
    sql.push_str(if query.name.is_some() { " AND name = $5" } else { " AND $5 IS NULL" });
    let mut number = 5;
    for Condition { operator, values, .. } in conditions {
        number += 1;
        let key = number;
        let values: Vec<String> = values.iter().enumerate().map(|(n, _)| format!("${}", key + 1 + n)).collect();
        number += values.len();
        let values = values.join(", ");
        let _ = match operator {
            Operator::In => write!(sql, " AND labels ->> ${key} IN ({values})"),
            Operator::NotIn => write!(sql, " AND (labels ->> ${key} IS NULL OR labels ->> ${key} NOT IN ({values}))"),
            Operator::Exists => write!(sql, " AND labels ->> ${key} IS NOT NULL"),
            Operator::NotExists => write!(sql, " AND labels ->> ${key} IS NULL"),
        };
    }
    sql.push_str(" ORDER BY namespace, name");
    sql
}

pub(crate) async fn load_meta(connection: &mut SqliteConnection, name: &str) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT value FROM meta WHERE name = $1").bind(name).fetch_optional(connection).await
}

pub(crate) async fn save_meta(connection: &mut SqliteConnection, name: &str, value: &str) -> Result<(), sqlx::Error> {
    let save = sqlx::query(
        "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    );
    save.bind(name).bind(value).execute(connection).await?;
    Ok(())
}

/// Changes behind `version`, newest first while they fit `events` and `bytes`; then put in order.
pub(crate) async fn load_changes(
    connection: &mut SqliteConnection,
    version: u64,
    events: usize,
    bytes: usize,
    sealer: &Sealer,
) -> Result<Vec<Committed>, StoreError> {
    let mut rows = sqlx::query(
        "SELECT version, kind, namespace, name, uid, operation, sealed, old_labels, body, status FROM changes \
         WHERE version > $1 ORDER BY version DESC LIMIT $2",
    )
    .bind(version as i64)
    .bind(events as i64)
    .fetch(connection);
    let (mut changes, mut total) = (Vec::new(), 0);
    while let Some(row) = rows.try_next().await? {
        let change = committed(&row, sealer)?;
        total += change.bytes;
        if total > bytes {
            break;
        }
        changes.push(change);
    }
    changes.reverse();
    Ok(changes)
}

fn committed(row: &SqliteRow, sealer: &Sealer) -> Result<Committed, StoreError> {
    let key = Key {
        kind: Kind::from(row.try_get::<&str, _>("kind")?),
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
    };
    let stored = StoredParts {
        uid: row.try_get("uid")?,
        version: row.try_get("version")?,
        sealed: row.try_get("sealed")?,
        labels: String::new(),
        body: row.try_get("body")?,
        status: row.try_get("status")?,
    };
    let old_labels: Vec<u8> = row.try_get("old_labels")?;
    let bytes = old_labels.len() + stored.body.len() + stored.status.as_ref().map_or(0, Vec::len);
    let old_labels = decode_labels(old_labels, stored.sealed, &key, &stored.uid, sealer)?;
    let operation = decode_operation(row.try_get("operation")?, &key)?;
    let plain = stored.open(&key, sealer)?;
    let object = assemble(&plain.body, plain.status.as_deref(), plain.version, &key)?;
    let event =
        WatchEvent { version: plain.version, key, operation, object: object.into(), old_labels: old_labels.into() };
    Ok(Committed { event, bytes })
}
