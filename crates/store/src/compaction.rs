//! Removes old rows from the change log, in bounded steps.

use std::time::Duration;

use crate::{
    read::{self, COMPACTED},
    tx::Tx,
};

/// A change is removed from the log once it is more than `versions` behind and older than `age`. Watches resume across
/// a restart from the remaining changes, so `versions` should be at least the size of the ring.
#[derive(Clone, Copy, Debug)]
pub struct CompactAfter {
    pub versions: u64,
    pub age: Duration,
}

/// Rows of one step, for which writers wait: some 10 ms for rows of 4 KB whose pages were not read for minutes. Ten
/// times as many took 50 to 170 ms.
const STEP: u64 = 500;

impl CompactAfter {
    /// Number of writes after which a step is due. Each step removes twice as many rows, so the log can't grow without
    /// limit.
    pub(crate) fn every(&self) -> u64 {
        (STEP / 2).min(self.versions).max(1)
    }
}

/// One step, in a transaction that began at `counter`. Only the oldest rows are removed, so the rest has no gaps; a
/// clock that was set back only delays the removal. True: there may be more.
pub(crate) async fn compact(tx: &mut Tx, counter: u64, after: CompactAfter) -> Result<bool, sqlx::Error> {
    let cutoff = tx
        .time()
        .saturating_sub(i64::try_from(after.age.as_secs()).unwrap_or(i64::MAX));
    let oldest: Vec<(i64, i64)> =
        sqlx::query_as("SELECT version, written FROM changes WHERE version <= $1 ORDER BY version LIMIT $2")
            .bind(counter.saturating_sub(after.versions) as i64)
            .bind(STEP as i64)
            .fetch_all(&mut **tx)
            .await?;
    let old = oldest.iter().take_while(|(_, written)| *written <= cutoff).count();
    if let Some((last, _)) = oldest[..old].last() {
        sqlx::query("DELETE FROM changes WHERE version <= $1")
            .bind(last)
            .execute(&mut **tx)
            .await?;
        read::save_meta(tx, COMPACTED, &last.to_string()).await?;
    }
    Ok(old as u64 == STEP)
}
