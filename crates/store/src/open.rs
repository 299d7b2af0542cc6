//! Opening a store: lock, schema, seal key, ring.

use std::{
    fs::{File, TryLockError},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{
    CompactAfter, Kind, Location, OpenError, Sharing, Store, StoreError,
    at_hand::AtHand,
    combiner::{Combiner, QUEUE, seconds_since_1970},
    engine::{Connection, Database, Engine, PATIENCE},
    lock::lock_file,
    migrations::run_migrations,
    read,
    readers::Readers,
    ring::{Ring, RingLimits},
    schema,
    seal::{DataKeys, Master, Sealer, sealed_kinds},
    seal_keys, session,
    settings::{ChangeHook, Settings},
    tail::Tail,
    tallies::{self, Classes},
    tx::Tx,
};

pub struct OpenOptions {
    pub location: Location,
    pub sharing: Sharing,
    pub seal_key: [u8; 32],
    /// Another key, which may be the seal key already if a rotation was stopped.
    pub next_seal_key: Option<[u8; 32]>,
    /// Kinds whose objects are encrypted at rest, as a whole and in the change log.
    pub sealed_kinds: Vec<Kind>,
    /// Kinds whose owner references are ignored: they are never collected, and no owner waits for them.
    pub ownerless_kinds: Vec<Kind>,
    /// Number of changes kept in memory for watchers. Older ones are [`WatchError::Compacted`](crate::WatchError).
    pub ring: usize,
    /// The same limit in bytes of stored JSON, because objects may be large.
    pub ring_bytes: usize,
    pub compact_after: CompactAfter,
    /// Longest answer time of a database server before it counts as gone.
    pub patience: Duration,
    /// Called inside every transaction that changes resources.
    pub on_change: Option<Arc<dyn ChangeHook>>,
    /// The states that [`Store::tallies`] counts. None: nothing is counted.
    pub classes: Option<Classes>,
}

impl OpenOptions {
    /// The defaults: no sharing, 16,384 changes or 32 MiB in memory, 50,000 changes and 10 minutes on disk (a watcher
    /// beyond the ring must list again anyway).
    pub fn new(location: impl Into<Location>, seal_key: [u8; 32]) -> Self {
        Self {
            location: location.into(),
            sharing: Sharing::Alone,
            seal_key,
            next_seal_key: None,
            sealed_kinds: sealed_kinds(),
            ownerless_kinds: vec![Kind::new("events", "")],
            ring: 16_384,
            ring_bytes: 32 << 20,
            compact_after: CompactAfter {
                versions: 50_000,
                age: Duration::from_secs(600),
            },
            patience: PATIENCE,
            on_change: None,
            classes: None,
        }
    }
}

pub(crate) async fn open(options: OpenOptions) -> Result<Store, OpenError> {
    let lock = lock_location(&options.location, options.sharing)?;
    let masters: Vec<Master> = [Some(options.seal_key), options.next_seal_key]
        .iter()
        .flatten()
        .map(Master::new)
        .collect();
    let settings = Arc::new(Settings {
        database: Database {
            location: options.location,
            patience: options.patience,
        },
        sharing: options.sharing,
        owner: random_name(),
        sealer: Arc::new(Sealer::new(masters[0].clone(), DataKeys::new(), options.sealed_kinds)),
        compact_after: options.compact_after,
        on_change: options.on_change,
    });
    let at = |error: StoreError| error.at(&settings.database.location);

    let mut connection = prepare(&settings, &masters, options.classes.as_ref()).await?;
    let limits = RingLimits {
        events: options.ring.max(1),
        bytes: options.ring_bytes,
    };
    let ring = fill_ring(&mut connection, limits, &settings.sealer).await.map_err(at)?;
    let readers = Readers::of(&settings.database).map_err(at)?;

    let tx = Tx::new(
        settings.database.engine(),
        connection,
        Arc::clone(&settings.sealer),
        options.ownerless_kinds.into(),
        options.classes,
    );
    Ok(start(settings, Arc::new(ring), readers, tx, lock))
}

/// Locks the file of a store, and creates it if it is missing. None: a server locks its databases itself.
fn lock_location(location: &Location, sharing: Sharing) -> Result<Option<File>, OpenError> {
    match location {
        Location::File(_) if sharing == Sharing::Replicas => Err(OpenError::NotShared {
            location: location.clone(),
        }),
        Location::File(path) => {
            let lock = lock_database(path)?;
            create_file(path)?;
            Ok(Some(lock))
        }
        Location::Postgres(_) => Ok(None),
    }
}

/// A writing connection to a database that has the newest schema, opens with the seal key, and is owned by this store.
async fn prepare(settings: &Settings, masters: &[Master], classes: Option<&Classes>) -> Result<Connection, OpenError> {
    let (engine, location) = (settings.database.engine(), &settings.database.location);
    let at = |error: StoreError| error.at(location);
    let connection = session::take(&settings.database, settings.sharing).await.map_err(at)?;
    let Some(mut connection) = connection else {
        return Err(OpenError::Locked {
            location: location.clone(),
        });
    };

    migrate(&mut connection, settings).await?;
    // A wrong key is found at the start, not when the first Secret is read.
    let (master, keys) = seal_keys::open(&mut connection, (engine, location), masters, seconds_since_1970()).await?;
    settings.sealer.adopt(master, keys);
    session::own(&mut connection, settings).await.map_err(at)?;
    if let Some(classes) = classes {
        tallies::ensure(&mut connection, engine, classes)
            .await
            .map_err(|error| at(error.into()))?;
    }
    Ok(connection)
}

/// Starts the tasks that write and that follow other replicas, and returns the store that they serve.
fn start(settings: Arc<Settings>, ring: Arc<Ring>, readers: Readers, tx: Tx, lock: Option<File>) -> Store {
    let tail = Arc::new(Tail::new(Arc::clone(&ring), Arc::clone(&settings)));
    let mut followers = JoinSet::new();
    if settings.database.engine() == Engine::Postgres {
        followers.spawn(Arc::clone(&tail).follow(readers.clone()));
        followers.spawn(Arc::clone(&tail).listen());
    }

    let at_hand = Arc::new(AtHand::new(settings.sharing == Sharing::Alone));
    let (sender, requests) = mpsc::channel(QUEUE);
    let (taken, is_taken) = watch::channel(false);
    let combiner = Combiner {
        tx,
        ring: Arc::clone(&ring),
        at_hand: Arc::clone(&at_hand),
        tail,
        settings: Arc::clone(&settings),
        requests,
        lock,
        followers,
        failing: false,
        taken,
    };
    tokio::spawn(combiner.run());
    Store {
        sender,
        readers,
        at_hand,
        ring,
        settings,
        is_taken,
    }
}

fn random_name() -> String {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random numbers");
    hex::encode(bytes)
}

/// Runs migrations without the usual limit: one that changes many rows may take longer than any other statement.
async fn migrate(connection: &mut Connection, settings: &Settings) -> Result<(), OpenError> {
    let engine = settings.database.engine();
    let at = |error: sqlx::Error| StoreError::from(error).at(&settings.database.location);
    let limit = |text: String| sqlx::query("SELECT set_config('statement_timeout', $1, false)").bind(text);
    if engine == Engine::Postgres {
        limit("0".to_owned()).execute(&mut *connection).await.map_err(at)?;
    }
    let migrated = run_migrations(connection, engine, schema::newest()).await;
    migrated.map_err(|source| OpenError::Migrate {
        location: settings.database.location.clone(),
        source,
    })?;
    if engine == Engine::Postgres {
        limit(settings.database.statement_limit())
            .execute(&mut *connection)
            .await
            .map_err(at)?;
    }
    Ok(())
}

/// Locks a file. Two writing processes would each rely on their own ring.
pub(crate) fn lock_database(path: &Path) -> Result<File, OpenError> {
    let lock_path = with_suffix(path, ".lock");
    let error = |source| OpenError::Create {
        path: lock_path.clone(),
        source,
    };
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock_path)
        .map_err(error)?;
    match lock_file(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { location: path.into() }),
        Err(TryLockError::Error(source)) => Err(error(source)),
    }
}

