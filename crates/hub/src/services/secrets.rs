//! `GET /agent/v1/secrets/<service uid>/<mac>`: a service's Secrets, sealed to the agent that requests them.
//!
//! Desired states, entries and bundles name a MAC and no value. Values leave the hub only here: they are read from the
//! store for each request, and sealed to the key that the agent made before it joined.

use std::collections::BTreeMap;

use farwater_api::{
    Digest,
    git_repository::LocalReference,
    protocol::{MAX_SECRET_BYTES, SecretValue, Secrets},
};
use farwater_store::{Store, StoreError};
use zeroize::Zeroizing;

use crate::{
    identity::Identity,
    replica::Replica,
    resources::{self, Name},
    services::ServiceFacts,
};

const MAC_PURPOSE: &str = "service-secrets";
/// Such a token is bound to one API server and useless to another.
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";

/// The MAC for a service's entry; None: it names no Secrets. `Err`: which Secret is missing or can't be sent.
pub async fn resolve(replica: &Replica, facts: &ServiceFacts) -> Result<Result<Option<Digest>, String>, StoreError> {
    let names = &facts.service.spec.secrets;
    if names.is_empty() || facts.deleting() {
        return Ok(Ok(None));
    }
    let loaded = load(&replica.store, &facts.name.namespace, names).await?;
    Ok(loaded.map(|json| Some(mac(&replica.identity, &facts.uid, &json))))
}

/// Loads the Secrets as JSON, equal for equal content.
pub async fn load(
    store: &Store,
    namespace: &str,
    names: &[LocalReference],
) -> Result<Result<Zeroizing<Vec<u8>>, String>, StoreError> {
    let mut secrets = Secrets::default();
    let mut missing = Vec::new();
    for LocalReference { name } in names {
        let Some(resource) = resources::load_secret(store, &Name::new(namespace, name)).await? else {
            missing.push(format!("Secret {name} does not exist in namespace {namespace}"));
            continue;
        };
        let object = &resource.object;
        let secret_type = object["type"].as_str().unwrap_or("Opaque").to_owned();
        if secret_type == TOKEN_TYPE {
            return Ok(Err(format!(
                "Secret {name} is of type {TOKEN_TYPE}, which no other API server takes"
            )));
        }
        let data = object["data"].as_object().into_iter().flatten();
        let data: BTreeMap<_, _> = data
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect();
        secrets.0.insert(name.clone(), SecretValue { secret_type, data });
    }

    if !missing.is_empty() {
        return Ok(Err(missing.join("; ")));
    }

    let json = Zeroizing::new(serde_json::to_vec(&secrets).map_err(StoreError::abort)?);
    if json.len() > MAX_SECRET_BYTES {
        let problem = format!(
            "the Secrets of the service have {} bytes; at most {MAX_SECRET_BYTES} are sent",
            json.len()
        );
        return Ok(Err(problem));
    }
    Ok(Ok(json))
}

/// Includes the service, so that two services with the same password don't have equal MACs in their entries.
pub fn mac(identity: &Identity, service_uid: &str, json: &[u8]) -> Digest {
    let message = Zeroizing::new([service_uid.as_bytes(), b"\n", json].concat());
    Digest::from_bytes(identity.mac(MAC_PURPOSE, &message))
}
