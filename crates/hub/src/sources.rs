//! Sources of all kinds as controllers see them: Git, Helm and OCI repositories, repositories that only a chart or a
//! kustomization names, and the files that are built into the hub.

pub mod access;
pub mod artifacts;
pub mod ask_sources;
pub mod collect_mirrors;
pub mod combine;
pub mod fetch_sources;
pub mod git;
pub mod large_files;
pub mod submodules;
pub mod verify_revisions;

use farwater_api::{
    AnySource, GitRepository, GitRepositorySpec, HelmRepository, HelmRepositorySpec, OCIRepository, OCIRepositorySpec,
    SourceKind, SourceStatus,
    service_sources::{read_file_link, read_git_link},
};
use farwater_fleet::summary::source_news;
use farwater_sources::Address;
use farwater_store::{Store, StoreError, delivery::linked_source};
use kube_core::ObjectMeta;
use serde_json::json;

use crate::{
    notify::events,
    resources::{self, Name, SourceName, Stored},
};

/// How a source is fetched.
#[derive(Clone, Debug)]
pub enum SourceSpec {
    Git(Box<GitRepositorySpec>),
    Helm(Box<HelmRepositorySpec>),
    Oci(Box<OCIRepositorySpec>),
    /// One file on a web server, named by a kustomization.
    File(String),
    /// Files that are built into the hub: there is nothing to fetch.
    BuiltIn,
}

/// Uid of the built-in files, shared by all services that are made of them.
const BUILT_IN: &str = "built-in";

/// A source, as it is now.
#[derive(Clone, Debug)]
pub struct SourceObject {
    pub name: SourceName,
    pub uid: String,
    pub metadata: ObjectMeta,
    pub spec: SourceSpec,
    /// The fields that all kinds have.
    pub any: AnySource,
    /// For a source that no resource states: whether a resource states the same repository, and so lends its
    /// credentials.
    pub is_lent: bool,
}

impl SourceObject {
    pub fn is_link(&self) -> bool {
        matches!(self.name, SourceName::Link { .. })
    }

    /// Namespace of its Secrets and its services.
    pub fn namespace(&self) -> &str {
        match &self.name {
            SourceName::Resource(_, name) => &name.namespace,
            SourceName::Link { namespace, .. } => namespace,
        }
    }
}

/// Loads a source. None: it does not exist, or no resource states it and no service needs it.
pub async fn load(store: &Store, name: &SourceName) -> Result<Option<SourceObject>, StoreError> {
    match name {
        SourceName::Resource(SourceKind::GitRepository, of) => load_stated(store, (name, of), git_spec).await,
        SourceName::Resource(SourceKind::HelmRepository, of) => load_stated(store, (name, of), helm_spec).await,
        SourceName::Resource(SourceKind::OciRepository, of) => load_stated(store, (name, of), oci_spec).await,
        SourceName::Resource(SourceKind::ManagedNamespace, _) => Ok(Some(load_built_in(name))),
        SourceName::Link { namespace, url } => {
            let uid = SourceName::link_uid(namespace, url);
            if linked_source(&mut *store.tables().await?, &uid).await?.is_none() {
                return Ok(None);
            }
            if let Some((repository, _)) = read_git_link(url) {
                return load_base(store, name, (namespace, uid), repository).await.map(Some);
            }
            if let Some(address) = read_file_link(url) {
                return load_file(name, uid, address).map(Some);
            }
            // Like a HelmRepository that states only its address.
            let stated = json!({"metadata": {"generation": 1}, "spec": {"url": url}});
            let source: HelmRepository = serde_json::from_value(stated).map_err(StoreError::abort)?;
            let spec = helm_spec(&source);
            Ok(Some(source_object(name, uid, source, spec)))
        }
    }
}

async fn load_stated<K: Stored + kube_core::Resource + Into<AnySource>>(
    store: &Store,
    (name, of): (&SourceName, &Name),
    spec: fn(&K) -> SourceSpec,
) -> Result<Option<SourceObject>, StoreError> {
    let found = resources::load::<K>(store, of).await?;
    Ok(found.map(|(resource, source)| {
        let spec = spec(&source);
        source_object(name, resource.uid, source, spec)
    }))
}

