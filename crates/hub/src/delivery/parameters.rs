//! A service's parameters: what they come to, and `GET /agent/v1/parameters/<service uid>/<mac>`, sealed to the agent that asks.
//!
//! They are resolved when something changes that the service is handed, which its row says, and not when its cluster is computed
//! for another reason. Rows hold a MAC and names; values are read from the store when they are resolved and when they are sent, and
//! kept nowhere.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use axum::{
    Json,
    extract::{Path, State},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{
    Digest, ServiceContext, ServiceContextSpec, ServiceDeployment, ServiceDeploymentSpec, canonical_json,
    parameters::{MAX_SOURCE_BYTES, Parameters},
    protocol::{Action, Entry, SealedSecrets},
};
use farwater_fleet::{
    conditions::cut,
    parameters::{
        CLUSTERS, ClusterInput, Handed, Inputs, Objects, Resolution, SecretName, Texts, Unknown, describe,
        has_parameters, resolve, wanted, wanted_through,
    },
};
use farwater_store::{
    Key, StoreError,
    delivery::{InputVersion, ParameterKey, ParameterRow, Resolved, load_agent, load_desired, mark_parameters},
};
use http::HeaderMap;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{Delivery, answer::Refusal, desired, secrets::seal, token::authenticate};
use crate::{
    controllers::{
        held_specs,
        resources::{self, Name, Stored as _},
        services::{ClusterFacts, ServiceFacts},
    },
    identity::Identity,
    secret_backends::{self, SecretContent},
};

const MAC_PURPOSE: &str = "service-parameters";
/// Tells which key the MACs of rows were made under.
const KEY_PURPOSE: &str = "service-parameters-key";
/// Raised when the same objects come to another document.
const FORMAT: u32 = 1;
/// Of a problem: it goes into a condition and an entry.
const MAX_PROBLEM: usize = 768;
/// Objects that are kept while many services are resolved, most of which are shared by many; and their bytes.
const MAX_CACHED: usize = 256;
const MAX_CACHED_BYTES: usize = 32 << 20;

/// What a service's entry says of its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Its MAC, or what is wrong.
    pub mac: Result<Option<Digest>, String>,
    /// How often they have become others.
    pub turn: u64,
}

impl Default for Given {
    fn default() -> Self {
        Self { mac: Ok(None), turn: 0 }
    }
}

/// What came of a service's parameters just now, to be written with the state that names it.
#[derive(Clone, Debug)]
pub struct Fresh {
    pub service: Name,
    pub resolved: Resolved,
    /// What was read for it: where that is another by then, it is resolved once more.
    pub inputs: Vec<InputVersion>,
    /// The entry says something else than before.
    pub is_news: bool,
}

/// Objects that were read, for the services that are resolved together.
#[derive(Default)]
pub struct InputCache {
    contexts: HashMap<Name, Read<Option<Arc<ServiceContextSpec>>>>,
    config_maps: HashMap<Name, Read<Option<Arc<Texts>>>>,
    /// By namespace.
    secrets: HashMap<(String, SecretName), Read<SecretTexts>>,
    /// Of all of them.
    bytes: usize,
}

impl InputCache {
    fn bound(&mut self) {
        let count = self.contexts.len() + self.config_maps.len() + self.secrets.len();
        if count > MAX_CACHED || self.bytes > MAX_CACHED_BYTES {
            *self = Self::default();
        }
    }
}

type SecretTexts = Result<Option<Arc<Texts>>, Unknown>;

/// An object.
#[derive(Clone, Default)]
struct Read<T> {
    /// Which state of it this is; none: there is none.
    version: Option<u64>,
    content: T,
    bytes: usize,
}

