//! Figures of the fleet, the database and the disk: read before a scrape, at most every few seconds.
//!
//! Clusters are counted in memory (0.1 µs each). Services and sources are counted by the store's tallies, a dozen rows
//! however many there are. No object gets a series of its own.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use farwater_fleet::{rollout::Clock, states};
use farwater_store::{StoreError, Tally};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};
use tokio::time::Instant;

use crate::{
    clusters::track_clusters::silence_deadline, errors::chain, memory::clusters::ClusterState, replica::Replica,
};

/// Scrapes within this time show the same figures, so that frequent scrapes don't load the database.
const FRESH: Duration = Duration::from_secs(5);

/// The figures that were read last.
#[derive(Debug, Default)]
struct Read {
    tallies: Vec<Tally>,
    database_bytes: u64,
    /// Seconds since 1970.
    time: i64,
}

pub struct Figures {
    replica: Arc<Replica>,
    data_dir: PathBuf,
    /// None: not read yet.
    read: Mutex<Option<Arc<Read>>>,
    /// When it was tried last. Locked during an attempt, so that other scrapes wait for its result.
    tried: tokio::sync::Mutex<Option<Instant>>,
}

impl Figures {
    pub fn new(replica: Arc<Replica>, data_dir: PathBuf) -> Self {
        Self {
            replica,
            data_dir,
            read: Mutex::default(),
            tried: tokio::sync::Mutex::default(),
        }
    }

    /// Reads old figures again. Figures that can't be read stay as they were; their time shows that.
    pub async fn refresh(&self) {
        let mut tried = self.tried.lock().await;
        if tried.is_some_and(|time| time.elapsed() < FRESH) {
            return;
        }
        match self.load().await {
            Ok(read) => *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(read)),
            Err(error) => tracing::warn!(error = %chain(&error), "can't read the fleet's figures"),
        }
        *tried = Some(Instant::now());
    }

    async fn load(&self) -> Result<Read, StoreError> {
        let store = &self.replica.store;
        let (tallies, database_bytes) = (store.tallies().await?, store.bytes().await?);
        Ok(Read {
            tallies,
            database_bytes,
            time: self.replica.clock.now().as_second(),
        })
    }

    fn last(&self) -> Option<Arc<Read>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Read {
    fn number(&self, kinds: &[&str], state: &str) -> u64 {
        let counted = |tally: &&Tally| kinds.contains(&&*tally.kind) && tally.state == state;
        self.tallies.iter().filter(counted).map(|tally| tally.number).sum()
    }

    fn by_readiness(&self, kinds: &'static [&'static str]) -> impl Iterator<Item = (&'static str, u64)> {
        states::READINESS
            .iter()
            .map(move |state| (*state, self.number(kinds, state)))
    }
}

/// Number of clusters by the state of their agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClusterCounts {
    ready: u64,
    silent: u64,
    not_joined: u64,
    /// Seconds since the longest silent cluster was heard, or since the hub's start.
    longest_silence: u64,
}

impl ClusterCounts {
    fn add(&mut self, cluster: &ClusterState, started: i64, now: i64) {
        if cluster.key_print.is_none() {
            self.not_joined += 1;
            return;
        }
        let heard = cluster.heard().unwrap_or(0).max(started);
        self.longest_silence = self
            .longest_silence
            .max(now.saturating_sub(heard).max(0).unsigned_abs());
        if now <= silence_deadline(cluster, started) {
            self.ready += 1;
        } else {
            self.silent += 1;
        }
    }
}

/// Writes metric families one after the other.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn one<V: EncodeGaugeValue>(&mut self, name: &str, help: &str, value: V) -> std::fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn many(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> std::fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (state, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}

/// The figures in a scrape.
pub struct Shown(pub Arc<Figures>);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown(..)")
    }
}

