//! Creates the services of sets, and then those of one cluster.

use std::time::{Duration, Instant};

use anyhow::Result;
use farwater_api::Cluster;
use http::Request;
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{CHOSEN, Fleet, SHARE, SMALL, SOAK, cluster, rounded};
use crate::bench::{Figure, milliseconds, usage};

/// Number of clusters whose labels are changed, one after the other. The first one is not measured.
const LABELLED: usize = 11;
/// Limit for the hub's processor time per service, from the set to its desired state. The hub writes four rows for
/// each.
const OF_SERVICE: Duration = Duration::from_micros(1500);
/// Maximum time for a million services on a slow machine.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (sets, clusters) = if quick { (20, 1_000) } else { (100, 10_000) };
    let mut figures = Vec::new();
    let mut small = Stage::start(sets, SMALL).await?;
    let (each_of_few, of_few) = (
        small.stamp().await?.0 / u32::try_from(sets * (SMALL - LABELLED))?,
        small.label().await?,
    );
    drop(small);

    let mut large = Stage::start(sets, clusters).await?;
    let process = large.fleet.field.hub.process().id();
    let memory = usage::memory(process)?.resident;
    let (spent, took) = large.stamp().await?;
    let services = (sets * (clusters - LABELLED)) as f64;
    let workload = format!("{sets} sets on {clusters} clusters");
    let each = milliseconds(spent) / services;
    figures.push(
        Figure::new("hub_processor_time_per_service", &workload, rounded(each), "ms").at_most(milliseconds(OF_SERVICE)),
    );
    figures.push(
        Figure::new("hub_processor_time_beside_few", &workload, rounded(each), "ms").at_most_of(
            &format!("in a fleet of {SMALL}"),
            rounded(milliseconds(each_of_few)),
            SHARE,
        ),
    );
    figures.push(Figure::new(
        "services_made",
        &workload,
        rounded(services / took.as_secs_f64()),
        "1/s",
    ));
    let more = usage::memory(process)?.resident.saturating_sub(memory);
    figures.push(Figure::new(
        "memory_per_service",
        &workload,
        rounded(more as f64 / services),
        "bytes",
    ));

    let of_many = large.label().await?;
    let workload = format!(
        "a label of one of {clusters} clusters that brings {sets} services, mean of {}",
        LABELLED - 1
    );
    figures.push(
        Figure::new("hub_processor_time", &workload, milliseconds(of_many), "ms").at_most_of(
            &format!("in a fleet of {SMALL}"),
            milliseconds(of_few),
            SHARE,
        ),
    );
    Ok(figures)
}

struct Stage {
    fleet: Fleet,
    clusters: usize,
}

impl Stage {
    async fn start(sets: usize, clusters: usize) -> Result<Self> {
        let fleet = Fleet::start(sets).await?;
        eprintln!("creating {clusters} clusters");
        // The last ones get their label later.
        fleet.make_clusters(0..clusters - LABELLED, CHOSEN).await?;
        fleet.make_clusters(clusters - LABELLED..clusters, "none").await?;
        Ok(Self { fleet, clusters })
    }

    /// Creates the sets. Returns the processor time and the time until all services have their desired states.
    async fn stamp(&mut self) -> Result<(Duration, Duration)> {
        eprintln!("creating {} sets", self.fleet.sets);
        let share = self.fleet.field.share_at_rest().await?;
        let (before, begun) = (self.fleet.field.processor_time()?, Instant::now());
        self.fleet.make_sets(SOAK).await?;
        self.fleet.until_matched(self.clusters - LABELLED).await?;
        eprintln!("each set has its services; waiting for their desired states");
        self.until_quiet().await?;
        // The time in which the hub is checked to be idle does not count.
        let took = begun.elapsed().saturating_sub(Duration::from_secs(2));
        // The next reconcile of a set records that its members are idle, which counts.
        self.choose(self.clusters - LABELLED).await?;
        Ok((self.fleet.spent_since(before, begun.elapsed(), share)?, took))
    }

    /// Labels clusters one after the other. Returns the mean processor time.
    async fn label(&mut self) -> Result<Duration> {
        let share = self.fleet.field.share_at_rest().await?;
        let mut spent = Duration::ZERO;
        for n in self.clusters - LABELLED + 1..self.clusters {
            let (before, begun) = (self.fleet.field.processor_time()?, Instant::now());
            self.choose(n).await?;
            spent += self.fleet.spent_since(before, begun.elapsed(), share)?;
        }
        self.fleet.until_matched(self.clusters).await?;
        Ok(spent / u32::try_from(LABELLED - 1)?)
    }

    /// Labels a cluster, and waits until it has its services.
    async fn choose(&mut self, n: usize) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"env": CHOSEN}}}));
        self.fleet
            .field
            .api::<Cluster>()
            .patch(&cluster(n), &PatchParams::default(), &patch)
            .await?;
        self.until_quiet().await
    }

    /// Waits until the hub has no work left, and prints each minute how much is left.
    async fn until_quiet(&mut self) -> Result<()> {
        let client = self.fleet.field.client.clone();
        let telling = async {
            let begun = Instant::now();
            loop {
                tokio::time::sleep(Duration::from_secs(60)).await;
                let minutes = begun.elapsed().as_secs() / 60;
                match queued(&client).await {
                    Ok(count) => eprintln!("{minutes:>4} min: {count} resources wait in queues"),
                    Err(error) => eprintln!("{minutes:>4} min: can't read the hub's queue depth: {error:#}"),
                }
            }
        };
        tokio::select! {
            quiet = self.fleet.field.until_quiet_within(PATIENCE) => quiet.map(drop),
            () = telling => Ok(()),
        }
    }
}

/// Number of resources in the hub's queues.
async fn queued(client: &Client) -> Result<u64> {
    let text = client.request_text(Request::get("/metrics").body(Vec::new())?).await?;
    let depths = text.lines().filter(|line| line.starts_with("farwater_queue_depth{"));
    depths
        .map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<u64>()?))
        .sum()
}
