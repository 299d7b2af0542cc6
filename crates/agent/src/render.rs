//! Renders a bundle into the objects that a service states.

mod capabilities;
pub mod kept;
mod lookup;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use farwater_api::protocol::Deployment;
use farwater_bundle::{Archive, RelPath, TEMPLATE_SUFFIX};
use farwater_fleet::{
    hooks::Occasion,
    plan::{GroupVersionKind, Render, RenderedObject},
};
use farwater_render::{
    Cache, CacheLimits, Capabilities, Engine, Helper, Input, Limits, Plugins, PluginsError, Program, Release, detect,
};
use tokio::time::Instant;

use self::capabilities::{Found, KnownKinds};
pub use self::lookup::ClusterAsker;
use crate::{
    handed::Handed,
    hub::chain,
    kubernetes::{ApiError, Kubernetes},
    messages::shorten,
    options::Options,
    sops::Opened,
    sync::lock,
};

/// The renderer program, which is beside this program in its image.
const RENDERER: &str = "farwater-render";
/// Memory of the container that the agent itself needs.
const OWN_MEMORY: u64 = 64 << 20;
/// Children that render at one time.
const CHILDREN: usize = 2;
/// How long discovered APIs count as current. Services that render at the same time ask once.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// Why renderers can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum RendererError {
    #[error("make {}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("read plugins from {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("read plugins from {}", path.display())]
    Plugins { path: PathBuf, source: PluginsError },
}

/// The renderers of all services.
pub struct Renderers {
    engine: Engine,
    known: Mutex<Option<(Instant, Found)>>,
    kinds: tokio::sync::Mutex<KnownKinds>,
}

impl Renderers {
    pub fn new(options: &Options) -> Result<Self, RendererError> {
        let (work, cache) = (options.state_dir.join("work"), options.state_dir.join("rendered"));
        // Left behind by plugins of a killed agent.
        let _ = std::fs::remove_dir_all(&work);
        for path in [&work, &cache] {
            make_private(path).map_err(|source| RendererError::Folder {
                path: path.clone(),
                source,
            })?;
        }

        let plugins = match &options.plugins {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|source| RendererError::Read {
                    path: path.clone(),
                    source,
                })?;
                Plugins::parse(&text).map_err(|source| RendererError::Plugins {
                    path: path.clone(),
                    source,
                })?
            }
            None => Plugins::default(),
        };

        let limits = Limits::default().within(container_memory(), CHILDREN as u64, OWN_MEMORY);
        let command = options
            .renderer
            .as_deref()
            .map(words)
            .or_else(|| beside().map(|path| vec![path]));
        let program = |command| Program {
            limits,
            children: CHILDREN,
            work: Some(work.clone()),
            ..Program::new(command)
        };
        Ok(Self {
            engine: Engine {
                helper: command.map(|command| Helper::new(program(command))),
                plugins,
                cache: Cache::new(Some(cache), CacheLimits::default()),
                work,
                limits,
            },
            known: Mutex::default(),
            kinds: tokio::sync::Mutex::default(),
        })
    }

    /// Renders the service's files with its templates' values. Files that can't be rendered make the render incomplete,
    /// which is reported as an error; errors contain nothing secret.
    pub async fn render(
        &self,
        (opened, uncached): (&Opened, bool),
        handed: &Handed,
        deployment: &Deployment,
        (name, occasion): (&str, Occasion),
        cluster: &ClusterAsker<'_>,
    ) -> Render {
        let archive = &opened.archive;
        let folder = match RelPath::parse_folder(&deployment.path) {
            Ok(folder) => folder,
            Err(error) => return nothing(&error.to_string()),
        };
        let Found { capabilities, unknown } = match self.find(archive, &folder, deployment, cluster.kubernetes).await {
            Ok(found) => found,
            Err(error) => return nothing(&format!("ask which APIs the cluster has: {}", chain(&error))),
        };

        let input = Input {
            archive,
            path: &folder,
            renderers: &deployment.renderers,
            patches: &deployment.patches,
            release: Release {
                name,
                namespace: &deployment.target_namespace,
                is_upgrade: occasion == Occasion::Upgrade,
            },
            capabilities: &capabilities,
            parameters: handed.values(),
            secret: opened.is_decrypted || handed.is_sealed(),
            uncached,
        };
        let output = self.engine.render(&input, cluster).await;
        for warning in &output.warnings {
            tracing::debug!(service = name, warning = handed.veil.conceal(warning), "rendered");
        }

        let away = (!unknown.is_empty() && may_ask_versions(archive)).then(|| explain_away(&unknown));
        let errors = output
            .errors
            .iter()
            .map(|error| shorten(&handed.veil.conceal(&chain(error))))
            .chain(away);
        let objects = output.objects.into_iter();
        let objects = objects.map(|m| RenderedObject {
            origin: m.origin.to_string(),
            manifest: m.value,
        });
        Render {
            objects: objects.collect(),
            errors: errors.collect(),
        }
    }

    /// Cluster capabilities for the render. Raw manifests need none.
    async fn find(
        &self,
        archive: &Archive,
        folder: &RelPath,
        deployment: &Deployment,
        kubernetes: &Kubernetes,
    ) -> Result<Found, ApiError> {
        if is_raw(archive, folder, deployment) {
            return Ok(Found {
                capabilities: Capabilities::default(),
                unknown: Vec::new(),
            });
        }
        if let Some((since, known)) = &*lock(&self.known)
            && since.elapsed() < KNOWN_FOR
        {
            return Ok(known.clone());
        }
        let found = capabilities::read(kubernetes, &mut *self.kinds.lock().await).await?;
        *lock(&self.known) = Some((Instant::now(), found.clone()));
        Ok(found)
    }
}

