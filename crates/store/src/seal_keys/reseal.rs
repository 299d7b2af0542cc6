//! Seals values again with the newest key, some at a time.

use std::sync::Arc;

use sqlx::Row as _;
use zeroize::Zeroizing;

use super::{SEAL_CHECK, damaged_kept, kept_context, load_kept_row, new_check, save};
use crate::{
    Kind, StoreError,
    engine::Connection,
    read::save_meta,
    seal::{DataKey, Master, row_context},
    tx::Tx,
};

/// Rows resealed in one transaction, for which writers wait: some milliseconds.
pub(super) const STEP: i64 = 100;

/// Position of resealing. Resources come before the log, because a resource that is deleted meanwhile enters the log as
/// it was in its row.
#[derive(Default)]
pub struct Resealing {
    /// Index into the sealed kinds.
    pub(super) kind: usize,
    resource: (String, String),
    pub(super) version: i64,
    pub(super) kept: String,
}

/// Some rows that are sealed with older keys.
pub(super) enum Found {
    Resources(Kind, Vec<(String, String)>),
    Changes(Vec<i64>),
    Kept(Vec<String>),
}

impl Resealing {
    pub(super) async fn find(
        &mut self,
        connection: &mut Connection,
        kinds: &[Kind],
        active: i16,
    ) -> Result<Option<Found>, sqlx::Error> {
        while let Some(kind) = kinds.get(self.kind) {
            let select = sqlx::query_as(
                "SELECT namespace, name FROM resources WHERE kind = $1 AND (namespace, name) > ($2, $3) \
                 AND sealed <> 0 AND sealed <> $4 ORDER BY namespace, name LIMIT $5",
            );
            let select = select
                .bind(kind.as_str())
                .bind(&self.resource.0)
                .bind(&self.resource.1)
                .bind(active)
                .bind(STEP);
            let rows: Vec<(String, String)> = select.fetch_all(&mut *connection).await?;
            if let Some(last) = rows.last() {
                self.resource = last.clone();
                return Ok(Some(Found::Resources(kind.clone(), rows)));
            }
            self.kind += 1;
            self.resource = Default::default();
        }
        let select = sqlx::query_scalar(
            "SELECT version FROM changes WHERE version > $1 AND sealed <> 0 AND sealed <> $2 ORDER BY version LIMIT $3",
        );
        let versions: Vec<i64> = select
            .bind(self.version)
            .bind(active)
            .bind(STEP)
            .fetch_all(&mut *connection)
            .await?;
        if let Some(last) = versions.last() {
            self.version = *last;
            return Ok(Some(Found::Changes(versions)));
        }

        let select =
            sqlx::query_scalar("SELECT id FROM kept_values WHERE id > $1 AND sealed <> $2 ORDER BY id LIMIT $3");
        let ids: Vec<String> = select
            .bind(&self.kept)
            .bind(active)
            .bind(STEP)
            .fetch_all(&mut *connection)
            .await?;
        let Some(last) = ids.last() else { return Ok(None) };
        self.kept.clone_from(last);
        Ok(Some(Found::Kept(ids)))
    }
}

impl Tx {
    /// Stores a value that was read, sealed, together with the transaction's other writes. `read`: seconds since 1970.
    pub async fn save_kept(&mut self, id: &str, read: i64, value: &[u8]) -> Result<(), StoreError> {
        let key = self.sealer().current();
        let sealed = key.seal(value, &kept_context(id));
        let save = sqlx::query(
            "INSERT INTO kept_values (id, sealed, read, value) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO UPDATE SET \
             sealed = excluded.sealed, read = excluded.read, value = excluded.value",
        );
        save.bind(id)
            .bind(key.number)
            .bind(read)
            .bind(sealed)
            .execute(&mut **self)
            .await?;
        Ok(())
    }

