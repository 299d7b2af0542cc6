//! The write combiner: the one task that writes.
//!
//! Whatever waits is put into one transaction, so that an fsync is paid once for up to [`BATCH`] writes. Nobody is
//! answered and no watcher is shown anything before the commit has returned.

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use sqlx::{Connection as _, SqliteConnection};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{error, info, warn};

use crate::{Resource, StoreError, Write, WriteError, compaction, open::Settings, read, ring::Ring, tx::Tx};

/// Waiting requests in one transaction: beyond some hundreds the commit's share is nothing, and the first in the batch
/// waits for the last.
const BATCH: usize = 256;

/// Requests that wait for the combiner before callers wait for a place.
pub(crate) const QUEUE: usize = 1024;

/// How long after a compaction the next is tried.
const COMPACT_EVERY: Duration = Duration::from_secs(10);

pub(crate) enum Request {
    Write(Write, oneshot::Sender<Result<Resource, WriteError>>),
    Transact(Box<dyn Work>),
    Close(oneshot::Sender<()>),
}

/// A closure and who waits for its result.
pub(crate) trait Work: Send {
    /// Runs the closure and keeps its result; the error says that it wants a rollback.
    fn run<'a>(&'a mut self, tx: &'a mut Tx) -> BoxFuture<'a, Result<(), StoreError>>;
    /// Answers with the kept result, or with the failure of the whole transaction.
    fn answer(self: Box<Self>, failure: Option<StoreError>);
}

pub(crate) struct Combiner {
    pub tx: Tx,
    pub ring: Arc<Ring>,
    pub settings: Arc<Settings>,
    pub requests: mpsc::Receiver<Request>,
    /// Held as long as this process may write.
    pub lock: File,
    /// Whether the last transaction failed.
    pub failing: bool,
}

/// One request of a batch, after it ran.
enum Done {
    Write(Result<Resource, WriteError>, oneshot::Sender<Result<Resource, WriteError>>),
    Transact(Box<dyn Work>),
}

impl Done {
    fn answer(self, failure: Option<StoreError>) {
        match self {
            // Whoever waited may be gone; what is committed stays committed.
            Self::Write(result, reply) => drop(reply.send(match failure {
                Some(failure) => Err(failure.into()),
                None => result,
            })),
            Self::Transact(work) => work.answer(failure),
        }
    }
}

impl Combiner {
    pub(crate) async fn run(mut self) {
        let mut compact = interval(COMPACT_EVERY);
        compact.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut compacted = self.ring.position();
        let mut requests = Vec::with_capacity(BATCH);
        let closed = loop {
            tokio::select! {
                biased;
                received = self.requests.recv_many(&mut requests, BATCH) => {
                    if received == 0 {
                        break None;
                    }
                    if let Some(reply) = self.serve(&mut requests).await {
                        break Some(reply);
                    }
                    // Busy writers must not keep the log growing until they pause.
                    if self.ring.position() - compacted < self.settings.compact_after.every() {
                        continue;
                    }
                }
                _ = compact.tick() => {}
            }
            compacted = self.ring.position();
            compact.reset_at(Instant::now() + COMPACT_EVERY);
            self.compact().await;
        };
        self.requests.close();
        self.ring.close();
        if let Err(error) = self.tx.into_connection().close().await {
            warn!(path = %self.settings.path.display(), %error, "closing the database left its log to the next start");
        }
        drop(self.lock);
        if let Some(reply) = closed {
            let _ = reply.send(());
        }
    }

    /// Runs a batch up to a request to close; answers who asked for it.
    async fn serve(&mut self, requests: &mut Vec<Request>) -> Option<oneshot::Sender<()>> {
        let mut batch = Vec::with_capacity(requests.len());
        let mut close = None;
        for request in requests.drain(..) {
            match request {
                Request::Close(reply) => {
                    close = Some(reply);
                    break;
                }
                request => batch.push(request),
            }
        }
        if !batch.is_empty() {
            self.commit_batch(batch).await;
        }
        close
    }

