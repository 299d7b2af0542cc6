//! Taking old rows from the change log, a bounded step at a time.

use std::time::Duration;

use sqlx::Row as _;

use crate::{read, tx::Tx};

/// A change leaves the log once it is behind by more than `versions` and older than `age`. Watches resume across a
/// restart from what is left, so `versions` should be at least what the ring holds.
#[derive(Clone, Copy, Debug)]
pub struct CompactAfter {
    pub versions: u64,
    pub age: Duration,
}

/// The meta entry with the newest version that has left.
pub(crate) const COMPACTED: &str = "compacted";

/// Rows in one step: about 10 ms for which writers wait.
const STEP: i64 = 5_000;

/// One step. Rows leave from the oldest only, so that what is left has no gaps; a clock that was set back only makes
/// them stay longer.
pub(crate) async fn compact(tx: &mut Tx, after: CompactAfter, now: i64) -> Result<(), sqlx::Error> {
    let counter = tx.begin(now).await?;
    let candidates = sqlx::query("SELECT version, written FROM changes WHERE version <= $1 ORDER BY version LIMIT $2")
        .bind(counter.saturating_sub(after.versions) as i64)
        .bind(STEP)
        .fetch_all(&mut **tx)
        .await?;
    let cutoff = now.saturating_sub(i64::try_from(after.age.as_secs()).unwrap_or(i64::MAX));
    let mut last = None;
    for row in candidates {
        let (version, written): (i64, i64) = (row.try_get("version")?, row.try_get("written")?);
        if written > cutoff {
            break;
        }
        last = Some(version);
    }
    if let Some(last) = last {
        sqlx::query("DELETE FROM changes WHERE version <= $1").bind(last).execute(&mut **tx).await?;
        read::save_meta(tx, COMPACTED, &last.to_string()).await?;
    }
    tx.commit().await?;
    Ok(())
}
