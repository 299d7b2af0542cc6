//! Pinned programs, built from Go modules of this repository, because a new machine has no Kubernetes and no kubectl.
//! The shipped renderer is one of them.
//!
//! The programs of a module are in `~/.cache/farwater/tools/<module>-<hash>/`, outside the clone. A second clone
//! therefore builds nothing, and a change of one module does not affect the others. `FARWATER_TOOLS` names one folder
//! with all programs. etcd and kube-apiserver are taken from `KUBEBUILDER_ASSETS` if that is set, as with
//! controller-runtime's envtest.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::process::bare_command;

/// Version of the way of building. Change it so that old results are not used.
const RECIPE: &str = "2";

/// A Go module of this repository that is built into programs.
struct Module {
    name: &'static str,
    /// Version that the programs report at `/version` and in `kubectl version`. It must match the module's
    /// `k8s.io/kubernetes`.
    kubernetes: Option<&'static str>,
    /// Our own main packages, with the names of the programs.
    mains: &'static [(&'static str, &'static str)],
    /// Tools in go.mod: the name that go gives, and ours.
    tools: &'static [(&'static str, &'static str)],
    /// Files to copy from other modules: the module (with its version if go.mod doesn't name it), the file in it, and
    /// the target. A path that ends with `/` is a folder.
    files: &'static [(&'static str, &'static str, &'static str)],
    cost: &'static str,
}

const KWOK: &str = "sigs.k8s.io/kwok";
const KUSTOMIZE_CONTROLLER: &str = "github.com/fluxcd/kustomize-controller";
const SOURCE_CONTROLLER: &str = "github.com/fluxcd/source-controller@v1.9.5";

