//! The combiner's open transaction: writes to resources, and whatever a closure does to its own tables.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
};

use serde_json::Value;
use sqlx::SqliteConnection;

use crate::{
    Change, Key, Kind, ListQuery, Operation, Page, Resource, StoreError, WatchEvent, Write, WriteError,
    garbage::{Relations, follow_delete, follow_write},
    read,
    ring::Committed,
    row::{Labels, Parts, StoredParts, encode_labels, encode_operation, labels_of_object},
    seal::Sealer,
};

/// The one writing transaction. Derefs to its SQLite connection, for the narrow tables; resources are written by
/// [`Tx::write`] only, which numbers them and tells watchers.
///
/// Never commit or roll back on the connection, return its errors instead of going on after them (SQLite may have rolled
/// back everything), and wait for nothing but the connection: all writers of the hub wait meanwhile.
pub struct Tx {
    connection: SqliteConnection,
    sealer: Arc<Sealer>,
    /// Kinds whose owners aren't followed.
    ownerless: Vec<Kind>,
    /// The last number taken.
    number: u64,
    changes: Vec<Pending>,
    broken: Option<Arc<sqlx::Error>>,
    /// Seconds since 1970, when the transaction began.
    time: i64,
}

impl Deref for Tx {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

/// A change whose log entry is written with the others, before the commit.
struct Pending {
    event: WatchEvent,
    row: StoredParts,
    old_labels: Vec<u8>,
}

impl Pending {
    fn committed(self) -> Committed {
        let Self { event, row, old_labels } = self;
        let bytes = old_labels.len() + row.body.len() + row.status.as_ref().map_or(0, Vec::len);
        Committed { event, bytes }
    }
}

/// Where a savepoint stands.
pub(crate) struct Mark {
    number: u64,
    changes: usize,
}

impl Tx {
    pub(crate) fn new(connection: SqliteConnection, sealer: Arc<Sealer>, ownerless: Vec<Kind>) -> Self {
        Self { connection, sealer, ownerless, number: 0, changes: Vec::new(), broken: None, time: 0 }
    }

    pub(crate) fn into_connection(self) -> SqliteConnection {
        self.connection
    }

    pub(crate) fn replace_connection(&mut self, connection: SqliteConnection) {
        self.connection = connection;
    }

    /// Takes the write lock; answers the counter.
    pub(crate) async fn begin(&mut self, time: i64) -> Result<u64, sqlx::Error> {
        sqlx::query("BEGIN IMMEDIATE").execute(&mut self.connection).await?;
        self.changes.clear();
        self.broken = None;
        self.time = time;
        self.number = read::load_counter(&mut self.connection).await?;
        Ok(self.number)
    }

    /// What the transaction has changed so far.
    pub(crate) fn events(&self) -> Vec<WatchEvent> {
        self.changes.iter().map(|change| change.event.clone()).collect()
    }

    /// Answers what was changed and where the counter stands.
    pub(crate) async fn commit(&mut self) -> Result<(Vec<Committed>, u64), sqlx::Error> {
        if !self.changes.is_empty() {
            self.log_changes().await?;
            let update = sqlx::query("UPDATE counter SET value = $1 WHERE id = 1");
            update.bind(self.number as i64).execute(&mut self.connection).await?;
        }
        sqlx::query("COMMIT").execute(&mut self.connection).await?;
        Ok((self.changes.drain(..).map(Pending::committed).collect(), self.number))
    }

    /// Many rows in a statement: each statement is a hand-over to the connection's thread and back. Few sizes, so that
    /// each is prepared once.
    async fn log_changes(&mut self) -> Result<(), sqlx::Error> {
        let mut rest = &self.changes[..];
        for (size, sql) in LOG_CHANGES.iter() {
            while let Some((some, others)) = rest.split_at_checked(*size) {
                let mut insert = sqlx::query(sql.as_str());
                for Pending { event, row, old_labels } in some {
                    insert = insert
                        .bind(row.version as i64)
                        .bind(event.key.kind.as_str())
                        .bind(&event.key.namespace)
                        .bind(&event.key.name)
                        .bind(&row.uid)
                        .bind(encode_operation(event.operation))
                        .bind(row.sealed)
                        .bind(self.time)
                        .bind(old_labels)
                        .bind(&row.body)
                        .bind(&row.status);
                }
                insert.execute(&mut self.connection).await?;
                rest = others;
            }
        }
        Ok(())
    }

