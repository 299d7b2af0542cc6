//! What another revision of a repository would change, before it is followed.
//!
//! `POST gitrepositories/NAME/impact` with an [`ImpactQuery`] as its `spec` answers with an [`Impact`] as its `status`. Nothing of it is
//! stored, and no agent is asked.

use serde::{Deserialize, Serialize};

/// The kind that query and answer are sent as.
pub const IMPACT_KIND: &str = "SourceImpact";
/// Groups that are listed, the ones with the most services first.
pub const MAX_IMPACT_GROUPS: usize = 200;
/// Services of a group that are named.
pub const MAX_IMPACT_TARGETS: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImpactQuery {
    /// A branch, a tag or a commit.
    #[serde(rename = "ref")]
    pub reference: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Impact {
    /// What was asked about, as sources write revisions.
    pub revision: String,
    /// What it is compared with: what is served now, or, where that has gone on since, what both have in common. Empty: nothing is served.
    pub base: String,
    /// Files and folders that differ; none: more than are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<u64>,
    /// Services that are made of the repository.
    pub services: u64,
    /// Of them.
    pub changing: ImpactCounts,
    /// Whose files can't be gathered at that revision.
    pub failing: ImpactCounts,
    /// That would change, and are suspended or pinned to another version.
    pub standing: ImpactCounts,
    /// Among the changing: the paths say so, and what they are made of was not compared.
    pub uncompared: u64,
    pub groups: Vec<ImpactGroup>,
    /// Groups that are not listed.
    #[serde(skip_serializing_if = "crate::is_zero")]
    pub left_out: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpactCounts {
    pub services: u64,
    /// Each once.
    pub clusters: u64,
}

/// Services that are made of the same files, of one set or of none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpactGroup {
    /// The ServiceSet that has made them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// Folder of the repository; of several sources the first's.
    pub path: String,
    pub effect: ImpactEffect,
    /// Why their files can't be gathered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    pub services: u64,
    pub clusters: u64,
    /// The first of them by name.
    pub first: Vec<ImpactTarget>,
    /// The one that is asked for a plan: a canary of its set, as far as one is heard; else any whose agent is. None: nobody is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<ImpactTarget>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ImpactEffect {
    /// Their files are others.
    #[default]
    Changes,
    /// Their files can't be gathered; they keep their versions.
    Fails,
    /// Their files are others, and they don't follow.
    Stands,
    /// Of a newer hub.
    #[serde(other)]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImpactTarget {
    pub service: String,
    /// `NAMESPACE/NAME`; empty: it has none yet.
    pub cluster: String,
}
