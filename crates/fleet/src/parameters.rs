//! Parameters: what a service's templates see, built from what the service states and the objects that it names, with
//! the origin of each value.
//!
//! `configuration` gets names from several places. The service's own texts and the keys that it picks are *stated*; a
//! name that is stated twice is an error, because one of the two would have no effect. Keys of ConfigMaps and Secrets
//! that are named as a whole rank below stated ones, and among them the later in the list wins. The same holds within a
//! ServiceContext for its configuration, picked keys and whole Secrets.
//!
//! A missing or wrong input is a [`Problem`], never an empty value: the service is held with the parameters it has.

mod settle;
mod statements;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use farwater_api::{
    ServiceContextSpec, ServiceDeploymentSpec,
    parameters::{MAX_PARAMETERS_BYTES, MAX_SOURCE_BYTES, Origin, ParameterValue, Parameters},
};
use serde_json::{Map, Value};

pub use settle::value_name;
pub use statements::{check_context, check_service};

use statements::{Statement, read_statements};
use work::as_wholes;
pub use work::resolve;

/// The objects that a service's parameters name, all in its own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub contexts: BTreeSet<String>,
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<SecretName>,
}

/// A Secret of the hub, or a secret of another backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName {
    pub backend: Option<String>,
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret {}", self.name)?;
        self.backend
            .as_ref()
            .map_or(Ok(()), |backend| write!(f, " of backend {backend}"))
    }
}

/// The keys of a ConfigMap or Secret. None: the bytes are not text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Texts(pub BTreeMap<String, Option<String>>);

impl Texts {
    pub fn bytes(&self) -> usize {
        self.0
            .iter()
            .map(|(key, text)| key.len() + text.as_ref().map_or(0, String::len))
            .sum()
    }
}

/// Prints only names, because any value may be secret.
impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The named objects. None: the object does not exist. An object without an entry was not looked up.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub contexts: BTreeMap<String, Option<Arc<ServiceContextSpec>>>,
    pub config_maps: BTreeMap<String, Option<Arc<Texts>>>,
    pub secrets: BTreeMap<SecretName, Result<Option<Arc<Texts>>, Unknown>>,
}

/// Why the value of another backend's secret is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It is about to be read for the first time.
    Unread,
    /// It can't be read; the text says why.
    Failed(String),
}

/// The service's own Cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterInput<'a> {
    pub uid: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
    pub annotations: &'a BTreeMap<String, String>,
    pub metadata: &'a Map<String, Value>,
    /// Version of its Kubernetes. None: its agent has not joined.
    pub version: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub uid: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub spec: &'a ServiceDeploymentSpec,
    pub cluster: ClusterInput<'a>,
    pub objects: &'a Objects,
}

/// A key that a service depends on: a change of it changes the service's parameters. It may not exist yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handed {
    /// Kind as in the store, and as [`changed_keys`](farwater_api::parameters::changed_keys) takes it; for another
    /// backend [`SecretName::index_kind`].
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Empty: any key.
    pub key: String,
}

pub const CONTEXTS: &str = "servicecontexts.farwater.dev";
pub const CONFIG_MAPS: &str = "configmaps";
pub const SECRETS: &str = "secrets";
pub const CLUSTERS: &str = "clusters.farwater.dev";
/// Prefix of a backend's name in the index.
const OF_BACKEND: &str = "secretbackend:";

impl SecretName {
    /// The kind under which the index stores its keys.
    pub fn index_kind(&self) -> String {
        self.backend
            .as_ref()
            .map_or_else(|| SECRETS.to_owned(), |backend| format!("{OF_BACKEND}{backend}"))
    }

    /// The secret of another backend, from its kind in the index. None: it is of the hub.
    pub fn of_index(kind: &str, name: &str) -> Option<Self> {
        let backend = kind.strip_prefix(OF_BACKEND)?;
        Some(Self {
            backend: Some(backend.to_owned()),
            name: name.to_owned(),
        })
    }
}

/// Why a service's parameters can't be built. No text quotes a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Problem {
    #[error("spec.parameters[{index}]: {why}")]
    Statement { index: usize, why: String },
    #[error("{what} does not exist in namespace {namespace}")]
    Missing { what: String, namespace: String },
    #[error("{what} has no key {key}")]
    KeyMissing { what: String, key: String },
    #[error("{what} can't be read: {why}")]
    Unread { what: String, why: String },
    #[error("{what}: key {key} holds bytes that are no text (UTF-8); pick the keys that do")]
    NotText { what: String, key: String },
    #[error(
        "{name} is stated twice, by {} and by {}: state it once, or put a prefix before the keys of one",
        .origins[0], .origins[1]
    )]
    Twice { name: String, origins: Box<[Origin; 2]> },
    #[error("the service's parameters have {bytes} bytes as JSON; at most {MAX_PARAMETERS_BYTES} are sent")]
    TooLarge { bytes: usize },
    #[error(
        "the objects that the service is handed something of have more than {MAX_SOURCE_BYTES} bytes; name fewer, or make smaller \
         ones of what it needs"
    )]
    TooMuch,
    /// It resolves by itself, and sorts after problems that don't.
    #[error("{WAITS}{what}, which was not read yet")]
    Waits { what: String },
}

