//! Bundles from texts and folders, the engine, and the programs that it is compared with.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod charts;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output as Ran},
    sync::LazyLock,
    time::Duration,
};

use farwater_api::renderer::{Patch, Renderer};
use farwater_bundle::{
    Archive, Collector, Limits as BundleLimits, MemoryTree, Mode, RelPath, archive, closure,
    manifests::Origin,
    tree::Entry,
    yaml::{self, Budget},
};
use farwater_render::{
    Asker, Cache, CacheLimits, Capabilities, Engine, Helper, Input, Limits, Nobody, Output, Plugins, Program, Release,
};
use farwater_testkit::Tools;
use serde_json::{Map, Value};
use tempfile::TempDir;

pub static TOOLS: LazyLock<Tools> = LazyLock::new(|| Tools::find_renderers().unwrap());

pub fn renderer() -> String {
    TOOLS.renderer().to_string_lossy().into_owned()
}

pub fn path(text: &str) -> RelPath {
    RelPath::parse(text).unwrap()
}

pub type Files = BTreeMap<String, Vec<u8>>;

pub fn files<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Files {
    files
        .into_iter()
        .map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()))
        .collect()
}

/// The files below a folder.
pub fn read_folder(folder: &Path) -> Files {
    fn visit(folder: &Path, root: &Path, files: &mut Files) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, root, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut files = Files::new();
    visit(folder, folder, &mut files);
    files
}

pub fn write_folder(folder: &Path, files: &Files) {
    for (name, content) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// All of the files, as a source gives them to a service at its root.
pub fn bundle(files: &Files) -> Archive {
    try_bundle(files).unwrap()
}

/// Fails if a reference leads nowhere, as a source does before anything is rendered.
fn try_bundle(files: &Files) -> Result<Archive, Box<dyn std::error::Error>> {
    let mut tree = MemoryTree::default();
    let root = folder(&mut tree, files);
    let limits = BundleLimits::default();
    let needed = closure(&tree, &root, &RelPath::root(), &limits)?;
    Ok(Archive::read(archive::pack(&tree, &needed, &limits)?, &limits)?)
}

fn folder(tree: &mut MemoryTree, files: &Files) -> farwater_bundle::ObjectId {
    let mut folders: BTreeMap<&str, Files> = BTreeMap::new();
    let mut entries = Vec::new();
    for (path, content) in files {
        match path.split_once('/') {
            Some((name, rest)) => {
                folders
                    .entry(name)
                    .or_default()
                    .insert(rest.to_owned(), content.clone());
            }
            None => entries.push(Entry {
                name: path.as_bytes().to_vec(),
                mode: Mode::File,
                id: tree.add_blob(content),
            }),
        }
    }
    for (name, files) in folders {
        let id = folder(tree, &files);
        entries.push(Entry {
            name: name.as_bytes().to_vec(),
            mode: Mode::Tree,
            id,
        });
    }
    tree.add_tree(entries)
}

/// An engine with a folder of its own.
pub struct Bench {
    pub engine: Engine,
    pub folder: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(Program::new(vec![renderer()]), "")
    }

    /// `plugins`: the configuration of plugins.
    pub fn with(program: Program, plugins: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let limits = program.limits;
        let engine = Engine {
            helper: Some(Helper::new(program)),
            plugins: Plugins::parse(plugins).unwrap(),
            cache: Cache::new(None, CacheLimits::default()),
            work: folder.path().to_owned(),
            limits,
        };
        Self { engine, folder }
    }

    /// An engine with lower limits than usual, for input that would reach them.
    pub fn strict() -> Self {
        Self::with(strict(), "")
    }

    pub async fn render(&self, job: &Job) -> Output {
        self.render_asking(job, &Nobody).await
    }

    /// Renders files that a source may refuse already.
    pub async fn try_render(&self, job: &Job) -> Result<Output, String> {
        let archive = try_bundle(&job.files).map_err(|error| error.to_string())?;
        Ok(self.engine.render(&job.input(&archive), &Nobody).await)
    }

    pub async fn render_asking(&self, job: &Job, asker: &dyn Asker) -> Output {
        let archive = bundle(&job.files);
        self.engine.render(&job.input(&archive), asker).await
    }

    /// Why there are no objects, whether the source or the engine refuses.
    pub async fn refuse(&self, job: &Job) -> String {
        self.try_render(job)
            .await
            .map_or_else(|refused| refused, |output| errors(&output))
    }

    pub fn helper(&self) -> &Helper {
        self.engine.helper.as_ref().unwrap()
    }
}

pub fn strict() -> Program {
    let limits = Limits {
        time: Duration::from_secs(10),
        cpu: Duration::from_secs(10),
        memory: 512 << 20,
        output: 8 << 20,
        ..Limits::default()
    };
    Program {
        limits,
        ..Program::new(vec![renderer()])
    }
}

/// The input of a render: the files, and a service.
#[derive(Clone, Debug)]
pub struct Job {
    pub files: Files,
    pub path: RelPath,
    pub renderers: Vec<Renderer>,
    pub patches: Vec<Patch>,
    pub name: String,
    pub namespace: String,
    pub is_upgrade: bool,
    pub capabilities: Capabilities,
    pub parameters: Map<String, Value>,
    pub secret: bool,
}

