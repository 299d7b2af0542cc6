//! Pinned programs, built from Go modules of this repository: a new machine has no Kubernetes and no kubectl.
//!
//! They lie under `~/.cache/farwater/tools/<hash of the modules>/`, outside the clone, so that a second clone builds
//! nothing. `FARWATER_TOOLS` names another folder with the same content. etcd and kube-apiserver come from
//! `KUBEBUILDER_ASSETS` where that is set, as with controller-runtime's envtest.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::process::bare_command;

/// The stages that make kwok's nodes Ready and its pods Running, in its own module.
const STAGES: [&str; 4] = [
    "node/fast/node-initialize.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
];
/// Changes when the way of building changes, so that old results are not taken for new ones.
const RECIPE: &str = "1";

/// A Go module of ours that is built into programs.
struct Module {
    folder: &'static str,
    /// What the programs say at `/version` and `kubectl version`; must agree with the module's `k8s.io/kubernetes`.
    kubernetes: &'static str,
}

const LOCALKUBE: Module = Module { folder: "tests/localkube", kubernetes: "v1.36.3" };
const KUBECTL_1_32: Module = Module { folder: "tests/kubectl-1.32", kubernetes: "v1.32.13" };

/// A folder with the built programs.
#[derive(Clone, Debug)]
pub struct Tools {
    dir: PathBuf,
}

impl Tools {
    /// What is already built; never builds, because a test must not take minutes by surprise.
    pub fn find() -> Result<Self> {
        let tools = Self::located()?;
        tools.check().with_context(|| {
            format!("the test tools in {} are not complete; build them: cargo xtask tools", tools.dir.display())
        })?;
        Ok(tools)
    }

    /// What is already built, or builds it: some 5 minutes on two cores the first time.
    pub fn build() -> Result<Self> {
        let tools = Self::located()?;
        if tools.check().is_ok() {
            return Ok(tools);
        }
        if std::env::var_os("FARWATER_TOOLS").is_some() {
            tools.check().with_context(|| format!("FARWATER_TOOLS is {}", tools.dir.display()))?;
        }
        let parent = tools.dir.parent().context("the tools' folder has no parent")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        // Parallel test runs build once: the others wait here and then find it done.
        let lock = File::create(parent.join("lock")).context("create the tools' lock file")?;
        lock.lock().context("wait for another build of the tools")?;
        if tools.check().is_err() {
            build_into(parent, &tools.dir)?;
        }
        tools.check()?;
        Ok(tools)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn kubectl(&self) -> PathBuf {
        self.dir.join("kubectl")
    }

    /// The oldest kubectl that is promised to work, and the first that sends built-in kinds as protobuf.
    pub fn kubectl_1_32(&self) -> PathBuf {
        self.dir.join("kubectl-1.32")
    }

    pub fn kwok(&self) -> PathBuf {
        self.dir.join("kwok")
    }

    pub fn kwok_stages(&self) -> Vec<PathBuf> {
        STAGES.iter().map(|stage| self.dir.join("kwok-stages").join(stage_name(stage))).collect()
    }

    /// `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`, ready for its flags.
    pub fn kubernetes(&self, part: &str) -> Command {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(part));
        match assets.filter(|path| path.is_file()) {
            Some(path) => bare_command(path),
            None => {
                let mut command = bare_command(self.dir.join("localkube"));
                command.arg(part);
                command
            }
        }
    }

    fn located() -> Result<Self> {
        let dir = match std::env::var_os("FARWATER_TOOLS") {
            Some(dir) => PathBuf::from(dir),
            None => cache_dir()?.join("tools").join(content_hash(&repository_root()?)?),
        };
        Ok(Self { dir })
    }

    fn check(&self) -> Result<()> {
        let programs = ["localkube", "kwok", "kubectl", "kubectl-1.32"].map(|name| self.dir.join(name));
        for path in programs.into_iter().chain(self.kwok_stages()) {
            if !path.is_file() {
                bail!("{} is missing", path.display());
            }
        }
        Ok(())
    }
}

/// The folder of the workspace that this crate was compiled in.
pub fn repository_root() -> Result<PathBuf> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).map(Path::to_owned).context("the testkit does not lie two folders below the root")
}

/// `~/.cache/farwater`, as XDG says.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache")
        }
    };
    Ok(base.join("farwater"))
}

