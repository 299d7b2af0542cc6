//! Sources and targets of copied rows, which no hub uses meanwhile.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use sqlx::{AssertSqlSafe, Connection as _};

use super::{
    ArchiveError,
    chunk::{Cell, write_rows},
};
use crate::{
    Location, OpenError, Sharing, StoreError,
    engine::{Connection, Database, Engine, PATIENCE},
    migrations::run_migrations,
    open::{create_file, lock_database, with_suffix},
    read, schema,
    schema::Table,
    session,
};

/// Schema in which a server's tables are created until they replace the old ones.
const RESTORING: &str = "farwater_restoring";

/// Rows that are collected before they are written together.
const ROWS: usize = 64;

/// Rows on their way in. Nothing is visible until [`Target::take_place`].
pub(super) struct Target {
    location: Location,
    connection: Connection,
    place: Place,
    _lock: Option<File>,
    replaced_counter: u64,
    waiting: Option<(Table, Vec<Vec<Cell>>)>,
}

/// An unfinished database. It is removed if it did not replace the old one, so that it doesn't fill the volume.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = remove_database(&self.0);
    }
}

/// New tables are created beside the old ones and replace them in one step.
enum Place {
    File(Temporary),
    /// The schema of the old tables, quoted.
    Schema(String),
}

impl Target {
    /// An empty store after so many migrations.
    pub(super) async fn open(location: &Location, migrations: usize, force: bool) -> Result<Self, ArchiveError> {
        match location {
            Location::File(path) => Self::file(location, path, migrations, force).await,
            Location::Postgres(_) => Self::server(location, migrations, force).await,
        }
    }

    async fn file(location: &Location, path: &Path, migrations: usize, force: bool) -> Result<Self, ArchiveError> {
        let lock = lock_database(path)?;
        let is_there = fs::metadata(path).is_ok_and(|file| file.len() > 0);
        if is_there && !force {
            return Err(ArchiveError::Occupied {
                location: location.clone(),
            });
        }
        // A restore often replaces a damaged file; then its counter is unknown.
        let replaced_counter = if is_there {
            counter_of(location).await.unwrap_or(0)
        } else {
            0
        };
        let temporary = Temporary(with_suffix(path, ".restoring"));
        remove_database(&temporary.0)?;
        create_file(&temporary.0)?;
        let mut connection = connect(&Location::from(&*temporary.0)).await?;
        migrate(&mut connection, location, migrations).await?;
        begin(&mut connection, location).await?;
        let (location, waiting, place) = (location.clone(), None, Place::File(temporary));
        Ok(Self {
            location,
            connection,
            place,
            _lock: Some(lock),
            replaced_counter,
            waiting,
        })
    }

    async fn server(location: &Location, migrations: usize, force: bool) -> Result<Self, ArchiveError> {
        let mut connection = alone(location).await?;
        let at = |error: sqlx::Error| StoreError::from(error).at(location);
        let schema: String = sqlx::query_scalar("SELECT quote_ident(current_schema())")
            .fetch_one(&mut connection)
            .await
            .map_err(at)?;
        let tables: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM information_schema.tables \
             WHERE table_schema = current_schema() AND table_name = 'counter'",
        )
        .fetch_one(&mut connection)
        .await
        .map_err(at)?;

        let mut replaced_counter = 0;
        if tables > 0 {
            replaced_counter = read::load_counter(&mut connection).await.map_err(at)?;
            if !force && (replaced_counter > 0 || has_facts(&mut connection).await.map_err(at)?) {
                return Err(ArchiveError::Occupied {
                    location: location.clone(),
                });
            }
        }

        let make = format!(
            "DROP SCHEMA IF EXISTS {RESTORING} CASCADE; CREATE SCHEMA {RESTORING}; SET search_path TO {RESTORING}"
        );
        sqlx::raw_sql(AssertSqlSafe(make))
            .execute(&mut connection)
            .await
            .map_err(at)?;
        migrate(&mut connection, location, migrations).await?;
        begin(&mut connection, location).await?;
        let (location, waiting, place) = (location.clone(), None, Place::Schema(schema));
        Ok(Self {
            location,
            connection,
            place,
            _lock: None,
            replaced_counter,
            waiting,
        })
    }

    /// The counter of the replaced store.
    pub(super) fn replaced_counter(&self) -> u64 {
        self.replaced_counter
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(super) async fn push(&mut self, table: &Table, row: Vec<Cell>) -> Result<(), ArchiveError> {
        if self
            .waiting
            .as_ref()
            .is_some_and(|(waiting, rows)| waiting != table || rows.len() >= ROWS)
        {
            self.flush().await?;
        }
        let (_, rows) = self.waiting.get_or_insert_with(|| (table.clone(), Vec::new()));
        rows.push(row);
        Ok(())
    }

    pub(super) async fn flush(&mut self) -> Result<(), ArchiveError> {
        let Some((table, rows)) = self.waiting.take() else {
            return Ok(());
        };
        let at = |error: sqlx::Error| StoreError::from(error).at(&self.location);
        if table.name == "counter" {
            // The schema brings its own row.
            sqlx::query("DELETE FROM counter")
                .execute(&mut self.connection)
                .await
                .map_err(at)?;
        }
        write_rows(&mut self.connection, &table, rows).await.map_err(at)?;
        Ok(())
    }

    /// Writes the remaining rows and brings the schema up to date.
    pub(super) async fn complete(&mut self) -> Result<(), ArchiveError> {
        self.flush().await?;
        let at = |error: sqlx::Error| StoreError::from(error).at(&self.location);
        sqlx::query("DELETE FROM meta WHERE name = $1")
            .bind(session::OWNER)
            .execute(&mut self.connection)
            .await
            .map_err(at)?;
        sqlx::raw_sql("COMMIT")
            .execute(&mut self.connection)
            .await
            .map_err(at)?;
        migrate(&mut self.connection, &self.location, schema::newest()).await
    }

    /// Makes everything visible in one step.
    pub(super) async fn take_place(mut self) -> Result<(), ArchiveError> {
        let at = |error: sqlx::Error| StoreError::from(error).at(&self.location);
        match &self.place {
            Place::File(Temporary(temporary)) => {
                self.connection.close().await.map_err(at)?;
                let path = self.location.file().unwrap_or(temporary);
                replace_file(temporary, path).map_err(|source| ArchiveError::Replace {
                    path: path.to_owned(),
                    source,
                })
            }
            Place::Schema(schema) => {
                let replace = replace_tables(schema);
                sqlx::raw_sql(AssertSqlSafe(replace))
                    .execute(&mut self.connection)
                    .await
                    .map_err(at)?;
                Ok(self.connection.close().await.map_err(at)?)
            }
        }
    }
}