/// Creates the file readable only by its owner; SQLite would make it readable by all. The log gets the file's mode.
pub(crate) fn create_file(path: &Path) -> Result<(), OpenError> {
    let made = File::options().append(true).create(true).mode(0o600).open(path);
    made.map(drop).map_err(|source| OpenError::Create {
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Changes that are read back so that watches can resume: enough for watchers that were up to date when the hub
/// stopped, and parsed in some tens of milliseconds.
const RESUME: RingLimits = RingLimits {
    events: 4_096,
    bytes: 8 << 20,
};

async fn fill_ring(connection: &mut Connection, limits: RingLimits, sealer: &Sealer) -> Result<Ring, StoreError> {
    let counter = read::load_counter(connection).await?;
    let resumed = RingLimits {
        events: limits.events.min(RESUME.events),
        bytes: limits.bytes.min(RESUME.bytes),
    };
    let part = read::load_changes(connection, 0, counter, resumed, sealer).await?;
    // Read last, so that it also shows rows that another replica compacted meanwhile.
    let compacted = read::load_compacted(connection).await?;
    let floor = match part.changes.first() {
        Some(first) if part.is_cut => first.event.version - 1,
        None if part.is_cut => counter,
        // These are all rows of the log: a watch may start where compaction stopped.
        _ => 0,
    };
    let floor = floor.max(compacted).min(counter);
    let ring = Ring::new(limits, floor, floor);
    ring.append(part.changes, counter);
    Ok(ring)
}