fn git_spec(source: &GitRepository) -> SourceSpec {
    SourceSpec::Git(Box::new(source.spec.clone()))
}

fn oci_spec(source: &OCIRepository) -> SourceSpec {
    SourceSpec::Oci(Box::new(source.spec.clone()))
}

fn helm_spec(source: &HelmRepository) -> SourceSpec {
    SourceSpec::Helm(Box::new(source.spec.clone()))
}

fn source_object(
    name: &SourceName,
    uid: String,
    source: impl kube_core::Resource + Into<AnySource>,
    spec: SourceSpec,
) -> SourceObject {
    SourceObject {
        name: name.clone(),
        uid,
        metadata: source.meta().clone(),
        spec,
        any: source.into(),
        is_lent: false,
    }
}

fn load_built_in(name: &SourceName) -> SourceObject {
    SourceObject {
        name: name.clone(),
        uid: BUILT_IN.to_owned(),
        metadata: ObjectMeta::default(),
        spec: SourceSpec::BuiltIn,
        any: AnySource::built_in(),
        is_lent: false,
    }
}

/// Fetched as often as repositories are. None of our kinds states a single file.
fn load_file(name: &SourceName, uid: String, address: &str) -> Result<SourceObject, StoreError> {
    let stated = json!({"metadata": {"generation": 1}, "spec": {"url": address}});
    let source: HelmRepository = serde_json::from_value(stated).map_err(StoreError::abort)?;
    Ok(source_object(name, uid, source, SourceSpec::File(address.to_owned())))
}

/// The repository of a kustomization's base. A GitRepository of the namespace with the same address says how it is
/// fetched and whose signatures count. The kustomization says what is followed.
async fn load_base(
    store: &Store,
    name: &SourceName,
    (namespace, uid): (&str, String),
    repository: &str,
) -> Result<SourceObject, StoreError> {
    let wanted = Address::parse(repository).map(|address| address.identity()).ok();
    let mut lender: Option<farwater_store::Resource> = None;
    resources::list_pages::<GitRepository>(store, Some(namespace), |resource| {
        let url = resource.object["spec"]["url"].as_str().unwrap_or_default();
        let is_it = wanted.is_some() && Address::parse(url).map(|address| address.identity()).ok() == wanted;
        // If there are several, always the same one.
        if is_it && lender.as_ref().is_none_or(|other| resource.key.name < other.key.name) {
            lender = Some(resource);
        }
    })
    .await?;

    let (mut spec, generation) = match &lender {
        Some(lender) => (
            lender.object["spec"].clone(),
            lender.object["metadata"]["generation"].clone(),
        ),
        None => (json!({}), json!(1)),
    };
    for field in ["ref", "recurseSubmodules", "lfs", "suspend"] {
        spec.as_object_mut().and_then(|spec| spec.remove(field));
    }
    if lender.is_none() {
        spec["url"] = json!(repository);
    }

    let stated = json!({"metadata": {"generation": generation}, "spec": spec});
    let source: GitRepository = serde_json::from_value(stated).map_err(StoreError::abort)?;
    let spec = git_spec(&source);
    Ok(SourceObject {
        is_lent: lender.is_some(),
        ..source_object(name, uid, source, spec)
    })
}

/// Writes the status, and raises the Events of its change. A source that no resource states has neither.
pub async fn write_status(store: &Store, source: &SourceObject, status: &SourceStatus) -> Result<(), StoreError> {
    let SourceName::Resource(kind, name) = &source.name else {
        return Ok(());
    };
    let uid = &source.uid;
    match kind {
        SourceKind::GitRepository => resources::write_status::<GitRepository>(store, name, uid, status).await?,
        SourceKind::HelmRepository => resources::write_status::<HelmRepository>(store, name, uid, status).await?,
        SourceKind::OciRepository => resources::write_status::<OCIRepository>(store, name, uid, status).await?,
        SourceKind::ManagedNamespace => return Ok(()),
    }
    let news = source_news(&source.any.status, status);
    let Some(key) = source.name.key().filter(|_| !news.is_empty()) else {
        return Ok(());
    };
    match store.get(&key).await?.filter(|found| found.uid == *uid) {
        Some(about) => events::raise(store, &about, news).await,
        None => Ok(()),
    }
}

