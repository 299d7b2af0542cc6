//! Real Kubernetes control planes: etcd, kube-apiserver, controller manager, and on request a scheduler with KWOK
//! nodes, on which Deployments become Available and Jobs Complete.
//!
//! A plane takes about 0.7 GB and 3 s. All parts run as the user of the test: nothing in them runs foreign commands
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

/// On two busy cores a plane needs 3 to 10 s; beyond this something is wrong.
const READY: Duration = Duration::from_secs(90);
/// Another process may take a port between our probe and the server's bind.
const ATTEMPTS: usize = 3;

/// The user of the kubeconfig's current context, in `system:masters`.
pub const ADMIN: &str = "admin";
/// Users without any right of their own, for tests of access. Contexts of the same name are in every kubeconfig.
pub const USERS: [&str; 2] = ["alice", "bob"];
/// As much as [`ADMIN`] under another name, so that what one program asks for can be told from all else: see [`audit`].
pub const AUDITED: &str = "audited";

/// What a plane runs besides etcd, API server and controller manager.
#[derive(Clone, Debug)]
pub struct PlaneOptions {
    /// KWOK nodes. With at least one, a scheduler and kwok run too.
    pub nodes: usize,
    pub scheduler: bool,
    /// The API server notes what [`AUDITED`] asks for.
    pub audited: bool,
}

impl Default for PlaneOptions {
    /// Workloads become healthy.
    fn default() -> Self {
        Self { nodes: 2, scheduler: true, audited: false }
    }
}

impl PlaneOptions {
    /// Objects only: no Pod ever runs.
    pub fn without_nodes() -> Self {
        Self { nodes: 0, scheduler: false, audited: false }
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

/// In the order in which they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
    Kwok,
}

/// A control plane: one that runs here and ends with this value, or one that somebody else runs.
#[derive(Debug)]
pub struct Plane {
    kubeconfig: PathBuf,
    running: Option<Running>,
}

/// Fields are dropped in order: the processes end before their folder goes.
#[derive(Debug)]
struct Running {
    parts: BTreeMap<Part, Process>,
    settings: Settings,
    dir: tempfile::TempDir,
}

impl Plane {
    /// A plane of one's own with two nodes. Only for tests that break or count what the server does; others share.
    pub async fn start() -> Result<Self> {
        Self::start_with(PlaneOptions::default()).await
    }

    pub async fn start_with(options: PlaneOptions) -> Result<Self> {
        Self::start_at(options, Place::default()).await
    }

    pub(crate) async fn start_at(options: PlaneOptions, place: Place) -> Result<Self> {
        let tools = Tools::find()?;
        start_anew(|| Self::attempt(&tools, &options, place)).await.context("start a Kubernetes control plane")
    }

    /// Another plane with all that this one holds, as when a cluster's etcd is restored elsewhere while the cluster goes
    /// on: the same objects with their uids and versions, the same users. From then on each goes its own way.
    pub async fn copy(&self) -> Result<Self> {
        let running = self.running.as_ref().context("the plane is shared: nobody may touch its parts")?;
        start_anew(|| running.copy()).await.context("copy a Kubernetes control plane")
    }

    /// A plane that somebody else runs, for example the test run.
    pub fn existing(kubeconfig: impl Into<PathBuf>) -> Self {
        Self { kubeconfig: kubeconfig.into(), running: None }
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
        let mut running = Running { parts: BTreeMap::new(), settings, dir };
        for part in parts {
            running.start(*part)?;
            if *part == Part::ApiServer {
                running.api_server_ready().await?;
                kubeconfig::write(&kubeconfig, &running.settings)?;
            }
        }
        Ok(Self { kubeconfig, running: Some(running) })
    }

    /// Where kubectl and an agent find the plane; the current context is [`ADMIN`]'s.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client as [`ADMIN`]. One per test: its connections belong to the test's runtime.
    pub async fn client(&self) -> Result<Client> {
        self.client_as(ADMIN).await
    }

    /// A client as one of [`USERS`], or as [`AUDITED`].
    pub async fn client_as(&self, user: &str) -> Result<Client> {
        client(&self.kubeconfig, Some(user)).await
    }

    /// The built kubectl 1.36 against this plane, with a home of its own so that nothing is cached across planes.
    pub fn kubectl(&self) -> Result<Command> {
        let mut command = bare_command(Tools::find()?.kubectl());
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(folder) = self.kubeconfig.parent() {
            command.env("HOME", folder);
        }
        Ok(command)
    }

