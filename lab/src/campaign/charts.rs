//! Charts that others wrote, rendered as `helm template` renders them: each object the same, line by line.
//!
//! The charts come from their projects' Go modules. Values switch off certificates and passwords that a chart makes up.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_api::renderer::Renderer;
use farwater_bundle::{
    Archive, Collector, Limits, MemoryTree, RelPath, archive, closure,
    manifests::Origin,
    yaml::{self, Budget},
};
use farwater_render::{Cache, CacheLimits, Capabilities, Engine, Helper, Input, Nobody, Plugins, Program, Release};
use farwater_testkit::{Tools, temporary_folder};
use serde_json::{Map, Value, json};
use walkdir::WalkDir;

use super::Round;

/// A module, and a chart's folder in it.
const CHARTS: [(&str, &str); 8] = [
    ("sigs.k8s.io/descheduler@v0.36.0", "charts/descheduler"),
    ("github.com/kyverno/kyverno@v1.19.1", "charts/kyverno"),
    ("github.com/kyverno/kyverno@v1.19.1", "charts/kyverno-policies"),
    (
        "github.com/open-policy-agent/gatekeeper/v3@v3.23.1",
        "charts/gatekeeper",
    ),
    (
        "github.com/open-policy-agent/gatekeeper/v3@v3.23.1",
        "manifest_staging/charts/gatekeeper",
    ),
    (
        "github.com/external-secrets/external-secrets@v1.3.2",
        "deploy/charts/external-secrets",
    ),
    ("github.com/dapr/dapr@v1.14.0", "charts/dapr"),
    ("github.com/cilium/cilium@v1.20.2", "install/kubernetes/cilium"),
];
/// Beside a chart's own values and those of its `ci` folder.
const FURTHER: [(&str, &str); 6] = [
    ("install/kubernetes/cilium", "{hubble: {enabled: false}}"),
    (
        "install/kubernetes/cilium",
        "{hubble: {enabled: false}, kubeProxyReplacement: true, ingressController: {enabled: true}}",
    ),
    (
        "charts/kyverno",
        "{admissionController: {replicas: 3}, grafana: {enabled: true}}",
    ),
    ("charts/dapr", "{global: {ha: {enabled: true}}}"),
    (
        "charts/descheduler",
        "{kind: Deployment, replicas: 2, leaderElection: {enabled: true}}",
    ),
    ("charts/gatekeeper", "{replicas: 1, enableExternalData: false}"),
];
/// Charts that make something up unless their values forbid it.
const MAKES_UP: [&str; 1] = ["install/kubernetes/cilium"];
/// A chart with one set of values.
struct Case<'a> {
    chart: &'a Path,
    values: &'a str,
}

/// Counts renders.
pub async fn round(seed: u64) -> Result<Round> {
    let tools = Tools::find_renderers()?;
    let engine = engine(&tools);
    let (mut count, mut failures, mut figures) = (0, Vec::new(), Vec::new());
    for (module, folder) in CHARTS {
        let chart = take(&download(module)?.join(folder))?;
        let chart = chart.path();
        let (mut same, mut neither) = (0, 0);
        for (name, values) in values_of(chart, folder)? {
            let what = format!("{module} {folder} with {name}");
            let case = Case { chart, values: &values };
            count += 1;
            match (case.ours(&engine).await, case.helms(&tools)?) {
                (Ok(ours), Ok(theirs)) => match first_difference(&ours, &theirs) {
                    None => same += 1,
                    Some(difference) => failures.push(format!("{what}: {difference}")),
                },
                (Err(_), Err(_)) => neither += 1,
                (Err(error), Ok(_)) => failures.push(format!("{what}: helm renders it, and we do not: {error:#}")),
                (Ok(_), Err(error)) => failures.push(format!("{what}: we render it, and helm does not: {error:#}")),
            }
        }
        eprintln!("{folder} of {module}: {same} the same, {neither} rendered by neither");
        figures.push(json!({"module": module, "chart": folder, "same": same, "neither": neither}));
    }
    Ok(Round {
        count,
        failures,
        figures: json!({"seed": seed, "charts": figures}),
    })
}

/// Where the sources of a module are.
fn download(module: &str) -> Result<std::path::PathBuf> {
    let place = temporary_folder("farwater-charts-")?;
    let mut go = Command::new("go");
    go.current_dir(place.path())
        .env("GOWORK", "off")
        .args(["mod", "download", "-json", module]);
    let output = go.output().context("start go")?;
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match told["Dir"].as_str() {
        Some(folder) => Ok(folder.into()),
        None => bail!("{module} can't be had: {}", told["Error"]),
    }
}

/// A copy of a chart, without the dependencies that only a registry has.
fn take(chart: &Path) -> Result<tempfile::TempDir> {
    let copy = temporary_folder("farwater-charts-")?;
    for entry in WalkDir::new(chart) {
        let entry = entry?;
        let to = copy.path().join(entry.path().strip_prefix(chart)?);
        if entry.file_type().is_dir() {
            fs::create_dir_all(&to)?;
        } else if entry.file_type().is_file() {
            fs::write(&to, fs::read(entry.path())?)?;
        }
    }
    let about = copy.path().join("Chart.yaml");
    let mut stated: Value = serde_saphyr::from_str(&fs::read_to_string(&about)?)?;
    if let Some(dependencies) = stated["dependencies"].as_array_mut() {
        dependencies.retain(|one| {
            one["name"]
                .as_str()
                .is_some_and(|name| copy.path().join("charts").join(name).is_dir())
        });
        fs::write(&about, stated.to_string())?;
    }
    Ok(copy)
}

