//! Sources of a service's files: its source, a chart of it, and further sources.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::source::SourceKind;

/// Reference to a source in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SourceReference {
    /// Kind of the source.
    #[serde(default)]
    pub kind: SourceKind,
    /// Name of the source.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A chart of a HelmRepository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct ChartReference {
    /// Name of the chart in the index; below a registry's path, it may contain slashes.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)*$")
    )]
    pub name: String,
    /// Version, or a range in Helm's format: `1.2.3`, `~1.2`, `>=1 <2`. `*`: the newest that is not a pre-release.
    #[serde(default = "any_version")]
    #[schemars(length(min = 1, max = 256))]
    pub version: String,
}

fn any_version() -> String {
    "*".to_owned()
}

/// A further source of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MountedSource {
    /// The source.
    pub source_ref: SourceReference,
    /// Chart of a HelmRepository. Required for that kind of source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartReference>,
    /// Folder of that source. Empty or `.`: its root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub path: String,
    /// Path at which the folder appears among the service's files. No other file may be there.
    #[schemars(length(min = 1, max = 1024))]
    pub mount_path: String,
}

/// One source of a service, as its spec names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatedSource<'a> {
    pub reference: &'a SourceReference,
    pub chart: Option<&'a ChartReference>,
    pub path: &'a str,
    /// None for the service's own source, whose files keep their paths.
    pub mount_path: Option<&'a str>,
}

impl StatedSource<'_> {
    /// The address that grants check for a source at `url`. Below a registry's path, each chart has its own address.
    pub fn placed_url(&self, url: &str) -> String {
        placed_url(url, self.chart.map(|chart| chart.name.as_str()))
    }
}

/// The same for a chart by its name, or for an address from a kustomization.
pub fn placed_url(url: &str, chart: Option<&str>) -> String {
    match chart {
        Some(chart) if url.starts_with("oci://") => format!("{}/{chart}", url.trim_end_matches('/')),
        Some(_) => url.to_owned(),
        None => read_git_link(url)
            .map(|(repository, _)| repository)
            .or(read_file_link(url))
            .unwrap_or(url)
            .to_owned(),
    }
}

/// Encodes a Git repository that only a kustomization names, together with its reference.
pub fn write_git_link(repository: &str, reference: &str) -> String {
    format!("{GIT_LINK}{repository}{GIT_REFERENCE}{reference}")
}

/// Repository and reference. `None` for other addresses.
pub fn read_git_link(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(GIT_LINK)?.split_once(GIT_REFERENCE)
}

/// Encodes the address of a file on a web server that only a kustomization names.
pub fn write_file_link(url: &str) -> String {
    format!("{FILE_LINK}{url}")
}

/// The address of the file. `None` for other addresses.
pub fn read_file_link(text: &str) -> Option<&str> {
    text.strip_prefix(FILE_LINK)
}

const FILE_LINK: &str = "file+";
const GIT_LINK: &str = "git+";
const GIT_REFERENCE: &str = "?ref=";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_see_the_repository_of_a_link() {
        let link = write_git_link("https://github.com/org/repo", "release/1");
        assert_eq!(link, "git+https://github.com/org/repo?ref=release/1");
        assert_eq!(read_git_link(&link), Some(("https://github.com/org/repo", "release/1")));
        assert_eq!(placed_url(&link, None), "https://github.com/org/repo");
        assert_eq!(read_git_link("https://github.com/org/repo?ref=x"), None);
        let file = write_file_link("https://example.com/install.yaml");
        assert_eq!(
            (read_file_link(&file), read_git_link(&file)),
            (Some("https://example.com/install.yaml"), None)
        );
        assert_eq!(placed_url(&file, None), "https://example.com/install.yaml");
        assert_eq!(placed_url("oci://r/charts/", Some("web")), "oci://r/charts/web");
        assert_eq!(
            placed_url("https://charts.example.com", Some("web")),
            "https://charts.example.com"
        );
    }
}