/// Whether a chart may use the API versions of the cluster. Packed charts are not searched for that.
fn may_ask_versions(archive: &Archive) -> bool {
    const NAME: &[u8] = b"APIVersions";
    archive
        .files()
        .any(|(path, bytes)| path.as_str().ends_with(".tgz") || bytes.windows(NAME.len()).any(|window| window == NAME))
}

/// The error of a render that may lack objects, so that it proves nothing about missing ones.
fn explain_away(unknown: &[String]) -> String {
    let message = format!(
        "the API server of {} does not answer, so that it isn't known which kinds it has, and a template asks for .Capabilities.APIVersions: \
         nothing is pruned until it answers",
        unknown.join(", ")
    );
    shorten(&message)
}

/// Whether a deployment's objects are the same at a first install and at an upgrade.
pub fn is_always_the_same(archive: &Archive, deployment: &Deployment) -> bool {
    RelPath::parse_folder(&deployment.path).map_or(true, |folder| is_raw(archive, &folder, deployment))
}

/// Whether a folder contains only raw manifests.
fn is_raw(archive: &Archive, folder: &RelPath, deployment: &Deployment) -> bool {
    use farwater_api::renderer::RendererType::{Auto, Raw};
    let is_detected = |path: &str| {
        let real = folder
            .join_clean(path)
            .ok()
            .and_then(|folder| archive.folder(&folder).ok());
        real.is_some_and(|real| detect(archive, &real) == Raw)
    };
    let is_raw = match deployment.renderers.is_empty() {
        true => is_detected(""),
        false => deployment
            .renderers
            .iter()
            .all(|renderer| renderer.kind == Raw || (renderer.kind == Auto && is_detected(&renderer.path))),
    };
    is_raw
        && !archive
            .files()
            .any(|(path, _)| path.as_str().ends_with(TEMPLATE_SUFFIX))
}

fn nothing(error: &str) -> Render {
    Render {
        objects: Vec::new(),
        errors: vec![shorten(error)],
    }
}

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

fn beside() -> Option<String> {
    let own = std::env::current_exe().ok()?.canonicalize().ok()?;
    let path = own.parent()?.join(RENDERER);
    path.is_file().then(|| path.to_string_lossy().into_owned())
}

fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The memory limit of this process' container. None: there is none.
fn container_memory() -> Option<u64> {
    let read = |path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // cgroup version 1 writes "no limit" as nearly 2^63.
    let limit = read("/sys/fs/cgroup/memory.max").or_else(|| read("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    limit.filter(|bytes| *bytes < 1 << 50)
}

/// The kinds of a render's objects.
pub fn kinds(render: &Render) -> BTreeSet<GroupVersionKind> {
    let kind = |object: &RenderedObject| {
        let api_version = object.manifest["apiVersion"].as_str()?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Some(GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: object.manifest["kind"].as_str()?.to_owned(),
        })
    };
    render.objects.iter().filter_map(kind).collect()
}
