//! What the parts run on: a Git server, a hub, and people's words to it.

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
/// Thousands of services take their time on a machine that does more.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Of the webhook.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Enough that the hub's write combiner has something to combine.
const AT_ONCE: usize = 64;
/// Of a hub that has nothing to do, in two seconds.
const QUIET: Duration = Duration::from_millis(40);

/// Fields are dropped in order: what talks goes before what it talks to.
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

    /// A source of this machine's Git server.
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
        self.api::<K>().create(&PostParams::default(), &object).await.with_context(|| format!("create {name}"))?;
        Ok(())
    }

    /// GitHub's webhook of all sources; the path that it delivers to.
    pub async fn receiver(&self) -> Result<String> {
        let secret = json!({"metadata": {"name": "hook"}, "stringData": {"token": TOKEN}});
        let secrets: Api<Secret> = self.api();
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await.context("create the token")?;
        let spec = json!({"type": "github", "resources": [{"name": "*"}], "secretRef": {"name": "hook"}});
        self.source::<Receiver>("hook", spec).await?;
        let receivers: Api<Receiver> = self.api();
        wait_for("the receiver to have a path", PATIENCE, || async {
            Ok(receivers.get("hook").await?.status.and_then(|status| status.webhook_path))
        })
        .await
    }

    /// Has a source asked; returns before it was.
    pub async fn ask<K>(&self, name: &str) -> Result<()>
    where
        K: kube::Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now().to_string()}}});
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Services by name, with their clusters and what they say of their sources.
    pub async fn services(&self, all: impl Iterator<Item = (String, String, Value)>) -> Result<()> {
        let services: Api<ServiceDeployment> = self.api();
        let create = |(name, cluster, mut spec): (String, String, Value)| {
            let services = services.clone();
            async move {
                spec["clusterRef"] = json!({"name": cluster});
                spec["targetNamespace"] = name.as_str().into();
                let service = ServiceDeployment::new(&name, serde_json::from_value(spec)?);
                services.create(&PostParams::default(), &service).await.with_context(|| format!("create {name}"))?;
                anyhow::Ok(())
            }
        };
        stream::iter(all).map(create).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Waits until a source serves this commit.
    pub async fn served(&self, name: &str, commit: &str) -> Result<()> {
        let sources: Api<GitRepository> = self.api();
        wait_for("the hub to serve the commit", PATIENCE, || async {
            let revision = sources.get(name).await?.status.and_then(|status| status.revision);
            Ok(revision.is_some_and(|revision| revision.ends_with(commit)).then_some(()))
        })
        .await
    }

    /// How often the hub has looked at what a service would run.
    pub async fn reconciles(&self) -> Result<u64> {
        const COUNTER: &str = "farwater_reconciles_total{controller=\"assign_revisions\"} ";
        let text = self.client.request_text(Request::get("/metrics").body(Vec::new())?).await?;
        let count = text.lines().find_map(|line| line.strip_prefix(COUNTER)).context("no such counter")?;
        count.parse().with_context(|| format!("read {count:?}"))
    }

    /// Waits until the hub has nothing left to do. Its processor time then.
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

    /// Of the hub and all it had done for it.
    pub fn processor_time(&mut self) -> Result<Duration> {
        usage::processor_time_of_all(self.hub.process().id())
    }

    /// Of the programs that it has run: git, and what that runs.
    pub fn processor_time_of_programs(&mut self) -> Result<Duration> {
        let process = self.hub.process().id();
        Ok(usage::processor_time_of_all(process)?.saturating_sub(usage::processor_time(process)?))
    }

    /// Of a processor's time, what a hub takes that has nothing to do.
    pub async fn share_at_rest(&mut self) -> Result<f64> {
        const LOOK: Duration = Duration::from_secs(5);
        let before = self.until_quiet().await?;
        tokio::time::sleep(LOOK).await;
        Ok(self.processor_time()?.saturating_sub(before).as_secs_f64() / LOOK.as_secs_f64())
    }
}

/// A service's folder of a source, at the root.
pub fn folder(source: &str, path: &str) -> Value {
    json!({"sourceRef": {"kind": "GitRepository", "name": source}, "path": path})
}

/// A ConfigMap that is different for each `text`.
pub fn config_map(text: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: map\ndata:\n  text: \"{text}\"\n")
}
