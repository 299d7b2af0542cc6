//! `farwater render`: renders a folder or a service with the same code as the agent. It asks no cluster, and the hub
//! only for what it knows.

mod parameters;
mod stated;

use std::{
    fs,
    path::{Path, PathBuf},
};

use farwater_api::ServiceDeployment;
use farwater_bundle::Manifest;
use farwater_render::{
    Cache, CacheLimits, Capabilities, Engine, Helper, Input, Limits, Nobody, Output, Plugins, Program, Release,
};
use kube::ResourceExt as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use self::{
    parameters::{Known, gather},
    stated::Stated,
};
use crate::{
    connection::ConnectArgs,
    exit,
    failure::{Failure, Result, chain},
    format,
    program::Program as OwnProgram,
    terminal::{print, say},
    text,
};

/// The renderer's program, which is next to this one in the image and in the archive.
const RENDERER: &str = "farwater-render";

#[derive(Debug, clap::Args)]
pub struct RenderArgs {
    /// A local folder, or a service of the hub: NAME or NAMESPACE/NAME.
    #[arg(value_name = "PATH|SERVICE")]
    what: PathBuf,
    /// The cluster to render for, NAME or NAMESPACE/NAME: gives the Kubernetes version and the parameters of the
    /// cluster [default: the service's; none for a folder].
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// For a folder: a file with a ServiceDeployment whose renderers, patches, configuration, name and target namespace
    /// are used.
    #[arg(long, value_name = "FILE")]
    service: Option<PathBuf>,
    /// YAML file with parameters: `configuration`, `cluster`, `contexts`, `service`. It overrides those of the service
    /// and of the hub.
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Name of the service and of the chart's release [default: the service's, or the folder's].
    #[arg(long)]
    name: Option<String>,
    /// Namespace for objects without one.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Kubernetes version for charts [default: the cluster's, or the newest that Helm knows].
    #[arg(long, value_name = "VERSION")]
    kube_version: Option<String>,
    /// API versions for charts, in addition to Helm's defaults.
    #[arg(long, short, value_name = "VERSION", value_delimiter = ',')]
    api_versions: Vec<String>,
    /// Renders an upgrade instead of an installation (`.Release.IsUpgrade`).
    #[arg(long)]
    is_upgrade: bool,
    /// The agent's configuration file of plugins.
    #[arg(long, value_name = "FILE")]
    plugins: Option<PathBuf>,
    /// The renderer program and its arguments [default: farwater-render beside this program, or on the PATH].
    #[arg(long, value_name = "COMMAND", env = "FARWATER_RENDERER")]
    renderer: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Documents, each after a comment that says where it comes from.
    #[default]
    Yaml,
    /// A List.
    Json,
    /// One `kind.group/name` per line.
    Name,
}

pub async fn run(args: RenderArgs, connect: &ConnectArgs, program: OwnProgram) -> Result<u8> {
    let given: Map<String, Value> = args
        .parameters
        .as_deref()
        .map(read_yaml)
        .transpose()?
        .unwrap_or_default();
    let Stated {
        mut service,
        is_stated,
        files,
        cluster,
        answer,
    } = stated::find(&args, connect, program).await?;

    override_names(&args, &mut service);
    let known = Known {
        service: &service,
        is_stated,
        cluster: cluster.as_ref(),
        answer: answer.as_ref(),
    };
    let (parameters, stand_ins) = gather(given, &known);
    note_stand_ins(&stand_ins);

    let (name, spec) = (service.name_any(), &service.spec);
    let version = cluster.and_then(|cluster| cluster.status?.kubernetes_version);
    let capabilities = Capabilities {
        kube_version: args.kube_version.clone().or(version).unwrap_or_default(),
        api_versions: args.api_versions.clone(),
        complete: false,
    };
    let work = make_folder()?;
    let engine = engine(&args, work.path())?;
    let input = Input {
        archive: &files.archive,
        path: &files.path,
        renderers: &spec.renderers,
        patches: &spec.patches,
        release: Release {
            name: &name,
            namespace: &spec.target_namespace,
            is_upgrade: args.is_upgrade,
        },
        capabilities: &capabilities,
        parameters: &parameters,
        secret: true,
        uncached: false,
    };

    let output = engine.render(&input, &Nobody).await;
    report(&args, &output)
}

