//! Where the secrets that services are handed come from: one interface, and a backend for each kind of place, chosen by the reference.
//!
//! A reference without a store means a Secret of the hub. What a backend of another place must do beside reading: keep the last value that it
//! has seen, sealed, and answer with it while the place is down; and call [`mark_changed_keys`](farwater_store::delivery::mark_changed_keys) in the
//! transaction that replaces it, under [`SecretName::index_kind`], so that exactly the services are looked at that are handed a key that has changed.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_fleet::parameters::SecretName;
use farwater_store::{Store, StoreError};
use futures::future::BoxFuture;
use zeroize::Zeroizing;

use crate::controllers::resources::{self, Name};

/// One secret, the newest that is known.
pub struct SecretContent {
    pub values: BTreeMap<String, Zeroizing<Vec<u8>>>,
    /// Of a Secret of the hub: which state of it this is. A place of its own has its own account of that.
    pub version: Option<u64>,
}

/// Its keys alone.
impl fmt::Debug for SecretContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing is known of the secret, not even what it was before. The text is for people and quotes no value.
    #[error("{0}")]
    Unavailable(String),
}

pub trait SecretBackend: Send + Sync {
    /// A secret by its namespace and by the name that this place gives it; none: there is no such secret.
    fn read<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretContent>, BackendError>>;
}

/// All that there are.
pub struct SecretBackends {
    built_in: HubSecrets,
}

impl SecretBackends {
    pub fn new(store: Store) -> Self {
        Self { built_in: HubSecrets { store } }
    }

    pub async fn read(&self, namespace: &str, secret: &SecretName) -> Result<Option<SecretContent>, BackendError> {
        self.find(secret.store.as_deref())?.read(namespace, &secret.name).await
    }

    fn find(&self, store: Option<&str>) -> Result<&dyn SecretBackend, BackendError> {
        match store {
            None => Ok(&self.built_in),
            Some(store) => Err(BackendError::Unavailable(format!("this hub has no secret store {store}"))),
        }
    }
}

/// The Secrets of the hub itself, sealed in its database.
struct HubSecrets {
    store: Store,
}

impl SecretBackend for HubSecrets {
    fn read<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretContent>, BackendError>> {
        Box::pin(async move {
            let Some(resource) = resources::load_secret(&self.store, &Name::new(namespace, name)).await? else {
                return Ok(None);
            };
            let data = resource.object["data"].as_object().into_iter().flatten();
            // Admission lets in nothing but base64.
            let decode = |value: &str| Zeroizing::new(BASE64.decode(value).unwrap_or_default());
            let values = data.map(|(key, value)| (key.clone(), decode(value.as_str().unwrap_or_default()))).collect();
            Ok(Some(SecretContent { values, version: Some(resource.version) }))
        })
    }
}
