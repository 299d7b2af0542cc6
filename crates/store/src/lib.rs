//! Resources, their change log and the narrow tables beside them: in one SQLite file, or in a PostgreSQL database that
//! several replicas may share.
//!
//! One counter row orders all writes; its lock is held until the commit, so numbers become visible in order. In each
//! process one write combiner owns the only writing connection. Everything that must be atomic goes through it:
//! resource writes in batches, and closures by [`Store::transact`].
//!
//! ```text
//!  write() ─┐                    ┌─ counter's lock, resources, changes, counter   (one durable transaction)
//!  write() ─┼─ combiner ─ batch ─┤
//! transact()┘                    └─ after commit: what is at hand, the ring, then answer ── watch()
//!                                                        │          ↑
//!                                      get() ────────────┘          │
//!                           other replicas ── changes ── tail ──────┘
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod archive;
mod at_hand;
mod combiner;
mod compaction;
pub mod delivery;
mod engine;
mod error;
pub mod fsck;
pub mod garbage;
mod location;
mod lock;
mod meta;
mod migrations;
mod open;
mod read;
mod readers;
mod resource;
mod ring;
mod row;
mod rows;
mod schema;
mod seal;
mod seal_keys;
mod session;
mod settings;
mod tail;
mod tallies;
mod tokens;
mod tx;
mod visit;
mod watch;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use sqlx::Connection as _;
use tokio::{
    sync::{mpsc, oneshot, watch::Receiver},
    time::timeout,
};

use at_hand::{AtHand, Begun};
use combiner::{Request, Work};
use engine::Engine;
use readers::Readers;
use ring::Ring;
use row::{FromParts, StoredParts};
use settings::Settings;

pub use compaction::CompactAfter;
pub use engine::Connection;
pub use error::{OpenError, StoreError, WatchError, WriteError};
pub use location::{Location, PostgresUrl, UrlError};
pub use lock::lock_file;
pub use open::OpenOptions;
pub use readers::Reader;
pub use resource::{
    Change, JsonResource, Key, Kind, LabelRequirement, ListQuery, Operation, Page, Resource, Selector, WatchEvent,
    Write, Written,
};
pub use seal_keys::{DataKeyRow, Resealing, read_data_keys};
pub use session::Sharing;
pub use settings::ChangeHook;
pub use tallies::{Classes, Tally};
pub use tokens::{ApiToken, BoundObject};
pub use tx::Tx;
pub use watch::Watch;

/// The open store; clones share it. When the last one is dropped, requests sent before are still written, then the
/// database is closed.
#[derive(Clone)]
pub struct Store {
    sender: mpsc::Sender<Request>,
    readers: Readers,
    at_hand: Arc<AtHand>,
    ring: Arc<Ring>,
    settings: Arc<Settings>,
    is_taken: Receiver<bool>,
}

impl Store {
    /// Opens the database, creating its schema if needed. Call it in a Tokio runtime: the combiner runs there.
    pub async fn open(options: OpenOptions) -> Result<Self, OpenError> {
        open::open(options).await
    }

    pub fn location(&self) -> &Location {
        &self.settings.database.location
    }

    /// Reads the counter to check that the database answers.
    pub async fn check(&self) -> Result<(), StoreError> {
        let read = async {
            let mut connection = self.readers.acquire().await?;
            Ok(read::load_counter(&mut connection).await?)
        };
        self.read(read).await.map(drop)
    }

    /// Reads an object. One that was recently written or read comes from memory, without a query.
    pub async fn get(&self, key: &Key) -> Result<Option<Resource>, StoreError> {
        let begun = match self.at_hand.find(key) {
            Ok(found) => return Ok(found),
            Err(begun) => begun,
        };
        let read = async {
            let mut connection = self.readers.acquire().await?;
            Ok(read::load_row(&mut connection, key).await?)
        };
        let row = self.read(read).await?;
        self.keep(begun, key, row)
    }

    /// Reads those of these keys that exist, in few statements.
    pub async fn get_all(&self, keys: &[Key]) -> Result<HashMap<Key, Resource>, StoreError> {
        // Keyed, so that a key that is given twice is read once and found both times.
        let (mut found, mut unknown) = (HashMap::new(), HashMap::new());
        for key in keys {
            match self.at_hand.find(key) {
                Ok(object) => found.extend(object.map(|object| (key.clone(), object))),
                Err(begun) => drop(unknown.insert(key, begun)),
            }
        }
        if unknown.is_empty() {
            return Ok(found);
        }
        let read = async {
            let mut connection = self.readers.acquire().await?;
            Ok(read::load_rows(&mut connection, unknown.keys().copied()).await?)
        };
        let mut rows = self.read(read).await?;
        for (key, begun) in unknown {
            let object = self.keep(begun, key, rows.remove(key))?;
            found.extend(object.map(|object| (key.clone(), object)));
        }
        Ok(found)
    }

    /// Parses the row of a key, and keeps the object in memory.
    fn keep(&self, begun: Begun, key: &Key, row: Option<StoredParts>) -> Result<Option<Resource>, StoreError> {
        let sealer = &self.settings.sealer;
        let bytes = row.as_ref().map_or(0, StoredParts::bytes);
        let object = row
            .map(|row| Resource::from_parts(row.open(key, sealer)?, key.clone()))
            .transpose()?;
        if !sealer.seals(&key.kind) {
            self.at_hand.keep(begun, key, object.clone(), bytes);
        }
        Ok(object)
    }

