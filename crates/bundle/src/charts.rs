//! A chart's metadata, and the dependencies that it lacks.
//!
//! Helm looks for dependencies by name in `charts/`, where `helm dependency build` puts them, but usually they are not
//! committed. They are found here, so that the files of a service can be completed and rendering needs no network.

use crate::{
    limits::Limits,
    overlay::Overlay,
    path::RelPath,
    tree::{Mode, ObjectId, Tree as _, TreeError},
    yaml::{self, Budget, Node, NodeValue, Scalar, YamlError},
};

/// Most dependencies of one chart; the largest umbrella charts have some dozens.
pub const MAX_DEPENDENCIES: usize = 128;
const CHART: &str = "Chart.yaml";
const REQUIREMENTS: &str = "requirements.yaml";
/// Lock files of Helm 3 and of Helm 2.
const LOCKS: [&str; 2] = ["Chart.lock", "requirements.lock"];
const CHARTS: &str = "charts";

/// Name and version of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chart {
    pub name: String,
    pub version: String,
}

/// A dependency that is not among a chart's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub name: String,
    /// A version or a range. If there is a lock, the locked version.
    pub version: String,
    /// Whether `version` is from the lock.
    pub locked: bool,
    /// The range stated beside a lock; the locked version must be in it.
    pub range: String,
    /// `https://…`, `oci://…`, `file://…`, or a repository's name as `@name` or `alias:name`.
    pub repository: String,
}

/// A chart that can't be completed. Reads "charts/web/Chart.yaml:7: …".
#[derive(Debug, thiserror::Error)]
#[error("{file}{}: {reason}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct ChartError {
    pub file: String,
    pub line: Option<u32>,
    pub reason: ChartReason,
}

