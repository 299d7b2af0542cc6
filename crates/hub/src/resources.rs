//! Resources as controllers read and write them: typed, by name, with compare-and-swap.

use std::{
    fmt,
    sync::{Arc, LazyLock},
};

use farwater_api::{
    ADMIN_NAMESPACE, AGENT_FINALIZER, AgentPolicy, ChangeWindow, Cluster, ClusterGrant, Digest, GROUP, GitRepository,
    HealthRule, HelmRepository, ManagedNamespace, NotificationProvider, NotificationRule, OCIRepository, Pipeline,
    Receiver, ServiceContext, ServiceDeployment, ServiceSet, SourceKind, service_sources::SourceReference,
};
use farwater_store::{
    Change, Key, Kind, ListQuery, Resource, Store, StoreError, Tx, Write, WriteError,
    delivery::{Assignment, LinkedSource},
};
use jiff::Timestamp;
use kube_core::Resource as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::kinds::managers::manage;

/// A resource's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name {
    pub namespace: String,
    pub name: String,
}

impl Name {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl From<(String, String)> for Name {
    fn from((namespace, name): (String, String)) -> Self {
        Self { namespace, name }
    }
}

impl From<Assignment> for Name {
    fn from(row: Assignment) -> Self {
        Self {
            namespace: row.namespace,
            name: row.name,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A kind of Farwater's own.
pub trait Stored: DeserializeOwned {
    fn kind() -> Kind;

    fn key(name: &Name) -> Key {
        Key {
            kind: Self::kind(),
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        }
    }
}

macro_rules! stored {
    ($($kind:ty),*) => {
        $(impl Stored for $kind {
            fn kind() -> Kind {
                static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::new(&<$kind>::plural(&()), GROUP));
                KIND.clone()
            }
        })*
    };
}

stored!(
    AgentPolicy,
    ChangeWindow,
    Cluster,
    ClusterGrant,
    GitRepository,
    HealthRule,
    HelmRepository,
    ManagedNamespace,
    NotificationProvider,
    NotificationRule,
    OCIRepository,
    Pipeline,
    Receiver,
    ServiceContext,
    ServiceDeployment,
    ServiceSet
);

/// How often a change is retried when another writer was faster.
const ATTEMPTS: usize = 8;
/// Rows per page of a list, to bound a controller's memory.
const PAGE: usize = 500;

pub async fn load<T: Stored>(store: &Store, name: &Name) -> Result<Option<(Resource, T)>, StoreError> {
    let Some(resource) = store.get(&T::key(name)).await? else {
        return Ok(None);
    };
    let typed = parse(&resource)?;
    Ok(Some((resource, typed)))
}

pub fn secrets() -> Kind {
    static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::new("secrets", ""));
    KIND.clone()
}

pub fn config_maps() -> Kind {
    static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::new("configmaps", ""));
    KIND.clone()
}

pub fn namespaces() -> Kind {
    static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::new("namespaces", ""));
    KIND.clone()
}

pub fn namespace_key(name: &str) -> Key {
    Key {
        kind: namespaces(),
        namespace: String::new(),
        name: name.to_owned(),
    }
}

/// The administrators' namespace.
pub fn admin_namespace() -> Key {
    namespace_key(ADMIN_NAMESPACE)
}

pub async fn load_secret(store: &Store, name: &Name) -> Result<Option<Resource>, StoreError> {
    store
        .get(&Key {
            kind: secrets(),
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        })
        .await
}

/// The API server validated the object when it was written, so an unreadable one means a damaged database.
pub fn parse<T: Stored>(resource: &Resource) -> Result<T, StoreError> {
    T::deserialize(resource.object.as_ref()).map_err(|error| unreadable(&resource.key, &error))
}