const LOCALKUBE: Module = Module {
    name: "localkube",
    kubernetes: Some("v1.36.3"),
    mains: &[("localkube", "."), ("informer", "./informer")],
    tools: &[("kwok", "kwok"), ("kubectl", "kubectl")],
    // The stages that make kwok's nodes Ready and its pods Running.
    files: &[
        (
            KWOK,
            "kustomize/stage/node/fast/node-initialize.yaml",
            "kwok-stages/node-initialize.yaml",
        ),
        (
            KWOK,
            "kustomize/stage/pod/fast/pod-ready.yaml",
            "kwok-stages/pod-ready.yaml",
        ),
        (
            KWOK,
            "kustomize/stage/pod/fast/pod-complete.yaml",
            "kwok-stages/pod-complete.yaml",
        ),
        (
            KWOK,
            "kustomize/stage/pod/fast/pod-delete.yaml",
            "kwok-stages/pod-delete.yaml",
        ),
    ],
    cost: "5 min",
};
const KUBECTL_1_29: Module = Module {
    name: "kubectl-1.29",
    kubernetes: Some("v1.29.15"),
    mains: &[],
    tools: &[("kubectl", "kubectl-1.29")],
    files: &[],
    cost: "1 min",
};
/// Another project's controller that applies the content of Git with server-side apply.
const FLUX: Module = Module {
    name: "flux",
    kubernetes: None,
    mains: &[],
    tools: &[("kustomize-controller", "kustomize-controller")],
    files: &[
        (
            KUSTOMIZE_CONTROLLER,
            "config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml",
            "flux-crds/kustomizations.yaml",
        ),
        (
            SOURCE_CONTROLLER,
            "config/crd/bases/source.toolkit.fluxcd.io_buckets.yaml",
            "flux-crds/buckets.yaml",
        ),
        (
            SOURCE_CONTROLLER,
            "config/crd/bases/source.toolkit.fluxcd.io_externalartifacts.yaml",
            "flux-crds/externalartifacts.yaml",
        ),
        (
            SOURCE_CONTROLLER,
            "config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml",
            "flux-crds/gitrepositories.yaml",
        ),
        (
            SOURCE_CONTROLLER,
            "config/crd/bases/source.toolkit.fluxcd.io_helmrepositories.yaml",
            "flux-crds/helmrepositories.yaml",
        ),
        (
            SOURCE_CONTROLLER,
            "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml",
            "flux-crds/ocirepositories.yaml",
        ),
    ],
    cost: "3 min",
};
/// A popular terminal client for clusters. Only its campaign needs it.
const K9S: Module = Module {
    name: "k9s",
    kubernetes: None,
    mains: &[],
    tools: &[("k9s", "k9s")],
    files: &[],
    cost: "5 min",
};
/// From the last minor version that runs on machines with cgroup v1 by default.
const KUBELET: Module = Module {
    name: "kubelet",
    kubernetes: Some("v1.33.4"),
    mains: &[],
    tools: &[("kubelet", "kubelet"), ("kube-proxy", "kube-proxy")],
    files: &[],
    cost: "3 min",
};
/// DNS of a cluster, for its pods.
const COREDNS: Module = Module {
    name: "coredns",
    kubernetes: None,
    mains: &[("coredns", ".")],
    tools: &[],
    files: &[],
    cost: "3 min",
};
/// Renders and checks our charts.
const HELM: Module = Module {
    name: "helm",
    kubernetes: None,
    mains: &[],
    tools: &[("helm", "helm")],
    files: &[],
    cost: "2 min",
};
const EXTERNAL_DNS: &str = "sigs.k8s.io/external-dns@v0.15.0";
const METRICS_SERVER: &str = "sigs.k8s.io/metrics-server@v0.7.2";
const KUEUE: &str = "sigs.k8s.io/kueue@v0.9.1";
const FEATURE_DISCOVERY: &str = "sigs.k8s.io/node-feature-discovery@v0.16.6";
const GATEWAY_API: &str = "sigs.k8s.io/gateway-api@v1.2.0";
/// The commands that our rendering is compared with, and other projects' charts and overlays for it.
const KUSTOMIZE: Module = Module {
    name: "kustomize",
    kubernetes: None,
    mains: &[],
    tools: &[("kustomize", "kustomize")],
    files: &[
        (EXTERNAL_DNS, "charts/external-dns/", "others/external-dns/chart/"),
        (EXTERNAL_DNS, "kustomize/", "others/external-dns/kustomize/"),
        (METRICS_SERVER, "charts/metrics-server/", "others/metrics-server/chart/"),
        (METRICS_SERVER, "manifests/", "others/metrics-server/manifests/"),
        (KUEUE, "charts/kueue/", "others/kueue/chart/"),
        (KUEUE, "config/", "others/kueue/config/"),
        (
            FEATURE_DISCOVERY,
            "deployment/",
            "others/node-feature-discovery/deployment/",
        ),
        (GATEWAY_API, "config/crd/", "others/gateway-api/config/crd/"),
    ],
    cost: "1 min",
};
/// A plugin's program.
const JSONNET: Module = Module {
    name: "jsonnet",
    kubernetes: None,
    mains: &[],
    tools: &[("jsonnet", "jsonnet")],
    files: &[],
    cost: "1 min",
};
/// Our renderer as shipped: without cgo.
const RENDER: Module = Module {
    name: "render-helper",
    kubernetes: None,
    mains: &[("farwater-render", ".")],
    tools: &[],
    files: &[],
    cost: "2 min",
};
/// Tools for encrypted files, and the test vectors of age.
const SOPS: Module = Module {
    name: "sops",
    kubernetes: None,
    mains: &[("age-vectors", "./vectors")],
    tools: &[("age", "age"), ("age-keygen", "age-keygen"), ("sops", "sops")],
    files: &[],
    cost: "4 min",
};
/// HashiCorp Vault, a secret store.
const VAULT: Module = Module {
    name: "vault",
    kubernetes: None,
    mains: &[("vault", ".")],
    tools: &[],
    files: &[],
    cost: "4 min",
};
/// Tools for a test run.
const MODULES: [&Module; 11] = [
    &LOCALKUBE,
    &KUBECTL_1_29,
    &FLUX,
    &KUBELET,
    &COREDNS,
    &HELM,
    &KUSTOMIZE,
    &JSONNET,
    &RENDER,
    &SOPS,
    &VAULT,
];