#[derive(Debug, thiserror::Error)]
pub enum ChartReason {
    #[error("the chart has no Chart.yaml")]
    NoChart,
    #[error("is not UTF-8 text")]
    NotText,
    #[error("{0}")]
    Yaml(YamlError),
    #[error("{field} is missing, or no text; write it in quotes")]
    Field { field: &'static str },
    #[error("over {MAX_DEPENDENCIES} dependencies")]
    TooMany,
    #[error("dependency {name} names no repository and is not in charts/; add it there, or say where it is")]
    NoRepository { name: String },
    #[error("has no entry for dependency {name} of {repository}; run `helm dependency update` and commit it")]
    LockStale { name: String, repository: String },
    #[error("{0}")]
    Tree(#[source] TreeError),
}

/// Name and version of the chart in a folder.
pub fn read_chart(tree: &Overlay, root: &ObjectId, folder: &RelPath, limits: &Limits) -> Result<Chart, ChartError> {
    let file = Reader {
        tree,
        root,
        folder,
        limits,
    };
    let document = file
        .read(CHART)?
        .ok_or_else(|| file.fail(CHART, None, ChartReason::NoChart))?;
    let text = |field: &'static str| {
        let node = document.get(field);
        let line = node.map(|node| node.line);
        node.and_then(text_of)
            .ok_or_else(|| file.fail(CHART, line, ChartReason::Field { field }))
    };
    Ok(Chart {
        name: text("name")?,
        version: text("version")?,
    })
}

/// The dependencies of the chart in a folder that it does not contain, in the stated order.
pub fn missing_dependencies(
    tree: &Overlay,
    root: &ObjectId,
    folder: &RelPath,
    limits: &Limits,
) -> Result<Vec<Missing>, ChartError> {
    let file = Reader {
        tree,
        root,
        folder,
        limits,
    };
    // As in Helm, the older file replaces the dependencies in the newer one.
    let (name, document) = match file.read(REQUIREMENTS)? {
        Some(document) => (REQUIREMENTS, document),
        None => match file.read(CHART)? {
            Some(document) => (CHART, document),
            None => return Ok(Vec::new()),
        },
    };

    let stated = document.get("dependencies").map(Node::items).unwrap_or_default();
    if stated.is_empty() {
        return Ok(Vec::new());
    }
    if stated.len() > MAX_DEPENDENCIES {
        return Err(file.fail(name, None, ChartReason::TooMany));
    }

    let held = held_charts(&file)?;
    let lock = read_lock(&file)?;
    let mut missing = Vec::new();
    for node in stated {
        let dependency = Stated::read(&file, name, node)?;
        if held.iter().any(|held| held.is(&dependency.name)) {
            continue;
        }
        if dependency.repository.is_empty() {
            let reason = ChartReason::NoRepository { name: dependency.name };
            return Err(file.fail(name, Some(node.line), reason));
        }
        let next = dependency.lock(&file, lock.as_ref())?;
        // A dependency under two aliases is needed once.
        if !missing.contains(&next) {
            missing.push(next);
        }
    }
    Ok(missing)
}

/// Place of a dependency: `charts/NAME` of its chart.
pub fn place_of(folder: &RelPath, directory: &str) -> Option<RelPath> {
    folder
        .join_name(CHARTS.as_bytes())
        .ok()?
        .join_name(directory.as_bytes())
        .ok()
}

struct Stated {
    name: String,
    version: String,
    repository: String,
}

impl Stated {
    fn read(file: &Reader<'_>, name: &'static str, node: &Node) -> Result<Self, ChartError> {
        let field = |field: &'static str| match node.get(field) {
            None => Ok(None),
            Some(found) if found.is_null() => Ok(None),
            Some(found) => match text_of(found) {
                Some(text) => Ok(Some(text)),
                None => Err(file.fail(name, Some(found.line), ChartReason::Field { field })),
            },
        };
        let called = field("name")?.filter(|text| !text.is_empty());
        let missing = || file.fail(name, Some(node.line), ChartReason::Field { field: "name" });
        Ok(Self {
            name: called.ok_or_else(missing)?,
            version: field("version")?
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "*".to_owned()),
            repository: field("repository")?.unwrap_or_default(),
        })
    }

    /// The dependency at the version of the lock file, if that decides.
    fn lock(self, file: &Reader<'_>, lock: Option<&Lock>) -> Result<Missing, ChartError> {
        let Self {
            name,
            version: range,
            repository,
        } = self;
        let locked = match lock {
            // For dependencies in the same repository, the files themselves are the lock.
            Some(lock) if !repository.starts_with("file://") => Some(lock.version(file, &name, &repository)?),
            _ => None,
        };
        Ok(Missing {
            version: locked.clone().unwrap_or_else(|| range.clone()),
            locked: locked.is_some(),
            range,
            repository,
            name,
        })
    }
}

/// A chart in `charts/`.
enum Held {
    /// Its stated name.
    Folder(String),
    /// `NAME-VERSION.tgz`, not opened.
    Archive(String),
}

impl Held {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Folder(held) => held == name,
            Self::Archive(file) => {
                let rest = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
                let version = rest.map(|rest| rest.strip_prefix('v').unwrap_or(rest));
                version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
            }
        }
    }
}

fn held_charts(file: &Reader<'_>) -> Result<Vec<Held>, ChartError> {
    let Ok(folder) = file.folder.join_name(CHARTS.as_bytes()) else {
        return Ok(Vec::new());
    };
    let fail = |error| file.fail(CHARTS, None, ChartReason::Tree(error));
    let Some(id) = file.tree.folder(file.root, &folder).map_err(fail)? else {
        return Ok(Vec::new());
    };
    let mut held = Vec::new();
    for entry in file.tree.entries(&id).map_err(fail)? {
        let Ok(name) = String::from_utf8(entry.name) else {
            continue;
        };
        // Helm ignores these.
        if name.starts_with(['_', '.']) {
            continue;
        }
        if entry.mode == Mode::Tree
            && let Ok(inside) = folder.join_name(name.as_bytes())
        {
            match read_chart(file.tree, file.root, &inside, file.limits) {
                Ok(chart) => held.push(Held::Folder(chart.name)),
                Err(
                    error @ ChartError {
                        reason: ChartReason::Tree(_),
                        ..
                    },
                ) => return Err(error),
                // An unreadable folder is no chart; the renderer reports it.
                Err(_) => {}
            }
        } else if let Some(stem) = name.strip_suffix(".tgz") {
            held.push(Held::Archive(stem.to_owned()));
        }
    }
    Ok(held)
}

