//! Renders all objects of a service, with whatever renderers it has.

mod error;
mod request;
mod tasks;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::PathBuf,
    pin::Pin,
};

use farwater_api::{
    Digest,
    renderer::{Patch, RawOptions, Renderer, RendererType},
};
use farwater_bundle::{
    Archive, Collector, Limits as BundleLimits, Manifest, Manifests, RelPath, TEMPLATE_SUFFIX,
    manifests::{KUSTOMIZATIONS, MAX_DOCUMENT_BYTES, Origin},
    yaml::{self, Budget, YamlReason},
};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    cache::{self, Cache},
    files::{self, Files},
    helper::Helper,
    limits::Limits,
    message::{self, Capabilities, Question},
    plugin::{PluginError, Plugins, Run},
};
use request::bases;
use tasks::{Task, others, plan};

pub use error::RenderError;

/// Part of every cache key. Change it when the same inputs must give another result.
const FORMAT: &str = concat!("farwater-render-v3 ", env!("CARGO_PKG_VERSION"));
/// Most warnings reported for one service.
const MAX_WARNINGS: usize = 50;

/// The input of a render.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub archive: &'a Archive,
    /// The service's folder.
    pub path: &'a RelPath,
    /// Empty: one renderer of type `Auto`.
    pub renderers: &'a [Renderer],
    pub patches: &'a [Patch],
    pub release: Release<'a>,
    pub capabilities: &'a Capabilities,
    /// Parameters for templates and plugins, by name.
    pub parameters: &'a Map<String, Value>,
    /// Whether the parameters or files contain secret values, which must not be written to disk.
    pub secret: bool,
    /// Whether the cache is neither read nor written. Two such renders differ in the values that a chart makes up.
    pub uncached: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Release<'a> {
    /// The service's name; also that of a chart's release, unless its renderer states another.
    pub name: &'a str,
    /// Namespace of objects that name none.
    pub namespace: &'a str,
    /// Whether an earlier version of the service was applied.
    pub is_upgrade: bool,
}

/// The result of a render. It is complete if there are no errors; only then may anything be deleted because of it.
#[derive(Debug, Default)]
pub struct Output {
    pub objects: Vec<Manifest>,
    pub errors: Vec<RenderError>,
    pub warnings: Vec<String>,
    /// Whether it is from the cache.
    pub cached: bool,
}

/// Why a template's lookup in the cluster could not be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered(pub String);

type Answered<'a> = Pin<Box<dyn Future<Output = Result<Option<Value>, Unanswered>> + Send + 'a>>;

/// Answers lookups in the cluster. Only called for charts with lookups enabled.
pub trait Asker: Send + Sync {
    /// The object, or the list if the question has no name. None: there is none.
    fn look_up<'a>(&'a self, question: &'a Question) -> Answered<'a>;
}

/// Used without a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Asker for Nobody {
    fn look_up<'a>(&'a self, _: &'a Question) -> Answered<'a> {
        Box::pin(async { Err(Unanswered("there is no cluster to ask here".to_owned())) })
    }
}

/// Renders services; several renders may run concurrently.
pub struct Engine {
    pub helper: Option<Helper>,
    pub plugins: Plugins,
    pub cache: Cache,
    /// Folder in which plugins get their working folders.
    pub work: PathBuf,
    pub limits: Limits,
}

impl Engine {
    pub async fn render(&self, input: &Input<'_>, asker: &dyn Asker) -> Output {
        let has_templates = templates(input.archive).next().is_some();
        let auto = [Renderer::default()];
        let stated = if input.renderers.is_empty() {
            &auto[..]
        } else {
            input.renderers
        };
        let (tasks, problems) = plan(input, stated);
        let is_raw = tasks.iter().all(|task| task.kind == RendererType::Raw);
        let mut output = if is_raw && !has_templates && input.patches.is_empty() {
            let mut output = read(input, &tasks);
            output.errors.splice(0..0, problems);
            output
        } else {
            self.render_cached(input, stated, &tasks, has_templates, asker).await
        };
        output.warnings.truncate(MAX_WARNINGS);
        output
    }

