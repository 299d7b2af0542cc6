//! Sets on a fleet: what it costs to make their services, that one cluster's label costs the same in a fleet of any size, and a
//! commit that concerns every cluster.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{Cluster, ServiceSet};
use farwater_testkit::wait_for;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{
    Figure, milliseconds,
    sources::field::{BRANCH, Field, PATIENCE, config_map},
    usage,
};

const SOURCE: &str = "apps";
/// Clusters that are written at a time.
const AT_ONCE: usize = 64;
/// Whose labels are changed, one after the other.
const LABELLED: usize = 10;
/// A fleet that is beside the large one.
const SMALL: usize = 100;
/// Of the hub's processor time, for each service from the set to its desired state: four rows are written for it.
const OF_SERVICE: Duration = Duration::from_micros(1500);
/// What one cluster costs does not follow the fleet.
const SHARE: f64 = 1.5;

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (sets, clusters) = if quick { (20, 1_000) } else { (100, 10_000) };
    let mut figures = Vec::new();
    let mut small = Fleet::start(sets, SMALL).await?;
    let (_, of_few) = (small.stamp().await?, small.label().await?);
    drop(small);

    let mut fleet = Fleet::start(sets, clusters).await?;
    let memory = usage::memory(fleet.field.hub.process().id())?.resident;
    let (spent, took) = fleet.stamp().await?;
    let services = (sets * clusters) as f64;
    let workload = format!("{sets} sets on {clusters} clusters");
    let each = milliseconds(spent) / services;
    figures.push(
        Figure::new("hub_processor_time_per_service", &workload, rounded(each), "ms").at_most(milliseconds(OF_SERVICE)),
    );
    figures.push(Figure::new("services_made", &workload, rounded(services / took.as_secs_f64()), "1/s"));
    let more = usage::memory(fleet.field.hub.process().id())?.resident.saturating_sub(memory);
    figures.push(Figure::new("memory_per_service", &workload, rounded(more as f64 / services), "bytes"));

    let of_many = fleet.label().await?;
    let workload = format!("a label of one of {clusters} clusters that brings {sets} services, mean of {LABELLED}");
    figures.push(Figure::new("hub_processor_time", &workload, milliseconds(of_many), "ms").at_most_of(
        &format!("in a fleet of {SMALL}"),
        milliseconds(of_few),
        SHARE,
    ));

    let spent = fleet.commit().await?;
    let workload = format!("a commit that changes one service on each of {clusters} clusters");
    let each = milliseconds(spent) / clusters as f64;
    figures.push(Figure::new("hub_processor_time_per_cluster", &workload, rounded(each), "ms"));
    Ok(figures)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

struct Fleet {
    field: Field,
    repository: farwater_testkit::git::Repository,
    sets: usize,
    clusters: usize,
}

impl Fleet {
    async fn start(sets: usize, clusters: usize) -> Result<Self> {
        let field = Field::start().await?;
        let repository = field.git.create(SOURCE)?;
        let files: Vec<(String, String)> = (0..sets).map(|n| (path(n), config_map("0"))).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let commit = repository.commit(BRANCH, &files)?;
        field.repository(SOURCE, "24h").await?;
        field.served(SOURCE, &commit).await?;
        eprintln!("{clusters} clusters are made");
        let fleet = Self { field, repository, sets, clusters };
        // The last are those that get a label later.
        fleet.make_clusters(0..clusters - LABELLED, "prod").await?;
        fleet.make_clusters(clusters - LABELLED..clusters, "none").await?;
        Ok(fleet)
    }

    async fn make_clusters(&self, some: Range<usize>, env: &str) -> Result<()> {
        let create = |n: usize| {
            let object = json!({
                "apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster",
                "metadata": {"name": cluster(n), "labels": {"env": env, "region": format!("region-{}", n % 7)}}, "spec": {},
            });
            let api = self.field.api::<Cluster>();
            async move {
                let object = serde_json::from_value(object)?;
                api.create(&Default::default(), &object).await.with_context(|| cluster(n))?;
                anyhow::Ok(())
            }
        };
        stream::iter(some).map(create).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Makes the sets; the processor time and the time until all services have their desired states.
    async fn stamp(&mut self) -> Result<(Duration, Duration)> {
        eprintln!("{} sets are made", self.sets);
        let share = self.field.share_at_rest().await?;
        let (before, begun) = (self.field.processor_time()?, Instant::now());
        for n in 0..self.sets {
            let spec = json!({
                "clusterSelector": {"matchLabels": {"env": "prod"}},
                "parameters": [{"name": "region", "fromLabel": "region"}],
                "template": {"spec": {
                    "targetNamespace": format!("n{n}"), "sourceRef": {"name": SOURCE}, "path": format!("app-{n:03}"),
                }},
            });
            self.field.source::<ServiceSet>(&set(n), spec).await?;
        }
        let wanted = i64::try_from(self.clusters - LABELLED)?;
        for n in 0..self.sets {
            self.wait_matched(&set(n), wanted).await?;
        }
        let after = self.field.until_quiet().await?;
        // What it waits to be sure of that is no part of it.
        let took = begun.elapsed().saturating_sub(Duration::from_secs(2));
        Ok((after.saturating_sub(before).saturating_sub(begun.elapsed().mul_f64(share)), took))
    }

    async fn wait_matched(&self, name: &str, wanted: i64) -> Result<()> {
        let sets = self.field.api::<ServiceSet>();
        wait_for("a set to have its services", PATIENCE * 6, || async {
            let status = sets.get(name).await?.status.unwrap_or_default();
            Ok((status.clusters.matched == wanted && status.clusters.failed == 0).then_some(()))
        })
        .await
    }

    /// Labels clusters one after the other; the mean of the processor time.
    async fn label(&mut self) -> Result<Duration> {
        let share = self.field.share_at_rest().await?;
        let (mut spent, clusters) = (Duration::ZERO, self.field.api::<Cluster>());
        for n in self.clusters - LABELLED..self.clusters {
            let (before, begun) = (self.field.processor_time()?, Instant::now());
            let patch = Patch::Merge(json!({"metadata": {"labels": {"env": "prod"}}}));
            clusters.patch(&cluster(n), &PatchParams::default(), &patch).await?;
            let after = self.field.until_quiet().await?;
            spent += after.saturating_sub(before).saturating_sub(begun.elapsed().mul_f64(share));
        }
        for n in 0..self.sets {
            self.wait_matched(&set(n), i64::try_from(self.clusters)?).await?;
        }
        Ok(spent / u32::try_from(LABELLED)?)
    }

    /// A commit that touches the folder of one set.
    async fn commit(&mut self) -> Result<Duration> {
        let share = self.field.share_at_rest().await?;
        let looks = self.field.reconciles().await?;
        let (before, begun) = (self.field.processor_time()?, Instant::now());
        let commit = self.repository.change(BRANCH, &[(&path(0), Some(&config_map("1")))])?;
        self.field.ask::<farwater_api::GitRepository>(SOURCE).await?;
        self.field.served(SOURCE, &commit).await?;
        let after = self.field.until_quiet().await?;
        let looks = self.field.reconciles().await? - looks;
        ensure!(looks >= self.clusters as u64, "{looks} services were looked at");
        Ok(after.saturating_sub(before).saturating_sub(begun.elapsed().mul_f64(share)))
    }
}

fn cluster(n: usize) -> String {
    format!("cluster-{n:05}")
}

fn set(n: usize) -> String {
    format!("set-{n:03}")
}

fn path(n: usize) -> String {
    format!("app-{n:03}/map.yaml")
}