/// What a service's entry says of its parameters: as its row has it, or as they are resolved anew, where something has changed
/// since.
pub async fn give(
    delivery: &Delivery,
    facts: &ServiceFacts,
    cluster: &ClusterFacts,
    row: Option<&ParameterRow>,
    cache: &mut InputCache,
) -> Result<(Given, Option<Fresh>), StoreError> {
    let spec = &facts.service.spec;
    if facts.deleting() || (row.is_none() && !has_parameters(spec)) {
        return Ok((Given::default(), None));
    }
    let stamp = stamp(&delivery.identity, facts, cluster);
    if let Some(row) = row.filter(|row| row.stamp == stamp && row.marks == 0) {
        return Ok((given(row)?, None));
    }
    let (mut keys, mut inputs) = (BTreeSet::new(), Vec::new());
    let (mut mac, mut problem) = (String::new(), String::new());
    if has_parameters(spec) {
        delivery.counters.parameters_resolved.inc();
        let (resolution, read) = load(delivery, &facts.uid, &facts.name, spec, cluster, cache).await?;
        match resolution.problems.as_slice() {
            [] => mac = self::mac(&delivery.identity, &facts.uid, &encode(&resolution.parameters)).to_string(),
            problems => problem = cut(&describe(problems).replace('\0', " "), MAX_PROBLEM),
        }
        keys.extend(resolution.handed.into_iter().map(|Handed { kind, namespace, name, key }| ParameterKey {
            kind,
            namespace,
            name,
            key,
        }));
        inputs = read;
    }
    let known = row.cloned().unwrap_or_default();
    let changed = known.mac != mac;
    let is_news = row.is_none() || changed || known.problem != problem;
    let turn = known.turn + i64::from(row.is_some() && changed);
    let row = ParameterRow { service_uid: facts.uid.clone(), stamp, mac, problem, turn, marks: known.marks };
    let given = given(&row)?;
    Ok((given, Some(Fresh { service: facts.name.clone(), resolved: Resolved { row, keys }, inputs, is_news })))
}

/// What the published entry of a service says of them, whatever has changed since; none where they were never put together.
pub fn published(facts: &ServiceFacts, row: Option<&ParameterRow>) -> Result<Option<Given>, StoreError> {
    match row {
        _ if facts.deleting() => Ok(Some(Given::default())),
        Some(row) => given(row).map(Some),
        None => Ok((!has_parameters(&facts.service.spec)).then(Given::default)),
    }
}

fn given(row: &ParameterRow) -> Result<Given, StoreError> {
    let damaged =
        |problem: String| StoreError::Row { what: format!("parameters of service {}", row.service_uid), problem };
    let mac = match (row.mac.as_str(), row.problem.as_str()) {
        ("", "") => Ok(None),
        ("", problem) => Err(problem.to_owned()),
        (mac, _) => Ok(Some(mac.parse().map_err(|error| damaged(format!("{error}")))?)),
    };
    Ok(Given { mac, turn: row.turn.unsigned_abs() })
}

/// What of the service and its cluster a row was made for, in which form and under which key.
fn stamp(identity: &Identity, facts: &ServiceFacts, cluster: &ClusterFacts) -> String {
    // The spec that counts, and not the generation: what is held is let go without a new one.
    let spec = &facts.service.spec;
    let stated = Digest::of_json(&json!([spec.configuration, spec.parameters, spec.target_namespace]));
    let [stated, key] = [&stated.as_bytes()[..], &identity.mac(KEY_PURPOSE, b"")].map(|bytes| hex::encode(&bytes[..8]));
    format!("{FORMAT} {stated} {} {key}", cluster.uid)
}

/// Tied to the service, so that nobody learns from two entries that two services are handed the same.
fn mac(identity: &Identity, service_uid: &str, json: &[u8]) -> Digest {
    let message = Zeroizing::new([service_uid.as_bytes(), b"\n", json].concat());
    Digest::from_bytes(identity.mac(MAC_PURPOSE, &message))
}

/// The same for the same content.
fn encode(parameters: &Parameters) -> Zeroizing<Vec<u8>> {
    let value = serde_json::to_value(parameters).unwrap_or_default();
    Zeroizing::new(canonical_json(&value))
}

