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

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use farwater_api::{
    ServiceContextSpec, ServiceDeploymentSpec,
    parameters::{
        CLUSTER_SECRET, FromCluster, MAX_PARAMETERS_BYTES, MAX_SOURCE_BYTES, Origin, ParameterValue, Parameters,
        pointer,
    },
};
use serde_json::{Map, Value};

pub use settle::value_name;
pub use statements::{check_context, check_service};

use settle::{Names, Settled};
use statements::{Statement, read_statements};

/// Most keys in the index of a service's inputs, each of them a row. With more, the service is reconciled on any change
/// of its objects.
const MAX_HANDED: usize = 2048;

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

/// The objects, each with any of its keys.
fn as_wholes(handed: BTreeSet<Handed>) -> BTreeSet<Handed> {
    handed
        .into_iter()
        .map(|handed| Handed {
            key: String::new(),
            ..handed
        })
        .collect()
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

/// The document, the origins of its values, and the dependencies of the service. The same inputs give the same result.
pub fn resolve(inputs: Inputs<'_>) -> Resolution {
    let mut work = Work {
        inputs,
        settled: Settled::default(),
        handed: BTreeSet::new(),
        from_cluster: BTreeSet::new(),
    };
    let mut configuration = Names::default();
    for (name, text) in &inputs.spec.configuration {
        let origin = work.origin("ServiceDeployment", inputs.name, "spec.configuration");
        configuration.state(name, text.clone().into(), origin, false);
    }
    let mut contexts: BTreeMap<&str, Names> = BTreeMap::new();
    let mut cluster = statements::ClusterNames::default();
    for (index, statement) in read_statements(&inputs.spec.parameters) {
        match statement {
            Err(why) => work.settled.problems.push(Problem::Statement { index, why }),
            Ok(Statement::ConfigMap(name, keys, prefix)) => {
                work.take_config_map(name, keys, prefix, index, &mut configuration);
            }
            Ok(Statement::Secret(name, keys, prefix)) => {
                work.take_secret(&name, keys, prefix, index, &mut configuration);
            }
            Ok(Statement::ClusterSecret(name, keys, prefix)) => {
                work.take_cluster_secret(name, keys, prefix, &mut configuration);
            }
            Ok(Statement::Context(name, keys)) => work.take_context(name, keys, contexts.entry(name).or_default()),
            Ok(Statement::Cluster(part, keys)) => work.take_cluster(part, keys, index, &mut cluster),
        }
    }
    work.finish(configuration, contexts, cluster)
}

struct Work<'a> {
    inputs: Inputs<'a>,
    settled: Settled,
    handed: BTreeSet<Handed>,
    from_cluster: BTreeSet<FromCluster>,
}

impl<'a> Work<'a> {
    fn origin(&self, kind: &str, name: &str, key: &str) -> Origin {
        Origin {
            kind: kind.to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
            ..Origin::default()
        }
    }