/// Location of the built programs.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `FARWATER_TOOLS`: all programs in one folder.
    given: Option<PathBuf>,
    /// One folder for each module.
    cache: PathBuf,
    root: PathBuf,
}

impl Tools {
    /// Finds existing tools. Never builds, because a test must not take minutes unexpectedly.
    pub fn find() -> Result<Self> {
        Self::find_modules(&[&LOCALKUBE, &RENDER])
    }

    /// Tools for rendering, and the commands, charts and overlays to compare with.
    pub fn find_renderers() -> Result<Self> {
        Self::find_modules(&[&HELM, &KUSTOMIZE, &JSONNET, &RENDER])
    }

    /// Like [`Self::find`], with the clients that only tests need.
    pub fn find_all() -> Result<Self> {
        Self::find_modules(&MODULES)
    }

    /// Only SOPS and age.
    pub fn find_sops() -> Result<Self> {
        Self::find_modules(&[&SOPS])
    }

    /// Only Vault.
    pub fn find_vault() -> Result<Self> {
        Self::find_modules(&[&VAULT])
    }

    /// Only k9s.
    pub fn find_k9s() -> Result<Self> {
        Self::find_modules(&[&K9S])
    }

    fn find_modules(modules: &[&Module]) -> Result<Self> {
        let tools = Self::located()?;
        for module in modules {
            tools
                .check(module)
                .context("the test tools are not complete; build them: cargo xtask tools")?;
        }
        Ok(tools)
    }

    /// Tools for a control plane, kubectl and the agent's renderer. Builds missing ones, which takes some 6 minutes on
    /// two cores.
    pub fn build() -> Result<Self> {
        Self::build_modules(&[&LOCALKUBE, &RENDER])
    }

    /// Like [`Self::build`], with the clients that only tests need.
    pub fn build_all() -> Result<Self> {
        Self::build_modules(&MODULES)
    }

    /// Only Helm. Builds it if it is missing.
    pub fn build_helm() -> Result<Self> {
        Self::build_modules(&[&HELM])
    }

    /// Only k9s. Builds it if it is missing.
    pub fn build_k9s() -> Result<Self> {
        Self::build_modules(&[&K9S])
    }

    fn build_modules(modules: &[&Module]) -> Result<Self> {
        let tools = Self::located()?;
        for module in modules {
            if tools.check(module).is_ok() {
                continue;
            }
            if let Some(given) = &tools.given {
                tools
                    .check(module)
                    .with_context(|| format!("FARWATER_TOOLS is {}", given.display()))?;
            }
            fs::create_dir_all(&tools.cache).with_context(|| format!("create {}", tools.cache.display()))?;
            // One of several concurrent test runs builds the tools. The others wait here and then find the result.
            let lock = File::create(tools.cache.join("lock")).context("create the tools' lock file")?;
            lock.lock().context("wait for another build of the tools")?;
            if tools.check(module).is_err() {
                tools.build_module(module)?;
            }
            tools.check(module)?;
        }
        Ok(tools)
    }

    /// Folders of the tools.
    pub fn folders(&self) -> Result<Vec<PathBuf>> {
        match &self.given {
            Some(given) => Ok(vec![given.clone()]),
            None => MODULES.iter().map(|module| self.folder(module)).collect(),
        }
    }

    pub fn kubectl(&self) -> PathBuf {
        self.program(&LOCALKUBE, "kubectl")
    }

    /// The oldest supported kubectl.
    pub fn kubectl_1_29(&self) -> PathBuf {
        self.program(&KUBECTL_1_29, "kubectl-1.29")
    }

    /// client-go's caches under churn. `tests/localkube/informer` describes its arguments.
    pub fn informer(&self) -> PathBuf {
        self.program(&LOCALKUBE, "informer")
    }

