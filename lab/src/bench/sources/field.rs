//! The servers for the benchmarks of sources: a Git server, a hub, and requests of people.

use std::time::Duration;

use anyhow::{Context as _, Result};
use farwater_api::{ADMIN_NAMESPACE, GitRepository, REQUESTED_AT, Receiver, ServiceDeployment};
use farwater_testkit::{Hub, git::GitServer, temporary_folder, wait_for};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::bench::usage;

pub const BRANCH: &str = "main";
/// Maximum time for thousands of services on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The webhook's token.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Number of concurrent writers: enough for the hub's write combiner.
const AT_ONCE: usize = 64;
/// Maximum processor time of an idle hub in two seconds.
const QUIET: Duration = Duration::from_millis(40);

/// Fields are dropped in this order, so that clients end before their servers.
pub struct Field {
    pub hub: Hub,
    pub git: GitServer,
    pub client: Client,
    dir: tempfile::TempDir,
}

impl Field {
    pub async fn start() -> Result<Self> {
        let dir = temporary_folder("farwater-bench-")?;
        let git = GitServer::start().await?;
        let hub = Hub::start(&dir.path().join("hub")).await?;
        let client = hub.client().await?;
        Ok(Self { hub, git, client, dir })
    }

    pub fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), ADMIN_NAMESPACE)
    }

    /// Creates a source on this machine's Git server.
    pub async fn repository(&self, name: &str, interval: &str) -> Result<()> {
        let spec = json!({"url": self.git.url(name), "ref": {"branch": BRANCH}, "interval": interval});
        self.source::<GitRepository>(name, spec).await
    }

    pub async fn source<K>(&self, name: &str, spec: Value) -> Result<()>
    where
        K: kube::Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
        K::DynamicType: Default,
    {
        let kind = K::kind(&K::DynamicType::default()).into_owned();
        let api_version = K::api_version(&K::DynamicType::default()).into_owned();
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        let object: K = serde_json::from_value(object)?;
        self.api::<K>()
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("create {name}"))?;
        Ok(())
    }

    /// Creates a GitHub receiver for all sources. Returns the path for deliveries.
    pub async fn receiver(&self) -> Result<String> {
        let secret = json!({"metadata": {"name": "hook"}, "stringData": {"token": TOKEN}});
        let secrets: Api<Secret> = self.api();
        secrets
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await
            .context("create the token")?;
        let spec = json!({"type": "github", "resources": [{"name": "*"}], "secretRef": {"name": "hook"}});
        self.source::<Receiver>("hook", spec).await?;
        let receivers: Api<Receiver> = self.api();
        wait_for("the receiver to have a path", PATIENCE, || async {
            Ok(receivers
                .get("hook")
                .await?
                .status
                .and_then(|status| status.webhook_path))
        })
        .await
    }

    /// Requests a fetch of a source, without waiting for it.
    pub async fn ask<K>(&self, name: &str) -> Result<()>
    where
        K: kube::Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now().to_string()}}});
        self.api::<K>()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Creates services from their names, clusters and specs.
    pub async fn services(&self, all: impl Iterator<Item = (String, String, Value)>) -> Result<()> {
        let services: Api<ServiceDeployment> = self.api();
        let create = |(name, cluster, mut spec): (String, String, Value)| {
            let services = services.clone();
            async move {
                spec["clusterRef"] = json!({"name": cluster});
                spec["targetNamespace"] = name.as_str().into();
                let service = ServiceDeployment::new(&name, serde_json::from_value(spec)?);
                services
                    .create(&PostParams::default(), &service)
                    .await
                    .with_context(|| format!("create {name}"))?;
                anyhow::Ok(())
            }
        };
        stream::iter(all)
            .map(create)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// Waits until a source serves this commit.
    pub async fn served(&self, name: &str, commit: &str) -> Result<()> {
        let sources: Api<GitRepository> = self.api();
        wait_for("the hub to serve the commit", PATIENCE, || async {
            let revision = sources.get(name).await?.status.and_then(|status| status.revision);
            Ok(revision
                .is_some_and(|revision| revision.ends_with(commit))
                .then_some(()))
        })
        .await
    }

    /// Number of times that the hub has reconciled the revision of a service.
    pub async fn reconciles(&self) -> Result<u64> {
        const COUNTER: &str = "farwater_reconciles_total{controller=\"assign_revisions\"} ";
        let text = self
            .client
            .request_text(Request::get("/metrics").body(Vec::new())?)
            .await?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix(COUNTER))
            .context("the hub has no such counter")?;
        count.parse().with_context(|| format!("read {count:?}"))
    }

    /// Waits until the hub is idle. Returns its processor time at that moment.
    pub async fn until_quiet(&mut self) -> Result<Duration> {
        self.until_quiet_within(PATIENCE).await
    }

    pub async fn until_quiet_within(&mut self, patience: Duration) -> Result<Duration> {
        let process = self.hub.process().id();
        wait_for("the hub to be quiet", patience, || async move {
            let before = usage::processor_time_of_all(process)?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let spent = usage::processor_time_of_all(process)?.saturating_sub(before);
            Ok((spent <= QUIET).then_some(()))
        })
        .await?;
        self.processor_time()
    }

    /// Processor time of the hub and its children.
    pub fn processor_time(&mut self) -> Result<Duration> {
        usage::processor_time_of_all(self.hub.process().id())
    }

    /// Processor time of the hub's children: git and its children.
    pub fn processor_time_of_programs(&mut self) -> Result<Duration> {
        let process = self.hub.process().id();
        Ok(usage::processor_time_of_all(process)?.saturating_sub(usage::processor_time(process)?))
    }

    /// Processor usage of an idle hub.
    pub async fn share_at_rest(&mut self) -> Result<f64> {
        const LOOK: Duration = Duration::from_secs(5);
        let before = self.until_quiet().await?;
        tokio::time::sleep(LOOK).await;
        Ok(self.processor_time()?.saturating_sub(before).as_secs_f64() / LOOK.as_secs_f64())
    }
}

/// The spec of a service of a source's folder, without its cluster.
pub fn folder(source: &str, path: &str) -> Value {
    json!({"sourceRef": {"kind": "GitRepository", "name": source}, "path": path})
}

/// A ConfigMap that differs for each `text`.
pub fn config_map(text: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: map\ndata:\n  text: \"{text}\"\n")
}
