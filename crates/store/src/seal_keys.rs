//! The keys that rows are sealed with: how they are stored and rotated at run time, and how rows are resealed
//! afterwards.
//!
//! A rotation seals the data keys with the new seal key and adds a new data key, in one transaction. New rows are
//! sealed with the new data key; existing rows still open with the old ones. [`Store::reseal`] then reseals them in
//! small steps, and removes the old keys at the end. If it is stopped, it continues at the next start.

mod reseal;

use std::collections::BTreeMap;

use sqlx::Row as _;
use zeroize::Zeroizing;

use crate::{
    Kind, Location, OpenError, Store, StoreError,
    engine::{Connection, Engine},
    read::{load_meta, save_meta},
    seal::{DataKey, DataKeys, FIRST, Master, Sealer, sealed_kinds},
    visit::Visit,
};

/// Meta entry that only the right seal key opens.
pub(crate) const SEAL_CHECK: &str = "seal-check";
use reseal::STEP;

pub use reseal::Resealing;

/// Prefix of the ids of services' documents in `kept_values`. Ids of backends' secrets are hexadecimal digits.
pub(crate) const DOCUMENTS: &str = "parameters/";

fn key_context(number: i16) -> Vec<u8> {
    format!("farwater-data-key-v1\0{number}").into_bytes()
}

/// Context of a kept value.
fn kept_context(id: &str) -> Vec<u8> {
    format!("farwater-kept-v1\0{id}").into_bytes()
}

fn wrap(master: &Master, key: &DataKey) -> Vec<u8> {
    master.cipher().seal(&*key.bytes, &key_context(key.number))
}

fn random_key() -> [u8; 32] {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

/// Whether `master` is the seal key of these rows.
pub(crate) async fn is_master(connection: &mut Connection, master: &Master) -> Result<bool, sqlx::Error> {
    let sealed = load_meta(connection, SEAL_CHECK)
        .await?
        .and_then(|text| hex::decode(text).ok())
        .unwrap_or_default();
    Ok(opens_check(&sealed, master))
}

pub(crate) fn opens_check(sealed: &[u8], master: &Master) -> bool {
    master.cipher().open(sealed, SEAL_CHECK.as_bytes()).is_some()
}

fn new_check(master: &Master) -> String {
    hex::encode(master.cipher().seal(b"", SEAL_CHECK.as_bytes()))
}

/// The stored data keys. None: another seal key has sealed them.
pub(crate) async fn load(connection: &mut Connection, master: &Master) -> Result<Option<DataKeys>, sqlx::Error> {
    let rows = sqlx::query("SELECT number, created, wrapped FROM data_keys ORDER BY number")
        .fetch_all(connection)
        .await?;
    if rows.is_empty() {
        return Ok(Some(DataKeys::from([(FIRST, master.as_data_key())])));
    }
    let (cipher, mut keys) = (master.cipher(), DataKeys::new());
    for row in &rows {
        let (number, created): (i16, i64) = (row.try_get("number")?, row.try_get("created")?);
        let opened = cipher
            .open(row.try_get("wrapped")?, &key_context(number))
            .map(Zeroizing::new);
        let bytes = opened.and_then(|bytes| <[u8; 32]>::try_from(bytes.as_slice()).ok());
        let Some(bytes) = bytes else { return Ok(None) };
        keys.insert(number, DataKey::new(number, created, bytes));
    }
    Ok(Some(keys))
}

async fn save(connection: &mut Connection, master: &Master, key: &DataKey) -> Result<(), sqlx::Error> {
    let save = sqlx::query(
        "INSERT INTO data_keys (number, created, wrapped) VALUES ($1, $2, $3) \
         ON CONFLICT (number) DO UPDATE SET wrapped = excluded.wrapped",
    );
    save.bind(key.number)
        .bind(key.created)
        .bind(wrap(master, key))
        .execute(connection)
        .await?;
    Ok(())
}

/// The data keys of a store that is being opened, created if there are none: for a new store one; for a store of an
/// older version the seal key itself, which has sealed its rows, and a new one for new rows. `masters`: the seal key,
/// and one that a stopped rotation may already have made the seal key.
pub(crate) async fn open(
    connection: &mut Connection,
    (engine, location): (Engine, &Location),
    masters: &[Master],
    now: i64,
) -> Result<(Master, DataKeys), OpenError> {
    let at = |error: sqlx::Error| StoreError::from(error).at(location);
    // If several processes open a new database at once, the key of the first counts.
    sqlx::raw_sql(engine.begin())
        .execute(&mut *connection)
        .await
        .map_err(at)?;
    let opened = open_locked(connection, masters, now).await;
    let end = if matches!(opened, Ok(Some(_))) {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = sqlx::raw_sql(end).execute(&mut *connection).await;
    let opened = opened.map_err(at)?.ok_or_else(|| OpenError::WrongKey {
        location: location.clone(),
    })?;
    ended.map_err(at)?;
    Ok(opened)
}

async fn open_locked(
    connection: &mut Connection,
    masters: &[Master],
    now: i64,
) -> Result<Option<(Master, DataKeys)>, sqlx::Error> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM data_keys")
        .fetch_one(&mut *connection)
        .await?;
    let is_new = load_meta(connection, SEAL_CHECK).await?.is_none();
    if let (true, Some(master)) = (is_new, masters.first()) {
        save_meta(connection, SEAL_CHECK, &new_check(master)).await?;
    }
    for master in masters {
        if !is_master(connection, master).await? {
            continue;
        }
        if count == 0 {
            let first = if is_new {
                DataKey::new(FIRST, now, random_key())
            } else {
                master.as_data_key()
            };
            save(connection, master, &first).await?;
            if !is_new {
                save(connection, master, &DataKey::new(FIRST + 1, now, random_key())).await?;
            }
        }
        return Ok(load(connection, master).await?.map(|keys| (master.clone(), keys)));
    }
    Ok(None)
}

/// Loads the present keys of the database, if the known ones are not the newest.
pub(crate) async fn reload(connection: &mut Connection, sealer: &Sealer) -> Result<(), sqlx::Error> {
    for master in sealer.masters() {
        if let Some(keys) = load(connection, &master).await? {
            sealer.adopt(master, keys);
            return Ok(());
        }
    }
    let problem = "the seal key was exchanged by another hub: start this one again with keys/seal.key of today";
    Err(sqlx::Error::Configuration(problem.into()))
}

/// Reseals the data keys from one seal key to another, while nothing else uses the tables.
pub(crate) async fn rewrap(
    connection: &mut Connection,
    from: &Master,
    to: &Master,
    now: i64,
) -> Result<(), sqlx::Error> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM data_keys")
        .fetch_one(&mut *connection)
        .await?;
    let keys = load(connection, from).await?.unwrap_or_default();
    for key in keys.values() {
        save(connection, to, key).await?;
    }
    if count == 0 {
        save(connection, to, &DataKey::new(FIRST + 1, now, random_key())).await?;
    }
    save_meta(connection, SEAL_CHECK, &new_check(to)).await
}

