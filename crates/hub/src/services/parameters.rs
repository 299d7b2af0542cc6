//! A service's parameters and their values.
//!
//! They are resolved when something changes that the service uses, as its row says, and not when its cluster is
//! computed for another reason. Rows contain a MAC and names; values are read from the store when they are resolved and
//! when they are sent.
//!
//! The newest document of a set's member waits for the rollout, with its content and its spec. Until then the earlier
//! document counts. So that an earlier one can be sent, the documents of members are stored, sealed, unless the spec
//! alone has all their parameters. No other values are stored.

mod inputs;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use farwater_api::{
    Digest, ServiceContext, ServiceDeploymentSpec, canonical_json,
    parameters::{MAX_SOURCE_BYTES, Parameters},
};
use farwater_fleet::{
    conditions::cut,
    parameters::{
        CLUSTERS, ClusterInput, Handed, Inputs, Objects, Problem, Resolution, describe, has_parameters, is_handed,
        resolve, wanted, wanted_through,
    },
};
use farwater_store::{
    Key, StoreError, Tx,
    delivery::{InputVersion, ParameterKey, ParameterRow, Resolved, load_parameters, save_document, versions_of},
};
use serde_json::json;
use zeroize::Zeroizing;

use crate::{
    identity::Identity,
    replica::Replica,
    resources::{self, Name, Stored as _},
    secret_backends::{self},
    services::{ClusterFacts, ServiceFacts},
};
pub use inputs::InputCache;
use inputs::Reading;

const MAC_PURPOSE: &str = "service-parameters";
/// Identifies the key that the MACs of rows were made with.
const KEY_PURPOSE: &str = "service-parameters-key";
/// Raised when the same objects result in another document.
const FORMAT: u32 = 1;
/// Maximum bytes of a problem, which goes into a condition and an entry.
const MAX_PROBLEM: usize = 768;

/// The parameters in a service's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// MAC of the document, or its problem.
    pub mac: Result<Option<Digest>, String>,
    /// How often they have changed.
    pub turn: u64,
    /// The problem of newer parameters while earlier ones count; None: there is none.
    newer_problem: Option<String>,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            mac: Ok(None),
            turn: 0,
            newer_problem: None,
        }
    }
}

impl Given {
    pub fn problem(&self) -> Option<&str> {
        self.mac
            .as_ref()
            .err()
            .or(self.newer_problem.as_ref())
            .map(String::as_str)
    }
}

/// The values of a document. They are never printed.
#[derive(Clone)]
struct Values(Zeroizing<Vec<u8>>);

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

/// Resolved parameters of a service, to save with the state that names them.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub service: Name,
    pub resolved: Resolved,
    /// Versions of the objects that were read. If one has changed at the save, they are resolved once more.
    pub inputs: Vec<InputVersion>,
    /// They differ from before.
    pub is_news: bool,
    /// It is a set's member and its parameters don't come from the spec alone, so its rollout decides about them.
    pub is_of_rollout: bool,
    /// Values to store.
    kept: Option<Values>,
}

impl Fresh {
    /// The document to store with its row; None: none is stored.
    pub fn document(&self) -> Option<Document> {
        let (ParameterRow { service_uid, mac, .. }, values) = (&self.resolved.row, self.kept.clone()?);
        Some(Document {
            service_uid: service_uid.clone(),
            mac: mac.clone(),
            values,
        })
    }
}

/// A document of parameters to store.
#[derive(Debug)]
pub struct Document {
    service_uid: String,
    mac: String,
    values: Values,
}

impl Document {
    /// Saves the document if the row that belongs to it was written.
    pub async fn save(self, tx: &mut Tx) -> Result<(), StoreError> {
        let Self {
            service_uid,
            mac,
            values,
        } = self;
        match load_parameters(tx, &service_uid).await? {
            Some(row) if row.mac == mac => save_document(tx, &service_uid, &mac, &values.0).await,
            _ => Ok(()),
        }
    }
}