/// The name of every source that a resource states.
pub async fn each_name(store: &Store, mut each: impl FnMut(SourceName)) -> Result<(), StoreError> {
    for kind in SourceKind::ALL {
        let add = |name| each(SourceName::Resource(kind, name));
        match kind {
            SourceKind::GitRepository => resources::each_name::<GitRepository>(store, add).await?,
            SourceKind::HelmRepository => resources::each_name::<HelmRepository>(store, add).await?,
            SourceKind::OciRepository => resources::each_name::<OCIRepository>(store, add).await?,
            SourceKind::ManagedNamespace => {}
        }
    }
    Ok(())
}

/// Every source that a resource states, of a namespace or of all.
pub async fn each(
    store: &Store,
    namespace: Option<&str>,
    mut each: impl FnMut(SourceKind, farwater_store::Resource),
) -> Result<(), StoreError> {
    for kind in SourceKind::ALL {
        let add = |resource| each(kind, resource);
        match kind {
            SourceKind::GitRepository => resources::list_pages::<GitRepository>(store, namespace, add).await?,
            SourceKind::HelmRepository => resources::list_pages::<HelmRepository>(store, namespace, add).await?,
            SourceKind::OciRepository => resources::list_pages::<OCIRepository>(store, namespace, add).await?,
            SourceKind::ManagedNamespace => {}
        }
    }
    Ok(())
}

/// Finds the HelmRepository of a namespace that a chart means by an address, or by a name: `@name`, `alias:name`.
/// Returns uid, name and address. None: no resource states it.
pub async fn find_repository(
    store: &Store,
    namespace: &str,
    repository: &str,
) -> Result<Option<(String, String, String)>, StoreError> {
    let called = repository
        .strip_prefix('@')
        .or_else(|| repository.strip_prefix("alias:"));
    let mut found: Vec<(String, String, String)> = Vec::new();
    resources::list_pages::<HelmRepository>(store, Some(namespace), |resource| {
        let url = resource.object["spec"]["url"].as_str().unwrap_or_default();
        let is_it = match called {
            Some(called) => resource.key.name == called,
            None => plain_url(url) == plain_url(repository),
        };
        if is_it {
            found.push((resource.uid, resource.key.name, url.to_owned()));
        }
    })
    .await?;
    // If several have this address, always the same one.
    Ok(found.into_iter().min_by(|a, b| a.1.cmp(&b.1)))
}

/// Two addresses of one repository may differ by a slash at the end and the case of scheme and host.
fn plain_url(url: &str) -> String {
    let url = url.trim_end_matches('/');
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest
                .split_once('/')
                .map_or((rest, String::new()), |(h, path)| (h, format!("/{path}")));
            format!("{}://{}{path}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase())
        }
        None => url.to_owned(),
    }
}

/// Kinds of the stored sources, as the change log names them.
pub fn kinds() -> [farwater_store::Kind; 3] {
    [GitRepository::kind(), HelmRepository::kind(), OCIRepository::kind()]
}

/// Source kind of a stored kind; None: it is not a source.
pub fn kind_of(kind: &farwater_store::Kind) -> Option<SourceKind> {
    SourceKind::ALL
        .into_iter()
        .zip(kinds())
        .find(|(_, known)| known == kind)
        .map(|(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_repository_are_the_same() {
        assert_eq!(
            plain_url("https://Charts.example.com/Stable/"),
            plain_url("HTTPS://charts.example.com/Stable")
        );
        assert_ne!(
            plain_url("https://charts.example.com/stable"),
            plain_url("https://charts.example.com/Stable")
        );
        assert_eq!(plain_url("oci://Registry.example.com"), "oci://registry.example.com");
    }

    #[test]
    fn a_link_has_one_uid_in_each_namespace() {
        let uid = SourceName::link_uid("team-a", "https://charts.example.com");
        assert_eq!(uid, SourceName::link_uid("team-a", "https://charts.example.com"));
        assert_ne!(uid, SourceName::link_uid("team-b", "https://charts.example.com"));
        assert!(uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
    }
}
