//! Sets on a fleet: the cost of creating their services, of one cluster's label (the same for any size of fleet), of a
//! commit that reaches every cluster, and of asking for its impact beforehand.

use std::{ops::Range, time::Duration};

use anyhow::{Context as _, Result};
use farwater_api::{Cluster, ServiceSet};
use farwater_testkit::wait_for;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};

use super::sources::field::{BRANCH, Field, PATIENCE, config_map};

pub mod commit;
pub mod impact;
pub mod stamping;

const SOURCE: &str = "apps";
/// Number of clusters that are written at a time.
const AT_ONCE: usize = 64;
/// Clusters of the small fleet that the large one is compared with.
const SMALL: usize = 100;
/// Maximum ratio of the cost of one cluster in the large fleet to that in the small one.
const SHARE: f64 = 1.5;
/// Usual soak time of a rollout.
const SOAK: &str = "2m";
/// Value of the label by which the sets select clusters.
const CHOSEN: &str = "prod";

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Sets that differ only in their folders, on all clusters with the label [`CHOSEN`].
struct Fleet {
    field: Field,
    repository: farwater_testkit::git::Repository,
    sets: usize,
}

impl Fleet {
    /// Starts a hub, with a repository that has a folder for each set.
    async fn start(sets: usize) -> Result<Self> {
        let field = Field::start().await?;
        let repository = field.git.create(SOURCE)?;
        let files: Vec<(String, String)> = (0..sets).map(|n| (path(n), config_map("0"))).collect();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        let commit = repository.commit(BRANCH, &files)?;
        field.repository(SOURCE, "24h").await?;
        field.served(SOURCE, &commit).await?;
        Ok(Self {
            field,
            repository,
            sets,
        })
    }

    /// Creates clusters without agents.
    async fn make_clusters(&self, some: Range<usize>, env: &str) -> Result<()> {
        let create = |n: usize| {
            let object = json!({
                "apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster",
                "metadata": {"name": cluster(n), "labels": {"env": env, "region": format!("region-{}", n % 7)}}, "spec": {},
            });
            let api = self.field.api::<Cluster>();
            async move {
                let object = serde_json::from_value(object)?;
                api.create(&Default::default(), &object)
                    .await
                    .with_context(|| cluster(n))?;
                anyhow::Ok(())
            }
        };
        stream::iter(some)
            .map(create)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Creates the sets. `soak`: the soak time of their rollouts.
    async fn make_sets(&self, soak: &str) -> Result<()> {
        for n in 0..self.sets {
            let spec = json!({
                "clusterSelector": {"matchLabels": {"env": CHOSEN}},
                "parameters": [{"name": "region", "fromLabel": "region", "default": "none"}],
                "rollout": {"strategy": "AllAtOnce", "soak": soak},
                "template": {"spec": {
                    "targetNamespace": format!("n{n}"), "sourceRef": {"name": SOURCE}, "path": format!("app-{n:03}"),
                }},
            });
            self.field.source::<ServiceSet>(&set(n), spec).await?;
        }
        Ok(())
    }

    /// Waits until each set has a service on so many clusters.
    async fn until_matched(&self, clusters: usize) -> Result<()> {
        let wanted = i64::try_from(clusters)?;
        for n in 0..self.sets {
            self.until_set(n, "have its services", |status| {
                status["clusters"]["matched"] == wanted && status["clusters"]["failed"].as_i64().unwrap_or(0) == 0
            })
            .await?;
        }
        Ok(())
    }

    async fn until_set(&self, n: usize, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let (sets, name) = (self.field.api::<ServiceSet>(), set(n));
        wait_for(&format!("{name} to {what}"), PATIENCE * 6, || async {
            let status = serde_json::to_value(sets.get(&name).await?.status)?;
            Ok(holds(&status).then_some(()))
        })
        .await
    }

    /// The hub's processor time since `before`, without its idle load.
    fn spent_since(&mut self, before: Duration, elapsed: Duration, share: f64) -> Result<Duration> {
        Ok(self
            .field
            .processor_time()?
            .saturating_sub(before)
            .saturating_sub(elapsed.mul_f64(share)))
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