    /// Flux's controller, built as in its project.
    pub fn kustomize_controller(&self) -> PathBuf {
        self.program(&FLUX, "kustomize-controller")
    }

    /// k9s. It needs a terminal, such as [`crate::Terminal`].
    pub fn k9s(&self) -> PathBuf {
        self.program(&K9S, "k9s")
    }

    pub fn helm(&self) -> PathBuf {
        self.program(&HELM, "helm")
    }

    pub fn kustomize(&self) -> PathBuf {
        self.program(&KUSTOMIZE, "kustomize")
    }

    pub fn jsonnet(&self) -> PathBuf {
        self.program(&JSONNET, "jsonnet")
    }

    /// `farwater-render`.
    pub fn renderer(&self) -> PathBuf {
        self.program(&RENDER, "farwater-render")
    }

    /// Other projects' charts and overlays, by project name.
    pub fn others(&self) -> PathBuf {
        self.program(&KUSTOMIZE, "others")
    }

    pub fn sops(&self) -> PathBuf {
        self.program(&SOPS, "sops")
    }

    pub fn age(&self) -> PathBuf {
        self.program(&SOPS, "age")
    }

    pub fn age_keygen(&self) -> PathBuf {
        self.program(&SOPS, "age-keygen")
    }

    /// The program that writes the test vectors of age into the folder in its argument.
    pub fn age_vectors(&self) -> PathBuf {
        self.program(&SOPS, "age-vectors")
    }

    /// Vault. [`crate::Vault`] starts it; `tests/vault` describes how.
    pub fn vault(&self) -> PathBuf {
        self.program(&VAULT, "vault")
    }

    pub fn kubelet(&self) -> PathBuf {
        self.program(&KUBELET, "kubelet")
    }

    pub fn kube_proxy(&self) -> PathBuf {
        self.program(&KUBELET, "kube-proxy")
    }

    pub fn coredns(&self) -> PathBuf {
        self.program(&COREDNS, "coredns")
    }

    pub fn kwok(&self) -> PathBuf {
        self.program(&LOCALKUBE, "kwok")
    }

    pub fn kwok_stages(&self) -> Vec<PathBuf> {
        self.files(&LOCALKUBE)
    }

    /// The CRDs of Flux that the kustomize-controller reads, and HelmRepositories.
    pub fn flux_crds(&self) -> Vec<PathBuf> {
        self.files(&FLUX)
    }

    fn files(&self, module: &Module) -> Vec<PathBuf> {
        module.files.iter().map(|(_, _, to)| self.program(module, to)).collect()
    }

    /// `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`, without flags.
    pub fn kubernetes(&self, part: &str) -> Command {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(|dir| PathBuf::from(dir).join(part));
        match assets.filter(|path| path.is_file()) {
            Some(path) => bare_command(path),
            None => {
                let mut command = bare_command(self.program(&LOCALKUBE, "localkube"));
                command.arg(part);
                command
            }
        }
    }

    fn located() -> Result<Self> {
        let given = std::env::var_os("FARWATER_TOOLS").map(PathBuf::from);
        Ok(Self {
            given,
            cache: cache_dir()?.join("tools"),
            root: repository_root()?,
        })
    }

    fn program(&self, module: &Module, name: &str) -> PathBuf {
        match &self.given {
            Some(given) => given.join(name),
            // These files were already read when `Tools` was created.
            None => self
                .folder(module)
                .unwrap_or_else(|_| self.cache.join(module.name))
                .join(name),
        }
    }

    fn folder(&self, module: &Module) -> Result<PathBuf> {
        Ok(self.cache.join(format!(
            "{}-{}",
            module.name,
            content_hash(&self.source(module), module)?
        )))
    }

    fn source(&self, module: &Module) -> PathBuf {
        if module.name == RENDER.name {
            self.root.join(RENDER.name)
        } else {
            self.root.join("tests").join(module.name)
        }
    }

