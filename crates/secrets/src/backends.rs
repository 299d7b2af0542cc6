//! All backends of a hub, by their names.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use crate::{
    backend::{Backend, BackendError, Reference, Values, check_size},
    config::{Allow, Config, ConfigError, Named},
    environment::Environment,
    files::Files,
    gate::Gate,
    keeper::{MAX_KEPT, MAX_KEPT_BYTES},
    program::Program,
    vault::Vault,
};

/// Why a reference can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the hub's configuration has no backend {0:?}")]
    Unknown(String),
    #[error(
        "namespace {namespace} may not read {path} of backend {backend}: the hub's configuration does not allow it"
    )]
    Forbidden {
        backend: String,
        namespace: String,
        path: String,
    },
    #[error("backend {0} has not answered yet")]
    Unread(String),
    #[error("too many references to backends: at most {MAX_KEPT}, with {MAX_KEPT_BYTES} bytes in total")]
    TooMuch,
    #[error("backend {backend}: {source}")]
    Backend { backend: String, source: BackendError },
}

impl ReadError {
    /// Whether a retry may succeed without a change.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Backend { source, .. } if source.is_passing())
    }
}

struct Entry {
    backend: Arc<dyn Backend>,
    allow: Vec<Allow>,
    gate: Gate,
}

#[derive(Default)]
pub struct Backends {
    entries: BTreeMap<String, Entry>,
}

impl Backends {
    /// Checks the configuration first. Contacts no backend yet.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.check()?;
        let mut backends = Self::default();
        for named in &config.backends {
            let name = named.name.clone();
            let backend = make(named).map_err(|problem| ConfigError::Setting {
                name: name.clone(),
                problem,
            })?;
            backends.add(&name, backend, named.allow.clone());
        }
        Ok(backends)
    }

    /// Adds a backend that is not part of the configuration.
    pub fn add(&mut self, name: &str, backend: Arc<dyn Backend>, allow: Vec<Allow>) {
        self.entries.insert(
            name.to_owned(),
            Entry {
                backend,
                allow,
                gate: Gate::default(),
            },
        );
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reads one reference if it is allowed, within the limits of time and size.
    pub async fn read(&self, backend: &str, reference: &Reference) -> Result<Values, ReadError> {
        let entry = self.permitted(backend, reference)?;
        let read = entry.gate.pass(entry.backend.read(reference)).await;
        let read = read.and_then(|values| check_size(reference, &values).map(|()| values));
        read.map_err(|source| ReadError::Backend {
            backend: backend.to_owned(),
            source,
        })
    }

    /// Whether the namespace may read the reference. Checked each time before a value is sent, because the
    /// configuration may have changed since it was read.
    pub fn check(&self, backend: &str, reference: &Reference) -> Result<(), ReadError> {
        self.permitted(backend, reference).map(drop)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(crate) fn is_away(&self, backend: &str) -> bool {
        self.entries.get(backend).is_some_and(|entry| entry.gate.is_away())
    }

    /// When the gate lets a request to an unavailable backend through. None: it does so now.
    pub(crate) fn opens(&self, backend: &str) -> Option<Instant> {
        self.entries.get(backend).and_then(|entry| entry.gate.opens())
    }

    fn permitted(&self, backend: &str, reference: &Reference) -> Result<&Entry, ReadError> {
        let entry = self
            .entries
            .get(backend)
            .ok_or_else(|| ReadError::Unknown(backend.to_owned()))?;
        let Reference { namespace, path, .. } = reference;
        // A path like `a/../b` is another name of `b`, and might be allowed although `b` is not.
        let is_plain = !path.split('/').any(|part| matches!(part, "." | "..")) && !path.starts_with('/');
        if is_plain && entry.allow.iter().any(|allow| allow.covers(namespace, path)) {
            return Ok(entry);
        }
        let (backend, namespace, path) = (backend.to_owned(), namespace.clone(), path.clone());
        Err(ReadError::Forbidden {
            backend,
            namespace,
            path,
        })
    }
}

fn make(named: &Named) -> Result<Arc<dyn Backend>, String> {
    Ok(match named {
        Named {
            files: Some(config), ..
        } => Arc::new(Files::new(config)?),
        Named {
            environment: Some(config),
            ..
        } => Arc::new(Environment::new(config)),
        Named {
            vault: Some(config), ..
        } => Arc::new(Vault::new(config)?),
        Named {
            program: Some(config), ..
        } => Arc::new(Program::new(config)?),
        _ => return Err("it names no kind of backend".to_owned()),
    })
}
