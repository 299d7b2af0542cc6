//! The statements of a writing transaction.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Row as _};

use super::{Pending, Tx, plan::Slot};
use crate::{
    Key, read,
    row::encode_operation,
    rows::{chunks, parameters},
};

impl Tx {
    /// Writes the planned rows. The counter's lock keeps other writers away.
    pub(super) async fn save_rows(&mut self, rows: HashMap<Key, Slot>) -> Result<(), sqlx::Error> {
        let changed = rows.into_iter().filter(|(_, slot)| slot.changed);
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        for (key, slot) in changed {
            match slot.row {
                Some(row) => kept.push((key, row)),
                None => gone.push(key),
            }
        }

        for some in chunks(&gone) {
            let sql = format!(
                "DELETE FROM resources WHERE (kind, namespace, name) IN (VALUES {})",
                parameters(some.len(), 3)
            );
            let mut delete = sqlx::query(AssertSqlSafe(sql));
            for key in some {
                delete = delete.bind(key.kind.as_str()).bind(&key.namespace).bind(&key.name);
            }
            delete.execute(&mut **self).await?;
        }
        for some in chunks(&kept) {
            let sql = format!(
                "INSERT INTO resources (kind, namespace, name, uid, version, sealed, labels, body, status) VALUES {} \
                 ON CONFLICT (kind, namespace, name) DO UPDATE SET uid = excluded.uid, version = excluded.version, \
                 sealed = excluded.sealed, labels = excluded.labels, body = excluded.body, status = excluded.status",
                parameters(some.len(), 9)
            );
            let mut upsert = sqlx::query(AssertSqlSafe(sql));
            for (key, row) in some {
                upsert = upsert
                    .bind(key.kind.as_str())
                    .bind(&key.namespace)
                    .bind(&key.name)
                    .bind(&row.uid)
                    .bind(row.version as i64)
                    .bind(row.sealed)
                    .bind(&row.labels)
                    .bind(&row.body)
                    .bind(&row.status);
            }
            upsert.execute(&mut **self).await?;
        }
        Ok(())
    }

    pub(super) async fn log_changes(&mut self) -> Result<(), sqlx::Error> {
        let changes = std::mem::take(&mut self.changes);
        let logged = self.log(&changes).await;
        self.changes = changes;
        logged
    }

    async fn log(&mut self, changes: &[Pending]) -> Result<(), sqlx::Error> {
        for some in chunks(changes) {
            let sql = format!(
                "INSERT INTO changes \
                 (version, kind, namespace, name, uid, operation, sealed, written, old_labels, body, status) VALUES {}",
                parameters(some.len(), 11)
            );
            let mut insert = sqlx::query(AssertSqlSafe(sql));
            for Pending {
                event, row, old_labels, ..
            } in some
            {
                insert = insert
                    .bind(row.version as i64)
                    .bind(event.key.kind.as_str())
                    .bind(&event.key.namespace)
                    .bind(&event.key.name)
                    .bind(&row.uid)
                    .bind(encode_operation(event.operation))
                    .bind(row.sealed)
                    .bind(self.time)
                    .bind(old_labels)
                    .bind(&row.body)
                    .bind(&row.status);
            }
            insert.execute(&mut **self).await?;
        }
        Ok(())
    }

    /// Whether the log contains exactly the changes of this transaction. Call it under the counter's lock, so that
    /// earlier transactions have ended.
    pub(crate) async fn is_logged(&mut self, counter: u64) -> Result<bool, sqlx::Error> {
        let (Some(first), Some(last)) = (self.changes.first(), self.changes.last()) else {
            return Ok(false);
        };
        let (first, last) = (first.row.version, last.row.version);
        if counter < last {
            return Ok(false);
        }

        let rows = sqlx::query(
            "SELECT version, kind, namespace, name, uid, operation, sealed, body, status, written FROM changes \
             WHERE version BETWEEN $1 AND $2 ORDER BY version",
        )
        .bind(first as i64)
        .bind(last as i64)
        .fetch_all(&mut **self)
        .await?;
        if rows.len() != self.changes.len() {
            return Ok(false);
        }
        for (found, Pending { event, row, .. }) in rows.iter().zip(&self.changes) {
            let same = read::version(found, "version")? == row.version
                && found.try_get::<&str, _>("kind")? == event.key.kind.as_str()
                && found.try_get::<&str, _>("namespace")? == event.key.namespace
                && found.try_get::<&str, _>("name")? == event.key.name
                && found.try_get::<&str, _>("uid")? == row.uid
                && found.try_get::<i16, _>("operation")? == encode_operation(event.operation)
                && found.try_get::<i64, _>("written")? == self.time
                && found.try_get::<&[u8], _>("body")? == row.body
                && found.try_get::<Option<Vec<u8>>, _>("status")? == row.status;
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
