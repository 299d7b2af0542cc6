//! The differences between the two engines: how to connect, and three pieces of SQL. All other SQL is one text for
//! both.

use std::{path::Path, time::Duration};

use sqlx::{
    ConnectOptions as _, Connection as _,
    any::{AnyConnectOptions, AnyPoolOptions, install_default_drivers},
    pool::PoolConnection,
    sqlite::SqliteConnectOptions,
};
use tokio::time::timeout;

use crate::{Location, StoreError};

/// A connection to either engine.
pub type Connection = sqlx::AnyConnection;
/// Read-only connections.
pub type Pool = sqlx::AnyPool;
/// One connection of a pool; it is returned to the pool when dropped.
pub type PooledConnection = PoolConnection<sqlx::Any>;
/// A row of either engine.
pub type Row = sqlx::any::AnyRow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Channel on which PostgreSQL notifies the replicas that the counter has moved.
pub(crate) const CHANNEL: &str = "farwater_changes";

/// Connections that read at the same time: lists spend their time in them.
pub(crate) const READERS: u32 = 8;

/// Limit for connecting, and for waiting for a free connection of the pool.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// Usual limit for answers of a database server.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);

/// Limits of the server: for a statement, for waiting for the counter's lock, and for a replica that hangs while it
/// holds the lock. `synchronous_commit` is raised to `on` from `off` (a commit may not be on disk) and `local` (it may
/// be missing on a synchronous standby).
const WRITER_SESSION: &str = "SELECT set_config('statement_timeout', $1, false), \
     set_config('idle_in_transaction_session_timeout', $1, false), \
     set_config('lock_timeout', $2, false), \
     set_config('default_transaction_isolation', 'read committed', false), \
     set_config('application_name', 'farwater writer', false), \
     set_config('synchronous_commit', \
         CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' \
         ELSE current_setting('synchronous_commit') END, false)";

/// A list reads the counter and its rows in one transaction, so both are of one moment.
const READER_SESSION: &str = "SELECT set_config('statement_timeout', $1, false), \
     set_config('idle_in_transaction_session_timeout', $1, false), \
     set_config('default_transaction_isolation', 'repeatable read', false), \
     set_config('default_transaction_read_only', 'on', false), \
     set_config('application_name', 'farwater reader', false)";

/// Location of a store, and the limit for its answers.
#[derive(Clone)]
pub(crate) struct Database {
    pub location: Location,
    /// After this time without an answer a server counts as gone, even if its connection is open.
    pub patience: Duration,
}

impl Engine {
    pub(crate) fn of(location: &Location) -> Self {
        match location {
            Location::File(_) => Self::Sqlite,
            Location::Postgres(_) => Self::Postgres,
        }
    }

    /// Begins a writing transaction, and reads the counter and the number of the active key in one round trip. No other
    /// transaction gets a version before this one has ended. SQLite locks the whole file. The key is read by a
    /// statement of its own, so that it sees what was committed while the counter's lock was waited for.
    pub(crate) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => {
                "BEGIN IMMEDIATE; SELECT value FROM counter WHERE id = 1; \
                 SELECT CAST(coalesce(max(number), 0) AS BIGINT) AS number FROM data_keys"
            }
            Self::Postgres => {
                "BEGIN; SELECT value FROM counter WHERE id = 1 FOR UPDATE; \
                 SELECT CAST(coalesce(max(number), 0) AS BIGINT) AS number FROM data_keys"
            }
        }
    }

    /// Sets the counter and commits in one round trip; on PostgreSQL this also notifies the other replicas. If the
    /// first statement fails, the commit is not run.
    pub(crate) fn commit(self, counter: u64) -> String {
        let update = format!("UPDATE counter SET value = {counter} WHERE id = 1");
        match self {
            Self::Sqlite => format!("{update}; COMMIT"),
            Self::Postgres => format!("{update}; NOTIFY {CHANNEL}, '{counter}'; COMMIT"),
        }
    }

    /// One label of a row. `json`, not `jsonb`: the text is only read, once.
    pub(crate) fn label(self, parameter: usize) -> String {
        match self {
            Self::Sqlite => format!("labels ->> ${parameter}"),
            Self::Postgres => format!("CAST(labels AS json) ->> ${parameter}"),
        }
    }
}

