//! An acknowledged write survives `kill -9` of the hub.

use std::time::Duration;

use anyhow::Result;
use farwater_testkit::{
    Hub, Postgres,
    ledger::{self, Killable, KillableDatabase, KillableHub, Load},
};

/// Number of writes before each kill, so that some are running. The campaign `kill9` kills a hub a hundred times on
/// each engine.
const WRITES: u64 = 200;
/// The same with a database server on the same machine, which takes a second to recover.
const WRITES_POSTGRESQL: u64 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let hub = Hub::start(dir.path()).await?;
    hold(&mut KillableHub::new(hub, "ledger").await?, 5, WRITES).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9_of_a_hub_on_postgresql() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start().await?;
    let mut hub = Hub::start_with(dir.path(), &["--database", &server.create_database().await?]).await?;
    // A new hub connects to a database server on the same busy machine, and logs delays.
    hub.tolerate("pool timed out while waiting for an open connection");
    hold(&mut KillableHub::new(hub, "ledger").await?, 3, WRITES_POSTGRESQL).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_kill_9_of_postgresql() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let server = Postgres::start().await?;
    let mut hub = Hub::start_with(dir.path(), &["--database", &server.create_database().await?]).await?;
    // The hub logs that its database is away: for requests, and for controllers that were working.
    for line in [
        "a transaction failed",
        "the store failed a request",
        "a token could not be looked up",
        "the database",
        "postgres://",
        // A line of sqlx itself, which names no database.
        "error returned from after_connect",
    ] {
        hub.tolerate(line);
    }
    let hub = KillableHub::new(hub, "ledger").await?;
    hold(&mut KillableDatabase { hub, server }, 5, WRITES_POSTGRESQL).await
}

async fn hold(server: &mut impl Killable, kills: u32, writes: u64) -> Result<()> {
    let load = Load {
        namespace: "ledger".to_owned(),
        writers: 16,
        names: 8,
        watchers: 4,
        kills,
        between: Duration::from_secs(1),
        writes,
        seed: 9,
    };
    let outcome = ledger::run(server, &load, |kill, acknowledged| {
        eprintln!("kill {kill}: {acknowledged} writes acknowledged so far");
    })
    .await?;
    eprintln!("{}", serde_json::to_string_pretty(&outcome)?);
    outcome.check()
}
