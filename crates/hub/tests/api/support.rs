//! A hub on loopback, and the real kubectl pointed at it.

use std::{
    fs,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use farwater_hub::{HubArgs, Running};
use farwater_testkit::{postgres, tools::Tools};
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
    time::timeout,
};

/// No command of these tests should take a second; on two busy cores some do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A served hub with a namespace of its own.
pub struct Served {
    pub running: Running,
    dir: TempDir,
    kubectls: [(&'static str, PathBuf); 2],
}

/// One kubectl with its own HOME: it caches discovery there.
pub struct Kubectl<'a> {
    served: &'a Served,
    pub version: &'static str,
    program: PathBuf,
    home: PathBuf,
}

impl Served {
    pub async fn start() -> Self {
        let tools = Tools::find_all().expect("the test tools are needed; run `cargo xtask test`");
        let dir = TempDir::new().unwrap();
        let database = postgres::chosen().await.unwrap();
        let args = HubArgs {
            data_dir: Some(dir.path().join("data")),
            database: database.as_deref().map(Into::into),
            listen: Some("127.0.0.1:0".parse().unwrap()),
            ..HubArgs::default()
        };
        let running = farwater_hub::start(args.resolve().unwrap()).await.unwrap();
        let kubectls = [("1.36", tools.kubectl()), ("1.29", tools.kubectl_1_29())];
        Self { running, dir, kubectls }
    }

    /// The newest and the oldest version that are promised to work.
    pub fn kubectls(&self) -> Vec<Kubectl<'_>> {
        self.kubectls
            .iter()
            .map(|(version, program)| self.kubectl(version, program.clone()))
            .collect()
    }

    pub fn newest(&self) -> Kubectl<'_> {
        self.kubectl(self.kubectls[0].0, self.kubectls[0].1.clone())
    }

    fn kubectl(&self, version: &'static str, program: PathBuf) -> Kubectl<'_> {
        let home = self.dir.path().join(format!("home-{version}"));
        fs::create_dir_all(&home).unwrap();
        Kubectl {
            served: self,
            version,
            program,
            home,
        }
    }

    /// A file that a command can read.
    pub fn file(&self, name: &str, content: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    pub fn script(&self, name: &str, content: &str) -> String {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.file(name, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub async fn stop(self) {
        self.running.stop().await;
    }
}

impl Kubectl<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("PATH", "/usr/bin:/bin")
            .env("KUBECONFIG", &self.served.running.admin_kubeconfig)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub async fn output(&self, args: &[&str], stdin: &str, env: &[(&str, &str)]) -> Output {
        let mut command = self.command(args);
        let mut child = command.envs(env.iter().copied()).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(stdin.as_bytes()).await.unwrap();
        drop(input);
        timeout(PATIENCE, child.wait_with_output())
            .await
            .unwrap_or_else(|_| panic!("kubectl {} {args:?} did not return", self.version))
            .unwrap()
    }

    /// Standard output of a command that must succeed.
    pub async fn run(&self, args: &[&str]) -> String {
        self.feed(args, "").await
    }

    /// Until a command prints just that.
    pub async fn wait(&self, args: &[&str], expected: &str) {
        let mut last = String::new();
        for _ in 0..300 {
            last = self.run(args).await;
            if last == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{args:?} gives {last:?} and not {expected:?}");
    }

    pub async fn feed(&self, args: &[&str], stdin: &str) -> String {
        let output = self.output(args, stdin, &[]).await;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "kubectl {} {args:?}: {}\n{}{}",
            self.version,
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Standard error of a command that must fail.
    pub async fn refuse(&self, args: &[&str], stdin: &str) -> String {
        let output = self.output(args, stdin, &[]).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success(),
            "kubectl {} {args:?} succeeded: {text}",
            self.version
        );
        text
    }

    pub fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }
}
