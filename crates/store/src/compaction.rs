//! Taking old rows from the change log, a bounded step at a time.

use std::time::Duration;

use futures::TryStreamExt as _;
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
const STEP: u64 = 5_000;

impl CompactAfter {
    /// After how many writes a step is due: each takes out twice as much as came in, so the log can't outgrow them.
    pub(crate) fn every(&self) -> u64 {
        (STEP / 2).min(self.versions).max(1)
    }
}

/// One step. Rows leave from the oldest only, so that what is left has no gaps; a clock that was set back only makes
/// them stay longer.
pub(crate) async fn compact(tx: &mut Tx, after: CompactAfter, now: i64) -> Result<(), sqlx::Error> {
    let counter = tx.begin(now).await?;
    let cutoff = now.saturating_sub(i64::try_from(after.age.as_secs()).unwrap_or(i64::MAX));
    let mut last: Option<i64> = None;
    let mut oldest = sqlx::query("SELECT version, written FROM changes WHERE version <= $1 ORDER BY version LIMIT $2")
        .bind(counter.saturating_sub(after.versions) as i64)
        .bind(STEP as i64)
        .fetch(&mut **tx);
    while let Some(row) = oldest.try_next().await? {
        if row.try_get::<i64, _>("written")? > cutoff {
            break;
        }
        last = Some(row.try_get("version")?);
    }
    drop(oldest);
    if let Some(last) = last {
        sqlx::query("DELETE FROM changes WHERE version <= $1").bind(last).execute(&mut **tx).await?;
        read::save_meta(tx, COMPACTED, &last.to_string()).await?;
    }
    tx.commit().await?;
    Ok(())
}