/// Returns what a service's entry says about its parameters. The newest are the row's, or are resolved if something has
/// changed since.
pub async fn give(
    replica: &Replica,
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    row: Option<&ParameterRow>,
    cache: &mut InputCache,
) -> Result<(Given, Option<Fresh>), StoreError> {
    if facts.deleting() || (row.is_none() && !may_have(facts)) {
        return Ok((Given::default(), None));
    }
    let fresh = resolve_newest(replica, facts, cluster, row, cache).await?;
    let newest = fresh.as_ref().map(|fresh| &fresh.resolved.row).or(row);
    let given = match newest {
        Some(newest) => count(replica, facts, cluster, newest).await?,
        None => Given::default(),
    };
    Ok((given, fresh))
}

/// Whether a service has parameters, in its own spec or in the one that counts.
fn may_have(facts: &ServiceFacts) -> bool {
    has_parameters(newest_spec(facts)) || has_parameters(&facts.service.spec)
}

/// The spec of the newest parameters: a member's own, even if a held one counts.
fn newest_spec(facts: &ServiceFacts) -> &ServiceDeploymentSpec {
    facts
        .member
        .as_ref()
        .and_then(|member| member.own.as_deref())
        .unwrap_or(&facts.service.spec)
}

/// Resolves the newest parameters; None: the row has them.
async fn resolve_newest(
    replica: &Replica,
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    row: Option<&ParameterRow>,
    cache: &mut InputCache,
) -> Result<Option<Fresh>, StoreError> {
    let spec = newest_spec(facts);
    let stamp = stamp(&replica.identity, spec, &cluster.uid);
    if row.is_some_and(|row| is_newest(row, &stamp)) {
        return Ok(None);
    }

    let is_of_set = facts.member.is_some();
    let is_of_rollout = is_of_set && is_handed(spec);
    let NewDocument {
        mac,
        problem,
        values,
        keys,
        inputs,
    } = match has_parameters(spec) {
        true => NewDocument::resolve(replica, facts, spec, cluster, cache).await?,
        false => NewDocument::default(),
    };

    let known = row.cloned().unwrap_or_default();
    let changed = known.mac != mac;
    let is_news = row.is_none() || changed || known.problem != problem;
    // The entry of a member changes when its change is released, and not before.
    let turn = known.turn + i64::from(row.is_some() && changed && !is_of_set);

    let row = ParameterRow {
        service_uid: facts.uid.clone(),
        stamp,
        mac,
        problem,
        turn,
        marks: known.marks,
    };
    let (service, resolved) = (facts.name.clone(), Resolved { row, keys });
    Ok(Some(Fresh {
        service,
        resolved,
        inputs,
        is_news,
        is_of_rollout,
        kept: values.filter(|_| is_of_rollout),
    }))
}

/// A service's parameters as they are now. Empty if its spec has none.
#[derive(Default)]
struct NewDocument {
    /// MAC of the values; empty: there is a problem.
    mac: String,
    problem: String,
    values: Option<Values>,
    keys: BTreeSet<ParameterKey>,
    inputs: Vec<InputVersion>,
}

impl NewDocument {
    async fn resolve(
        replica: &Replica,
        facts: &ServiceFacts,
        spec: &ServiceDeploymentSpec,
        cluster: &ClusterFacts,
        cache: &mut InputCache,
    ) -> Result<Self, StoreError> {
        replica.memory.counters.parameters_resolved.inc();
        let (resolution, inputs) = load(replica, &facts.uid, &facts.name, spec, cluster, cache).await?;
        let (mac, problem, values) = match resolution.problems.as_slice() {
            [] => {
                let json = encode(&resolution.parameters);
                let mac = mac(&replica.identity, &facts.uid, &json).to_string();
                (mac, String::new(), Some(Values(json)))
            }
            problems => (String::new(), describe_problems(problems), None),
        };
        let keys = resolution.handed.into_iter().map(
            |Handed {
                 kind,
                 namespace,
                 name,
                 key,
             }| ParameterKey {
                kind,
                namespace,
                name,
                key,
            },
        );
        Ok(Self {
            mac,
            problem,
            values,
            keys: keys.collect(),
            inputs,
        })
    }
}

