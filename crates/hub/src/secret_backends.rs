//! The backends of services' secrets. A reference without a backend means a Secret of the hub.
//!
//! No request waits for another backend. Its known values are in memory and, sealed, in the database. Its
//! [controller](crate::services::refresh_secrets) reads it and marks the services that use a key that has changed.

use std::{collections::BTreeMap, fmt, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_fleet::parameters::{SecretName, Unknown};
use farwater_secrets::{Condition, ReadError, Reference, Stale, Values};
use farwater_store::{Key, Kind, Store, StoreError};
use zeroize::Zeroizing;

use crate::{
    external_secrets::{self, ExternalError, ExternalSecrets},
    resources::{self, Name},
};

/// Values by key.
type KeyedValues = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// The newest known content of a secret.
pub struct SecretContent {
    /// None: the secret does not exist. `Err`: nothing is known of it, not even earlier values; the text quotes no
    /// value.
    pub values: Result<Option<KeyedValues>, Unknown>,
    /// Version of the content. None: it changes only with the hub's configuration, or the secret does not exist.
    pub version: Option<u64>,
}

/// Shows only the keys.
impl fmt::Debug for SecretContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.values.iter().flatten().flat_map(BTreeMap::keys))
            .finish()
    }
}

/// All backends of secrets.
pub struct SecretBackends {
    store: Store,
    external: Option<ExternalSecrets>,
}

impl SecretBackends {
    /// Only the hub's own Secrets.
    pub fn new(store: Store) -> Self {
        Self { store, external: None }
    }

    /// Also the backends in a file of the hub's configuration.
    pub fn open(path: &Path, store: Store) -> Result<Self, ExternalError> {
        let external = external_secrets::open(path, &store)?;
        Ok(Self {
            store,
            external: Some(external),
        })
    }

    pub fn external(&self) -> Option<&ExternalSecrets> {
        self.external.as_ref()
    }

    /// State of each of the other backends.
    pub fn conditions(&self) -> Vec<Condition> {
        self.external
            .as_ref()
            .map(ExternalSecrets::conditions)
            .unwrap_or_default()
    }

    /// Reads a secret that objects of a namespace refer to.
    pub async fn read(&self, namespace: &str, secret: &SecretName) -> Result<SecretContent, StoreError> {
        if let Some(backend) = &secret.backend {
            return Ok(self.read_external(backend, &reference(namespace, &secret.name)).await);
        }
        let found = resources::load_secret(&self.store, &Name::new(namespace, &secret.name)).await?;
        let version = found.as_ref().map(|resource| resource.version);
        let values = found.map(|resource| {
            let data = resource.object["data"].as_object().into_iter().flatten();
            // Admission only accepts base64.
            let decode = |value: &str| Zeroizing::new(BASE64.decode(value).unwrap_or_default());
            data.map(|(key, value)| (key.clone(), decode(value.as_str().unwrap_or_default())))
                .collect()
        });
        Ok(SecretContent {
            values: Ok(values),
            version,
        })
    }

    async fn read_external(&self, backend: &str, reference: &Reference) -> SecretContent {
        let known = match &self.external {
            Some(external) => external.get(backend, reference).await,
            None => Err(ReadError::Unknown(backend.to_owned())),
        };
        let known = match known {
            Ok(known) => known,
            Err(error) => {
                return SecretContent {
                    values: Err(Unknown::Failed(error.to_string())),
                    version: None,
                };
            }
        };
        let values = known
            .values
            .map(|values| Some(copy(&values)))
            .map_err(|error| match error {
                ReadError::Unread(_) => Unknown::Unread,
                error => Unknown::Failed(error.to_string()),
            });
        SecretContent {
            values,
            version: Some(known.turn),
        }
    }

    /// Version of the known content of another backend's secret, by its [`key`]; None for other keys.
    pub fn version(&self, key: &Key) -> Option<u64> {
        let secret = SecretName::of_index(key.kind.as_str(), &key.name)?;
        let known = self
            .external
            .as_ref()?
            .peek(secret.backend.as_deref()?, &reference(&key.namespace, &key.name))?;
        Some(known.turn)
    }

    /// Since when and why the values of another backend's secret are stale; None: they are not.
    pub fn stale(&self, namespace: &str, secret: &SecretName) -> Option<Stale> {
        let backend = secret.backend.as_deref()?;
        self.external
            .as_ref()?
            .peek(backend, &reference(namespace, &secret.name))?
            .stale
    }
}

fn copy(values: &Values) -> KeyedValues {
    values
        .iter()
        .map(|(key, value)| (key.clone(), Zeroizing::new(value.expose().to_vec())))
        .collect()
}

/// The reference to a whole secret of a backend, whichever of its keys are used.
pub fn reference(namespace: &str, path: &str) -> Reference {
    Reference {
        namespace: namespace.to_owned(),
        path: path.to_owned(),
    }
}

/// The key under which a secret is noted as an input.
pub fn key(namespace: &str, secret: &SecretName) -> Key {
    let kind = match secret.backend {
        None => resources::secrets(),
        Some(_) => Kind::from(&*secret.index_kind()),
    };
    Key {
        kind,
        namespace: namespace.to_owned(),
        name: secret.name.clone(),
    }
}
