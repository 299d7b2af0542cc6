//! Errors, with the name of the file or database, and what a caller may do about them.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use sqlx::{error::DatabaseError, migrate::MigrateError};

use crate::{Key, Kind, Location, Resource, engine::Engine};

/// Why a request to the store failed. Cloneable, because one failed transaction answers all that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "write to {location}: the disk is full (or a size limit is reached); writes work again once there is space"
    )]
    DiskFull {
        location: Location,
        #[source]
        source: Arc<sqlx::Error>,
    },
    #[error("write to {location}: {}", read_only(location))]
    ReadOnly {
        location: Location,
        #[source]
        source: Arc<sqlx::Error>,
    },
    #[error("use {location}: {}; restore it from a backup", damaged(location))]
    Corrupt {
        location: Location,
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The server is away, is starting, or accepts no more connections. Nothing was committed.
    #[error("reach {location}: the database server is not available")]
    Unavailable {
        location: Location,
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The server doesn't answer, or gave up by itself. Nothing was committed.
    #[error("use {location}: no answer from the database within {} s", limit.as_secs())]
    Timeout { location: Location, limit: Duration },
    /// The connection was lost during the commit, and its result could not be found out: read, then decide.
    #[error("write to {location}: the connection was lost during the commit; whether the write was made is unknown")]
    Unknown {
        location: Location,
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// Another hub has used the database since this one lost its connection, so this one must not write to it any more.
    #[error("write to {location}: another hub has taken it over; this one must be started again")]
    Taken { location: Location },
    #[error("query {location}")]
    Database {
        location: Location,
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// An SQL error that `?` converts inside a closure of [`transact`](crate::Store::transact) or outside of it.
    /// `transact` converts it to one of the variants above.
    #[error("query the database")]
    Sql(#[source] Arc<sqlx::Error>),
    /// An unreadable row: sealed with another key, or not written by the store.
    #[error("read the stored {what}: {problem}")]
    Row { what: String, problem: String },
    /// An object that doesn't match its key: a mistake of the caller.
    #[error("write {} {}/{}: {problem}", key.kind, key.namespace, key.name)]
    Object { key: Box<Key>, problem: String },
    #[error("list {kind}: one page would be larger than {max} bytes")]
    TooLarge { kind: Kind, max: usize },
    /// A closure of [`transact`](crate::Store::transact) gave up because a write inside it was refused; all of the
    /// closure was rolled back.
    #[error("write in a transaction")]
    Refused(#[source] Arc<WriteError>),
    /// A closure of [`transact`](crate::Store::transact) gave up for a reason of its own; all of it was rolled back.
    #[error("finish the transaction")]
    Aborted(#[source] Arc<dyn std::error::Error + Send + Sync>),
    #[error("use the store: it is closed")]
    Closed,
}

impl StoreError {
    /// An error for a closure that wants to roll back for its own reason.
    pub fn abort(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Aborted(Arc::from(reason.into()))
    }

    /// Whether the same request may succeed later without any change by a person.
    pub fn retry(&self) -> bool {
        matches!(
            self,
            Self::DiskFull { .. }
                | Self::ReadOnly { .. }
                | Self::Unavailable { .. }
                | Self::Timeout { .. }
                | Self::Database { .. }
                | Self::Sql(_)
        )
    }

    /// No answer came within `limit`.
    pub(crate) fn silent(location: &Location, limit: Duration) -> Self {
        Self::Timeout {
            location: location.clone(),
            limit,
        }
    }

    /// Adds the name of the database, and distinguishes the causes that people can act on.
    pub(crate) fn at(self, location: &Location) -> Self {
        let Self::Sql(source) = self else { return self };
        let engine = Engine::of(location);
        let location = location.clone();
        if matches!(*source, sqlx::Error::PoolClosed) {
            return Self::Closed;
        }
        match trouble(&source, engine) {
            Trouble::DiskFull => Self::DiskFull { location, source },
            Trouble::ReadOnly => Self::ReadOnly { location, source },
            Trouble::Damaged => Self::Corrupt { location, source },
            Trouble::Away => Self::Unavailable { location, source },
            Trouble::Other => Self::Database { location, source },
        }
    }
}

fn read_only(location: &Location) -> &'static str {
    match location {
        Location::File(_) => "the file or its folder is read-only for this process",
        Location::Postgres(_) => "the database is read-only",
    }
}

fn damaged(location: &Location) -> &'static str {
    match location {
        Location::File(_) => "the file is damaged or not a database",
        Location::Postgres(_) => "the database is damaged",
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(source: sqlx::Error) -> Self {
        Self::Sql(Arc::new(source))
    }
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Store(error) => error,
            refused => Self::Refused(Arc::new(refused)),
        }
    }
}

/// Why one write was refused. Other writes of its transaction are not affected.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the resource exists already")]
    Exists,
    /// The row is at another uid or version: `current`.
    #[error("the resource was changed in between: it is at version {}", current.version)]
    Conflict { current: Box<Resource> },
    #[error("the resource does not exist")]
    Missing,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for WriteError {
    fn from(source: sqlx::Error) -> Self {
        Self::Store(source.into())
    }
}

/// Why a watch can't start or continue. In all cases: list again, then watch from the list's version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    #[error("watch from version {from}: changes up to {oldest} are no longer kept")]
    Compacted { from: u64, oldest: u64 },
    /// The watcher was slower than the writers for so long that changes which it hasn't seen are gone.
    #[error("resume the watch from version {seen}: changes up to {oldest} are no longer kept")]
    Lagged { seen: u64, oldest: u64 },
}

/// Why the store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("create {}", path.display())]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("lock {location}: {}", in_use(location))]
    Locked { location: Location },
    #[error("open {location} for several replicas: a file has one")]
    NotShared { location: Location },
    #[error("bring the schema of {location} up to date")]
    Migrate {
        location: Location,
        #[source]
        source: MigrateError,
    },
    #[error(
        "read {location}: its schema is {found}, this program's is {known}; a hub of this version brings it up to date"
    )]
    Schema {
        location: Location,
        found: usize,
        known: usize,
    },
    #[error("open {location}: its sealed rows were written with another seal key")]
    WrongKey { location: Location },
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn in_use(location: &Location) -> &'static str {
    match location {
        Location::File(_) => "another process has the store open",
        Location::Postgres(_) => "another hub is using the database",
    }
}