    /// SQLite may have rolled back by itself, so that there is nothing to do is no error.
    pub(crate) async fn rollback(&mut self) {
        self.changes.clear();
        let _ = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
    }

    pub(crate) async fn savepoint(&mut self) -> Result<Mark, sqlx::Error> {
        sqlx::query("SAVEPOINT closure").execute(&mut self.connection).await?;
        Ok(Mark { number: self.number, changes: self.changes.len() })
    }

    pub(crate) async fn release(&mut self) -> Result<(), sqlx::Error> {
        sqlx::query("RELEASE SAVEPOINT closure").execute(&mut self.connection).await?;
        Ok(())
    }

    pub(crate) async fn rollback_to(&mut self, mark: Mark) -> Result<(), sqlx::Error> {
        sqlx::query("ROLLBACK TO SAVEPOINT closure").execute(&mut self.connection).await?;
        self.release().await?;
        self.number = mark.number;
        self.changes.truncate(mark.changes);
        Ok(())
    }

    /// Seconds since 1970, the same for the whole transaction.
    pub fn time(&self) -> i64 {
        self.time
    }

    /// As the transaction sees it.
    pub async fn get(&mut self, key: &Key) -> Result<Option<Resource>, StoreError> {
        read::get(&mut self.connection, key, &self.sealer).await
    }

    /// As the transaction sees it. `Page::version` is the counter before the transaction.
    pub async fn list(&mut self, query: &ListQuery) -> Result<Page, StoreError> {
        read::list(&mut self.connection, query, &self.sealer).await
    }

    /// One compare-and-swap. A refusal changes nothing, and the closure may go on.
    pub async fn write(&mut self, write: Write) -> Result<Resource, WriteError> {
        let result = self.try_write(write).await;
        if let Err(WriteError::Store(StoreError::Sql(error))) = &result {
            self.broken = Some(Arc::clone(error));
        }
        result
    }

    /// The error of a write that may have been done by half: nothing of this transaction may be committed.
    pub(crate) fn broken(&self) -> Option<StoreError> {
        self.broken.clone().map(StoreError::Sql)
    }

    async fn try_write(&mut self, write: Write) -> Result<Resource, WriteError> {
        let Write { key, change } = write;
        match change {
            Change::Create(object) => {
                let parts = Parts::of(object, &key)?;
                self.insert(key, parts).await
            }
            Change::Replace { uid, version, object } => {
                let current = self.expect(&key, &uid, version).await?;
                let parts = Parts::of(object, &key)?;
                self.update(key, current, parts).await
            }
            Change::Delete { uid, version } => {
                let current = self.expect(&key, &uid, version).await?;
                self.delete(key, current).await
            }
        }
    }

    async fn expect(&mut self, key: &Key, uid: &str, version: u64) -> Result<StoredParts, WriteError> {
        let row = read::load_row(&mut self.connection, key).await?.ok_or(WriteError::Missing)?;
        if row.uid == uid && row.version == version {
            return Ok(row);
        }
        let current = Box::new(row.open(key, &self.sealer)?.resource(key.clone())?);
        Err(WriteError::Conflict { current })
    }

    async fn insert(&mut self, key: Key, parts: Parts) -> Result<Resource, WriteError> {
        let version = self.number + 1;
        let row = StoredParts::new(&parts, &key, version, &self.sealer);
        let inserted = sqlx::query(
            "INSERT INTO resources (kind, namespace, name, uid, version, sealed, labels, body, status) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (kind, namespace, name) DO NOTHING",
        )
        .bind(key.kind.as_str())
        .bind(&key.namespace)
        .bind(&key.name)
        .bind(&row.uid)
        .bind(version as i64)
        .bind(row.sealed)
        .bind(&row.labels)
        .bind(&row.body)
        .bind(&row.status)
        .execute(&mut self.connection)
        .await?;
        if inserted.rows_affected() == 0 {
            return Err(WriteError::Exists);
        }
        let object = Arc::new(parts.into_object(version));
        self.follow(&key, &row.uid, &Relations::default(), &object).await?;
        Ok(self.append(key, Operation::Created, row, Labels::new(), object))
    }