struct Lock {
    file: &'static str,
    /// Name, repository, version.
    entries: Vec<(String, String, String)>,
}

impl Lock {
    fn version(&self, file: &Reader<'_>, name: &str, repository: &str) -> Result<String, ChartError> {
        let found = self
            .entries
            .iter()
            .find(|(known, from, _)| known == name && from == repository);
        found.map(|(_, _, version)| version.clone()).ok_or_else(|| {
            let (name, repository) = (name.to_owned(), repository.to_owned());
            file.fail(self.file, None, ChartReason::LockStale { name, repository })
        })
    }
}

fn read_lock(file: &Reader<'_>) -> Result<Option<Lock>, ChartError> {
    for name in LOCKS {
        let Some(document) = file.read(name)? else { continue };
        let mut entries = Vec::new();
        for node in document.get("dependencies").map(Node::items).unwrap_or_default() {
            let Stated {
                name,
                version,
                repository,
            } = Stated::read(file, name, node)?;
            entries.push((name, repository, version));
        }
        return Ok(Some(Lock { file: name, entries }));
    }
    Ok(None)
}

struct Reader<'a> {
    tree: &'a Overlay,
    root: &'a ObjectId,
    folder: &'a RelPath,
    limits: &'a Limits,
}

impl Reader<'_> {
    fn fail(&self, name: &str, line: Option<u32>, reason: ChartReason) -> ChartError {
        let file = if self.folder.is_root() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.folder)
        };
        ChartError { file, line, reason }
    }

    /// The first document of a file of the chart. None: the file does not exist.
    fn read(&self, name: &'static str) -> Result<Option<Node>, ChartError> {
        let fail = |reason| self.fail(name, None, reason);
        let Ok(path) = self.folder.join_name(name.as_bytes()) else {
            return Ok(None);
        };
        let entry = self
            .tree
            .entry(self.root, &path)
            .map_err(|error| fail(ChartReason::Tree(error)))?;
        let Some(entry) = entry.filter(|entry| matches!(entry.mode, Mode::File | Mode::Executable)) else {
            return Ok(None);
        };
        let bytes = self
            .tree
            .blob(&entry.id, self.limits.file_bytes)
            .map_err(|error| fail(ChartReason::Tree(error)))?;
        let text = String::from_utf8(bytes).map_err(|_| fail(ChartReason::NotText))?;
        // As in Helm, the last of duplicate keys counts.
        let (documents, _) = yaml::parse_last(&text, &Budget::default())
            .map_err(|error| self.fail(name, Some(error.line), ChartReason::Yaml(error)))?;
        Ok(documents.into_iter().next())
    }
}

