//! The built programs of the product: `farwater hub` and `farwater-agent`.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use farwater_api::{Cluster, GROUP, VERSION};
use kube::{Api, Client, api::PostParams};
use serde::Deserialize;

use crate::{
    Process, Tools, ports,
    process::{bare_command, wait_ready},
};

/// Maximum time until the hub is ready. A second is promised, but it may take longer on a busy machine.
const HUB_READY: Duration = Duration::from_secs(30);
/// Maximum time of a graceful shutdown.
const STOP: Duration = Duration::from_secs(15);

/// Folder of the programs, if this process has set one.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Takes programs from `dir` from now on, such as release builds. The first call decides.
pub fn use_programs_of(dir: PathBuf) {
    // Ignore a second call, because it would mix two builds in one run.
    let _ = PROGRAMS.set(dir);
}

/// Path of a program of this workspace. `FARWATER_BIN_DIR` names a folder with other builds.
pub fn program(name: &str) -> Result<PathBuf> {
    let dir = match (PROGRAMS.get(), std::env::var_os("FARWATER_BIN_DIR")) {
        (Some(dir), _) => dir.clone(),
        (None, Some(dir)) => PathBuf::from(dir),
        (None, None) => profile_dir()?,
    };
    let path = dir.join(name);
    if !path.is_file() {
        bail!(
            "{} is not built: cargo build -p farwater-cli -p farwater-agent",
            path.display()
        );
    }
    Ok(path)
}

/// `target/<profile>`: our own folder, or for tests, which are in `deps`, the one above.
fn profile_dir() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the path of this program")?;
    let dir = own.parent().context("this program's path has no folder")?;
    let dir = if dir.ends_with("deps") || dir.ends_with("examples") {
        dir.parent().unwrap_or(dir)
    } else {
        dir
    };
    Ok(dir.to_owned())
}

/// Checks a log for unexpected ERROR lines.
#[derive(Debug, Default)]
struct Tolerated(Vec<String>);

impl Tolerated {
    fn unexpected(&self, log: &str) -> Vec<String> {
        let is_error = |line: &&str| {
            line.contains("\"level\":\"ERROR\"") || line.contains("Z ERROR ") || line.contains("panicked at")
        };
        let is_tolerated = |line: &str| self.0.iter().any(|part| line.contains(part.as_str()));
        log.lines()
            .filter(is_error)
            .filter(|line| !is_tolerated(line))
            .map(str::to_owned)
            .collect()
    }

    /// Fails the running test, unless it is failing already.
    fn check(&self, name: &str, process: &Process) {
        let errors = self.unexpected(&process.output());
        if !errors.is_empty() && !std::thread::panicking() {
            panic!(
                "{name} logged unexpected errors:\n{}\n{}",
                errors.join("\n"),
                process.tail()
            );
        }
    }
}

/// Options and variables for a program, besides those that it always gets.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    pub arguments: Vec<String>,
    /// Its variables. Besides these, it gets only the variables that find programs.
    pub environment: Vec<(String, String)>,
}

impl Launch {
    pub fn arguments(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self {
            arguments,
            ..Self::default()
        }
    }

    pub fn environment(variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            environment: variables.iter().map(owned).collect(),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn apply<'a>(&self, command: &'a mut std::process::Command) -> &'a mut std::process::Command {
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
    }
}

/// A running hub. When dropped, it is killed, and its log must have no unexpected ERROR line.
#[derive(Debug)]
pub struct Hub {
    dir: PathBuf,
    address: SocketAddr,
    launch: Launch,
    process: Process,
    tolerated: Tolerated,
}

impl Hub {
    /// Starts a hub on a free port with its data in `dir`, and waits until it is ready.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, &[]).await
    }

    /// Starts a hub with further options of `farwater hub`.
    pub async fn start_with(dir: &Path, arguments: &[&str]) -> Result<Self> {
        Self::launch(dir, Launch::arguments(arguments)).await
    }

    /// Starts a hub with further options and variables.
    pub async fn launch(dir: &Path, launch: Launch) -> Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, ports::free()?).into(), dir, launch).await
    }

    /// Starts a hub at an address, with further options and variables.
    pub async fn start_on(address: SocketAddr, dir: &Path, launch: Launch) -> Result<Self> {
        let process = spawn_hub(dir, address, &launch)?;
        let mut hub = Self {
            dir: dir.to_owned(),
            address,
            launch,
            process,
            tolerated: Tolerated::default(),
        };
        hub.ready().await?;
        Ok(hub)
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sets variables for the next start.
    pub fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.launch.environment = environment;
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the administrator's kubeconfig, which the hub writes at its first start.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// A client with the administrator's rights.
    pub async fn client(&self) -> Result<Client> {
        crate::kube::client(&self.kubeconfig(), None).await
    }

    /// The administrator's token.
    pub fn token(&self) -> Result<String> {
        let file = kube::config::Kubeconfig::read_from(self.kubeconfig()).context("read admin.kubeconfig")?;
        let file = serde_json::to_value(&file)?;
        let token = file.pointer("/users/0/user/token").and_then(|token| token.as_str());
        token.map(str::to_owned).context("admin.kubeconfig has no token")
    }

    /// Creates the cluster if it is missing, and a one-time token to join it.
    pub async fn join_token(&self, namespace: &str, name: &str) -> Result<JoinToken> {
        let client = self.client().await?;
        let clusters: Api<Cluster> = Api::namespaced(client.clone(), namespace);
        if clusters.get_opt(name).await?.is_none() {
            let spec = serde_json::from_value(serde_json::json!({})).context("a cluster needs no fields")?;
            clusters
                .create(&PostParams::default(), &Cluster::new(name, spec))
                .await?;
        }
        join_token(&client, namespace, name).await
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Expects ERROR lines that contain `part`. Every line contains "".
    pub fn tolerate(&mut self, part: &str) {
        self.tolerated.0.push(part.to_owned());
    }

    /// Expects no errors again. Any ERROR line is a failure, including earlier ones.
    pub fn expect_no_errors(&mut self) {
        self.tolerated.0.clear();
    }

    /// The last lines of the log, and its path.
    pub fn log_tail(&self) -> String {
        self.process.tail()
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Asks the hub to shut down, as an operator would.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop(STOP)
    }

    /// Restarts the hub with the same data, port and options, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill9();
        self.process = spawn_hub(&self.dir, self.address, &self.launch)?;
        self.ready().await
    }

    async fn ready(&mut self) -> Result<()> {
        let kubeconfig = self.kubeconfig();
        let probe = || async {
            let client = crate::kube::client(&kubeconfig, None).await?;
            client
                .request_text(http::Request::get("/readyz").body(Vec::new())?)
                .await?;
            Ok(())
        };
        wait_ready(&mut [&mut self.process], HUB_READY, probe)
            .await
            .context("start the hub")
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.process.kill9();
        self.tolerated.check("the hub", &self.process);
    }
}

