//! Takes the values that the statements of a service name, and builds the document from them.

use std::collections::{BTreeMap, BTreeSet};

use farwater_api::parameters::{CLUSTER_SECRET, FromCluster, MAX_PARAMETERS_BYTES, Origin, Parameters, pointer};
use serde_json::{Map, Value};

use super::{
    CLUSTERS, CONFIG_MAPS, CONTEXTS, Handed, Inputs, Problem, Resolution, SecretName, Texts, Unknown,
    secrets_of_context,
    settle::{Names, Settled},
    statements::{ClusterNames, Statement, read_statements},
};

/// Most keys in the index of a service's inputs, each of them a row. With more, the service is reconciled on any change
/// of its objects.
const MAX_HANDED: usize = 2048;

/// The objects, each with any of its keys.
pub(super) fn as_wholes(handed: BTreeSet<Handed>) -> BTreeSet<Handed> {
    handed
        .into_iter()
        .map(|handed| Handed {
            key: String::new(),
            ..handed
        })
        .collect()
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
    let mut cluster = ClusterNames::default();
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

pub(super) struct Work<'a> {
    pub(super) inputs: Inputs<'a>,
    pub(super) settled: Settled,
    pub(super) handed: BTreeSet<Handed>,
    pub(super) from_cluster: BTreeSet<FromCluster>,
}

impl<'a> Work<'a> {
    pub(super) fn origin(&self, kind: &str, name: &str, key: &str) -> Origin {
        Origin {
            kind: kind.to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
            ..Origin::default()
        }
    }

    /// Records a dependency of the service. Without keys: on all keys of the object.
    pub(super) fn hand<'k>(&mut self, kind: &str, name: &str, keys: impl IntoIterator<Item = &'k str>) {
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

    pub(super) fn missing(&mut self, what: String) {
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

    fn finish(mut self, configuration: Names, contexts: BTreeMap<&str, Names>, cluster: ClusterNames) -> Resolution {
        let values = self.settle_values(configuration, contexts, cluster);

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

    /// The document: its parts by name.
    fn settle_values(
        &mut self,
        configuration: Names,
        contexts: BTreeMap<&str, Names>,
        cluster: ClusterNames,
    ) -> Map<String, Value> {
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
        document
            .into_iter()
            .map(|(name, map)| (name.to_owned(), Value::Object(map)))
            .collect()
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
pub(super) struct Taken<'a> {
    /// Its name for people.
    pub(super) what: String,
    /// Empty: all keys.
    pub(super) keys: &'a [&'a str],
    pub(super) prefix: &'a str,
    /// Origin of the object; the key is added.
    pub(super) origin: Origin,
    pub(super) secret: bool,
    /// Its index in the list.
    pub(super) index: usize,
}
