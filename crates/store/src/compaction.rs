//! Taking old rows from the change log, a bounded step at a time.

use std::time::Duration;

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

/// One step, in a transaction that has begun at `counter`. Rows leave from the oldest only, so that what is left has no
/// gaps; a clock that was set back only makes them stay longer.
pub(crate) async fn compact(tx: &mut Tx, counter: u64, after: CompactAfter) -> Result<(), sqlx::Error> {
    let cutoff = tx.time().saturating_sub(i64::try_from(after.age.as_secs()).unwrap_or(i64::MAX));
    let oldest: Vec<(i64, i64)> =
        sqlx::query_as("SELECT version, written FROM changes WHERE version <= $1 ORDER BY version LIMIT $2")
            .bind(counter.saturating_sub(after.versions) as i64)
            .bind(STEP as i64)
            .fetch_all(&mut **tx)
            .await?;
    let old = oldest.into_iter().take_while(|(_, written)| *written <= cutoff);
    if let Some((last, _)) = old.last() {
        sqlx::query("DELETE FROM changes WHERE version <= $1").bind(last).execute(&mut **tx).await?;
        read::save_meta(tx, COMPACTED, &last.to_string()).await?;
    }
    Ok(())
}
