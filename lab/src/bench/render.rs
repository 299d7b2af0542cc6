//! Cost of a render, compared with the helm and kustomize commands on the same files.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use farwater_bundle::{Archive, Limits as BundleLimits, MemoryTree, RelPath, archive, closure};
use farwater_render::{
    Cache, CacheLimits, Capabilities, Engine, Helper, Input, Nobody, Output, Plugins, Program, Release,
};
use farwater_testkit::{Tools, temporary_folder};
use serde_json::Map;
use walkdir::WalkDir;

use super::{Figure, median, milliseconds, percentile, usage};

const CHART: &str = "external-dns/chart";
const OVERLAY: &str = "metrics-server/manifests";
/// Folder with the base of the overlays.
const BASE: &str = "base";
const SHARE: f64 = 10.0;
/// Maximum memory of a child in megabytes, with Go's runtime and all libraries. The limit of a request is 512 MiB.
const MOST_MEMORY: f64 = 200.0;
/// Maximum time of a cached render, as a share of a new render.
const CACHED_SHARE: f64 = 0.1;
/// Maximum time of a render beside an endless one, as a multiple of the same render alone.
const BESIDE_SHARE: f64 = 2.0;
/// Factor for the number of renders beside an endless one. Together they take about as long as its time limit.
const BESIDE_TIMES: usize = 10;
const SMALL: [(&str, &str); 2] = [
    ("Chart.yaml", "apiVersion: v2\nname: small\nversion: 1.0.0\n"),
    (
        "templates/a.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\n",
    ),
];
const ENDLESS: [(&str, &str); 2] = [
    SMALL[0],
    (
        "templates/a.yaml",
        "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}",
    ),
];

/// Files of one service, as a folder and as a bundle.
struct Work {
    name: &'static str,
    folder: tempfile::TempDir,
    archive: Archive,
    path: RelPath,
}

pub async fn measure(quick: bool) -> Result<Vec<Figure>> {
    let (renders, commands) = if quick { (200, 10) } else { (2000, 50) };
    let tools = Tools::find_renderers()?;
    let mut figures = Vec::new();
    let chart = Work::of("chart", &tools.others().join(CHART), "")?;
    let overlay = Work::of("overlay", &tools.others().join(OVERLAY), BASE)?;
    let folder = overlay.folder.path().join(BASE);
    let helm = commands_per_second(commands, || {
        let mut helm = Command::new(tools.helm());
        helm.args(["template", "web"]).arg(chart.folder.path());
        helm
    })?;
    let kustomize = commands_per_second(commands, || {
        let mut kustomize = Command::new(tools.kustomize());
        kustomize.arg("build").arg(&folder);
        kustomize
    })?;
    // The kustomize command is compared without a goal.
    for (work, peer, theirs, share) in [
        (&chart, "helm template", helm, Some(SHARE)),
        (&overlay, "kustomize build", kustomize, None),
    ] {
        let engine = engine(&tools, 0);
        let each = render(&engine, work, renders, |n| format!("web-{n}")).await?;
        let per_second = rounded(each.len() as f64 / each.iter().sum::<Duration>().as_secs_f64());
        let workload = format!(
            "{} of another project, {renders} renders one after the other",
            work.name
        );
        let figure = Figure::new("renders", &workload, per_second, "1/s");
        figures.push(match share {
            Some(share) => figure.beside(peer.to_owned(), rounded(theirs), share),
            None => figure.compared(peer, rounded(theirs)),
        });
        figures.push(memory(&engine, &workload)?);
        figures.push(cached(&tools, work, renders, &each).await?);
    }
    figures.push(beside_hostile(&tools, renders).await?);
    Ok(figures)
}

/// Runs each render in its own child, which was started before.
async fn beside_hostile(tools: &Tools, renders: usize) -> Result<Figure> {
    let (engine, renders) = (engine(tools, 0), BESIDE_TIMES * renders);
    let (small, endless) = (
        Work::made("small chart", &SMALL)?,
        Work::made("endless chart", &ENDLESS)?,
    );
    let (one, other) = tokio::join!(small.render(&engine, "one"), small.render(&engine, "other"));
    check(&one)?;
    check(&other)?;
    let mut quiet = render(&engine, &small, renders, |n| format!("quiet-{n}")).await?;
    let hostile = async {
        loop {
            let output = endless.render(&engine, "endless").await;
            if output.errors.is_empty() {
                break anyhow::anyhow!("the endless render has ended");
            }
        }
    };
    let mut beside = tokio::select! {
        failed = hostile => return Err(failed),
        each = render(&engine, &small, renders, |n| format!("beside-{n}")) => each?,
    };
    let workload = format!("{renders} renders of a small chart, beside one that never ends");
    let figure = Figure::new(
        "render_p99",
        &workload,
        milliseconds(percentile(&mut beside, 0.99)),
        "ms",
    );
    Ok(figure.at_most_of("alone", milliseconds(percentile(&mut quiet, 0.99)), BESIDE_SHARE))
}

