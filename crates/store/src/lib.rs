//! Resources, their change log and the narrow tables beside them, in one SQLite file.
//!
//! One counter row orders all writes; one write combiner owns the only writing connection. Everything that must be
//! atomic goes through it: resource writes in batches, and closures by [`Store::transact`].
//!
//! ```text
//!  write() ─┐                    ┌─ resources, counter, changes   (one transaction, synchronous=FULL)
//!  write() ─┼─ combiner ─ batch ─┤
//! transact()┘                    └─ after commit: answer, then the ring ── watch()
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod combiner;
mod compaction;
pub mod delivery;
mod error;
pub mod garbage;
mod lock;
mod meta;
mod migrations;
mod open;
mod read;
mod resource;
mod ring;
mod row;
mod seal;
mod tokens;
mod tx;
mod watch;

use std::{path::Path, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::{Connection as _, Sqlite, SqlitePool, pool::PoolConnection};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use combiner::{Request, Work};
use open::Settings;
use ring::Ring;

pub use compaction::CompactAfter;
pub use error::{OpenError, StoreError, WatchError, WriteError};
pub use lock::lock_file;
pub use open::{ChangeHook, OpenOptions};
pub use resource::{
    Change, Key, Kind, LabelRequirement, ListQuery, Operation, Page, Resource, Selector, WatchEvent, Write,
};
pub use tokens::{ApiToken, BoundObject};
pub use tx::Tx;
pub use watch::Watch;

/// The open store; clones share it. When the last one is dropped, what was sent is still written and the file closed.
#[derive(Clone)]
pub struct Store {
    sender: mpsc::Sender<Request>,
    pool: SqlitePool,
    ring: Arc<Ring>,
    settings: Arc<Settings>,
}

impl Store {
    /// Opens the file, or makes it. One process may have it open. Call it in a Tokio runtime: the combiner runs there.
    pub async fn open(options: OpenOptions) -> Result<Self, OpenError> {
        open::open(options).await
    }

    pub fn path(&self) -> &Path {
        &self.settings.path
    }

    pub async fn get(&self, key: &Key) -> Result<Option<Resource>, StoreError> {
        let mut connection = self.connection().await?;
        let row = read::get(&mut connection, key, &self.settings.sealer).await;
        row.map_err(|error| error.at(self.path()))
    }

    /// Current rows, all of one moment: that of `Page::version`. Behind `Page::next`, a later call reads a later moment.
    pub async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let mut connection = self.connection().await?;
        let mut snapshot = connection.begin().await.map_err(|error| self.failed(error))?;
        let page = read::list(&mut snapshot, query, &self.settings.sealer).await;
        page.map_err(|error| error.at(self.path()))
    }

    /// Returns when the write is on the disk, or refused. If the caller stops waiting, the write may happen or not.
    pub async fn write(&self, write: Write) -> Result<Resource, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Write(write, reply)).await?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Runs `work` inside a transaction of the combiner: all of it is committed when this returns `Ok`, and none of it
    /// otherwise. It runs once, between other writes, which wait for it: it must await nothing but the transaction.
    ///
    /// ```no_run
    /// # use farwater_store::{Store, StoreError, Write};
    /// # async fn clean(store: Store, uid: String, write: Write) -> Result<(), StoreError> {
    /// store
    ///     .transact(move |tx| {
    ///         Box::pin(async move {
    ///             sqlx::query("DELETE FROM dirty WHERE cluster_uid = $1").bind(uid).execute(&mut **tx).await?;
    ///             tx.write(write).await?;
    ///             Ok(())
    ///         })
    ///     })
    ///     .await
    /// # }
    /// ```
    pub async fn transact<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let closure = Closure { work: Some(work), result: None, reply };
        self.send(Request::Transact(Box::new(closure))).await?;
        answer.await.unwrap_or(Err(StoreError::Closed)).map_err(|error| error.at(self.path()))
    }

    /// Changes behind `from`, of one kind or of all. `from` is the version of a list, of an event or of a bookmark; it
    /// may be ahead of [`Store::position`], then the watch starts there.
    pub fn watch(&self, kind: Option<Kind>, from: u64) -> Result<Watch, WatchError> {
        Watch::start(Arc::clone(&self.ring), kind, from)
    }

    /// The newest version that watchers are shown. A write that was answered is at or below it.
    pub fn position(&self) -> u64 {
        self.ring.position()
    }

    /// Waits until [`Store::position`] is at least `version`; false if it isn't after `limit`.
    pub async fn wait_for(&self, version: u64, limit: Duration) -> bool {
        let mut positions = self.ring.positions();
        matches!(timeout(limit, positions.wait_for(|position| *position >= version)).await, Ok(Ok(_)))
    }

    /// For SELECTs of the narrow tables; its connections can't write.
    pub fn reader(&self) -> &SqlitePool {
        &self.pool
    }

    /// Writes what was sent before, ends all watches and closes the file. Later requests are [`StoreError::Closed`].
    pub async fn close(&self) {
        // The last connection to close puts the log into the file, and readers can't: so they go first. One that is
        // never handed back must not hold up the end; then the next start finds the log.
        let _ = timeout(Duration::from_secs(5), self.pool.close()).await;
        let (reply, closed) = oneshot::channel();
        if self.sender.send(Request::Close(reply)).await.is_ok() {
            let _ = closed.await;
        }
    }

    async fn connection(&self) -> Result<PoolConnection<Sqlite>, StoreError> {
        self.pool.acquire().await.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: sqlx::Error) -> StoreError {
        StoreError::from(error).at(self.path())
    }

    async fn send(&self, request: Request) -> Result<(), StoreError> {
        self.sender.send(request).await.map_err(|_| StoreError::Closed)
    }
}

struct Closure<T, F> {
    work: Option<F>,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Work for Closure<T, F>
where
    T: Send + 'static,
    F: for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'static,
{
    fn run<'a>(&'a mut self, tx: &'a mut Tx) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let Some(work) = self.work.take() else { return Err(StoreError::Closed) };
            let result = work(tx).await;
            let wants = result.as_ref().map(drop).map_err(Clone::clone);
            self.result = Some(result);
            wants
        })
    }

    fn answer(self: Box<Self>, failure: Option<StoreError>) {
        let result = match failure {
            Some(failure) => Err(failure),
            None => self.result.unwrap_or(Err(StoreError::Closed)),
        };
        // Whoever waited may be gone; what is committed stays committed.
        let _ = self.reply.send(result);
    }
}
