//! Time from a commit until the agent gets it, with and without neighbours: sources that answer slowly, wrongly, or
//! with harmful archives.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{GitRepository, HelmRepository, OCIRepository};
use farwater_fleetsim::{Poller, bundles};
use farwater_testkit::{
    Origin,
    git::{Fault, GitServer, Repository},
    registry::gzip,
    temporary_folder,
};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::field::{BRANCH, Field, config_map, folder};
use crate::bench::{Figure, milliseconds, percentile, usage};

const OWN: &str = "own";
const SERVICE: &str = "app";
const CLUSTER: &str = "east";
/// Limit from the issue.
const SHARE: f64 = 2.0;
const RESIDENT_MIB: f64 = 512.0;
/// Number of sources of each kind.
const SOURCES: usize = 8;
/// Time after which the hub gives up a silent host.
const TIMEOUT: &str = "5s";
/// Time in which fetches of suspended neighbours end.
const SETTLED: Duration = Duration::from_secs(8);
/// Time between two fetch requests for the neighbours.
const PRESSURE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
const INDEX_BYTES: usize = 25 << 20;
const CHARTS: [&str; 2] = ["large-index", "bomb"];

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (blocks, rounds) = if quick { (1, 10) } else { (5, 40) };
    let mut field = Field::start().await?;
    let repository = field.git.create(OWN)?;
    repository.commit(BRANCH, &[("app/map.yaml", &config_map("0"))])?;
    field.repository(OWN, "24h").await?;
    let mut poller = Poller::join(&field.hub, CLUSTER).await?;
    field
        .services([(SERVICE.to_owned(), CLUSTER.to_owned(), folder(OWN, "app"))].into_iter())
        .await?;
    until_told(&mut poller, Instant::now()).await?;
    let neighbours = Neighbours::start(&field).await?;

    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for block in 1..=blocks {
        eprintln!("block {block} of {blocks}");
        neighbours.suspend(&field, true).await?;
        tokio::time::sleep(SETTLED).await;
        alone.extend(round_trips(&field, &repository, &mut poller, rounds).await?);
        neighbours.suspend(&field, false).await?;
        let commits = round_trips(&field, &repository, &mut poller, rounds);
        // The requests for neighbours never end by themselves.
        let pressed = async {
            tokio::select! {
                times = commits => times,
                failed = neighbours.press(&field) => failed.map(|()| Vec::new()),
            }
        };
        beside.extend(pressed.await?);
    }
    let samples = alone.len();
    ensure!(beside.len() == samples, "{} commits beside {samples}", beside.len());
    let asked = neighbours.asked();
    ensure!(asked > samples, "the neighbours were fetched only {asked} times");
    let workload = format!(
        "{samples} commits on request, beside {} sources that stall, drip, fail or bring harm, asked {asked} times",
        SOURCES * 5 + CHARTS.len()
    );
    let figure = |metric, share| {
        let (mut alone, mut beside) = (alone.clone(), beside.clone());
        Figure::new(metric, &workload, milliseconds(percentile(&mut beside, share)), "ms").at_most_of(
            "without them",
            milliseconds(percentile(&mut alone, share)),
            SHARE,
        )
    };
    let peak = usage::memory(field.hub.process().id())?.peak as f64 / f64::from(1 << 20);
    Ok(vec![
        figure("commit_to_told_p50", 0.5),
        figure("commit_to_told_p99", 0.99),
        Figure::new("hub_peak", &workload, peak.round(), "MiB").at_most(RESIDENT_MIB),
    ])
}

