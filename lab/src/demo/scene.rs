//! The servers that the demo starts, and actions on them. They all end when this value is dropped, or with the process.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::{ADMIN_NAMESPACE, GitRepository, GitRepositoryStatus, REQUESTED_AT};
use farwater_testkit::{
    Agent, Hub, Plane, Tools, farwater,
    git::{GitServer, Repository},
    process::bare_command,
    temporary_folder, wait_for,
};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::json;
use walkdir::WalkDir;
use xtask::repository;

use super::{
    screen::say,
    times::{Phase, Times},
};

const CLUSTERS: [&str; 2] = ["east", "west"];
const BRANCH: &str = "main";
/// Address in the example that the demo replaces with that of its own Git server.
const EXAMPLE_URL: &str = "https://git.example.com/fleet.git";
const TREE: Duration = Duration::from_secs(5);
/// Maximum time until a deleted object must be recreated.
const HEALS: Duration = Duration::from_secs(10);

/// Fields are dropped in this order, so that clients end before their servers.
pub struct Scene {
    agents: Vec<Agent>,
    hub: Hub,
    hub_runs: bool,
    git: GitServer,
    git_runs: bool,
    repository: Repository,
    /// Content of the branch's files by path.
    files: BTreeMap<String, String>,
    planes: Vec<Plane>,
    pub client: Client,
    tools: Tools,
    dir: tempfile::TempDir,
}

impl Scene {
    /// Starts all servers. `options`: further options of the hub.
    pub async fn start(options: &[&str], times: &mut Times) -> Result<Self> {
        let tools = Tools::find()?;
        let dir = temporary_folder("farwater-demo-")?;
        say("starting two control planes, each with two KWOK nodes, and a Git server");
        let (east, west, git) = tokio::try_join!(Plane::start(), Plane::start(), GitServer::start())?;
        let planes = vec![east, west];
        let files = example_files()?;
        let repository = git.create("fleet")?;
        commit(&repository, &files)?;
        say(&format!("  {} holds examples/fleet/apps", git.url("fleet")));
        times.end(Phase::Planes);

        say("starting the hub");
        let hub = Hub::start_with(&dir.path().join("hub"), options).await?;
        let client = hub.client().await?;
        times.end(Phase::Hub);
        let mut scene = Self {
            agents: Vec::new(),
            hub,
            hub_runs: true,
            git,
            git_runs: true,
            repository,
            files,
            planes,
            client,
            tools,
            dir,
        };
        scene.write_environment()?;
        scene.state_the_fleet()?;
        scene.join_clusters().await?;
        times.end(Phase::Agents);
        Ok(scene)
    }

    /// Applies the example's farwater.yaml as a user would, with the address of this Git server.
    fn state_the_fleet(&self) -> Result<()> {
        let example = repository::root()?.join("examples/fleet/farwater.yaml");
        let yaml = fs::read_to_string(&example).with_context(|| format!("read {}", example.display()))?;
        ensure!(
            yaml.contains(EXAMPLE_URL),
            "{} does not name {EXAMPLE_URL}",
            example.display()
        );
        let path = self.dir.path().join("farwater.yaml");
        fs::write(&path, yaml.replace(EXAMPLE_URL, &self.git.url("fleet")))?;
        let mut command = self.hub_kubectl();
        command.arg("apply").arg("-f").arg(&path);
        say("kubectl apply -f examples/fleet/farwater.yaml");
        for line in run(command)?.lines() {
            say(&format!("  {line}"));
        }
        Ok(())
    }

    async fn join_clusters(&mut self) -> Result<()> {
        for (name, plane) in CLUSTERS.iter().zip(&self.planes) {
            let token = self.hub.join_token(ADMIN_NAMESPACE, name).await?;
            let state = self.dir.path().join(format!("agent-{name}"));
            let mut agent = Agent::start(name, &state, plane.kubeconfig(), token)?;
            // The demo causes errors on purpose, except with --once.
            agent.tolerate("");
            self.agents.push(agent);
            say(&format!("the agent of {name} joins with a one-time token"));
        }
        self.hub.tolerate("");
        Ok(())
    }

    /// From now on, an ERROR line of hub or agent fails the demo, because none is caused on purpose.
    pub fn strict(&mut self) {
        self.hub.expect_no_errors();
        self.agents.iter_mut().for_each(Agent::expect_no_errors);
    }

    pub fn head(&self) -> Result<String> {
        self.repository
            .branch(BRANCH)
            .context("the example repository has no branch")
    }

