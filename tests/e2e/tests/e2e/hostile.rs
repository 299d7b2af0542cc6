//! A hostile API server; `cargo xtask campaign hostile-api` has 5,000 objects. Here they are some more than one page of a list.

use std::time::Duration;

use anyhow::Result;
use farwater_e2e::hostile;
use farwater_testkit::shared;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_api_server_is_waited_for_and_never_called_synced_too_early() -> Result<()> {
    let outcome = hostile::run(shared(1).await?, 11, 600, Duration::from_secs(240)).await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    outcome.check()
}
