//! The commit, and how the result of one with a lost answer is found out.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::Combiner;
use crate::{StoreError, engine::Engine, error::is_ambiguous, ring::Committed};

const PAUSE: Duration = Duration::from_millis(250);

impl Combiner {
    /// Commits the prepared transaction, then shows it to watchers after everything that was committed before it.
    pub(super) async fn commit(&mut self, counter: u64) -> Result<(), StoreError> {
        self.at_hand.doubt(self.tx.changed());
        let database = self.settings.database.clone();
        let committed = database.answered(async { Ok(self.tx.commit().await?) }).await;
        if let Err(error) = committed {
            self.settle(error).await?;
        }
        self.show_others(counter).await;
        let (changes, position) = self.tx.take_committed();
        let sealer = &self.settings.sealer;
        let written = changes.iter().filter(|change| !sealer.seals(&change.event.key.kind));
        self.at_hand.settle(written.map(Committed::left));
        self.ring.append(changes, position);
        Ok(())
    }

    /// Shows watchers what others have committed up to `counter`.
    pub(super) async fn show_others(&mut self, counter: u64) {
        if self.ring.position() >= counter {
            return;
        }
        self.at_hand.forget();
        let (database, tail) = (self.settings.database.clone(), Arc::clone(&self.tail));
        let filled = match self.tx.is_connected() {
            true => database.answered(tail.fill(&mut self.tx, counter)).await,
            false => Err(StoreError::Closed),
        };
        if let Err(error) = filled {
            let location = &database.location;
            let error = self.lost(error).at(location);
            // Watchers must not see events after a gap.
            warn!(%location, error = &error as &dyn std::error::Error, "changes can't be read; watchers have to list again");
            self.ring.skip_to(counter);
        }
    }

    /// Ok: the commit that returned this error was made nevertheless.
    async fn settle(&mut self, error: StoreError) -> Result<(), StoreError> {
        let location = self.settings.database.location.clone();
        let is_open = match &error {
            StoreError::Sql(error) => is_ambiguous(error),
            _ => true,
        };
        // For a file the answer is final. If its fsync failed but the log's frames exist, the next batch finds them.
        if Engine::of(&location) == Engine::Sqlite || !is_open {
            return Err(error);
        }

        self.tx.drop_connection();
        // After this time the callers get `StoreError::Unknown`.
        let (start, limit) = (Instant::now(), self.settings.database.patience / 4);
        let found = loop {
            match self.look().await {
                Ok(found) => break found,
                Err(_) if start.elapsed() < limit && !*self.taken.borrow() => sleep(PAUSE).await,
                Err(_) => break None,
            }
        };

        let source = match error.at(&location) {
            StoreError::Unavailable { source, .. } | StoreError::Database { source, .. } => source,
            other => Arc::new(sqlx::Error::Io(std::io::Error::other(other))),
        };
        match found {
            Some(true) => {
                info!(%location, "a commit whose answer was lost had been made");
                Ok(())
            }
            Some(false) => Err(StoreError::Unavailable { location, source }),
            None => Err(StoreError::Unknown { location, source }),
        }
    }

    /// Whether the log contains the commit. None: it would contain nothing, because there are no changes.
    async fn look(&mut self) -> Result<Option<bool>, StoreError> {
        if !self.tx.is_connected() {
            self.reconnect().await?;
        }
        if !self.tx.has_changes() {
            return Ok(None);
        }
        let database = self.settings.database.clone();
        let found = database.answered(async {
            // Also waits for the transaction itself, if the server has not yet noticed that its client is gone.
            let counter = self.tx.lock().await?;
            let found = self.tx.is_logged(counter).await?;
            self.tx.end().await;
            Ok(found)
        });
        match found.await {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                self.tx.drop_connection();
                Err(error)
            }
        }
    }
}