    async fn render_cached(
        &self,
        input: &Input<'_>,
        stated: &[Renderer],
        tasks: &[Task<'_>],
        has_templates: bool,
        asker: &dyn Asker,
    ) -> Output {
        let key = self
            .key(input, stated, tasks, has_templates)
            .filter(|_| !input.uncached);
        if let Some(entry) = key.and_then(|key| self.cache.get(&key)) {
            return restore(entry, input.release.namespace);
        }
        let output = self.render_uncached(input, stated, has_templates, asker).await;
        if let Some(key) = key
            && output.errors.is_empty()
        {
            self.cache.put(&key, &keep(&output), input.secret);
        }
        output
    }

    /// Digest of everything that decides the output. None: not everything is known.
    fn key(&self, input: &Input<'_>, stated: &[Renderer], tasks: &[Task<'_>], has_templates: bool) -> Option<Digest> {
        #[derive(Serialize)]
        struct Key<'a> {
            format: &'a str,
            files: Digest,
            path: &'a RelPath,
            renderers: &'a [Renderer],
            patches: &'a [Patch],
            release: Release<'a>,
            capabilities: Option<&'a Capabilities>,
            parameters: Option<&'a Map<String, Value>>,
            programs: Vec<String>,
        }

        // The state of the cluster is no input with a digest.
        if stated
            .iter()
            .any(|renderer| renderer.helm.as_ref().is_some_and(|helm| helm.lookup))
        {
            return None;
        }
        // It is not known yet which renderers the templates' files are for.
        let is = |kind| has_templates || tasks.iter().any(|task| task.kind == kind);
        let plugins = tasks
            .iter()
            .filter_map(|task| self.plugins.get(task.stated.plugin.as_deref()?));
        let mut programs: Vec<String> = plugins.map(crate::Plugin::fingerprint).collect::<Option<_>>()?;
        programs.extend(self.helper.as_ref().map(|helper| helper.program().fingerprint()));