    /// Makes the hub fetch now instead of at its next poll.
    pub async fn ask_now(&self) -> Result<()> {
        let sources: Api<GitRepository> = Api::namespaced(self.client.clone(), ADMIN_NAMESPACE);
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: jiff::Timestamp::now()}}});
        sources
            .patch("fleet", &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    pub fn change_greeting(&mut self, greeting: &str) -> Result<String> {
        let settings = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\ndata:\n  GREETING: {}\n",
            serde_json::to_string(greeting)?
        );
        self.files.insert("apps/web/settings.yaml".to_owned(), settings);
        commit(&self.repository, &self.files)
    }

    /// Checks the greeting in the clusters themselves, not in the hub.
    pub async fn check_greeting(&self, greeting: &str) -> Result<()> {
        for (name, plane) in CLUSTERS.iter().zip(&self.planes) {
            let api: Api<ConfigMap> = Api::namespaced(plane.client().await?, "web");
            let data = api
                .get("web")
                .await
                .with_context(|| format!("read the ConfigMap in {name}"))?
                .data;
            let found = data.unwrap_or_default().remove("GREETING");
            ensure!(
                found.as_deref() == Some(greeting),
                "{name} has the greeting {found:?}, not {greeting:?}"
            );
        }
        Ok(())
    }

    /// Returns a future that ends when the first cluster's ConfigMap has this greeting. The watch is open when this
    /// returns.
    pub async fn watch_greeting(&self, greeting: String) -> Result<impl Future<Output = Result<()>> + use<>> {
        let api: Api<ConfigMap> = Api::namespaced(self.planes[0].client().await?, "web");
        let version = api.get("web").await?.metadata.resource_version.unwrap_or_default();
        let parameters = WatchParams::default().fields("metadata.name=web");
        let mut events = api.watch(&parameters, &version).await?.boxed();
        Ok(async move {
            while let Some(event) = events.try_next().await? {
                if let WatchEvent::Modified(object) | WatchEvent::Added(object) = event
                    && object.data.unwrap_or_default().get("GREETING") == Some(&greeting)
                {
                    return Ok(());
                }
            }
            bail!("the watch of the ConfigMap ended")
        })
    }

    /// Pushes a commit that every API server refuses: `replicas` is not a number.
    pub fn push_broken(&self) -> Result<String> {
        let mut files = self.files.clone();
        let web = files
            .get_mut("apps/web/web.yaml")
            .context("the example has no apps/web/web.yaml")?;
        *web = web.replace("replicas: 2", "replicas: many");
        commit(&self.repository, &files)
    }

    /// Pushes a commit without any manifest. Each folder has only a note.
    pub fn push_empty(&self) -> Result<String> {
        let folders = ["web", "database", "platform"].map(|app| format!("apps/{app}/NOTE.txt"));
        commit(
            &self.repository,
            &folders.map(|path| (path, "moved away\n".to_owned())).into(),
        )
    }

    /// Pushes the last good state as a new commit.
    pub fn push_good(&self) -> Result<String> {
        commit(&self.repository, &self.files)
    }

    /// Deletes east's Deployment and returns the time until it was recreated. None: it took too long. Asks the cluster
    /// itself, because that works without a hub and the hub would show it too late.
    pub async fn delete_deployment(&self) -> Result<Option<Duration>> {
        let api: Api<Deployment> = Api::namespaced(self.planes[0].client().await?, "web");
        let old = api
            .get("web")
            .await
            .context("read the Deployment web in east")?
            .metadata
            .uid;
        api.delete("web", &DeleteParams::default())
            .await
            .context("delete the Deployment web in east")?;
        let start = Instant::now();
        let again = wait_for("another Deployment", HEALS, || async {
            Ok(api
                .get_opt("web")
                .await?
                .filter(|now| now.metadata.uid != old && now.metadata.uid.is_some()))
        });
        Ok(again.await.is_ok().then(|| start.elapsed()))
    }

    /// Stops or starts the Git server. Returns whether it runs now.
    pub async fn toggle_git(&mut self) -> Result<bool> {
        if self.git_runs {
            self.git.stop().await;
        } else {
            self.git.resume().await?;
        }
        self.git_runs = !self.git_runs;
        Ok(self.git_runs)
    }

    /// Kills or starts the hub. Returns whether it runs now.
    pub async fn toggle_hub(&mut self) -> Result<bool> {
        if self.hub_runs {
            self.hub.kill9();
        } else {
            self.hub.restart().await?;
        }
        self.hub_runs = !self.hub_runs;
        Ok(self.hub_runs)
    }

    /// The source, and the output of `farwater tree`.
    pub async fn picture(&self) -> Result<String> {
        let tree = self.tree().await?;
        let sources: Api<GitRepository> = Api::namespaced(self.client.clone(), ADMIN_NAMESPACE);
        let source = tokio::time::timeout(TREE, sources.get("fleet"))
            .await
            .context("the hub does not answer")??;
        Ok(format!(
            "{}\n{tree}",
            source_line(&source.status.unwrap_or_default(), jiff::Timestamp::now())
        ))
    }

    /// The output of `farwater tree`.
    pub async fn tree(&self) -> Result<String> {
        if !self.hub_runs {
            bail!("the hub is down; the services in the clusters keep running");
        }
        let mut command = tokio::process::Command::from(self.cli()?);
        command.args(["tree", "--objects"]).kill_on_drop(true);
        let output = tokio::time::timeout(TREE, command.output())
            .await
            .context("farwater tree took too long")??;
        ensure!(
            output.status.success(),
            "farwater tree: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Writes a file with short variables for the long paths of this run, to source in another shell.
    fn write_environment(&self) -> Result<()> {
        let bin = self.dir.path().join("bin");
        fs::create_dir(&bin)?;
        symlink(self.tools.kubectl(), bin.join("kubectl")).context("link kubectl")?;
        symlink(farwater::program("farwater")?, bin.join("farwater")).context("link farwater")?;
        let hub = self.hub.kubeconfig();
        let mut text = format!("export PATH='{}':\"$PATH\"\n", bin.display());
        writeln!(text, "export KUBECONFIG='{0}' FARWATER_KUBECONFIG='{0}'", hub.display())?;
        for (name, plane) in CLUSTERS.iter().zip(&self.planes) {
            writeln!(
                text,
                "export {}='{}'",
                name.to_uppercase(),
                plane.kubeconfig().display()
            )?;
        }
        fs::write(self.dir.path().join("env"), text)?;
        fs::write(self.dir.path().join("token"), self.hub.token()?)?;
        Ok(())
    }

    /// How to reach the fleet from a browser and another shell.
    pub fn how_to_reach(&self) -> Result<String> {
        let dir = self.dir.path().display();
        let mut text = String::new();
        writeln!(
            text,
            "The page:  {}/ui/  (accept the hub's own certificate)",
            self.hub.url()
        )?;
        writeln!(text, "Sign in:   with the token in {dir}/token")?;
        writeln!(text, "A shell:   . {dir}/env; farwater why web-east")?;
        writeln!(
            text,
            "           kubectl get sd -A; kubectl --kubeconfig $EAST get pods -A"
        )?;
        Ok(text)
    }

    pub fn logs(&self) -> String {
        let hub = format!("--- hub\n{}", self.hub.log_tail());
        let agents = self
            .agents
            .iter()
            .map(|agent| format!("--- agent\n{}", agent.log_tail()));
        std::iter::once(hub).chain(agents).collect::<Vec<_>>().join("\n")
    }

    fn cli(&self) -> Result<Command> {
        let mut command = bare_command(farwater::program("farwater")?);
        command
            .arg("--kubeconfig")
            .arg(self.hub.kubeconfig())
            .env("HOME", self.dir.path());
        Ok(command)
    }

    fn hub_kubectl(&self) -> Command {
        let mut command = bare_command(self.tools.kubectl());
        command
            .arg("--kubeconfig")
            .arg(self.hub.kubeconfig())
            .env("HOME", self.dir.path());
        command
    }
}

/// The source's status as a line of the tree.
fn source_line(status: &GitRepositoryStatus, now: jiff::Timestamp) -> String {
    let revision = status.revision.as_deref().unwrap_or("nothing fetched yet");
    let (branch, commit) = revision.split_once("@sha1:").unwrap_or((revision, ""));
    let revision = format!("{branch}@{}", commit.get(..12).unwrap_or(commit));
    let revision = revision.trim_end_matches('@');
    match &status.stale_since {
        None => format!("✓ source fleet  fresh  {revision}"),
        Some(since) => {
            let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
            let why = ready.map(|condition| condition.message.as_str()).unwrap_or_default();
            let age = now.duration_since(since.0).as_secs();
            format!("✗ source fleet  stale for {age}s  {revision} stays in use  {why}")
        }
    }
}

fn example_files() -> Result<BTreeMap<String, String>> {
    let root: PathBuf = repository::root()?.join("examples/fleet");
    let mut files = BTreeMap::new();
    for entry in WalkDir::new(root.join("apps")) {
        let entry = entry.context("read examples/fleet")?;
        if entry.file_type().is_file() {
            let path = entry
                .path()
                .strip_prefix(&root)?
                .to_str()
                .context("a path of the example is not valid UTF-8")?;
            files.insert(path.to_owned(), fs::read_to_string(entry.path())?);
        }
    }
    ensure!(!files.is_empty(), "{} has no files", root.display());
    Ok(files)
}

fn commit(repository: &Repository, files: &BTreeMap<String, String>) -> Result<String> {
    let files: Vec<_> = files
        .iter()
        .map(|(path, content)| (path.as_str(), content.as_str()))
        .collect();
    repository.commit(BRANCH, &files)
}

fn run(mut command: Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
        bail!(
            "kubectl {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
