//! Real Kubernetes control planes: etcd, kube-apiserver, controller manager, and optionally a scheduler with KWOK
//! nodes. On such nodes, Deployments become Available and Jobs Complete.
//!
//! A plane takes about 0.7 GB and 3 s. All parts run as the user of the test: none of them runs external commands
//! (KWOK's exec is not configured), and an unprivileged user could not read programs in root's home.

pub mod audit;
pub(crate) mod flags;
mod kubeconfig;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::OnceCell;

use crate::{
    Process, Tools, ports,
    process::{bare_command, wait_ready},
    temporary_folder, wait_for,
};
use flags::{Place, Settings};

/// Maximum time until a plane is ready. It needs 3 to 10 s on two busy cores.
const READY: Duration = Duration::from_secs(90);
/// Number of attempts: another process may take a port between our check and the server's bind.
const ATTEMPTS: usize = 3;

/// The user of the kubeconfig's current context, in `system:masters`.
pub const ADMIN: &str = "admin";
/// Users without any rights, for tests of access. Every kubeconfig has contexts with their names.
pub const USERS: [&str; 2] = ["alice", "bob"];
/// A user with the same rights as [`ADMIN`]. Its requests can be told from all others: see [`audit`].
pub const AUDITED: &str = "audited";

/// Parts of a plane besides etcd, API server and controller manager.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// Number of KWOK nodes. With at least one, a scheduler and kwok run too.
    pub nodes: usize,
    pub scheduler: bool,
    /// Whether the API server logs the requests of [`AUDITED`].
    pub audited: bool,
}

impl Default for PlaneOptions {
    /// A plane on which workloads become healthy.
    fn default() -> Self {
        Self {
            nodes: 2,
            scheduler: true,
            audited: false,
        }
    }
}

impl PlaneOptions {
    /// A plane for objects only: no Pod ever runs.
    pub fn without_nodes() -> Self {
        Self {
            nodes: 0,
            scheduler: false,
            audited: false,
        }
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::Etcd, Part::ApiServer, Part::ControllerManager];
        if self.scheduler || self.nodes > 0 {
            parts.push(Part::Scheduler);
        }
        if self.nodes > 0 {
            parts.push(Part::Kwok);
        }
        parts
    }
}

/// The parts, in the order in which they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Kwok,
}

/// A control plane: one that runs here and ends when dropped, or one that is shared.
#[derive(Debug)]
pub struct Plane {
    kubeconfig: PathBuf,
    running: Option<Running>,
}

/// Fields are dropped in this order, so that the processes end before their folder is removed.
#[derive(Debug)]
struct Running {
    parts: BTreeMap<Part, Process>,
    settings: Settings,
    dir: tempfile::TempDir,
}

impl Plane {
    /// Starts an own plane with two nodes. Only for tests that break or measure the servers. Other tests share planes.
    pub async fn start() -> Result<Self> {
        Self::start_with(PlaneOptions::default()).await
    }

    pub async fn start_with(options: PlaneOptions) -> Result<Self> {
        Self::start_at(options, Place::default()).await
    }

    pub(crate) async fn start_at(options: PlaneOptions, place: Place) -> Result<Self> {
        let tools = Tools::find()?;
        start_with_retries(|| Self::attempt(&tools, &options, place))
            .await
            .context("start a Kubernetes control plane")
    }

    /// Starts another plane with everything that this one stores, as if a cluster's etcd was restored elsewhere while
    /// the cluster continues. It has the same objects with their uids and versions, and the same users. After that the
    /// planes are independent.
    pub async fn copy(&self) -> Result<Self> {
        let running = self
            .running
            .as_ref()
            .context("the plane is shared: a test must not touch its parts")?;
        start_with_retries(|| running.copy())
            .await
            .context("copy a Kubernetes control plane")
    }

    /// A plane that another process runs, such as the test run.
    pub fn existing(kubeconfig: impl Into<PathBuf>) -> Self {
        Self {
            kubeconfig: kubeconfig.into(),
            running: None,
        }
    }

    async fn attempt(tools: &Tools, options: &PlaneOptions, place: Place) -> Result<Self> {
        let dir = temporary_folder("farwater-plane-")?;
        let settings = Settings::choose(tools.clone(), dir.path(), place, options.audited)?;
        let plane = Self::run(settings, dir, &options.parts()).await?;
        plane.create_nodes(options.nodes).await?;
        plane.usable(options.nodes).await?;
        Ok(plane)
    }