        let key = Key {
            format: FORMAT,
            files: input.archive.digest(),
            path: input.path,
            renderers: stated,
            patches: input.patches,
            release: input.release,
            capabilities: (is(RendererType::Helm) || is(RendererType::Kustomize)).then_some(input.capabilities),
            parameters: is(RendererType::Plugin).then_some(input.parameters),
            programs,
        };
        Some(Digest::of_json(&serde_json::to_value(key).ok()?))
    }

    async fn render_uncached(
        &self,
        input: &Input<'_>,
        stated: &[Renderer],
        has_templates: bool,
        asker: &dyn Asker,
    ) -> Output {
        let mut warnings = Vec::new();
        let replaced;
        let mut input = *input;
        if has_templates {
            // Without one of its files a renderer would silently return other objects.
            match self.render_templates(&input, &mut warnings).await {
                Ok(archive) => replaced = archive,
                Err(error) => {
                    return Output {
                        errors: vec![error],
                        warnings,
                        ..Output::default()
                    };
                }
            }
            input.archive = &replaced;
        }

        // A template may have become the file that decides the renderer.
        let (tasks, problems) = plan(&input, stated);
        let mut output = self.render_tasks(&input, &tasks, asker).await;
        // Errors of planning come first, because later errors may follow from them.
        output.errors.splice(0..0, problems);
        warnings.append(&mut output.warnings);
        if !input.patches.is_empty() && !output.objects.is_empty() {
            match self.patch(&input, &output.objects, &mut warnings).await {
                Ok(patched) => {
                    let errors = std::mem::take(&mut output.errors);
                    output = patched;
                    output.errors.extend(errors);
                }
                Err(error) => {
                    // Without the patches, no object is as intended.
                    output.objects.clear();
                    output.errors.push(error);
                }
            }
        }
        Output { warnings, ..output }
    }

    async fn render_templates(&self, input: &Input<'_>, warnings: &mut Vec<String>) -> Result<Archive, RenderError> {
        let helper = self.helper(&"a template")?;
        let templates: Vec<(&RelPath, &[u8])> = templates(input.archive).collect();
        // The helper checks whether files exist where templates' results go.
        let beside = templates.iter().filter_map(|(path, _)| {
            let result = RelPath::parse(path.as_str().strip_suffix(TEMPLATE_SUFFIX)?).ok()?;
            input.archive.file(&result).is_ok().then_some(result)
        });
        let beside: Vec<RelPath> = beside.collect();

        let mut request = message::Request {
            liquid: Some(message::Liquid {
                parameters: input.parameters,
            }),
            ..message::Request::default()
        };
        let mut body: Vec<&[u8]> = Vec::new();
        for (path, bytes) in templates
            .iter()
            .copied()
            .chain(beside.iter().map(|path| (path, &[][..])))
        {
            request.files.push(message::Part {
                path: path.as_str(),
                size: bytes.len(),
            });
            body.push(bytes);
        }

        let (done, bytes) = helper
            .call(request, &body, &Nobody)
            .await
            .map_err(RenderError::Templates)?;
        warnings.extend(done.warnings);
        let broken = |source| RenderError::Templates(helper.broken(source));
        let mut made = BTreeMap::new();
        for (path, bytes) in message::split(&done.files, &bytes).map_err(broken)? {
            made.insert(RelPath::parse(path)?, bytes.to_vec());
        }

        let without: BTreeSet<RelPath> = templates.iter().map(|(path, _)| (*path).clone()).collect();
        input
            .archive
            .replace(&without, &made, &BundleLimits::default())
            .map_err(RenderError::Archive)
    }

    async fn render_tasks(&self, input: &Input<'_>, tasks: &[Task<'_>], asker: &dyn Asker) -> Output {
        let mut collector = Collector::new(input.release.namespace);
        let mut output = Output::default();
        let needs_files = tasks.iter().any(|task| task.kind != RendererType::Raw);
        let files = match needs_files
            .then(|| files::resolve(input.archive, &BundleLimits::default()))
            .transpose()
        {
            Ok(files) => files.unwrap_or_default(),
            Err(error) => {
                return Output {
                    errors: vec![error.into()],
                    ..output
                };
            }
        };
        for task in tasks {
            let result = match task.kind {
                RendererType::Plugin => self.run_plugin(input, task, &files, &mut collector).await,
                RendererType::Helm | RendererType::Kustomize => {
                    self.run_helper(input, task, &files, &mut collector, &mut output.warnings, asker)
                        .await
                }
                RendererType::Raw | RendererType::Auto => {
                    collector.add_folder(input.archive, &task.folder, &others(tasks, task), task.raw());
                    Ok(())
                }
            };
            output.errors.extend(result.err());
        }
        take(collector.finish(), output)
    }

    async fn run_helper(
        &self,
        input: &Input<'_>,
        task: &Task<'_>,
        files: &Files<'_>,
        collector: &mut Collector<'_>,
        warnings: &mut Vec<String>,
        asker: &dyn Asker,
    ) -> Result<(), RenderError> {
        let is_chart = task.kind == RendererType::Helm;
        let helper = self.helper(if is_chart { &"a chart" } else { &"a kustomization" })?;
        let mut request = if is_chart {
            request::helm(input, task)?
        } else {
            request::kustomize(input, task)
        };
        request.bases = bases(files);

        let mut body: Vec<&[u8]> = Vec::with_capacity(files.len());
        for (path, file) in files {
            request.files.push(message::Part {
                path: path.as_str(),
                size: file.bytes.len(),
            });
            body.push(file.bytes);
        }
        if !is_chart {
            warnings.extend(repeated_keys(files));
        }

        let fail = |source| RenderError::Renderer {
            folder: task.folder.clone(),
            source,
        };
        let (done, bytes) = helper.call(request, &body, asker).await.map_err(fail)?;
        let told = done
            .warnings
            .iter()
            .map(|warning| format!("{}: {warning}", task.folder));
        warnings.extend(told);
        let broken = |source| fail(helper.broken(source));
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for (source, bytes) in message::split(&done.objects, &bytes).map_err(broken)? {
            let count = counts.entry(source).or_default();
            *count += 1;
            let origin = origin_of(task, source, *count);
            if bytes.len() > MAX_DOCUMENT_BYTES {
                return Err(fail(helper.too_long(&origin.to_string(), bytes.len())));
            }
            let value = serde_json::from_slice(bytes).map_err(|e| broken(message::MessageError::Header(e)))?;
            collector.add_rendered(&origin, value);
        }
        Ok(())
    }

    async fn run_plugin(
        &self,
        input: &Input<'_>,
        task: &Task<'_>,
        files: &Files<'_>,
        collector: &mut Collector<'_>,
    ) -> Result<(), RenderError> {
        let folder = task.folder.clone();
        let name = task.stated.plugin.clone().unwrap_or_default();
        let Some(plugin) = self.plugins.get(&name) else {
            let names = self.plugins.names().map(str::to_owned).collect();
            return Err(RenderError::UnknownPlugin { folder, name, names });
        };
        let helper = self.helper(&"a plugin")?;
        let watcher = helper.program().command.first().map(String::as_str).unwrap_or_default();
        let _turn = helper.turn().await;

        let mut own = Vec::new();
        if plugin.kind == crate::PluginType::KrmFunction {
            let mut read = Collector::new(input.release.namespace);
            read.add_folder(
                input.archive,
                &task.folder,
                &[],
                &RawOptions {
                    allow_empty: true,
                    ..RawOptions::ALL
                },
            );
            match read.finish() {
                Manifests::Complete(objects) => own = objects.into_iter().map(|object| object.value).collect(),
                Manifests::Partial { errors, .. } => {
                    let first = errors.first().map(ToString::to_string).unwrap_or_default();
                    return Err(RenderError::Plugin {
                        folder,
                        name,
                        source: PluginError::Manifests(first),
                    });
                }
            }
        }

        let run = Run {
            plugin,
            watcher,
            work: &self.work,
            limits: self.limits,
            files,
            folder: &task.folder,
            parameters: input.parameters,
            manifests: &own,
        };
        run.run(collector)
            .await
            .map_err(|source| RenderError::Plugin { folder, name, source })
    }

    async fn patch(
        &self,
        input: &Input<'_>,
        objects: &[Manifest],
        warnings: &mut Vec<String>,
    ) -> Result<Output, RenderError> {
        let helper = self.helper(&"a patch")?;
        let texts: Vec<String> = objects.iter().map(|object| object.value.to_string()).collect();
        let names: Vec<String> = (0..objects.len()).map(|n| n.to_string()).collect();
        let files = names
            .iter()
            .zip(&texts)
            .map(|(path, text)| message::Part { path, size: text.len() });
        let request = message::Request {
            patch: Some(message::Patches { patches: input.patches }),
            files: files.collect(),
            ..message::Request::default()
        };
        let body: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let (done, bytes) = helper
            .call(request, &body, &Nobody)
            .await
            .map_err(RenderError::Patches)?;
        warnings.extend(done.warnings);
        let broken = |source| RenderError::Patches(helper.broken(source));
        let mut collector = Collector::new(input.release.namespace);
        for (source, bytes) in message::split(&done.objects, &bytes).map_err(broken)? {
            let value = serde_json::from_slice(bytes).map_err(|e| broken(message::MessageError::Header(e)))?;
            let before = source.parse().ok().and_then(|n: usize| objects.get(n));
            let unknown = Origin {
                file: input.path.clone(),
                line: 0,
                document: 0,
            };
            collector.add_rendered(before.map_or(&unknown, |object| &object.origin), value);
        }
        Ok(take(collector.finish(), Output::default()))
    }

    fn helper(&self, what: &&'static str) -> Result<&Helper, RenderError> {
        self.helper.as_ref().ok_or(RenderError::NoHelper { what })
    }
}

