//! What the benches of the agent run on: one plane, a Git server, a hub and the plane's agent.

use std::time::Duration;

use anyhow::{Context as _, Result};
use farwater_api::{ADMIN_NAMESPACE, Cluster, GitRepository, ServiceDeployment};
use farwater_testkit::{Agent, Hub, Plane, PlaneOptions, git::GitServer, temporary_folder, wait_for};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

const CLUSTER: &str = "east";
const SOURCE: &str = "fleet";
const BRANCH: &str = "main";
/// A thousand objects on two busy cores take seconds.
const HEALTHY: Duration = Duration::from_secs(180);

/// Fields are dropped in order: what talks goes before what it talks to.
pub struct Ground {
    agent: Agent,
    _hub: Hub,
    _git: GitServer,
    pub plane: Plane,
    client: Client,
    _dir: tempfile::TempDir,
}

impl Ground {
    /// `poll` is the cluster's interval, `files` the content of its source.
    pub async fn start(options: PlaneOptions, poll: &str, files: &[(String, String)]) -> Result<Self> {
        let dir = temporary_folder("farwater-bench-")?;
        eprintln!("starting a control plane, a Git server, a hub and an agent");
        let (plane, git) = tokio::try_join!(Plane::start_with(options), GitServer::start())?;
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        git.create(SOURCE)?.commit(BRANCH, &files)?;
        let hub = Hub::start(&dir.path().join("hub")).await?;
        let client = hub.client().await?;
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
        let spec = serde_json::from_value(json!({"pollInterval": poll}))?;
        clusters.create(&PostParams::default(), &Cluster::new(CLUSTER, spec)).await?;
        let sources: Api<GitRepository> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
        let spec = serde_json::from_value(json!({"url": git.url(SOURCE), "ref": {"branch": BRANCH}}))?;
        sources.create(&PostParams::default(), &GitRepository::new(SOURCE, spec)).await?;
        let token = hub.join_token(ADMIN_NAMESPACE, CLUSTER).await?;
        let agent = Agent::start(CLUSTER, &dir.path().join("agent"), plane.kubeconfig(), token)?;
        Ok(Self { agent, _hub: hub, _git: git, plane, client, _dir: dir })
    }

    /// States a service of the source's folder `path` with a target namespace of its own name.
    pub async fn deploy(&self, name: &str, path: &str) -> Result<()> {
        let spec = serde_json::from_value(json!({
            "clusterRef": {"name": CLUSTER},
            "targetNamespace": name,
            "sourceRef": {"kind": "GitRepository", "name": SOURCE},
            "path": path,
        }))?;
        let service = ServiceDeployment::new(name, spec);
        self.services().create(&PostParams::default(), &service).await.with_context(|| format!("create {name}"))?;
        Ok(())
    }

    /// Waits until the hub calls the service ready: every object applied, and healthy.
    pub async fn healthy(&self, name: &str) -> Result<()> {
        let services = self.services();
        let what = format!("{name} to be ready");
        let ready = wait_for(&what, HEALTHY, || async {
            let service = services.get(name).await?;
            let status = service.status.unwrap_or_default();
            let current = status.observed_generation == service.metadata.generation;
            Ok(status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True" && current).then_some(()))
        });
        ready.await.with_context(|| self.agent.log_tail())
    }

    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    fn services(&self) -> Api<ServiceDeployment> {
        Api::namespaced(self.client.clone(), ADMIN_NAMESPACE)
    }
}
