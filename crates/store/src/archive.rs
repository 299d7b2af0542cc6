//! Copies a store into one file and back, and from one engine to the other.
//!
//! A backup shows one moment and can be made while a hub runs. It holds rows as they are in the tables (sealed rows
//! stay sealed), so a backup of a file equals one of a server and can be restored into either. It may enclose the hub's
//! keys; then it contains everything that a hub needs.

mod chunk;
mod file;
mod target;

use std::path::{Path, PathBuf};

use sqlx::Connection as _;

pub use file::{Destination, Enclosed, FileError};

use crate::{
    Location, OpenError, StoreError,
    combiner::seconds_since_1970,
    delivery,
    engine::Connection,
    fsck,
    migrations::count_migrations,
    read, schema,
    seal::Master,
    seal_keys::{self, SEAL_CHECK, opens_check},
    visit::Visit,
};
use chunk::{Cell, Pages};
use file::{Entry, Header, Reader, Writer};
use target::Target;

/// Amount by which a restore raises the counter: more than was written since the backup (at 20,000 writes a second it
/// lasts a year and a half), so that no client sees a version twice. 2^53, the largest exact number of JavaScript, is
/// 8,000 restores away.
const RESTORED: u64 = 1 << 40;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("read {from}: a newer version of this program has written it (schema {found}, known are {known})")]
    Newer { from: String, found: usize, known: usize },
    #[error("write to {location}: there is a store already; it is only replaced by force")]
    Occupied { location: Location },
    #[error("restore {}: its sealed rows were written with another seal key than this hub's", path.display())]
    WrongKey { path: PathBuf },
    #[error("restore {}: it contains rows that no hub has written: {first}", path.display())]
    Damaged { path: PathBuf, first: String },
    #[error("replace {}", path.display())]
    Replace { path: PathBuf, source: std::io::Error },
}

/// The result of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Number of rows, by table.
    pub rows: Vec<(String, u64)>,
    /// The newest version among them.
    pub counter: u64,
    /// The moment that was copied, in seconds since 1970.
    pub moment: i64,
}

impl Copied {
    fn count(&mut self, table: &str, rows: usize) {
        match self.rows.last_mut() {
            Some((name, count)) if name == table => *count += rows as u64,
            _ => self.rows.push((table.to_owned(), rows as u64)),
        }
    }
}

/// Exceptions that a restore may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// Replace an existing store.
    pub replace: bool,
    /// Restore rows that [`fsck`](crate::fsck) calls damaged, because they were damaged when the backup was made and
    /// nothing better exists.
    pub damage: bool,
}

/// The result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    pub copied: Copied,
    /// The counter after the restore.
    pub counter: u64,
    /// The epoch of all clusters' desired states after the restore.
    pub epoch: u64,
}

/// Writes everything at `from`, as of one moment, into a new file. A hub may write meanwhile.
pub async fn backup(from: &Location, to: &Path, force: bool) -> Result<Copied, ArchiveError> {
    backup_to(from, Destination::File { path: to, force }, &[]).await
}

/// Like [`backup`], to any destination and with enclosed files.
pub async fn backup_to(from: &Location, to: Destination<'_>, enclosed: &[Enclosed]) -> Result<Copied, ArchiveError> {
    let mut visit = Visit::of(from).await?;
    let at = |error: sqlx::Error| StoreError::from(error).at(from);
    let mut snapshot = visit.connection().begin().await.map_err(at)?;
    let migrations = count_migrations(&mut snapshot).await.map_err(at)?;
    check_schema(&from.to_string(), migrations)?;
    let counter = read::load_counter(&mut snapshot).await.map_err(at)?;
    let mut copied = Copied {
        rows: Vec::new(),
        counter,
        moment: seconds_since_1970(),
    };
    let mut writer = Writer::create(to, &Header::new(migrations, copied.moment, counter))?;
    for file in enclosed {
        writer.file(file)?;
    }
    for table in schema::tables(migrations) {
        writer.table(&table.name)?;
        let mut pages = Pages::of(&table);
        while let Some(rows) = pages.next(&mut snapshot).await.map_err(at)? {
            copied.count(&table.name, rows.len());
            for row in rows {
                writer.row(row)?;
            }
        }
    }
    drop(snapshot);
    visit.end().await;
    writer.finish()?;
    Ok(copied)
}

