//! Work that takes as long as what strangers have sent makes it take: it gives way to all that others wait for.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

use tokio::sync::oneshot;

/// As `nice` counts: where threads compete, one that isn't nice gets nine times the time of one that is this nice.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Runs blocking work on a thread of its own: who was nice once can't take that back. A panic in it is a panic here; `Err`, where the
/// machine gives no thread.
pub async fn heavy<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (answer, answered) = oneshot::channel();
    thread::Builder::new().name("heavy".to_owned()).spawn(move || {
        give_way();
        // Who does not wait any more needs no answer.
        let _ = answer.send(catch_unwind(AssertUnwindSafe(work)));
    })?;
    match answered.await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(gone) => Err(io::Error::other(gone)),
    }
}

fn give_way() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "heavy work does not give way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heavy_work_gives_way_and_nothing_else_does() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        assert_eq!(heavy(niceness).await.unwrap(), before + NICE);
        assert_eq!(niceness(), before);
    }

    #[tokio::test]
    #[should_panic(expected = "of the work")]
    async fn a_panic_goes_on_where_it_is_waited_for() {
        heavy(|| panic!("of the work")).await.unwrap();
    }
}