/// Sets the service's name and target namespace as the command line states them.
fn override_names(args: &RenderArgs, service: &mut ServiceDeployment) {
    if let Some(name) = &args.name {
        service.metadata.name = Some(name.clone());
    }
    if let Some(namespace) = &args.namespace {
        service.spec.target_namespace.clone_from(namespace);
    } else if service.spec.target_namespace.is_empty() {
        "default".clone_into(&mut service.spec.target_namespace);
    }
}

/// Names the values that have a stand-in, so that they are not taken for real ones.
fn note_stand_ins(stand_ins: &[String]) {
    if stand_ins.is_empty() {
        return;
    }
    let names = text::plain(&stand_ins.join(", ")).into_owned();
    say(&format!(
        "stand-ins are shown for {names}; --parameters gives the values"
    ));
}

/// A folder for the renderers' files, which is deleted when the value is dropped.
fn make_folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir()
        .map_err(|error| Failure::new(exit::INTERNAL, "can't make a folder to work in").evidence(error.to_string()))
}

/// Prints the objects, or fails with the errors. Warnings are shown in both cases.
fn report(args: &RenderArgs, output: &Output) -> Result<u8> {
    for warning in &output.warnings {
        say(&format!("warning: {}", text::plain(warning)));
    }
    if !output.errors.is_empty() {
        return Err(failed(&args.what, output));
    }
    print(&show(&output.objects, args.output)?)?;
    Ok(exit::YES)
}

fn read_yaml<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
    serde_saphyr::from_str(&text)
        .map_err(|error| Failure::usage(format!("can't read {}", file.display())).evidence(error.to_string()))
}

fn engine(args: &RenderArgs, work: &Path) -> Result<Engine> {
    let plugins = match &args.plugins {
        Some(file) => {
            let text = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
            let unusable = |error| Failure::usage(format!("can't read {}", file.display())).evidence(chain(&error));
            Plugins::parse(&text).map_err(unusable)?
        }
        None => Plugins::default(),
    };
    let command = args
        .renderer
        .as_ref()
        .map(|command| command.split_whitespace().map(str::to_owned).collect());
    let command: Option<Vec<String>> = command.or_else(|| find(RENDERER).map(|path| vec![path]));
    let program = |command| Program {
        work: Some(work.to_owned()),
        ..Program::new(command)
    };
    Ok(Engine {
        helper: command.map(|command| Helper::new(program(command))),
        plugins,
        cache: Cache::new(None, CacheLimits { memory: 0, disk: 0 }),
        work: work.to_owned(),
        limits: Limits::default(),
    })
}

/// The path of a program: next to this one, else on the PATH. None: it is in neither place.
fn find(name: &str) -> Option<String> {
    let own = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let beside = own.and_then(|path| path.parent().map(|folder| folder.join(name)));
    let found = beside
        .filter(|path| path.is_file())
        .or_else(|| which::which(name).ok())?;
    Some(found.to_string_lossy().into_owned())
}

fn failed(path: &Path, output: &Output) -> Failure {
    let (last, others) = output
        .errors
        .split_last()
        .map_or((None, &[][..]), |(last, others)| (Some(last), others));
    for error in others {
        say(&text::plain(&chain(error)));
    }
    let failure = Failure::new(exit::NO, format!("can't render {}", path.display()));
    match last {
        Some(error) => failure.evidence(chain(error)),
        None => failure,
    }
}

fn show(objects: &[Manifest], form: Form) -> Result<String> {
    match form {
        Form::Yaml => {
            let documents = objects.iter().map(|object| {
                let yaml = format::yaml(&object.value)?;
                Ok(format!(
                    "---\n# Source: {}\n{yaml}",
                    text::plain(&object.origin.to_string())
                ))
            });
            documents.collect::<Result<String>>()
        }
        Form::Json => {
            let items: Vec<&Value> = objects.iter().map(|object| &object.value).collect();
            format::json(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
        }
        Form::Name => {
            let line = |object: &Manifest| {
                let stated = &object.object;
                let group = if stated.group.is_empty() {
                    String::new()
                } else {
                    format!(".{}", stated.group)
                };
                text::plain(&format!("{}{group}/{}", stated.kind.to_lowercase(), stated.name)).into_owned() + "\n"
            };
            Ok(objects.iter().map(line).collect())
        }
    }
}