/// Times from the fetch request until the cluster gets the commit's bundle.
async fn round_trips(
    field: &Field,
    repository: &Repository,
    poller: &mut Poller,
    rounds: usize,
) -> Result<Vec<Duration>> {
    static TEXT: AtomicU64 = AtomicU64::new(1);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let text = TEXT.fetch_add(1, Ordering::Relaxed).to_string();
        repository.commit(BRANCH, &[("app/map.yaml", &config_map(&text))])?;
        let begun = Instant::now();
        field.ask::<GitRepository>(OWN).await?;
        until_told(poller, begun).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Waits until the service's entry changes.
async fn until_told(poller: &mut Poller, begun: Instant) -> Result<()> {
    loop {
        if poller
            .poll()
            .await?
            .is_some_and(|desired| bundles(&desired).contains_key(SERVICE))
        {
            return Ok(());
        }
        ensure!(begun.elapsed() < LONGEST, "the cluster got no change for {LONGEST:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

struct Neighbours {
    servers: Vec<(&'static str, GitServer)>,
    /// A registry: half of its repositories stall, and half drip.
    registry: Origin,
    pages: Origin,
    folder: tempfile::TempDir,
    /// Padding that makes an index large.
    padding: String,
}

impl Neighbours {
    async fn start(field: &Field) -> Result<Self> {
        let mut servers = Vec::new();
        for (kind, fault) in [
            ("stalled", Fault::Stall),
            (
                "dripping",
                Fault::Slow {
                    bytes: 1,
                    pause: Duration::from_secs(1),
                },
            ),
            ("failing", Fault::Status(500)),
            ("refusing", Fault::Status(429)),
        ] {
            let server = GitServer::start().await?;
            for n in 0..SOURCES {
                let name = format!("{kind}-{n}");
                server.create(&name)?.commit(BRANCH, &[("a.yaml", &config_map("x"))])?;
                let mut spec = json!({"url": server.url(&name), "interval": "10s", "timeout": TIMEOUT});
                spec["ref"] = json!({"branch": BRANCH});
                field.source::<GitRepository>(&name, spec).await?;
            }
            server.set_fault(fault);
            servers.push((kind, server));
        }
        let folder = temporary_folder("farwater-bench-")?;
        let registry = Origin::of_folder(folder.path(), None).await?;
        registry.set_fault_at("stalled", Fault::Stall);
        registry.set_fault_at(
            "dripping",
            Fault::Slow {
                bytes: 1,
                pause: Duration::from_secs(1),
            },
        );
        for name in artifacts() {
            let url = format!("oci://{}/{name}", registry.host());
            let spec = json!({"url": url, "insecure": true, "interval": "10s", "timeout": TIMEOUT});
            field.source::<OCIRepository>(&name, spec).await?;
        }
        let pages = Origin::of_folder(folder.path(), None).await?;
        let neighbours = Self {
            servers,
            registry,
            pages,
            folder,
            padding: padding(),
        };
        let once = gzip(&vec![0; 256 << 20])?;
        for chart in CHARTS {
            let place = neighbours.place(chart);
            std::fs::create_dir_all(&place).context("make a folder of charts")?;
            std::fs::write(place.join(format!("{chart}.tgz")), once.repeat(16))?;
            neighbours.write_index(chart, 0)?;
            let url = format!("{}/{chart}", neighbours.pages.url());
            let spec = json!({"url": url, "interval": "10s", "timeout": "60s"});
            field.source::<HelmRepository>(chart, spec).await?;
        }
        let wanted = CHARTS.map(|chart| {
            let reference = json!({"kind": "HelmRepository", "name": chart});
            let spec = json!({"sourceRef": reference, "chart": {"name": chart, "version": "*"}});
            (format!("of-{chart}"), CLUSTER.to_owned(), spec)
        });
        field.services(wanted.into_iter()).await?;
        Ok(neighbours)
    }

    fn place(&self, chart: &str) -> PathBuf {
        self.folder.path().join(chart)
    }

    /// Writes a different index each time, so that it is read again.
    fn write_index(&self, chart: &str, turn: usize) -> Result<()> {
        let entry = format!("  {chart}:\n  - {{name: {chart}, version: 1.0.{turn}, urls: [{chart}.tgz]}}\n");
        let mut index = format!("apiVersion: v1\nentries:\n{entry}");
        if chart == CHARTS[0] {
            index.push_str(&self.padding);
        }
        let place = self.place(chart);
        std::fs::write(place.join("index.new"), index)?;
        std::fs::rename(place.join("index.new"), place.join("index.yaml")).context("write an index")
    }

    fn repositories(&self) -> impl Iterator<Item = String> {
        self.servers
            .iter()
            .flat_map(|(kind, _)| (0..SOURCES).map(move |n| format!("{kind}-{n}")))
    }

    async fn suspend(&self, field: &Field, is_suspended: bool) -> Result<()> {
        let (parameters, patch) = (
            PatchParams::default(),
            Patch::Merge(json!({"spec": {"suspend": is_suspended}})),
        );
        for name in self.repositories() {
            field.api::<GitRepository>().patch(&name, &parameters, &patch).await?;
        }
        for name in artifacts() {
            field.api::<OCIRepository>().patch(&name, &parameters, &patch).await?;
        }
        for chart in CHARTS {
            field.api::<HelmRepository>().patch(chart, &parameters, &patch).await?;
        }
        Ok(())
    }

    /// Requests fetches of all neighbours again and again. Ends only with an error.
    async fn press(&self, field: &Field) -> Result<()> {
        for turn in 1.. {
            for name in self.repositories() {
                field.ask::<GitRepository>(&name).await?;
            }
            for name in artifacts() {
                field.ask::<OCIRepository>(&name).await?;
            }
            for chart in CHARTS {
                self.write_index(chart, turn)?;
                field.ask::<HelmRepository>(chart).await?;
            }
            tokio::time::sleep(PRESSURE).await;
        }
        Ok(())
    }

    fn asked(&self) -> usize {
        let of_git: usize = self.servers.iter().map(|(_, server)| server.counts().requests).sum();
        of_git + self.registry.count("/") + self.pages.count("/")
    }
}

/// Names of the registry's repositories.
fn artifacts() -> impl Iterator<Item = String> {
    (0..SOURCES).map(|n| format!("artifact-{}-{n}", if n % 2 == 0 { "stalled" } else { "dripping" }))
}

fn padding() -> String {
    let words = "a description as charts have them ".repeat(8);
    let mut text = "  others:\n".to_owned();
    for n in 0.. {
        let line = format!("  - {{name: others, version: 0.0.{n}, description: {words}, urls: [x.tgz]}}\n");
        if text.len() + line.len() > INDEX_BYTES {
            break;
        }
        text.push_str(&line);
    }
    text
}
