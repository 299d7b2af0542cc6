//! The vocabulary of the store: keys, resources, writes, queries and watch events.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use crate::{
    StoreError,
    row::{PlainParts, assemble},
};

/// A kind of resource: its plural, then `.group` unless the group is empty: `secrets`, `clusters.farwater.dev`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(Arc<str>);

impl Kind {
    pub fn new(plural: &str, group: &str) -> Self {
        Self(if group.is_empty() {
            plural.into()
        } else {
            format!("{plural}.{group}").into()
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// From the text of [`Kind::as_str`].
impl From<&str> for Kind {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one resource. `namespace` is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

/// One stored resource. `object` is complete: apiVersion, kind, metadata (with uid and resourceVersion), and status.
#[derive(Clone, Debug)]
pub struct Resource {
    pub key: Key,
    pub uid: String,
    /// The number in `metadata.resourceVersion`.
    pub version: u64,
    pub object: Arc<Value>,
}

/// One stored resource as unparsed JSON.
#[derive(Clone, Debug)]
pub struct JsonResource {
    pub key: Key,
    /// The number in `metadata.resourceVersion`.
    pub version: u64,
    /// The complete object.
    pub json: Vec<u8>,
}

/// One change to one resource; compare-and-swap on (uid, version).
#[derive(Clone, Debug)]
pub struct Write {
    pub key: Key,
    pub change: Change,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// Fails with `Exists` if there is one. The caller sets `object.metadata.uid` and `creationTimestamp`; the store
    /// sets `resourceVersion`.
    Create(Value),
    /// Fails with `Conflict` unless the row is at exactly this uid and version, and with `Missing` if it is gone. An
    /// object equal to the stored one is not written; the result is the unchanged row.
    Replace { uid: String, version: u64, object: Value },
    /// Removes the row at exactly this uid and version. Watchers get the last state with the deletion's version.
    Delete { uid: String, version: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Created,
    Updated,
    Deleted,
}

/// A change that is about to be committed, with the object before it.
#[derive(Clone)]
pub struct Written {
    pub(crate) event: WatchEvent,
    pub(crate) before: Option<Arc<PlainParts>>,
}

impl std::ops::Deref for Written {
    type Target = WatchEvent;

    fn deref(&self) -> &WatchEvent {
        &self.event
    }
}

impl Written {
    /// The object before an update. None: it was created or deleted.
    pub fn before(&self) -> Result<Option<Value>, StoreError> {
        let Some(parts) = &self.before else { return Ok(None) };
        assemble(&parts.body, parts.status.as_deref(), parts.version, &self.key).map(Some)
    }
}

/// One committed change. Watchers see them in order of `version`, without gaps.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    pub version: u64,
    pub key: Key,
    pub operation: Operation,
    /// The object after the change. For `Deleted` the last state, with the deletion's resourceVersion.
    pub object: Arc<Value>,
    /// Labels before the change, so that a watcher sees an object enter or leave its selector.
    pub old_labels: Arc<BTreeMap<String, String>>,
    json: Arc<OnceLock<String>>,
}

impl WatchEvent {
    pub fn new(
        key: Key,
        version: u64,
        operation: Operation,
        object: Arc<Value>,
        old_labels: BTreeMap<String, String>,
    ) -> Self {
        Self {
            version,
            key,
            operation,
            object,
            old_labels: old_labels.into(),
            json: Arc::default(),
        }
    }

    /// The object as JSON, serialized once for all watchers.
    pub fn json(&self) -> &str {
        self.json.get_or_init(|| self.object.to_string())
    }
}

/// One requirement of a label selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelRequirement {
    In(String, Vec<String>),
    /// Also true if the label is absent, as in Kubernetes.
    NotIn(String, Vec<String>),
    Exists(String),
    NotExists(String),
}

/// A parsed label selector: all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(pub Vec<LabelRequirement>);

impl Selector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            LabelRequirement::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            LabelRequirement::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            LabelRequirement::Exists(key) => labels.contains_key(key),
            LabelRequirement::NotExists(key) => !labels.contains_key(key),
        })
    }
}

/// What to list: rows of one kind in order of (namespace, name).
#[derive(Clone, Debug)]
pub struct ListQuery {
    pub kind: Kind,
    /// None: all namespaces.
    pub namespace: Option<String>,
    /// Only this name. None: all names.
    pub name: Option<String>,
    pub labels: Selector,
    /// Most rows of a page. 0: no limit.
    pub limit: usize,
    /// Start after this (namespace, name). None: at the beginning.
    pub after: Option<(String, String)>,
    /// Most bytes of stored JSON in a page. A larger page fails with [`StoreError::TooLarge`].
    pub max_bytes: usize,
}

impl ListQuery {
    /// Everything of a kind, in one page.
    pub fn all(kind: Kind) -> Self {
        let labels = Selector::default();
        Self {
            kind,
            namespace: None,
            name: None,
            labels,
            limit: 0,
            after: None,
            max_bytes: usize::MAX,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Page<T = Resource> {
    pub items: Vec<T>,
    /// The counter when the page was read: a watch may start from it.
    pub version: u64,
    /// Where the next page starts. None: this is the last one.
    pub next: Option<(String, String)>,
}