/// One key that rows may be sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataKeyRow {
    pub number: i16,
    /// Seconds since 1970. 0: from before data keys.
    pub created: i64,
    /// Whether it seals new rows.
    pub is_in_use: bool,
    /// Number of rows sealed with it: resources, and values read from backends.
    pub rows: u64,
}

/// The data keys of a hub that may be running. A store of an older version has none yet.
pub async fn read_data_keys(location: &Location) -> Result<Vec<DataKeyRow>, OpenError> {
    let mut visit = Visit::of_newest(location).await?;
    let read = data_key_rows(visit.connection(), &sealed_kinds()).await;
    visit.end().await;
    read.map_err(|error| StoreError::from(error).at(location).into())
}

async fn data_key_rows(connection: &mut Connection, kinds: &[Kind]) -> Result<Vec<DataKeyRow>, sqlx::Error> {
    let keys: Vec<(i16, i64)> = sqlx::query_as("SELECT number, created FROM data_keys ORDER BY number")
        .fetch_all(&mut *connection)
        .await?;
    let mut counts: BTreeMap<i16, u64> = BTreeMap::new();
    for kind in kinds {
        let count = sqlx::query_as("SELECT sealed, count(*) FROM resources WHERE kind = $1 GROUP BY sealed");
        let rows: Vec<(i16, i64)> = count.bind(kind.as_str()).fetch_all(&mut *connection).await?;
        rows.into_iter()
            .for_each(|(number, rows)| *counts.entry(number).or_default() += rows.unsigned_abs());
    }
    let count = sqlx::query_as("SELECT sealed, count(*) FROM kept_values GROUP BY sealed");
    let rows: Vec<(i16, i64)> = count.fetch_all(&mut *connection).await?;
    rows.into_iter()
        .for_each(|(number, rows)| *counts.entry(number).or_default() += rows.unsigned_abs());
    let newest = keys.last().map(|(number, _)| *number);
    let row = |(number, created)| DataKeyRow {
        number,
        created,
        is_in_use: Some(number) == newest,
        rows: counts.get(&number).copied().unwrap_or_default(),
    };
    Ok(keys.into_iter().map(row).collect())
}