    fn check(&self, module: &Module) -> Result<()> {
        if self.given.is_none() {
            self.folder(module)?;
        }
        let mut wanted: Vec<PathBuf> = module.programs().map(|name| self.program(module, name)).collect();
        wanted.extend(self.files(module));
        match wanted.iter().find(|path| !path.exists()) {
            Some(path) => bail!("{} is missing", path.display()),
            None => Ok(()),
        }
    }

    /// Builds beside the final folder and then renames, so that an incomplete folder is never used.
    fn build_module(&self, module: &Module) -> Result<()> {
        let (source, dir) = (self.source(module), self.folder(module)?);
        let staging = tempfile::Builder::new()
            .prefix("building-")
            .tempdir_in(&self.cache)
            .context("create a build folder")?;
        let log = staging.path().join("build.log");
        let programs = module.programs().collect::<Vec<_>>().join(", ");
        eprintln!(
            "building {programs} from Go modules into {} (some {} once)",
            dir.display(),
            module.cost
        );
        let out = staging.path().join("tools");
        fs::create_dir(&out)?;
        let flags = module.ldflags()?;
        for (name, package) in module.mains {
            go(name, &source, &log, |go| {
                if module.name == RENDER.name {
                    go.env("CGO_ENABLED", "0");
                }
                go.args(["build", "-ldflags", &flags, "-o"])
                    .arg(out.join(name))
                    .arg(package);
            })?;
        }
        if !module.tools.is_empty() {
            let names = module
                .tools
                .iter()
                .map(|(_, ours)| *ours)
                .collect::<Vec<_>>()
                .join(", ");
            go(&names, &source, &log, |go| {
                go.env("GOBIN", &out).args(["install", "-ldflags", &flags, "tool"]);
            })?;
        }
        for (made, ours) in module.tools.iter().filter(|(made, ours)| made != ours) {
            fs::rename(out.join(made), out.join(ours)).with_context(|| format!("take {ours}"))?;
        }
        for (from, file, to) in module.files {
            copy_file(&source, from, file, &out.join(to))?;
        }
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("remove the incomplete {}", dir.display()))?;
        }
        fs::rename(&out, &dir).with_context(|| format!("move the tools to {}", dir.display()))
    }
}

impl Module {
    fn programs(&self) -> impl Iterator<Item = &'static str> {
        self.mains
            .iter()
            .map(|(name, _)| *name)
            .chain(self.tools.iter().map(|(_, ours)| *ours))
    }

    fn ldflags(&self) -> Result<String> {
        Ok(match self.kubernetes {
            Some(version) => format!("-s -w -X k8s.io/component-base/version.gitVersion={version}"),
            // Keep Helm's version from its sources, as in the helm that it is compared with.
            None if self.name == RENDER.name => format!("-s -w {}", kustomize_flag()?),
            None => "-s -w".to_owned(),
        })
    }
}

/// Linker flags for the shipped renderer: the versions that charts and kustomizations may write into their output.
pub fn renderer_flags(version: &str) -> Result<String> {
    let helm = required("render-helper", "helm.sh/helm/v4")?;
    let kustomize = kustomize_flag()?;
    Ok(format!(
        "-s -w -X main.version={version} -X helm.sh/helm/v4/internal/version.version={helm} {kustomize}"
    ))
}

fn kustomize_flag() -> Result<String> {
    let version = required("tests/kustomize", "sigs.k8s.io/kustomize/kustomize/v5")?;
    Ok(format!("-X sigs.k8s.io/kustomize/api/provenance.version={version}"))
}

/// Version of a module in the go.mod of a folder of this repository.
fn required(folder: &str, module: &str) -> Result<String> {
    let go_mod = repository_root()?.join(folder).join("go.mod");
    let text = fs::read_to_string(&go_mod).with_context(|| format!("read {}", go_mod.display()))?;
    let version = |line: &str| {
        line.trim()
            .strip_prefix(module)?
            .strip_prefix(' ')?
            .split(' ')
            .next()
            .map(str::to_owned)
    };
    text.lines()
        .find_map(version)
        .with_context(|| format!("{} requires no {module}", go_mod.display()))
}

