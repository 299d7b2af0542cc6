//! A candidate: what a service would run, and why there may be none.

use std::collections::BTreeMap;

use farwater_api::{
    Digest, SourceKind,
    service_sources::{ChartReference, placed_url},
};
use serde::{Deserialize, Serialize};

/// What a service would run: the bundle of its path at one revision of its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// As in the source's status: `main@sha1:<commit>`.
    pub revision: String,
    pub content_id: Digest,
    pub bundle: Digest,
    /// Bytes of the uncompressed archive.
    pub bundle_bytes: u64,
    /// Folder inside the bundle.
    pub path: String,
    /// URL that it came from. A pinned candidate is checked against the grants for this source, whatever the service
    /// names now.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The first commit of the revision's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Author of the commit, as the commit states it. Empty: it states none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// What was read of the commit besides its own files: `submodules`, `lfs`. Empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reads: String,
    /// Folders with a renderer of their own. The dependencies of their charts are in the bundle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rendered: Vec<String>,
    /// The parts, if there is more than one folder of a repository: the service's own source first. Empty: only that
    /// folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// Artifacts of registries that were read. One manifest gives several if it has several layers, or is read in
    /// several ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Digest>,
    /// Texts that a pipeline has promoted with the revision, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configuration: BTreeMap<String, String>,
}

#[cfg(test)]
impl Candidate {
    /// A commit at the root of a repository, with no other fields set.
    pub(crate) fn of_commit(commit: &str) -> Self {
        Self {
            revision: format!("main@sha1:{commit}"),
            content_id: Digest::of(commit),
            bundle: Digest::of(commit),
            bundle_bytes: 1,
            path: String::new(),
            source: String::new(),
            origin: None,
            author: String::new(),
            reads: String::new(),
            rendered: Vec::new(),
            parts: Vec::new(),
            artifacts: Vec::new(),
            configuration: BTreeMap::new(),
        }
    }
}

/// One of the parts that a service's files are assembled from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    pub kind: SourceKind,
    /// Name of the source. Empty for a repository that a chart or a kustomization names only by its address.
    pub name: String,
    pub source_uid: String,
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chart: Option<ChartReference>,
    /// As in the source's status; for a chart `<version>@sha256:<digest>`.
    pub revision: String,
    /// Folder inside the source.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// As [`Candidate::reads`], for a repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reads: String,
    /// Where it is mounted among the service's files. Empty: at their root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_path: String,
    /// A chart or a kustomization names it, not the service itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dependency: bool,
}

impl Part {
    /// The address that grants are checked against.
    pub fn placed_url(&self) -> String {
        placed_url(&self.url, self.chart.as_ref().map(|chart| chart.name.as_str()))
    }

    /// `HelmRepository charts, chart web 1.2.3@sha256:…`
    pub fn describe(&self) -> String {
        let source = if self.name.is_empty() {
            self.url.clone()
        } else {
            format!("{} {}", self.kind, self.name)
        };
        match &self.chart {
            Some(chart) => format!("{source}, chart {} {}", chart.name, self.revision),
            None => format!("{source} {}", self.revision),
        }
    }
}

impl Candidate {
    /// The addresses of all parts.
    pub fn urls(&self) -> Vec<String> {
        let mut urls: Vec<String> = match self.parts.as_slice() {
            [] => vec![self.source.clone()],
            parts => parts.iter().map(Part::placed_url).collect(),
        };
        urls.retain(|url| !url.is_empty());
        urls
    }

    /// Whether two candidates are the same to an agent, e.g. two revisions with the same content.
    pub fn is_same_content(&self, other: &Self) -> bool {
        self.bundle == other.bundle && self.path == other.path && self.configuration == other.configuration
    }
}

/// Why there is no candidate for what a service asks for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Trouble {
    #[error("{message}")]
    ClusterMissing { message: String },
    #[error("{kind} {name} does not exist")]
    SourceMissing {
        #[serde(default)]
        kind: SourceKind,
        name: String,
    },
    /// The source exists, but was never fetched.
    #[error("{kind} {name} has no revision yet")]
    SourceEmpty {
        #[serde(default)]
        kind: SourceKind,
        name: String,
    },
    /// A chart, or a kustomization's base, that was not found yet.
    #[error("{message}")]
    ChartPending { message: String },
    /// A chart that its repository does not have, or that can't be used.
    #[error("{message}")]
    ChartMissing { message: String },
    /// The service's files can't be gathered. The message names file and line.
    #[error("{message}")]
    Bundle { revision: String, message: String },
    /// The service's files are being fetched, or can't be fetched now.
    #[error("{message}")]
    Files { revision: String, message: String },
    /// A Secret that the service names is missing or can't be sent.
    #[error("{message}")]
    Secret { message: String },
    /// A parameter of the service is missing or wrong.
    #[error("{message}")]
    Parameters { message: String },
    /// The pinned revision is not available.
    #[error("{message}")]
    Pin { message: String },
    /// Services depend on one another in a cycle.
    #[error("it depends on itself: {cycle}")]
    Cycle { cycle: String },
}
