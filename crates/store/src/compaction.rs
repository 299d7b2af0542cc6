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

/// Rows in one step, for which writers wait: some 10 ms with rows of 4 KB whose pages nobody has read for minutes. Ten times as
/// many took 50 to 170 ms.
const STEP: u64 = 500;

impl CompactAfter {
    /// After how many writes a step is due: each takes out twice as much as came in, so the log can't outgrow them.
    pub(crate) fn every(&self) -> u64 {
        (STEP / 2).min(self.versions).max(1)
    }
}

/// One step, in a transaction that has begun at `counter`. Rows leave from the oldest only, so that what is left has no
/// gaps; a clock that was set back only makes them stay longer. `true`: there may be more to take.
pub(crate) async fn compact(tx: &mut Tx, counter: u64, after: CompactAfter) -> Result<bool, sqlx::Error> {
    let cutoff = tx.time().saturating_sub(i64::try_from(after.age.as_secs()).unwrap_or(i64::MAX));
    let oldest: Vec<(i64, i64)> =
        sqlx::query_as("SELECT version, written FROM changes WHERE version <= $1 ORDER BY version LIMIT $2")
            .bind(counter.saturating_sub(after.versions) as i64)
            .bind(STEP as i64)
            .fetch_all(&mut **tx)
            .await?;
    let old = oldest.iter().take_while(|(_, written)| *written <= cutoff).count();
    if let Some((last, _)) = oldest[..old].last() {
        sqlx::query("DELETE FROM changes WHERE version <= $1").bind(last).execute(&mut **tx).await?;
        read::save_meta(tx, COMPACTED, &last.to_string()).await?;
    }
    Ok(old as u64 == STEP)
}