    async fn update(&mut self, key: Key, current: StoredParts, parts: Parts) -> Result<Resource, WriteError> {
        if parts.uid != current.uid {
            let problem = "its metadata has another uid than the resource".to_owned();
            return Err(StoreError::Object { key: Box::new(key), problem }.into());
        }
        let seal_changed = current.sealed != self.sealer.seals(&key.kind);
        let old_labels = current.labels(&key, &self.sealer)?;
        let plain = current.open(&key, &self.sealer)?;
        let (same_body, same_status) = (plain.body == parts.body, plain.status == parts.status);
        if same_body && same_status && !seal_changed {
            return Ok(plain.resource(key)?);
        }
        let version = self.number + 1;
        let row = StoredParts::new(&parts, &key, version, &self.sealer);
        sqlx::query(
            "UPDATE resources SET version = $4, sealed = $5, labels = $6, body = $7, status = $8 \
             WHERE kind = $1 AND namespace = $2 AND name = $3",
        )
        .bind(key.kind.as_str())
        .bind(&key.namespace)
        .bind(&key.name)
        .bind(version as i64)
        .bind(row.sealed)
        .bind(&row.labels)
        .bind(&row.body)
        .bind(&row.status)
        .execute(&mut self.connection)
        .await?;
        let object = Arc::new(parts.into_object(version));
        self.follow(&key, &row.uid, &Relations::of_body(&plain.body), &object).await?;
        Ok(self.append(key, Operation::Updated, row, old_labels, object))
    }

    /// Keeps what the garbage collector goes by in step with a resource that was written.
    async fn follow(&mut self, key: &Key, uid: &str, old: &Relations, object: &Value) -> Result<(), sqlx::Error> {
        if self.ownerless.contains(&key.kind) {
            return Ok(());
        }
        follow_write(&mut self.connection, key, uid, old, &Relations::of(object)).await
    }

    async fn delete(&mut self, key: Key, mut row: StoredParts) -> Result<Resource, WriteError> {
        row.version = self.number + 1;
        let last = row.clone().open(&key, &self.sealer)?.resource(key.clone())?;
        sqlx::query("DELETE FROM resources WHERE kind = $1 AND namespace = $2 AND name = $3")
            .bind(key.kind.as_str())
            .bind(&key.namespace)
            .bind(&key.name)
            .execute(&mut self.connection)
            .await?;
        if !self.ownerless.contains(&key.kind) {
            follow_delete(&mut self.connection, &key, &row.uid, &Relations::of(&last.object)).await?;
        }
        let old_labels = labels_of_object(&last.object);
        Ok(self.append(key, Operation::Deleted, row, old_labels, last.object))
    }

    /// Takes the next number for what was just written.
    fn append(
        &mut self,
        key: Key,
        operation: Operation,
        row: StoredParts,
        old_labels: Labels,
        object: Arc<Value>,
    ) -> Resource {
        self.number = row.version;
        let stored_labels = encode_labels(&old_labels, row.sealed, &key, &row.uid, &self.sealer);
        let resource = Resource { key, uid: row.uid.clone(), version: row.version, object };
        let event = WatchEvent {
            version: row.version,
            key: resource.key.clone(),
            operation,
            object: Arc::clone(&resource.object),
            old_labels: Arc::new(old_labels),
        };
        self.changes.push(Pending { event, row, old_labels: stored_labels });
        resource
    }
}

/// By number of rows.
static LOG_CHANGES: LazyLock<[(usize, String); 3]> = LazyLock::new(|| [64, 8, 1].map(|rows| (rows, log_sql(rows))));

fn log_sql(rows: usize) -> String {
    const COLUMNS: usize = 11;
    let values = |row: usize| {
        let numbers: Vec<String> = (1..=COLUMNS).map(|column| format!("${}", row * COLUMNS + column)).collect();
        format!("({})", numbers.join(", "))
    };
    let values: Vec<String> = (0..rows).map(values).collect();
    format!(
        "INSERT INTO changes \
         (version, kind, namespace, name, uid, operation, sealed, written, old_labels, body, status) VALUES {}",
        values.join(", ")
    )
}
