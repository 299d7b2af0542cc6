//! Runs client-go's informers and leader election against a hub under churn. The program is `tests/localkube/informer`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use crate::{Hub, Process, Tools, process::bare_command, wait_for};

/// The program's output at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub seed: i64,
    /// Acknowledged writes.
    pub writes: u64,
    /// Refused writes, because the object exists or does not exist, as expected.
    pub refused: u64,
    /// Writes with an unknown result, because the hub was killed.
    pub unknown: u64,
    /// Number of lists whose expected result for an object was known for certain.
    pub judged: u64,
    pub events: u64,
    /// Number of comparisons of a cache with a list.
    pub compared: u64,
    /// Number of elections.
    pub leaders: u64,
    #[serde(deserialize_with = "null_as_empty")]
    pub faults: Vec<String>,
}

/// A nil slice of Go.
fn null_as_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Outcome {
    pub fn check(&self) -> Result<()> {
        ensure!(self.faults.is_empty(), "{}", self.faults.join("\n"));
        let counts = [self.writes, self.refused, self.judged, self.events, self.compared];
        ensure!(
            counts.iter().all(|count| *count > 0) && self.leaders > 1,
            "little happened: {self:?}"
        );
        Ok(())
    }
}

/// Runs the program for `duration` in the admin namespace, and kills and restarts the hub meanwhile.
pub async fn run(hub: &mut Hub, duration: Duration, seed: i64, kill_every: Option<Duration>) -> Result<Outcome> {
    let mut command = bare_command(Tools::find()?.informer());
    command
        .arg("--kubeconfig")
        .arg(hub.kubeconfig())
        .args(["--namespace", farwater_api::ADMIN_NAMESPACE])
        .args(["--duration", &format!("{}s", duration.as_secs())])
        .args(["--seed", &seed.to_string()]);
    let log = hub.dir().join(format!("informer-{seed}.log"));
    let mut process = Process::spawn("the informer", command, &log)?;
    let end = Instant::now() + duration;
    if let Some(every) = kill_every {
        let mut next = Instant::now() + every;
        // Don't kill the hub at the very end, because the last comparison needs a hub that has been back for a while.
        while next + every / 2 < end {
            sleep_until(next).await;
            hub.restart().await?;
            next += every;
        }
    }
    let rest = end.saturating_duration_since(Instant::now()) + Duration::from_secs(120);
    wait_for("the informer to end", rest, || {
        let exited = process.exited().is_some();
        async move { Ok(exited.then_some(())) }
    })
    .await?;
    let output = process.output();
    let Some(line) = output.lines().rev().find(|line| line.starts_with('{')) else {
        bail!("the informer printed no result\n{}", process.tail());
    };
    serde_json::from_str(line).with_context(|| format!("read the informer's result: {line}"))
}
