//! What a service and a context state, and what is invalid whatever the objects contain.

use std::collections::BTreeMap;

use farwater_api::{
    ServiceContextSpec, ServiceDeploymentSpec,
    parameters::{
        ClusterPart, MAX_CONFIGURATION_BYTES, MAX_NAMES, Parameter, ParameterSource, SecretReference, check_free_form,
        has_control,
    },
    service_context::MAX_CONTEXT_BYTES,
};
use serde_json::{Map, Value};

use super::{CLUSTERS, Problem, SecretName, settle::Names, work::Work};

/// Most keys that a service may pick, because each is a row of the index.
const MAX_PICKED: usize = 1024;

const CONTROL: &str = "a name or a key has a control character in it";

/// A statement with its keys (empty: all) and the prefix of their names.
pub enum Statement<'a> {
    Context(&'a str, &'a [String]),
    ConfigMap(&'a str, &'a [String], &'a str),
    Secret(SecretName, &'a [String], &'a str),
    ClusterSecret(&'a str, &'a [String], &'a str),
    Cluster(ClusterPart, &'a [String]),
}

/// The statements in order, with their index.
pub fn read_statements(parameters: &[Parameter]) -> impl Iterator<Item = (usize, Result<Statement<'_>, String>)> {
    let read = |(index, parameter)| (index, read_statement(parameter));
    parameters.iter().enumerate().map(read)
}

fn read_statement(parameter: &Parameter) -> Result<Statement<'_>, String> {
    let Parameter { from, keys, prefix } = parameter;
    let ParameterSource {
        context,
        config_map,
        secret,
        backend,
        cluster_secret,
        cluster,
    } = from;
    let before = prefix.as_deref().unwrap_or_default();
    let names = [context, config_map, secret, backend, cluster_secret]
        .into_iter()
        .flatten();
    if names.chain(keys).any(|name| has_control(name)) {
        return Err(CONTROL.to_owned());
    }
    if backend.is_some() && secret.is_none() {
        return Err("from.backend says which backend has the secret; name one".to_owned());
    }

    let statement = match (context, config_map, secret, cluster_secret, cluster) {
        (Some(name), None, None, None, None) => Statement::Context(name, keys),
        (None, Some(name), None, None, None) => Statement::ConfigMap(name, keys, before),
        (None, None, Some(name), None, None) => {
            let name = SecretName {
                backend: backend.clone(),
                name: name.clone(),
            };
            Statement::Secret(name, keys, before)
        }
        (None, None, None, Some(name), None) => Statement::ClusterSecret(name, keys, before),
        (None, None, None, None, Some(part)) => Statement::Cluster(*part, keys),
        _ => return Err("from names exactly one of context, configMap, secret, clusterSecret and cluster".to_owned()),
    };

    let takes_prefix = !matches!(statement, Statement::Context(..) | Statement::Cluster(..));
    match statement {
        _ if prefix.is_some() && !takes_prefix => {
            Err("a prefix is for keys of ConfigMaps and Secrets; these have names of their own".to_owned())
        }
        Statement::ClusterSecret(_, [], _) => {
            Err("a Secret of the cluster is picked by keys: the hub does not know which it has".to_owned())
        }
        Statement::Cluster(ClusterPart::Annotations, []) => {
            Err("annotations are picked by keys: most of them are other programs' notes".to_owned())
        }
        Statement::Cluster(ClusterPart::Version, [_, ..]) => Err("a version has no keys".to_owned()),
        statement => Ok(statement),
    }
}

/// What is wrong with a service's statements, by field below `spec`. No text quotes a value.
pub fn check_service(spec: &ServiceDeploymentSpec) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    let bytes = serde_json::to_vec(&spec.configuration).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_CONFIGURATION_BYTES {
        let why = format!("has {bytes} bytes as JSON; at most {MAX_CONFIGURATION_BYTES} are taken");
        wrong.push(("configuration".to_owned(), why));
    }
    if spec.configuration.len() > MAX_NAMES {
        let why = format!("has {} names; at most {MAX_NAMES} are taken", spec.configuration.len());
        wrong.push(("configuration".to_owned(), why));
    }
    for name in spec.configuration.keys().filter(|name| !is_name(name)) {
        let why = "a name consists of letters, digits, '-', '_' and '.', and has at most 253 of them";
        wrong.push((format!("configuration[{name}]"), why.to_owned()));
    }
    let picked: usize = spec.parameters.iter().map(|parameter| parameter.keys.len()).sum();
    if picked > MAX_PICKED {
        wrong.push((
            "parameters".to_owned(),
            format!("{picked} keys are picked; at most {MAX_PICKED} are taken"),
        ));
    }

    let mut stated = Stated::default();
    for name in spec.configuration.keys() {
        let _ = stated.note("configuration".to_owned(), name, "spec.configuration".to_owned());
    }
    for (index, statement) in read_statements(&spec.parameters) {
        let at = format!("parameters[{index}]");
        let noted = match statement {
            Err(why) => Err(why),
            Ok(statement) => stated.note_statement(&statement, &format!("spec.{at}")),
        };
        if let Err(why) = noted {
            wrong.push((at, why));
        }
    }
    wrong
}