/// Go refuses numbers here, and `1.10` read as a number would be another version.
fn text_of(node: &Node) -> Option<String> {
    match &node.value {
        NodeValue::Scalar(Scalar::String(text)) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::MemoryTree;

    fn find(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let mut memory = MemoryTree::default();
        let root = memory.add_files(files.iter().copied());
        let mut tree = Overlay::default();
        tree.add(memory);
        let folder = "web".parse().unwrap();
        let missing =
            missing_dependencies(&tree, &root, &folder, &Limits::default()).map_err(|error| error.to_string())?;
        Ok(missing
            .iter()
            .map(|one| format!("{} {} {}", one.name, one.version, one.repository))
            .collect())
    }

    const WEB: &str = "name: web\nversion: 1.0.0\ndependencies:\n- {name: redis, version: ^1, repository: 'https://charts.example.com'}\n";

    #[test]
    fn what_charts_holds_is_not_missing() {
        let missing = Ok(vec!["redis ^1 https://charts.example.com".to_owned()]);
        assert_eq!(find(&[("web/Chart.yaml", WEB)]), missing);
        assert_eq!(
            find(&[("web/Chart.yaml", WEB), ("web/charts/redis-1.2.3.tgz", "x")]),
            Ok(vec![])
        );
        assert_eq!(
            find(&[("web/Chart.yaml", WEB), ("web/charts/redis-v1.2.3.tgz", "x")]),
            Ok(vec![])
        );
        assert_eq!(
            find(&[("web/Chart.yaml", WEB), ("web/charts/redis-cluster-1.2.3.tgz", "x")]),
            missing
        );
        let redis = ("web/charts/any/Chart.yaml", "name: redis\nversion: 1.2.3\n");
        assert_eq!(find(&[("web/Chart.yaml", WEB), redis]), Ok(vec![]));
        let hidden = ("web/charts/_any/Chart.yaml", "name: redis\nversion: 1.2.3\n");
        assert_eq!(find(&[("web/Chart.yaml", WEB), hidden]), missing);
        let other = ("web/charts/redis/Chart.yaml", "name: valkey\nversion: 1.2.3\n");
        assert_eq!(find(&[("web/Chart.yaml", WEB), other]), missing);
        assert_eq!(find(&[("web/values.yaml", "a: b")]), Ok(vec![]));
    }

    #[test]
    fn a_lock_names_the_version_and_must_be_of_these_dependencies() {
        let lock = |repository: &str| {
            format!("dependencies:\n- {{name: redis, version: 1.4.2, repository: '{repository}'}}\n")
        };
        let fresh = lock("https://charts.example.com");
        let locked = Ok(vec!["redis 1.4.2 https://charts.example.com".to_owned()]);
        assert_eq!(find(&[("web/Chart.yaml", WEB), ("web/Chart.lock", &fresh)]), locked);
        let requirements = WEB.replace("name: web\nversion: 1.0.0\n", "");
        let old = [
            ("web/Chart.yaml", "name: web\nversion: 1.0.0\n"),
            ("web/requirements.yaml", &requirements),
            ("web/requirements.lock", &fresh),
        ];
        assert_eq!(find(&old), locked);
        let stale = lock("https://elsewhere.example.com");
        let error = find(&[("web/Chart.yaml", WEB), ("web/Chart.lock", &stale)]).unwrap_err();
        assert_eq!(
            error,
            "web/Chart.lock: has no entry for dependency redis of https://charts.example.com; run `helm dependency update` and commit it"
        );
        let local = WEB.replace("https://charts.example.com", "file://../redis");
        assert_eq!(
            find(&[("web/Chart.yaml", &local), ("web/Chart.lock", &fresh)]),
            Ok(vec!["redis ^1 file://../redis".to_owned()])
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let check = |chart: &str, expected: &str| {
            assert_eq!(find(&[("web/Chart.yaml", chart)]).unwrap_err(), expected, "{chart}")
        };
        check(
            "dependencies: [{name: a}]",
            "web/Chart.yaml:1: dependency a names no repository and is not in charts/; add it there, or say where it is",
        );
        check(
            "dependencies:\n- {version: '1'}",
            "web/Chart.yaml:2: name is missing, or no text; write it in quotes",
        );
        check(
            "dependencies:\n- {name: a, version: 1.10}",
            "web/Chart.yaml:2: version is missing, or no text; write it in quotes",
        );
        let many = format!("dependencies: [{}]", "{name: a},".repeat(MAX_DEPENDENCIES + 1));
        check(&many, "web/Chart.yaml: over 128 dependencies");
        assert!(
            find(&[("web/Chart.yaml", "a: [")])
                .unwrap_err()
                .starts_with("web/Chart.yaml:1: not valid YAML")
        );
        let twice = "dependencies:\n- {name: a, alias: b, repository: x}\n- {name: a, alias: c, repository: x}\n";
        assert_eq!(find(&[("web/Chart.yaml", twice)]), Ok(vec!["a * x".to_owned()]));
    }
}
