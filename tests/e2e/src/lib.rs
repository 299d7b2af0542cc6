//! A small fleet of the real programs: a hub, a Git server, and agents beside real control planes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod collector;
pub mod dashboard;
pub mod flux;
pub mod hostile;
pub mod life;
pub mod page;
pub mod prune_chaos;
pub mod rollouts;
pub mod sops;
pub mod volume;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use farwater_api::{
    ADMIN_NAMESPACE, AGENT_NAMESPACE, Cluster, FREEZE_PRUNES, GitRepository, REQUESTED_AT, ServiceDeployment,
    objects::{Health, ObjectReport},
    plan::{PlanAnswer, PlanPhase, PlanProblem},
};
use farwater_testkit::{
    Agent, Hub, Launch, Plane, farwater::JoinToken, git::GitServer, git::Repository, kube::unique_name,
    prometheus::get, wait_for,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

use crate::cli::Cli;

/// Default limit for a wait, on two cores that may also be building.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Number of plans of an agent during which something must stay true.
const ROUNDS: u32 = 3;
/// Minimum time for such a check. The hub looks once a second at what is due, so it has done so, too.
const SHORTEST: Duration = Duration::from_secs(1);
/// Pause between two checks of something that must stay true.
const PAUSE: Duration = Duration::from_millis(200);

/// Everything of the product that a test needs. When dropped, it ends, and no log may have an unexpected ERROR.
pub struct Fleet {
    agents: BTreeMap<String, Agent>,
    /// Turns on shared planes. They are held until the agents have ended.
    turns: BTreeMap<PathBuf, OwnedMutexGuard<()>>,
    pub hub: Hub,
    pub git: GitServer,
    pub client: Client,
    /// Makes names in shared planes unique to this fleet.
    pub unique: String,
    dir: tempfile::TempDir,
}

impl Fleet {
    pub async fn start() -> Result<Self> {
        Self::launch(Launch::default()).await
    }

    /// Starts a fleet with further options and variables of the hub.
    pub async fn launch(hub: Launch) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let hub = Hub::launch(&dir.path().join("hub"), hub).await?;
        Self::of(hub, dir).await
    }

    /// Starts a fleet with the test's own hub, whose data is in `dir`.
    pub async fn of(hub: Hub, dir: tempfile::TempDir) -> Result<Self> {
        let client = hub.client().await?;
        let git = GitServer::start().await?;
        Ok(Self {
            agents: BTreeMap::new(),
            turns: BTreeMap::new(),
            hub,
            git,
            client,
            unique: unique_name("e2e"),
            dir,
        })
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), ADMIN_NAMESPACE)
    }

    /// The CLI as the administrator uses it.
    pub fn cli(&self) -> Cli {
        Cli {
            kubeconfig: self.hub.kubeconfig(),
        }
    }

    /// A namespace of the cluster that no other test uses.
    pub fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.unique)
    }

    pub fn state_dir(&self, cluster: &str) -> PathBuf {
        self.dir.path().join(format!("agent-{cluster}"))
    }

    /// Joins a cluster that polls every second, and waits until it is ready.
    pub async fn join(&mut self, cluster: &str, plane: &Plane) -> Result<()> {
        self.join_with(cluster, plane, Launch::default()).await
    }

    /// Joins a cluster with further options and variables of the agent.
    pub async fn join_with(&mut self, cluster: &str, plane: &Plane, launch: Launch) -> Result<()> {
        self.take_turn(plane).await?;
        let token = self.invite(cluster).await?;
        let agent = Agent::launch(cluster, &self.state_dir(cluster), plane.kubeconfig(), token, launch)?;
        self.agents.insert(cluster.to_owned(), agent);
        self.until_ready(cluster).await
    }

    /// Joins a cluster with an agent elsewhere, and another join token.
    pub async fn join_in(
        &mut self,
        cluster: &str,
        plane: &Plane,
        kubeconfig: &Path,
        launch: Launch,
        told: impl FnOnce(&mut JoinToken),
    ) -> Result<()> {
        self.take_turn(plane).await?;
        let mut token = self.invite(cluster).await?;
        told(&mut token);
        let agent = Agent::launch(cluster, &self.state_dir(cluster), kubeconfig, token, launch)?;
        self.agents.insert(cluster.to_owned(), agent);
        let ready = self.until_ready(cluster).await;
        ready.with_context(|| self.agents.get(cluster).map(Agent::log_tail).unwrap_or_default())
    }

    /// From here to the end, this test's agents are the only ones on the plane.
    pub async fn take_turn(&mut self, plane: &Plane) -> Result<()> {
        let place = plane.kubeconfig().to_owned();
        if let Entry::Vacant(turn) = self.turns.entry(place) {
            turn.insert(take_turn(plane).await?);
        }
        Ok(())
    }

    /// Creates a Cluster that polls every second, and a token to join it.
    pub async fn invite(&self, cluster: &str) -> Result<JoinToken> {
        let spec = serde_json::from_value(json!({"pollInterval": "1s"}))?;
        self.api()
            .create(&PostParams::default(), &Cluster::new(cluster, spec))
            .await?;
        self.hub.join_token(ADMIN_NAMESPACE, cluster).await
    }

    async fn until_ready(&self, cluster: &str) -> Result<()> {
        let clusters: Api<Cluster> = self.api();
        self.until(&format!("cluster {cluster} to be ready"), || async {
            let cluster = clusters.get(cluster).await?;
            Ok(cluster
                .status
                .is_some_and(|s| condition(&s.conditions, "Ready") == Some("True"))
                .then_some(()))
        })
        .await
    }

    pub fn agent(&mut self, cluster: &str) -> Result<&mut Agent> {
        self.agents
            .get_mut(cluster)
            .with_context(|| format!("no agent of {cluster} was started"))
    }

    /// Creates a repository with one commit on `main`, and its GitRepository.
    pub async fn repository(&self, name: &str, files: &[(&str, &str)]) -> Result<Repository> {
        let repository = self.git.create(name)?;
        repository.commit("main", files)?;
        let spec = serde_json::from_value(json!({"url": self.git.url(name)}))?;
        self.api()
            .create(&PostParams::default(), &GitRepository::new(name, spec))
            .await?;
        Ok(repository)
    }

    /// Requests a fetch of a repository now.
    pub async fn reconcile(&self, repository: &str) -> Result<()> {
        let value = jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: value}}});
        self.api::<GitRepository>()
            .patch(repository, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Creates a service from a folder of a repository, in its own namespace.
    pub async fn deploy(&self, name: &str, cluster: &str, repository: &str, path: &str) -> Result<()> {
        self.deploy_with(name, cluster, repository, path, json!({})).await
    }

    /// Creates a service with further fields of the spec.
    pub async fn deploy_with(
        &self,
        name: &str,
        cluster: &str,
        repository: &str,
        path: &str,
        more: Value,
    ) -> Result<()> {
        let mut spec = json!({
            "clusterRef": {"name": cluster},
            "targetNamespace": self.namespace(name),
            "sourceRef": {"name": repository},
            "path": path,
        });
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        let spec = serde_json::from_value(spec)?;
        self.api()
            .create(&PostParams::default(), &ServiceDeployment::new(name, spec))
            .await?;
        Ok(())
    }

    pub async fn service(&self, name: &str) -> Result<ServiceDeployment> {
        Ok(self.api().get(name).await?)
    }

    pub async fn annotate(&self, service: &str, annotation: &str, value: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {annotation: value}}});
        self.api::<ServiceDeployment>()
            .patch(service, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Resumes deletions if the hub has stopped them all. Returns whether it had.
    pub async fn release_prunes(&self) -> Result<bool> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let annotations = namespaces.get(ADMIN_NAMESPACE).await?.metadata.annotations;
        if annotations.is_none_or(|all| !all.contains_key(FREEZE_PRUNES)) {
            return Ok(false);
        }
        let patch = Patch::Merge(json!({"metadata": {"annotations": {FREEZE_PRUNES: null}}}));
        namespaces
            .patch(ADMIN_NAMESPACE, &PatchParams::default(), &patch)
            .await?;
        Ok(true)
    }

    pub async fn delete_service(&self, name: &str) -> Result<()> {
        self.api::<ServiceDeployment>()
            .delete(name, &DeleteParams::default())
            .await?;
        let services: Api<ServiceDeployment> = self.api();
        self.until(&format!("service {name} to be gone"), || async {
            Ok(services.get_opt(name).await?.is_none().then_some(()))
        })
        .await
    }

    /// State of each object of a service, as its agent reported it.
    pub async fn objects(&self, service: &str) -> Result<Vec<ObjectReport>> {
        let path = format!(
            "/apis/{}/{}/namespaces/{ADMIN_NAMESPACE}/servicedeployments/{service}/objects",
            farwater_api::GROUP,
            farwater_api::VERSION
        );
        let answer: Value = self.client.request(http::Request::get(path).body(Vec::new())?).await?;
        let objects = answer
            .get("items")
            .or_else(|| answer.get("objects"))
            .cloned()
            .unwrap_or(answer);
        Ok(serde_json::from_value(objects)?)
    }

    /// Waits until the hub has assigned a commit to a service.
    pub async fn until_assigned(&self, service: &str, commit: &str) -> Result<ServiceDeployment> {
        self.until_service(service, &format!("be assigned {commit}"), |s| {
            let assigned = s.status.as_ref().and_then(|status| status.assigned_revision.as_deref());
            assigned.is_some_and(|revision| revision.ends_with(commit))
        })
        .await
    }

    /// Waits until a service is Ready with the commit applied.
    pub async fn until_applied(&self, service: &str, commit: &str) -> Result<ServiceDeployment> {
        self.until_service(service, &format!("be ready at {commit}"), |s| {
            let Some(status) = &s.status else { return false };
            let applied = status.applied_revision.as_deref().is_some_and(|r| r.ends_with(commit));
            applied && condition(&status.conditions, "Ready") == Some("True")
        })
        .await
    }

    /// Requests a fetch of a service's source, and waits until the service is Ready with its part of the new commit.
    pub async fn until_current(&self, service: &str) -> Result<ServiceDeployment> {
        let now = jiff::Timestamp::now().to_string();
        self.annotate(service, REQUESTED_AT, &now).await?;
        self.until_service(service, "be ready with what its source has", |s| {
            let Some(status) = &s.status else { return false };
            let applied = status.applied_revision.is_some() && status.applied_revision == status.assigned_revision;
            let asked = status.last_handled_reconcile_at.as_ref() == Some(&now);
            asked && applied && condition(&status.conditions, "Ready") == Some("True")
        })
        .await
    }

    /// Waits until a service's condition has this status and its message contains `part`.
    pub async fn until_condition(
        &self,
        service: &str,
        kind: &str,
        status: &str,
        part: &str,
    ) -> Result<ServiceDeployment> {
        self.until_service(service, &format!("be {kind}={status} with {part:?}"), |s| {
            let conditions = s.status.iter().flat_map(|s| &s.conditions);
            conditions
                .into_iter()
                .any(|c| c.type_ == kind && c.status == status && c.message.contains(part))
        })
        .await
    }

    pub async fn until_service(
        &self,
        name: &str,
        what: &str,
        reached: impl Fn(&ServiceDeployment) -> bool,
    ) -> Result<ServiceDeployment> {
        let result = self
            .until(&format!("service {name} to {what}"), || async {
                let service = self.service(name).await?;
                Ok(reached(&service).then_some(service))
            })
            .await;
        match result {
            Ok(service) => Ok(service),
            Err(error) => {
                let status = self
                    .service(name)
                    .await
                    .map(|s| serde_json::to_string_pretty(&s.status));
                let objects = self.objects(name).await.unwrap_or_default();
                let ill: Vec<_> = objects.iter().filter(|o| o.health != Health::Current).collect();
                Err(error.context(format!("the service was {status:?}, its objects {ill:#?}")))
            }
        }
    }

    /// Value of the ConfigMap `a` in the namespace of the tests' service `app`.
    pub async fn value(&self, plane: &Plane) -> Result<Option<String>> {
        let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, &self.namespace("app"));
        let found = api.get_opt("a").await?;
        Ok(found
            .and_then(|map| map.data)
            .and_then(|data| data.get("value").cloned()))
    }

    pub async fn until_value(&self, plane: &Plane, wanted: &str) -> Result<()> {
        let what = format!("the object to say {wanted:?}");
        self.until(&what, || async {
            Ok((self.value(plane).await?.as_deref() == Some(wanted)).then_some(()))
        })
        .await
    }

    /// The hub's counter with this name.
    pub async fn counted(&self, metric: &str) -> Result<u64> {
        let metrics = self
            .client
            .request_text(http::Request::get("/metrics").body(Vec::new())?)
            .await?;
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        Ok(count
            .with_context(|| format!("there is no {metric}:\n{metrics}"))?
            .parse()?)
    }

    pub async fn until<T, P>(&self, what: &str, probe: impl FnMut() -> P) -> Result<T>
    where
        P: Future<Output = Result<Option<T>>>,
    {
        wait_for(what, PATIENCE, probe).await
    }

    /// Asserts that something stays true while the agent of a service (`NAME`, or `NAMESPACE/NAME`) makes some plans of
    /// it. The agent polls before each plan and makes it between two attempts, so a wrong step would have been taken.
    pub async fn stays<P>(&self, what: &str, service: &str, mut holds: impl FnMut() -> P) -> Result<()>
    where
        P: Future<Output = Result<bool>>,
    {
        let start = Instant::now();
        let rounds = async {
            for _ in 0..ROUNDS {
                self.until_planned(service).await?;
            }
            tokio::time::sleep(SHORTEST.saturating_sub(start.elapsed())).await;
            Ok::<(), anyhow::Error>(())
        };
        let mut check = async || -> Result<()> {
            anyhow::ensure!(holds().await?, "{what} stopped being true after {:?}", start.elapsed());
            Ok(())
        };
        let watch = async {
            loop {
                if let Err(error) = check().await {
                    return error;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            done = rounds => done?,
            error = watch => return Err(error),
        }
        check().await
    }

    /// Waits until a service's agent has answered one more plan request: with a plan, or with the reason why it can't
    /// make one.
    async fn until_planned(&self, service: &str) -> Result<()> {
        let (namespace, name) = service.split_once('/').unwrap_or((ADMIN_NAMESPACE, service));
        let path = format!(
            "/apis/{}/{}/namespaces/{namespace}/servicedeployments/{name}/plan",
            farwater_api::GROUP,
            farwater_api::VERSION
        );
        let status = async |request: http::Request<Vec<u8>>| -> Result<PlanAnswer> {
            let mut answer: Value = self.client.request(request).await?;
            Ok(serde_json::from_value(answer["status"].take())?)
        };
        // Repeat a request that the hub lost in a restart or could not prepare.
        let asked = Mutex::new(None::<String>);
        let known = || asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.until(&format!("the agent of {service} to make a plan"), || async {
            let id = known().take();
            let answer = match id {
                Some(id) => status(http::Request::get(format!("{path}?id={id}")).body(Vec::new())?).await?,
                None => {
                    let request = http::Request::post(&path).header("content-type", "application/json");
                    status(request.body(b"{}".to_vec())?).await?
                }
            };
            match (answer.phase, answer.reason) {
                (PlanPhase::Done, _) | (PlanPhase::Failed, Some(PlanProblem::AgentFailed)) => return Ok(Some(())),
                (PlanPhase::Failed, _) => anyhow::bail!(answer.message),
                _ => *known() = Some(answer.id),
            }
            Ok(None)
        })
        .await
    }

    /// Asserts that something stays true for a time. If an agent can make plans, [`Self::stays`] is more reliable and
    /// faster.
    pub async fn always<P>(&self, what: &str, span: Duration, mut holds: impl FnMut() -> P) -> Result<()>
    where
        P: Future<Output = Result<bool>>,
    {
        let start = Instant::now();
        while start.elapsed() < span {
            anyhow::ensure!(holds().await?, "{what} stopped being true after {:?}", start.elapsed());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }
}

/// Only one agent acts in a cluster, so tests that share a plane take turns. Releases the Lease of the previous agent,
/// because that one was killed.
pub async fn take_turn(plane: &Plane) -> Result<OwnedMutexGuard<()>> {
    static TURNS: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let turn = {
        let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(plane.kubeconfig().to_owned()).or_default().clone()
    };
    let turn = turn.lock_owned().await;
    let leases: Api<Lease> = Api::namespaced(plane.client().await?, AGENT_NAMESPACE);
    match leases.delete("farwater-agent", &DeleteParams::default()).await {
        Ok(_) => Ok(turn),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(turn),
        Err(error) => Err(error.into()),
    }
}

pub fn condition<'a>(conditions: &'a [farwater_api::Condition], kind: &str) -> Option<&'a str> {
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.as_str())
}

/// Polls that the hub has answered since the start of an agent with metrics at this address.
pub async fn polls(agent: &str) -> Result<u64> {
    let metrics = get(&format!("http://{agent}/metrics")).await?;
    let mut answered = 0;
    for result in ["unchanged", "new"] {
        let series = format!("farwater_agent_polls_total{{result=\"{result}\"}} ");
        let count = metrics.lines().find_map(|line| line.strip_prefix(&series));
        answered += count.with_context(|| metrics.clone())?.parse::<u64>()?;
    }
    Ok(answered)
}

/// A manifest of a ConfigMap.
pub fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{value: {value}}}\n")
}

/// All files under a folder that contain one of these texts.
pub fn files_with(folder: &Path, texts: &[impl AsRef<[u8]>]) -> Result<Vec<String>> {
    let holds = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    files_that(folder, &|bytes| texts.iter().any(|text| holds(bytes, text.as_ref())))
}

/// All files under a folder whose content matches.
pub fn files_that(folder: &Path, is_one: &dyn Fn(&[u8]) -> bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files_that(&path, is_one)?);
        // Skip sockets and files that were deleted meanwhile.
        } else if fs::read(&path).is_ok_and(|bytes| is_one(&bytes)) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}
