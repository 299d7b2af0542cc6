//! The objects that parameters are read from, and those that were read already.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::{ServiceContext, ServiceContextSpec, ServiceDeploymentSpec, parameters::MAX_SOURCE_BYTES};
use farwater_fleet::parameters::{Objects, SecretName, Texts, Unknown, wanted, wanted_through};
use farwater_store::{Key, StoreError};
use serde_json::Value;

use crate::{
    replica::Replica,
    resources::{self, Name, Stored as _},
    secret_backends::{self, SecretContent},
};

/// Maximum number of objects that are cached while many services are resolved, and their bytes; most are used by many
/// services.
pub(super) const MAX_CACHED: usize = 256;

pub(super) const MAX_CACHED_BYTES: usize = 32 << 20;

/// Objects that were read for services that are resolved together.
#[derive(Default)]
pub struct InputCache {
    pub(super) contexts: HashMap<Name, Read<Option<Arc<ServiceContextSpec>>>>,
    pub(super) config_maps: HashMap<Name, Read<Option<Arc<Texts>>>>,
    /// By namespace.
    pub(super) secrets: HashMap<(String, SecretName), Read<SecretTexts>>,
    /// Bytes of all objects together.
    pub(super) bytes: usize,
}

impl InputCache {
    pub(super) fn bound(&mut self) {
        let count = self.contexts.len() + self.config_maps.len() + self.secrets.len();
        if count > MAX_CACHED || self.bytes > MAX_CACHED_BYTES {
            *self = Self::default();
        }
    }
}

pub(super) type SecretTexts = Result<Option<Arc<Texts>>, Unknown>;

/// An object as it was read.
#[derive(Clone, Default)]
pub(super) struct Read<T> {
    /// Version of the object; None: it does not exist.
    pub(super) version: Option<u64>,
    pub(super) content: T,
    pub(super) bytes: usize,
}

/// Reads the objects that a service names, up to a limit of bytes.
pub(super) struct Reading<'a> {
    pub(super) replica: &'a Replica,
    pub(super) namespace: &'a str,
    pub(super) cache: &'a mut InputCache,
    pub(super) inputs: BTreeMap<Key, Option<u64>>,
    pub(super) objects: Objects,
    pub(super) bytes: usize,
}

impl Reading<'_> {
    pub(super) async fn read(&mut self, spec: &ServiceDeploymentSpec) -> Result<(), StoreError> {
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

    pub(super) fn is_too_much(&self) -> bool {
        self.bytes > MAX_SOURCE_BYTES
    }

    pub(super) fn note_input(&mut self, key: Key, version: Option<u64>, bytes: usize) {
        self.inputs.insert(key, version);
        self.bytes += bytes;
    }

    /// Contexts are small, so all are read; then all Secrets that they name are known.
    pub(super) async fn read_context(&mut self, name: String) -> Result<(), StoreError> {
        let key = Name::new(self.namespace, &name);
        if !self.cache.contexts.contains_key(&key) {
            let found = resources::load::<ServiceContext>(&self.replica.store, &key).await?;
            let read = found.map(|(resource, context)| Read {
                version: Some(resource.version),
                bytes: serde_json::to_vec(&context.spec.configuration).map_or(0, |json| json.len()),
                content: Some(Arc::new(context.spec)),
            });
            let read = read.unwrap_or_default();
            self.cache.bytes += read.bytes;
            self.cache.contexts.insert(key.clone(), read);
        }
        let Read {
            version,
            content,
            bytes,
        } = self.cache.contexts.get(&key).cloned().unwrap_or_default();
        self.note_input(ServiceContext::key(&key), version, bytes);
        self.objects.contexts.insert(name, content);
        Ok(())
    }

    pub(super) async fn read_config_map(&mut self, name: String) -> Result<(), StoreError> {
        if self.is_too_much() {
            return Ok(());
        }
        let key = Name::new(self.namespace, &name);
        let stored = Key {
            kind: resources::config_maps(),
            namespace: key.namespace.clone(),
            name: name.clone(),
        };
        if !self.cache.config_maps.contains_key(&key) {
            let found = self.replica.store.get(&stored).await?;
            let read = found.map(|resource| {
                let texts = texts_of_config_map(&resource.object);
                Read {
                    version: Some(resource.version),
                    bytes: texts.bytes(),
                    content: Some(Arc::new(texts)),
                }
            });
            let read = read.unwrap_or_default();
            self.cache.bytes += read.bytes;
            self.cache.config_maps.insert(key.clone(), read);
        }
        let Read {
            version,
            content,
            bytes,
        } = self.cache.config_maps.get(&key).cloned().unwrap_or_default();
        self.note_input(stored, version, bytes);
        self.objects.config_maps.insert(name, content);
        Ok(())
    }

    pub(super) async fn read_secret(&mut self, secret: SecretName) -> Result<(), StoreError> {
        if self.is_too_much() {
            return Ok(());
        }
        let place = (self.namespace.to_owned(), secret);
        let Read {
            version,
            content,
            bytes,
        } = match self.cache.secrets.get(&place) {
            Some(known) => known.clone(),
            None => {
                let read = read_secret(self.replica, self.namespace, &place.1).await?;
                self.cache.bytes += read.bytes;
                self.cache.secrets.entry(place.clone()).or_insert(read).clone()
            }
        };
        self.note_input(secret_backends::key(self.namespace, &place.1), version, bytes);
        self.objects.secrets.insert(place.1, content);
        Ok(())
    }
}

pub(super) async fn read_secret(
    replica: &Replica,
    namespace: &str,
    secret: &SecretName,
) -> Result<Read<SecretTexts>, StoreError> {
    let SecretContent { values, version } = replica.secret_backends.read(namespace, secret).await?;
    let values = match values {
        Ok(Some(values)) => values,
        Ok(None) => {
            return Ok(Read {
                version,
                content: Ok(None),
                bytes: 0,
            });
        }
        Err(why) => {
            return Ok(Read {
                version,
                content: Err(why),
                bytes: 0,
            });
        }
    };
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let texts = Texts(values.iter().map(|(key, value)| (key.clone(), text(value))).collect());
    // Bytes that are not text were read too.
    let bytes = values
        .values()
        .map(|value| value.len())
        .sum::<usize>()
        .max(texts.bytes());
    Ok(Read {
        version,
        content: Ok(Some(Arc::new(texts))),
        bytes,
    })
}

pub(super) fn texts_of_config_map(object: &Value) -> Texts {
    let map = |field: &str| object[field].as_object().into_iter().flatten();
    let texts = map("data").map(|(key, value)| (key.clone(), value.as_str().map(str::to_owned)));
    let text = |value: &Value| String::from_utf8(BASE64.decode(value.as_str()?).ok()?).ok();
    Texts(
        texts
            .chain(map("binaryData").map(|(key, value)| (key.clone(), text(value))))
            .collect(),
    )
}