fn replace_file(temporary: &Path, path: &Path) -> std::io::Result<()> {
    File::open(temporary)?.sync_all()?;
    // The log of the old file does not belong to the new one.
    for suffix in ["-wal", "-shm"] {
        remove_if_there(&with_suffix(path, suffix))?;
    }
    fs::rename(temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// In one transaction, so that readers see the old tables or the new ones.
fn replace_tables(schema: &str) -> String {
    let mut sql = "BEGIN; ".to_owned();
    let tables = schema::tables(schema::newest());
    for table in tables.iter().map(|table| &*table.name).chain(["_sqlx_migrations"]) {
        sql += &format!("DROP TABLE IF EXISTS {schema}.{table}; ALTER TABLE {RESTORING}.{table} SET SCHEMA {schema}; ");
    }
    sql + &format!("DROP SCHEMA {RESTORING}; COMMIT")
}

/// A store that is read while no hub uses it.
pub(super) struct Source {
    connection: Connection,
    _lock: Option<File>,
}

impl Source {
    pub(super) async fn open(location: &Location) -> Result<Self, ArchiveError> {
        match location {
            Location::File(path) => {
                if !path.exists() {
                    let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                    return Err(super::FileError::Read {
                        path: path.to_path_buf(),
                        source,
                    }
                    .into());
                }
                let lock = lock_database(path)?;
                Ok(Self {
                    connection: connect(location).await?,
                    _lock: Some(lock),
                })
            }
            Location::Postgres(_) => Ok(Self {
                connection: alone(location).await?,
                _lock: None,
            }),
        }
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    pub(super) async fn close(self) {
        // It was only read, so an error doesn't matter.
        let _ = self.connection.close().await;
    }
}

async fn connect(location: &Location) -> Result<Connection, ArchiveError> {
    let database = Database {
        location: location.clone(),
        patience: PATIENCE,
    };
    Ok(database.connect_writer().await.map_err(|error| error.at(location))?)
}

/// A connection to a server, with the lock that a hub would hold.
async fn alone(location: &Location) -> Result<Connection, ArchiveError> {
    let database = Database {
        location: location.clone(),
        patience: PATIENCE,
    };
    let taken = session::take(&database, Sharing::Alone)
        .await
        .map_err(|error| error.at(location))?;
    let mut connection = taken.ok_or_else(|| OpenError::Locked {
        location: location.clone(),
    })?;
    // A copy may move a million rows in one transaction.
    sqlx::query("SELECT set_config('statement_timeout', '0', false)")
        .execute(&mut connection)
        .await
        .map_err(|error| StoreError::from(error).at(location))?;
    Ok(connection)
}

async fn counter_of(location: &Location) -> Option<u64> {
    let mut connection = connect(location).await.ok()?;
    let counter = read::load_counter(&mut connection).await.ok();
    let _ = connection.close().await;
    counter
}

/// Whether a hub has ever started: then it has written meta entries.
async fn has_facts(connection: &mut Connection) -> Result<bool, sqlx::Error> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM meta")
        .fetch_one(connection)
        .await?;
    Ok(count > 0)
}

async fn migrate(connection: &mut Connection, location: &Location, count: usize) -> Result<(), ArchiveError> {
    let migrated = run_migrations(connection, Engine::of(location), count).await;
    Ok(migrated.map_err(|source| OpenError::Migrate {
        location: location.clone(),
        source,
    })?)
}

async fn begin(connection: &mut Connection, location: &Location) -> Result<(), ArchiveError> {
    let begun = sqlx::raw_sql("BEGIN").execute(connection).await;
    begun.map_err(|error| StoreError::from(error).at(location))?;
    Ok(())
}

fn remove_database(path: &Path) -> Result<(), ArchiveError> {
    for path in [path.to_owned(), with_suffix(path, "-wal"), with_suffix(path, "-shm")] {
        remove_if_there(&path).map_err(|source| ArchiveError::Replace {
            path: path.clone(),
            source,
        })?;
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
