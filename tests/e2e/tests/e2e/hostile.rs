//! A hostile API server with short pages. `cargo xtask campaign hostile-api` has 5,000 objects and longer delays.

use std::time::Duration;

use anyhow::Result;
use farwater_e2e::hostile::{self, Hostility};
use farwater_testkit::{Plane, PlaneOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_api_server_is_waited_for_and_never_called_synced_too_early() -> Result<()> {
    let plane = Plane::start_with(PlaneOptions::without_nodes()).await?;
    let hostility = Hostility {
        page: 50,
        latency: Duration::from_millis(300),
        cut: Duration::from_secs(2),
        rest: Duration::from_secs(3),
        ..Hostility::of(11, 120, Duration::from_secs(240))
    };
    let outcome = hostile::run(&plane, hostility).await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    outcome.check()
}
