//! Reading connections that are kept ready.
//!
//! sqlx's pool tests each returned connection on a task of its own. For a server that is right. A file's connection is
//! a thread that answers a statement in some ten microseconds, so the test costs as much as a read, and a file doesn't
//! vanish. These connections are therefore kept here and tested only now and then.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sqlx::Connection as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    StoreError,
    engine::{Connection, Database, Engine, Pool, PooledConnection, READERS},
};

/// Longest wait for a free connection, as in the pool.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this time a connection is returned to the pool, which tests it.
const ASKED_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct Readers {
    pool: Pool,
    /// Only for a file.
    spare: Option<Arc<Spare>>,
}

struct Spare {
    /// Limits the connections in use. The pool's own limit does not see the connections that are kept here.
    places: Arc<Semaphore>,
    /// None: closed.
    waiting: Mutex<Option<Vec<Asked>>>,
}

struct Asked {
    connection: PooledConnection,
    at: Instant,
}

/// A read-only connection; it is returned when dropped.
pub struct Reader {
    /// None once it was returned.
    connection: Option<Asked>,
    /// Released after the connection.
    home: Option<(Arc<Spare>, OwnedSemaphorePermit)>,
}

impl Readers {
    pub(crate) fn of(database: &Database) -> Result<Self, StoreError> {
        let spare = (database.engine() == Engine::Sqlite).then(|| {
            let places = Arc::new(Semaphore::new(READERS as usize));
            Arc::new(Spare {
                places,
                waiting: Mutex::new(Some(Vec::new())),
            })
        });
        Ok(Self {
            pool: database.reader_pool()?,
            spare,
        })
    }

    /// Waits while all connections are in use.
    pub(crate) async fn acquire(&self) -> Result<Reader, sqlx::Error> {
        let Some(spare) = &self.spare else {
            return Ok(Reader {
                connection: Some(Asked::now(self.pool.acquire().await?)),
                home: None,
            });
        };
        let place = timeout(PATIENCE, Arc::clone(&spare.places).acquire_owned()).await;
        let place = place
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        let waiting = spare.waiting().as_mut().ok_or(sqlx::Error::PoolClosed)?.pop();
        let connection = match waiting {
            Some(connection) => connection,
            None => Asked::now(self.pool.acquire().await?),
        };
        Ok(Reader {
            connection: Some(connection),
            home: Some((Arc::clone(spare), place)),
        })
    }

    /// Waits for the connections in use.
    pub(crate) async fn close(&self) {
        let closed = self.pool.close();
        let waiting = self.spare.as_ref().and_then(|spare| spare.waiting().take());
        for Asked { connection, .. } in waiting.into_iter().flatten() {
            let _ = connection.detach().close().await;
        }
        closed.await;
    }
}

impl Asked {
    fn now(connection: PooledConnection) -> Self {
        Self {
            connection,
            at: Instant::now(),
        }
    }
}

impl Spare {
    fn waiting(&self) -> MutexGuard<'_, Option<Vec<Asked>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // The last store may be dropped without a runtime, which returning connections to the pool would need.
        for Asked { connection, .. } in self.waiting().take().into_iter().flatten() {
            drop(connection.detach());
        }
    }
}

impl Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection.as_ref().expect("it has not gone back").connection
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().expect("it has not gone back").connection
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let (Some(asked), Some((spare, _place))) = (self.connection.take(), &self.home) else {
            return;
        };
        if asked.at.elapsed() < ASKED_EVERY
            && let Some(waiting) = spare.waiting().as_mut()
        {
            // An unfinished statement ends on the connection's thread before the next one begins.
            waiting.push(asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::CONNECT;

    async fn readers(folder: &tempfile::TempDir) -> Readers {
        let path = folder.path().join("r.db");
        std::fs::write(&path, "").unwrap();
        let database = Database {
            location: path.as_path().into(),
            patience: CONNECT,
        };
        let mut writer = database.connect_writer().await.unwrap();
        sqlx::query("CREATE TABLE t (n BIGINT)")
            .execute(&mut writer)
            .await
            .unwrap();
        sqlx::query("INSERT INTO t VALUES (1), (2), (3)")
            .execute(&mut writer)
            .await
            .unwrap();
        writer.close().await.unwrap();
        Readers::of(&database).unwrap()
    }

    async fn count(readers: &Readers) -> i64 {
        let mut reader = readers.acquire().await.unwrap();
        sqlx::query_scalar("SELECT count(*) FROM t")
            .fetch_one(&mut *reader)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn one_that_came_back_is_the_next_to_go() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder).await;
        for _ in 0..100 {
            assert_eq!(count(&readers).await, 3);
        }
        assert_eq!(readers.pool.size(), 1);
    }

    #[tokio::test]
    async fn more_than_there_are_wait_for_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder).await;
        let counts = (0..READERS * 20).map(|_| count(&readers));
        assert!(
            futures::future::join_all(counts)
                .await
                .into_iter()
                .all(|count| count == 3)
        );
        assert!(readers.pool.size() <= READERS);
    }

    #[tokio::test]
    async fn what_was_left_in_the_middle_is_no_part_of_what_comes_next() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder).await;
        {
            let mut reader = readers.acquire().await.unwrap();
            let mut snapshot = reader.begin().await.unwrap();
            let one: i64 = sqlx::query_scalar("SELECT n FROM t")
                .fetch_one(&mut *snapshot)
                .await
                .unwrap();
            assert_eq!(one, 1);
        }
        let mut reader = readers.acquire().await.unwrap();
        // SQLite refuses this inside a transaction, so none is left open.
        sqlx::raw_sql("BEGIN; ROLLBACK").execute(&mut *reader).await.unwrap();
        assert_eq!(readers.pool.size(), 1);
    }

    #[tokio::test]
    async fn a_closed_one_waits_for_those_that_are_out_and_gives_none() {
        let folder = tempfile::tempdir().unwrap();
        let readers = readers(&folder).await;
        let (out, _) = (readers.acquire().await.unwrap(), count(&readers).await);
        let closing = tokio::spawn({
            let readers = readers.clone();
            async move { readers.close().await }
        });
        while !readers.pool.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(readers.acquire().await.err(), Some(sqlx::Error::PoolClosed)));
        assert!(!closing.is_finished());
        drop(out);
        closing.await.unwrap();
        assert_eq!(readers.pool.size(), 0);
    }

    #[test]
    fn the_last_may_go_when_there_is_no_runtime_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let readers = runtime.block_on(async {
            let readers = readers(&folder).await;
            count(&readers).await;
            readers
        });
        drop(runtime);
        drop(readers);
    }
}