/// Warnings for duplicate keys in kustomizations: Kustomize silently uses the last one.
fn repeated_keys(files: &Files<'_>) -> Vec<String> {
    let kustomizations = files
        .iter()
        .filter(|(path, _)| KUSTOMIZATIONS.contains(&path.file_name()));
    let repeated = kustomizations.flat_map(|(path, file)| {
        let text = std::str::from_utf8(file.bytes).unwrap_or_default();
        let (_, repeated) = yaml::parse_last(text, &Budget::default()).unwrap_or_default();
        repeated.into_iter().filter_map(move |error| match error.reason {
            YamlReason::DuplicateKey { key, first } => {
                let line = error.line;
                Some(format!(
                    "{path}:{line}: key {key:?} is given twice, first on line {first}; the last one counts"
                ))
            }
            _ => None,
        })
    });
    repeated.collect()
}

/// Reads raw manifests only.
fn read(input: &Input<'_>, tasks: &[Task<'_>]) -> Output {
    let mut collector = Collector::new(input.release.namespace);
    for task in tasks {
        collector.add_folder(input.archive, &task.folder, &others(tasks, task), task.raw());
    }
    take(collector.finish(), Output::default())
}

fn take(manifests: Manifests, mut output: Output) -> Output {
    match manifests {
        Manifests::Complete(objects) => output.objects = objects,
        Manifests::Partial { objects, errors } => {
            output.objects = objects;
            output
                .errors
                .extend(errors.into_iter().map(|error| RenderError::Manifest(error.into())));
        }
    }
    output
}