impl Store {
    /// Makes `seal_key` the seal key, and adds a new data key that seals new rows. After this has returned, no other
    /// seal key opens the database; existing rows wait for [`Self::reseal`].
    pub async fn rotate_seal_key(&self, seal_key: &[u8; 32]) -> Result<(), StoreError> {
        let (master, bytes) = (Master::new(seal_key), random_key());
        self.transact(move |tx| Box::pin(async move { Ok(tx.rotate_seal_key(&master, bytes).await?) }))
            .await?;
        // A transaction loads the newest keys when it begins.
        self.transact(|_| Box::pin(async { Ok(()) })).await
    }

    /// Whether `seal_key` is the present seal key.
    pub fn is_sealed_with(&self, seal_key: &[u8; 32]) -> bool {
        let check = Master::new(seal_key);
        self.settings
            .sealer
            .masters()
            .first()
            .is_some_and(|master| opens_check(&check.cipher().seal(b"", SEAL_CHECK.as_bytes()), master))
    }

    /// The data keys with their numbers of rows, i.e. the progress of resealing.
    pub async fn data_keys(&self) -> Result<Vec<DataKeyRow>, StoreError> {
        let mut connection = self.connection().await?;
        self.read(async { Ok(data_key_rows(&mut connection, self.settings.sealer.kinds()).await?) })
            .await
    }

    /// Reseals one step of rows with older keys. False: none is left, and the older keys are removed.
    pub async fn reseal(&self, place: &mut Resealing) -> Result<bool, StoreError> {
        let active = self.settings.sealer.active();
        let mut connection = self.connection().await?;
        let found = self
            .read(async {
                Ok(place
                    .find(&mut connection, self.settings.sealer.kinds(), active)
                    .await?)
            })
            .await?;
        drop(connection);
        if let Some(rows) = found {
            self.transact(move |tx| Box::pin(async move { tx.reseal(rows).await }))
                .await?;
            return Ok(true);
        }
        let dropped = self
            .transact(move |tx| Box::pin(async move { tx.drop_data_keys(active).await }))
            .await?;
        if dropped {
            self.settings.sealer.forget_before(active);
        }
        *place = Resealing::default();
        Ok(!dropped)
    }

    /// The value stored under an id, and when it was read (seconds since 1970). None: there is none.
    pub async fn load_kept(&self, id: &str) -> Result<Option<(i64, Zeroizing<Vec<u8>>)>, StoreError> {
        let mut connection = self.connection().await?;
        let row = self
            .read(async { Ok(load_kept_row(&mut connection, id).await?) })
            .await?;
        let Some((number, read, sealed)) = row else {
            return Ok(None);
        };
        let opened = self
            .settings
            .sealer
            .open(number, &sealed, &kept_context(id))
            .ok_or_else(|| damaged_kept(id))?;
        Ok(Some((read, Zeroizing::new(opened))))
    }

    /// The ids of all values of backends, without the documents of services, which may be many.
    pub async fn kept_ids(&self) -> Result<Vec<String>, StoreError> {
        let mut connection = self.connection().await?;
        let select = sqlx::query_scalar("SELECT id FROM kept_values WHERE id < $1 ORDER BY id").bind(DOCUMENTS);
        self.read(async { Ok(select.fetch_all(&mut *connection).await?) }).await
    }
}

async fn load_kept_row(connection: &mut Connection, id: &str) -> Result<Option<(i16, i64, Vec<u8>)>, sqlx::Error> {
    sqlx::query_as("SELECT sealed, read, value FROM kept_values WHERE id = $1")
        .bind(id)
        .fetch_optional(connection)
        .await
}

pub(crate) fn damaged_kept(id: &str) -> StoreError {
    StoreError::Row {
        what: format!("value {id}"),
        problem: "it was sealed with another key or under another id".to_owned(),
    }
}

/// Opens all kept values. Returns the ids of those that can't be opened.
pub(crate) async fn check_kept(connection: &mut Connection, sealer: &Sealer) -> Result<Vec<String>, sqlx::Error> {
    let (mut last, mut damaged) = (String::new(), Vec::new());
    loop {
        let select = sqlx::query_as("SELECT id, sealed, value FROM kept_values WHERE id > $1 ORDER BY id LIMIT $2");
        let rows: Vec<(String, i16, Vec<u8>)> = select.bind(&last).bind(STEP).fetch_all(&mut *connection).await?;
        let is_damaged =
            |(id, number, sealed): &&(String, i16, Vec<u8>)| sealer.open(*number, sealed, &kept_context(id)).is_none();
        damaged.extend(rows.iter().filter(is_damaged).map(|(id, ..)| id.clone()));
        match rows.last() {
            Some((id, ..)) if rows.len() as i64 == STEP => last.clone_from(id),
            _ => return Ok(damaged),
        }
    }
}
