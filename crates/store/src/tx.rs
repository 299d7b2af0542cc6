//! The combiner's open transaction: writes to resources, and whatever a closure does to its own tables.

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

/// The one writing transaction. Derefs to its connection, for the narrow tables; resources are written by [`Tx::write`]
/// only, which numbers them and tells watchers.
///
/// Never commit or roll back on the connection, return its errors instead of going on after them (the engine may have
/// rolled back everything), and wait for nothing but the connection: all writers wait meanwhile, of other replicas too.
pub struct Tx {
    engine: Engine,
    /// None: it was lost, or left in the middle of something.
    connection: Option<Connection>,
    sealer: Arc<Sealer>,
    /// Kinds whose owners aren't followed.
    ownerless: Arc<[Kind]>,
    classes: Option<Classes>,
    /// The last number taken.
    number: u64,
    changes: Vec<Pending>,
    broken: Option<Arc<sqlx::Error>>,
    /// Seconds since 1970, when the transaction began.
    time: i64,
    /// Of a closure, which may have ended; it goes with the next one's, or with the commit.
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
    /// What it takes the place of.
    before: Option<Arc<PlainParts>>,
}

impl Pending {
    fn committed(self) -> Committed {
        let Self { event, row, old_labels, .. } = self;
        let bytes = old_labels.len() + row.bytes();
        Committed { event, bytes }
    }
}

/// Where a savepoint stands.
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
        Self { engine, connection, sealer, ownerless, classes, number, changes, broken, time, has_savepoint }
    }

    pub(crate) fn take_connection(&mut self) -> Option<Connection> {
        self.connection.take()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Its transaction is gone with it; what was changed is kept until the next one begins.
    pub(crate) fn drop_connection(&mut self) {
        self.connection = None;
    }

    pub(crate) fn replace_connection(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }

    /// Begins, and waits for the counter's lock; answers the counter.
    pub(crate) async fn begin(&mut self, time: i64) -> Result<u64, sqlx::Error> {
        self.changes.clear();
        self.broken = None;
        self.has_savepoint = false;
        self.time = time;
        self.number = self.lock().await?;
        Ok(self.number)
    }

    /// Begins a transaction that only looks: what is to be committed stays as it is.
    pub(crate) async fn lock(&mut self) -> Result<u64, sqlx::Error> {
        let begin = sqlx::raw_sql(self.engine.begin());
        // All of it: the first answer is that of the beginning, which has no row.
        let rows = begin.fetch_all(&mut **self).await?;
        let [counter, newest] = &rows[..] else { return Err(sqlx::Error::RowNotFound) };
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

    /// Goes on with numbers behind `number`, for good.
    pub(crate) async fn raise_counter(&mut self, number: u64) -> Result<(), sqlx::Error> {
        self.number = number;
        let update = sqlx::query("UPDATE counter SET value = $1 WHERE id = 1").bind(number as i64);
        update.execute(&mut **self).await?;
        Ok(())
    }

    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The keys of what it has changed so far.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &Key> {
        self.changes.iter().map(|change| &change.event.key)
    }

    /// What the transaction has changed so far.
    pub(crate) fn written(&self) -> Vec<Written> {
        let written = |change: &Pending| Written { event: change.event.clone(), before: change.before.clone() };
        self.changes.iter().map(written).collect()
    }

    /// Everything that comes before the commit itself.
    pub(crate) async fn prepare_commit(&mut self) -> Result<(), sqlx::Error> {
        self.log_changes().await
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let mut commit = match self.has_changes() {
            true => self.engine.commit(self.number),
            false => "COMMIT".to_owned(),
        };
        if std::mem::take(&mut self.has_savepoint) {
            // PostgreSQL answers a COMMIT well that rolls back, after an error that a closure has kept to itself; this it does not.
            commit.insert_str(0, "RELEASE SAVEPOINT closure; ");
        }
        sqlx::raw_sql(AssertSqlSafe(commit)).execute(&mut **self).await?;
        Ok(())
    }

    /// What was committed, and where the counter stands.
    pub(crate) fn take_committed(&mut self) -> (Vec<Committed>, u64) {
        (self.changes.drain(..).map(Pending::committed).collect(), self.number)
    }

    /// The engine may have rolled back by itself, so that there is nothing to do is no error.
    pub(crate) async fn rollback(&mut self) {
        self.changes.clear();
        self.end().await;
    }

    /// Ends a transaction that only looked.
    pub(crate) async fn end(&mut self) {
        if self.is_connected() && sqlx::raw_sql("ROLLBACK").execute(&mut **self).await.is_err() {
            // Of SQLite: there was none. Of PostgreSQL: the connection is lost.
            if self.engine == Engine::Postgres {
                self.drop_connection();
            }
        }
    }

    pub(crate) async fn savepoint(&mut self) -> Result<Mark, sqlx::Error> {
        let savepoint = match std::mem::replace(&mut self.has_savepoint, true) {
            // That of the closure before goes with the statement that makes the next.
            true => "RELEASE SAVEPOINT closure; SAVEPOINT closure",
            false => "SAVEPOINT closure",
        };
        sqlx::raw_sql(savepoint).execute(&mut **self).await?;
        Ok(Mark { number: self.number, changes: self.changes.len() })
    }

    pub(crate) async fn rollback_to(&mut self, mark: Mark) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("ROLLBACK TO SAVEPOINT closure").execute(&mut **self).await?;
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
        let sealer = Arc::clone(&self.sealer);
        read::get(self, key, &sealer).await
    }

    /// As the transaction sees it. `Page::version` is the counter before the transaction.
    pub async fn list(&mut self, query: &ListQuery) -> Result<Page, StoreError> {
        let (engine, sealer) = (self.engine, Arc::clone(&self.sealer));
        read::list(self, engine, query, &sealer).await
    }

    /// One compare-and-swap. A refusal changes nothing, and the closure may go on.
    pub async fn write(&mut self, write: Write) -> Result<Resource, WriteError> {
        let mut results = self.write_all(vec![write]).await?;
        results.pop().unwrap_or(Err(WriteError::Missing))
    }

    /// Compare-and-swaps one after the other, each on what those before it have made. A refusal changes nothing and touches
    /// no other. An error means that some may have been made by half: nothing of this transaction may be committed.
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

    /// The error of writes that may have been made by half.
    pub(crate) fn broken(&self) -> Option<StoreError> {
        self.broken.clone().map(StoreError::Sql)
    }

    async fn try_write_all(&mut self, writes: Vec<Write>) -> Result<Vec<Result<Resource, WriteError>>, sqlx::Error> {
        let rows = read::load_rows(self, writes.iter().map(|write| &write.key)).await?;
        let tallied = TallyChanges::new(self.classes);
        let mut plan = Plan::new(rows, self.number, Arc::clone(&self.sealer), Arc::clone(&self.ownerless), tallied);
        let results = writes.into_iter().map(|write| plan.write(write)).collect();
        let Plan { number, changes, rows, relations, tallied, .. } = plan;
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
