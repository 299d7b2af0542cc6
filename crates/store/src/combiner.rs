//! The write combiner: the only task of a replica that writes.
//!
//! It puts all waiting requests into one transaction, so that one fsync serves up to [`BATCH`] writes. Callers get
//! their answers, and watchers their events, only after the commit has returned.

mod batch;
mod commit;

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::future::BoxFuture;
use sqlx::Connection as _;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::{error, info, warn};

use crate::{
    Resource, StoreError, Write, WriteError, at_hand::AtHand, compaction, ring::Ring, session, settings::Settings,
    tail::Tail, tx::Tx,
};
use batch::Batch;

/// Most requests in one transaction. Beyond some hundreds the cost of the commit per request is negligible, while the
/// first request waits for the last.
const BATCH: usize = 256;

/// Requests that wait for the combiner before callers wait for a place.
pub(crate) const QUEUE: usize = 1024;

/// Pause between two compactions.
const COMPACT_EVERY: Duration = Duration::from_secs(10);
/// Pause while there is more to compact: writers wait for one step at most.
const COMPACT_ON: Duration = Duration::from_millis(50);

pub(crate) enum Request {
    Write(Write, oneshot::Sender<Result<Resource, WriteError>>),
    Transact(Box<dyn Work>),
    Close(oneshot::Sender<()>),
}

/// A closure, and the caller that waits for its result.
pub(crate) trait Work: Send {
    /// Runs the closure and keeps its result. An error means that the closure wants a rollback.
    fn run<'a>(&'a mut self, tx: &'a mut Tx) -> BoxFuture<'a, Result<(), StoreError>>;
    /// Sends the kept result, or the failure of the whole transaction.
    fn answer(self: Box<Self>, failure: Option<StoreError>);
}

