//! An acknowledged write survives `kill -9` of the hub.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_testkit::{
    Hub,
    ledger::{self, KillableHub, Load},
};

/// What the issue asks of the hub under this load; the campaign `kill9` does a hundred kills.
const WRITES_PER_SECOND: f64 = 200.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start(dir.path()).await?;
    let mut hub = KillableHub::new(hub, "ledger").await?;
    let load = Load {
        namespace: "ledger".to_owned(),
        writers: 16,
        names: 8,
        watchers: 4,
        kills: 10,
        between: Duration::from_secs(2),
        seed: 9,
    };
    let outcome = ledger::run(&mut hub, &load, |kill, acknowledged| {
        eprintln!("kill {kill}: {acknowledged} writes acknowledged so far");
    })
    .await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    outcome.check()?;
    ensure!(outcome.writes_per_second >= WRITES_PER_SECOND, "the load was too light to prove anything: {outcome:?}");
    Ok(())
}
