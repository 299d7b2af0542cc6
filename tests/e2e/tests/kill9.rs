//! An acknowledged write survives `kill -9` of the hub.

use std::time::Duration;

use anyhow::{Result, ensure};
use farwater_testkit::{
    Hub, Postgres,
    ledger::{self, Killable, KillableDatabase, KillableHub, Load},
};

/// What the hub has to do under this load, so that a kill finds something under way; the campaign `kill9` does a hundred kills.
const WRITES_PER_SECOND: f64 = 200.0;
/// On a server of its own that shares the machine, and that takes a second to recover.
const WRITES_PER_SECOND_POSTGRESQL: f64 = 50.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start(dir.path()).await?;
    hold(&mut KillableHub::new(hub, "ledger").await?, 10, WRITES_PER_SECOND).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9_of_a_hub_on_postgresql() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start().await?;
    let hub = Hub::start_with(dir.path(), &["--database", &server.create_database().await?]).await?;
    hold(&mut KillableHub::new(hub, "ledger").await?, 5, WRITES_PER_SECOND_POSTGRESQL).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9_of_postgresql() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start().await?;
    let mut hub = Hub::start_with(dir.path(), &["--database", &server.create_database().await?]).await?;
    // It says so when its database goes away: requests, and whatever controller was at work.
    for line in [
        "a transaction failed",
        "the store failed a request",
        "a token could not be looked up",
        "the database",
        "postgres://",
        // A line of sqlx's own, which names no database.
        "error returned from after_connect",
    ] {
        hub.tolerate(line);
    }
    let hub = KillableHub::new(hub, "ledger").await?;
    hold(&mut KillableDatabase { hub, server }, 5, WRITES_PER_SECOND_POSTGRESQL).await
}

async fn hold(server: &mut impl Killable, kills: u32, rate: f64) -> Result<()> {
    let load = Load {
        namespace: "ledger".to_owned(),
        writers: 16,
        names: 8,
        watchers: 4,
        kills,
        between: Duration::from_secs(2),
        seed: 9,
    };
    let outcome = ledger::run(server, &load, |kill, acknowledged| {
        eprintln!("kill {kill}: {acknowledged} writes acknowledged so far");
    })
    .await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    outcome.check()?;
    ensure!(outcome.writes_per_second >= rate, "the load was too light to prove anything: {outcome:?}");
    Ok(())
}