fn check_schema(from: &str, found: usize) -> Result<(), ArchiveError> {
    let known = schema::newest();
    if found > known {
        return Err(ArchiveError::Newer {
            from: from.to_owned(),
            found,
            known,
        });
    }
    Ok(())
}

/// Reads a backup to its end: checks that it is whole, and returns its contents.
pub fn verify(path: &Path) -> Result<Copied, ArchiveError> {
    let (mut reader, header) = Reader::open(path)?;
    check_schema(&path.display().to_string(), header.schema)?;
    let tables = schema::tables(header.schema);
    let mut copied = Copied {
        rows: Vec::new(),
        counter: header.counter,
        moment: header.created,
    };
    let mut table = None;
    loop {
        match reader.next()? {
            Entry::File(_) if table.is_none() => {}
            Entry::File(_) => return Err(reader.damaged("a file lies between tables").into()),
            Entry::Table(name) => {
                table = tables.iter().find(|table| table.name == name);
                if table.is_none() {
                    return Err(reader.damaged(&format!("it has a table {name:?}")).into());
                }
                copied.count(&name, 0);
            }
            Entry::Row(row) => match table {
                Some(table) if row.len() == table.columns.len() => copied.count(&table.name, 1),
                _ => return Err(reader.damaged("a row does not fit its table").into()),
            },
            Entry::End => return Ok(copied),
        }
    }
}

/// The files that a backup encloses. [`verify`] checks that the backup is whole.
pub fn enclosed(path: &Path) -> Result<Vec<Enclosed>, ArchiveError> {
    let (mut reader, _) = Reader::open(path)?;
    let mut files = Vec::new();
    // Files come before the tables.
    while let Entry::File(file) = reader.next()? {
        files.push(file);
    }
    Ok(files)
}

/// Replaces the store at `to` with a backup, all or nothing. The file is read to its end first, and the result is
/// checked like [`fsck`](crate::fsck) does before it replaces the old store. No hub may run on it.
///
/// No client sees the past as the present: the counter is raised far, so watchers must list again. The epoch is raised
/// too, so agents accept the restored state as new, report differences, and delete nothing until a person has confirmed
/// that it is right.
pub async fn restore(from: &Path, to: &Location, seal_key: &[u8; 32], allow: Allow) -> Result<Restored, ArchiveError> {
    restore_from(from, to, seal_key, &[], allow).await
}

/// Like [`restore`], for a backup whose rows may be sealed with an earlier seal key. Afterwards they are sealed with
/// `seal_key`.
pub async fn restore_from(
    from: &Path,
    to: &Location,
    seal_key: &[u8; 32],
    earlier: &[[u8; 32]],
    allow: Allow,
) -> Result<Restored, ArchiveError> {
    verify(from)?;
    let found = find_seal_key(from, std::iter::once(seal_key).chain(earlier))?;
    let (mut reader, header) = Reader::open(from)?;
    let mut target = Target::open(to, header.schema, allow.replace).await?;
    let before = target.replaced_counter();
    let copied = fill(&mut target, &mut reader, &header).await?;

    let counter = header.counter.max(before) + RESTORED;
    let epoch = move_ahead(target.connection(), counter)
        .await
        .map_err(|error| error.at(to))?;
    target.complete().await?;
    if &found != seal_key {
        let (from, now) = (Master::new(&found), seconds_since_1970());
        let sealed = seal_keys::rewrap(target.connection(), &from, &Master::new(seal_key), now).await;
        sealed.map_err(|error| StoreError::from(error).at(to))?;
    }

    let report = fsck::check(target.connection(), to, seal_key).await?;
    if report.is_damaged && !allow.damage {
        let first = report
            .damage()
            .next()
            .map_or_else(|| "beyond the listed findings".to_owned(), ToString::to_string);
        return Err(ArchiveError::Damaged {
            path: from.to_owned(),
            first,
        });
    }
    target.take_place().await?;
    Ok(Restored { copied, counter, epoch })
}

