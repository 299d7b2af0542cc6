//! Types that sources of all kinds share.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    GitRepository, GitRepositorySpec, HelmRepository, HelmRepositorySpec, ManagedNamespace, OCIRepository,
    OCIRepositorySpec, git_repository::GitReference, oci_repository::OCIReference,
};

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

/// A source of any kind.
#[derive(Clone, Debug, PartialEq)]
pub struct AnySource {
    pub kind: SourceKind,
    pub url: String,
    pub interval: String,
    pub timeout: String,
    pub suspend: bool,
    /// Name of the Secret with its credentials, in its namespace.
    pub secret: Option<String>,
    /// The field of `spec.ref` that is set, with its value.
    pub follows: Option<(&'static str, String)>,
    pub status: SourceStatus,
}

impl From<GitRepository> for AnySource {
    fn from(source: GitRepository) -> Self {
        let GitRepositorySpec {
            url,
            interval,
            timeout,
            suspend,
            secret_ref,
            r#ref,
            ..
        } = source.spec;
        let secret = secret_ref.map(|reference| reference.name);
        let GitReference {
            branch,
            tag,
            semver,
            name,
            commit,
            pipeline,
        } = r#ref.unwrap_or_default();
        let follows = stated([
            ("branch", branch),
            ("tag", tag),
            ("semver", semver),
            ("name", name),
            ("commit", commit),
            ("pipeline", pipeline),
        ]);
        let status = source.status.unwrap_or_default();
        let status = SourceStatus {
            observed_generation: status.observed_generation,
            conditions: status.conditions,
            revision: status.revision,
            last_fetch_time: status.last_fetch_time,
            stale_since: status.stale_since,
            last_handled_reconcile_at: status.last_handled_reconcile_at,
        };
        Self {
            kind: SourceKind::GitRepository,
            url,
            interval,
            timeout,
            suspend,
            secret,
            follows,
            status,
        }
    }
}

/// The field of a reference that is set; its schema allows one.
fn stated<const N: usize>(fields: [(&'static str, Option<String>); N]) -> Option<(&'static str, String)> {
    fields.into_iter().find_map(|(field, value)| Some((field, value?)))
}

impl AnySource {
    /// Files that the hub provides. They need no fetch, so they are always ready.
    pub fn built_in() -> Self {
        let status = SourceStatus {
            revision: Some(BUILT_IN_REVISION.to_owned()),
            ..SourceStatus::default()
        };
        let (url, interval, timeout) = (String::new(), String::new(), String::new());
        Self {
            kind: SourceKind::ManagedNamespace,
            url,
            interval,
            timeout,
            suspend: false,
            secret: None,
            follows: None,
            status,
        }
    }
}

impl From<ManagedNamespace> for AnySource {
    fn from(_: ManagedNamespace) -> Self {
        Self::built_in()
    }
}

impl From<HelmRepository> for AnySource {
    fn from(source: HelmRepository) -> Self {
        let HelmRepositorySpec {
            url,
            interval,
            timeout,
            suspend,
            secret_ref,
            ..
        } = source.spec;
        let secret = secret_ref.map(|reference| reference.name);
        let status = source.status.unwrap_or_default();
        Self {
            kind: SourceKind::HelmRepository,
            url,
            interval,
            timeout,
            suspend,
            secret,
            follows: None,
            status,
        }
    }
}

impl From<OCIRepository> for AnySource {
    fn from(source: OCIRepository) -> Self {
        let OCIRepositorySpec {
            url,
            interval,
            timeout,
            suspend,
            secret_ref,
            r#ref,
            ..
        } = source.spec;
        let secret = secret_ref.map(|reference| reference.name);
        let OCIReference { tag, semver, digest } = r#ref.unwrap_or_default();
        let follows = stated([("tag", tag), ("semver", semver), ("digest", digest)]);
        let status = source.status.unwrap_or_default();
        Self {
            kind: SourceKind::OciRepository,
            url,
            interval,
            timeout,
            suspend,
            secret,
            follows,
            status,
        }
    }
}