/// Renders the same input again, from the cache in memory.
async fn cached(tools: &Tools, work: &Work, renders: usize, anew: &[Duration]) -> Result<Figure> {
    let engine = engine(tools, CacheLimits::default().memory);
    let mut each = render(&engine, work, renders + 1, |_| "web".to_owned()).await?;
    let mut again = each.split_off(1);
    let microseconds = |times: &mut [Duration]| rounded(percentile(times, 0.5).as_secs_f64() * 1e6);
    let figure = Figure::new(
        "cached render",
        &format!("{} of another project", work.name),
        microseconds(&mut again),
        "µs",
    );
    Ok(figure.at_most_of("rendered anew", microseconds(&mut anew.to_vec()), CACHED_SHARE))
}

fn memory(engine: &Engine, workload: &str) -> Result<Figure> {
    let idle = engine.helper.as_ref().context("the engine has no helper")?.idle();
    let child = *idle.first().context("the helper has no idle child")?;
    let peak = usage::megabytes(usage::memory(child)?.peak);
    Ok(Figure::new("peak memory of the child", workload, peak, "MB").at_most(MOST_MEMORY))
}

/// Duration of each render.
async fn render(engine: &Engine, work: &Work, count: usize, name: impl Fn(usize) -> String) -> Result<Vec<Duration>> {
    let mut each = Vec::with_capacity(count);
    // The start of a child is not part of a render's time.
    check(&work.render(engine, "first").await)?;
    for n in 0..count {
        let name = name(n);
        let begun = Instant::now();
        let output = work.render(engine, &name).await;
        each.push(begun.elapsed());
        check(&output)?;
    }
    Ok(each)
}

fn check(output: &Output) -> Result<()> {
    let errors: Vec<_> = output.errors.iter().map(ToString::to_string).collect();
    ensure!(errors.is_empty() && !output.objects.is_empty(), "{errors:?}");
    Ok(())
}

impl Work {
    fn of(name: &'static str, from: &Path, path: &str) -> Result<Self> {
        let folder = temporary_folder("farwater-bench-")?;
        let mut files = Vec::new();
        for entry in WalkDir::new(from).sort_by_file_name() {
            let entry = entry?;
            if entry.file_type().is_file() {
                let place = entry.path().strip_prefix(from)?;
                let to = folder.path().join(place);
                fs::create_dir_all(to.parent().context("a folder")?)?;
                fs::copy(entry.path(), &to)?;
                files.push((place.to_string_lossy().into_owned(), fs::read_to_string(entry.path())?));
            }
        }
        let files = files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        Self::packed(name, folder, files, path)
    }

    /// Files for which there is no other program to compare with.
    fn made(name: &'static str, files: &[(&str, &str)]) -> Result<Self> {
        Self::packed(name, temporary_folder("farwater-bench-")?, files.iter().copied(), "")
    }

    fn packed<'a>(
        name: &'static str,
        folder: tempfile::TempDir,
        files: impl Iterator<Item = (&'a str, &'a str)>,
        path: &str,
    ) -> Result<Self> {
        let mut tree = MemoryTree::default();
        let root = tree.add_files(files);
        let (limits, path) = (BundleLimits::default(), RelPath::parse_folder(path)?);
        let needed = closure(&tree, &root, &path, &limits)?;
        let archive = Archive::read(archive::pack(&tree, &needed, &limits)?, &limits)?;
        Ok(Self {
            name,
            folder,
            archive,
            path,
        })
    }

    async fn render(&self, engine: &Engine, name: &str) -> Output {
        let input = Input {
            archive: &self.archive,
            path: &self.path,
            renderers: &[],
            patches: &[],
            release: Release {
                name,
                namespace: "web",
                is_upgrade: false,
            },
            capabilities: &Capabilities {
                kube_version: "v1.33.0".to_owned(),
                ..Capabilities::default()
            },
            parameters: &Map::new(),
            secret: false,
            uncached: false,
        };
        engine.render(&input, &Nobody).await
    }
}

fn program(tools: &Tools) -> Program {
    Program::new(vec![tools.renderer().to_string_lossy().into_owned()])
}

fn engine(tools: &Tools, memory: usize) -> Engine {
    let program = program(tools);
    let limits = program.limits;
    Engine {
        helper: Some(Helper::new(program)),
        plugins: Plugins::default(),
        cache: Cache::new(None, CacheLimits { memory, disk: 0 }),
        work: std::env::temp_dir(),
        limits,
    }
}

/// Commands per second, from the median of their times.
fn commands_per_second(count: usize, command: impl Fn() -> Command) -> Result<f64> {
    let mut each = Vec::with_capacity(count);
    for _ in 0..count {
        let mut command = command();
        let begun = Instant::now();
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("start a command to compare with")?;
        each.push(begun.elapsed().as_secs_f64());
        ensure!(status.success(), "{command:?} failed");
    }
    Ok(1.0 / median(each))
}

fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
