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
    let OpenOptions {
        location,
        sharing,
        seal_key,
        next_seal_key,
        sealed_kinds,
        ownerless_kinds,
        ring,
        ring_bytes,
        compact_after,
        patience,
        on_change,
        classes,
    } = options;
    let lock = match &location {
        Location::File(_) if sharing == Sharing::Replicas => return Err(OpenError::NotShared { location }),
        Location::File(path) => {
            let lock = lock_database(path)?;
            create_file(path)?;
            Some(lock)
        }
        Location::Postgres(_) => None,
    };
    let masters: Vec<Master> = [Some(seal_key), next_seal_key]
        .iter()
        .flatten()
        .map(Master::new)
        .collect();
    let sealer = Arc::new(Sealer::new(masters[0].clone(), DataKeys::new(), sealed_kinds));
    let owner = random_name();
    let database = Database { location, patience };
    let settings = Arc::new(Settings {
        database,
        sharing,
        owner,
        sealer,
        compact_after,
        on_change,
    });
    let at = |error: StoreError| error.at(&settings.database.location);

    let connection = session::take(&settings.database, sharing).await.map_err(at)?;
    let Some(mut connection) = connection else {
        return Err(OpenError::Locked {
            location: settings.database.location.clone(),
        });
    };
    migrate(&mut connection, &settings).await?;
    let place = (settings.database.engine(), &settings.database.location);
    // A wrong key is found at the start, not when the first Secret is read.
    let (master, keys) = seal_keys::open(&mut connection, place, &masters, seconds_since_1970()).await?;
    settings.sealer.adopt(master, keys);
    session::own(&mut connection, &settings).await.map_err(at)?;
    if let Some(classes) = &classes {
        tallies::ensure(&mut connection, settings.database.engine(), classes)
            .await
            .map_err(|error| at(error.into()))?;
    }
    let limits = RingLimits {
        events: ring.max(1),
        bytes: ring_bytes,
    };
    let ring = Arc::new(fill_ring(&mut connection, limits, &settings.sealer).await.map_err(at)?);
    let readers = Readers::of(&settings.database).map_err(at)?;

    let engine = settings.database.engine();
    let tail = Arc::new(Tail::new(Arc::clone(&ring), Arc::clone(&settings)));
    let mut followers = JoinSet::new();
    if engine == Engine::Postgres {
        followers.spawn(Arc::clone(&tail).follow(readers.clone()));
        followers.spawn(Arc::clone(&tail).listen());
    }
    let at_hand = Arc::new(AtHand::new(sharing == Sharing::Alone));
    let (sender, requests) = mpsc::channel(QUEUE);
    let (taken, is_taken) = watch::channel(false);
    let combiner = Combiner {
        tx: Tx::new(
            engine,
            connection,
            Arc::clone(&settings.sealer),
            ownerless_kinds.into(),
            classes,
        ),
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
    Ok(Store {
        sender,
        readers,
        at_hand,
        ring,
        settings,
        is_taken,
    })
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