impl Database {
    pub(crate) fn engine(&self) -> Engine {
        Engine::of(&self.location)
    }

    /// Waits for the engine up to the limit. A file answers as soon as the disk does.
    pub(crate) async fn answered<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        match self.engine() {
            Engine::Sqlite => work.await,
            Engine::Postgres => within(self.patience, &self.location, work).await,
        }
    }

    /// A connection that writes.
    pub(crate) async fn connect_writer(&self) -> Result<Connection, StoreError> {
        let options = options(&self.location, Access::Write)?;
        match self.engine() {
            Engine::Sqlite => {
                let mut connection = Connection::connect_with(&options).await?;
                // synchronous=FULL: in WAL mode the log is fsynced at each commit, so an answered write survives a
                // power cut. journal_size_limit: after a burst the log must not keep its size on disk for ever.
                for setting in [
                    "journal_mode = WAL",
                    "synchronous = FULL",
                    "journal_size_limit = 67108864",
                ] {
                    let pragma = sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA {setting}")));
                    pragma.fetch_all(&mut connection).await?;
                }
                Ok(connection)
            }
            Engine::Postgres => {
                let connect = async {
                    let mut connection = Connection::connect_with(&options).await?;
                    let session = sqlx::query(WRITER_SESSION)
                        .bind(self.statement_limit())
                        .bind(self.lock_limit());
                    session.fetch_one(&mut connection).await?;
                    Ok(connection)
                };
                within(CONNECT, &self.location, connect).await
            }
        }
    }

    /// The pool of read-only connections. Each is opened when it is first needed.
    pub(crate) fn reader_pool(&self) -> Result<Pool, StoreError> {
        let pool = AnyPoolOptions::new().max_connections(READERS);
        let pool = match self.engine() {
            // A file doesn't vanish as a server does, and a test before each use would double the cost of a read.
            Engine::Sqlite => pool.test_before_acquire(false),
            Engine::Postgres => {
                let limit = self.statement_limit();
                pool.acquire_timeout(CONNECT).after_connect(move |connection, _| {
                    let session = sqlx::query(READER_SESSION).bind(limit.clone());
                    Box::pin(async move { session.fetch_one(connection).await.map(drop) })
                })
            }
        };
        Ok(pool.connect_lazy_with(options(&self.location, Access::Read)?))
    }

    /// Shorter than our own limit, so that usually the server reports the slow statement.
    pub(crate) fn statement_limit(&self) -> String {
        format!("{}ms", (self.patience * 2 / 3).as_millis())
    }

    fn lock_limit(&self) -> String {
        format!("{}ms", (self.patience / 3).as_millis())
    }
}

async fn within<T>(
    limit: Duration,
    location: &Location,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(StoreError::silent(location, limit)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

fn options(location: &Location, access: Access) -> Result<AnyConnectOptions, StoreError> {
    install_default_drivers();
    let options = match location {
        Location::File(path) => file_options(path, access)?,
        Location::Postgres(url) => url.options().clone(),
    };
    Ok(options.disable_statement_logging())
}

/// Options as a URL, the only form that `Any` accepts. URL parsing would remove `..` from a path, so the path is
/// resolved first. sqlx does not escape percent signs, so this does. The busy timeout is sqlx's default, 5 s.
fn file_options(path: &Path, access: Access) -> Result<AnyConnectOptions, StoreError> {
    let path = path.canonicalize().map_err(sqlx::Error::Io)?;
    let text = path
        .to_str()
        .ok_or_else(|| sqlx::Error::Configuration("the path is no UTF-8".into()))?;
    let file = SqliteConnectOptions::new().filename(text.replace('%', "%25"));
    let url = file.read_only(access == Access::Read).to_url_lossy();
    Ok(AnyConnectOptions::from_url(&url)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_may_have_any_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["plain.db", "a b?mode=memory#x.db", "100%41.db", "ü.db"] {
            let path = folder.path().join(name);
            std::fs::write(&path, "").unwrap();
            let mut connection = Database {
                location: Location::from(&*path),
                patience: CONNECT,
            }
            .connect_writer()
            .await
            .unwrap();
            sqlx::query("CREATE TABLE t (n BIGINT)")
                .execute(&mut connection)
                .await
                .unwrap();
            connection.close().await.unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() > 0, "{name}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }
}
