//! Where the secrets that services are handed come from, chosen by the reference: without a backend it means a Secret of the hub.
//!
//! Another backend is read here too. It keeps the last value that it has seen and answers with that while its place is down; and
//! when it has seen a new one it calls [`mark_changed_keys`](farwater_store::delivery::mark_changed_keys) under
//! [`SecretName::index_kind`], so that exactly the services are looked at that are handed a key that has changed.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_fleet::parameters::SecretName;
use farwater_store::{Store, StoreError};
use zeroize::Zeroizing;

use crate::controllers::resources::{self, Name};

/// One secret, the newest that is known.
pub struct SecretContent {
    pub values: BTreeMap<String, Zeroizing<Vec<u8>>>,
    /// Of a Secret of the hub: which state of it this is.
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

/// All that there are.
pub struct SecretBackends {
    store: Store,
}

impl SecretBackends {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// A secret of a namespace; none: there is no such secret.
    pub async fn read(&self, namespace: &str, secret: &SecretName) -> Result<Option<SecretContent>, BackendError> {
        if let Some(backend) = &secret.backend {
            return Err(BackendError::Unavailable(format!("this hub has no backend {backend}")));
        }
        let Some(resource) = resources::load_secret(&self.store, &Name::new(namespace, &secret.name)).await? else {
            return Ok(None);
        };
        let data = resource.object["data"].as_object().into_iter().flatten();
        // Admission lets in nothing but base64.
        let decode = |value: &str| Zeroizing::new(BASE64.decode(value).unwrap_or_default());
        let values = data.map(|(key, value)| (key.clone(), decode(value.as_str().unwrap_or_default()))).collect();
        Ok(Some(SecretContent { values, version: Some(resource.version) }))
    }
}
