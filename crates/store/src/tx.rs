//! The combiner's open transaction: writes to resources, and the changes of closures to their own tables.

mod plan;
mod statements;

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use sqlx::{AssertSqlSafe, Row as _};

use crate::{
    Key, Kind, ListQuery, Page, Resource, StoreError, WatchEvent, Write, WriteError, Written,
    engine::{Connection, Engine},
    read,
    ring::Committed,
    row::{PlainParts, StoredParts},
    seal::Sealer,
    seal_keys,
    tallies::{Classes, TallyChanges},
};
use plan::Plan;

/// The only writing transaction. Derefs to its connection, for the narrow tables. Resources are written only by
/// [`Tx::write`], which assigns their versions and informs watchers.
///
/// Never commit or roll back on the connection. Return its errors instead of continuing after them, because the engine
/// may have rolled back everything. Wait for nothing but the connection: all writers wait meanwhile, also those of
/// other replicas.
pub struct Tx {
    engine: Engine,
    /// None: it was lost, or abandoned during a statement.
    connection: Option<Connection>,
    sealer: Arc<Sealer>,
    /// Kinds whose owner references are ignored.
    ownerless: Arc<[Kind]>,
    classes: Option<Classes>,
    /// The last assigned version.
    number: u64,
    changes: Vec<Pending>,
    broken: Option<Arc<sqlx::Error>>,
    /// Seconds since 1970, when the transaction began.
    time: i64,
    /// Whether there is a savepoint of a closure, which may have ended. It is released with the next closure's
    /// savepoint, or with the commit.
    has_savepoint: bool,
}

impl Deref for Tx {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a transaction has a connection")
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("a transaction has a connection")
    }
}

/// A change whose log entry is written with the others, before the commit.
struct Pending {
    event: WatchEvent,
    row: StoredParts,
    old_labels: Vec<u8>,
    /// The row before the change.
    before: Option<Arc<PlainParts>>,
}

impl Pending {
    fn committed(self) -> Committed {
        let Self {
            event, row, old_labels, ..
        } = self;
        let bytes = old_labels.len() + row.bytes();
        Committed { event, bytes }
    }
}

/// State of the transaction at a savepoint.
pub(crate) struct Mark {
    number: u64,
    changes: usize,
}

impl Tx {
    pub(crate) fn new(
        engine: Engine,
        connection: Connection,
        sealer: Arc<Sealer>,
        ownerless: Arc<[Kind]>,
        classes: Option<Classes>,
    ) -> Self {
        let connection = Some(connection);
        let (changes, broken) = (Vec::new(), None);
        let (number, time, has_savepoint) = (0, 0, false);
        Self {
            engine,
            connection,
            sealer,
            ownerless,
            classes,
            number,
            changes,
            broken,
            time,
            has_savepoint,
        }
    }