impl Collector for Shown {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut families = Families(encoder);
        self.encode_clusters(&mut families)?;
        if let Some(read) = self.0.last() {
            encode_read(&read, &mut families)?;
        }
        let Ok(disk) = rustix::fs::statvfs(&self.0.data_dir) else {
            return Ok(());
        };
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        let help = "Size of the data directory's file system, in bytes";
        families.one("data_filesystem_size_bytes", help, bytes(disk.f_blocks))?;
        let help = "Space that the hub may still use on the data directory's file system, in bytes";
        families.one("data_filesystem_available_bytes", help, bytes(disk.f_bavail))
    }
}

impl Shown {
    fn encode_clusters(&self, families: &mut Families<'_>) -> std::fmt::Result {
        let replica = &self.0.replica;
        // Before clusters are loaded, their number is unknown, not zero.
        if !replica.memory.clusters.is_loaded() {
            return Ok(());
        }
        let Clock { now, started } = replica.clock.read();
        let mut heard = ClusterCounts::default();
        replica.memory.clusters.each(|cluster| heard.add(cluster, started, now));
        let values = [
            ("ready", heard.ready),
            ("silent", heard.silent),
            ("not_joined", heard.not_joined),
        ];
        families.many("clusters", "Clusters by the state of their agents", values)?;
        let help = "Connected agents";
        families.one("connected_agents", help, replica.memory.connections.open() as u64)?;
        let help =
            "Seconds since the longest-silent cluster was last heard, or since the hub's start if that was later";
        families.one("cluster_longest_silence_seconds", help, heard.longest_silence)?;
        let help = "Sources that are polled less often because webhooks announce their pushes";
        families.one(
            "sources_announced",
            help,
            replica.memory.checks.announced.proven() as u64,
        )?;
        let help = "1 while all deletions in the fleet are paused";
        families.one(
            "prunes_frozen",
            help,
            u64::from(replica.memory.freeze.reason().is_some()),
        )
    }
}

fn encode_read(read: &Read, families: &mut Families<'_>) -> std::fmt::Result {
    let help = "Clusters where nothing is deleted until a person confirms the restored backup";
    families.one(
        "clusters_restored",
        help,
        read.number(&[states::CLUSTERS], states::RESTORED),
    )?;
    families.many("sources", "Sources by readiness", read.by_readiness(&states::SOURCES))?;
    let help = "Sources whose last fetch failed";
    families.one("sources_stale", help, read.number(&states::SOURCES, states::STALE))?;
    families.many(
        "services",
        "Services by readiness",
        read.by_readiness(&[states::SERVICES]),
    )?;
    let help = "Services whose prune waits for an approval";
    families.one(
        "services_prune_held",
        help,
        read.number(&[states::SERVICES], states::PRUNE_HELD),
    )?;
    families.one(
        "database_size_bytes",
        "Size of the database, in bytes",
        read.database_bytes,
    )?;
    let help = "Time of the last read of services and sources from the database, in Unix seconds";
    families.one("figures_timestamp_seconds", help, read.time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_counted_by_when_they_were_heard() {
        let cluster = |joined: bool, heard: Option<i64>| {
            let mut state = ClusterState::new("uid", "farwater-admin", "east", Duration::from_secs(30));
            state.key_print = joined.then(String::new);
            if let Some(time) = heard {
                state.hear(time);
            }
            state
        };
        let (started, now) = (1_000, 2_000);
        let mut heard = ClusterCounts::default();
        let clusters = [
            cluster(false, None),
            cluster(true, Some(1_990)),
            cluster(true, Some(1_500)),
            cluster(true, None),
        ];
        clusters.iter().for_each(|cluster| heard.add(cluster, started, now));
        assert_eq!(
            heard,
            ClusterCounts {
                ready: 1,
                silent: 2,
                not_joined: 1,
                longest_silence: 1_000
            }
        );
        // A hub that was away heard no polls.
        let mut heard = ClusterCounts::default();
        heard.add(&cluster(true, Some(500)), started, 1_010);
        assert_eq!(
            heard,
            ClusterCounts {
                ready: 1,
                longest_silence: 10,
                ..ClusterCounts::default()
            }
        );
    }
}