    pub async fn remove_kept(&mut self, id: &str) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM kept_values WHERE id = $1")
            .bind(id)
            .execute(&mut **self)
            .await?;
        Ok(())
    }

    pub(super) async fn rotate_seal_key(&mut self, master: &Master, bytes: [u8; 32]) -> Result<(), sqlx::Error> {
        let sealer = Arc::clone(self.sealer());
        let number = sealer
            .active()
            .checked_add(1)
            .ok_or_else(|| sqlx::Error::Configuration("no number is left for a key".into()))?;
        let key = DataKey::new(number, self.time(), bytes);
        for old in sealer.data_keys().values().filter(|old| old.number < number) {
            save(self, master, old).await?;
        }
        save(self, master, &key).await?;
        save_meta(self, SEAL_CHECK, &new_check(master)).await?;
        sealer.expect(master.clone(), key);
        Ok(())
    }

    pub(super) async fn reseal(&mut self, found: Found) -> Result<(), StoreError> {
        match found {
            Found::Resources(kind, names) => {
                for (namespace, name) in names {
                    self.reseal_resource(&crate::Key {
                        kind: kind.clone(),
                        namespace,
                        name,
                    })
                    .await?;
                }
            }
            Found::Changes(versions) => {
                for version in versions {
                    self.reseal_change(version).await?;
                }
            }
            Found::Kept(ids) => {
                for id in ids {
                    self.reseal_kept(&id).await?;
                }
            }
        }
        Ok(())
    }

    async fn reseal_resource(&mut self, key: &crate::Key) -> Result<(), StoreError> {
        let (sealer, Some(row)) = (Arc::clone(self.sealer()), crate::read::load_row(self, key).await?) else {
            return Ok(());
        };
        let (with, number) = (sealer.current(), row.sealed);
        if number == 0 || number == with.number {
            return Ok(());
        }
        let context = row_context(key, &row.uid);
        let (version, plain) = (row.version, row.open(key, &sealer)?);
        let update = sqlx::query(
            "UPDATE resources SET sealed = $1, body = $2, status = $3 \
             WHERE kind = $4 AND namespace = $5 AND name = $6 AND version = $7",
        );
        update
            .bind(with.number)
            .bind(with.seal(&plain.body, &context))
            .bind(plain.status.map(|status| with.seal(&status, &context)))
            .bind(key.kind.as_str())
            .bind(&key.namespace)
            .bind(&key.name)
            .bind(version as i64)
            .execute(&mut **self)
            .await?;
        Ok(())
    }

    async fn reseal_change(&mut self, version: i64) -> Result<(), StoreError> {
        let select = sqlx::query(
            "SELECT kind, namespace, name, uid, sealed, old_labels, body, status FROM changes WHERE version = $1",
        );
        // The log may have been compacted meanwhile.
        let Some(row) = select.bind(version).fetch_optional(&mut **self).await? else {
            return Ok(());
        };
        let sealer = Arc::clone(self.sealer());
        let (with, number): (_, i16) = (sealer.current(), row.try_get("sealed")?);
        if number == 0 || number == with.number {
            return Ok(());
        }
        let kind = Kind::from(row.try_get::<&str, _>("kind")?);
        let key = crate::Key {
            kind,
            namespace: row.try_get("namespace")?,
            name: row.try_get("name")?,
        };
        let uid: String = row.try_get("uid")?;
        let context = row_context(&key, &uid);
        let reseal =
            |bytes: &[u8]| Ok::<_, StoreError>(with.seal(&sealer.open_row(number, bytes, &key, &uid)?, &context));
        let (labels, body) = (reseal(row.try_get("old_labels")?)?, reseal(row.try_get("body")?)?);
        let status = row
            .try_get::<Option<Vec<u8>>, _>("status")?
            .map(|status| reseal(&status))
            .transpose()?;
        let update =
            sqlx::query("UPDATE changes SET sealed = $1, old_labels = $2, body = $3, status = $4 WHERE version = $5");
        update
            .bind(with.number)
            .bind(labels)
            .bind(body)
            .bind(status)
            .bind(version)
            .execute(&mut **self)
            .await?;
        Ok(())
    }

    async fn reseal_kept(&mut self, id: &str) -> Result<(), StoreError> {
        let Some((number, _, sealed)) = load_kept_row(self, id).await? else {
            return Ok(());
        };
        let sealer = Arc::clone(self.sealer());
        let (with, context) = (sealer.current(), kept_context(id));
        let opened = Zeroizing::new(sealer.open(number, &sealed, &context).ok_or_else(|| damaged_kept(id))?);
        let update = sqlx::query("UPDATE kept_values SET sealed = $1, value = $2 WHERE id = $3");
        update
            .bind(with.number)
            .bind(with.seal(&opened, &context))
            .bind(id)
            .execute(&mut **self)
            .await?;
        Ok(())
    }

    /// Removes all keys before `active`, if no row is sealed with them. False: some row is, or another key has become
    /// active.
    pub(super) async fn drop_data_keys(&mut self, active: i16) -> Result<bool, StoreError> {
        let sealer = Arc::clone(self.sealer());
        if sealer.active() != active {
            return Ok(false);
        }
        for kind in sealer.kinds() {
            let one = sqlx::query("SELECT 1 FROM resources WHERE kind = $1 AND sealed <> 0 AND sealed <> $2 LIMIT 1");
            if one
                .bind(kind.as_str())
                .bind(active)
                .fetch_optional(&mut **self)
                .await?
                .is_some()
            {
                return Ok(false);
            }
        }
        for table in ["changes", "kept_values"] {
            let sql = format!("SELECT 1 FROM {table} WHERE sealed <> 0 AND sealed <> $1 LIMIT 1");
            if sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(active)
                .fetch_optional(&mut **self)
                .await?
                .is_some()
            {
                return Ok(false);
            }
        }
        sqlx::query("DELETE FROM data_keys WHERE number < $1")
            .bind(active)
            .execute(&mut **self)
            .await?;
        Ok(true)
    }
}
