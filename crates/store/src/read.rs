//! Reads rows: a single one, a page, the log. On any connection, so that readers and the writing transaction share the
//! code.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
};

use sqlx::{AssertSqlSafe, Row as _};

use crate::{
    Key, Kind, LabelRequirement, ListQuery, Page, Resource, Selector, StoreError, WatchEvent,
    engine::{Connection, Engine, Row},
    ring::{Committed, RingLimits},
    row::{FromParts, StoredParts, assemble, decode_labels, decode_operation},
    rows::{chunks, parameters},
    seal::Sealer,
};

/// Meta entry with the newest removed version.
pub(crate) const COMPACTED: &str = "compacted";

pub(crate) async fn load_counter(connection: &mut Connection) -> Result<u64, sqlx::Error> {
    let counter: i64 = sqlx::query_scalar("SELECT value FROM counter WHERE id = 1")
        .fetch_one(connection)
        .await?;
    Ok(counter.unsigned_abs())
}

pub(crate) fn version(row: &Row, column: &str) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}

pub(crate) async fn load_row(connection: &mut Connection, key: &Key) -> Result<Option<StoredParts>, sqlx::Error> {
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

/// The rows of those keys that exist.
pub(crate) async fn load_rows(
    connection: &mut Connection,
    keys: impl Iterator<Item = &Key>,
) -> Result<HashMap<Key, StoredParts>, sqlx::Error> {
    let keys: Vec<&Key> = keys.collect::<HashSet<_>>().into_iter().collect();
    let mut found = HashMap::new();
    for some in chunks(&keys) {
        if let [key] = some {
            found.extend(load_row(connection, key).await?.map(|row| ((*key).clone(), row)));
            continue;
        }
        let sql = format!(
            "SELECT kind, namespace, name, uid, version, sealed, labels, body, status FROM resources \
             WHERE (kind, namespace, name) IN (VALUES {})",
            parameters(some.len(), 3)
        );
        let mut select = sqlx::query(AssertSqlSafe(sql));
        for key in some {
            select = select.bind(key.kind.as_str()).bind(&key.namespace).bind(&key.name);
        }
        for row in select.fetch_all(&mut *connection).await? {
            let kind = Kind::from(row.try_get::<&str, _>("kind")?);
            let key = Key {
                kind,
                namespace: row.try_get("namespace")?,
                name: row.try_get("name")?,
            };
            found.insert(key, stored_parts(&row)?);
        }
    }
    Ok(found)
}

pub(crate) fn stored_parts(row: &Row) -> Result<StoredParts, sqlx::Error> {
    Ok(StoredParts {
        uid: row.try_get("uid")?,
        version: version(row, "version")?,
        sealed: row.try_get("sealed")?,
        labels: row.try_get("labels")?,
        body: row.try_get("body")?,
        status: row.try_get("status")?,
    })
}

pub(crate) async fn get(
    connection: &mut Connection,
    key: &Key,
    sealer: &Sealer,
) -> Result<Option<Resource>, StoreError> {
    let Some(row) = load_row(connection, key).await? else {
        return Ok(None);
    };
    Ok(Some(Resource::from_parts(row.open(key, sealer)?, key.clone())?))
}

/// Rows requested at a time, if a page has no limit or its selector drops most rows. PostgreSQL completes a statement
/// even if its rows are no longer wanted.
const ROWS_AT_A_TIME: usize = 1_000;

/// Reads a page. Call it in a transaction with one snapshot: the counter and all rows must be of one moment.
pub(crate) async fn list<T: FromParts>(
    connection: &mut Connection,
    engine: Engine,
    query: &ListQuery,
    sealer: &Sealer,
) -> Result<Page<T>, StoreError> {
    let version = load_counter(connection).await?;
    let labels = match sealer.seals(&query.kind) {
        // Labels of sealed rows are sealed too.
        true => Vec::new(),
        false => conditions(&query.labels),
    };
    let sql = list_sql(engine, query, &labels);

    let (mut namespace, mut name) = query.after.clone().unwrap_or_default();
    let (mut items, mut bytes) = (Vec::new(), 0_usize);
    let mut last = None;
    loop {
        let left = query.limit - items.len().min(query.limit);
        // One more row than fits shows whether there is another page.
        let is_exact = query.limit > 0 && labels.len() == query.labels.0.len();
        let wanted = if is_exact { left + 1 } else { ROWS_AT_A_TIME };
        let after = (&*namespace, &*name);
        let rows = fetch_rows(connection, &sql, (query, &labels), after, wanted).await?;
        let is_last = rows.len() < wanted;
        for row in rows {
            let key = key_of(&query.kind, &row)?;
            let stored = stored_parts(&row)?;
            (namespace, name) = (key.namespace.clone(), key.name.clone());
            // SQL narrows the rows where it can; this check decides.
            if !query.labels.0.is_empty() && !query.labels.matches(&stored.labels(&key, sealer)?) {
                continue;
            }
            if query.limit > 0 && items.len() == query.limit {
                return Ok(Page {
                    items,
                    version,
                    next: last,
                });
            }
            bytes += stored.bytes();
            if bytes > query.max_bytes {
                return Err(StoreError::TooLarge {
                    kind: query.kind.clone(),
                    max: query.max_bytes,
                });
            }
            last = Some((namespace.clone(), name.clone()));
            items.push(T::from_parts(stored.open(&key, sealer)?, key)?);
        }
        if is_last {
            return Ok(Page {
                items,
                version,
                next: None,
            });
        }
    }
}

fn key_of(kind: &Kind, row: &Row) -> Result<Key, sqlx::Error> {
    Ok(Key {
        kind: kind.clone(),
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
    })
}

/// The rows of a query after one name, by the text of [`list_sql`].
async fn fetch_rows(
    connection: &mut Connection,
    sql: &str,
    (query, labels): (&ListQuery, &[Condition<'_>]),
    (namespace, name): (&str, &str),
    limit: usize,
) -> Result<Vec<Row>, sqlx::Error> {
    let mut statement = sqlx::query(AssertSqlSafe(sql))
        .bind(query.kind.as_str())
        .bind(namespace)
        .bind(name)
        .bind(limit as i64)
        .bind(&query.namespace)
        .bind(&query.name);
    for condition in labels {
        statement = statement.bind(condition.key);
        for value in condition.values {
            statement = statement.bind(value);
        }
    }
    statement.fetch_all(connection).await
}

pub(crate) async fn names(
    connection: &mut Connection,
    kind: &Kind,
    after: (String, String),
    limit: usize,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT namespace, name FROM resources WHERE kind = $1 AND (namespace, name) > ($2, $3) \
         ORDER BY namespace, name LIMIT $4",
    )
    .bind(kind.as_str())
    .bind(after.0)
    .bind(after.1)
    .bind(limit as i64)
    .fetch_all(connection)
    .await
}

/// One requirement of a selector in SQL. Key and values are bound, never written into the text.
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

/// The requirements that SQL can check. `->>` could read keys outside Kubernetes' alphabet as paths, and many values
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

/// SQL for keyset paging by the primary key.
fn list_sql(engine: Engine, query: &ListQuery, conditions: &[Condition<'_>]) -> String {
    let mut sql = "SELECT namespace, name, uid, version, sealed, labels, body, status FROM resources \
                   WHERE kind = $1 AND (namespace, name) > ($2, $3)"
        .to_owned();
    sql.push_str(if query.namespace.is_some() {
        " AND namespace = $5"
    } else {
        " AND $5 IS NULL"
    });
    sql.push_str(if query.name.is_some() {
        " AND name = $6"
    } else {
        " AND $6 IS NULL"
    });
    let mut number = 6;
    for Condition { operator, values, .. } in conditions {
        number += 1;
        let label = engine.label(number);
        let values: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(n, _)| format!("${}", number + 1 + n))
            .collect();
        number += values.len();
        let values = values.join(", ");
        let _ = match operator {
            Operator::In => write!(sql, " AND {label} IN ({values})"),
            Operator::NotIn => write!(sql, " AND ({label} IS NULL OR {label} NOT IN ({values}))"),
            Operator::Exists => write!(sql, " AND {label} IS NOT NULL"),
            Operator::NotExists => write!(sql, " AND {label} IS NULL"),
        };
    }
    sql.push_str(" ORDER BY namespace, name LIMIT $4");
    sql
}

pub(crate) async fn load_meta(connection: &mut Connection, name: &str) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT value FROM meta WHERE name = $1")
        .bind(name)
        .fetch_optional(connection)
        .await
}

pub(crate) async fn save_meta(connection: &mut Connection, name: &str, value: &str) -> Result<(), sqlx::Error> {
    let save = sqlx::query(
        "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    );
    save.bind(name).bind(value).execute(connection).await?;
    Ok(())
}

/// Part of the log.
pub(crate) struct LogPart {
    /// In order, up to the requested version.
    pub changes: Vec<Committed>,
    /// Whether there are older ones that didn't fit.
    pub is_cut: bool,
}

/// Changes of the versions after `from` up to `to`: the newest that fit `events` and `bytes`.
pub(crate) async fn load_changes(
    connection: &mut Connection,
    from: u64,
    to: u64,
    limits: RingLimits,
    sealer: &Sealer,
) -> Result<LogPart, StoreError> {
    const AT_A_TIME: usize = 200;
    let (mut changes, mut total, mut below) = (Vec::new(), 0, to.saturating_add(1));
    loop {
        let rows = sqlx::query(
            "SELECT version, kind, namespace, name, uid, operation, sealed, old_labels, body, status FROM changes \
             WHERE version > $1 AND version < $2 ORDER BY version DESC LIMIT $3",
        )
        .bind(from as i64)
        .bind(below as i64)
        .bind(AT_A_TIME as i64)
        .fetch_all(&mut *connection)
        .await?;
        for row in &rows {
            let change = committed(row, sealer)?;
            total += change.bytes;
            if changes.len() == limits.events || total > limits.bytes {
                changes.reverse();
                return Ok(LogPart { changes, is_cut: true });
            }
            below = change.event.version;
            changes.push(change);
        }
        if rows.len() < AT_A_TIME {
            changes.reverse();
            return Ok(LogPart { changes, is_cut: false });
        }
    }
}

/// The newest version that was removed from the log.
pub(crate) async fn load_compacted(connection: &mut Connection) -> Result<u64, sqlx::Error> {
    Ok(load_meta(connection, COMPACTED)
        .await?
        .and_then(|text| text.parse().ok())
        .unwrap_or(0))
}

pub(crate) fn committed(row: &Row, sealer: &Sealer) -> Result<Committed, StoreError> {
    let key = Key {
        kind: Kind::from(row.try_get::<&str, _>("kind")?),
        namespace: row.try_get("namespace")?,
        name: row.try_get("name")?,
    };
    let stored = StoredParts {
        uid: row.try_get("uid")?,
        version: version(row, "version")?,
        sealed: row.try_get("sealed")?,
        labels: String::new(),
        body: row.try_get("body")?,
        status: row.try_get("status")?,
    };
    let old_labels: Vec<u8> = row.try_get("old_labels")?;
    let bytes = old_labels.len() + stored.bytes();
    let old_labels = decode_labels(old_labels, stored.sealed, &key, &stored.uid, sealer)?;
    let operation = decode_operation(row.try_get("operation")?, &key)?;
    let plain = stored.open(&key, sealer)?;
    let object = assemble(&plain.body, plain.status.as_deref(), plain.version, &key)?;
    Ok(Committed {
        event: WatchEvent::new(key, plain.version, operation, object.into(), old_labels),
        bytes,
    })
}