    async fn run(settings: Settings, dir: tempfile::TempDir, parts: &[Part]) -> Result<Self> {
        let kubeconfig = settings.kubeconfig();
        let mut running = Running {
            parts: BTreeMap::new(),
            settings,
            dir,
        };
        for part in parts {
            running.start(*part)?;
            if *part == Part::ApiServer {
                running.api_server_ready().await?;
                kubeconfig::write(&kubeconfig, &running.settings)?;
            }
        }
        Ok(Self {
            kubeconfig,
            running: Some(running),
        })
    }

    /// The kubeconfig for kubectl and an agent. Its current context is [`ADMIN`]'s.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client as [`ADMIN`]. Each test needs its own, because its connections belong to the test's runtime.
    pub async fn client(&self) -> Result<Client> {
        self.client_as(ADMIN).await
    }

    /// A client as one of [`USERS`], or as [`AUDITED`].
    pub async fn client_as(&self, user: &str) -> Result<Client> {
        client(&self.kubeconfig, Some(user)).await
    }

    /// kubectl 1.36 for this plane, with its own home so that no cache is shared between planes.
    pub fn kubectl(&self) -> Result<Command> {
        let mut command = bare_command(Tools::find()?.kubectl());
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(folder) = self.kubeconfig.parent() {
            command.env("HOME", folder);
        }
        Ok(command)
    }

    /// Creates a namespace with a unique name that begins with `prefix`. It is not deleted: that would take 5 s, and
    /// the plane is thrown away anyway.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let name = unique_name(prefix);
        let object = Namespace {
            metadata: named(&name),
            ..Namespace::default()
        };
        let api: Api<Namespace> = Api::all(self.client().await?);
        api.create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("create namespace {name}"))?;
        Ok(name)
    }

    /// The process of a part, to pause, kill or measure it. Only for an own plane.
    pub fn part(&mut self, part: Part) -> Result<&mut Process> {
        let running = self
            .running
            .as_mut()
            .context("the plane is shared: a test must not touch its parts")?;
        running
            .parts
            .get_mut(&part)
            .with_context(|| format!("the plane runs no {part:?}"))
    }

    /// Restarts a killed part on the same port and data, and waits until the API answers.
    pub async fn restart(&mut self, part: Part) -> Result<()> {
        let running = self
            .running
            .as_mut()
            .context("the plane is shared: a test must not touch its parts")?;
        running.parts.remove(&part);
        running.start(part)?;
        running.api_server_ready().await
    }

    async fn create_nodes(&self, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let api: Api<Node> = Api::all(self.client().await?);
        for n in 1..=count {
            let node = flags::node(&format!("node-{n}"))?;
            api.create(&PostParams::default(), &node)
                .await
                .with_context(|| format!("create node-{n}"))?;
        }
        Ok(())
    }

    /// Waits until Pods can be created and, with nodes, run.
    async fn usable(&self, nodes: usize) -> Result<()> {
        let client = self.client().await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        wait_for("the namespace default to have its service account", READY, || async {
            Ok(accounts.get_opt("default").await?)
        })
        .await
        .with_context(|| self.tails())?;
        let api: Api<Node> = Api::all(client);
        wait_for("the KWOK nodes to be ready", READY, || async {
            let ready = api
                .list(&Default::default())
                .await?
                .into_iter()
                .filter(node_is_ready)
                .count();
            Ok((ready >= nodes).then_some(()))
        })
        .await
        .with_context(|| self.tails())
    }

    fn tails(&self) -> String {
        let parts = self.running.iter().flat_map(|running| &running.parts);
        parts
            .map(|(part, process)| format!("--- {part:?}\n{}", process.tail()))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Running {
    fn start(&mut self, part: Part) -> Result<()> {
        let log = self.dir.path().join(format!("{part:?}.log"));
        let process = Process::spawn(&format!("{part:?}"), self.settings.command(part), &log)?;
        self.parts.insert(part, process);
        Ok(())
    }

    async fn api_server_ready(&mut self) -> Result<()> {
        let mut parts: Vec<_> = self.parts.values_mut().collect();
        wait_ready(&mut parts, READY, || self.settings.ready()).await
    }

    /// Pauses etcd during the copy, so that the copy starts as after a power failure at this moment.
    async fn copy(&self) -> Result<Plane> {
        let dir = temporary_folder("farwater-plane-")?;
        let etcd = self.parts.get(&Part::Etcd).context("the plane runs no etcd")?;
        etcd.pause()?;
        let settings = self.settings.copy(dir.path());
        etcd.resume()?;
        let parts: Vec<Part> = self.parts.keys().copied().collect();
        let plane = Plane::run(settings?, dir, &parts).await?;
        // The nodes are part of the copied data.
        plane.usable(0).await?;
        Ok(plane)
    }
}

/// Retries if another process took a port first.
async fn start_with_retries<P>(mut attempt: impl FnMut() -> P) -> Result<Plane>
where
    P: Future<Output = Result<Plane>>,
{
    let mut last_error = None;
    for _ in 0..ATTEMPTS {
        match attempt().await {
            Err(error) if format!("{error:#}").contains("address already in use") => last_error = Some(error),
            other => return other,
        }
    }
    Err(last_error.context("no attempt was made")?)
}

/// Shared plane `n`, 1 or 2. The test run starts both planes and passes their kubeconfigs in `FARWATER_PLANE_1` and
/// `_2`. A single test that is run by hand starts its own plane, once per process.
pub async fn shared(n: usize) -> Result<&'static Plane> {
    static PLANES: [OnceCell<Plane>; 2] = [OnceCell::const_new(), OnceCell::const_new()];
    let cell = n
        .checked_sub(1)
        .and_then(|index| PLANES.get(index))
        .context("the shared planes are number 1 and 2")?;
    cell.get_or_try_init(|| async move {
        match std::env::var_os(plane_variable(n)) {
            Some(kubeconfig) => Ok(Plane::existing(kubeconfig)),
            None => Plane::start().await,
        }
    })
    .await
}