    /// Records a dependency of the service. Without keys: on all keys of the object.
    fn hand<'k>(&mut self, kind: &str, name: &str, keys: impl IntoIterator<Item = &'k str>) {
        let namespace = if kind == CLUSTERS {
            self.inputs.cluster.namespace
        } else {
            self.inputs.namespace
        };
        let handed = |key: &str| Handed {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
        };
        let mut keys = keys.into_iter().peekable();
        if keys.peek().is_none() {
            self.handed.insert(handed(""));
        }
        self.handed.extend(keys.map(handed));
    }

    fn missing(&mut self, what: String) {
        self.settled.problems.push(Problem::Missing {
            what,
            namespace: self.inputs.namespace.to_owned(),
        });
    }

    fn take_config_map(&mut self, name: &str, keys: &[String], prefix: &str, index: usize, names: &mut Names) {
        self.hand(CONFIG_MAPS, name, keys.iter().map(String::as_str));
        let what = format!("ConfigMap {name}");
        let Some(Some(texts)) = self.inputs.objects.config_maps.get(name) else {
            return self.missing(what);
        };
        let origin = self.origin("ConfigMap", name, "");
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        names.take(
            texts,
            Taken {
                what,
                keys: &keys,
                prefix,
                origin,
                secret: false,
                index,
            },
            &mut self.settled,
        );
    }

    fn take_secret(&mut self, name: &SecretName, keys: &[String], prefix: &str, index: usize, names: &mut Names) {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let origin = Origin {
            backend: name.backend.clone(),
            ..self.origin("Secret", &name.name, "")
        };
        self.take_texts_of(
            name,
            Taken {
                what: name.to_string(),
                keys: &keys,
                prefix,
                origin,
                secret: true,
                index,
            },
            names,
        );
    }

    /// Values of a Secret in the cluster. The agent fills them in.
    fn take_cluster_secret(&mut self, secret: &str, keys: &[String], prefix: &str, names: &mut Names) {
        for key in keys {
            let name = format!("{prefix}{key}");
            names.state(&name, Value::Null, self.origin(CLUSTER_SECRET, secret, key), true);
            self.from_cluster.insert(FromCluster {
                secret: secret.to_owned(),
                key: key.clone(),
                name,
            });
        }
    }

    fn take_texts_of(&mut self, name: &SecretName, taken: Taken<'_>, names: &mut Names) {
        self.hand(&name.index_kind(), &name.name, taken.keys.iter().copied());
        match self.inputs.objects.secrets.get(name) {
            Some(Ok(Some(texts))) => names.take(texts, taken, &mut self.settled),
            Some(Err(Unknown::Unread)) => self.settled.problems.push(Problem::Waits { what: taken.what }),
            Some(Err(Unknown::Failed(why))) => {
                self.settled.problems.push(Problem::Unread {
                    what: taken.what,
                    why: why.clone(),
                });
            }
            Some(Ok(None)) | None => self.missing(taken.what),
        }
    }

    fn take_context(&mut self, name: &str, keys: &[String], names: &mut Names) {
        self.hand(CONTEXTS, name, keys.iter().map(String::as_str));
        let what = format!("ServiceContext {name}");
        let Some(Some(context)) = self.inputs.objects.contexts.get(name) else {
            return self.missing(what);
        };

        let is_wanted = |key: &String| keys.is_empty() || keys.contains(key);
        // Names from Secrets are collected separately: whether a picked key exists is known only after all of them were
        // read.
        let mut found = Names::default();
        for (key, value) in context.configuration.iter().filter(|(key, _)| is_wanted(key)) {
            found.state(
                key,
                value.clone(),
                self.origin("ServiceContext", name, key),
                context.sensitive,
            );
        }
        for (n, secret, read) in secrets_of_context(context, keys) {
            let is_whole = context.secret_refs[n].keys.is_empty();
            let backend = secret.backend.clone();
            let origin = Origin {
                backend,
                through: Some(name.to_owned()),
                ..self.origin("Secret", &secret.name, "")
            };
            let what = format!("{secret} of ServiceContext {name}");
            let taken = Taken {
                what,
                keys: &read,
                prefix: "",
                origin,
                secret: true,
                index: n,
            };
            if is_whole && !read.is_empty() {
                self.take_if_there(&secret, taken, &mut found);
            } else {
                self.take_texts_of(&secret, taken, &mut found);
            }
        }

        let absent: Vec<&String> = keys.iter().filter(|key| !found.has(key)).collect();
        let is_complete = !self
            .settled
            .problems
            .iter()
            .any(|problem| problem.is_about_context(name));
        if is_complete {
            let problems = absent.into_iter().map(|key| Problem::KeyMissing {
                what: what.clone(),
                key: key.clone(),
            });
            self.settled.problems.extend(problems);
        }
        names.merge(found);
    }

    /// Takes the picked keys that exist in a whole Secret. Missing ones are no error, because another Secret may have
    /// them.
    fn take_if_there(&mut self, name: &SecretName, taken: Taken<'_>, names: &mut Names) {
        let objects = self.inputs.objects;
        let Some(Ok(Some(texts))) = objects.secrets.get(name) else {
            return self.take_texts_of(name, taken, names);
        };
        self.hand(&name.index_kind(), &name.name, taken.keys.iter().copied());
        let there = taken.keys.iter().copied().filter(|key| texts.0.contains_key(*key));
        let there = Texts(there.map(|key| (key.to_owned(), texts.0[key].clone())).collect());
        names.take(&there, Taken { keys: &[], ..taken }, &mut self.settled);
    }

    fn finish(
        mut self,
        configuration: Names,
        contexts: BTreeMap<&str, Names>,
        cluster: statements::ClusterNames,
    ) -> Resolution {
        let mut configuration = self.settled.settle(&["configuration"], configuration);
        for FromCluster { name, .. } in &self.from_cluster {
            configuration.remove(name);
            let pointer = pointer(&["configuration", name]);
            self.settled.secret.retain(|secret| *secret != pointer);
        }
        let names = contexts.into_iter().map(|(name, names)| {
            (
                name.to_owned(),
                Value::Object(self.settled.settle(&["contexts", name], names)),
            )
        });
        let contexts: Map<String, Value> = names.collect();
        let cluster = self.finish_cluster(cluster);
        let service = self.finish_service();
        let document = [
            ("configuration", configuration),
            ("cluster", cluster),
            ("contexts", contexts),
            ("service", service),
        ];
        let values: Map<String, Value> = document
            .into_iter()
            .map(|(name, map)| (name.to_owned(), Value::Object(map)))
            .collect();

        let Settled {
            mut values_of,
            mut secret,
            mut problems,
        } = self.settled;
        secret.sort();
        values_of.sort_by(|a, b| a.name.cmp(&b.name));
        let from_cluster = self.from_cluster.into_iter().collect();
        let parameters = Parameters {
            values,
            secret,
            from_cluster,
        };
        let bytes = serde_json::to_vec(&parameters).map_or(usize::MAX, |json| json.len());
        if bytes > MAX_PARAMETERS_BYTES {
            problems.push(Problem::TooLarge { bytes });
        }

        problems.sort();
        problems.dedup();
        // Contexts may pick many keys for their services.
        let handed = if self.handed.len() > MAX_HANDED {
            as_wholes(self.handed)
        } else {
            self.handed
        };
        Resolution {
            parameters,
            bytes,
            values: values_of,
            problems,
            handed,
        }
    }

    fn finish_service(&mut self) -> Map<String, Value> {
        let Inputs { uid, name, spec, .. } = self.inputs;
        let own = [
            ("id", uid, "metadata.uid"),
            ("name", name, "metadata.name"),
            ("namespace", &spec.target_namespace, "spec.targetNamespace"),
        ];
        let mut map = Map::new();
        for (field, value, key) in own {
            let origin = self.origin("ServiceDeployment", name, key);
            self.settled.tell(&["service", field], origin, value.into());
            map.insert(field.to_owned(), value.into());
        }
        map
    }
}

impl Problem {
    fn is_about_context(&self, context: &str) -> bool {
        let about = |what: &String| what.ends_with(&format!(" of ServiceContext {context}"));
        match self {
            Self::Missing { what, .. }
            | Self::Unread { what, .. }
            | Self::NotText { what, .. }
            | Self::Waits { what } => about(what),
            _ => false,
        }
    }
}

/// What is taken from a ConfigMap or Secret.
struct Taken<'a> {
    /// Its name for people.
    what: String,
    /// Empty: all keys.
    keys: &'a [&'a str],
    prefix: &'a str,
    /// Origin of the object; the key is added.
    origin: Origin,
    secret: bool,
    /// Its index in the list.
    index: usize,
}

#[cfg(test)]
#[path = "parameters_tests.rs"]
mod tests;