/// Files whose names end in `.liquid`, with the targets of symlinks of such names.
fn templates(archive: &Archive) -> impl Iterator<Item = (&RelPath, &[u8])> {
    let is_template =
        |path: &RelPath| path.file_name().len() > TEMPLATE_SUFFIX.len() && path.as_str().ends_with(TEMPLATE_SUFFIX);
    let links = archive
        .links()
        .filter_map(|(path, _)| Some((path, archive.file(path).ok()?)));
    archive.files().chain(links).filter(move |(path, _)| is_template(path))
}

/// The place of a rendered object: a template of a chart, or the folder of a kustomization.
fn origin_of(task: &Task<'_>, source: &str, document: u32) -> Origin {
    let file = match task.kind {
        RendererType::Helm => template_path(&task.folder, source),
        _ => task.folder.clone(),
    };
    Origin {
        file,
        line: 0,
        document,
    }
}

/// The path of a chart's template. Helm names templates after the chart: `web/templates/a.yaml`.
fn template_path(folder: &RelPath, source: &str) -> RelPath {
    let within = source.split_once('/').map_or(source, |(_, rest)| rest);
    folder.join_clean(within).unwrap_or_else(|_| folder.clone())
}

fn keep(output: &Output) -> cache::Entry {
    let objects = output.objects.iter().map(|object| cache::Kept {
        file: object.origin.file.clone(),
        line: object.origin.line,
        document: object.origin.document,
        value: object.value.clone(),
    });
    cache::Entry {
        objects: objects.collect(),
        warnings: output.warnings.clone(),
    }
}

fn restore(entry: cache::Entry, namespace: &str) -> Output {
    let mut collector = Collector::new(namespace);
    for object in entry.objects {
        let origin = Origin {
            file: object.file,
            line: object.line,
            document: object.document,
        };
        collector.add_rendered(&origin, object.value);
    }
    let output = Output {
        warnings: entry.warnings,
        cached: true,
        ..Output::default()
    };
    take(collector.finish(), output)
}
