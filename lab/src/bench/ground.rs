//! The servers for the agent's benchmarks: one plane, a Git server, a hub and the plane's agent.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, Cluster, GitRepository, REQUESTED_AT, ServiceDeployment};
use farwater_testkit::{
    Agent, Hub, Launch, Plane, PlaneOptions,
    git::{GitServer, Repository},
    kube::AUDITED,
    temporary_folder, wait_for, wait_for_all,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::image::AGENT_ENVIRONMENT;

const CLUSTER: &str = "east";
const SOURCE: &str = "fleet";
const BRANCH: &str = "main";
/// Maximum time until thousands of objects are healthy. It takes longer while other planes are filled.
const HEALTHY: Duration = Duration::from_secs(300);

/// Fields are dropped in this order, so that clients end before their servers.
pub struct Ground {
    agent: Agent,
    _hub: Hub,
    _git: GitServer,
    pub plane: Plane,
    client: Client,
    repository: Repository,
    _dir: tempfile::TempDir,
}

impl Ground {
    /// `poll` is the cluster's interval, `files` the content of its source. The agent is the plane's user [`AUDITED`].
    pub async fn start(options: PlaneOptions, poll: &str, files: &[(String, String)]) -> Result<Self> {
        let dir = temporary_folder("farwater-bench-")?;
        eprintln!("starting a control plane, a Git server, a hub and an agent");
        let (plane, git) = tokio::try_join!(Plane::start_with(options), GitServer::start())?;
        let repository = git.create(SOURCE)?;
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        repository.commit(BRANCH, &files)?;
        let hub = Hub::start(&dir.path().join("hub")).await?;
        let client = hub.client().await?;
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
        let spec = serde_json::from_value(json!({"pollInterval": poll}))?;
        clusters
            .create(&PostParams::default(), &Cluster::new(CLUSTER, spec))
            .await?;
        let sources: Api<GitRepository> = Api::namespaced(client.clone(), ADMIN_NAMESPACE);
        let spec = serde_json::from_value(json!({"url": git.url(SOURCE), "ref": {"branch": BRANCH}}))?;
        sources
            .create(&PostParams::default(), &GitRepository::new(SOURCE, spec))
            .await?;
        let token = hub.join_token(ADMIN_NAMESPACE, CLUSTER).await?;
        let kubeconfig = plane.kubeconfig_of(AUDITED)?;
        // The same environment as in the agent's image.
        let launch = Launch::environment(&AGENT_ENVIRONMENT);
        let agent = Agent::launch(CLUSTER, &dir.path().join("agent"), &kubeconfig, token, launch)?;
        Ok(Self {
            agent,
            _hub: hub,
            _git: git,
            plane,
            client,
            repository,
            _dir: dir,
        })
    }

    /// Creates a service of the source's folder `path`. Its target namespace has its name.
    pub async fn deploy(&self, name: &str, path: &str) -> Result<()> {
        self.deploy_into(name, path, name).await
    }

    /// Creates a service with another target namespace.
    pub async fn deploy_into(&self, name: &str, path: &str, namespace: &str) -> Result<()> {
        let spec = serde_json::from_value(json!({
            "clusterRef": {"name": CLUSTER},
            "targetNamespace": namespace,
            "sourceRef": {"kind": "GitRepository", "name": SOURCE},
            "path": path,
        }))?;
        let service = ServiceDeployment::new(name, spec);
        self.services()
            .create(&PostParams::default(), &service)
            .await
            .with_context(|| format!("create {name}"))?;
        Ok(())
    }

    /// Changes files of the source, and waits until the hub has them.
    pub async fn commit(&self, files: &[(String, String)]) -> Result<String> {
        let changes: Vec<_> = files
            .iter()
            .map(|(path, text)| (path.as_str(), Some(text.as_str())))
            .collect();
        let commit = self.repository.change(BRANCH, &changes)?;
        let sources: Api<GitRepository> = Api::namespaced(self.client.clone(), ADMIN_NAMESPACE);
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now()}}});
        sources
            .patch(SOURCE, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        wait_for("the hub to have the commit", HEALTHY, || async {
            let revision = sources.get(SOURCE).await?.status.and_then(|status| status.revision);
            Ok(revision
                .is_some_and(|revision| revision.ends_with(&commit))
                .then_some(()))
        })
        .await?;
        Ok(commit)
    }

    /// Waits until the hub reports these services as ready: every object is applied and healthy.
    pub async fn healthy(&self, names: &[String]) -> Result<()> {
        self.until("be ready", names, check_ready).await
    }

    /// Waits until these services are ready at a commit that changed all of them.
    pub async fn applied(&self, names: &[String], commit: &str) -> Result<()> {
        let check = |service: &ServiceDeployment| {
            let applied = service
                .status
                .as_ref()
                .and_then(|status| status.applied_revision.as_deref());
            ensure!(
                applied.is_some_and(|revision| revision.ends_with(commit)),
                "it is at {applied:?}"
            );
            check_ready(service)
        };
        self.until(&format!("be ready at {commit}"), names, check).await
    }

    /// Waits until the hub has assigned this commit to these services.
    pub async fn assigned(&self, names: &[String], commit: &str) -> Result<()> {
        let check = |service: &ServiceDeployment| {
            let assigned = service
                .status
                .as_ref()
                .and_then(|status| status.assigned_revision.as_deref());
            ensure!(
                assigned.is_some_and(|revision| revision.ends_with(commit)),
                "{assigned:?} is assigned"
            );
            Ok(())
        };
        self.until(&format!("be assigned {commit}"), names, check).await
    }

    async fn until(
        &self,
        what: &str,
        names: &[String],
        check: impl Fn(&ServiceDeployment) -> Result<()>,
    ) -> Result<()> {
        let wanted: BTreeSet<&String> = names.iter().collect();
        let check = |service: &ServiceDeployment| {
            if wanted.contains(&service.name_any()) {
                check(service)
            } else {
                Ok(())
            }
        };
        let (what, services) = (format!("{} services to {what}", names.len()), self.services());
        let ready = wait_for_all(&what, HEALTHY, &services, check).await;
        ready.with_context(|| self.agent.log_tail())
    }

    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agent
    }

    fn services(&self) -> Api<ServiceDeployment> {
        Api::namespaced(self.client.clone(), ADMIN_NAMESPACE)
    }
}

fn check_ready(service: &ServiceDeployment) -> Result<()> {
    let status = service.status.as_ref().context("the service has no status")?;
    let is_current = status.observed_generation == service.metadata.generation;
    let is_ready = status
        .conditions
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    ensure!(is_current && is_ready, "its conditions are {:?}", status.conditions);
    Ok(())
}