/// The workspace of the package that Cargo runs, or else of the working folder. Not the workspace that this was
/// compiled in, because copies of a repository may share their build output.
pub fn repository_root() -> Result<PathBuf> {
    let folder =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(std::env::current_dir, |folder| Ok(folder.into()))?;
    let root = folder.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.map(Path::to_owned)
        .with_context(|| format!("{} is not in a clone of the repository", folder.display()))
}

/// `~/.cache/farwater`, as XDG specifies.
pub fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache")
        }
    };
    Ok(base.join("farwater"))
}

/// A short hash of everything that affects the build.
fn content_hash(source: &Path, module: &Module) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(format!("{RECIPE}\n{:?}\n{:?}\n", module.kubernetes, module.files));
    let mut files = vec![PathBuf::from("go.mod"), PathBuf::from("go.sum")];
    for (_, package) in module.mains {
        files.extend(go_files(source, Path::new(package))?);
    }
    for file in files {
        let path = source.join(&file);
        let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        hash.update(format!("\n{} {}\n", file.display(), content.len()));
        hash.update(content);
    }
    Ok(hex::encode(&hash.finalize()[..8]))
}

/// Files of one package, sorted by name.
fn go_files(source: &Path, package: &Path) -> Result<Vec<PathBuf>> {
    let dir = source.join(package);
    let entries = fs::read_dir(&dir).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
    let entries = entries.with_context(|| format!("list {}", dir.display()))?;
    let names = entries.iter().map(|entry| package.join(entry.file_name()));
    let mut files: Vec<_> = names
        .filter(|name| name.extension().is_some_and(|ending| ending == "go"))
        .collect();
    files.sort();
    Ok(files)
}

fn go(what: &str, module: &Path, log: &Path, arguments: impl FnOnce(&mut Command)) -> Result<()> {
    let mut command = Command::new("go");
    // Only the module decides: no workspace file around the clone, and no flags of the machine.
    command
        .current_dir(module)
        .env("GOFLAGS", "-mod=readonly -buildvcs=false")
        .env("GOWORK", "off");
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

fn copy_file(source: &Path, module: &str, file: &str, to: &Path) -> Result<()> {
    let from = module_folder(source, module)?.join(file);
    if file.ends_with('/') {
        return copy_folder(&from, to);
    }
    copy_content(&from, to)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to)?,
            false => copy_content(&entry.path(), &to)?,
        }
    }
    Ok(())
}

fn copy_content(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    // Read and write instead of copying: files in the module cache are read-only, and a copy would be too.
    let content = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    fs::write(to, content).with_context(|| format!("write {}", to.display()))
}

/// Folder of a module in go's cache.
fn module_folder(source: &Path, module: &str) -> Result<PathBuf> {
    let mut command = Command::new("go");
    command.current_dir(source).env("GOWORK", "off");
    match module.contains('@') {
        true => command.args(["mod", "download", "-json", module]),
        false => command.args(["list", "-m", "-json", module]),
    };
    let output = command
        .output()
        .with_context(|| format!("ask go for the folder of {module}"))?;
    if !output.status.success() {
        bail!(
            "ask go for the folder of {module}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    told["Dir"]
        .as_str()
        .map(PathBuf::from)
        .with_context(|| format!("go reports no folder of {module}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_is_stamped_is_the_version_that_is_built() {
        for module in MODULES {
            let Some(version) = module.kubernetes else { continue };
            let go_mod = repository_root()
                .unwrap()
                .join("tests")
                .join(module.name)
                .join("go.mod");
            let line = format!("k8s.io/kubernetes {version}");
            assert!(
                fs::read_to_string(go_mod).unwrap().contains(&line),
                "{} does not require {line}",
                module.name
            );
        }
    }
}