    pub(crate) fn take_connection(&mut self) -> Option<Connection> {
        self.connection.take()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Drops the connection, and with it its transaction. The changes are kept until the next one begins.
    pub(crate) fn drop_connection(&mut self) {
        self.connection = None;
    }

    pub(crate) fn replace_connection(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }

    /// Begins, waiting for the counter's lock. Returns the counter.
    pub(crate) async fn begin(&mut self, time: i64) -> Result<u64, sqlx::Error> {
        self.changes.clear();
        self.broken = None;
        self.has_savepoint = false;
        self.time = time;
        self.number = self.lock().await?;
        Ok(self.number)
    }

    /// Begins a transaction that only reads; the changes to be committed are kept.
    pub(crate) async fn lock(&mut self) -> Result<u64, sqlx::Error> {
        let begin = sqlx::raw_sql(self.engine.begin());
        // Read all results: the first is that of BEGIN, which has no row.
        let rows = begin.fetch_all(&mut **self).await?;
        let [counter, newest] = &rows[..] else {
            return Err(sqlx::Error::RowNotFound);
        };
        let counter = read::version(counter, "value")?;
        if newest.try_get::<i64, _>("number")? != i64::from(self.sealer.active()) {
            let sealer = Arc::clone(&self.sealer);
            seal_keys::reload(self, &sealer).await?;
        }
        Ok(counter)
    }

    pub(crate) fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    /// Raises the counter to `number` for good.
    pub(crate) async fn raise_counter(&mut self, number: u64) -> Result<(), sqlx::Error> {
        self.number = number;
        let update = sqlx::query("UPDATE counter SET value = $1 WHERE id = 1").bind(number as i64);
        update.execute(&mut **self).await?;
        Ok(())
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The keys that it has changed so far.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Key> {
        self.changes.iter().map(|change| &change.event.key)
    }

    /// The changes so far.
    pub(crate) fn written(&self) -> Vec<Written> {
        let written = |change: &Pending| Written {
            event: change.event.clone(),
            before: change.before.clone(),
        };
        self.changes.iter().map(written).collect()
    }

    /// Runs everything that precedes the commit itself.
    pub(crate) async fn prepare_commit(&mut self) -> Result<(), sqlx::Error> {
        self.log_changes().await
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let mut commit = match self.has_changes() {
            true => self.engine.commit(self.number),
            false => "COMMIT".to_owned(),
        };
        if std::mem::take(&mut self.has_savepoint) {
            // After an error that a closure ignored, PostgreSQL answers COMMIT with success but rolls back. RELEASE
            // SAVEPOINT fails in that case.
            commit.insert_str(0, "RELEASE SAVEPOINT closure; ");
        }
        sqlx::raw_sql(AssertSqlSafe(commit)).execute(&mut **self).await?;
        Ok(())
    }

    /// The committed changes, and the counter.
    pub(crate) fn take_committed(&mut self) -> (Vec<Committed>, u64) {
        (self.changes.drain(..).map(Pending::committed).collect(), self.number)
    }

    /// Rolls back. The engine may have done so by itself, so it is no error if there is no transaction.
    pub(crate) async fn rollback(&mut self) {
        self.changes.clear();
        self.end().await;
    }

    /// Ends a transaction that only read.
    pub(crate) async fn end(&mut self) {
        if self.is_connected() && sqlx::raw_sql("ROLLBACK").execute(&mut **self).await.is_err() {
            // SQLite: there was no transaction. PostgreSQL: the connection is lost.
            if self.engine == Engine::Postgres {
                self.drop_connection();
            }
        }
    }

    pub(crate) async fn savepoint(&mut self) -> Result<Mark, sqlx::Error> {
        let savepoint = match std::mem::replace(&mut self.has_savepoint, true) {
            // The savepoint of the closure before is released by the statement that makes the next.
            true => "RELEASE SAVEPOINT closure; SAVEPOINT closure",
            false => "SAVEPOINT closure",
        };
        sqlx::raw_sql(savepoint).execute(&mut **self).await?;
        Ok(Mark {
            number: self.number,
            changes: self.changes.len(),
        })
    }

    pub(crate) async fn rollback_to(&mut self, mark: Mark) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT closure")
            .execute(&mut **self)
            .await?;
        self.number = mark.number;
        self.changes.truncate(mark.changes);
        Ok(())
    }

    /// Seconds since 1970, the same for the whole transaction.
    pub fn time(&self) -> i64 {
        self.time
    }

    /// Reads an object as the transaction sees it.
    pub async fn get(&mut self, key: &Key) -> Result<Option<Resource>, StoreError> {
        let sealer = Arc::clone(&self.sealer);
        read::get(self, key, &sealer).await
    }

    /// Reads a page as the transaction sees it. `Page::version` is the counter before the transaction.
    pub async fn list(&mut self, query: &ListQuery) -> Result<Page, StoreError> {
        let (engine, sealer) = (self.engine, Arc::clone(&self.sealer));
        read::list(self, engine, query, &sealer).await
    }

    /// One compare-and-swap. A refused write changes nothing, and the closure may continue.
    pub async fn write(&mut self, write: Write) -> Result<Resource, WriteError> {
        let mut results = self.write_all(vec![write]).await?;
        results.pop().unwrap_or(Err(WriteError::Missing))
    }

    /// Compare-and-swaps in order, each on the results of those before it. A refused write changes nothing and affects
    /// no other. An error means that some may be half done: then nothing of this transaction may be committed.
    pub(crate) async fn write_all(
        &mut self,
        writes: Vec<Write>,
    ) -> Result<Vec<Result<Resource, WriteError>>, StoreError> {
        self.try_write_all(writes).await.map_err(|error| {
            let error = Arc::new(error);
            self.broken = Some(Arc::clone(&error));
            StoreError::Sql(error)
        })
    }

    /// The error of writes that may be half done. None: there is none.
    pub(crate) fn broken(&self) -> Option<StoreError> {
        self.broken.clone().map(StoreError::Sql)
    }

    async fn try_write_all(&mut self, writes: Vec<Write>) -> Result<Vec<Result<Resource, WriteError>>, sqlx::Error> {
        let rows = read::load_rows(self, writes.iter().map(|write| &write.key)).await?;
        let tallied = TallyChanges::new(self.classes);
        let mut plan = Plan::new(
            rows,
            self.number,
            Arc::clone(&self.sealer),
            Arc::clone(&self.ownerless),
            tallied,
        );
        let results = writes.into_iter().map(|write| plan.write(write)).collect();
        let Plan {
            number,
            changes,
            rows,
            relations,
            tallied,
            ..
        } = plan;
        self.save_rows(rows).await?;
        tallied.save(self).await?;
        for change in &relations {
            change.follow(self).await?;
        }
        self.number = number;
        self.changes.extend(changes);
        Ok(results)
    }
}