/// Names and texts.
fn values_of(chart: &Path, folder: &str) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    if !MAKES_UP.contains(&folder) {
        all.push(("its own values".to_owned(), "{}".to_owned()));
    }
    if let Ok(entries) = fs::read_dir(chart.join("ci")) {
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "yaml") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                all.push((name, fs::read_to_string(&path)?));
            }
        }
    }
    let further = FURTHER.iter().filter(|(of, _)| *of == folder);
    all.extend(further.map(|(_, values)| ((*values).to_owned(), (*values).to_owned())));
    all.sort();
    Ok(all)
}

impl Case<'_> {
    async fn ours(&self, engine: &Engine) -> Result<Vec<Value>> {
        let limits = Limits::default();
        let mut files = Vec::new();
        for entry in WalkDir::new(self.chart).sort_by_file_name() {
            let entry = entry?;
            if entry.file_type().is_file() {
                let path = format!("chart/{}", entry.path().strip_prefix(self.chart)?.display());
                files.push((path, fs::read_to_string(entry.path())?));
            }
        }
        files.push(("values.yaml".to_owned(), self.values.to_owned()));
        let mut tree = MemoryTree::default();
        let root = tree.add_files(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        let path = RelPath::parse_folder("chart")?;
        let needed = closure(&tree, &root, &RelPath::root(), &limits)?;
        let archive = Archive::read(archive::pack(&tree, &needed, &limits)?, &limits)?;
        let renderers: Vec<Renderer> =
            serde_json::from_value(json!([{"helm": {"releaseName": "rel", "valuesFiles": ["/values.yaml"]}}]))?;
        let input = Input {
            archive: &archive,
            path: &path,
            renderers: &renderers,
            patches: &[],
            release: Release {
                name: "rel",
                namespace: "default",
                is_upgrade: false,
            },
            capabilities: &Capabilities {
                kube_version: "v1.36.0".to_owned(),
                ..Capabilities::default()
            },
            parameters: &Map::new(),
            secret: false,
            uncached: true,
        };
        let output = engine.render(&input, &Nobody).await;
        let errors: Vec<String> = output.errors.iter().map(ToString::to_string).collect();
        ensure!(errors.is_empty(), "{}", errors.join("; "));
        Ok(output.objects.into_iter().map(|manifest| manifest.value).collect())
    }

    /// The outer error: helm could not be asked.
    fn helms(&self, tools: &Tools) -> Result<Result<Vec<Value>>> {
        let home = temporary_folder("farwater-charts-")?;
        let values = home.path().join("values.yaml");
        fs::write(&values, self.values)?;
        let mut helm = Command::new(tools.helm());
        helm.args(["template", "rel"])
            .arg(self.chart)
            .args(["--include-crds", "--kube-version", "v1.36.0", "-f"]);
        let output = helm
            .arg(&values)
            .env_clear()
            .env("HOME", home.path())
            .output()
            .context("start helm")?;
        if !output.status.success() {
            return Ok(Err(anyhow::anyhow!(
                "{}",
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        Ok(read(std::str::from_utf8(&output.stdout)?))
    }
}

/// The objects of what helm printed.
fn read(text: &str) -> Result<Vec<Value>> {
    let mut collector = Collector::new("default");
    let origin = Origin {
        file: RelPath::parse("stdout.yaml")?,
        line: 0,
        document: 0,
    };
    for document in yaml::parse(
        text,
        &Budget {
            nodes: 10_000_000,
            bytes: 64 << 20,
            depth: 100,
        },
    )? {
        if !document.is_null() {
            collector.add_rendered(&origin, document.into_json()?);
        }
    }
    let manifests = collector.finish();
    ensure!(manifests.is_complete(), "{:?}", manifests.errors());
    Ok(manifests
        .objects()
        .iter()
        .map(|manifest| manifest.value.clone())
        .collect())
}

/// The object and the first line in which it differs.
fn first_difference(ours: &[Value], theirs: &[Value]) -> Option<String> {
    let named = |values: &[Value]| -> BTreeMap<String, Value> {
        let name = |value: &Value| {
            format!(
                "{} {}/{}",
                value["kind"], value["metadata"]["namespace"], value["metadata"]["name"]
            )
            .replace('"', "")
        };
        values.iter().map(|value| (name(value), value.clone())).collect()
    };
    let (ours, theirs) = (named(ours), named(theirs));
    if let Some(name) = theirs.keys().find(|name| !ours.contains_key(*name)) {
        return Some(format!("{name} is missing"));
    }
    if let Some(name) = ours.keys().find(|name| !theirs.contains_key(*name)) {
        return Some(format!("{name} is not helm's"));
    }
    ours.iter().find_map(|(name, ours)| {
        let theirs = &theirs[name];
        if ours == theirs {
            return None;
        }
        let lines = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
        let (ours, theirs) = (lines(ours), lines(theirs));
        let line = ours
            .lines()
            .zip(theirs.lines())
            .enumerate()
            .find(|(_, (ours, theirs))| ours != theirs);
        let (number, (ours, theirs)) = line.unwrap_or((0, ("", "")));
        Some(format!(
            "{name}, line {}: {:?}, and helm has {:?}",
            number + 1,
            ours.trim(),
            theirs.trim()
        ))
    })
}

fn engine(tools: &Tools) -> Engine {
    let program = Program::new(vec![tools.renderer().to_string_lossy().into_owned()]);
    let limits = program.limits;
    Engine {
        helper: Some(Helper::new(program)),
        plugins: Plugins::default(),
        cache: Cache::new(None, CacheLimits { memory: 0, disk: 0 }),
        work: std::env::temp_dir(),
        limits,
    }
}