/// Parses a resource without `managedFields`, which only the API server needs. If this is the only reference to the
/// object, nothing is copied.
pub fn parse_owned<T: Stored>(resource: Resource) -> Result<T, StoreError> {
    let Resource { key, object, .. } = resource;
    let mut object = Arc::unwrap_or_clone(object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    serde_json::from_value(object).map_err(|error| unreadable(&key, &error))
}

fn unreadable(key: &Key, error: &serde_json::Error) -> StoreError {
    StoreError::Row {
        what: format!("{} {}/{}", key.kind, key.namespace, key.name),
        problem: error.to_string(),
    }
}

/// Every resource of a kind, page by page.
pub async fn list_pages<T: Stored>(
    store: &Store,
    namespace: Option<&str>,
    mut each: impl FnMut(Resource),
) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let query = ListQuery {
            namespace: namespace.map(str::to_owned),
            limit: PAGE,
            after,
            ..ListQuery::all(T::kind())
        };
        let page = store.list(&query).await?;
        page.items.into_iter().for_each(&mut each);
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// The name of every resource of a kind.
pub async fn each_name<T: Stored>(store: &Store, mut each: impl FnMut(Name)) -> Result<(), StoreError> {
    /// Names are small, and thousands of pages take time.
    const NAMES: usize = 10_000;
    let mut after = None;
    loop {
        let page = store.list_names(&T::kind(), after, NAMES).await?;
        let is_last = page.len() < NAMES;
        after = page.last().cloned();
        page.into_iter()
            .for_each(|(namespace, name)| each(Name { namespace, name }));
        if is_last {
            return Ok(());
        }
    }
}

/// Changes one resource, or its subresource if one is named, unless it is gone or was recreated. An object that
/// `change` leaves equal is not written.
pub async fn change<T: Stored>(
    store: &Store,
    name: &Name,
    uid: &str,
    subresource: &str,
    change: impl Fn(&mut Value),
) -> Result<(), StoreError> {
    let key = T::key(name);
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let Some(current) = store.get(&key).await?.filter(|current| current.uid == uid) else {
            return Ok(());
        };
        let mut object = (*current.object).clone();
        change(&mut object);
        if object == *current.object {
            return Ok(());
        }
        let object = manage(&key.kind, subresource, Some(&current.object), object, Timestamp::now());
        let change = Change::Replace {
            uid: uid.to_owned(),
            version: current.version,
            object,
        };
        match store
            .write(Write {
                key: key.clone(),
                change,
            })
            .await
        {
            Ok(_) | Err(WriteError::Missing) => return Ok(()),
            Err(WriteError::Store(error)) => return Err(error),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or(StoreError::Closed, StoreError::from))
}

/// Fields of a service's status that the API server sets in the write that they describe: the authors of the version, the
/// pin, the suspension, the approval, the retry, the override and the proposals, with their times.
pub const AUTHORS: [&str; 13] = [
    CHANGED_BY,
    PINNED_BY,
    SUSPENDED_BY,
    APPROVED_BY,
    APPROVED_AT,
    HOOK_RETRIED_BY,
    HOOK_RETRIED_AT,
    OVERRIDDEN_BY,
    OVERRIDDEN_AT,
    PRUNE_PROPOSED_BY,
    PRUNE_PROPOSED_AT,
    OVERRIDE_PROPOSED_BY,
    OVERRIDE_PROPOSED_AT,
];
pub const CHANGED_BY: &str = "changedBy";
pub const PINNED_BY: &str = "pinnedBy";
pub const SUSPENDED_BY: &str = "suspendedBy";
pub const APPROVED_BY: &str = "approvedBy";
pub const APPROVED_AT: &str = "approvedAt";
pub const HOOK_RETRIED_BY: &str = "hookRetriedBy";
pub const HOOK_RETRIED_AT: &str = "hookRetriedAt";
pub const OVERRIDDEN_BY: &str = "overriddenBy";
pub const OVERRIDDEN_AT: &str = "overriddenAt";
pub const PRUNE_PROPOSED_BY: &str = "pruneProposedBy";
pub const PRUNE_PROPOSED_AT: &str = "pruneProposedAt";
pub const OVERRIDE_PROPOSED_BY: &str = "overrideProposedBy";
pub const OVERRIDE_PROPOSED_AT: &str = "overrideProposedAt";

/// Writes the status except for [`AUTHORS`]. An equal status is not written.
pub async fn write_status<T: Stored>(
    store: &Store,
    name: &Name,
    uid: &str,
    status: &impl Serialize,
) -> Result<(), StoreError> {
    let mut status = serde_json::to_value(status).map_err(StoreError::abort)?;
    if let Some(status) = status.as_object_mut() {
        status.retain(|field, _| !AUTHORS.contains(&field.as_str()));
    }
    change::<T>(store, name, uid, "status", |object| {
        let mut next = status.clone();
        for field in AUTHORS {
            if let Some(author) = object["status"].get(field) {
                next[field] = author.clone();
            }
        }
        object["status"] = next;
    })
    .await
}

/// Whether a resource still has the uid and the generation that were read. Check this within the transaction, so that
/// nothing irreversible is decided from a stale read.
pub async fn is_current(tx: &mut Tx, key: &Key, (uid, generation): (&str, Option<i64>)) -> Result<bool, StoreError> {
    let now = tx.get(key).await?.filter(|now| now.uid == uid);
    Ok(now.is_some_and(|now| now.object["metadata"]["generation"].as_i64() == generation))
}

/// The write that removes a finalizer, or deletes the resource if that was the last one. None: the resource lacks this
/// finalizer.
pub fn without_finalizer(resource: &Resource, finalizer: &str) -> Option<Change> {
    let mut object: Value = (*resource.object).clone();
    let finalizers = object["metadata"]["finalizers"].as_array_mut()?;
    let before = finalizers.len();
    finalizers.retain(|other| other != finalizer);
    let (left, uid, version) = (finalizers.len(), resource.uid.clone(), resource.version);
    match left {
        _ if left == before => None,
        0 => Some(Change::Delete { uid, version }),
        _ => {
            let object = manage(&resource.key.kind, "", Some(&resource.object), object, Timestamp::now());
            Some(Change::Replace { uid, version, object })
        }
    }
}

/// Whether a service has the finalizer that keeps it until its agent has confirmed its removal.
pub fn is_held(metadata: &Value) -> bool {
    has_finalizer(metadata, AGENT_FINALIZER)
}

fn has_finalizer(metadata: &Value, finalizer: &str) -> bool {
    metadata["finalizers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|other| other == finalizer))
}

/// Adds a finalizer, unless the resource has it or is being deleted.
pub async fn hold<T: Stored>(
    store: &Store,
    name: &Name,
    resource: &Resource,
    finalizer: &str,
) -> Result<(), StoreError> {
    if has_finalizer(&resource.object["metadata"], finalizer) {
        return Ok(());
    }
    change::<T>(store, name, &resource.uid, "", |object| {
        let metadata = &mut object["metadata"];
        if has_finalizer(metadata, finalizer) || metadata["deletionTimestamp"].is_string() {
            return;
        }
        match metadata["finalizers"].as_array_mut() {
            Some(finalizers) => finalizers.push(finalizer.into()),
            None => metadata["finalizers"] = serde_json::json!([finalizer]),
        }
    })
    .await
}

/// Identifies a source. A key of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    Resource(SourceKind, Name),
    /// A repository that a chart or a kustomization names, in the namespace of the service that needs it.
    Link {
        namespace: String,
        url: String,
    },
}

impl SourceName {
    pub fn git(name: Name) -> Self {
        Self::Resource(SourceKind::GitRepository, name)
    }

    /// None: no resource states it.
    pub fn key(&self) -> Option<Key> {
        let Self::Resource(kind, name) = self else { return None };
        Some(match kind {
            SourceKind::GitRepository => GitRepository::key(name),
            SourceKind::HelmRepository => HelmRepository::key(name),
            SourceKind::OciRepository => OCIRepository::key(name),
            SourceKind::ManagedNamespace => return None,
        })
    }

    pub fn of(namespace: &str, reference: &SourceReference) -> Self {
        Self::Resource(reference.kind, Name::new(namespace, &reference.name))
    }

    /// Uid of a repository that no resource states: always the same for one address in one namespace.
    pub fn link_uid(namespace: &str, url: &str) -> String {
        format!("link-{}", &Digest::of(format!("{namespace}\n{url}")).to_hex()[..32])
    }
}

impl From<LinkedSource> for SourceName {
    fn from(source: LinkedSource) -> Self {
        Self::Link {
            namespace: source.namespace,
            url: source.url,
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(SourceKind::GitRepository, name) => write!(f, "{name}"),
            Self::Resource(kind, name) => write!(f, "{kind} {name}"),
            Self::Link { namespace, url } => write!(f, "{namespace}/{url}"),
        }
    }
}