/// Writes all rows of a backup, and counts them.
async fn fill(target: &mut Target, reader: &mut Reader, header: &Header) -> Result<Copied, ArchiveError> {
    let tables = schema::tables(header.schema);
    let mut copied = Copied {
        rows: Vec::new(),
        counter: header.counter,
        moment: header.created,
    };
    let mut table = None;
    loop {
        match reader.next()? {
            Entry::File(_) => {}
            Entry::Table(name) => table = tables.iter().find(|table| table.name == name),
            Entry::Row(row) => {
                let Some(table) = table else {
                    return Err(reader.damaged("a row has no table").into());
                };
                copied.count(&table.name, 1);
                target.push(table, row).await?;
            }
            Entry::End => break,
        }
    }
    target.flush().await?;
    Ok(copied)
}

/// The key of these that opens the backup's rows, so that a wrong key is found before anything is replaced. Any key
/// matches a backup that was made before the hub had its first key.
fn find_seal_key<'a>(path: &Path, mut keys: impl Iterator<Item = &'a [u8; 32]>) -> Result<[u8; 32], ArchiveError> {
    let (mut reader, _) = Reader::open(path)?;
    let mut is_meta = false;
    loop {
        match reader.next()? {
            Entry::Table(name) => is_meta = name == "meta",
            Entry::Row(row) if is_meta => {
                let [Cell::Text(name), Cell::Text(sealed)] = &row[..] else {
                    continue;
                };
                if name == SEAL_CHECK {
                    let sealed = hex::decode(sealed).unwrap_or_default();
                    let found = keys.find(|key| opens_check(&sealed, &Master::new(key)));
                    return found
                        .copied()
                        .ok_or_else(|| ArchiveError::WrongKey { path: path.to_owned() });
                }
            }
            Entry::File(_) | Entry::Row(_) => {}
            Entry::End => {
                return keys
                    .next()
                    .copied()
                    .ok_or_else(|| ArchiveError::WrongKey { path: path.to_owned() });
            }
        }
    }
}

/// Copies a store that no hub uses to a place that is empty, or emptied by `force`. Versions and the log are copied
/// too, so watchers and agents notice only a pause.
pub async fn copy_store(from: &Location, to: &Location, force: bool) -> Result<Copied, ArchiveError> {
    let mut source = target::Source::open(from).await?;
    let at = |error: sqlx::Error| StoreError::from(error).at(from);
    let migrations = count_migrations(source.connection()).await.map_err(at)?;
    check_schema(&from.to_string(), migrations)?;
    let counter = read::load_counter(source.connection()).await.map_err(at)?;
    let mut target = Target::open(to, migrations, force).await?;
    let mut copied = Copied {
        rows: Vec::new(),
        counter,
        moment: seconds_since_1970(),
    };
    for table in schema::tables(migrations) {
        let mut pages = Pages::of(&table);
        while let Some(rows) = pages.next(source.connection()).await.map_err(at)? {
            copied.count(&table.name, rows.len());
            for row in rows {
                target.push(&table, row).await?;
            }
        }
    }
    target.complete().await?;
    target.take_place().await?;
    source.close().await;
    Ok(copied)
}

/// Makes a restored store newer than everything that clients of this installation have seen. Returns the epoch.
async fn move_ahead(connection: &mut Connection, counter: u64) -> Result<u64, StoreError> {
    sqlx::query("DELETE FROM changes").execute(&mut *connection).await?;
    sqlx::query("UPDATE counter SET value = $1 WHERE id = 1")
        .bind(counter as i64)
        .execute(&mut *connection)
        .await?;
    read::save_meta(connection, read::COMPACTED, &counter.to_string()).await?;
    delivery::raise_all_epochs(connection, seconds_since_1970().unsigned_abs()).await
}