    /// Current rows as of one moment, that of `Page::version`. A call for the next page reads a later moment.
    pub async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.list_as(query).await
    }

    /// Like [`Self::list`], but as JSON at a fraction of the cost, for callers that only pass it on.
    pub async fn list_json(&self, query: &ListQuery) -> Result<Page<JsonResource>, StoreError> {
        self.list_as(query).await
    }

    /// The (namespace, name) of up to `limit` rows of a kind after `after`, in order.
    pub async fn list_names(
        &self,
        kind: &Kind,
        after: Option<(String, String)>,
        limit: usize,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let read = async {
            let mut connection = self.readers.acquire().await?;
            Ok(read::names(&mut connection, kind, after.unwrap_or_default(), limit).await?)
        };
        self.read(read).await
    }

    async fn list_as<T: FromParts>(&self, query: &ListQuery) -> Result<Page<T>, StoreError> {
        let read = async {
            let mut connection = self.readers.acquire().await?;
            let mut snapshot = connection.begin().await?;
            let engine = Engine::of(self.location());
            read::list(&mut snapshot, engine, query, &self.settings.sealer).await
        };
        self.read(read).await
    }

    /// Returns when the write is on disk, or refused. If the caller stops waiting, the write may still happen.
    pub async fn write(&self, write: Write) -> Result<Resource, WriteError> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Write(write, reply)).await?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Runs `work` inside a transaction of the combiner: all of it is committed when this returns `Ok`, and none of it
    /// otherwise. It runs once, between other writes, which wait for it: it must await nothing but the transaction.
    ///
    /// ```text
    /// store
    ///     .transact(move |tx| {
    ///         Box::pin(async move {
    ///             sqlx::query("DELETE FROM dirty WHERE cluster_uid = $1").bind(uid).execute(&mut **tx).await?;
    ///             tx.write(write).await?;
    ///             Ok(())
    ///         })
    ///     })
    ///     .await
    /// ```
    pub async fn transact<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut Tx) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let closure = Closure {
            work: Some(work),
            result: None,
            reply,
        };
        self.send(Request::Transact(Box::new(closure))).await?;
        answer
            .await
            .unwrap_or(Err(StoreError::Closed))
            .map_err(|error| error.at(self.location()))
    }

    /// Changes after `from`, of one kind or of all. `from` is the version of a list, an event or a bookmark. It may be
    /// ahead of [`Store::position`]; then the watch starts there.
    pub fn watch(&self, kind: Option<Kind>, from: u64) -> Result<Watch, WatchError> {
        Watch::start(Arc::clone(&self.ring), kind, from)
    }

    /// The newest version that watchers have seen. An answered write is at or below it.
    pub fn position(&self) -> u64 {
        self.ring.position()
    }

    /// Waits until [`Store::position`] is at least `version`. False: it was not after `limit`.
    pub async fn wait_for(&self, version: u64, limit: Duration) -> bool {
        let mut positions = self.ring.positions();
        matches!(
            timeout(limit, positions.wait_for(|position| *position >= version)).await,
            Ok(Ok(_))
        )
    }

    /// Number of resources by state, by the rules of [`OpenOptions::classes`]. Reads a few rows, however many resources
    /// there are.
    pub async fn tallies(&self) -> Result<Vec<Tally>, StoreError> {
        let read = async {
            let mut connection = self.readers.acquire().await?;
            Ok(tallies::load(&mut connection).await?)
        };
        self.read(read).await
    }

    /// Size of the database: of the file with its log, or as the server reports it.
    pub async fn bytes(&self) -> Result<u64, StoreError> {
        if let Some(path) = self.location().file() {
            let size = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |file| file.len());
            return Ok(size(path) + size(&open::with_suffix(path, "-wal")));
        }
        let read = async {
            let mut connection = self.readers.acquire().await?;
            let size = sqlx::query_scalar("SELECT pg_database_size(current_database())");
            let bytes: i64 = size.fetch_one(&mut *connection).await?;
            Ok(bytes.unsigned_abs())
        };
        self.read(read).await
    }

    /// Returns once another process has taken over the database, so that this store will never write again. Never
    /// returns for a file, and never if replicas share the database.
    pub async fn taken(&self) {
        let mut is_taken = self.is_taken.clone();
        if is_taken.wait_for(|taken| *taken).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Writes requests sent before, ends all watches and closes the database. Later requests get
    /// [`StoreError::Closed`].
    pub async fn close(&self) {
        self.at_hand.close();
        // The last closed connection moves the log into the file, which readers can't do, so readers are closed first.
        // A reader that is never returned must not delay the end; then the next start finds the log.
        let _ = timeout(Duration::from_secs(5), self.readers.close()).await;
        let (reply, closed) = oneshot::channel();
        if self.sender.send(Request::Close(reply)).await.is_ok() {
            let _ = closed.await;
        }
    }

    async fn connection(&self) -> Result<Reader, StoreError> {
        self.read(async { Ok(self.readers.acquire().await?) }).await
    }

    /// Waits for an answer up to the limit, and adds the name of the database to its error.
    async fn read<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.settings
            .database
            .answered(work)
            .await
            .map_err(|error| error.at(self.location()))
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
            let Some(work) = self.work.take() else {
                return Err(StoreError::Closed);
            };
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
        // The caller may have stopped waiting; the commit stays made.
        let _ = self.reply.send(result);
    }
}
