//! A source of any kind, with the fields that all kinds have.

use crate::{
    GitRepository, GitRepositorySpec, HelmRepository, HelmRepositorySpec, ManagedNamespace, OCIRepository,
    OCIRepositorySpec, SourceKind, SourceStatus, git_repository::GitReference, oci_repository::OCIReference,
    source::BUILT_IN_REVISION,
};

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