    /// A new namespace whose name begins with `prefix` and is nobody else's. It is not deleted: that takes 5 s, and
    /// the plane is thrown away anyway.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let name = unique_name(prefix);
        let object = Namespace { metadata: named(&name), ..Namespace::default() };
        let api: Api<Namespace> = Api::all(self.client().await?);
        api.create(&PostParams::default(), &object).await.with_context(|| format!("create namespace {name}"))?;
        Ok(name)
    }

    /// A part's process, to pause, kill or measure. Only of a plane of one's own.
    pub fn part(&mut self, part: Part) -> Result<&mut Process> {
        let running = self.running.as_mut().context("the plane is shared: nobody may touch its parts")?;
        running.parts.get_mut(&part).with_context(|| format!("the plane runs no {part:?}"))
    }

    /// Starts a part again that was killed, on the same port and data, and waits until the API answers.
    pub async fn restart(&mut self, part: Part) -> Result<()> {
        let running = self.running.as_mut().context("the plane is shared: nobody may touch its parts")?;
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
            api.create(&PostParams::default(), &node).await.with_context(|| format!("create node-{n}"))?;
        }
        Ok(())
    }

    /// Pods can be created and, with nodes, run.
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
            let ready = api.list(&Default::default()).await?.into_iter().filter(node_is_ready).count();
            Ok((ready >= nodes).then_some(()))
        })
        .await
        .with_context(|| self.tails())
    }

    fn tails(&self) -> String {
        let parts = self.running.iter().flat_map(|running| &running.parts);
        parts.map(|(part, process)| format!("--- {part:?}\n{}", process.tail())).collect::<Vec<_>>().join("\n")
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

    /// etcd stands still meanwhile: the copy's comes up as after a power cut at this moment.
    async fn copy(&self) -> Result<Plane> {
        let dir = temporary_folder("farwater-plane-")?;
        let etcd = self.parts.get(&Part::Etcd).context("the plane runs no etcd")?;
        etcd.pause()?;
        let settings = self.settings.copy(dir.path());
        etcd.resume()?;
        let parts: Vec<Part> = self.parts.keys().copied().collect();
        let plane = Plane::run(settings?, dir, &parts).await?;
        // Its nodes came with it.
        plane.usable(0).await?;
        Ok(plane)
    }
}

/// Tries again where another process was faster at a port.
async fn start_anew<P>(mut attempt: impl FnMut() -> P) -> Result<Plane>
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

/// The plane number `n`, 1 or 2, that all tests share. The test run starts both and names their kubeconfigs in
/// `FARWATER_PLANE_1` and `_2`; a single test that is run by hand starts its own, once per process.
pub async fn shared(n: usize) -> Result<&'static Plane> {
    static PLANES: [OnceCell<Plane>; 2] = [OnceCell::const_new(), OnceCell::const_new()];
    let cell = n.checked_sub(1).and_then(|index| PLANES.get(index)).context("the shared planes are number 1 and 2")?;
    cell.get_or_try_init(|| async move {
        match std::env::var_os(plane_variable(n)) {
            Some(kubeconfig) => Ok(Plane::existing(kubeconfig)),
            None => Plane::start().await,
        }
    })
    .await
}

/// The environment variable that hands shared plane `n` to tests.
pub fn plane_variable(n: usize) -> String {
    format!("FARWATER_PLANE_{n}")
}

/// A client for a kubeconfig file; `context` None is its current one.
pub async fn client(kubeconfig: &Path, context: Option<&str>) -> Result<Client> {
    Client::try_from(configuration(kubeconfig, context).await?).context("build a Kubernetes client")
}

/// A client that takes every answer as it is: others ask again after a 429, 503 or 504.
pub async fn client_that_asks_once(kubeconfig: &Path) -> Result<Client> {
    let mut config = configuration(kubeconfig, None).await?;
    config.default_retry = false;
    Client::try_from(config).context("build a Kubernetes client")
}

async fn configuration(kubeconfig: &Path, context: Option<&str>) -> Result<Config> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(file, &options).await.context("use the kubeconfig")?;
    // Servers of tests are on this machine: never by a proxy that the environment names.
    config.proxy_url = None;
    Ok(config)
}

/// `prefix-<process>-<number>`: a Kubernetes name that no other test run or test uses.
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{:x}-{:04x}-{}", std::process::id(), rand::random::<u16>(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
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