/// What a service is handed by now, and which state of what it was read from.
pub async fn load(
    delivery: &Delivery,
    uid: &str,
    name: &Name,
    spec: &ServiceDeploymentSpec,
    cluster: &ClusterFacts,
    cache: &mut InputCache,
) -> Result<(Resolution, Vec<InputVersion>), StoreError> {
    cache.bound();
    let mut reading = Reading {
        delivery,
        namespace: &name.namespace,
        cache,
        inputs: BTreeMap::new(),
        objects: Objects::default(),
        bytes: 0,
    };
    reading.read(spec).await?;
    let Reading { mut inputs, objects, bytes, .. } = reading;
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
    let inputs = inputs.into_iter().map(|(key, version)| InputVersion { key, version }).collect();
    Ok((resolution, inputs))
}

/// Reads the objects that a service names, until they are too much.
struct Reading<'a> {
    delivery: &'a Delivery,
    namespace: &'a str,
    cache: &'a mut InputCache,
    inputs: BTreeMap<Key, Option<u64>>,
    objects: Objects,
    bytes: usize,
}

impl Reading<'_> {
    async fn read(&mut self, spec: &ServiceDeploymentSpec) -> Result<(), StoreError> {
        let wanted = wanted(spec);
        for name in wanted.contexts {
            self.read_context(name).await?;
        }
        let through = wanted_through(spec, &self.objects.contexts);
        for name in wanted.config_maps {
            self.read_config_map(name).await?;
        }
        let secrets: BTreeSet<SecretName> = wanted.secrets.into_iter().chain(through).collect();
        for secret in secrets {
            self.read_secret(secret).await?;
        }
        Ok(())
    }

    fn is_too_much(&self) -> bool {
        self.bytes > MAX_SOURCE_BYTES
    }

    fn note(&mut self, key: Key, version: Option<u64>, bytes: usize) {
        self.inputs.insert(key, version);
        self.bytes += bytes;
    }

    /// Contexts are small; all are read, so that all Secrets are known that are named.
    async fn read_context(&mut self, name: String) -> Result<(), StoreError> {
        let key = Name::new(self.namespace, &name);
        if !self.cache.contexts.contains_key(&key) {
            let found = resources::load::<ServiceContext>(&self.delivery.store, &key).await?;
            let read = found.map(|(resource, context)| Read {
                version: Some(resource.version),
                bytes: serde_json::to_vec(&context.spec.configuration).map_or(0, |json| json.len()),
                content: Some(Arc::new(context.spec)),
            });
            let read = read.unwrap_or_default();
            self.cache.bytes += read.bytes;
            self.cache.contexts.insert(key.clone(), read);
        }
        let Read { version, content, bytes } = self.cache.contexts.get(&key).cloned().unwrap_or_default();
        self.note(ServiceContext::key(&key), version, bytes);
        self.objects.contexts.insert(name, content);
        Ok(())
    }

    async fn read_config_map(&mut self, name: String) -> Result<(), StoreError> {
        if self.is_too_much() {
            return Ok(());
        }
        let key = Name::new(self.namespace, &name);
        let stored = Key { kind: resources::config_maps(), namespace: key.namespace.clone(), name: name.clone() };
        if !self.cache.config_maps.contains_key(&key) {
            let found = self.delivery.store.get(&stored).await?;
            let read = found.map(|resource| {
                let texts = texts_of_config_map(&resource.object);
                Read { version: Some(resource.version), bytes: texts.bytes(), content: Some(Arc::new(texts)) }
            });
            let read = read.unwrap_or_default();
            self.cache.bytes += read.bytes;
            self.cache.config_maps.insert(key.clone(), read);
        }
        let Read { version, content, bytes } = self.cache.config_maps.get(&key).cloned().unwrap_or_default();
        self.note(stored, version, bytes);
        self.objects.config_maps.insert(name, content);
        Ok(())
    }

    async fn read_secret(&mut self, secret: SecretName) -> Result<(), StoreError> {
        if self.is_too_much() {
            return Ok(());
        }
        let place = (self.namespace.to_owned(), secret);
        let Read { version, content, bytes } = match self.cache.secrets.get(&place) {
            Some(known) => known.clone(),
            None => {
                let read = read_secret(self.delivery, self.namespace, &place.1).await?;
                self.cache.bytes += read.bytes;
                self.cache.secrets.entry(place.clone()).or_insert(read).clone()
            }
        };
        self.note(secret_backends::key(self.namespace, &place.1), version, bytes);
        self.objects.secrets.insert(place.1, content);
        Ok(())
    }
}

