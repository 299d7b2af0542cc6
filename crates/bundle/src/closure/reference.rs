//! References of kustomizations and charts to other files.

use crate::yaml::{self, Budget, Node, YamlError};

/// File names that kustomize looks for, and Helm's.
pub(super) const BUILD_FILES: [&str; 5] = [
    "kustomization.yaml",
    "kustomization.yml",
    "Kustomization",
    "Chart.yaml",
    "requirements.yaml",
];

pub(super) fn is_build_file(name: &str) -> bool {
    BUILD_FILES.contains(&name)
}

/// A path in a file, relative to the file's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub line: u32,
    pub text: String,
    /// Whether the field accepts URLs too. Kustomize fetches those; they are not part of the closure.
    pub may_be_remote: bool,
    /// Whether it may name a folder of another repository.
    pub may_be_base: bool,
    /// Whether kustomize works without it.
    pub optional: bool,
}

impl Reference {
    fn local(line: u32, text: &str) -> Self {
        Self {
            line,
            text: text.to_owned(),
            may_be_remote: false,
            may_be_base: false,
            optional: false,
        }
    }

    fn remote(line: u32, text: &str) -> Self {
        Self {
            may_be_remote: true,
            ..Self::local(line, text)
        }
    }
}

/// Lists of files or folders, of this repository or others.
const WITH_BASES: [&str; 3] = ["resources", "bases", "components"];
/// Lists of files or inline YAML.
const FILES_OR_INLINE: [&str; 5] = [
    "patchesStrategicMerge",
    "generators",
    "transformers",
    "validators",
    "configurations",
];
/// Lists of objects with a field `path`.
const WITH_PATH: [&str; 3] = ["patches", "patchesJson6902", "replacements"];

/// A chart that a kustomization inflates, and where kustomize looks for it before pulling it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inflated {
    pub name: String,
    /// For `helm pull --repo`. Empty: none.
    pub repository: String,
    /// As written. Empty: the newest.
    pub version: String,
    /// Relative to the kustomization's folder.
    pub place: String,
}

/// All references of a file.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub references: Vec<Reference>,
    pub charts: Vec<Inflated>,
}

pub(super) fn read(file_name: &str, text: &str) -> Result<Named, YamlError> {
    let (documents, _) = yaml::parse_last(text, &Budget::default())?;
    let mut named = Named::default();
    for document in &documents {
        if file_name == "Chart.yaml" || file_name == "requirements.yaml" {
            chart(document, &mut named.references);
        } else {
            kustomization(document, &mut named.references);
            named.charts.extend(inflated(document));
        }
    }
    Ok(named)
}

fn inflated(document: &Node) -> impl Iterator<Item = Inflated> {
    let home = document
        .get("helmGlobals")
        .and_then(|globals| globals.get("chartHome"))
        .and_then(Node::as_str);
    let home = home.filter(|home| !home.is_empty()).unwrap_or("charts");
    let charts = document.get("helmCharts").map(Node::items).unwrap_or_default();
    charts.iter().filter_map(move |chart| {
        let text = |field: &str| chart.get(field).and_then(Node::as_str).unwrap_or_default().to_owned();
        let (name, repository, version) = (text("name"), text("repo"), text("version"));
        let below = match repository.is_empty() || version.is_empty() {
            true => name.clone(),
            false => format!("{name}-{version}/{name}"),
        };
        let place = format!("{home}/{below}");
        (!name.is_empty()).then_some(Inflated {
            name,
            repository,
            version,
            place,
        })
    })
}

fn chart(document: &Node, found: &mut Vec<Reference>) {
    for dependency in document.get("dependencies").map(Node::items).unwrap_or_default() {
        if let Some(node) = dependency.get("repository")
            && let Some(path) = node.as_str().and_then(|r| r.strip_prefix("file://"))
        {
            found.push(Reference::local(node.line, path));
        }
    }
}

fn kustomization(document: &Node, found: &mut Vec<Reference>) {
    let mut push = |node: &Node, may_be_base: bool| {
        if let Some(text) = node.as_str().filter(|t| !t.is_empty() && !t.contains('\n')) {
            found.push(Reference {
                may_be_base,
                ..Reference::remote(node.line, text)
            });
        }
    };
    let list = |field: &str| document.get(field).map(Node::items).unwrap_or_default();
    for field in WITH_BASES {
        list(field).iter().for_each(|node| push(node, true));
    }
    list("crds").iter().for_each(|node| push(node, false));
    for field in FILES_OR_INLINE {
        // Flow YAML on one line is inline too.
        list(field)
            .iter()
            .filter(|n| n.as_str().is_some_and(|t| !t.contains(": ")))
            .for_each(|node| push(node, false));
    }
    for field in WITH_PATH {
        list(field)
            .iter()
            .filter_map(|item| item.get("path"))
            .for_each(|node| push(node, false));
    }
    if let Some(node) = document.get("openapi").and_then(|o| o.get("path")) {
        push(node, false);
    }
    for generator in list("configMapGenerator").iter().chain(list("secretGenerator")) {
        generated_files(generator, found);
    }
    helm(document, found);
}

/// `files: [key=path, path]`, `envs: [path]`, and the older `env: path`.
fn generated_files(generator: &Node, found: &mut Vec<Reference>) {
    let items = |field: &str| generator.get(field).map(Node::items).unwrap_or_default();
    let files = items("files")
        .iter()
        .map(|node| (node, node.as_str().map(|t| t.split_once('=').map_or(t, |(_, p)| p))));
    let envs = items("envs")
        .iter()
        .chain(generator.get("env"))
        .map(|node| (node, node.as_str()));
    for (node, text) in files.chain(envs) {
        if let Some(text) = text {
            found.push(Reference::remote(node.line, text));
        }
    }
}

fn helm(document: &Node, found: &mut Vec<Reference>) {
    let mut push = |node: &Node, optional| {
        if let Some(text) = node.as_str().filter(|t| !t.is_empty()) {
            found.push(Reference {
                optional,
                ..Reference::remote(node.line, text)
            });
        }
    };
    for chart in document.get("helmCharts").map(Node::items).unwrap_or_default() {
        chart.get("valuesFile").into_iter().for_each(|node| push(node, false));
        chart
            .get("additionalValuesFiles")
            .map(Node::items)
            .unwrap_or_default()
            .iter()
            .for_each(|n| push(n, false));
    }
    // kustomize creates the folder and downloads charts into it if they don't exist.
    if let Some(node) = document.get("helmGlobals").and_then(|g| g.get("chartHome")) {
        push(node, true);
    }
    for chart in document
        .get("helmChartInflationGenerator")
        .map(Node::items)
        .unwrap_or_default()
    {
        chart.get("values").into_iter().for_each(|node| push(node, false));
        chart.get("chartHome").into_iter().for_each(|node| push(node, true));
    }
}

/// Whether kustomize would fetch this: a URL, `git@host:path`, `host.tld/org/repo` with a query, or a known host. Only
/// asked about paths that aren't in the repository, as in kustomize.
pub(super) fn looks_remote(text: &str) -> bool {
    const HOSTS: [&str; 5] = ["github.com/", "gitlab.com/", "bitbucket.org/", "git::", "gh:"];
    if text.starts_with("file://") || text.starts_with('/') || text.starts_with('.') {
        return false;
    }
    text.contains("://")
        || HOSTS.iter().any(|host| text.starts_with(host))
        || text.contains("?ref=")
        || text.contains("?version=")
        || text.contains("/_git/")
        || text
            .split_once(':')
            .is_some_and(|(user, _)| user.contains('@') && !user.contains('/'))
}
