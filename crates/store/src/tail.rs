//! Delivers committed changes to the watchers of this replica.
//!
//! The combiner delivers this replica's own commits at once. Commits of other replicas are read from the log: when the
//! database notifies that the counter has moved, and also periodically, because notifications may be lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sqlx::{
    ConnectOptions as _,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::{
    sync::{Mutex, Notify},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    Location, PostgresUrl, StoreError,
    engine::{CHANNEL, CONNECT, Connection},
    read,
    readers::Readers,
    ring::Ring,
    settings::Settings,
};

/// Interval of reading the counter while notifications arrive, and while they don't.
const POLL: Duration = Duration::from_secs(1);
const POLL_UNTOLD: Duration = Duration::from_millis(100);

/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Tail {
    ring: Arc<Ring>,
    settings: Arc<Settings>,
    /// Only one task reads at a time; another one then finds its work done.
    turn: Mutex<()>,
    hint: Notify,
    is_told: AtomicBool,
}

impl Tail {
    pub(crate) fn new(ring: Arc<Ring>, settings: Arc<Settings>) -> Self {
        Self {
            ring,
            settings,
            turn: Mutex::new(()),
            hint: Notify::new(),
            is_told: AtomicBool::new(false),
        }
    }

    /// Delivers everything up to `to`, which is committed. The connection must see the newest rows.
    pub(crate) async fn fill(&self, connection: &mut Connection, to: u64) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        let from = self.ring.position();
        if to <= from {
            return Ok(());
        }
        let part = read::load_changes(connection, from, to, self.ring.limits(), &self.settings.sealer).await?;
        // Read last, so that it also shows rows that were compacted before they were read.
        let compacted = read::load_compacted(connection).await?;
        let first = part.changes.first().map_or(to, |change| change.event.version - 1);
        if part.is_cut {
            self.ring.skip_to(first);
        } else if compacted > from {
            self.ring.skip_to(compacted.min(to));
        }
        self.ring.append(part.changes, to);
        Ok(())
    }

    /// Follows the other replicas until it is aborted.
    pub(crate) async fn follow(self: Arc<Self>, readers: Readers) {
        let mut is_failing = false;
        loop {
            let poll = if self.is_told.load(Ordering::Relaxed) {
                POLL
            } else {
                POLL_UNTOLD
            };
            let _ = timeout(poll, self.hint.notified()).await;
            let location = &self.settings.database.location;
            let result = self
                .settings
                .database
                .answered(self.catch_up(&readers))
                .await
                .map_err(|error| error.at(location));
            match &result {
                Ok(()) if is_failing => debug!(%location, "following the changes of other replicas again"),
                Ok(()) => {}
                Err(error) if !is_failing => {
                    warn!(%location, error = error as &dyn std::error::Error, "changes of other replicas can't be read");
                }
                Err(_) => {}
            }
            is_failing = result.is_err();
            if is_failing {
                sleep(PAUSE).await;
            }
        }
    }

    async fn catch_up(&self, readers: &Readers) -> Result<(), StoreError> {
        let mut connection = readers.acquire().await?;
        let counter = read::load_counter(&mut connection).await?;
        self.fill(&mut connection, counter).await
    }

    /// Listens to the database's notifications until it is aborted.
    pub(crate) async fn listen(self: Arc<Self>) {
        let Location::Postgres(url) = &self.settings.database.location else {
            return;
        };
        loop {
            if let Err(error) = self.hear(url).await {
                debug!(location = %url, %error, "the database's hints can't be heard");
            }
            self.is_told.store(false, Ordering::Relaxed);
            sleep(PAUSE).await;
        }
    }

    /// Listens until the connection ends.
    async fn hear(&self, url: &PostgresUrl) -> Result<(), sqlx::Error> {
        let options = PgConnectOptions::from_url(&url.options().database_url)?;
        let options = options
            .application_name("farwater listener")
            .disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        self.is_told.store(true, Ordering::Relaxed);
        // Covers commits from before it listened.
        self.hint.notify_one();
        while let Some(hint) = listener.try_recv().await? {
            // Most notifications are of this replica's own commits, which were delivered already.
            if hint
                .payload()
                .parse()
                .is_ok_and(|version: u64| version > self.ring.position())
            {
                self.hint.notify_one();
            }
        }
        Ok(())
    }
}
