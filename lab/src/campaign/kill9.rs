//! Kills one hub ten times under write load, and compares it with the clients' own ledger.

use std::time::Duration;

use anyhow::Result;
use farwater_testkit::{
    Hub, Postgres,
    ledger::{self, KillableHub, Load},
};

use super::{Engine, Round};

pub async fn round(seed: u64, engine: Engine) -> Result<Round> {
    let dir = tempfile::tempdir()?;
    // A PostgreSQL server that syncs to disk, as in production.
    let server = match engine {
        Engine::Sqlite => None,
        Engine::Postgres => Some(Postgres::start().await?),
    };
    let hub = match &server {
        None => Hub::start(dir.path()).await?,
        Some(server) => Hub::start_with(dir.path(), &["--database", &server.create_database().await?]).await?,
    };
    let mut hub = KillableHub::new(hub, "ledger").await?;
    let load = Load {
        namespace: "ledger".to_owned(),
        writers: 16,
        names: 8,
        watchers: 4,
        kills: 10,
        between: Duration::from_secs(2),
        writes: 200,
        seed,
    };
    let outcome = ledger::run(&mut hub, &load, |kills, acknowledged| {
        eprintln!("  kill {kills}: {acknowledged} writes acknowledged");
    })
    .await?;
    let failures = outcome.check().err().map(|error| format!("seed {seed}: {error:#}"));
    Ok(Round {
        count: u64::from(outcome.kills),
        failures: failures.into_iter().collect(),
        figures: serde_json::to_value(&outcome)?,
    })
}