/// The same for a context.
pub fn check_context(spec: &ServiceContextSpec) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    if let Err(why) = check_free_form(&spec.configuration, MAX_CONTEXT_BYTES) {
        wrong.push(("configuration".to_owned(), why));
    }
    let mut stated = Stated::default();
    for name in spec.configuration.keys() {
        let _ = stated.note(String::new(), name, "spec.configuration".to_owned());
    }
    for (index, SecretReference { name, backend, keys }) in spec.secret_refs.iter().enumerate() {
        let by = format!("spec.secretRefs[{index}]");
        if [name]
            .into_iter()
            .chain(backend)
            .chain(keys)
            .any(|name| has_control(name))
        {
            wrong.push((format!("secretRefs[{index}]"), CONTROL.to_owned()));
        }
        for key in keys {
            if let Err(why) = stated.note(String::new(), key, by.clone()) {
                wrong.push((format!("secretRefs[{index}]"), why));
            }
        }
    }
    wrong
}

fn is_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 253 && name.bytes().all(inner)
}

/// Stated names by their map, with what states them.
#[derive(Default)]
struct Stated(BTreeMap<(String, String), String>);

impl Stated {
    fn note(&mut self, map: String, name: &str, by: String) -> Result<(), String> {
        match self.0.get(&(map.clone(), name.to_owned())) {
            Some(first) => Err(format!("{name} is stated twice, by {first} and by {by}")),
            None => {
                self.0.insert((map, name.to_owned()), by);
                Ok(())
            }
        }
    }

    fn note_statement(&mut self, statement: &Statement<'_>, by: &str) -> Result<(), String> {
        let (map, keys, prefix) = match statement {
            Statement::ConfigMap(_, keys, prefix)
            | Statement::Secret(_, keys, prefix)
            | Statement::ClusterSecret(_, keys, prefix) => ("configuration".to_owned(), *keys, *prefix),
            Statement::Context(name, keys) => (format!("contexts.{name}"), *keys, ""),
            Statement::Cluster(part, keys) => (format!("cluster.{part:?}"), *keys, ""),
        };
        let is_whole = keys.is_empty();
        if is_whole && map == "configuration" {
            return Ok(());
        }
        if is_whole {
            // The whole object: it includes any key that is also picked from it.
            let other = self.0.iter().find(|((of, _), _)| *of == map).map(|(_, by)| by.clone());
            return match other {
                Some(other) => Err(format!("{map} is stated twice, by {other} and by {by}")),
                None => self.note(map, "", by.to_owned()),
            };
        }
        if let Some(other) = self.0.get(&(map.clone(), String::new())) {
            return Err(format!("{map} is stated twice, by {other} and by {by}"));
        }
        keys.iter()
            .try_for_each(|key| self.note(map.clone(), &format!("{prefix}{key}"), by.to_owned()))
    }
}