/// Prefix of the message if all problems resolve by themselves.
pub const WAITS: &str = "waits for ";

/// Several problems in one line: the first ones, and the number of the others.
pub fn describe(problems: &[Problem]) -> String {
    const SHOWN: usize = 3;
    let mut text = problems
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    if problems.len() > SHOWN {
        text += &format!("; and {} more", problems.len() - SHOWN);
    }
    text
}

/// The resolved parameters. With problems the document must not be sent.
#[derive(Clone, Debug, Default)]
pub struct Resolution {
    pub parameters: Parameters,
    /// Bytes of [`Parameters`] as JSON.
    pub bytes: usize,
    /// Origin of each value, by name. Secret values are left out.
    pub values: Vec<ParameterValue>,
    /// Sorted.
    pub problems: Vec<Problem>,
    pub handed: BTreeSet<Handed>,
}

impl Resolution {
    /// The result if not all objects were read because together they are too large. A change of any of them may correct
    /// it.
    pub fn into_too_much(self) -> Self {
        Self {
            problems: vec![Problem::TooMuch],
            handed: as_wholes(self.handed),
            ..Self::default()
        }
    }
}

/// Whether a service has parameters at all. Without any, its agent supplies the names of the cluster and the service by
/// itself.
pub fn has_parameters(spec: &ServiceDeploymentSpec) -> bool {
    !spec.configuration.is_empty() || !spec.parameters.is_empty()
}

/// Whether a service's parameters depend on other objects, e.g. a shared one or its Cluster. Otherwise all of them are
/// in its spec.
pub fn is_handed(spec: &ServiceDeploymentSpec) -> bool {
    !spec.parameters.is_empty()
}

/// The objects that the service itself names.
pub fn wanted(spec: &ServiceDeploymentSpec) -> Wanted {
    let mut wanted = Wanted::default();
    for (_, statement) in read_statements(&spec.parameters) {
        match statement {
            Ok(Statement::Context(name, _)) => drop(wanted.contexts.insert(name.to_owned())),
            Ok(Statement::ConfigMap(name, ..)) => drop(wanted.config_maps.insert(name.to_owned())),
            Ok(Statement::Secret(name, ..)) => drop(wanted.secrets.insert(name)),
            Ok(Statement::ClusterSecret(..) | Statement::Cluster(..)) | Err(_) => {}
        }
    }
    wanted
}

/// The Secrets that the service uses through contexts.
pub fn wanted_through(
    spec: &ServiceDeploymentSpec,
    contexts: &BTreeMap<String, Option<Arc<ServiceContextSpec>>>,
) -> BTreeSet<SecretName> {
    let mut wanted = BTreeSet::new();
    for (_, statement) in read_statements(&spec.parameters) {
        let Ok(Statement::Context(name, keys)) = statement else {
            continue;
        };
        let Some(context) = contexts.get(name).and_then(Option::as_deref) else {
            continue;
        };
        wanted.extend(secrets_of_context(context, keys).map(|(_, name, _)| name));
    }
    wanted
}

/// The Secrets of a context that may hold these keys (empty: any), by their index, with the keys that are read of each
/// (empty: all).
fn secrets_of_context<'a>(
    context: &'a ServiceContextSpec,
    keys: &'a [String],
) -> impl Iterator<Item = (usize, SecretName, Vec<&'a str>)> {
    let references = &context.secret_refs;
    let has_it = move |key: &&str| {
        context.configuration.contains_key(*key)
            || references
                .iter()
                .any(|reference| reference.keys.iter().any(|picked| picked == key))
    };
    references.iter().enumerate().filter_map(move |(n, reference)| {
        let name = SecretName {
            backend: reference.backend.clone(),
            name: reference.name.clone(),
        };
        let picked: Vec<&str> = reference.keys.iter().map(String::as_str).collect();
        let wanted: Vec<&str> = keys.iter().map(String::as_str).collect();
        match (picked.is_empty(), wanted.is_empty()) {
            (_, true) => Some((n, name, picked)),
            (false, false) => {
                let both: Vec<&str> = picked.into_iter().filter(|key| wanted.contains(key)).collect();
                (!both.is_empty()).then_some((n, name, both))
            }
            (true, false) => {
                let left: Vec<&str> = wanted.into_iter().filter(|key| !has_it(key)).collect();
                (!left.is_empty()).then_some((n, name, left))
            }
        }
    })
}

#[cfg(test)]
#[path = "parameters_tests.rs"]
mod tests;