pub(crate) struct Combiner {
    pub tx: Tx,
    pub ring: Arc<Ring>,
    pub at_hand: Arc<AtHand>,
    pub tail: Arc<Tail>,
    pub settings: Arc<Settings>,
    pub requests: mpsc::Receiver<Request>,
    /// Held while this process may write to its file.
    pub lock: Option<File>,
    /// Tasks that follow the other replicas; they end with this one.
    pub followers: JoinSet<()>,
    /// Whether the last transaction failed.
    pub failing: bool,
    /// Set once this store must never write again.
    pub taken: watch::Sender<bool>,
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
                    if self.ring.position().saturating_sub(compacted) < self.settings.compact_after.every() {
                        continue;
                    }
                }
                _ = compact.tick() => {}
            }
            compacted = self.ring.position();
            let has_more = self.compact().await;
            compact.reset_at(Instant::now() + if has_more { COMPACT_ON } else { COMPACT_EVERY });
        };
        self.close(closed).await;
    }

    async fn close(mut self, closed: Option<oneshot::Sender<()>>) {
        self.requests.close();
        self.followers.shutdown().await;
        self.ring.close();
        if let Some(connection) = self.tx.take_connection() {
            let location = &self.settings.database.location;
            let end = self.settings.database.answered(async { Ok(connection.close().await?) });
            if let Err(error) = end.await {
                warn!(%location, %error, "closing the database left its log to the next start");
            }
        }
        drop(self.lock);
        if let Some(reply) = closed {
            let _ = reply.send(());
        }
    }

    /// Runs a batch up to a request to close. Returns where to answer that request.
    async fn serve(&mut self, requests: &mut Vec<Request>) -> Option<oneshot::Sender<()>> {
        let mut batch = Batch::default();
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

    async fn commit_batch(&mut self, mut batch: Batch) {
        let outcome = self
            .run_and_commit(&mut batch)
            .await
            .map_err(|error| error.at(&self.settings.database.location));
        let location = &self.settings.database.location;
        match &outcome {
            Err(failure) => {
                // Log it once: while the disk is full, every batch fails.
                if !self.failing {
                    let cause = failure as &dyn std::error::Error;
                    error!(%location, error = cause, "a transaction failed; every caller that waited for it gets an error");
                }
                self.rollback().await;
            }
            Ok(()) if self.failing => info!(%location, "writing works again"),
            Ok(()) => {}
        }
        self.failing = outcome.is_err();
        batch.answer(outcome.err());
    }

    /// After an error nothing is committed, unless the error says that the result is unknown.
    async fn run_and_commit(&mut self, batch: &mut Batch) -> Result<(), StoreError> {
        let settings = Arc::clone(&self.settings);
        let counter = self.begin().await?;
        let ran = settings.database.answered(async {
            batch.run(&mut self.tx).await?;
            if let Some(hook) = &settings.on_change {
                let written = self.tx.written();
                if !written.is_empty() {
                    hook.mark_changes(&mut self.tx, &written).await?;
                }
            }
            Ok(self.tx.prepare_commit().await?)
        });
        if let Err(error) = ran.await {
            return Err(self.lost(error));
        }
        self.commit(counter).await
    }

    /// Drops a connection with an outstanding answer, because it can't be used any more.
    fn lost(&mut self, error: StoreError) -> StoreError {
        if matches!(error, StoreError::Timeout { .. }) {
            self.tx.drop_connection();
        }
        error
    }

    async fn rollback(&mut self) {
        let database = self.settings.database.clone();
        let rolled_back = database.answered(async {
            self.tx.rollback().await;
            Ok(())
        });
        if let Err(error) = rolled_back.await {
            self.lost(error);
        }
    }

    /// Begins a transaction, on a new connection if there is none or the old one fails. Returns the counter.
    async fn begin(&mut self) -> Result<u64, StoreError> {
        if *self.taken.borrow() {
            return Err(StoreError::Taken {
                location: self.settings.database.location.clone(),
            });
        }
        let time = seconds_since_1970();
        let database = self.settings.database.clone();
        let mut begun = Err(StoreError::Closed);
        if self.tx.is_connected() {
            begun = database.answered(async { Ok(self.tx.begin(time).await?) }).await;
            if let Err(StoreError::Timeout { .. }) = begun {
                self.tx.drop_connection();
                return begun;
            }
        }
        let counter = match begun {
            Ok(counter) => counter,
            Err(_) => {
                self.reconnect().await?;
                database.answered(async { Ok(self.tx.begin(time).await?) }).await?
            }
        };
        self.keep_order(counter).await
    }

    /// Raises the counter to the ring's position if it is behind: watchers must never see versions go back, not even
    /// when a database comes back without the last commits, e.g. a lagging standby.
    async fn keep_order(&mut self, counter: u64) -> Result<u64, StoreError> {
        let position = self.ring.position();
        if counter >= position {
            return Ok(counter);
        }
        error!(
            location = %self.settings.database.location, counter, position,
            "the database lacks changes that were committed; watchers must list again"
        );
        self.ring.forget();
        self.at_hand.forget();
        let position = self.ring.position();
        self.tx.raise_counter(position).await?;
        Ok(position)
    }

    async fn reconnect(&mut self) -> Result<(), StoreError> {
        let location = &self.settings.database.location;
        info!(%location, "connecting to the database again");
        self.tx.drop_connection();
        match session::retake(&self.settings)
            .await
            .map_err(|error| error.at(location))
        {
            Ok(connection) => self.tx.replace_connection(connection),
            Err(error) => {
                if matches!(error, StoreError::Taken { .. }) {
                    self.taken.send_replace(true);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Compacts one step. True: there may be more.
    async fn compact(&mut self) -> bool {
        let after = self.settings.compact_after;
        match self.try_compact(after).await {
            Ok(has_more) => has_more,
            Err(error) => {
                let (error, location) = (
                    error.at(&self.settings.database.location),
                    &self.settings.database.location,
                );
                // Only the size of the log depends on this; the next tick tries again.
                warn!(%location, error = &error as &dyn std::error::Error, "compacting the change log failed");
                self.rollback().await;
                false
            }
        }
    }

    async fn try_compact(&mut self, after: compaction::CompactAfter) -> Result<bool, StoreError> {
        let counter = self.begin().await?;
        let database = self.settings.database.clone();
        let compacted = database.answered(async {
            let has_more = compaction::compact(&mut self.tx, counter, after).await?;
            self.tx.commit().await?;
            Ok(has_more)
        });
        let compacted = compacted.await.map_err(|error| self.lost(error));
        if compacted.is_ok() {
            self.show_others(counter).await;
        }
        compacted
    }
}

pub(crate) fn seconds_since_1970() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs() as i64)
}