/// Names taken from the Cluster.
#[derive(Default)]
pub struct ClusterNames {
    labels: Names,
    annotations: Names,
    metadata: Names,
    version: bool,
}

impl Work<'_> {
    pub fn take_cluster(&mut self, part: ClusterPart, keys: &[String], index: usize, names: &mut ClusterNames) {
        let cluster = self.inputs.cluster;
        let (name, what) = (cluster.name, format!("{part:?} of Cluster {}", cluster.name));
        let handed: Vec<String> = match keys {
            [] => vec![format!("{part:?}/*")],
            keys => keys.iter().map(|key| format!("{part:?}/{key}")).collect(),
        };
        self.hand(CLUSTERS, name, handed.iter().map(String::as_str));

        let texts = |map: &BTreeMap<String, String>| -> Map<String, Value> {
            map.iter()
                .map(|(key, text)| (key.clone(), text.clone().into()))
                .collect()
        };
        let (of_part, path) = match part {
            ClusterPart::Labels => (texts(cluster.labels), "metadata.labels"),
            ClusterPart::Annotations => (texts(cluster.annotations), "metadata.annotations"),
            ClusterPart::Metadata => (cluster.metadata.clone(), "spec.metadata"),
            ClusterPart::Version => {
                if cluster.version.is_none() {
                    let why = "its agent has not said yet which version of Kubernetes it has".to_owned();
                    self.settled.problems.push(Problem::Unread {
                        what: format!("Cluster {name}"),
                        why,
                    });
                }
                names.version = true;
                return;
            }
        };
        let into = match part {
            ClusterPart::Labels => &mut names.labels,
            ClusterPart::Annotations => &mut names.annotations,
            ClusterPart::Metadata | ClusterPart::Version => &mut names.metadata,
        };

        let origin = |key: &str| self.origin("Cluster", name, &format!("{path}[{key}]"));
        if keys.is_empty() {
            for (key, value) in of_part {
                let origin = origin(&key);
                into.add_whole(index, &key, value, origin);
            }
            return;
        }
        let mut absent = Vec::new();
        for key in keys {
            match of_part.get(key) {
                Some(value) => into.state(key, value.clone(), origin(key), false),
                None => absent.push(Problem::KeyMissing {
                    what: what.clone(),
                    key: key.clone(),
                }),
            }
        }
        self.settled.problems.extend(absent);
    }

    pub fn finish_cluster(&mut self, names: ClusterNames) -> Map<String, Value> {
        let cluster = self.inputs.cluster;
        let mut map = Map::new();
        let known = [
            ("id", cluster.uid, "metadata.uid"),
            ("name", cluster.name, "metadata.name"),
            ("handle", cluster.name, "metadata.name"),
            ("namespace", cluster.namespace, "metadata.namespace"),
        ];
        for (field, value, key) in known {
            self.settled.tell(
                &["cluster", field],
                self.origin("Cluster", cluster.name, key),
                value.into(),
            );
            map.insert(field.to_owned(), value.into());
        }

        let labels = self.settled.settle(&["cluster", "labels"], names.labels);
        let annotations = self.settled.settle(&["cluster", "annotations"], names.annotations);
        let metadata = self.settled.settle(&["cluster", "metadata"], names.metadata);
        for (field, part) in [
            ("tags", labels.clone()),
            ("labels", labels),
            ("annotations", annotations),
            ("metadata", metadata),
        ] {
            map.insert(field.to_owned(), part.into());
        }
        if let Some(version) = cluster.version.filter(|_| names.version) {
            let origin = self.origin("Cluster", cluster.name, "status.kubernetesVersion");
            self.settled.tell(&["cluster", "version"], origin, version.into());
            for field in ["version", "currentVersion"] {
                map.insert(field.to_owned(), version.into());
            }
        }
        map
    }
}
