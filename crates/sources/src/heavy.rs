//! Limits work that needs memory and a core for a while: large indexes, and archives.

use std::{sync::LazyLock, thread::available_parallelism};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Most concurrent work, however many cores there are: inputs are in memory, at about three times their size.
const MOST: usize = 2;
/// Half of the machine's cores, so that small work finds a free one. Never closed.
static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, MOST))));

/// Waits for a place, which is freed when the permit is dropped.
pub async fn place() -> Option<SemaphorePermit<'static>> {
    PLACES.acquire().await.ok()
}