    async fn commit_batch(&mut self, batch: Vec<Request>) {
        let mut done = Vec::with_capacity(batch.len());
        let mut batch = batch.into_iter();
        let outcome = self.run_batch(&mut batch, &mut done).await.map_err(|error| error.at(&self.settings.path));
        match &outcome {
            Err(failure) => {
                // Once: while the disk is full, every batch fails.
                if !self.failing {
                    error!(error = %failure, cause = ?failure, "a transaction failed; all that waited for it are told");
                }
                self.tx.rollback().await;
            }
            Ok(()) if self.failing => info!(path = %self.settings.path.display(), "writing works again"),
            Ok(()) => {}
        }
        self.failing = outcome.is_err();
        let failure = outcome.err();
        for done in done {
            done.answer(failure.clone());
        }
        // What the failure kept from running.
        for request in batch {
            match request {
                Request::Write(_, reply) => {
                    drop(reply.send(Err(failure.clone().unwrap_or(StoreError::Closed).into())));
                }
                Request::Transact(work) => work.answer(Some(failure.clone().unwrap_or(StoreError::Closed))),
                Request::Close(_) => {}
            }
        }
    }

    /// An error leaves nothing committed, and the rest of `batch` not run.
    async fn run_batch(
        &mut self,
        batch: &mut impl Iterator<Item = Request>,
        done: &mut Vec<Done>,
    ) -> Result<(), StoreError> {
        self.begin().await?;
        for request in batch {
            match request {
                Request::Write(write, reply) => {
                    let result = self.tx.write(write).await;
                    done.push(Done::Write(result, reply));
                }
                Request::Transact(mut work) => {
                    let result = self.run_closure(work.as_mut()).await;
                    done.push(Done::Transact(work));
                    result?;
                }
                Request::Close(_) => {}
            }
            if let Some(error) = self.tx.broken() {
                return Err(error);
            }
        }
        if let Some(hook) = &self.settings.on_change {
            let events = self.tx.events();
            if !events.is_empty() {
                hook.mark_changes(&mut self.tx, &events).await?;
            }
        }
        let (changes, position) = self.tx.commit().await?;
        self.ring.append(changes, position);
        Ok(())
    }

    /// A closure that gives up is rolled back alone; the error here is the transaction's.
    async fn run_closure(&mut self, work: &mut dyn Work) -> Result<(), StoreError> {
        let savepoint = self.tx.savepoint().await?;
        let wants = work.run(&mut self.tx).await;
        if let Some(error) = self.tx.broken() {
            return Err(error);
        }
        match wants {
            Ok(()) => self.tx.release().await?,
            Err(reason) => {
                if let Err(error) = self.tx.rollback_to(savepoint).await {
                    // SQLite has rolled back everything by itself, for the reason that ended the closure.
                    return Err(if matches!(reason, StoreError::Sql(_)) { reason } else { error.into() });
                }
            }
        }
        Ok(())
    }

    /// Begins, on a new connection if the old one can't. What a failed commit left in the file after all (its frames may
    /// have been written when only their fsync failed) is shown to watchers first.
    async fn begin(&mut self) -> Result<(), StoreError> {
        let time = seconds_since_1970();
        let counter = match self.tx.begin(time).await {
            Ok(counter) => counter,
            Err(error) => {
                info!(path = %self.settings.path.display(), %error, "connecting to the database again");
                let connection = SqliteConnection::connect_with(&self.settings.writer()).await?;
                self.tx.replace_connection(connection);
                self.tx.begin(time).await?
            }
        };
        let position = self.ring.position();
        if counter != position {
            let changes =
                read::load_changes(&mut self.tx, position, usize::MAX >> 1, usize::MAX, &self.settings.sealer).await?;
            self.ring.append(changes, counter);
        }
        Ok(())
    }

    async fn compact(&mut self) {
        let result = compaction::compact(&mut self.tx, self.settings.compact_after, seconds_since_1970()).await;
        if let Err(error) = result {
            self.tx.rollback().await;
            // Nothing depends on it but the file's size; the next tick tries again.
            warn!(path = %self.settings.path.display(), %error, "compacting the change log failed");
        }
    }
}

pub(crate) fn seconds_since_1970() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