/// The cause behind an error of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    DiskFull,
    ReadOnly,
    Damaged,
    Away,
    Other,
}

fn trouble(error: &sqlx::Error, engine: Engine) -> Trouble {
    match engine {
        Engine::Sqlite => match error.as_database_error().and_then(DatabaseError::code) {
            Some(code) => sqlite_trouble(&code),
            None => Trouble::Other,
        },
        Engine::Postgres => match error {
            sqlx::Error::Database(error) => postgres_trouble(&error.code().unwrap_or_default()),
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut => {
                Trouble::Away
            }
            _ => Trouble::Other,
        },
    }
}

const SQLITE_PERM: i32 = 3;
const SQLITE_READONLY: i32 = 8;
const SQLITE_CORRUPT: i32 = 11;
const SQLITE_FULL: i32 = 13;
const SQLITE_NOTADB: i32 = 26;

/// By SQLite's primary result code: the low byte of the extended one (<https://www.sqlite.org/rescode.html>).
fn sqlite_trouble(code: &str) -> Trouble {
    match code.parse::<i32>().map(|code| code & 0xff) {
        Ok(SQLITE_FULL) => Trouble::DiskFull,
        Ok(SQLITE_READONLY | SQLITE_PERM) => Trouble::ReadOnly,
        Ok(SQLITE_CORRUPT | SQLITE_NOTADB) => Trouble::Damaged,
        _ => Trouble::Other,
    }
}

/// By SQLSTATE (<https://www.postgresql.org/docs/15/errcodes-appendix.html>).
fn postgres_trouble(code: &str) -> Trouble {
    match code {
        "53100" => Trouble::DiskFull,
        "25006" => Trouble::ReadOnly,
        "XX001" | "XX002" => Trouble::Damaged,
        // Connection exceptions; too many connections; the server is stopping, has crashed or is starting; a limit of
        // the server was exceeded.
        "53300" | "57014" | "55P03" | "25P03" => Trouble::Away,
        code if code.starts_with("08") || code.starts_with("57P") => Trouble::Away,
        _ => Trouble::Other,
    }
}

/// Whether a commit that returned this error may have been made nevertheless. A refusal by the server means that it was
/// not made; a lost connection says nothing.
pub(crate) fn is_ambiguous(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            code.starts_with("08") || code.starts_with("57P")
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_by_their_engine() {
        assert_eq!(sqlite_trouble("13"), Trouble::DiskFull);
        // SQLITE_READONLY_DBMOVED.
        assert_eq!(sqlite_trouble("1032"), Trouble::ReadOnly);
        assert_eq!(sqlite_trouble("1555"), Trouble::Other);
        assert_eq!(postgres_trouble("53100"), Trouble::DiskFull);
        assert_eq!(postgres_trouble("57P03"), Trouble::Away);
        assert_eq!(postgres_trouble("23505"), Trouble::Other);
    }
}
