//! Opening the file: lock, schema, seal key, ring.

use std::{
    fs::{File, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use sqlx::{
    ConnectOptions as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::mpsc;

use crate::{
    CompactAfter, Kind, OpenError, Store, StoreError, WatchEvent,
    combiner::{Combiner, QUEUE},
    compaction::COMPACTED,
    lock::lock_file,
    migrations::run_migrations,
    read,
    ring::{Ring, RingLimits},
    seal::Sealer,
    tx::Tx,
};

pub struct OpenOptions {
    /// The database file; made if missing. Its folder must exist. `-wal`, `-shm` and `.lock` lie beside it.
    pub path: PathBuf,
    pub seal_key: [u8; 32],
    /// Kinds whose objects are encrypted at rest, as a whole and in the change log.
    pub sealed_kinds: Vec<Kind>,
    /// Kinds whose owners are nobody's business: they are never collected, and no owner waits for them.
    pub ownerless_kinds: Vec<Kind>,
    /// How many changes are kept in memory for watchers; older ones are [`WatchError::Compacted`](crate::WatchError).
    pub ring: usize,
    /// The same bound in bytes of stored JSON: objects may be large.
    pub ring_bytes: usize,
    pub compact_after: CompactAfter,
    /// Called inside every transaction that changes resources.
    pub on_change: Option<Arc<dyn ChangeHook>>,
}

impl OpenOptions {
    /// The defaults: 16,384 changes or 32 MiB in memory, 50,000 changes and 10 minutes on disk (a reader beyond the ring
    /// has to list again anyway).
    pub fn new(path: impl Into<PathBuf>, seal_key: [u8; 32]) -> Self {
        Self {
            path: path.into(),
            seal_key,
            sealed_kinds: vec![Kind::new("secrets", "")],
            ownerless_kinds: vec![Kind::new("events", "")],
            ring: 16_384,
            ring_bytes: 32 << 20,
            compact_after: CompactAfter { versions: 50_000, age: Duration::from_secs(600) },
            on_change: None,
        }
    }
}

/// Writes of its own in the transaction that changes resources, such as marking clusters dirty: whoever sees the change
/// sees the mark, and a crash keeps both or neither.
pub trait ChangeHook: Send + Sync {
    /// `changes` is everything that the transaction changes, in order. Called after all its writes and before its
    /// commit; an error fails the whole transaction. Write to narrow tables only, and wait for nothing but
    /// `connection`.
    fn mark_changes<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
        changes: &'a [WatchEvent],
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;
}

/// What the store's parts share.
pub(crate) struct Settings {
    pub path: PathBuf,
    pub sealer: Arc<Sealer>,
    pub compact_after: CompactAfter,
    pub on_change: Option<Arc<dyn ChangeHook>>,
}

impl Settings {
    fn connection(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .busy_timeout(Duration::from_secs(5))
            .disable_statement_logging()
    }

    /// synchronous=FULL: in WAL mode the log is fsynced at each commit, so an answer survives a power cut.
    pub(crate) fn writer(&self) -> SqliteConnectOptions {
        self.connection()
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // A burst must not leave its log's size on the disk for ever.
            .pragma("journal_size_limit", "67108864")
    }

    fn reader(&self) -> SqliteConnectOptions {
        self.connection().read_only(true)
    }
}

/// Connections that read at the same time: lists spend their time in them.
const READERS: u32 = 8;

/// The meta entry that only the right seal key opens.
const SEAL_CHECK: &str = "seal-check";

pub(crate) async fn open(options: OpenOptions) -> Result<Store, OpenError> {
    let OpenOptions { path, seal_key, sealed_kinds, ownerless_kinds, ring, ring_bytes, compact_after, on_change } =
        options;
    let lock = lock_database(&path)?;
    create_file(&path)?;
    let sealer = Arc::new(Sealer::new(&seal_key, sealed_kinds));
    let settings = Arc::new(Settings { path, sealer, compact_after, on_change });
    let at = |error: sqlx::Error| StoreError::from(error).at(&settings.path);

    let mut connection = settings.writer().connect().await.map_err(at)?;
    run_migrations(&mut connection)
        .await
        .map_err(|source| OpenError::Migrate { path: settings.path.clone(), source })?;
    check_seal_key(&mut connection, &settings).await?;
    let limits = RingLimits { events: ring.max(1), bytes: ring_bytes };
    let ring = fill_ring(&mut connection, limits, &settings.sealer).await.map_err(|e| e.at(&settings.path))?;
    let ring = Arc::new(ring);
    let pool = SqlitePoolOptions::new().max_connections(READERS).connect_with(settings.reader()).await.map_err(at)?;

    let (sender, requests) = mpsc::channel(QUEUE);
    let tx = Tx::new(connection, Arc::clone(&settings.sealer), ownerless_kinds);
    let combiner =
        Combiner { tx, ring: Arc::clone(&ring), settings: Arc::clone(&settings), requests, lock, failing: false };
    tokio::spawn(combiner.run());
    Ok(Store { sender, pool, ring, settings })
}

/// Two writing processes would each believe in their own ring.
fn lock_database(path: &Path) -> Result<File, OpenError> {
    let lock_path = with_suffix(path, ".lock");
    let error = |source| OpenError::Create { path: lock_path.clone(), source };
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&lock_path).map_err(error)?;
    match lock_file(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}

/// SQLite would make it readable by all; its log takes the file's mode.
fn create_file(path: &Path) -> Result<(), OpenError> {
    let made = File::options().append(true).create(true).mode(0o600).open(path);
    made.map(drop).map_err(|source| OpenError::Create { path: path.to_owned(), source })
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// A wrong key is found at the start, not at the first Secret.
async fn check_seal_key(connection: &mut SqliteConnection, settings: &Settings) -> Result<(), OpenError> {
    let at = |error: sqlx::Error| StoreError::from(error).at(&settings.path);
    match read::load_meta(connection, SEAL_CHECK).await.map_err(at)? {
        Some(sealed) => {
            let opened =
                hex::decode(sealed).ok().and_then(|sealed| settings.sealer.open(&sealed, SEAL_CHECK.as_bytes()));
            opened.map(drop).ok_or_else(|| OpenError::WrongKey { path: settings.path.clone() })
        }
        None => {
            let sealed = hex::encode(settings.sealer.seal(b"", SEAL_CHECK.as_bytes()));
            Ok(read::save_meta(connection, SEAL_CHECK, &sealed).await.map_err(at)?)
        }
    }
}

/// What is read back for watches that resume: enough for whoever was up to date when the hub stopped, and parsed in
/// some tens of milliseconds.
const RESUME: RingLimits = RingLimits { events: 4_096, bytes: 8 << 20 };

async fn fill_ring(connection: &mut SqliteConnection, limits: RingLimits, sealer: &Sealer) -> Result<Ring, StoreError> {
    let counter = read::load_counter(connection).await?;
    let compacted = read::load_meta(connection, COMPACTED).await?.and_then(|text| text.parse().ok()).unwrap_or(0);
    let (events, bytes) = (limits.events.min(RESUME.events), limits.bytes.min(RESUME.bytes));
    let changes = read::load_changes(connection, compacted, events, bytes, sealer).await?;
    let oldest: Option<u64> =
        sqlx::query_scalar("SELECT min(version) FROM changes").fetch_one(&mut *connection).await?;
    let floor = match (changes.first(), oldest) {
        (Some(first), Some(oldest)) if first.event.version > oldest => first.event.version - 1,
        // All that is there: a watch may start where compaction stopped.
        (Some(_), _) => compacted,
        // Nothing fits, or nothing is left.
        (None, Some(_)) => counter,
        (None, None) => compacted,
    };
    let ring = Ring::new(limits, floor, counter);
    ring.append(changes, counter);
    Ok(ring)
}