fn describe_problems(problems: &[Problem]) -> String {
    cut(&describe(problems).replace('\0', " "), MAX_PROBLEM)
}

/// The parameters that count for a service's entry, given its newest ones.
async fn count(
    replica: &Replica,
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    newest: &ParameterRow,
) -> Result<Given, StoreError> {
    let newest = given(newest)?;
    let Some(member) = &facts.member else { return Ok(newest) };
    let spec = &facts.service.spec;
    let mac = match member.counts {
        Some(counts) if is_handed(spec) => Ok(Some(counts)),
        None if is_handed(spec) => return Ok(newest),
        _ if member.own.is_none() => return Ok(newest),
        // The held spec still counts, and has all its parameters itself.
        _ if !has_parameters(spec) => Ok(None),
        _ => {
            let (uid, mut cache) = (&facts.uid, InputCache::default());
            let (resolution, _) = load(replica, uid, &facts.name, spec, cluster, &mut cache).await?;
            match resolution.problems.as_slice() {
                [] => Ok(Some(mac(&replica.identity, uid, &encode(&resolution.parameters)))),
                problems => Err(describe_problems(problems)),
            }
        }
    };
    Ok(Given {
        mac,
        turn: newest.turn,
        newer_problem: newest.mac.err(),
    })
}

/// The parameters in a service's published entry, even if an input has changed since. None: they were never resolved.
pub async fn published(
    replica: &Replica,
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    row: Option<&ParameterRow>,
) -> Result<Option<Given>, StoreError> {
    match row {
        _ if facts.deleting() => Ok(Some(Given::default())),
        Some(row) => count(replica, facts, cluster, row).await.map(Some),
        None => Ok((!may_have(facts)).then(Given::default)),
    }
}

/// The newest parameters of a set's member, unless they come from its spec alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newest {
    /// They come from its spec alone.
    Own,
    /// They are resolved when its cluster is computed next.
    Unresolved,
    /// Its row contains their problem.
    Wrong,
    Is(Digest),
}

impl Newest {
    /// `spec`: the service's own spec.
    pub fn of(
        identity: &Identity,
        spec: &ServiceDeploymentSpec,
        cluster_uid: &str,
        row: Option<&ParameterRow>,
    ) -> Result<Self, StoreError> {
        if !is_handed(spec) {
            return Ok(Self::Own);
        }
        let stamp = stamp(identity, spec, cluster_uid);
        let Some(row) = row.filter(|row| is_newest(row, &stamp)) else {
            return Ok(Self::Unresolved);
        };
        Ok(given(row)?.mac.ok().flatten().map_or(Self::Wrong, Self::Is))
    }

    pub fn mac(self) -> Option<Digest> {
        if let Self::Is(mac) = self { Some(mac) } else { None }
    }
}

fn is_newest(row: &ParameterRow, stamp: &str) -> bool {
    row.stamp == stamp && row.marks == 0
}

fn given(row: &ParameterRow) -> Result<Given, StoreError> {
    let damaged = |problem: String| StoreError::Row {
        what: format!("parameters of service {}", row.service_uid),
        problem,
    };
    let mac = match (row.mac.as_str(), row.problem.as_str()) {
        ("", "") => Ok(None),
        ("", problem) => Err(problem.to_owned()),
        (mac, _) => Ok(Some(mac.parse().map_err(|error| damaged(format!("{error}")))?)),
    };
    Ok(Given {
        mac,
        turn: row.turn.unsigned_abs(),
        newer_problem: None,
    })
}