async fn read_secret(
    delivery: &Delivery,
    namespace: &str,
    secret: &SecretName,
) -> Result<Read<SecretTexts>, StoreError> {
    let SecretContent { values, version } = delivery.secret_backends.read(namespace, secret).await?;
    let values = match values {
        Ok(Some(values)) => values,
        Ok(None) => return Ok(Read { version, content: Ok(None), bytes: 0 }),
        Err(why) => return Ok(Read { version, content: Err(why), bytes: 0 }),
    };
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let texts = Texts(values.iter().map(|(key, value)| (key.clone(), text(value))).collect());
    // Also what is no text was read.
    let bytes = values.values().map(|value| value.len()).sum::<usize>().max(texts.bytes());
    Ok(Read { version, content: Ok(Some(Arc::new(texts))), bytes })
}

fn texts_of_config_map(object: &Value) -> Texts {
    let map = |field: &str| object[field].as_object().into_iter().flatten();
    let texts = map("data").map(|(key, value)| (key.clone(), value.as_str().map(str::to_owned)));
    let text = |value: &Value| String::from_utf8(BASE64.decode(value.as_str()?).ok()?).ok();
    Texts(texts.chain(map("binaryData").map(|(key, value)| (key.clone(), text(value)))).collect())
}

pub async fn get_parameters(
    State(delivery): State<Arc<Delivery>>,
    Path((service, mac)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<SealedSecrets>, Refusal> {
    let cluster = authenticate(&delivery, &headers)?;
    let wanted: Digest = mac.parse().map_err(|error| Refusal::Invalid(format!("{error}")))?;
    let (row, agent) = {
        let mut tables = delivery.store.tables().await?;
        (load_desired(&mut tables, &cluster.uid).await?, load_agent(&mut tables, &cluster.uid).await?)
    };
    let not_desired = || Refusal::ParametersNotDesired { service: service.clone() };
    let (row, agent) = (row.ok_or_else(not_desired)?, agent.ok_or(Refusal::IdentityUnknown)?);
    let entries = desired::read_content(&row)?.entries;
    let entry = entries.into_iter().find(|entry| names(entry, &service, &wanted));
    let planned = || delivery.plans.entry_with_parameters(&cluster.uid, &service, &wanted);
    let entry = entry.or_else(planned).ok_or_else(not_desired)?;
    let name = Name::new(&entry.service.namespace, &entry.service.name);
    let found = resources::load::<ServiceDeployment>(&delivery.store, &name).await?;
    let (_, resource) = found.filter(|(resource, _)| resource.uid == service).ok_or_else(not_desired)?;
    let resource = held_specs::load_effective(&delivery, &service, resource).await?;
    let place = Name::new(&cluster.namespace, &cluster.name);
    let facts = ClusterFacts::load(&delivery, &place).await?.filter(|facts| *facts.uid == *cluster.uid);
    let facts = facts.ok_or_else(not_desired)?;
    let mut cache = InputCache::default();
    let (resolution, _) = load(&delivery, &service, &name, &resource.spec, &facts, &mut cache).await?;
    let json = encode(&resolution.parameters);
    if !resolution.problems.is_empty() || self::mac(&delivery.identity, &service, &json) != wanted {
        // What was edited since is in a state that is about to be published; whatever else it may be will be.
        let (uid, place) = (service.clone(), cluster.uid.to_string());
        delivery.store.transact(move |tx| Box::pin(async move { mark_parameters(tx, &uid, &place).await })).await?;
        delivery.dirty.notify_one();
        return Err(not_desired());
    }
    let info = SealedSecrets::info_of_parameters(delivery.identity.installation(), &cluster.uid, &service, &wanted);
    Ok(Json(seal(&agent, &info, &json)?))
}

fn names(entry: &Entry, service: &str, mac: &Digest) -> bool {
    let named = match &entry.action {
        Action::Apply(deployment) => deployment.parameters,
        Action::Hold { .. } | Action::Remove { .. } | Action::Unreadable(_) => None,
    };
    entry.service.uid == service && named == Some(*mac)
}