impl Job {
    pub fn new(files: Files) -> Self {
        Self {
            files,
            path: RelPath::root(),
            renderers: Vec::new(),
            patches: Vec::new(),
            name: "rel".to_owned(),
            namespace: "default".to_owned(),
            is_upgrade: false,
            capabilities: Capabilities::default(),
            parameters: Map::new(),
            secret: false,
        }
    }

    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self::new(self::files(files))
    }

    pub fn at(mut self, folder: &str) -> Self {
        self.path = path(folder);
        self
    }

    pub fn renderers(mut self, stated: Value) -> Self {
        self.renderers = serde_json::from_value(stated).unwrap();
        self
    }

    pub fn patches(mut self, stated: Value) -> Self {
        self.patches = serde_json::from_value(stated).unwrap();
        self
    }

    pub fn parameters(mut self, stated: Value) -> Self {
        self.parameters = serde_json::from_value(stated).unwrap();
        self
    }

    pub fn input<'a>(&'a self, archive: &'a Archive) -> Input<'a> {
        Input {
            archive,
            path: &self.path,
            renderers: &self.renderers,
            patches: &self.patches,
            release: Release {
                name: &self.name,
                namespace: &self.namespace,
                is_upgrade: self.is_upgrade,
            },
            capabilities: &self.capabilities,
            parameters: &self.parameters,
            secret: self.secret,
            uncached: false,
        }
    }
}

/// The objects of a render without errors.
#[track_caller]
pub fn values(output: Output) -> Vec<Value> {
    let errors: Vec<String> = output.errors.iter().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    output.objects.into_iter().map(|object| object.value).collect()
}

/// The errors of a render, which must have at least one.
#[track_caller]
pub fn errors(output: &Output) -> String {
    let errors: Vec<String> = output.errors.iter().map(|error| chain(error)).collect();
    assert!(!errors.is_empty(), "{:#?}", output.objects);
    errors.join("\n")
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) if !error.to_string().contains(&source.to_string()) => format!("{error}: {}", chain(source)),
        _ => error.to_string(),
    }
}

/// Limits that allow all that a chart makes.
fn budget() -> Budget {
    Budget {
        nodes: 10_000_000,
        bytes: 64 << 20,
        depth: 100,
    }
}

/// The objects that a program printed, read by kubectl's rules.
#[track_caller]
pub fn objects(text: &[u8]) -> Vec<Value> {
    let mut collector = Collector::new("default");
    let origin = Origin {
        file: path("stdout.yaml"),
        line: 0,
        document: 0,
    };
    for document in yaml::parse(std::str::from_utf8(text).unwrap(), &budget()).unwrap() {
        if !document.is_null() {
            collector.add_rendered(&origin, document.into_json().unwrap());
        }
    }
    let manifests = collector.finish();
    assert!(
        manifests.is_complete(),
        "{:?}\n{}",
        manifests.errors(),
        String::from_utf8_lossy(text)
    );
    manifests
        .objects()
        .iter()
        .map(|manifest| manifest.value.clone())
        .collect()
}

/// A copy in a folder that every user may enter: if this process is root, plugins run as another user.
pub fn open_to_all(program: &Path) -> (TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .unwrap();
    let copy = folder.path().join(program.file_name().unwrap());
    fs::copy(program, &copy).unwrap();
    (folder, copy)
}

/// Runs one of the tools in an environment of its own.
pub fn run(program: &Path, folder: &Path, arguments: &[String]) -> Ran {
    let home = tempfile::tempdir().unwrap();
    Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap()
}

/// What `helm template` prints for a chart in a folder of files.
pub fn helm_template(files: &Files, chart: &str, arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), files);
    let mut all = vec![
        "template".to_owned(),
        "rel".to_owned(),
        format!("./{chart}"),
        "--include-crds".to_owned(),
    ];
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    run(&TOOLS.helm(), folder.path(), &all)
}

pub fn kustomize_build(files: &Files, folder: &str, arguments: &[&str]) -> Ran {
    let place = tempfile::tempdir().unwrap();
    write_folder(place.path(), files);
    let helm = TOOLS.helm().to_string_lossy().into_owned();
    let mut all = vec!["build".to_owned(), format!("./{folder}"), "--enable-helm".to_owned()];
    all.extend(["--helm-command".to_owned(), helm]);
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    run(&TOOLS.kustomize(), place.path(), &all)
}

/// Compares the objects in order, and shows where they differ.
#[track_caller]
pub fn assert_same(ours: &[Value], theirs: &[Value], what: &str) {
    let name = |value: &Value| format!("{} {}", value["kind"], value["metadata"]["name"]);
    let names = |values: &[Value]| values.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "{what}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        let pretty = |value| serde_json::to_string_pretty(value).unwrap();
        assert!(
            ours == theirs,
            "{what}: {} differs\nours {}\ntheirs {}",
            name(ours),
            pretty(ours),
            pretty(theirs)
        );
    }
}

/// A file of a chart or an overlay by other people.
pub fn others(folder: &str) -> PathBuf {
    TOOLS.others().join(folder)
}
