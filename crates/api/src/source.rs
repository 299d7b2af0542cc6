//! Types that sources of all kinds share.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Revision of the files that the hub itself provides.
pub const BUILT_IN_REVISION: &str = "built-in/1";

/// Kinds of sources. Only the hub uses `ManagedNamespace`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SourceKind {
    #[default]
    GitRepository,
    HelmRepository,
    #[serde(rename = "OCIRepository")]
    OciRepository,
    /// Files that the hub provides for the services of a ManagedNamespace. Users cannot name this kind.
    ManagedNamespace,
}

impl SourceKind {
    /// Kinds that users create and that the hub fetches.
    pub const ALL: [Self; 3] = [Self::GitRepository, Self::HelmRepository, Self::OciRepository];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::GitRepository => "GitRepository",
            Self::HelmRepository => "HelmRepository",
            Self::OciRepository => "OCIRepository",
            Self::ManagedNamespace => "ManagedNamespace",
        }
    }

    /// Name in paths and in `farwater get`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::GitRepository => "gitrepositories",
            Self::HelmRepository => "helmrepositories",
            Self::OciRepository => "ocirepositories",
            Self::ManagedNamespace => "managednamespaces",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Observed state of a source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceStatus {
    /// Generation of the resource that the conditions describe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, `Reconciling` and `Stalled`, as kstatus reads them; `SourceVerified` if `spec.verify` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Revision that is served, in the format of Flux: `<tag or version>@sha256:<digest>` for an artifact,
    /// `sha256:<digest>` for an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Time at which `revision` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fetch_time: Option<Time>,
    /// Time since which the remote has failed to answer. Empty while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since: Option<Time>,
    /// Value of the last handled request annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}