/// Environment variable with the kubeconfig of shared plane `n`.
pub fn plane_variable(n: usize) -> String {
    format!("FARWATER_PLANE_{n}")
}

/// A client for a kubeconfig file. Without `context`, it uses the current one.
pub async fn client(kubeconfig: &Path, context: Option<&str>) -> Result<Client> {
    Client::try_from(configuration(kubeconfig, context).await?).context("build a Kubernetes client")
}

/// A client that never retries. Other clients retry after a 429, 503 or 504.
pub async fn client_that_asks_once(kubeconfig: &Path) -> Result<Client> {
    let mut config = configuration(kubeconfig, None).await?;
    config.default_retry = false;
    Client::try_from(config).context("build a Kubernetes client")
}

async fn configuration(kubeconfig: &Path, context: Option<&str>) -> Result<Config> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let mut config = Config::from_custom_kubeconfig(file, &options)
        .await
        .context("use the kubeconfig")?;
    // Servers of tests are on this machine, so ignore proxies from the environment.
    config.proxy_url = None;
    Ok(config)
}

/// A Kubernetes name that no other test run or test uses: `prefix-<process>-<number>`.
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{prefix}-{:x}-{:04x}-{}",
        std::process::id(),
        rand::random::<u16>(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

pub(crate) fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_deployment_becomes_available_on_a_plane_of_its_own() {
        let plane = Plane::start().await.unwrap();
        let namespace = plane.namespace("web").await.unwrap();
        let api: Api<Deployment> = Api::namespaced(plane.client().await.unwrap(), &namespace);
        let deployment = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}}},
        }));
        api.create(&PostParams::default(), &deployment.unwrap()).await.unwrap();
        wait_for("two available replicas", Duration::from_secs(60), || async {
            let status = api.get("web").await?.status.unwrap_or_default();
            Ok((status.available_replicas == Some(2)).then_some(()))
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn users_without_rights_are_refused_by_the_real_server() {
        let plane = shared(1).await.unwrap();
        let api: Api<Namespace> = Api::all(plane.client_as("alice").await.unwrap());
        let error = api.list(&Default::default()).await.unwrap_err().to_string();
        assert!(error.contains("User \"alice\" cannot list"), "{error}");
    }
}
