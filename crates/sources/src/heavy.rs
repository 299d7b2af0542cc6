//! Work that keeps a core busy for a while and takes memory: large indexes, and archives.

use std::{sync::LazyLock, thread::available_parallelism};

use tokio::sync::{Semaphore, SemaphorePermit};

/// However many cores there are: what is read is held in memory, some three times its size.
const MOST: usize = 2;
/// Half of the machine's cores, so that whoever has little to do finds one. Never closed.
static PLACES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, MOST))));

/// Waits until such work may be done; it is done when this is dropped.
pub async fn place() -> Option<SemaphorePermit<'static>> {
    PLACES.acquire().await.ok()
}
