//! Waiting on conditions, with a bound. Tests never sleep for a fixed time.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Asks `probe` until it answers `Some`. An error of the probe counts as "not yet" and is shown if time runs out:
/// servers that are starting or being killed answer with errors.
pub async fn wait_for<T, F, P>(what: &str, bound: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> P,
    P: Future<Output = Result<Option<T>>>,
{
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut last_error = None;
    loop {
        let left = bound.saturating_sub(start.elapsed());
        match tokio::time::timeout(left.max(FIRST_PAUSE), probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => last_error = None,
            Ok(Err(error)) => last_error = Some(error),
            Err(_) => last_error = Some(last_error.unwrap_or_else(|| anyhow!("the last check itself did not return"))),
        }
        if start.elapsed() >= bound {
            return Err(match last_error {
                Some(error) => error.context(format!("waited {bound:?} for {what}")),
                None => anyhow!("waited {bound:?} for {what}, in vain"),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_that_runs_out_says_what_it_waited_for_and_the_last_error() {
        let error =
            wait_for("the moon", Duration::from_millis(60), || async { Err::<Option<()>, _>(anyhow!("clouds")) })
                .await
                .unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("the moon") && text.contains("clouds"), "{text}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_does_not_outlive_the_bound() {
        let probe = || std::future::pending::<Result<Option<()>>>();
        let waited =
            tokio::time::timeout(Duration::from_secs(5), wait_for("it", Duration::from_millis(50), probe)).await;
        assert!(waited.unwrap().is_err());
    }
}
