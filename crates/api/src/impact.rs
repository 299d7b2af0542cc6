//! Changes that another revision of a repository would make, before any service follows it.
//!
//! `POST gitrepositories/NAME/impact` takes an [`ImpactQuery`] as its `spec` and returns an [`Impact`] as its `status`.
//! The hub stores nothing of it, and involves no agent.

use serde::{Deserialize, Serialize};

/// Kind of the query and the answer.
pub const IMPACT_KIND: &str = "SourceImpact";
/// Maximum number of listed groups; those with the most services come first.
pub const MAX_IMPACT_GROUPS: usize = 200;
/// Maximum number of services that a group names.
pub const MAX_IMPACT_TARGETS: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImpactQuery {
    /// Name of a branch, a tag or a commit.
    #[serde(rename = "ref")]
    pub reference: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Impact {
    /// The queried revision, in the format of sources.
    pub revision: String,
    /// Revision for the comparison: the served one or, if that has moved on since, the common ancestor. Empty: nothing
    /// is served.
    pub base: String,
    /// Number of files and folders that differ. None: more than the hub counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<u64>,
    /// Number of services that use the repository.
    pub services: u64,
    /// Services whose files would change.
    pub changing: ImpactCounts,
    /// Services whose files cannot be gathered at the queried revision.
    pub failing: ImpactCounts,
    /// Services whose files would change, but that are suspended or pinned to another version.
    pub standing: ImpactCounts,
    /// Number of `changing` services with changed paths whose files were not compared.
    pub uncompared: u64,
    pub groups: Vec<ImpactGroup>,
    /// Number of groups that are not listed.
    #[serde(skip_serializing_if = "crate::is_zero")]
    pub left_out: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpactCounts {
    pub services: u64,
    /// Number of clusters; each counts once.
    pub clusters: u64,
}

/// Services that use the same files, of one set or of none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpactGroup {
    /// The ServiceSet that owns the services. None: they belong to no set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// Folder in the repository; with several sources, that of the first.
    pub path: String,
    pub effect: ImpactEffect,
    /// Why the files cannot be gathered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub services: u64,
    pub clusters: u64,
    /// The first services by name.
    pub first: Vec<ImpactTarget>,
    /// Service to plan with: a canary of its set whose agent is heard, else any service whose agent is heard. None: no
    /// agent is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<ImpactTarget>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ImpactEffect {
    /// Their files change.
    #[default]
    Changes,
    /// Their files cannot be gathered. They keep running as they are.
    Fails,
    /// Their files change, but the services are suspended or pinned.
    Stands,
    /// Effect from a newer hub.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpactTarget {
    pub service: String,
    /// `NAMESPACE/NAME`. Empty: the service has no cluster yet.
    pub cluster: String,
}