/// Identifies what a row was made for: the spec's parameters, the cluster, the format and the key. It uses the spec's
/// content, because which spec counts changes without a write of the service.
fn stamp(identity: &Identity, spec: &ServiceDeploymentSpec, cluster_uid: &str) -> String {
    let stated = Digest::of_json(&json!([spec.configuration, spec.parameters, spec.target_namespace]));
    let [stated, key] = [&stated.as_bytes()[..], &identity.mac(KEY_PURPOSE, b"")].map(|bytes| hex::encode(&bytes[..8]));
    format!("{FORMAT} {stated} {cluster_uid} {key}")
}

/// Versions that all objects used by these specs have now.
pub async fn load_versions(
    replica: &Replica,
    namespace: &str,
    specs: &[ServiceDeploymentSpec],
) -> Result<Vec<InputVersion>, StoreError> {
    let mut keys = BTreeSet::new();
    for spec in specs.iter().filter(|spec| is_handed(spec)) {
        let wanted = wanted(spec);
        let mut contexts = BTreeMap::new();
        for name in wanted.contexts {
            let key = Name::new(namespace, &name);
            let found = resources::load::<ServiceContext>(&replica.store, &key).await?;
            keys.insert(ServiceContext::key(&key));
            contexts.insert(name, found.map(|(_, context)| Arc::new(context.spec)));
        }
        let of_map = |name| Key {
            kind: resources::config_maps(),
            namespace: namespace.to_owned(),
            name,
        };
        keys.extend(wanted.config_maps.into_iter().map(of_map));
        let secrets = wanted.secrets.into_iter().chain(wanted_through(spec, &contexts));
        keys.extend(secrets.map(|secret| secret_backends::key(namespace, &secret)));
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Key> = keys.into_iter().collect();
    let mut versions = versions_of(&mut *replica.store.tables().await?, &keys).await?;
    for input in &mut versions {
        input.version = replica.secret_backends.version(&input.key).or(input.version);
    }
    Ok(versions)
}

/// Includes the service, so that equal values of two services don't have equal MACs in their entries.
pub fn mac(identity: &Identity, service_uid: &str, json: &[u8]) -> Digest {
    let message = Zeroizing::new([service_uid.as_bytes(), b"\n", json].concat());
    Digest::from_bytes(identity.mac(MAC_PURPOSE, &message))
}

/// Equal for equal content.
pub fn encode(parameters: &Parameters) -> Zeroizing<Vec<u8>> {
    let value = serde_json::to_value(parameters).unwrap_or_default();
    Zeroizing::new(canonical_json(&value))
}

/// Resolves a service's parameters as they are now. Returns also the versions of the objects that were read.
pub async fn load(
    replica: &Replica,
    uid: &str,
    name: &Name,
    spec: &ServiceDeploymentSpec,
    cluster: &ClusterFacts,
    cache: &mut InputCache,
) -> Result<(Resolution, Vec<InputVersion>), StoreError> {
    cache.bound();
    let mut reading = Reading {
        replica,
        namespace: &name.namespace,
        cache,
        inputs: BTreeMap::new(),
        objects: Objects::default(),
        bytes: 0,
    };

    reading.read(spec).await?;
    let Reading {
        mut inputs,
        objects,
        bytes,
        ..
    } = reading;
    let mut resolution = resolve(Inputs {
        uid,
        namespace: &name.namespace,
        name: &name.name,
        spec,
        cluster: ClusterInput {
            uid: &cluster.uid,
            namespace: &cluster.name.namespace,
            name: &cluster.name.name,
            labels: &cluster.labels,
            annotations: &cluster.annotations,
            metadata: &cluster.metadata,
            version: cluster.kubernetes_version.as_deref(),
        },
        objects: &objects,
    });

    if bytes > MAX_SOURCE_BYTES {
        resolution = resolution.into_too_much();
    }
    if resolution.handed.iter().any(|handed| handed.kind == CLUSTERS) {
        inputs.insert(farwater_api::Cluster::key(&cluster.name), Some(cluster.version));
    }

    let inputs = inputs
        .into_iter()
        .map(|(key, version)| InputVersion { key, version })
        .collect();
    Ok((resolution, inputs))
}