fn spawn_hub(dir: &Path, address: SocketAddr, launch: &Launch) -> Result<Process> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut command = bare_command(program("farwater")?);
    command
        .arg("hub")
        .arg("--data-dir")
        .arg(dir)
        .args(["--listen", &address.to_string()]);
    launch.apply(&mut command);
    Process::spawn("the hub", command, &dir.join("hub.log"))
}

/// The hub's answer to `clusters/NAME/join`, which `farwater cluster join` prints as a command.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinToken {
    pub token: String,
    /// Pin of the hub's authority. Empty: the agent gets none.
    pub ca_pin: String,
    pub hub: String,
}

/// A one-time token of a hub, to join one of its clusters.
pub async fn join_token(hub: &Client, namespace: &str, name: &str) -> Result<JoinToken> {
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/clusters/{name}/join");
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(b"{}".to_vec())?;
    hub.request(request)
        .await
        .with_context(|| format!("ask for a join token of {namespace}/{name}"))
}

/// A running agent. When dropped, it is killed, and its log must have no unexpected ERROR line.
#[derive(Debug)]
pub struct Agent {
    name: String,
    dir: PathBuf,
    kubeconfig: PathBuf,
    join: JoinToken,
    launch: Launch,
    process: Process,
    tolerated: Tolerated,
}

impl Agent {
    /// Starts an agent that joins with `join` and keeps its state in `dir`. Returns at once: the hub shows when it has
    /// joined.
    pub fn start(name: &str, dir: &Path, kubeconfig: &Path, join: JoinToken) -> Result<Self> {
        Self::launch(name, dir, kubeconfig, join, Launch::default())
    }

    /// Starts an agent with further options and variables.
    pub fn launch(name: &str, dir: &Path, kubeconfig: &Path, join: JoinToken, launch: Launch) -> Result<Self> {
        let process = spawn_agent(name, dir, kubeconfig, &join, &launch)?;
        let (name, dir, kubeconfig) = (name.to_owned(), dir.to_owned(), kubeconfig.to_owned());
        Ok(Self {
            name,
            dir,
            kubeconfig,
            join,
            launch,
            process,
            tolerated: Tolerated::default(),
        })
    }

    /// Sets variables for the next start.
    pub fn set_environment(&mut self, environment: Vec<(String, String)>) {
        self.launch.environment = environment;
    }

    /// The state directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Expects ERROR lines that contain `part`. Every line contains "".
    pub fn tolerate(&mut self, part: &str) {
        self.tolerated.0.push(part.to_owned());
    }

    /// Expects no errors again. Any ERROR line is a failure, including earlier ones.
    pub fn expect_no_errors(&mut self) {
        self.tolerated.0.clear();
    }

    /// The last lines of the log, and its path.
    pub fn log_tail(&self) -> String {
        self.process.tail()
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.process.stop(STOP)
    }

    /// Restarts the agent with the same arguments. Its token is used up, so it uses its own keys.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill9();
        self.process = spawn_agent(&self.name, &self.dir, &self.kubeconfig, &self.join, &self.launch)?;
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill9();
        self.tolerated
            .check(&format!("the agent of {}", self.name), &self.process);
    }
}

fn spawn_agent(name: &str, dir: &Path, kubeconfig: &Path, join: &JoinToken, launch: &Launch) -> Result<Process> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut command = bare_command(program("farwater-agent")?);
    if !join.ca_pin.is_empty() {
        command.args(["--ca-pin", &join.ca_pin]);
    }
    command
        .args(["--hub", &join.hub, "--join-token", &join.token])
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--state-dir")
        .arg(dir)
        .env("HOME", dir)
        // When installed, the renderer is beside the agent.
        .env("FARWATER_RENDERER", Tools::find()?.renderer());
    launch.apply(&mut command);
    // Beside the state directory, not inside, because tests delete that directory.
    Process::spawn(&format!("the agent of {name}"), command, &dir.with_extension("log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_line_is_unexpected_unless_announced() {
        let log = "{\"level\":\"INFO\",\"message\":\"no ERROR here\"}\n{\"level\":\"ERROR\",\"message\":\"disk full\"}\n\
                   2026-01-01T00:00:00Z ERROR farwater: git is gone\n";
        let mut tolerated = Tolerated::default();
        assert_eq!(tolerated.unexpected(log).len(), 2);
        tolerated.0.push("git is gone".to_owned());
        assert_eq!(
            tolerated.unexpected(log),
            ["{\"level\":\"ERROR\",\"message\":\"disk full\"}"]
        );
    }
}