/// A short hash of everything that decides what is built.
fn content_hash(root: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(RECIPE);
    for (module, file) in [
        (&LOCALKUBE, "go.mod"),
        (&LOCALKUBE, "go.sum"),
        (&LOCALKUBE, "main.go"),
        (&KUBECTL_1_32, "go.mod"),
        (&KUBECTL_1_32, "go.sum"),
    ] {
        let path = root.join(module.folder).join(file);
        let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        hash.update(format!("\n{} {file} {} {}\n", module.folder, module.kubernetes, content.len()));
        hash.update(content);
    }
    Ok(hex::encode(&hash.finalize()[..8]))
}

/// Builds beside the final place and renames: a half-built folder is never taken for a whole one.
fn build_into(parent: &Path, dir: &Path) -> Result<()> {
    let root = repository_root()?;
    let staging = tempfile::Builder::new().prefix("building-").tempdir_in(parent).context("create a build folder")?;
    let log = staging.path().join("build.log");
    eprintln!("building Kubernetes, kwok and kubectl from Go modules into {} (some 5 min once)", dir.display());

    let out = staging.path().join("tools");
    fs::create_dir(&out)?;
    let localkube = root.join(LOCALKUBE.folder);
    let output = out.join("localkube");
    go("localkube", &localkube, &log, |go| {
        go.args(["build", "-ldflags", &ldflags(&LOCALKUBE), "-o"]).arg(&output).arg(".");
    })?;
    go("kwok and kubectl", &localkube, &log, |go| {
        go.env("GOBIN", &out).args(["install", "-ldflags", &ldflags(&LOCALKUBE), "tool"]);
    })?;
    let second = staging.path().join("kubectl-1.32");
    go("kubectl 1.32", &root.join(KUBECTL_1_32.folder), &log, |go| {
        go.env("GOBIN", &second).args(["install", "-ldflags", &ldflags(&KUBECTL_1_32), "tool"]);
    })?;
    fs::rename(second.join("kubectl"), out.join("kubectl-1.32")).context("take kubectl 1.32")?;
    copy_stages(&localkube, &out.join("kwok-stages"))?;

    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("remove the incomplete {}", dir.display()))?;
    }
    fs::rename(&out, dir).with_context(|| format!("move the tools to {}", dir.display()))
}

fn ldflags(module: &Module) -> String {
    format!("-s -w -X k8s.io/component-base/version.gitVersion={}", module.kubernetes)
}

fn go(what: &str, module: &Path, log: &Path, arguments: impl FnOnce(&mut Command)) -> Result<()> {
    let mut command = Command::new("go");
    // The module alone decides: no workspace file around the clone, no flags of the machine.
    command.current_dir(module).env("GOFLAGS", "-mod=readonly -buildvcs=false").env("GOWORK", "off");
    arguments(&mut command);
    let output = File::options().create(true).append(true).open(log)?;
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("start go: the tests need Go 1.26 or newer on the PATH (https://go.dev/dl)")?;
    let mut told = start;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            eprintln!("  {what}: still building after {} s", start.elapsed().as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        bail!(
            "build {what} in {}: go {status}\n{}",
            module.display(),
            lines[lines.len().saturating_sub(30)..].join("\n")
        );
    }
    eprintln!("  {what}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn copy_stages(module: &Path, to: &Path) -> Result<()> {
    let output = Command::new("go")
        .current_dir(module)
        .args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])
        .env("GOWORK", "off")
        .output()
        .context("ask go where kwok's module lies")?;
    if !output.status.success() {
        bail!("ask go where kwok's module lies: {}", String::from_utf8_lossy(&output.stderr));
    }
    let kwok = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    fs::create_dir(to)?;
    for stage in STAGES {
        let from = kwok.join("kustomize/stage").join(stage);
        // Read and write, not copy: files of the module cache are read-only and would stay so.
        let content = fs::read(&from).with_context(|| format!("read kwok's stage {}", from.display()))?;
        fs::write(to.join(stage_name(stage)), content)?;
    }
    Ok(())
}

fn stage_name(stage: &str) -> &str {
    stage.rsplit('/').next().unwrap_or(stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_is_stamped_is_the_version_that_is_built() {
        for module in [LOCALKUBE, KUBECTL_1_32] {
            let go_mod = fs::read_to_string(repository_root().unwrap().join(module.folder).join("go.mod")).unwrap();
            let line = format!("k8s.io/kubernetes {}", module.kubernetes);
            assert!(go_mod.contains(&line), "{} does not require {line}", module.folder);
        }
    }
}
