//! What can go wrong, with the file's path, and what a caller may do about it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::{error::DatabaseError, migrate::MigrateError};

use crate::{Key, Resource};

/// Why a request to the store failed. Cloneable, because one failed transaction answers all that waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("write to {}: the disk is full (or the file's size limit is reached); writes work again once there is space", path.display())]
    DiskFull {
        path: PathBuf,
        #[source]
        source: Arc<sqlx::Error>,
    },
    #[error("write to {}: the file or its folder is read-only for this process", path.display())]
    ReadOnly {
        path: PathBuf,
        #[source]
        source: Arc<sqlx::Error>,
    },
    #[error("use {}: the file is damaged or not a database; restore it from a backup", path.display())]
    Corrupt {
        path: PathBuf,
        #[source]
        source: Arc<sqlx::Error>,
    },
    #[error("query {}", path.display())]
    Database {
        path: PathBuf,
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// What `?` makes of an SQL error inside a closure of [`transact`](crate::Store::transact) or beside it; `transact`
    /// turns it into one of the variants above.
    #[error("query the database")]
    Sql(#[source] Arc<sqlx::Error>),
    /// A row that this program can't read: sealed with another key, or not what the store writes.
    #[error("read the stored {what}: {problem}")]
    Row { what: String, problem: String },
    /// An object that doesn't fit its key: a mistake of the caller.
    #[error("write {} {}/{}: {problem}", key.kind, key.namespace, key.name)]
    Object { key: Box<Key>, problem: String },
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
    /// For a closure that wants to roll back for its own reason.
    pub fn abort(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Aborted(Arc::from(reason.into()))
    }

    /// Whether the same request may succeed later without anybody changing it.
    pub fn retry(&self) -> bool {
        matches!(self, Self::DiskFull { .. } | Self::ReadOnly { .. } | Self::Database { .. } | Self::Sql(_))
    }

    /// Names the file and tells the causes apart that people can do something about.
    pub(crate) fn at(self, path: &Path) -> Self {
        let Self::Sql(source) = self else { return self };
        let path = path.to_owned();
        match primary_code(&source) {
            Some(SQLITE_FULL) => Self::DiskFull { path, source },
            Some(SQLITE_READONLY | SQLITE_PERM) => Self::ReadOnly { path, source },
            Some(SQLITE_CORRUPT | SQLITE_NOTADB) => Self::Corrupt { path, source },
            _ if matches!(*source, sqlx::Error::PoolClosed) => Self::Closed,
            _ => Self::Database { path, source },
        }
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

/// Why one write was refused; the others of its transaction are not touched by it.
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

/// Why a watch can't start or go on. In all cases: list again, then watch from the list's version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    #[error("watch from version {from}: changes up to {oldest} are no longer kept")]
    Compacted { from: u64, oldest: u64 },
    /// The watcher was slower than the writers for so long that changes which it hasn't seen are gone.
    #[error("go on watching from version {seen}: changes up to {oldest} are no longer kept")]
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
    #[error("lock {}: another process has the store open", path.display())]
    Locked { path: PathBuf },
    #[error("bring the schema of {} up to date", path.display())]
    Migrate {
        path: PathBuf,
        #[source]
        source: MigrateError,
    },
    #[error("open {}: its sealed rows were written with another seal key", path.display())]
    WrongKey { path: PathBuf },
    #[error(transparent)]
    Store(#[from] StoreError),
}

const SQLITE_PERM: i32 = 3;
const SQLITE_READONLY: i32 = 8;
const SQLITE_CORRUPT: i32 = 11;
const SQLITE_FULL: i32 = 13;
const SQLITE_NOTADB: i32 = 26;

/// SQLite's primary result code: the low byte of the extended one (<https://www.sqlite.org/rescode.html>).
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error().and_then(DatabaseError::code)?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
}
